//! What other threads tell a worker: the consensus plane that something was published, the
//! listener that a client came, a sibling that a confirm or its answer belongs here. Nobody who
//! writes to a worker ever waits for it: what finds no room is dropped, and its owner copes.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use epicepoch_wire::NodeId;
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::hello::Hello;
use tokio::sync::{Notify, mpsc};

use super::ConnectionPermit;

/// Letters that may wait for a worker. It reads them at every turn of its event loop; this many
/// is a worker that hangs.
const LETTERS_MAX: usize = 4096;

/// A letter to a worker.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A client's connection, and the permit that counts it.
    Client(TcpStream, ConnectionPermit),
    /// Another member's confirm link, whose hello was accepted.
    ConfirmLink { from: NodeId, hello: Box<Hello>, stream: TcpStream },
    /// A confirm of a sibling that has no link of its own to a member.
    Forward { to: NodeId, frame: Vec<u8> },
    /// The answer to a confirm that a sibling forwarded.
    Reply { from: NodeId, reply: ConfirmReply },
}

/// The box in front of one worker.
#[derive(Debug)]
pub(crate) struct Letterbox {
    sender: mpsc::Sender<Letter>,
    bell: Notify,
    is_published: AtomicBool,
    stop_at: Mutex<Option<Instant>>,
    /// Which members this worker's links reach, one bit for node id modulo 64: a hint.
    links_up: AtomicU64,
}

impl Letterbox {
    /// An empty box, and the end that its worker reads from.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Letter>) {
        let (sender, receiver) = mpsc::channel(LETTERS_MAX);
        let letterbox = Self {
            sender,
            bell: Notify::new(),
            is_published: AtomicBool::new(false),
            stop_at: Mutex::new(None),
            links_up: AtomicU64::new(0),
        };
        (letterbox, receiver)
    }

    /// Puts a letter in; hands it back when the box is full or its worker has ended.
    pub(crate) fn put(&self, letter: Letter) -> Result<(), Letter> {
        self.sender.try_send(letter).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// Tells the worker to look at the publication.
    pub(crate) fn notify_published(&self) {
        self.is_published.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Tells the worker to finish by `at`.
    pub(crate) fn stop(&self, at: Instant) {
        let mut stop_at = self.stop_at.lock().unwrap_or_else(PoisonError::into_inner);
        stop_at.get_or_insert(at);
        self.bell.notify_one();
    }

    /// Waits for the bell. One waiter: the worker.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Whether something was published since the last call.
    pub(crate) fn take_published(&self) -> bool {
        self.is_published.swap(false, Ordering::Acquire)
    }

    /// When the worker must have finished, once it was told to.
    pub(crate) fn stop_at(&self) -> Option<Instant> {
        *self.stop_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which members the worker's links reach.
    pub(crate) fn set_links_up(&self, nodes: impl Iterator<Item = NodeId>) {
        let bits = nodes.fold(0, |bits, node| bits | link_bit(node));
        self.links_up.store(bits, Ordering::Relaxed);
    }

    /// Whether the worker seems to have a link to `node`.
    pub(crate) fn may_reach(&self, node: NodeId) -> bool {
        self.links_up.load(Ordering::Relaxed) & link_bit(node) != 0
    }
}

const fn link_bit(node: NodeId) -> u64 {
    1 << (node.0 % 64)
}
