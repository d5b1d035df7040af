//! What a client needs to speak TLS: whom it trusts, and what it shows. Files are read again
//! before each connection, so that a client that runs for years takes their changes. It opens no
//! connection; [`crate::dial`] does.

use std::path::PathBuf;
use std::sync::Arc;

use epicepoch_certs::rustls::ClientConfig;
use epicepoch_certs::{LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, client_config};

/// See the module. Without it a client speaks plain TCP, and a node that asks for TLS refuses it.
#[derive(Clone, Debug)]
pub struct Tls {
    roots: Arc<LiveRoots>,
    pair: Option<Arc<LivePair>>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Correct the file of authorities.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// Correct the files of certificate and key.
    #[error(transparent)]
    Pair(#[from] PairError),
}

impl Tls {
    /// Trusts nodes whose certificates one of the authorities in `ca_file` (PEM) has signed, and
    /// that hold for the host by which the node is dialled; and no others: not those that the
    /// system trusts.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn trusting(ca_file: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let roots = LiveRoots::load(PemFile::new("the file of authorities", ca_file))?;
        Ok(Self { roots, pair: None })
    }

    /// Shows a certificate to nodes that ask for one. Both files are PEM.
    ///
    /// # Errors
    /// When the files cannot be used, or do not belong together.
    pub fn showing(
        self,
        cert_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let certificate = PemFile::new("the client's certificate", cert_file);
        let pair = Pair::load(certificate, PemFile::new("the client's key", key_file))?;
        Ok(Self { pair: Some(LivePair::new(pair)), ..self })
    }

    /// As rustls takes it, for one protocol.
    #[must_use]
    pub fn config(&self, alpn: &[u8]) -> Arc<ClientConfig> {
        Arc::new(client_config(self.roots.clone(), self.pair.clone(), &[alpn]))
    }

    /// Takes what the files hold now. Where that is of no use, what was there before stays in use.
    /// Who opens connections with a [`Tls::config`] of his own does this before each.
    pub fn refresh(&self) {
        let _ = self.roots.reload();
        if let Some(pair) = &self.pair {
            let _ = pair.reload();
        }
    }
}
