//! Encryption of connections that leave the machine: TLS 1.3, without certificates.
//!
//! Each process has a key pair of its own, which dies with it. Before a connection is encrypted, both sides have shown
//! each other by the group's secret that they belong together (see `rendezvous/authentication.rs`), and the
//! fingerprints of both public keys were part of what they proved. TLS then accepts these two keys and no others. So
//! nobody in between can put in keys of his own, and nobody has to issue certificates.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::event::PollFlags;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, ServerConnection, SignatureScheme,
};
use sha2::{Digest, Sha256};

use crate::error::{Cause, FabricError};
use crate::timed::wait_ready;

/// Identifies a public key.
pub(crate) type Fingerprint = [u8; 32];

/// What is encrypted before it is handed to the system: a few records at a time.
const SEAL_BYTES: usize = 64 << 10;
/// What is read from the system at a time.
const INTAKE_BYTES: usize = 64 << 10;

/// The key pair of this process.
pub(crate) struct Identity {
    key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl Identity {
    /// The same for the whole life of the process.
    pub(crate) fn of_this_process() -> Result<&'static Self, FabricError> {
        static IDENTITY: OnceLock<Result<Identity, String>> = OnceLock::new();
        let identity = IDENTITY.get_or_init(|| Self::generate().map_err(|error| error.to_string()));
        identity.as_ref().map_err(|why| FabricError::Invalid(format!("cannot make a key for encryption: {why}")))
    }

    fn generate() -> Result<Self, Error> {
        use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
        let provider = Arc::new(provider::default_provider());
        let random = ring::rand::SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .map_err(|_| Error::General("no random numbers".to_owned()))?;
        let private = PrivatePkcs8KeyDer::from(document.as_ref().to_vec());
        let key = provider.key_provider.load_private_key(private.into())?;
        let public = key.public_key().ok_or_else(|| Error::General("the key has no public part".to_owned()))?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        let fingerprint = fingerprint(&public);
        Ok(Self { key: Arc::new(CertifiedKey::new(vec![public], key)), fingerprint, provider })
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Encrypts a connection as the side that opened it.
    pub(crate) fn dial(&self, stream: &TcpStream, theirs: Fingerprint, by: Instant) -> Result<Cipher, Cause> {
        let connection = self.client(theirs).map_err(|error| Cause::corrupt(error.to_string()))?;
        Cipher::shake_hands(Connection::Client(connection), stream, by)
    }

    /// Encrypts a connection as the side that accepted it.
    pub(crate) fn accept(&self, stream: &TcpStream, theirs: Fingerprint, by: Instant) -> Result<Cipher, Cause> {
        let connection = self.server(theirs).map_err(|error| Cause::corrupt(error.to_string()))?;
        Cipher::shake_hands(Connection::Server(connection), stream, by)
    }

    fn verifier(&self, theirs: Fingerprint) -> Arc<ByFingerprint> {
        Arc::new(ByFingerprint { theirs, provider: Arc::clone(&self.provider) })
    }

    fn client(&self, theirs: Fingerprint) -> Result<ClientConnection, Error> {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier(theirs))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.key))));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        let nobody = ServerName::from(std::net::IpAddr::from([0, 0, 0, 0]));
        ClientConnection::new(Arc::new(config), nobody)
    }

    fn server(&self, theirs: Fingerprint) -> Result<ServerConnection, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(self.verifier(theirs))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.key))));
        // Nothing follows the handshake unasked.
        config.send_tls13_tickets = 0;
        ServerConnection::new(Arc::new(config))
    }
}

fn fingerprint(public_key: &CertificateDer<'_>) -> Fingerprint {
    Sha256::digest(public_key.as_ref()).into()
}

