//! Unused ports for the listeners of tests and of `epicepoch lab`. It never keeps a port bound.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// The ports that this crate gives out, all below the range from which Linux by default takes ports for
/// outgoing connections.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// Returns an unused TCP port for a listener, and not the same one again before all others. No
/// outgoing connection can take it before the caller listens, or while a node restarts.
///
/// # Panics
/// If all ports from 12,000 to 31,999 are in use.
#[must_use]
pub fn unused_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs that run at the same time begin far apart: 100 blocks of 200 ports.
    let own_start = (std::process::id() % 100) as u16 * 200;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (own_start + step) % COUNT;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no unused port among {COUNT}");
}
