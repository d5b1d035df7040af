//! The address book: where each peer was last. A peer that was started again under another address
//! opens connections of its own. Once it has proved there who it is, it is dialled back at the
//! address from which it came, and no name server has to be asked.
//!
//! An address of the book is a hint. Whoever answers there must prove in the handshake who it is,
//! just as under an address from the settings. The book is kept in a file, so that a node that
//! starts while no name server answers can still reach peers that have not moved.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use epicepoch_wire::{BootId, NodeId};
use tokio::sync::Notify;

use crate::config::host_and_port;

/// At most this many peers are in the book. A cluster has fewer members.
const PEERS_MAX: usize = 64;
/// The name of the file in the data directory. Each line is a node id and an address.
pub(crate) const FILE: &str = "ADDRESSES";

/// Where a peer was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) addr: SocketAddr,
    /// Counts the entries of this peer, from 1. A link that has tried an entry waits for a newer
    /// one.
    pub(crate) turn: u64,
    /// The process that was there; `None` if the entry is from the file.
    pub(crate) boot: Option<BootId>,
}

impl Entry {
    fn is_other(&self, boot: BootId) -> bool {
        self.boot.is_some_and(|other| other != boot)
    }
}

/// Where the peers of a node were last.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    entries: Mutex<BTreeMap<NodeId, Entry>>,
    changed: Notify,
    /// The file in which the book is kept; `None` for none.
    file: Option<Arc<File>>,
}

impl AddressBook {
    /// The book that is kept in the data directory `dir`. A file that cannot be read is an empty
    /// book.
    pub(crate) fn load(dir: &Path) -> Self {
        let file = File { path: dir.join(FILE), to_write: Mutex::default() };
        let text = fs::read_to_string(&file.path).unwrap_or_default();
        let entries = text.lines().take(PEERS_MAX).filter_map(|line| {
            let (node, addr) = line.split_once(' ')?;
            let entry = Entry { addr: addr.parse().ok()?, turn: 1, boot: None };
            Some((NodeId(node.parse().ok()?), entry))
        });
        let entries = Mutex::new(entries.collect());
        Self { entries, changed: Notify::new(), file: Some(Arc::new(file)) }
    }

    /// Records where the process `boot` of a member is, because the member has just proved there
    /// who it is.
    pub(crate) fn record(&self, node: NodeId, addr: SocketAddr, boot: BootId) {
        let mut entries = self.entries();
        let before = entries.get(&node).copied();
        if before.is_none() && entries.len() >= PEERS_MAX {
            entries.clear();
        }
        let turn = before.map_or(0, |before| before.turn) + 1;
        entries.insert(node, Entry { addr, turn, boot: Some(boot) });
        let is_moved = before.is_none_or(|before| before.addr != addr);
        let text = is_moved.then(|| written(&entries));
        drop(entries);
        self.changed.notify_waiters();
        if let (Some(file), Some(text)) = (&self.file, text) {
            file.write(text);
        }
    }

    /// [`Self::record`] for a member that has come from the address `from`, and listens on the port
    /// of `raft_addr`.
    pub(crate) fn record_caller(&self, node: NodeId, from: IpAddr, raft_addr: &str, boot: BootId) {
        if let Some((_, port)) = host_and_port(raft_addr) {
            self.record(node, SocketAddr::new(from.to_canonical(), port), boot);
        }
    }

    /// Waits for an entry of `node` whose turn is above `tried`.
    pub(crate) async fn newer(&self, node: NodeId, tried: u64) -> Entry {
        self.wait(node, |entry| entry.turn > tried).await
    }

    /// Whether another process than `boot` is known to run as `node`.
    pub(crate) fn is_replaced(&self, node: NodeId, boot: BootId) -> bool {
        self.entries().get(&node).is_some_and(|entry| entry.is_other(boot))
    }

    /// Waits until another process than `boot` is known to run as `node`.
    pub(crate) async fn replaced(&self, node: NodeId, boot: BootId) {
        self.wait(node, |entry| entry.is_other(boot)).await;
    }

