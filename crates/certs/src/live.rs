//! A pair that is replaced while connections go on: those that exist keep what they have, each
//! new handshake takes the newest. A pair that cannot be used never replaces one that can.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::pair::{Pair, PairError};

/// See the module. rustls asks it for the certificate of each handshake, as a server and as a
/// client.
#[derive(Debug)]
pub struct LivePair(ArcSwap<Pair>);

impl LivePair {
    /// A pair that can be replaced.
    pub fn new(pair: Pair) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(pair)))
    }

    /// Takes what the files hold now. Returns whether that is another pair than before. Two small
    /// files are read, so it may be called every few seconds, on a thread that may wait for a disk.
    ///
    /// # Errors
    /// When they hold no pair that can be used, for a moment perhaps, since two files are not
    /// replaced at once. What was used is used on.
    pub fn reload(&self) -> Result<bool, PairError> {
        let Some(pair) = self.0.load().read_again()? else { return Ok(false) };
        self.0.store(Arc::new(pair));
        Ok(true)
    }

    /// Until when the certificate in use holds.
    pub fn expires_at(&self) -> SystemTime {
        self.0.load().expires_at()
    }

    /// The pair in use.
    pub fn current(&self) -> Arc<Pair> {
        self.0.load_full()
    }
}

impl ResolvesServerCert for LivePair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().certified_key())
    }
}

impl ResolvesClientCert for LivePair {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().certified_key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
