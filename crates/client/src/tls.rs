//! The TLS settings of a client: the authorities that it trusts, and its certificate. The files are
//! read again before each connection, so a running client uses their current content.
//! [`crate::dial`] opens connections.

use std::path::PathBuf;
use std::sync::Arc;

use epicepoch_certs::rustls::ClientConfig;
use epicepoch_certs::{LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, client_config};

/// The TLS settings of a client. A client without them uses plain TCP, and a node that requires TLS
/// refuses it.
#[derive(Clone, Debug)]
pub struct Tls {
    roots: Arc<LiveRoots>,
    pair: Option<Arc<LivePair>>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file of authorities is bad. Correct it.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// The certificate file or the key file is bad. Correct it.
    #[error(transparent)]
    Pair(#[from] PairError),
}

impl Tls {
    /// Trusts only nodes whose certificate is signed by an authority in `ca_file` (PEM) and is
    /// valid for the dialled host. The system's authorities are not trusted.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn trusting(ca_file: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let roots = LiveRoots::load(PemFile::new("the file of authorities", ca_file))?;
        Ok(Self { roots, pair: None })
    }

    /// Adds the client's certificate for nodes that require one. Both files are PEM.
    ///
    /// # Errors
    /// The files cannot be used, or do not belong together.
    pub fn showing(
        self,
        cert_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let certificate = PemFile::new("the client's certificate", cert_file);
        let pair = Pair::load(certificate, PemFile::new("the client's key", key_file))?;
        Ok(Self { pair: Some(LivePair::new(pair)), ..self })
    }

    /// Returns the configuration of rustls for one protocol.
    #[must_use]
    pub fn config(&self, alpn: &[u8]) -> Arc<ClientConfig> {
        Arc::new(client_config(self.roots.clone(), self.pair.clone(), &[alpn]))
    }

    /// Reads the files again. If the new content is unusable, the old content stays in use. A
    /// program that opens connections with [`Tls::config`] should call this before each connection.
    pub fn refresh(&self) {
        let _ = self.roots.reload();
        if let Some(pair) = &self.pair {
            let _ = pair.reload();
        }
    }
}
