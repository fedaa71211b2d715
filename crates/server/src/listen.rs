//! Taking an address to listen on.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// An address that was taken, ready for [`serve()`](crate::serve()).
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// The address that was taken; it names the real port where port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// An address that could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Not of the form `HOST:PORT`, or the host has no address.
    #[error("{address:?} is not an address to listen on: give HOST:PORT, for example 127.0.0.1:8080 ({cause})")]
    Unresolved {
        /// What was asked for.
        address: String,
        /// What the resolver said.
        cause: io::Error,
    },
    /// Another socket listens there.
    #[error(
        "{address} is in use by another program: stop that program, or listen on another port (0 takes a free one)"
    )]
    InUse {
        /// What was asked for.
        address: String,
    },
    /// The system does not let this user take the port.
    #[error("the system does not allow this user to listen on {address}: choose a port above 1023")]
    Forbidden {
        /// What was asked for.
        address: String,
    },
    /// No network interface has this address.
    #[error(
        "{address} is no address of this machine: listen on one of its own, 127.0.0.1 (this machine only) or 0.0.0.0 (every interface)"
    )]
    NotLocal {
        /// What was asked for.
        address: String,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {cause}")]
    Other {
        /// What was asked for.
        address: String,
        /// What the system said.
        cause: io::Error,
    },
}

/// Takes `address`, given as `HOST:PORT`. Port 0 takes a free port.
///
/// # Errors
/// When the address means nothing, belongs to another program or machine, or may not be taken.
pub async fn bind(address: &str) -> Result<Listener, BindError> {
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|cause| BindError::Unresolved { address: address.to_owned(), cause })?
        .collect();
    let listen = async {
        let socket = TcpListener::bind(resolved.as_slice()).await?;
        let address = socket.local_addr()?;
        Ok(Listener { socket, address })
    };
    listen.await.map_err(|cause: io::Error| {
        let address = address.to_owned();
        match cause.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse { address },
            io::ErrorKind::PermissionDenied => BindError::Forbidden { address },
            io::ErrorKind::AddrNotAvailable => BindError::NotLocal { address },
            _ => BindError::Other { address, cause },
        }
    })
}
