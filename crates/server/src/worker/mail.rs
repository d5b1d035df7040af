//! What other threads tell a worker: the consensus plane that something was published, the
//! listener that a client came, a sibling that a confirm or its answer belongs here. Nobody who
//! writes to a worker ever waits for it: what finds no room is dropped, and its owner copes.

use std::net::TcpStream;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use epicepoch_wire::NodeId;
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::hello::Hello;
use tokio::sync::mpsc;

use crate::http::http3::endpoint::Start;
use crate::origins::ConnectionPermit;
use crate::peers::stream::Parcel;
use crate::rights::Port;
use crate::sync::{AtomicBool, Bell, Mutex, Ordering, PoisonError};

/// Letters that may wait for a worker. It reads them at every turn of its event loop; this many
/// is a worker that hangs.
const LETTERS_MAX: usize = 4096;

/// A letter to a worker.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A client's connection, where it came in, and the permit that counts it.
    Client(TcpStream, Port, ConnectionPermit),
    /// The worker's part of HTTP/3.
    Http3(Box<Start>),
    /// Another member's confirm link, whose hello was accepted.
    ConfirmLink { from: NodeId, hello: Box<Hello>, stream: Parcel },
    /// A confirm of a sibling that has no link of its own to a member.
    Forward { to: NodeId, frame: Vec<u8> },
    /// The answer to a confirm that a sibling forwarded.
    Reply { from: NodeId, reply: ConfirmReply },
}

/// The box in front of one worker.
#[derive(Debug)]
pub(crate) struct Letterbox {
    sender: mpsc::Sender<Letter>,
    bell: Bell,
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
            bell: Bell::new(),
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

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use epicepoch_core::publication::{Identity, Published, Shared};
    use epicepoch_wire::{BootId, StoreId, Term};
    use loom::thread;

    use super::*;
    use crate::sync::{Weakness, weaken};

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Plant {
        Nothing,
        RungBeforeFlag,
        FlagTakenAfterReading,
    }

    const LAST: Term = Term(6);

    fn published(term: Term) -> Published {
        let me = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
        Published { term, ..Published::nothing(me) }
    }

    /// One turn of a worker: it looks only where its bell has rung. Returns whether it had.
    fn turn(letterbox: &Letterbox, shared: &Shared, seen: &mut Term, plant: Plant) -> bool {
        let rung = pin!(letterbox.rung());
        if rung.poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return false;
        }
        let early = (plant == Plant::FlagTakenAfterReading).then(|| shared.published().term);
        if letterbox.take_published() {
            let read = early.unwrap_or_else(|| shared.published().term);
            assert!(read >= *seen, "a worker went back to an older publication");
            *seen = read;
        }
        true
    }

    /// The consensus plane publishes twice, somebody else says stop, and the worker looks only
    /// where its bell has rung. When the bell is silent, it must have seen the last.
    fn mail(plant: Plant) {
        let shared = Arc::new(Shared::new(Term(4), published(Term(4))));
        let letterbox = Arc::new(Letterbox::new().0);
        let (own, to) = (shared.clone(), letterbox.clone());
        let consensus = thread::spawn(move || {
            for term in [Term(5), LAST] {
                own.publish(Arc::new(published(term)));
                if plant == Plant::RungBeforeFlag {
                    to.bell.notify_one();
                    to.is_published.store(true, Ordering::Release);
                } else {
                    to.notify_published();
                }
            }
        });
        let to = letterbox.clone();
        let stopping = thread::spawn(move || to.stop(Instant::now()));
        let mut seen = Term(4);
        turn(&letterbox, &shared, &mut seen, plant);
        turn(&letterbox, &shared, &mut seen, plant);
        consensus.join().unwrap();
        stopping.join().unwrap();
        while turn(&letterbox, &shared, &mut seen, plant) {}
        assert_eq!(seen, LAST, "the last publication is missed");
        assert!(letterbox.stop_at().is_some());
    }

    #[test]
    fn no_publication_and_no_stop_is_missed() {
        loom::model(|| mail(Plant::Nothing));
    }

    #[test]
    #[should_panic(expected = "the last publication is missed")]
    fn planted_a_bell_that_rings_before_the_flag_is_set() {
        loom::model(|| mail(Plant::RungBeforeFlag));
    }

    #[test]
    #[should_panic(expected = "the last publication is missed")]
    fn planted_a_flag_that_is_taken_after_the_publication_was_read() {
        loom::model(|| mail(Plant::FlagTakenAfterReading));
    }

    #[test]
    #[should_panic(expected = "the last publication is missed")]
    fn planted_a_flag_that_orders_nothing() {
        weaken(Weakness::UnorderedFlag);
        loom::model(|| mail(Plant::Nothing));
    }
}
