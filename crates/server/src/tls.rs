//! TLS by a certificate and a private key from files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error as RustlsError, InconsistentKeys, ServerConfig};
use tokio_rustls::server::TlsStream;

/// What a server proves its name with. Clones share it.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

struct Shared {
    certificate: PathBuf,
    key: PathBuf,
    /// What new connections are encrypted with.
    config: RwLock<Arc<ServerConfig>>,
}

/// Files that a server cannot prove its name with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file has damaged PEM sections.
    #[error("{} is damaged, or not PEM: {cause}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: pem::Error,
    },
    /// A file has no certificate.
    #[error(
        "there is no certificate in {}: it must have PEM sections BEGIN CERTIFICATE, the server's own first and then those that vouch for it",
        path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file has no private key.
    #[error("there is no private key in {}: it must have a PEM section BEGIN PRIVATE KEY, not encrypted", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The private key is that of another certificate.
    #[error(
        "the private key in {} is not that of the first certificate in {}",
        key.display(),
        certificate.display()
    )]
    Mismatch {
        /// The file of the certificates.
        certificate: PathBuf,
        /// The file of the private key.
        key: PathBuf,
    },
    /// Anything else.
    #[error("cannot use the certificates in {} with the private key in {}: {cause}", certificate.display(), key.display())]
    Unusable {
        /// The file of the certificates.
        certificate: PathBuf,
        /// The file of the private key.
        key: PathBuf,
        /// What is wrong.
        cause: RustlsError,
    },
}

impl Tls {
    /// Reads the PEM files `certificate` (the server's, then those that vouch for it) and `key`, which may be the same file.
    ///
    /// # Errors
    /// When the files cannot be read, or do not have what is needed.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(Arc::new(read(certificate, key)?));
        Ok(Self { shared: Arc::new(Shared { certificate: certificate.to_owned(), key: key.to_owned(), config }) })
    }

    /// Reads the files anew, for connections that come from now on.
    ///
    /// # Errors
    /// As for [`load`](Self::load); then nothing changes.
    pub fn reload(&self) -> Result<(), TlsError> {
        let Shared { certificate, key, config } = &*self.shared;
        let read = Arc::new(read(certificate, key)?);
        *config.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Encrypts a connection, whose client must do its part within `patience`.
    pub(crate) async fn accept<S>(&self, stream: S, patience: Duration) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.shared.config.read().unwrap_or_else(PoisonError::into_inner));
        let accepted = tokio::time::timeout(patience, TlsAcceptor::from(config).accept(stream)).await;
        accepted.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long")))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { certificate, key, .. } = &*self.shared;
        formatter.debug_struct("Tls").field("certificate", certificate).field("key", key).finish_non_exhaustive()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = read_certificates(certificate)?;
    let private = read_key(key)?;
    let unusable = |cause| {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        match cause {
            RustlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::Mismatch { certificate, key },
            cause => TlsError::Unusable { certificate, key, cause },
        }
    };
    let versions = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let mut config = versions.with_no_client_auth().with_single_cert(chain, private).map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let sections = CertificateDer::pem_slice_iter(&read_file(path)?).collect::<Result<Vec<_>, _>>();
    let chain = sections.map_err(|cause| TlsError::Malformed { path: path.to_owned(), cause })?;
    if chain.is_empty() { Err(TlsError::NoCertificate { path: path.to_owned() }) } else { Ok(chain) }
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read_file(path)?).map_err(|cause| match cause {
        pem::Error::NoItemsFound => TlsError::NoKey { path: path.to_owned() },
        cause => TlsError::Malformed { path: path.to_owned(), cause },
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|cause| TlsError::Unreadable { path: path.to_owned(), cause })
}