    async fn wait(&self, node: NodeId, is_wanted: impl Fn(&Entry) -> bool) -> Entry {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(entry) = self.entries().get(&node).filter(|it| is_wanted(it)) {
                return *entry;
            }
            changed.await;
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<NodeId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn written(entries: &BTreeMap<NodeId, Entry>) -> String {
    entries.iter().fold(String::new(), |mut text, (node, entry)| {
        let _infallible = writeln!(text, "{} {}", node.0, entry.addr);
        text
    })
}

/// The file of a book. It is a hint, so it is not synced, and what cannot be written is lost.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// The text to write next; `None` if no thread writes.
    to_write: Mutex<Option<String>>,
}

impl File {
    /// Writes on a thread of its own, because a disk may hang. At most one thread writes; what is
    /// to be written meanwhile waits for it, and only the last text counts.
    fn write(self: &Arc<Self>, text: String) {
        if self.to_write().replace(text).is_some() {
            return;
        }
        let file = self.clone();
        let spawned = thread::Builder::new().name("addresses".to_owned()).spawn(move || {
            while let Some(text) = file.next() {
                if let Err(error) = file.replace(&text) {
                    tracing::debug!(%error, "the addresses of the peers cannot be written");
                }
                file.finish(&text);
            }
        });
        if spawned.is_err() {
            *self.to_write() = None;
        }
    }

    fn next(&self) -> Option<String> {
        self.to_write().clone()
    }

    /// Ends the writing, unless there is another text by now.
    fn finish(&self, text: &str) {
        let mut to_write = self.to_write();
        if to_write.as_deref() == Some(text) {
            *to_write = None;
        }
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }

    fn to_write(&self) -> MutexGuard<'_, Option<String>> {
        self.to_write.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::time::timeout;

    use super::*;

    const NODE: NodeId = NodeId(2);

    fn addr(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 60001).into()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_link_that_has_tried_an_entry_waits_for_a_newer_one() {
        let book = AddressBook::default();
        book.record(NODE, addr(2), BootId(1));
        let first = book.newer(NODE, 0).await;
        assert_eq!(first, Entry { addr: addr(2), turn: 1, boot: Some(BootId(1)) });
        let none = timeout(Duration::from_millis(1), book.newer(NODE, first.turn)).await;
        assert!(none.is_err(), "no newer entry");
        let (newer, ()) = tokio::join!(book.newer(NODE, first.turn), async {
            book.record(NodeId(3), addr(3), BootId(3));
            book.record_caller(NODE, "::ffff:10.0.0.9".parse().unwrap(), "n2:60001", BootId(2));
        });
        assert_eq!((newer.addr, newer.turn), (addr(9), 2));
        book.record_caller(NODE, "10.0.0.8".parse().unwrap(), "no port", BootId(2));
        assert_eq!(book.newer(NODE, 1).await.addr, addr(9));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_process_is_replaced_when_another_one_has_proved_who_it_is() {
        let book = AddressBook::default();
        book.record(NODE, addr(2), BootId(1));
        let same = timeout(Duration::from_millis(1), book.replaced(NODE, BootId(1))).await;
        assert!(same.is_err());
        tokio::join!(book.replaced(NODE, BootId(1)), async {
            book.record(NODE, addr(2), BootId(7));
        });
        assert_eq!([1, 7].map(|boot| book.is_replaced(NODE, BootId(boot))), [true, false]);
        assert!(!book.is_replaced(NodeId(3), BootId(1)), "nothing is known of it");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_book_is_kept_and_lines_that_are_no_entries_are_left_out() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path();
        let book = AddressBook::load(dir);
        assert!(book.entries().is_empty());
        for last in 2..=40 {
            book.record(NODE, addr(last), BootId(1));
        }
        let until = Instant::now() + Duration::from_mins(1);
        while fs::read_to_string(dir.join(FILE)).unwrap_or_default() != "2 10.0.0.40:60001\n" {
            assert!(Instant::now() < until, "the last address is not written");
            thread::yield_now();
        }
        fs::write(dir.join(FILE), "2 10.0.0.40:60001\nx\n3 nowhere\n4 [::1]:5\n").unwrap();
        let book = AddressBook::load(dir);
        assert_eq!(book.entries().len(), 2);
        let entry = book.newer(NODE, 0).await;
        assert_eq!(entry, Entry { addr: addr(40), turn: 1, boot: None });
        // It was written by an earlier run: it tells nothing about the process that runs now.
        let other = timeout(Duration::from_millis(1), book.replaced(NODE, BootId(9))).await;
        assert!(other.is_err());
    }
}
