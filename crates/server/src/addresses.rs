//! Opens a TCP connection to a peer: at the address of its name, or at the one where it was last.
//! Nobody is trusted here; the handshake that follows says who answers.
//!
//! - `book`: where each peer was last; `resolver`: looks up names.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use epicepoch_wire::NodeId;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::addresses::book::AddressBook;
use crate::addresses::resolver::Resolver;
use crate::sync::signal::Signal;

pub(crate) mod book;
mod resolver;

/// The lead that an address of the book has over the addresses of a name. A name can lead to
/// another node, and the book seldom does. A round trip between distant places takes as long.
const BOOK_FIRST: Duration = Duration::from_millis(300);

/// An address of the book is tried for this long. A link gives up an attempt only later.
const BOOK_MAX: Duration = Duration::from_millis(700);

/// An entry that was tried in vain is tried again after this time: the network may have failed, and
/// not the address. Meanwhile the addresses of the name have no rival.
const BOOK_AGAIN: Duration = Duration::from_secs(2);

/// The last entry of the book that a link has tried.
#[derive(Debug, Default)]
pub(crate) struct Tried(Cell<Option<(u64, Instant)>>);

impl Tried {
    /// Entries up to this turn are not to be tried now.
    fn turn(&self) -> u64 {
        let last = self.0.get().filter(|(_, at)| at.elapsed() < BOOK_AGAIN);
        last.map_or(0, |(turn, _)| turn)
    }

    fn set(&self, turn: u64) {
        self.0.set(Some((turn, Instant::now())));
    }
}

/// Where the peers of a node are, as far as the node knows.
#[derive(Debug, Default)]
pub struct Addresses {
    pub(crate) book: AddressBook,
    resolver: Resolver,
}

impl Addresses {
    /// Reads the address book of the data directory `dir`.
    pub(crate) fn load(dir: &Path) -> Self {
        Self { book: AddressBook::load(dir), resolver: Resolver::default() }
    }

    /// Opens a TCP connection to an address of the name in `addr` (`host:port`).
    pub(crate) async fn dial_name(&self, addr: &str) -> io::Result<TcpStream> {
        TcpStream::connect(&*self.resolver.resolve(addr).await?).await
    }

    /// Opens a TCP connection to the address that the book has for a node, or to one of its name. While
    /// the name is looked up, an entry of the book that was not tried lately is tried at once.
    ///
    /// # Errors
    /// When the name has no address that answers, and no entry of the book is being tried.
    pub(crate) async fn dial(
        &self,
        addr: &str,
        node: NodeId,
        tried: &Tried,
    ) -> io::Result<TcpStream> {
        let Self { book, resolver } = self;
        // Whether an address of the book is being tried, and what is set when that has ended.
        let (is_trying, ended) = (Cell::new(false), Signal::default());
        let mut by_book = pin!(async {
            // In one attempt each entry is tried once.
            let mut last = tried.turn();
            loop {
                let entry = book.newer(node, last).await;
                is_trying.set(true);
                let dialled = tokio::select! {
                    biased;
                    dialled = TcpStream::connect(entry.addr) => dialled.ok(),
                    // Where the node is now is worth more than where it was.
                    _ = book.newer(node, entry.turn) => None,
                    () = sleep(BOOK_MAX) => None,
                };
                last = entry.turn;
                tried.set(last);
                if let Some(stream) = dialled {
                    return stream;
                }
                is_trying.set(false);
                ended.set();
            }
        });
        let mut by_name = pin!(async {
            let addrs = resolver.resolve(addr).await?;
            if is_trying.get() {
                ended.clear();
                tokio::select! {
                    () = sleep(BOOK_FIRST) => {}
                    () = ended.wait() => {}
                }
            }
            TcpStream::connect(&*addrs).await
        });
        let error = tokio::select! {
            biased;
            stream = &mut by_book => return Ok(stream),
            dialled = &mut by_name => match dialled {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            },
        };
        if is_trying.get() {
            ended.clear();
            tokio::select! {
                biased;
                stream = &mut by_book => return Ok(stream),
                () = ended.wait() => {}
            }
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Condvar, Mutex, PoisonError};

    use epicepoch_wire::BootId;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    const NODE: NodeId = NodeId(2);
    const NAME: &str = "n2:60001";
    const WAIT_MAX: Duration = Duration::from_mins(1);

    /// A listener on loopback, and its address.
    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        (listener, addr)
    }

