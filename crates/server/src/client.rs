//! On whose behalf a request comes.

use std::net::IpAddr;
use std::sync::Arc;

/// A client, as far as the server can tell it from others. Clients take turns when requests wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client(pub(crate) Arc<str>);

impl Client {
    /// Whoever sends from an address.
    pub(crate) fn at(address: IpAddr) -> Self {
        Self(address.to_string().into())
    }
}

impl Default for Client {
    fn default() -> Self {
        Self("".into())
    }
}
