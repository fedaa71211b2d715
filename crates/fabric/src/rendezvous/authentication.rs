//! Mutual authentication of both ends of a fresh connection.
//!
//! The dialer and the acceptor greet each other with a fresh random challenge each. Then the dialer proves that it knows
//! the secret, by an HMAC-SHA256 over the protocol version, its role, the purpose of the connection, its context and
//! both challenges; only a dialer that has done so gets the acceptor's proof in return. The secret never travels, a
//! proof is of no use for any other connection, and neither side can send the other's proof back to it.
//!
//! A greeting is 44 bytes: `ropewalk`, version (u16, little-endian), purpose (u8), a zero, challenge (32 bytes). The
//! dialer's proof is 32 bytes. The acceptor's verdict is 33: 1 and its proof, or 0 and zeros when it refuses.

use std::net::TcpStream;
use std::time::Instant;

use hmac::Mac;

use crate::error::{Cause, FabricError};
use crate::secret::{Secret, random_bytes};
use crate::timed::{read_exact, write_all};

const MAGIC: &[u8; 8] = b"ropewalk";
/// Counts changes of anything that travels between ranks.
const PROTOCOL_VERSION: u16 = 1;
const GREETING_BYTES: usize = 44;
const PROOF_BYTES: usize = 32;
const VERDICT_BYTES: usize = 1 + PROOF_BYTES;

/// What a connection is for. Proofs for one purpose do not serve another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A rank's connection to the coordinator.
    Control = 1,
    /// A connection between two ranks.
    Link = 2,
    /// A rank's connection to the one that gathers a new group.
    Reform = 3,
}

/// One side of the handshake.
#[derive(Clone, Copy)]
enum Role {
    Dialer = 1,
    Acceptor = 2,
}

/// What both sides must agree on.
pub(crate) struct Terms<'a> {
    pub(crate) secret: &'a Secret,
    pub(crate) purpose: Purpose,
    /// Distinguishes groups that share a secret.
    pub(crate) context: &'a [u8],
}

/// Authenticates as the side that opened the connection.
pub(crate) fn authenticate_dialer(stream: &TcpStream, terms: &Terms<'_>, by: Instant) -> Result<(), FabricError> {
    let whom = address_of(stream);
    let broken = |cause| FabricError::Handshake { whom: whom.clone(), cause };
    let ours = random_bytes::<32>()?;
    write_all(stream, &greeting(terms.purpose, &ours), by).map_err(broken)?;
    let theirs = read_greeting(stream, terms.purpose, by).map_err(|error| broken(error.into()))?;
    let proof = digest(terms, Role::Dialer, &ours, &theirs).finalize().into_bytes();
    write_all(stream, &proof, by).map_err(broken)?;
    let mut verdict = [0; VERDICT_BYTES];
    read_exact(stream, &mut verdict, by).map_err(broken)?;
    let refused = |why: &str| FabricError::Refused { whom: whom.clone(), why: why.to_owned() };
    if verdict[0] != 1 {
        return Err(refused("its secret is another one than ours, or it belongs to another group"));
    }
    digest(terms, Role::Acceptor, &ours, &theirs)
        .verify_slice(&verdict[1..])
        .map_err(|_| refused("it does not know our secret"))
}

/// Authenticates as the side that accepted the connection.
pub(crate) fn authenticate_acceptor(stream: &TcpStream, terms: &Terms<'_>, by: Instant) -> Result<(), FabricError> {
    let whom = address_of(stream);
    let broken = |cause| FabricError::Handshake { whom: whom.clone(), cause };
    let ours = random_bytes::<32>()?;
    let theirs = match read_greeting(stream, terms.purpose, by) {
        Ok(theirs) => theirs,
        Err(GreetingError::Version(cause)) => {
            // The answer lets the dialer say what is wrong, too. If it cannot be sent, nothing is lost.
            let _ = write_all(stream, &greeting(terms.purpose, &ours), by);
            return Err(broken(cause));
        }
        Err(GreetingError::Other(cause)) => return Err(broken(cause)),
    };
    write_all(stream, &greeting(terms.purpose, &ours), by).map_err(broken)?;
    let mut proof = [0; PROOF_BYTES];
    read_exact(stream, &mut proof, by).map_err(broken)?;
    let mut verdict = [0; VERDICT_BYTES];
    if digest(terms, Role::Dialer, &theirs, &ours).verify_slice(&proof).is_err() {
        let _ = write_all(stream, &verdict, by);
        return Err(FabricError::Refused { whom, why: "it does not know our secret".to_owned() });
    }
    verdict[0] = 1;
    verdict[1..].copy_from_slice(&digest(terms, Role::Acceptor, &theirs, &ours).finalize().into_bytes());
    write_all(stream, &verdict, by).map_err(broken)
}

