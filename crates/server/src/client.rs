//! On whose behalf a request comes.

use std::net::IpAddr;
use std::sync::Arc;

use crate::keys::Account;

/// A client, as far as the server can tell it from others. Clients take turns when requests wait.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    name: Arc<str>,
    account: Option<Arc<Account>>,
}

impl Client {
    /// Whoever sends from an address.
    pub(crate) fn at(address: IpAddr) -> Self {
        Self { name: address.to_string().into(), account: None }
    }

    /// Whoever has a key, from wherever.
    pub(crate) fn with_key(account: Arc<Account>) -> Self {
        Self { name: Arc::clone(account.name()), account: Some(account) }
    }

    /// What tells it from others.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// To whom belongs what the server remembers: those without keys share it.
    pub(crate) fn owner(&self) -> Arc<str> {
        self.account.as_ref().map_or_else(|| "".into(), |account| Arc::clone(account.name()))
    }

    /// Where its tokens are counted, if it has a key.
    pub(crate) fn account(&self) -> Option<Arc<Account>> {
        self.account.clone()
    }
}

impl Default for Client {
    fn default() -> Self {
        Self { name: "".into(), account: None }
    }
}
