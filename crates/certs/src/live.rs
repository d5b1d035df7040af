//! A pair that is replaced while connections go on: those that exist keep what they have, each
//! new handshake takes the newest. A pair that cannot be used never replaces one that can, nor does
//! another's where a name is required.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::name::is_named;
use crate::pair::{Pair, PairError};

/// See the module. rustls asks it for the certificate of each handshake, as a server and as a
/// client.
#[derive(Debug)]
pub struct LivePair {
    pair: ArcSwap<Pair>,
    /// What each certificate has to carry among its DNS names.
    name: Option<String>,
}

impl LivePair {
    /// A pair that can be replaced.
    pub fn new(pair: Pair) -> Arc<Self> {
        Arc::new(Self { pair: ArcSwap::from_pointee(pair), name: None })
    }

    /// The same for who is known by his certificate: this one, and each that replaces it, has to
    /// carry `name` as [`is_named`] tells it.
    ///
    /// # Errors
    /// When it does not.
    pub fn named(pair: Pair, name: String) -> Result<Arc<Self>, PairError> {
        check_name(&pair, &name)?;
        Ok(Arc::new(Self { pair: ArcSwap::from_pointee(pair), name: Some(name) }))
    }

    /// Takes what the files hold now. Returns whether that is another pair than before. Two small
    /// files are read, so it may be called every few seconds, on a thread that may wait for a disk.
    ///
    /// # Errors
    /// When they hold no pair that can be used, for a moment perhaps, since two files are not
    /// replaced at once; when the certificate lacks the name that is required. What was used is
    /// used on.
    pub fn reload(&self) -> Result<bool, PairError> {
        let Some(pair) = self.pair.load().read_again()? else { return Ok(false) };
        if let Some(name) = &self.name {
            check_name(&pair, name)?;
        }
        self.pair.store(Arc::new(pair));
        Ok(true)
    }

    /// Until when the certificate in use holds.
    pub fn expires_at(&self) -> SystemTime {
        self.pair.load().expires_at()
    }

    /// The pair in use.
    pub fn current(&self) -> Arc<Pair> {
        self.pair.load_full()
    }
}

fn check_name(pair: &Pair, name: &str) -> Result<(), PairError> {
    if is_named(pair.certificate(), name) {
        return Ok(());
    }
    let certificate = pair.certificate_file().clone();
    Err(PairError::Unnamed { certificate, name: name.to_owned() })
}

impl ResolvesServerCert for LivePair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.pair.load().certified_key())
    }
}

impl ResolvesClientCert for LivePair {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.pair.load().certified_key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
