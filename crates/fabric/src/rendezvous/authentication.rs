//! Mutual authentication of both ends of a fresh connection.
//!
//! The dialer and the acceptor greet each other with a fresh random challenge each. Then the dialer proves that it knows
//! the secret, by an HMAC-SHA256 over its role, both greetings and the context of the connection; only a dialer that has
//! done so gets the acceptor's proof in return. The secret never travels, a proof is of no use for any other
//! connection, and neither side can send the other's proof back to it.
//!
//! A greeting is 76 bytes: `ropewalk`, version (u16, little-endian), purpose (u8), whether to encrypt (u8, 0 or 1),
//! challenge (32 bytes), fingerprint of the key to encrypt with (32 bytes, zeros without). The dialer's proof is 32
//! bytes. The acceptor's verdict is 33: 1 and its proof, or 0 and zeros when it refuses. If the dialer has asked for
//! it, TLS follows, between the two keys.

use std::net::TcpStream;
use std::time::Instant;

use hmac::Mac;

use crate::channel::Channel;
use crate::encryption::{Fingerprint, Identity};
use crate::error::{Cause, FabricError};
use crate::local::local_sockets;
use crate::secret::{Secret, random_bytes};
use crate::timed::{read_exact, write_all};

const MAGIC: &[u8; 8] = b"ropewalk";
/// Counts changes of anything that travels between ranks.
const PROTOCOL_VERSION: u16 = 2;
const GREETING_BYTES: usize = 76;
/// Magic and version, which all versions have in the same place.
const PREFIX_BYTES: usize = 10;
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

/// Authenticates as the side that opened the connection, which decides whether it is to be encrypted.
pub(crate) fn authenticate_dialer(
    stream: TcpStream,
    terms: &Terms<'_>,
    encrypt: bool,
    by: Instant,
) -> Result<Channel, FabricError> {
    let whom = address_of(&stream);
    let broken = |cause| FabricError::Handshake { whom: whom.clone(), cause };
    let ours = Greeting::new(terms.purpose, encrypt)?;
    write_all(&stream, &ours.encode(), by).map_err(broken)?;
    let theirs = read_greeting(&stream, terms.purpose, by).map_err(|error| broken(error.into()))?;
    let proof = digest(terms, Role::Dialer, &ours, &theirs).finalize().into_bytes();
    write_all(&stream, &proof, by).map_err(broken)?;
    let mut verdict = [0; VERDICT_BYTES];
    read_exact(&stream, &mut verdict, by).map_err(broken)?;
    let refused = |why: &str| FabricError::Refused { whom: whom.clone(), why: why.to_owned() };
    if verdict[0] != 1 {
        return Err(refused("its secret is another one than ours, or it belongs to another group"));
    }
    digest(terms, Role::Acceptor, &ours, &theirs)
        .verify_slice(&verdict[1..])
        .map_err(|_| refused("it does not know our secret"))?;
    match theirs.fingerprint {
        None if encrypt => Err(broken(Cause::corrupt("it does not encrypt when asked to"))),
        Some(theirs) if encrypt => {
            let cipher = Identity::of_this_process()?.dial(&stream, theirs, by).map_err(broken)?;
            Ok(Channel::encrypted(stream, cipher))
        }
        _ => Ok(Channel::plain(stream)),
    }
}

