//! API keys: who may ask, and how much.
//!
//! Of a key only its SHA-256 digest is kept. Keys are random and long, so that a plain digest gives nothing away.

mod access;
mod file;
mod quota;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub(crate) use self::access::check;
pub use self::file::{KeyFileError, parse_keys};
use self::quota::Quota;

/// A key that clients may use.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// What the key is called in logs. Clients with keys of different names take turns when requests wait, and do not see
    /// each other's remembered responses.
    pub name: String,
    digest: [u8; 32],
    /// What those who use it may do.
    pub limits: KeyLimits,
}

/// What those who use a key may do; `None` sets no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, those of prompts and answers together.
    pub tokens_per_minute: Option<u32>,
    /// Requests at the same time.
    pub concurrent: Option<u32>,
}

/// The keys of a server; if there are none, everybody may ask. Clones share them.
#[derive(Clone, Default)]
pub struct Keys {
    known: Arc<RwLock<Vec<Known>>>,
}

struct Known {
    digest: [u8; 32],
    account: Arc<Account>,
}

/// What is counted for one key.
#[derive(Debug)]
pub(crate) struct Account {
    name: Arc<str>,
    opened: Instant,
    quota: Mutex<Quota>,
}

impl Key {
    /// The key `secret`. Without a name it is called after the beginning of its digest.
    pub fn new(name: Option<&str>, secret: &str, limits: KeyLimits) -> Self {
        Self::hashed(name, Sha256::digest(secret.as_bytes()).into(), limits)
    }

    /// The key whose SHA-256 digest is `digest`.
    pub fn hashed(name: Option<&str>, digest: [u8; 32], limits: KeyLimits) -> Self {
        let name = name.map_or_else(
            || {
                let begin: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
                format!("key-{begin}")
            },
            str::to_owned,
        );
        Self { name, digest, limits }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Key").field("name", &self.name).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        formatter.debug_list().entries(known.iter().map(|known| &known.account.name)).finish()
    }
}

impl Keys {
    /// These keys.
    pub fn new(keys: Vec<Key>) -> Self {
        let shared = Self::default();
        shared.replace(keys);
        shared
    }

    /// Only these keys from now on. What was used of a key stays used if its name stays; requests under way go on.
    pub fn replace(&self, keys: Vec<Key>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        *known = keys
            .into_iter()
            .map(|Key { name, digest, limits }| {
                let account = before.iter().map(|known| &known.account).find(|account| *account.name == *name);
                let account = account.map_or_else(|| Arc::new(Account::new(&name, limits)), Arc::clone);
                account.change(limits);
                Known { digest, account }
            })
            .collect();
    }

    /// Whether everybody may ask.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The account of the key `secret`. The time this takes does not depend on how much of a digest is right.
    fn find(&self, secret: &[u8]) -> Option<Arc<Account>> {
        let digest: [u8; 32] = Sha256::digest(secret).into();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let matching = |found: Option<Arc<Account>>, known: &Known| {
            if bool::from(known.digest.ct_eq(&digest)) { Some(Arc::clone(&known.account)) } else { found }
        };
        known.iter().fold(None, matching)
    }
}

impl Account {
    fn new(name: &str, limits: KeyLimits) -> Self {
        Self { name: name.into(), opened: Instant::now(), quota: Mutex::new(Quota::new(limits, Duration::ZERO)) }
    }

    /// The name of its key.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Counts tokens that were used with its key.
    pub(crate) fn charge(&self, tokens: usize) {
        self.lock().charge(tokens, self.opened.elapsed());
    }

    fn change(&self, limits: KeyLimits) {
        self.lock().change(limits, self.opened.elapsed());
    }

    fn lock(&self) -> MutexGuard<'_, Quota> {
        // Nothing that is done under the lock can leave it half done.
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_secret_alone() {
        let digest = Sha256::digest(b"second").into();
        let keys = vec![
            Key::new(Some("a"), "first", KeyLimits::default()),
            Key::hashed(Some("b"), digest, KeyLimits::default()),
        ];
        let keys = Keys::new(keys);
        let name = |secret: &str| keys.find(secret.as_bytes()).map(|account| account.name().to_string());
        assert_eq!(name("first").as_deref(), Some("a"));
        assert_eq!(name("second").as_deref(), Some("b"));
        for wrong in ["", "firs", "first ", "First", "a"] {
            assert_eq!(name(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn nothing_that_is_printed_shows_a_key() {
        let key = Key::new(None, "secret", KeyLimits::default());
        assert_eq!(key.name, "key-2bb80d53");
        let printed = format!("{key:?} {:?}", Keys::new(vec![key.clone()]));
        assert!(!printed.contains("secret") && !printed.contains("2bb80d537b1d"), "{printed}");
    }

    #[test]
    fn replaced_keys_keep_what_was_used_under_their_name() {
        let limits = KeyLimits { requests_per_minute: Some(1), ..KeyLimits::default() };
        let keys = Keys::new(vec![Key::new(Some("a"), "old", limits)]);
        keys.find(b"old").unwrap().lock().begin(Duration::ZERO).unwrap();
        keys.replace(vec![Key::new(Some("a"), "new", limits), Key::new(Some("b"), "other", limits)]);
        assert!(keys.find(b"old").is_none());
        assert!(keys.find(b"new").unwrap().lock().begin(Duration::ZERO).is_err());
        assert!(keys.find(b"other").unwrap().lock().begin(Duration::ZERO).is_ok());
    }
}
