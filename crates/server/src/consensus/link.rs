//! The connection to a peer. It sends Raft messages, and pings that sample the peer's clock. It
//! reconnects for ever. Its queue is short, because Raft repeats messages that a broken link has
//! lost.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode};
use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{BootId, ClusterId, StorePosition};
use thiserror::Error;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::inbox::{Event, Inbox};
use crate::abort::AbortOnPanic;
use crate::addresses::Tried;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::peers;
use crate::peers::handshake::check_welcome;
use crate::security::tls::peer_stream::{PeerReader, PeerWriter};
use crate::shared::NodeShared;

/// At most this many messages wait for one peer. Further messages are dropped; Raft repeats them.
const QUEUE_LEN_MAX: usize = 256;
/// The longest time to connect and to get the answer to the hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest and the longest wait between two attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Time between two pings. They sample the peer's clock and prove that the link is alive.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Silence after which a link is closed and dialled again.
const SILENCE_MAX: Duration = Duration::from_millis(1_500);

/// A link that reconnects by itself until it is dropped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Member,
    queue: mpsc::Sender<RaftMessage>,
    task: AbortHandle,
    is_up: Rc<Notify>,
    /// The newest format that the connected peer reads; `None` while there is no connection.
    reads: Rc<Cell<Option<u32>>>,
}

impl Link {
    /// Opens a link to `peer`, which begins to connect.
    pub(super) fn open(
        shared: Arc<NodeShared>,
        cluster: ClusterId,
        peer: Member,
        inbox: Rc<Inbox>,
    ) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE_LEN_MAX);
        let mut addrs = vec![peer.raft_addr.clone()];
        addrs
            .extend(shared.config.peers.get(&peer.node).filter(|addr| **addr != addrs[0]).cloned());
        let is_up = Rc::new(Notify::new());
        let reads = Rc::new(Cell::new(None));
        let dialler = Dialler {
            shared,
            cluster,
            peer: peer.clone(),
            addrs,
            inbox,
            is_up: is_up.clone(),
            reads: reads.clone(),
            tried: Tried::default(),
        };
        let task = tokio::task::spawn_local(dialler.run(queued)).abort_handle();
        Self { peer, queue, task, is_up, reads }
    }

    /// Whether entries and states of `format` may be sent (S15). Without a connection they may,
    /// because the next handshake checks the format again.
    pub(super) fn may_carry(&self, format: u32) -> bool {
        self.reads.get().is_none_or(|newest| newest >= format)
    }

    /// Ends the wait for the next attempt, because the peer is known to run. Without this, a peer
    /// that has just started would get no votes from this node until the wait is over.
    pub(super) fn record_up(&self) {
        self.is_up.notify_waiters();
    }

    /// Whether the link is connected, so that it sends what is queued.
    pub(super) fn is_connected(&self) -> bool {
        self.reads.get().is_some()
    }

    /// Queues a message. Returns whether there was space; if not, the message is dropped.
    pub(super) fn send(&self, message: RaftMessage) -> bool {
        self.queue.try_send(message).is_ok()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Dialler {
    shared: Arc<NodeShared>,
    cluster: ClusterId,
    peer: Member,
    /// The addresses to try in turn: the peer's address in the cluster's state, and its address in
    /// `PEERS`.
    addrs: Vec<String>,
    inbox: Rc<Inbox>,
    /// Ends the wait between two attempts.
    is_up: Rc<Notify>,
    /// The newest format that the connected peer reads; see [`Link::reads`].
    reads: Rc<Cell<Option<u32>>>,
    tried: Tried,
}

/// Why a link is not connected, or why its connection ended.
#[derive(Debug, Error)]
enum LinkError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("no answer in time")]
    Timeout,
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error("{0}")]
    WrongPeer(String),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer is silent")]
    Silent,
    #[error("the peer was started again")]
    Replaced,
    #[error("this node ends")]
    Ended,
}

