//! Connections from peers. Each says first who it is; then it is handed to whom it is for: Raft
//! messages to the replica, confirm links to a worker. Garbage ends the connection and nothing
//! else.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::durable::Record;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::frame::{FrameKind, VERSION, write_frame, write_frame_of};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::hello::{Hello, LinkKind, Refusal, RefusalCode};
use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{BootId, ClusterId, DecodeError, NodeId};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::introduction::{check, check_name, check_set_back, wrong_store};
use super::plane::{Event, Inbox};
use super::wall::wall_ns;
use crate::abort::AbortOnPanic;
use crate::faults::Faults;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::origins::Key;
use crate::peers;
use crate::peers::stream::PeerStream;
use crate::peers::{greeted, greetings};
use crate::shared::NodeShared;
use crate::tls::handshake::{Beginner, Handshakes};
use crate::worker::Workers;

/// How long a connection may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// A Raft link that was heard within this time is alive: another process of its id is refused.
const ALIVE_WITHIN: Duration = Duration::from_millis(500);
/// After accept failed (out of descriptors, for instance), wait so long.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Refused nodes that are remembered as told.
const TOLD_MAX: usize = 64;
/// Silence after which an inbound Raft link is closed; its peer pings all the time.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What the accepted connections share.
pub(super) struct Accepted {
    pub(super) shared: Arc<NodeShared>,
    pub(super) workers: Workers,
    pub(super) faults: Faults,
    pub(super) inbox: Rc<Inbox>,
    /// Ids that were removed from the cluster, as applied here.
    pub(super) removed: RefCell<BTreeSet<NodeId>>,
    /// Inbound Raft links: whose, of which run, and when last heard.
    alive: RefCell<BTreeMap<NodeId, Alive>>,
    /// Who was refused for what: each is told of once, however often it tries again.
    told: RefCell<BTreeMap<NodeId, RefusalCode>>,
    /// Connections that have not said yet who they are.
    greetings: Handshakes,
    /// From where members have come that proved who they are.
    ///
    /// Invariant: every id was a member's when it was put here, so there are few.
    proved_at: RefCell<BTreeMap<NodeId, Key>>,
}

