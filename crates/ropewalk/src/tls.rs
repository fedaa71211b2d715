//! The certificate of a server, as an operator gives it.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use server::Tls;

/// What a server proves its name with.
#[derive(Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsOptions {
    /// PEM file with the server's certificate and those that vouch for it: clients connect by https. Read anew on SIGHUP
    #[arg(long, value_name = "FILE", aliases = ["ssl-cert-file", "tls-cert"])]
    ssl_certfile: Option<PathBuf>,
    /// PEM file with the certificate's private key, not encrypted [default: the file of the certificate]
    #[arg(long, value_name = "FILE", aliases = ["ssl-key-file", "tls-key"])]
    ssl_keyfile: Option<PathBuf>,
}

impl TlsOptions {
    /// What connections are encrypted with, if they are.
    pub(crate) fn load(&self) -> anyhow::Result<Option<Tls>> {
        match (&self.ssl_certfile, &self.ssl_keyfile) {
            (None, None) => Ok(None),
            (Some(certificate), key) => Ok(Some(Tls::load(certificate, key.as_ref().unwrap_or(certificate))?)),
            (None, Some(key)) => {
                bail!("there is no certificate for the private key {}: give --ssl-certfile", key.display())
            }
        }
    }
}