impl Dialler {
    async fn run(self, mut queued: mpsc::Receiver<RaftMessage>) {
        let _abort = AbortOnPanic("link to a peer");
        let (mut backoff, backoff_max) = BACKOFF;
        let mut logged = String::new();
        // Failures since the link was up.
        let mut failures = 0_u32;
        for attempt in 0_usize.. {
            let addr = &self.addrs[attempt % self.addrs.len()];
            let error = match self.connect(addr).await {
                Ok((reader, writer, process)) => {
                    tracing::info!(peer = self.peer.node.0, "connected");
                    (backoff, logged, failures) = (BACKOFF.0, String::new(), 0);
                    // Messages that were queued for the old connection are out of date. Raft
                    // repeats them.
                    while queued.try_recv().is_ok() {}
                    self.serve(reader, writer, process, &mut queued).await
                }
                Err(error) => error,
            };
            self.reads.set(None);
            if matches!(error, LinkError::Ended) {
                return;
            }
            failures = failures.saturating_add(1);
            self.report(addr, &error, failures, &mut logged).await;
            // The jitter keeps two nodes from dialling each other at the same moments again and
            // again.
            let jitter = Duration::from_micros(jitter_us(&self.shared, backoff));
            drain(&mut queued, backoff + jitter, &self.is_up).await;
            backoff = (backoff * 2).min(backoff_max);
        }
    }

    /// Reports an error to the replica, and logs the error if its text is new. The first failure
    /// after the link was up is no warning, because the next attempt usually succeeds.
    async fn report(&self, addr: &str, error: &LinkError, failures: u32, logged: &mut String) {
        let node = self.peer.node;
        let text = error.to_string();
        if failures == 1 {
            tracing::info!(peer = node.0, addr, error = text, "link down; trying again");
        } else if !logged.contains(&text) {
            let is_ending = self.shared.health.is_shutting_down.load(Ordering::Relaxed);
            let is_early = matches!(
                error,
                LinkError::Refused(Refusal { code: RefusalCode::NotBootstrapped, .. })
            );
            if is_ending || is_early {
                tracing::info!(peer = node.0, addr, error = text, "no link");
            } else {
                tracing::warn!(peer = node.0, addr, error = text, "no link");
            }
            if logged.len() > LOGGED_LEN_MAX {
                logged.clear();
            }
            logged.push_str(&text);
        }
        let event = match error {
            LinkError::Refused(refusal) => Event::Refused { by: node, refusal: refusal.clone() },
            LinkError::Closed => Event::Closed { node },
            LinkError::Frame(FrameError::Io(error)) | LinkError::Io(error)
                if error.kind() == std::io::ErrorKind::ConnectionReset =>
            {
                Event::Closed { node }
            }
            _ => Event::Unreachable { node },
        };
        self.inbox.send(event).await;
    }

    async fn connect(
        &self,
        addr: &str,
    ) -> Result<(FrameReader<PeerReader>, PeerWriter, (BootId, u64)), LinkError> {
        let hello = self.shared.hello(LinkKind::Raft, self.peer.node);
        let attempt = async {
            let (shared, node) = (&self.shared, self.peer.node);
            let stream = peers::connect_link(shared, addr, node, &self.tried).await?;
            let peer_addr = stream.socket()?.peer_addr()?;
            let (reader, mut writer) = stream.into_split();
            let mut frames = Vec::new();
            let me = self.shared.identity.node;
            write_frame(&mut frames, FrameKind::PeerHello, self.cluster, me, |out| {
                hello.encode(out);
            });
            write_frames(&mut writer, &mut frames).await?;
            let mut reader = FrameReader::new(reader);
            let (header, payload) = reader.next().await?.ok_or(LinkError::Closed)?;
            let process = match header.kind {
                FrameKind::Welcome => {
                    let welcome = PeerHello::decode(payload).map_err(FrameError::from)?;
                    let from = (header.cluster, header.from);
                    check_welcome(&self.shared, self.cluster, &self.peer, from, &welcome)
                        .map_err(LinkError::WrongPeer)?;
                    // No await separates the check of the welcome, just above, from this
                    // assignment. So the cluster's format cannot rise between the two.
                    self.reads.set(Some(welcome.formats.newest));
                    let member = Member {
                        raft_addr: welcome.raft_addr.clone(),
                        client_addr: welcome.client_addr.clone(),
                        ..self.peer.clone()
                    };
                    let boot = welcome.boot;
                    let turn = shared.addresses.book.record(node, peer_addr, boot);
                    self.inbox.send(Event::PeerHello { member, hello: welcome }).await;
                    (boot, turn)
                }
                FrameKind::Refused => {
                    let refusal = Refusal::decode(payload).map_err(FrameError::from)?;
                    return Err(LinkError::Refused(refusal));
                }
                kind => {
                    return Err(LinkError::WrongPeer(format!("{kind:?} instead of a welcome")));
                }
            };
            Ok((reader, writer, process))
        };
        timeout(CONNECT_TIMEOUT, attempt).await.map_err(|_| LinkError::Timeout)?
    }

