//! Unused ports for the listeners of tests and of `epicepoch lab`. It never keeps a port bound.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// The ports that this crate gives out, all below the range from which Linux by default takes ports for
/// outgoing connections.
const FIRST: u16 = 12_000;
/// The ports are divided into blocks. A process has whole blocks, and no other process uses them: a
/// port may be given out long before its listener binds it.
const BLOCKS: u16 = 100;
const BLOCK_LEN: u16 = 200;

/// The blocks of this process.
struct Own {
    /// Each block, with the socket that keeps it: the system frees its name when the process ends.
    blocks: Vec<(u16, UnixListener)>,
    /// How many ports were given out, those in use included.
    given: usize,
}

static OWN: Mutex<Own> = Mutex::new(Own { blocks: Vec::new(), given: 0 });

impl Own {
    /// Returns the next port, which may be in use. A port comes again only when there is no further
    /// block.
    fn next(&mut self) -> u16 {
        let ports = self.blocks.len() * usize::from(BLOCK_LEN);
        if self.given >= ports {
            self.take_block();
        }
        let len = usize::from(BLOCK_LEN);
        let at = self.given % (self.blocks.len() * len);
        self.given += 1;
        FIRST + self.blocks[at / len].0 * BLOCK_LEN + (at % len) as u16
    }

    /// Takes a block that no process has. Without one, the own blocks are used again.
    fn take_block(&mut self) {
        let start = (std::process::id() % u32::from(BLOCKS)) as u16;
        let free = (0..BLOCKS).map(|step| (start + step) % BLOCKS).find_map(|block| {
            let name = SocketAddr::from_abstract_name(format!("epicepoch-ports-{block}"));
            UnixListener::bind_addr(&name.ok()?).ok().map(|kept| (block, kept))
        });
        self.blocks.extend(free);
        assert!(!self.blocks.is_empty(), "other processes have all {BLOCKS} blocks of ports");
    }
}

/// Returns an unused TCP port for a listener, and not the same one again before all others of this
/// process. No other process that uses this crate, and no outgoing connection, takes it before the
/// caller listens, or while a node restarts.
///
/// # Panics
/// If other processes have all ports from 12,000 to 31,999, or all ports of this process are in use.
#[must_use]
pub fn unused_port() -> u16 {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..BLOCKS * BLOCK_LEN {
        let port = own.next();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("all ports of this process are in use");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_comes_twice_and_no_other_process_can_take_its_block() {
        let mut given: Vec<u16> = (0..2 * BLOCK_LEN).map(|_| unused_port()).collect();
        let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own =
            |port: &u16| own.blocks.iter().any(|(block, _)| *block == (port - FIRST) / BLOCK_LEN);
        assert!(own.blocks.len() >= 2 && given.iter().all(is_own));
        for (block, _) in &own.blocks {
            let name = SocketAddr::from_abstract_name(format!("epicepoch-ports-{block}"));
            UnixListener::bind_addr(&name.expect("a name")).expect_err("it is kept");
        }
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), usize::from(2 * BLOCK_LEN));
    }
}
