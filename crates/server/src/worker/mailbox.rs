//! A worker's mailbox, through which other threads reach it. The consensus plane announces
//! publications, the listener passes client connections, and sibling workers pass confirms and
//! their answers. A sender never waits: when the mailbox is full, it gets its message back and
//! drops it.

use std::net::TcpStream;
use std::time::Instant;

use epicepoch_core::confirm::LinksUp;
use epicepoch_wire::NodeId;
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::peer_hello::PeerHello;
use tokio::sync::mpsc;

use super::quic::QuicSocket;
use crate::security::authz::Port;
use crate::security::limits::ConnectionPermit;
use crate::security::tls::peer_stream::DetachedStream;
use crate::sync::{AtomicBool, Mutex, Notify, Ordering, PoisonError};

/// At most this many messages wait for a worker. A worker reads its messages at every turn of its
/// event loop. So a worker that leaves this many unread has hung.
const MESSAGES_MAX: usize = 4096;

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// A client's connection, the port that it came in at, and the permit that counts it.
    Client(TcpStream, Port, ConnectionPermit),
    /// The worker's socket of a UDP port.
    Quic(Box<QuicSocket>),
    /// A confirm link from another member whose hello was accepted.
    ConfirmLink { from: NodeId, hello: Box<PeerHello>, stream: DetachedStream },
    /// A sibling worker's confirm to member `to`, which that worker has no link to.
    Forward { to: NodeId, frame: Vec<u8> },
    /// The answer to a confirm of this worker that a sibling worker has sent.
    Reply { from: NodeId, reply: ConfirmReply },
}

/// The mailbox of one worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    sender: mpsc::Sender<WorkerMessage>,
    notify: Notify,
    is_published: AtomicBool,
    stop_at: Mutex<Option<Instant>>,
    /// The members that this worker has links to.
    pub(crate) links_up: LinksUp,
}

impl Mailbox {
    /// An empty mailbox, and the end that its worker reads from.
    pub(crate) fn new() -> (Self, mpsc::Receiver<WorkerMessage>) {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        let mailbox = Self {
            sender,
            notify: Notify::new(),
            is_published: AtomicBool::new(false),
            stop_at: Mutex::new(None),
            links_up: LinksUp::default(),
        };
        (mailbox, receiver)
    }

    /// Puts a message in. Returns the message when the mailbox is full or its worker has ended.
    pub(crate) fn put(&self, message: WorkerMessage) -> Result<(), WorkerMessage> {
        self.sender.try_send(message).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// Tells the worker to read the publication.
    pub(crate) fn notify_published(&self) {
        self.is_published.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// Tells the worker to finish by `at`. Only the first call counts.
    pub(crate) fn stop(&self, at: Instant) {
        let mut stop_at = self.stop_at.lock().unwrap_or_else(PoisonError::into_inner);
        stop_at.get_or_insert(at);
        self.notify.notify_one();
    }

    /// Waits for [`Mailbox::notify_published`] or [`Mailbox::stop`]. Only the worker may wait.
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Whether a publication was announced since the last call.
    pub(crate) fn take_published(&self) -> bool {
        self.is_published.swap(false, Ordering::Acquire)
    }

    /// When the worker must have finished; `None` until it was told to stop.
    pub(crate) fn stop_at(&self) -> Option<Instant> {
        *self.stop_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    enum Mistake {
        Nothing,
        NotifiedBeforeFlag,
        FlagTakenAfterReading,
    }

    const LAST: Term = Term(6);

    fn published(term: Term) -> Published {
        let me = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
        Published { term, ..Published::nothing(me) }
    }

    /// One turn of a worker, which reads its mailbox only after a notification. Returns whether
    /// there was a notification.
    fn turn(mailbox: &Mailbox, shared: &Shared, seen: &mut Term, mistake: Mistake) -> bool {
        let notified = pin!(mailbox.notified());
        if notified.poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return false;
        }
        let early = (mistake == Mistake::FlagTakenAfterReading).then(|| shared.published().term);
        if mailbox.take_published() {
            let read = early.unwrap_or_else(|| shared.published().term);
            assert!(read >= *seen, "a worker went back to an older publication");
            *seen = read;
        }
        true
    }

    /// The consensus plane publishes twice, another thread stops the worker, and the worker reads
    /// only after a notification. When no notification is left, it must have seen the last
    /// publication.
    fn mail(mistake: Mistake) {
        let shared = Arc::new(Shared::new(Term(4), published(Term(4))));
        let mailbox = Arc::new(Mailbox::new().0);
        let (own, to) = (shared.clone(), mailbox.clone());
        let consensus = thread::spawn(move || {
            for term in [Term(5), LAST] {
                own.publish(Arc::new(published(term)));
                if mistake == Mistake::NotifiedBeforeFlag {
                    to.notify.notify_one();
                    to.is_published.store(true, Ordering::Release);
                } else {
                    to.notify_published();
                }
            }
        });
        let to = mailbox.clone();
        let stopping = thread::spawn(move || to.stop(Instant::now()));
        let mut seen = Term(4);
        turn(&mailbox, &shared, &mut seen, mistake);
        turn(&mailbox, &shared, &mut seen, mistake);
        consensus.join().unwrap();
        stopping.join().unwrap();
        while turn(&mailbox, &shared, &mut seen, mistake) {}
        assert_eq!(seen, LAST, "the last publication is missed");
        assert!(mailbox.stop_at().is_some());
    }

    #[test]
    fn no_publication_and_no_stop_is_missed() {
        loom::model(|| mail(Mistake::Nothing));
    }

    #[test]
    #[should_panic(expected = "the last publication is missed")]
    fn mistaken_a_notification_before_the_flag_is_set() {
        loom::model(|| mail(Mistake::NotifiedBeforeFlag));
    }

    #[test]
    #[should_panic(expected = "the last publication is missed")]
    fn mistaken_a_flag_that_is_taken_after_the_publication_was_read() {
        loom::model(|| mail(Mistake::FlagTakenAfterReading));
    }

    #[test]
    #[should_panic(expected = "the last publication is missed")]
    fn mistaken_a_flag_that_orders_nothing() {
        weaken(Weakness::UnorderedFlag);
        loom::model(|| mail(Mistake::Nothing));
    }
}