    /// Sends messages and pings on a connection, and reads pongs, until the connection breaks.
    async fn serve(
        &self,
        mut reader: FrameReader<PeerReader>,
        mut writer: PeerWriter,
        (boot, turn): (BootId, u64),
        queued: &mut mpsc::Receiver<RaftMessage>,
    ) -> LinkError {
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        // For the last ping: when it was sent, and the peer's position that this node knew then.
        let mut pinged = (0, StorePosition(0));
        let mut frames = Vec::new();
        let replaced = self.shared.addresses.book.replaced(self.peer.node, boot, turn);
        tokio::pin!(replaced);
        loop {
            tokio::select! {
                () = &mut replaced => return LinkError::Replaced,
                written = write_frames(&mut writer, &mut frames), if !frames.is_empty() => {
                    if let Err(error) = written { return error.into() }
                }
                read = reader.next() => match read {
                    Err(error) => return error.into(),
                    Ok(None) => return LinkError::Closed,
                    Ok(Some((header, payload))) => {
                        let pong = Pong::decode(payload);
                        let (FrameKind::Pong, Ok(pong)) = (header.kind, pong) else {
                            return LinkError::WrongPeer(format!("unexpected {:?}", header.kind));
                        };
                        heard_at = Instant::now();
                        // In this order: the round trip is not shorter than it was at the arrival
                        // by the raw clock.
                        let arrived_raw_ns = epicepoch_time_source::raw_ns();
                        let received_ns = self.shared.clock.monotonic_ns();
                        let node = self.peer.node;
                        let trip_ns = received_ns.checked_sub(pong.sent_ns);
                        let told = pong.interval.zip(trip_ns);
                        self.shared.intervals.handle_report(node, told, arrived_raw_ns);
                        let is_last = pong.sent_ns == pinged.0;
                        let since = if is_last { pinged.1 } else { StorePosition(0) };
                        self.inbox.send(Event::Pong { node, boot, since, pong, received_ns }).await;
                    }
                },
                message = queued.recv(), if frames.len() < FRAMES_LEN_MAX => {
                    let Some(message) = message else { return LinkError::Ended };
                    self.frame(&mut frames, &message);
                    while frames.len() < FRAMES_LEN_MAX && let Ok(message) = queued.try_recv() {
                        self.frame(&mut frames, &message);
                    }
                },
                _ = pings.tick() => {
                    if heard_at.elapsed() > SILENCE_MAX {
                        return LinkError::Silent;
                    }
                    let ping = Ping { sent_ns: self.shared.clock.monotonic_ns() };
                    pinged = (ping.sent_ns, self.shared.core.positions().of(self.peer.node));
                    let me = self.shared.identity.node;
                    write_frame(&mut frames, FrameKind::Ping, self.cluster, me, |out| {
                        ping.encode(out);
                    });
                }
            }
        }
    }

    fn frame(&self, frames: &mut Vec<u8>, message: &RaftMessage) {
        let me = self.shared.identity.node;
        write_frame(frames, FrameKind::Raft, self.cluster, me, |out| message.encode(out));
    }
}

/// At most this many bytes of error texts are remembered, so that each error is logged once.
const LOGGED_LEN_MAX: usize = 2_048;
/// While this many bytes of frames are not written, messages stay in the queue.
const FRAMES_LEN_MAX: usize = 256 << 10;

/// Waits for `wait`, or until the peer is known to run, and drops messages meanwhile.
async fn drain(queued: &mut mpsc::Receiver<RaftMessage>, wait: Duration, is_up: &Notify) {
    let until = sleep(wait);
    let woken = is_up.notified();
    tokio::pin!(until, woken);
    loop {
        tokio::select! {
            () = &mut until => return,
            () = &mut woken => return,
            message = queued.recv() => if message.is_none() { return },
        }
    }
}