#[derive(Clone, Copy)]
struct Alive {
    boot: BootId,
    heard_at: Instant,
    link: u64,
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
            alive: RefCell::default(),
            told: RefCell::default(),
            greetings: greetings(),
            proved_at: RefCell::default(),
        })
    }

    /// Accepts connections for ever.
    pub(super) async fn run(self: Rc<Self>, listener: Rc<TcpListener>) {
        let _abort = AbortOnPanic("peer listener");
        let this = self.clone();
        tokio::task::spawn_local(async move {
            let _abort = AbortOnPanic("turns of peers");
            this.greetings.hand_out_turns().await;
        });
        let mut count = 0_u64;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    count += 1;
                    let this = self.clone();
                    tokio::task::spawn_local(async move { this.serve(stream, from, count).await });
                    // One in a turn of the loop: however many come, Raft has its turns between.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a peer's connection cannot be accepted");
                    sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    async fn serve(self: Rc<Self>, stream: TcpStream, from: SocketAddr, link: u64) {
        let _abort = AbortOnPanic("link from a peer");
        let who = Beginner::at(Some(from.ip()), self.is_member_at(from.ip()));
        let greeting = async {
            let mut reader = FrameReader::new(peers::accept(&self.shared, stream).await?);
            let hello = match read_hello(&mut reader).await {
                Ok(hello) => hello,
                Err(NoHello::Version(version)) => {
                    let refusal = other_version(self.shared.identity.node, version);
                    self.tell_refused(from, NodeId(0), &refusal);
                    self.say_to(version, &mut reader.into_stream(), &refusal).await;
                    return None;
                }
                Err(NoHello::Other) => return None,
            };
            Some((hello, reader.into_stream()))
        };
        let ended = timeout(HELLO_TIMEOUT, self.greetings.advance(who, greeting)).await;
        let said = greeted(ended, &self.shared, from.ip()).flatten();
        let Some(((cluster, node, hello), mut stream)) = said else {
            tracing::debug!(%from, "a connection on the peer port said no hello");
            return;
        };
        let answer = match peers::check_node(&self.shared, &stream, node) {
            Ok(()) => self.answer(cluster, node, &hello, link),
            Err(refusal) => Answer::Refused(refusal),
        };
        match answer {
            Answer::Admitted => {
                if let Some(record) = self.record().await {
                    self.say(&mut stream, FrameKind::Admitted, |out| record.encode(out)).await;
                }
            }
            Answer::Refused(refusal) => {
                self.tell_refused(from, node, &refusal);
                self.say(&mut stream, FrameKind::Refused, |out| refusal.encode(out)).await;
            }
            Answer::Welcome => {
                self.note_proved(node, from.ip(), &stream);
                let welcome = self.shared.hello(hello.link, node);
                if !self.say(&mut stream, FrameKind::Welcome, |out| welcome.encode(out)).await {
                    return;
                }
                match hello.link {
                    LinkKind::Confirm(_) => self.hand_to_worker(node, hello, stream),
                    LinkKind::Raft => self.serve_raft(node, hello, stream, link).await,
                    LinkKind::Bootstrap => {}
                }
            }
        }
    }

    /// Whether a member is known to be at `from`: by its address in the cluster's state, or because
    /// it has shown its certificate from there.
    fn is_member_at(&self, from: IpAddr) -> bool {
        let members = &self.shared.core.published().members;
        let proved_at = self.proved_at.borrow();
        peers::is_named_in(members.values().map(|member| &*member.raft_addr), from)
            || members.keys().any(|node| proved_at.get(node) == Some(&Key::of(from)))
    }

    /// Remembers where a member has proved to be.
    fn note_proved(&self, node: NodeId, from: IpAddr, stream: &PeerStream) {
        let is_proof = matches!(stream, PeerStream::Secured(_));
        if is_proof && self.shared.core.published().members.contains_key(&node) {
            self.proved_at.borrow_mut().insert(node, Key::of(from));
        }
    }

    fn answer(&self, cluster: ClusterId, node: NodeId, hello: &Hello, link: u64) -> Answer {
        if hello.link == LinkKind::Bootstrap {
            return self.answer_bootstrap(node, hello);
        }
        let removed = self.removed.borrow();
        if let Err(refusal) = check(&self.shared, &removed, cluster, node, hello) {
            return Answer::Refused(refusal);
        }
        if hello.link == LinkKind::Raft {
            let now = Instant::now();
            let alive = Alive { boot: hello.boot, heard_at: now, link };
            let mut links = self.alive.borrow_mut();
            let other = links.get(&node).filter(|other| {
                other.boot != hello.boot && other.heard_at.elapsed() < ALIVE_WITHIN
            });
            if other.is_some() {
                let text = format!(
                    "another process runs as node {node} and is connected: stop one of them"
                );
                return Answer::Refused(Refusal::new(RefusalCode::DuplicateNode, text));
            }
            links.insert(node, alive);
        }
        Answer::Welcome
    }

    /// A warning for what is new, and a word for who debugs for what is not. Whoever has another's
    /// certificate is told of already, at most once a second: he may claim any id.
    fn tell_refused(&self, from: SocketAddr, node: NodeId, refusal: &Refusal) {
        if refusal.code == RefusalCode::WrongCertificate {
            tracing::debug!(%from, node = node.0, %refusal, "a peer is refused");
            return;
        }
        let mut told = self.told.borrow_mut();
        if told.len() >= TOLD_MAX && !told.contains_key(&node) {
            told.clear();
        }
        if told.insert(node, refusal.code) == Some(refusal.code) {
            tracing::debug!(%from, node = node.0, %refusal, "a peer is refused again");
        } else {
            tracing::warn!(%from, node = node.0, %refusal, "a peer is refused");
        }
    }

    /// The state as it is applied now, from the replica.
    async fn record(&self) -> Option<Record> {
        let (answer, answered) = oneshot::channel();
        self.inbox.send(Event::RecordWanted { answer }).await;
        // Nobody answers when the plane has ended.
        answered.await.ok()
    }

    /// An empty directory gets the state that it begins with, if it is that of a member: a first
    /// member that missed the founding, or one that was added since. Every other one is refused.
    fn answer_bootstrap(&self, node: NodeId, hello: &Hello) -> Answer {
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
                match check_set_back(&self.shared, member, hello) {
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

    async fn say(
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

    /// Refuses a peer of another version, in frames of that version.
    async fn say_to(&self, version: u8, stream: &mut PeerStream, refusal: &Refusal) {
        let mut frames = Vec::new();
        let cluster = self.shared.core.published().cluster;
        let me = self.shared.identity.node;
        let refused = FrameKind::Refused;
        write_frame_of(version, &mut frames, refused, cluster, me, |out| refusal.encode(out));
        // It may be gone.
        let _unheard = timeout(HELLO_TIMEOUT, write_frames(stream, &mut frames)).await;
    }

    fn hand_to_worker(&self, node: NodeId, hello: Hello, stream: PeerStream) {
        match stream.pack() {
            Ok(stream) => self.workers.adopt_packed_link(node, hello, stream),
            Err(error) => tracing::warn!(%error, "a confirm link cannot be handed over"),
        }
    }

    async fn serve_raft(&self, node: NodeId, hello: Hello, stream: PeerStream, link: u64) {
        let member = Member {
            node,
            store: hello.store,
            raft_addr: hello.raft_addr.clone(),
            client_addr: hello.client_addr.clone(),
        };
        let store = hello.store;
        self.inbox.send(Event::Introduced { member, hello }).await;
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
                    tracing::debug!(node = node.0, %error, "a peer's link broke");
                    break;
                }
            };
            if (header.cluster, header.from) != (cluster, node) {
                tracing::warn!(node = node.0, "a frame of another node or cluster: link closed");
                break;
            }
            if let Some(alive) = self.alive.borrow_mut().get_mut(&node)
                && alive.link == link
            {
                alive.heard_at = Instant::now();
            }
            // It dials again, and is told.
            if self.removed.borrow().contains(&node) {
                break;
            }
            match header.kind {
                FrameKind::Raft => match RaftMessage::decode(payload) {
                    Ok(message) => {
                        self.inbox.send(Event::Message { from: node, store, message }).await;
                    }
                    Err(error) => {
                        tracing::warn!(node = node.0, %error, "no message: link closed");
                        break;
                    }
                },
                FrameKind::Ping => {
                    let Ok(Ping { sent_ns }) = Ping::decode(payload) else { break };
                    let position = self.shared.core.positions().own;
                    let pong = Pong { sent_ns, wall_ns: wall_ns(&self.faults), position };
                    let me = self.shared.identity.node;
                    write_frame(&mut frames, FrameKind::Pong, cluster, me, |out| pong.encode(out));
                    if write_frames(&mut writer, &mut frames).await.is_err() {
                        break;
                    }
                }
                _ => break,
            }
        }
        let is_last = self.alive.borrow().get(&node).is_some_and(|alive| alive.link == link);
        if is_last {
            self.alive.borrow_mut().remove(&node);
            self.inbox.send(Event::Closed { node }).await;
        }
    }
}