    /// An address on which nobody listens.
    async fn nobody() -> SocketAddr {
        listener().await.1
    }

    fn addresses(resolver: Resolver) -> Addresses {
        Addresses { book: AddressBook::default(), resolver }
    }

    async fn dialled(addresses: &Addresses, tried: &Tried) -> SocketAddr {
        let stream = timeout(WAIT_MAX, addresses.dial(NAME, NODE, tried)).await;
        stream.expect("in time").expect("a connection").peer_addr().expect("an address")
    }

    /// A resolver whose lookups wait until they are released, and how to release them.
    fn hanging(answer: SocketAddr) -> (Resolver, impl Fn()) {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let release = gate.clone();
        let resolver = Resolver::with(move |_| {
            let is_open = gate.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = gate.1.wait_timeout_while(is_open, WAIT_MAX, |is_open| !*is_open);
            drop(waited.expect("the lock is whole"));
            Ok(vec![answer])
        });
        (resolver, move || {
            *release.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            release.1.notify_all();
        })
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_peer_that_comes_from_another_address_is_dialled_without_its_name() {
        let (resolver, release) = hanging(nobody().await);
        let (addresses, tried) = (addresses(resolver), Tried::default());
        let (_listener, addr) = listener().await;
        let seen = async { addresses.book.record(NODE, addr, BootId(1)) };
        assert_eq!(tokio::join!(dialled(&addresses, &tried), seen).0, addr);
        release();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_entry_that_leads_nowhere_does_not_keep_the_name_from_being_dialled() {
        let (_listener, addr) = listener().await;
        let tried = Tried::default();
        let addresses = addresses(Resolver::with(move |_| Ok(vec![addr])));
        addresses.book.record(NODE, nobody().await, BootId(1));
        assert_eq!(dialled(&addresses, &tried).await, addr);
        assert_eq!(tried.turn(), 1);
        // The next attempt asks the name alone, until there is a newer entry.
        assert_eq!(dialled(&addresses, &tried).await, addr);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_book_is_tried_before_a_name_that_leads_to_another_node() {
        let (_other, other) = listener().await;
        let (_listener, addr) = listener().await;
        let (lies, tried) = (addresses(Resolver::with(move |_| Ok(vec![other]))), Tried::default());
        lies.book.record(NODE, addr, BootId(1));
        assert_eq!(dialled(&lies, &tried).await, addr);
        assert_eq!(dialled(&lies, &tried).await, other, "an entry was just tried");
        // The network had failed, and not the address.
        let before =
            Instant::now().checked_sub(BOOK_AGAIN).expect("the machine has run for longer");
        tried.0.set(Some((tried.turn(), before)));
        assert_eq!(dialled(&lies, &tried).await, addr);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_name_without_an_address_is_an_error_once_the_book_was_tried() {
        let asked = Arc::new(AtomicBool::new(false));
        let seen = asked.clone();
        let fails = Resolver::with(move |_| {
            seen.store(true, Ordering::Relaxed);
            Err(io::Error::other("no such name"))
        });
        let (fails, tried) = (addresses(fails), Tried::default());
        fails.book.record(NODE, nobody().await, BootId(1));
        let error = timeout(WAIT_MAX, fails.dial(NAME, NODE, &tried)).await;
        assert_eq!(error.expect("in time").unwrap_err().to_string(), "no such name");
        assert!(asked.load(Ordering::Relaxed) && tried.turn() == 1);
        let (_listener, addr) = listener().await;
        fails.book.record(NODE, addr, BootId(2));
        assert_eq!(dialled(&fails, &tried).await, addr);
    }
}