/// Returns a random time of at most a quarter of `backoff`, microseconds. The monotonic clock is
/// the seed. That is random enough, because nothing depends on the value.
fn jitter_us(shared: &NodeShared, backoff: Duration) -> u64 {
    let quarter = backoff.as_micros() as u64 / 4;
    fastrand::Rng::with_seed(shared.clock.monotonic_ns()).u64(0..=quarter)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::pending;
    use std::io::ErrorKind;

    use epicepoch_wire::NodeId;
    use tokio::net::TcpListener;
    use tokio::task::{LocalSet, spawn_local};

    use super::super::fixture::{CLUSTER, logged, member, shared};
    use super::*;

    /// A test ends by its events. One that waits longer waits for ever.
    const WAIT_MAX: Duration = Duration::from_mins(1);

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let test = async { timeout(WAIT_MAX, test).await.expect("in time") };
        LocalSet::new().block_on(&runtime.expect("a runtime"), test)
    }

    /// A dialler of node 1 to node 2 at `addr`, and the events that it reports.
    fn dialler(addr: &str) -> (Dialler, mpsc::Receiver<Event>) {
        let (inbox, events) = Inbox::open();
        let dialler = Dialler {
            shared: shared(),
            cluster: CLUSTER,
            peer: member(2),
            addrs: vec![addr.to_owned()],
            inbox,
            is_up: Rc::new(Notify::new()),
            reads: Rc::new(Cell::new(None)),
            tried: Tried::default(),
        };
        (dialler, events)
    }

    fn refused(code: RefusalCode) -> LinkError {
        LinkError::Refused(Refusal::new(code, "no"))
    }

    #[test]
    fn the_end_of_a_link_is_reported_as_what_it_says_about_the_peer() {
        let (dialler, mut events) = dialler("n2:1");
        let io = |kind| LinkError::Io(io_error(kind));
        let in_frame = LinkError::Frame(FrameError::Io(io_error(ErrorKind::ConnectionReset)));
        let cases = [
            (LinkError::Closed, "closed"),
            (io(ErrorKind::ConnectionReset), "closed"),
            (in_frame, "closed"),
            (io(ErrorKind::ConnectionRefused), "unreachable"),
            (LinkError::Timeout, "unreachable"),
            (LinkError::Silent, "unreachable"),
            (refused(RefusalCode::Removed), "refused"),
        ];
        for (error, expected) in cases {
            block_on(dialler.report("n2:1", &error, 2, &mut String::new()));
            let event = events.try_recv().expect("an event");
            let said = match &event {
                Event::Closed { node: NodeId(2) } => "closed",
                Event::Unreachable { node: NodeId(2) } => "unreachable",
                Event::Refused { by: NodeId(2), refusal } => {
                    assert_eq!(refusal.code, RefusalCode::Removed);
                    "refused"
                }
                _ => "another event",
            };
            assert_eq!(said, expected, "{error}: {event:?}");
        }
    }

    fn io_error(kind: ErrorKind) -> std::io::Error {
        kind.into()
    }

    #[test]
    fn an_error_of_a_link_is_logged_when_it_is_new() {
        let (dialler, _events) = dialler("n2:1");
        let mut known = String::new();
        let report = |error: &LinkError, failures, known: &mut String| {
            let lines = logged(|| block_on(dialler.report("n2:1", error, failures, known)));
            lines.concat()
        };
        let fields = |error: &str| format!(" peer=2 addr=n2:1 error={error}");
        let down = report(&LinkError::Silent, 1, &mut known);
        let silent = fields("the peer is silent");
        assert_eq!(down, format!("INFO link down; trying again{silent}"));
        assert_eq!(report(&LinkError::Silent, 2, &mut known), format!("WARN no link{silent}"));
        let late = format!("WARN no link{}", fields("no answer in time"));
        assert_eq!(report(&LinkError::Timeout, 3, &mut known), late);
        for error in [LinkError::Silent, LinkError::Timeout] {
            assert_eq!(report(&error, 4, &mut known), "", "again");
        }
        // A peer that has not joined yet is usual, and so are broken links when this node stops.
        let early = report(&refused(RefusalCode::NotBootstrapped), 5, &mut known);
        assert!(early.starts_with("INFO no link"), "{early}");
        let wrong = report(&refused(RefusalCode::WrongNode), 6, &mut String::new());
        assert!(wrong.starts_with("WARN no link"), "{wrong}");
        dialler.shared.health.is_shutting_down.store(true, Ordering::Relaxed);
        let ending = report(&LinkError::Closed, 7, &mut known);
        assert!(ending.starts_with("INFO no link"), "{ending}");
        // The known texts are forgotten when they have become too long.
        for (length, is_kept) in [(LOGGED_LEN_MAX, true), (LOGGED_LEN_MAX + 1, false)] {
            let mut known = "x".repeat(length);
            report(&LinkError::Silent, 8, &mut known);
            assert_eq!(known.starts_with('x'), is_kept, "{length}");
            assert!(known.ends_with("the peer is silent"));
        }
    }

    /// Answers one hello as node 2 does, with other addresses than this node knows.
    async fn welcome(port: &TcpListener) {
        let (stream, _) = port.accept().await.expect("a connection");
        let mut reader = FrameReader::new(stream);
        let (header, payload) = reader.next().await.expect("a frame").expect("a hello");
        assert_eq!((header.kind, header.cluster), (FrameKind::PeerHello, CLUSTER));
        let hello = PeerHello::decode(payload).expect("a hello");
        let welcome = PeerHello {
            store: member(2).store,
            raft_addr: "new:1".to_owned(),
            client_addr: "new:2".to_owned(),
            ..hello
        };
        let mut frames = Vec::new();
        write_frame(&mut frames, FrameKind::Welcome, CLUSTER, NodeId(2), |out| {
            welcome.encode(out);
        });
        write_frames(&mut reader.into_stream(), &mut frames).await.expect("sent");
    }

    #[test]
    fn the_addresses_in_a_welcome_replace_the_known_ones() {
        block_on(async {
            let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let addr = port.local_addr().expect("an address").to_string();
            let (dialler, mut events) = dialler(&addr);
            let (connected, ()) = tokio::join!(dialler.connect(&addr), welcome(&port));
            assert!(connected.is_ok());
            let named = match events.try_recv().expect("an event") {
                Event::PeerHello { member, .. } => member,
                other => panic!("{other:?}"),
            };
            let (raft_addr, client_addr) = ("new:1".to_owned(), "new:2".to_owned());
            assert_eq!(named, Member { raft_addr, client_addr, ..member(2) });
            assert_eq!(dialler.reads.get(), Some(dialler.shared.formats().newest));
        });
    }

    #[test]
    fn the_pause_between_attempts_doubles() {
        block_on(async {
            let port = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let addr = port.local_addr().expect("an address").to_string();
            drop(port);
            let (dialler, mut events) = dialler(&addr);
            let (_queue, queued) = mpsc::channel(1);
            let start = Instant::now();
            let dialling = spawn_local(dialler.run(queued));
            for _ in 0..6 {
                events.recv().await.expect("an attempt");
            }
            // Five pauses: 10, 20, 40, 80 and 160 ms, each with a jitter that makes it longer.
            assert!(start.elapsed() >= Duration::from_millis(310), "{:?}", start.elapsed());
            dialling.abort();
        });
    }

    #[test]
    fn the_jitter_is_at_most_a_quarter_of_the_pause() {
        let shared = shared();
        let drawn: BTreeSet<_> =
            (0..1_000).map(|_| jitter_us(&shared, Duration::from_micros(40))).collect();
        assert!(drawn.iter().all(|it| *it <= 10) && drawn.len() > 5, "{drawn:?}");
    }

    #[test]
    fn a_dropped_link_ends_and_a_link_carries_only_what_its_peer_reads() {
        block_on(async {
            let (queue, mut queued) = mpsc::channel(1);
            let (is_up, reads) = (Rc::new(Notify::new()), Rc::new(Cell::new(None)));
            let dialling = spawn_local(pending::<()>());
            let task = dialling.abort_handle();
            let (peer, reads_too) = (member(2), reads.clone());
            let link = Link { peer, queue, task, is_up: is_up.clone(), reads };
            assert!(link.may_carry(9), "without a connection");
            reads_too.set(Some(3));
            assert!(link.may_carry(2) && link.may_carry(3) && !link.may_carry(4));
            let wait = Duration::from_mins(1);
            let waited = async {
                tokio::join!(drain(&mut queued, wait, &is_up), async { link.record_up() })
            };
            timeout(wait / 2, waited).await.expect("the wait ends early");
            drop(link);
            assert!(dialling.await.expect_err("it ends").is_cancelled());
        });
    }

    #[tokio::test]
    async fn the_wait_for_the_next_attempt_ends_when_the_peer_is_up() {
        let (_queue, mut queued) = mpsc::channel(1);
        let is_up = Notify::new();
        let wait = Duration::from_mins(1);
        let waited = async {
            tokio::join!(drain(&mut queued, wait, &is_up), async { is_up.notify_waiters() });
        };
        timeout(wait / 2, waited).await.expect("the wait ends early");
        // A notification that comes while no task waits must not shorten a later wait.
        is_up.notify_waiters();
        let later = drain(&mut queued, Duration::from_mins(1), &is_up);
        assert!(timeout(Duration::from_millis(20), later).await.is_err());
    }
}