/// Authenticates as the side that accepted the connection, which encrypts it if it is asked to.
pub(crate) fn authenticate_acceptor(stream: TcpStream, terms: &Terms<'_>, by: Instant) -> Result<Channel, FabricError> {
    let whom = address_of(&stream);
    let broken = |cause| FabricError::Handshake { whom: whom.clone(), cause };
    let theirs = match read_greeting(&stream, terms.purpose, by) {
        Ok(theirs) => theirs,
        Err(GreetingError::Version(cause)) => {
            // The answer lets the dialer say what is wrong, too. If it cannot be sent, nothing is lost.
            let _ = write_all(&stream, &Greeting::new(terms.purpose, false)?.encode(), by);
            return Err(broken(cause));
        }
        Err(GreetingError::Other(cause)) => return Err(broken(cause)),
    };
    let ours = Greeting::new(terms.purpose, theirs.fingerprint.is_some())?;
    write_all(&stream, &ours.encode(), by).map_err(broken)?;
    let mut proof = [0; PROOF_BYTES];
    read_exact(&stream, &mut proof, by).map_err(broken)?;
    let mut verdict = [0; VERDICT_BYTES];
    if digest(terms, Role::Dialer, &theirs, &ours).verify_slice(&proof).is_err() {
        let _ = write_all(&stream, &verdict, by);
        return Err(FabricError::Refused { whom, why: "it does not know our secret".to_owned() });
    }
    verdict[0] = 1;
    verdict[1..].copy_from_slice(&digest(terms, Role::Acceptor, &theirs, &ours).finalize().into_bytes());
    write_all(&stream, &verdict, by).map_err(broken)?;
    match theirs.fingerprint {
        None => Ok(Channel::plain(stream)),
        Some(theirs) => {
            let cipher = Identity::of_this_process()?.accept(&stream, theirs, by).map_err(broken)?;
            Ok(Channel::encrypted(stream, cipher))
        }
    }
}

/// The other side's address for messages.
pub(crate) fn address_of(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "a vanished address".to_owned(), |address| address.to_string())
}

fn digest(terms: &Terms<'_>, role: Role, of_dialer: &Greeting, of_acceptor: &Greeting) -> hmac::Hmac<sha2::Sha256> {
    let mut digest = terms.secret.keyed_digest();
    digest.update(&[role as u8]);
    // Version, purpose, challenges and keys: whatever the two have said to each other.
    digest.update(&of_dialer.encode());
    digest.update(&of_acceptor.encode());
    // The context comes last, so that its length need not be written down to keep the parts apart.
    digest.update(terms.context);
    digest
}

/// What each side says first.
struct Greeting {
    purpose: u8,
    challenge: [u8; 32],
    /// Of the key with which this side wants to encrypt, if it does.
    fingerprint: Option<Fingerprint>,
}

impl Greeting {
    /// A greeting with a fresh challenge.
    fn new(purpose: Purpose, encrypt: bool) -> Result<Self, FabricError> {
        let fingerprint = if encrypt { Some(Identity::of_this_process()?.fingerprint()) } else { None };
        Ok(Self { purpose: purpose as u8, challenge: random_bytes()?, fingerprint })
    }

    fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[10] = self.purpose;
        bytes[11] = self.fingerprint.is_some().into();
        bytes[12..44].copy_from_slice(&self.challenge);
        bytes[44..].copy_from_slice(&self.fingerprint.unwrap_or_default());
        bytes
    }

    /// Reads a greeting for a purpose.
    fn decode(bytes: &[u8; GREETING_BYTES], purpose: Purpose) -> Result<Self, GreetingError> {
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
        let (mut challenge, mut key) = ([0; 32], [0; 32]);
        challenge.copy_from_slice(&bytes[12..44]);
        key.copy_from_slice(&bytes[44..]);
        let fingerprint = match bytes[11] {
            0 if key == [0; 32] => None,
            1 => Some(key),
            _ => return Err(GreetingError::Other(Cause::corrupt("it is unclear whether it encrypts"))),
        };
        Ok(Self { purpose: bytes[10], challenge, fingerprint })
    }
}

/// Lets someone who does not know the secret say anything, to either side of a handshake. Nobody gets in. For fuzzing
/// only. The first byte decides to which side.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Some((&side, bytes)) = bytes.split_first() else { return };
    let (Ok((stream, stranger)), Ok(secret)) = (local_sockets(), Secret::random()) else { return };
    let terms = Terms { secret: &secret, purpose: Purpose::Link, context: b"session" };
    let by = Instant::now() + std::time::Duration::from_secs(5);
    if write_all(&stranger, bytes, by).is_err() || stranger.shutdown(std::net::Shutdown::Write).is_err() {
        return;
    }
    let outcome = match side % 4 {
        0 => authenticate_dialer(stream, &terms, false, by),
        1 => authenticate_dialer(stream, &terms, true, by),
        _ => authenticate_acceptor(stream, &terms, by),
    };
    assert!(outcome.is_err(), "a stranger was let in");
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

