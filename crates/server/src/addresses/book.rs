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

/// At most this many peers are in the book: as many as a cluster has members. One more takes the
/// place of the one that was recorded longest ago, such as a member that was removed.
const PEERS_MAX: usize = 64;
/// The name of the file in the data directory. Each line is a node id and an address.
pub(crate) const FILE: &str = "ADDRESSES";

/// Where a peer was last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) addr: SocketAddr,
    /// Counts the entries of the book, from 1. A link that has tried an entry waits for a newer one.
    pub(crate) turn: u64,
    /// The process that was there; `None` if the entry is from the file.
    pub(crate) boot: Option<BootId>,
    /// Whether the peer has answered at this address. Otherwise it has called from its IP address.
    pub(crate) has_answered: bool,
}

impl Entry {
    /// Whether another process than `boot` was recorded after `turn`.
    fn is_after(&self, boot: BootId, turn: u64) -> bool {
        self.turn > turn && self.boot.is_some_and(|other| other != boot)
    }
}

#[derive(Debug, Default)]
struct Entries {
    peers: BTreeMap<NodeId, Entry>,
    /// The turn of the newest entry.
    turn: u64,
}

/// Where the peers of a node were last.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    entries: Mutex<Entries>,
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
        let peers = text.lines().take(PEERS_MAX).filter_map(|line| {
            let (node, addr) = line.split_once(' ')?;
            let addr = addr.parse().ok()?;
            let entry = Entry { addr, turn: 1, boot: None, has_answered: false };
            Some((NodeId(node.parse().ok()?), entry))
        });
        let entries = Mutex::new(Entries { peers: peers.collect(), turn: 1 });
        Self { entries, changed: Notify::new(), file: Some(Arc::new(file)) }
    }

    /// Records where the process `boot` of a member is, because the member has just answered there,
    /// and proved who it is. Returns the turn of the entry.
    pub(crate) fn record(&self, node: NodeId, addr: SocketAddr, boot: BootId) -> u64 {
        self.enter(node, Entry { addr, turn: 0, boot: Some(boot), has_answered: true })
    }

    /// Records where the process `boot` of a member may be reached: the member has called from the
    /// address `from`, has proved who it is, and listens on the port of `raft_addr`. An address at
    /// which this process has answered is worth more, because a caller can come through a gateway.
    pub(crate) fn record_caller(&self, node: NodeId, from: IpAddr, raft_addr: &str, boot: BootId) {
        if let Some((_, port)) = host_and_port(raft_addr) {
            let addr = SocketAddr::new(from.to_canonical(), port);
            self.enter(node, Entry { addr, turn: 0, boot: Some(boot), has_answered: false });
        }
    }

    fn enter(&self, node: NodeId, mut entry: Entry) -> u64 {
        let mut entries = self.entries();
        let before = entries.peers.get(&node).copied();
        if before.is_none() && entries.peers.len() >= PEERS_MAX {
            let oldest = entries.peers.iter().min_by_key(|(_, it)| it.turn).map(|(node, _)| *node);
            oldest.and_then(|node| entries.peers.remove(&node));
        }
        if let Some(before) = before.filter(|it| it.boot == entry.boot && it.has_answered)
            && !entry.has_answered
        {
            (entry.addr, entry.has_answered) = (before.addr, true);
        }
        entries.turn += 1;
        let turn = entries.turn;
        let is_moved = before.is_none_or(|before| before.addr != entry.addr);
        entries.peers.insert(node, Entry { turn, ..entry });
        let text = is_moved.then(|| written(&entries.peers));
        drop(entries);
        self.changed.notify_waiters();
        if let (Some(file), Some(text)) = (&self.file, text) {
            file.write(text);
        }
        turn
    }

    /// The turn of the newest entry: a link that connects now is newer than all entries up to it.
    pub(crate) fn turn(&self) -> u64 {
        self.entries().turn
    }

    /// Waits for an entry of `node` whose turn is above `tried`.
    pub(crate) async fn newer(&self, node: NodeId, tried: u64) -> Entry {
        self.wait(node, |entry| entry.turn > tried).await
    }

    /// Whether another process than `boot` was found to run as `node` after `turn`, when a link to
    /// `boot` was welcomed. An entry from before may be of an earlier process.
    pub(crate) fn is_replaced(&self, node: NodeId, boot: BootId, turn: u64) -> bool {
        self.entries().peers.get(&node).is_some_and(|entry| entry.is_after(boot, turn))
    }

    /// Waits until [`Self::is_replaced`].
    pub(crate) async fn replaced(&self, node: NodeId, boot: BootId, turn: u64) {
        self.wait(node, |entry| entry.is_after(boot, turn)).await;
    }

    async fn wait(&self, node: NodeId, is_wanted: impl Fn(&Entry) -> bool) -> Entry {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(entry) = self.entries().peers.get(&node).filter(|it| is_wanted(it)) {
                return *entry;
            }
            changed.await;
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
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
                    tracing::info!(%error, "the addresses of the peers cannot be written");
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
        let entry = Entry { addr: addr(2), turn: 1, boot: Some(BootId(1)), has_answered: true };
        assert_eq!(first, entry);
        let none = timeout(Duration::from_millis(1), book.newer(NODE, first.turn)).await;
        assert!(none.is_err(), "no newer entry");
        let (newer, ()) = tokio::join!(book.newer(NODE, first.turn), async {
            book.record(NodeId(3), addr(3), BootId(3));
            book.record_caller(NODE, "::ffff:10.0.0.9".parse().unwrap(), "n2:60001", BootId(2));
        });
        assert_eq!((newer.addr, newer.turn), (addr(9), 3));
        book.record_caller(NODE, "10.0.0.8".parse().unwrap(), "no port", BootId(2));
        assert_eq!(book.newer(NODE, 1).await.addr, addr(9));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn where_a_process_has_answered_is_kept_when_it_calls_from_elsewhere() {
        let book = AddressBook::default();
        let from = |last: u8| IpAddr::from([10, 0, 0, last]);
        book.record(NODE, addr(2), BootId(1));
        book.record_caller(NODE, from(1), "n2:60001", BootId(1));
        let entry = book.newer(NODE, 1).await;
        assert_eq!((entry.addr, entry.turn), (addr(2), 2), "the call came through a gateway");
        book.record_caller(NODE, from(3), "n2:60001", BootId(2));
        assert_eq!(book.newer(NODE, 2).await.addr, addr(3), "another process may be elsewhere");
    }

    #[test]
    fn a_full_book_forgets_who_was_recorded_longest_ago() {
        let book = AddressBook::default();
        for node in 1..=PEERS_MAX as u64 {
            book.record(NodeId(node), addr(1), BootId(node));
        }
        book.record(NodeId(1), addr(1), BootId(1));
        let turn = book.turn();
        book.record(NodeId(1_000), addr(1), BootId(1_000));
        let known = |node| book.entries().peers.contains_key(&NodeId(node));
        assert_eq!([1, 2, 3, 1_000].map(known), [true, false, true, true]);
        assert_eq!(book.turn(), turn + 1, "no link takes a new entry for one that it has tried");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_process_is_replaced_when_another_one_has_proved_who_it_is() {
        let book = AddressBook::default();
        let turn = book.record(NODE, addr(2), BootId(1));
        let same = timeout(Duration::from_millis(1), book.replaced(NODE, BootId(1), turn)).await;
        assert!(same.is_err());
        // The book has the earlier process yet when a link to the next one is welcomed.
        let later = timeout(Duration::from_millis(1), book.replaced(NODE, BootId(7), turn)).await;
        assert!(later.is_err() && !book.is_replaced(NODE, BootId(7), turn));
        tokio::join!(book.replaced(NODE, BootId(1), turn), async {
            book.record(NODE, addr(2), BootId(7));
        });
        assert_eq!([1, 7].map(|boot| book.is_replaced(NODE, BootId(boot), turn)), [true, false]);
        assert!(!book.is_replaced(NodeId(3), BootId(1), 0), "nothing is known of it");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_book_is_kept_and_lines_that_are_no_entries_are_left_out() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path();
        let book = AddressBook::load(dir);
        assert!(book.entries().peers.is_empty());
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
        assert_eq!(book.entries().peers.len(), 2);
        let entry = book.newer(NODE, 0).await;
        assert_eq!(entry, Entry { addr: addr(40), turn: 1, boot: None, has_answered: false });
        // It was written by an earlier run: it tells nothing about the process that runs now.
        let other = timeout(Duration::from_millis(1), book.replaced(NODE, BootId(9), 0)).await;
        assert!(other.is_err());
    }
}