enum Answer {
    Welcome,
    Admitted,
    Refused(Refusal),
}

/// Why the first frame of a connection is no hello.
pub(super) enum NoHello {
    /// It is of another version of the protocol.
    Version(u8),
    /// It is something else, or nothing.
    Other,
}

/// The first frame of a connection, if it is a hello.
pub(super) async fn read_hello(
    reader: &mut FrameReader<PeerStream>,
) -> Result<(ClusterId, NodeId, Hello), NoHello> {
    let (header, payload) = match reader.next().await {
        Ok(Some(frame)) => frame,
        Err(FrameError::Malformed(DecodeError::Version(version))) => {
            return Err(NoHello::Version(version));
        }
        Ok(None) | Err(_) => return Err(NoHello::Other),
    };
    if header.kind != FrameKind::Hello {
        return Err(NoHello::Other);
    }
    let hello = Hello::decode(payload).map_err(|_| NoHello::Other)?;
    Ok((header.cluster, header.from, hello))
}

/// What a peer of another version of the protocol is told. It knows the codes of its own version, so
/// the code is an old one, after which it tries again.
fn other_version(me: NodeId, version: u8) -> Refusal {
    let text = format!(
        "node {me} speaks version {VERSION} of the peer protocol, and this peer version {version}: \
         update the older one of the two"
    );
    Refusal::new(RefusalCode::NotBootstrapped, text)
}
