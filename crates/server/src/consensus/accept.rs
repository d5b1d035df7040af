//! Connections from peers. Each begins with a hello. Then a Raft link passes messages to the
//! replica, and a confirm link goes to a worker. Malformed input ends its connection and has no
//! other effect.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::durable::Record;
use epicepoch_core::positions::PeerBoot;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::frame::{FrameKind, write_frame, write_frame_of};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode};
use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{BootId, ClusterId, NodeId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::inbox::{Event, Inbox};
use super::wall::wall_ns;
use crate::abort::AbortOnPanic;
use crate::faults::Faults;
use crate::framed::{FrameReader, write_frames};
use crate::metrics::Metrics;
use crate::peers::handshake::{
    NoHello, check, check_name, check_rolled_back, other_version, read_hello, wrong_store,
};
use crate::peers::{self, handshake_outcome, handshakes};
use crate::security::limits::Key;
use crate::security::tls::handshake::{Beginner, Handshakes};
use crate::security::tls::peer_stream::PeerStream;
use crate::shared::{Accepts, NodeShared};
use crate::worker::Workers;

/// The longest time from the accept of a connection until its hello has come.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// If a peer's Raft link was heard within this time, the peer is alive. Then a second process with
/// the id of that peer is refused.
const ALIVE_WITHIN: Duration = Duration::from_millis(500);
/// Wait after a failed accept, for example when descriptors are missing.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// The last refusals of at most this many nodes are remembered, so that a repeated refusal is
/// logged once.
const LOGGED_MAX: usize = 64;
/// Silence after which an inbound Raft link is closed. A working peer pings all the time.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The state that accepted connections share.
pub(super) struct Accepted {
    pub(super) shared: Arc<NodeShared>,
    pub(super) workers: Workers,
    pub(super) faults: Faults,
    pub(super) inbox: Rc<Inbox>,
    /// The ids whose removal this node has applied.
    pub(super) removed: RefCell<BTreeSet<NodeId>>,
    newest: Newest,
    refusals: LoggedRefusals,
    /// The connections that have not sent their hello yet.
    handshakes: Handshakes,
    /// Addresses from which members have proved their identity with a certificate.
    ///
    /// Invariant: every id was a member's id when it was inserted, so there are few entries.
    proved_at: RefCell<BTreeMap<NodeId, Key>>,
}

/// An inbound Raft link.
#[derive(Clone, Copy)]
struct Alive {
    boot: BootId,
    heard_at: Instant,
    link: u64,
}

/// The newest inbound Raft link of each peer.
#[derive(Default)]
struct Newest(RefCell<BTreeMap<NodeId, Alive>>);

impl Newest {
    /// Records a new link. Returns false, and records nothing, if another process of the node is
    /// connected.
    fn begin(&self, node: NodeId, link: Alive) -> bool {
        let mut links = self.0.borrow_mut();
        let is_another = links.get(&node).is_some_and(|other| {
            let silence = link.heard_at.saturating_duration_since(other.heard_at);
            other.boot != link.boot && silence < ALIVE_WITHIN
        });
        if !is_another {
            links.insert(node, link);
        }
        !is_another
    }

    /// Records that a link was heard. If a newer link had taken its place and has ended, this one is
    /// the newest again.
    fn record_heard(&self, node: NodeId, link: Alive) {
        let mut links = self.0.borrow_mut();
        let newest = links.entry(node).or_insert(link);
        if newest.link == link.link {
            *newest = link;
        }
    }

    /// Forgets a link that has ended. Returns whether it was the newest.
    fn end(&self, node: NodeId, link: u64) -> bool {
        let mut links = self.0.borrow_mut();
        let is_newest = links.get(&node).is_some_and(|newest| newest.link == link);
        if is_newest {
            links.remove(&node);
        }
        is_newest
    }
}

impl Accepted {
    pub(super) fn new(
        shared: Arc<NodeShared>,
        workers: Workers,
        faults: Faults,
        inbox: Rc<Inbox>,
    ) -> Rc<Self> {
        Rc::new(Self {
            shared,
            workers,
            faults,
            inbox,
            removed: RefCell::default(),
            newest: Newest::default(),
            refusals: LoggedRefusals::default(),
            handshakes: handshakes(),
            proved_at: RefCell::default(),
        })
    }

    /// Accepts connections from peers. Never ends.
    pub(super) async fn run(self: Rc<Self>, listener: Rc<TcpListener>, metrics: Arc<Metrics>) {
        let _abort = AbortOnPanic("peer listener");
        let this = self.clone();
        tokio::task::spawn_local(async move {
            let _abort = AbortOnPanic("handshakes of peers");
            this.handshakes.hand_out_turns().await;
        });
        let mut count = 0_u64;
        let mut exhaustion = Exhaustion::default();
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    exhaustion.handle_accepted();
                    count += 1;
                    let this = self.clone();
                    tokio::task::spawn_local(async move { this.serve(stream, from, count).await });
                    // Only one connection is accepted in each turn of the event loop, so that Raft
                    // runs in between.
                    yield_now().await;
                }
                Err(error) if Accepts::is_of_one_connection(&error) => yield_now().await,
                Err(error) => {
                    exhaustion.handle_failure(&error, &metrics);
                    sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    async fn serve(self: Rc<Self>, stream: TcpStream, from: SocketAddr, link: u64) {
        let _abort = AbortOnPanic("link from a peer");
        let who = Beginner::at(Some(from.ip()), self.is_member_at(from.ip()));
        let handshake = async {
            let mut reader = FrameReader::new(peers::accept(&self.shared, stream).await?);
            let hello = match read_hello(&mut reader).await {
                Ok(hello) => hello,
                Err(NoHello::Version(version)) => {
                    let refusal = other_version(self.shared.identity.node, version);
                    self.refusals.log(from, NodeId(0), &refusal);
                    self.refuse_version(version, &mut reader.into_stream(), &refusal).await;
                    return None;
                }
                Err(NoHello::Other) => return None,
            };
            Some((hello, reader.into_stream()))
        };
        let ended = timeout(HELLO_TIMEOUT, self.handshakes.advance(who, handshake)).await;
        let outcome = handshake_outcome(ended, &self.shared, from.ip()).flatten();
        let Some(((cluster, node, hello), mut stream)) = outcome else {
            tracing::debug!(addr = %from, "a connection on the peer port sent no hello");
            return;
        };
        let answer = match peers::check_node(&self.shared, &stream, node) {
            Ok(()) => self.answer(cluster, node, &hello, link),
            Err(refusal) => Answer::Refused(refusal),
        };
        let (answer, record) = match answer {
            // While the record is fetched, the format may be raised (S15). The publication is never
            // older than the record, so the hello is checked again.
            Answer::Admitted => {
                let record = self.record().await;
                (self.answer_bootstrap(node, &hello), record)
            }
            answer => (answer, None),
        };
        match answer {
            Answer::Admitted => {
                if let Some(record) = record {
                    self.send(&mut stream, FrameKind::Admitted, |out| record.encode(out)).await;
                }
            }
            Answer::Refused(refusal) => {
                self.refusals.log(from, node, &refusal);
                self.send(&mut stream, FrameKind::Refused, |out| refusal.encode(out)).await;
            }
            Answer::Welcome => {
                self.record_proved(node, from.ip(), &stream);
                let welcome = self.shared.hello(hello.link, node);
                if !self.send(&mut stream, FrameKind::Welcome, |out| welcome.encode(out)).await {
                    // The answer has recorded a Raft link.
                    self.close(node, link).await;
                    return;
                }
                match hello.link {
                    LinkKind::Confirm(_) => self.hand_to_worker(node, hello, stream),
                    LinkKind::Raft => {
                        let book = &self.shared.addresses.book;
                        book.record_caller(node, from.ip(), &hello.raft_addr, hello.boot);
                        self.serve_raft(node, hello, stream, link).await;
                    }
                    LinkKind::Bootstrap => {}
                }
            }
        }
    }

    /// Whether a member is known at `from`. It is known if the cluster's state has a member at this
    /// address, or if a member has shown its certificate from there.
    fn is_member_at(&self, from: IpAddr) -> bool {
        let members = &self.shared.core.published().members;
        let proved_at = self.proved_at.borrow();
        peers::is_listed(members.values().map(|member| &*member.raft_addr), from)
            || members.keys().any(|node| proved_at.get(node) == Some(&Key::of(from)))
    }

    /// Remembers the address of a member that has shown its certificate.
    fn record_proved(&self, node: NodeId, from: IpAddr, stream: &PeerStream) {
        let is_proof = matches!(stream, PeerStream::Secured(_));
        if is_proof && self.shared.core.published().members.contains_key(&node) {
            self.proved_at.borrow_mut().insert(node, Key::of(from));
        }
    }

    fn answer(&self, cluster: ClusterId, node: NodeId, hello: &PeerHello, link: u64) -> Answer {
        if hello.link == LinkKind::Bootstrap {
            return self.answer_bootstrap(node, hello);
        }
        let removed = self.removed.borrow();
        if let Err(refusal) = check(&self.shared, &removed, cluster, node, hello) {
            return Answer::Refused(refusal);
        }
        if hello.link == LinkKind::Raft {
            let alive = Alive { boot: hello.boot, heard_at: Instant::now(), link };
            if !self.newest.begin(node, alive) {
                let text = format!(
                    "another process runs as node {node} and is connected: stop one of them"
                );
                return Answer::Refused(Refusal::new(RefusalCode::DuplicateNode, text));
            }
        }
        Answer::Welcome
    }

    /// Returns the state that the replica has applied; `None` when the plane has ended.
    async fn record(&self) -> Option<Record> {
        let (answer, answered) = oneshot::channel();
        self.inbox.send(Event::RecordWanted { answer }).await;
        answered.await.ok()
    }

    /// Answers a node with an empty directory. If that directory belongs to a member of the
    /// cluster, the node gets the current state. Such a node is a first member that missed the
    /// founding, or a member that was added since. All other empty directories are refused.
    fn answer_bootstrap(&self, node: NodeId, hello: &PeerHello) -> Answer {
        if let Err(refusal) = check_name(&self.shared, node, hello) {
            return Answer::Refused(refusal);
        }
        let published = self.shared.core.published();
        let known = published.members.get(&node);
        match known {
            _ if self.removed.borrow().contains(&node) => {
                let text = format!("node id {node} was removed from the cluster");
                Answer::Refused(Refusal::new(RefusalCode::Removed, text))
            }
            Some(member) if member.store == hello.store => {
                match check_rolled_back(&self.shared, member, hello) {
                    Ok(()) => Answer::Admitted,
                    Err(refusal) => Answer::Refused(refusal),
                }
            }
            Some(member) => Answer::Refused(wrong_store(member)),
            None => {
                let text = format!(
                    "node {} belongs to cluster {} already, and node {node} is no member of it: \
                     start it with JOIN instead of BOOTSTRAP and add it with: epicepoch member add \
                     {node}={}; or correct PEERS",
                    self.shared.identity.node, published.cluster, hello.raft_addr
                );
                Answer::Refused(Refusal::new(RefusalCode::UnknownNode, text))
            }
        }
    }

    async fn send(
        &self,
        stream: &mut PeerStream,
        kind: FrameKind,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let mut frames = Vec::new();
        let cluster = self.shared.core.published().cluster;
        write_frame(&mut frames, kind, cluster, self.shared.identity.node, payload);
        timeout(HELLO_TIMEOUT, write_frames(stream, &mut frames)).await.is_ok_and(|w| w.is_ok())
    }

    /// Sends a refusal to a peer that uses another protocol version, in frames of that version.
    async fn refuse_version(&self, version: u8, stream: &mut PeerStream, refusal: &Refusal) {
        let mut frames = Vec::new();
        let cluster = self.shared.core.published().cluster;
        let me = self.shared.identity.node;
        let refused = FrameKind::Refused;
        write_frame_of(version, &mut frames, refused, cluster, me, |out| refusal.encode(out));
        // The write fails when the peer is gone, which does no harm.
        let _gone = timeout(HELLO_TIMEOUT, write_frames(stream, &mut frames)).await;
    }

    fn hand_to_worker(&self, node: NodeId, hello: PeerHello, stream: PeerStream) {
        match stream.detach() {
            Ok(stream) => self.workers.adopt_detached_link(node, hello, stream),
            Err(error) => tracing::warn!(%error, "a confirm link cannot be given to a worker"),
        }
    }

    async fn serve_raft(&self, node: NodeId, hello: PeerHello, stream: PeerStream, link: u64) {
        let member = Member {
            node,
            store: hello.store,
            raft_addr: hello.raft_addr.clone(),
            client_addr: hello.client_addr.clone(),
        };
        let (store, reads_intervals) = (hello.store, hello.reads_intervals);
        let peer = PeerBoot { node, boot: hello.boot, began: hello.position };
        self.inbox.send(Event::PeerHello { member, hello }).await;
        let cluster = self.shared.core.published().cluster;
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        let mut frames = Vec::new();
        loop {
            let Ok(read) = timeout(SILENCE_MAX, reader.next()).await else { break };
            let (header, payload) = match read {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(peer = node.0, %error, "a peer's link broke");
                    break;
                }
            };
            if (header.cluster, header.from) != (cluster, node) {
                tracing::warn!(peer = node.0, "a frame of another node or cluster: link closed");
                break;
            }
            let alive = Alive { boot: peer.boot, heard_at: Instant::now(), link };
            self.newest.record_heard(node, alive);
            // The link of a peer that was removed, or that is known by now to be rolled back, is
            // closed. The peer dials again and then gets the refusal.
            let is_rolled_back = self.shared.core.check_peer(peer).is_err();
            if is_rolled_back || self.removed.borrow().contains(&node) {
                break;
            }
            match header.kind {
                FrameKind::Raft => match RaftMessage::decode(payload) {
                    Ok(message) => {
                        self.inbox.send(Event::Message { from: node, store, message }).await;
                    }
                    Err(error) => {
                        tracing::warn!(peer = node.0, %error, "a malformed Raft message: link closed");
                        break;
                    }
                },
                FrameKind::Ping => {
                    let Ok(Ping { sent_ns }) = Ping::decode(payload) else { break };
                    let pong = pong(&self.shared, &self.faults, sent_ns, reads_intervals);
                    let me = self.shared.identity.node;
                    write_frame(&mut frames, FrameKind::Pong, cluster, me, |out| pong.encode(out));
                    // A peer that never reads must not hold up the end of its link.
                    let write = timeout(SILENCE_MAX, write_frames(&mut writer, &mut frames));
                    if !matches!(write.await, Ok(Ok(()))) {
                        break;
                    }
                }
                _ => break,
            }
        }
        self.close(node, link).await;
    }

    /// Forgets a link that has ended, and reports its end if it was the newest of its node.
    async fn close(&self, node: NodeId, link: u64) {
        if self.newest.end(node, link) {
            self.inbox.send(Event::Closed { node }).await;
        }
    }
}

/// The answer to a ping. A peer that does not read the interval in it would close the link.
fn pong(shared: &NodeShared, faults: &Faults, sent_ns: u64, reads_intervals: bool) -> Pong {
    let interval = shared.intervals.told().filter(|_| reads_intervals);
    Pong { sent_ns, wall_ns: wall_ns(faults), position: shared.core.positions().own, interval }
}

/// Whether accepts fail now, because descriptors or memory are missing. Every failure is counted.
/// The log has one line when the first accept fails, and one when accepts succeed again.
#[derive(Debug, Default)]
struct Exhaustion {
    is_present: bool,
}

impl Exhaustion {
    fn handle_failure(&mut self, error: &io::Error, metrics: &Metrics) {
        metrics.accept_failures.add(1);
        if !std::mem::replace(&mut self.is_present, true) {
            tracing::warn!(%error, "a peer's connection cannot be accepted; raise the descriptor \
                limit (ulimit -n)");
        }
    }

    fn handle_accepted(&mut self) {
        if std::mem::take(&mut self.is_present) {
            tracing::info!("connections of peers are accepted again");
        }
    }
}

/// The last refusal of each peer. It is logged once, however often the peer tries again.
#[derive(Default)]
struct LoggedRefusals {
    last: RefCell<BTreeMap<NodeId, RefusalCode>>,
}

impl LoggedRefusals {
    /// Logs a refusal: a new one as a warning, a repeated one as a debug line. A peer with a wrong
    /// certificate can claim any id. So its refusal is always a debug line; the log of denials
    /// reports it, at most once a second.
    fn log(&self, from: SocketAddr, node: NodeId, refusal: &Refusal) {
        if refusal.code == RefusalCode::WrongCertificate {
            tracing::debug!(addr = %from, peer = node.0, %refusal, "a peer is refused");
            return;
        }
        let mut refused = self.last.borrow_mut();
        if refused.len() >= LOGGED_MAX && !refused.contains_key(&node) {
            refused.clear();
        }
        if refused.insert(node, refusal.code) == Some(refusal.code) {
            tracing::debug!(addr = %from, peer = node.0, %refusal, "a peer is refused again");
        } else {
            tracing::warn!(addr = %from, peer = node.0, %refusal, "a peer is refused");
        }
    }
}

/// The answer to a hello.
enum Answer {
    Welcome,
    Admitted,
    Refused(Refusal),
}

#[cfg(test)]
mod tests {
    use RefusalCode::{Removed, UnknownNode, WrongCertificate};

    use epicepoch_core::interval::Opening;
    use epicepoch_core::publication::Published;
    use epicepoch_wire::{Epoch, Mode};

    use super::super::fixture::{logged, shared_with};
    use super::*;

    #[test]
    fn a_link_that_ends_before_its_welcome_leaves_the_older_one_in_place() {
        let (links, node, now) = (Newest::default(), NodeId(2), Instant::now());
        let at = |link, boot, ms| Alive {
            boot: BootId(boot),
            heard_at: now + Duration::from_millis(ms),
            link,
        };
        assert!(links.begin(node, at(1, 7, 0)));
        assert!(links.begin(node, at(2, 7, 100)), "the same process connects again");
        assert!(!links.begin(node, at(3, 8, 200)), "another process, while the first is heard");
        links.record_heard(node, at(1, 7, 300));
        assert!(links.begin(node, at(4, 8, 700)), "nothing was heard on the newest link");
        assert!(links.end(node, 4) && !links.end(node, 1), "its welcome was not sent");

        links.record_heard(node, at(1, 7, 800));
        assert!(!links.begin(node, at(5, 8, 900)), "the older link counts again");
        assert!(links.end(node, 1), "its end is reported");
        assert!(links.0.borrow().is_empty());
    }

    #[test]
    fn only_a_peer_that_reads_intervals_is_told_one() {
        let shared = shared_with(|config| config.intervals.source = Some("fixed=1ms".to_owned()));
        let told = |reads_intervals| pong(&shared, &Faults::none(), 7, reads_intervals).interval;
        assert_eq!((told(true), told(false)), (None, None), "quorum mode");
        shared.intervals.set_voters([shared.identity.node].into_iter());
        let nothing = Published::nothing(shared.identity);
        let opening = Some(Opening { ceiling: Epoch(1), change: 1 });
        let published = Published { mode: Mode::Interval, opening, ..nothing };
        assert_eq!(shared.intervals.sample(&published), Ok(()));
        let (earliest_ns, latest_ns) = told(true).unwrap();
        assert!(latest_ns - earliest_ns >= 2_000_000);
        assert_eq!(told(false), None);
        // An older node reads the answer that it gets.
        let mut bytes = Vec::new();
        pong(&shared, &Faults::none(), 7, false).encode(&mut bytes);
        assert_eq!(bytes.len(), 24);
    }

    #[test]
    fn accepts_that_fail_are_all_counted_and_logged_once_until_one_succeeds() {
        let (mut exhaustion, metrics) = (Exhaustion::default(), Metrics::new(1));
        let error = io::Error::other("too many open files");
        let lines = logged(|| {
            exhaustion.handle_accepted();
            for _ in 0..20 {
                exhaustion.handle_failure(&error, &metrics);
            }
            exhaustion.handle_accepted();
            exhaustion.handle_accepted();
            exhaustion.handle_failure(&error, &metrics);
        });
        let failed = "WARN a peer's connection cannot be accepted; raise the descriptor limit \
                      (ulimit -n) error=too many open files";
        assert_eq!(lines, [failed, "INFO connections of peers are accepted again", failed]);
        assert_eq!(metrics.accept_failures.load(), 21);
    }

    #[test]
    fn a_refusal_is_logged_when_it_is_new() {
        let refusals = LoggedRefusals::default();
        let from = SocketAddr::from(([127, 0, 0, 1], 5));
        let log = |node: u64, code| {
            let refusal = Refusal::new(code, "go away");
            let lines = logged(|| refusals.log(from, NodeId(node), &refusal));
            let begins = format!("WARN a peer is refused addr={from} peer={node} refusal=go away");
            assert!(lines.iter().all(|line| line.starts_with(&begins)), "{lines:?}");
            lines.len()
        };
        assert_eq!([2, 3, 2].map(|node| log(node, Removed)), [1, 1, 0]);
        assert_eq!([UnknownNode, UnknownNode, Removed].map(|code| log(2, code)), [1, 0, 1]);
        // A stranger can claim any id, so its refusals do not make a node's own ones new.
        assert_eq!([WrongCertificate, WrongCertificate, Removed].map(|code| log(2, code)), [0; 3]);
        let last = LOGGED_MAX as u64 + 1;
        assert_eq!((4..=last).map(|node| log(node, Removed)).sum::<usize>(), LOGGED_MAX - 2);
        assert_eq!([2, last].map(|node| log(node, Removed)), [0, 0], "all are remembered");
        assert_eq!([last + 1, 2].map(|node| log(node, Removed)), [1, 1], "all were forgotten");
    }
}