/// The other side's address for messages.
pub(crate) fn address_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "a vanished address".to_owned(), |address| address.to_string())
}

fn digest(terms: &Terms<'_>, role: Role, of_dialer: &[u8; 32], of_acceptor: &[u8; 32]) -> hmac::Hmac<sha2::Sha256> {
    let mut digest = terms.secret.keyed_digest();
    digest.update(MAGIC);
    digest.update(&PROTOCOL_VERSION.to_le_bytes());
    digest.update(&[role as u8, terms.purpose as u8]);
    digest.update(of_dialer);
    digest.update(of_acceptor);
    // The context comes last, so that its length need not be written down to keep the parts apart.
    digest.update(terms.context);
    digest
}

fn greeting(purpose: Purpose, challenge: &[u8; 32]) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[10] = purpose as u8;
    bytes[12..].copy_from_slice(challenge);
    bytes
}

enum GreetingError {
    Version(Cause),
    Other(Cause),
}

impl From<GreetingError> for Cause {
    fn from(error: GreetingError) -> Self {
        match error {
            GreetingError::Version(cause) | GreetingError::Other(cause) => cause,
        }
    }
}

fn read_greeting(stream: &TcpStream, purpose: Purpose, by: Instant) -> Result<[u8; 32], GreetingError> {
    let mut bytes = [0; GREETING_BYTES];
    read_exact(stream, &mut bytes, by).map_err(GreetingError::Other)?;
    if &bytes[..8] != MAGIC {
        return Err(GreetingError::Other(Cause::corrupt("its first bytes are not ropewalk's")));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != PROTOCOL_VERSION {
        return Err(GreetingError::Version(Cause::corrupt(format!(
            "it speaks protocol version {version}, this side {PROTOCOL_VERSION}; install the same ropewalk on both"
        ))));
    }
    if bytes[10] != purpose as u8 {
        return Err(GreetingError::Other(Cause::corrupt("it came to the wrong port")));
    }
    let mut challenge = [0; 32];
    challenge.copy_from_slice(&bytes[12..]);
    Ok(challenge)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::local::local_sockets;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn authenticate(acceptor: &Terms<'_>, dialer: &Terms<'_>) -> (Result<(), FabricError>, Result<(), FabricError>) {
        let (accepted, dialed) = local_sockets().unwrap();
        std::thread::scope(|scope| {
            // The connection ends with the side that gives up.
            let accepting = scope.spawn(move || authenticate_acceptor(&{ accepted }, acceptor, soon()));
            (authenticate_dialer(&{ dialed }, dialer, soon()), accepting.join().unwrap())
        })
    }

    #[test]
    fn only_equal_terms_agree() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let terms = Terms { secret: &secret, purpose: Purpose::Link, context: b"session" };
        let (dialer, acceptor) = authenticate(&terms, &terms);
        dialer.unwrap();
        acceptor.unwrap();
        let wrong = [
            Terms { secret: &other, ..terms },
            Terms { purpose: Purpose::Control, ..terms },
            Terms { context: b"another session", ..terms },
        ];
        for wrong in &wrong {
            for (acceptor, dialer) in [(&terms, wrong), (wrong, &terms)] {
                let (dialer, acceptor) = authenticate(acceptor, dialer);
                assert!(dialer.is_err() && acceptor.is_err());
            }
        }
    }

    #[test]
    fn a_proof_cannot_be_sent_back() {
        let secret = Secret::random().unwrap();
        let terms = Terms { secret: &secret, purpose: Purpose::Control, context: &[] };
        let (mirror, dialer) = local_sockets().unwrap();
        let outcome = std::thread::scope(|scope| {
            let dialing = scope.spawn(|| authenticate_dialer(&dialer, &terms, soon()));
            let mut greeting = [0; GREETING_BYTES];
            read_exact(&mirror, &mut greeting, soon()).unwrap();
            write_all(&mirror, &greeting, soon()).unwrap();
            let mut verdict = [1; VERDICT_BYTES];
            read_exact(&mirror, &mut verdict[1..], soon()).unwrap();
            write_all(&mirror, &verdict, soon()).unwrap();
            dialing.join().unwrap()
        });
        assert!(matches!(outcome, Err(FabricError::Refused { .. })), "{outcome:?}");
    }
}