/// Accepts one public key.
#[derive(Debug)]
struct ByFingerprint {
    theirs: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ByFingerprint {
    fn check(&self, public_key: &CertificateDer<'_>) -> Result<(), Error> {
        if fingerprint(public_key) == self.theirs {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        public_key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public_key = SubjectPublicKeyInfoDer::from(public_key.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &public_key, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS 1.2 is not offered, so that nobody can ask for this.
fn no_older_version() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("only TLS 1.3 is spoken here".to_owned()))
}

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_older_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for ByFingerprint {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_older_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The state of an encrypted connection. The socket is the caller's.
pub(crate) struct Cipher {
    connection: Connection,
    intake: Intake,
    /// Bytes of the caller's that are encrypted, but not yet reported as taken, as some of them may not be with the system.
    sealed: usize,
    /// Nothing more comes in.
    ended: bool,
}

/// What has been read from the socket and not yet decrypted.
struct Intake {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Cipher {
    fn shake_hands(mut connection: Connection, stream: &TcpStream, by: Instant) -> Result<Self, Cause> {
        // What is encrypted ahead is limited here.
        connection.set_buffer_limit(None);
        let intake = Intake { buffer: vec![0; INTAKE_BYTES].into(), start: 0, end: 0 };
        let mut cipher = Self { connection, intake, sealed: 0, ended: false };
        let started = Instant::now();
        while cipher.connection.is_handshaking() || cipher.connection.wants_write() {
            let mut flags = PollFlags::empty();
            if cipher.connection.wants_write() {
                flags |= match cipher.flush(stream) {
                    Err(error) if is_momentary(&error) => PollFlags::OUT,
                    result => result.map(|()| PollFlags::empty())?,
                };
            } else {
                flags |= match cipher.pull(stream) {
                    Ok(()) if cipher.ended => return Err(Cause::Closed),
                    Err(error) if is_momentary(&error) => PollFlags::IN,
                    result => result.map(|()| PollFlags::empty())?,
                };
            }
            if !flags.is_empty() && !wait_ready(stream, flags, by)? {
                return Err(Cause::Silent(started.elapsed()));
            }
        }
        Ok(cipher)
    }

    /// Takes what there is room for of `parts`; [`ErrorKind::WouldBlock`] when that is nothing.
    ///
    /// What is reported as taken is with the system, which sends it by itself. So bytes may have been encrypted by one
    /// call and be reported by a later one: a caller must go on offering the bytes that were not taken.
    pub(crate) fn send(&mut self, stream: &TcpStream, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = 0;
        loop {
            match self.flush(stream) {
                Err(error) if is_momentary(&error) && taken > 0 => return Ok(taken),
                result => result?,
            }
            let reported = self.sealed.min(offered - taken);
            taken += reported;
            self.sealed -= reported;
            if taken == offered {
                return Ok(taken);
            }
            self.seal(parts, taken)?;
        }
    }

    /// Encrypts some of what follows the first `skip` bytes of `parts`.
    fn seal(&mut self, parts: &[IoSlice<'_>], mut skip: usize) -> io::Result<()> {
        for part in parts {
            let skipped = skip.min(part.len());
            skip -= skipped;
            let part = &part[skipped..];
            let part = &part[..part.len().min(SEAL_BYTES - self.sealed)];
            self.connection.writer().write_all(part)?;
            self.sealed += part.len();
        }
        Ok(())
    }

    fn flush(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut stream)?;
        }
        Ok(())
    }

    /// Fills `parts` with what has come; 0 at the end of the connection, [`ErrorKind::WouldBlock`] when there is nothing.
    pub(crate) fn receive(&mut self, stream: &TcpStream, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut received = 0;
        for part in parts {
            let mut filled = 0;
            while filled < part.len() {
                match self.connection.reader().read(&mut part[filled..]) {
                    Ok(0) => return Ok(received),
                    Ok(count) => {
                        filled += count;
                        received += count;
                    }
                    // The other side went without a word of farewell, as a process that is killed does.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(received),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => match self.pull(stream) {
                        Err(error) if is_momentary(&error) && received > 0 => return Ok(received),
                        result => result?,
                    },
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(received)
    }

    /// Whether there is something to receive.
    pub(crate) fn has_come(&mut self, stream: &TcpStream) -> Result<bool, Cause> {
        loop {
            let state = self.connection.process_new_packets().map_err(|error| Cause::corrupt(error.to_string()))?;
            if state.plaintext_bytes_to_read() > 0 {
                return Ok(true);
            }
            if self.ended || state.peer_has_closed() {
                return Err(Cause::Closed);
            }
            match self.pull(stream) {
                Err(error) if is_momentary(&error) => return Ok(false),
                result => result?,
            }
        }
    }

    /// Decrypts something more.
    fn pull(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        let intake = &mut self.intake;
        if intake.start == intake.end && !self.ended {
            let count = stream.read(&mut intake.buffer)?;
            (intake.start, intake.end) = (0, count);
            self.ended = count == 0;
        }
        let mut bytes = &intake.buffer[intake.start..intake.end];
        intake.start += self.connection.read_tls(&mut bytes)?;
        let corrupt = |error: Error| io::Error::new(ErrorKind::InvalidData, error);
        self.connection.process_new_packets().map(|_| ()).map_err(corrupt)
    }
}

fn is_momentary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::local::local_sockets;
    use crate::timed::end_of;

    fn soon() -> Instant {
        end_of(Duration::from_secs(10))
    }

    fn shake(dialers: Fingerprint, acceptors: Fingerprint) -> (Result<Cipher, Cause>, Result<Cipher, Cause>) {
        let (one, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let known = |wanted: Fingerprint, real: Fingerprint| if wanted == [0; 32] { real } else { wanted };
        let (accepted, dialed) = local_sockets().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let cipher = other.accept(&accepted, known(acceptors, one.fingerprint), soon());
                // Lets the other side see the end.
                let _ = accepted.shutdown(std::net::Shutdown::Write);
                cipher
            });
            let mut dialing = one.dial(&dialed, known(dialers, other.fingerprint), soon());
            if let Ok(cipher) = &mut dialing
                && let Err(error) = cipher.receive(&dialed, &mut [IoSliceMut::new(&mut [0])])
                && !is_momentary(&error)
            {
                dialing = Err(error.into());
            }
            let _ = dialed.shutdown(std::net::Shutdown::Both);
            (dialing, accepting.join().unwrap())
        })
    }

    #[test]
    fn only_the_known_keys_are_accepted() {
        let (dialer, acceptor) = shake([0; 32], [0; 32]);
        dialer.unwrap();
        acceptor.unwrap();
        let (dialer, acceptor) = shake([1; 32], [0; 32]);
        assert!(dialer.is_err() && acceptor.is_err());
        let (_, acceptor) = shake([0; 32], [1; 32]);
        assert!(acceptor.is_err());
    }
}
