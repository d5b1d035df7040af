//! A pair that is replaced while connections go on: existing connections keep the old pair, and
//! each new handshake uses the newest. An unusable pair never replaces a usable one. If a name is
//! required, neither does a pair without that name.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::name::is_named;
use crate::pair::{Pair, PairError};

/// A replaceable pair. rustls asks it for the certificate of each handshake, as a server and as a
/// client.
#[derive(Debug)]
pub struct LivePair {
    pair: ArcSwap<Pair>,
    /// The DNS name that each certificate must carry, if any.
    name: Option<String>,
}

impl LivePair {
    /// A pair that can be replaced.
    pub fn new(pair: Pair) -> Arc<Self> {
        Arc::new(Self { pair: ArcSwap::from_pointee(pair), name: None })
    }

    /// A replaceable pair of an owner that is known by its certificate. This pair and each later
    /// one must carry `name`, as [`is_named`] checks.
    ///
    /// # Errors
    /// When the pair does not carry `name`.
    pub fn named(pair: Pair, name: String) -> Result<Arc<Self>, PairError> {
        check_name(&pair, &name)?;
        Ok(Arc::new(Self { pair: ArcSwap::from_pointee(pair), name: Some(name) }))
    }

    /// Reads the files again. Returns whether they hold another pair than before. This reads two
    /// small files, so it may be called every few seconds, on a thread that may wait for a disk.
    ///
    /// # Errors
    /// When the files hold no usable pair, perhaps only for a moment, because two files are not
    /// replaced at once. When the certificate lacks the required name. The old pair stays in use.
    pub fn reload(&self) -> Result<bool, PairError> {
        let Some(pair) = self.pair.load().read_again()? else { return Ok(false) };
        if let Some(name) = &self.name {
            check_name(&pair, name)?;
        }
        self.pair.store(Arc::new(pair));
        Ok(true)
    }

    /// When the certificate in use expires.
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