fn read_greeting(stream: &TcpStream, purpose: Purpose, by: Instant) -> Result<Greeting, GreetingError> {
    let mut bytes = [0; GREETING_BYTES];
    // What cannot be a greeting is not waited for to its end; an older version's is shorter.
    read_exact(stream, &mut bytes[..PREFIX_BYTES], by).map_err(GreetingError::Other)?;
    let version = [bytes[8], bytes[9]];
    if &bytes[..8] == MAGIC && version == PROTOCOL_VERSION.to_le_bytes() {
        read_exact(stream, &mut bytes[PREFIX_BYTES..], by).map_err(GreetingError::Other)?;
    }
    Greeting::decode(&bytes, purpose)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Encrypts a connection between two threads.
    pub(crate) fn encrypt(acceptor: TcpStream, dialer: TcpStream, by: Instant) -> (Channel, Channel) {
        let secret = Secret::random().unwrap();
        let terms = Terms { secret: &secret, purpose: Purpose::Link, context: &[] };
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| authenticate_acceptor(acceptor, &terms, by).unwrap());
            (authenticate_dialer(dialer, &terms, true, by).unwrap(), accepting.join().unwrap())
        })
    }

    type Outcome = Result<Channel, FabricError>;

    fn authenticate(acceptor: &Terms<'_>, dialer: &Terms<'_>, encrypt: bool) -> (Outcome, Outcome) {
        let (accepted, dialed) = local_sockets().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(move || authenticate_acceptor(accepted, acceptor, soon()));
            (authenticate_dialer(dialed, dialer, encrypt, soon()), accepting.join().unwrap())
        })
    }

    #[test]
    fn only_equal_terms_agree() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let terms = Terms { secret: &secret, purpose: Purpose::Link, context: b"session" };
        let wrong = [
            Terms { secret: &other, ..terms },
            Terms { purpose: Purpose::Control, ..terms },
            Terms { context: b"another session", ..terms },
        ];
        for encrypt in [false, true] {
            let (dialer, acceptor) = authenticate(&terms, &terms, encrypt);
            let (dialer, acceptor) = (dialer.unwrap(), acceptor.unwrap());
            assert_eq!((dialer.is_encrypted(), acceptor.is_encrypted()), (encrypt, encrypt));
            write_all(&dialer, b"hello", soon()).unwrap();
            let mut heard = [0; 5];
            read_exact(&acceptor, &mut heard, soon()).unwrap();
            assert_eq!(&heard, b"hello");
            for wrong in &wrong {
                for (acceptor, dialer) in [(&terms, wrong), (wrong, &terms)] {
                    let (dialer, acceptor) = authenticate(acceptor, dialer, encrypt);
                    assert!(dialer.is_err() && acceptor.is_err());
                }
            }
        }
    }

    #[test]
    fn a_proof_cannot_be_sent_back() {
        let secret = Secret::random().unwrap();
        let terms = Terms { secret: &secret, purpose: Purpose::Control, context: &[] };
        let (mirror, dialer) = local_sockets().unwrap();
        let outcome = std::thread::scope(|scope| {
            let dialing = scope.spawn(|| authenticate_dialer(dialer, &terms, false, soon()));
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

    /// Lets two sides talk through a listener-in who can change what they say. Returns what each side said, and what it
    /// thinks of the other.
    fn overhear(encrypt: bool, change: impl Fn(&mut [u8; GREETING_BYTES])) -> (Vec<u8>, Outcome, Outcome) {
        let secret = Secret::from_bytes(b"a secret of some length").unwrap();
        let terms = Terms { secret: &secret, purpose: Purpose::Link, context: b"session" };
        let ((dialer, near), (far, acceptor)) = (local_sockets().unwrap(), local_sockets().unwrap());
        std::thread::scope(|scope| {
            let dialing = scope.spawn(|| authenticate_dialer(dialer, &terms, encrypt, soon()));
            let accepting = scope.spawn(|| authenticate_acceptor(acceptor, &terms, soon()));
            let mut said = Vec::new();
            for (from, to) in [(&near, &far), (&far, &near)] {
                let mut greeting = [0; GREETING_BYTES];
                if read_exact(from, &mut greeting, soon()).is_ok() {
                    change(&mut greeting);
                    write_all(to, &greeting, soon()).unwrap();
                    said.extend(greeting);
                }
            }
            let mut proof = [0; PROOF_BYTES];
            if read_exact(&near, &mut proof, soon()).is_ok() {
                write_all(&far, &proof, soon()).unwrap();
                said.extend(proof);
                let mut verdict = [0; VERDICT_BYTES];
                if read_exact(&far, &mut verdict, soon()).is_ok() {
                    write_all(&near, &verdict, soon()).unwrap();
                }
            }
            drop((near, far));
            (said, dialing.join().unwrap(), accepting.join().unwrap())
        })
    }

    #[test]
    fn nobody_in_between_can_change_what_was_said() {
        let (_, dialer, acceptor) = overhear(false, |_| {});
        assert!(dialer.is_ok() && acceptor.is_ok());
        let without_encryption = |greeting: &mut [u8; GREETING_BYTES]| {
            greeting[11] = 0;
            greeting[44..].fill(0);
        };
        let (_, dialer, acceptor) = overhear(true, without_encryption);
        assert!(dialer.is_err() && acceptor.is_err(), "encryption can be talked out of");
        let with_another_key = |greeting: &mut [u8; GREETING_BYTES]| greeting[50] ^= 1;
        let (_, dialer, acceptor) = overhear(true, with_another_key);
        assert!(dialer.is_err() && acceptor.is_err(), "keys can be put in");
        let with_another_challenge = |greeting: &mut [u8; GREETING_BYTES]| greeting[20] ^= 1;
        let (_, dialer, acceptor) = overhear(false, with_another_challenge);
        assert!(dialer.is_err() && acceptor.is_err());
    }

    #[test]
    fn a_handshake_that_was_overheard_cannot_be_replayed() {
        let secret = Secret::from_bytes(b"a secret of some length").unwrap();
        let terms = Terms { secret: &secret, purpose: Purpose::Link, context: b"session" };
        let (said, dialer, _) = overhear(false, |_| {});
        assert!(dialer.is_ok());
        // What the dialer said: its greeting and its proof.
        let replayed = [&said[..GREETING_BYTES], &said[2 * GREETING_BYTES..]].concat();
        let (stranger, acceptor) = local_sockets().unwrap();
        write_all(&stranger, &replayed, soon()).unwrap();
        let outcome = authenticate_acceptor(acceptor, &terms, soon());
        assert!(matches!(outcome, Err(FabricError::Refused { .. })), "{outcome:?}");
        let mut answer = [0; GREETING_BYTES + VERDICT_BYTES];
        read_exact(&stranger, &mut answer, soon()).unwrap();
        assert_eq!(answer[GREETING_BYTES..], [0; VERDICT_BYTES]);
    }

    #[test]
    fn a_handshake_that_breaks_off_is_an_error() {
        let secret = Secret::from_bytes(b"a secret of some length").unwrap();
        let terms = Terms { secret: &secret, purpose: Purpose::Link, context: b"session" };
        let (said, ..) = overhear(false, |_| {});
        for length in [0, 1, 9, 10, 11, GREETING_BYTES - 1, GREETING_BYTES, GREETING_BYTES + PROOF_BYTES - 1] {
            let replayed = [&said[..GREETING_BYTES], &said[2 * GREETING_BYTES..]].concat();
            let (stranger, acceptor) = local_sockets().unwrap();
            write_all(&stranger, &replayed[..length], soon()).unwrap();
            stranger.shutdown(std::net::Shutdown::Write).unwrap();
            let outcome = authenticate_acceptor(acceptor, &terms, soon());
            assert!(matches!(outcome, Err(FabricError::Handshake { cause: Cause::Closed, .. })), "{outcome:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn greetings_come_through(challenge: [u8; 32], key in proptest::option::of(proptest::array::uniform32(1u8..))) {
            let greeting = Greeting { purpose: Purpose::Link as u8, challenge, fingerprint: key };
            let Ok(decoded) = Greeting::decode(&greeting.encode(), Purpose::Link) else { panic!("refused") };
            proptest::prop_assert_eq!((decoded.challenge, decoded.fingerprint), (challenge, key));
            proptest::prop_assert!(Greeting::decode(&greeting.encode(), Purpose::Control).is_err());
        }
    }
}
