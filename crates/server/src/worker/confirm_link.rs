//! One confirm link from this worker to another member: connects, says who it is, checks who
//! answers, carries questions out and answers back, and connects again when it broke. It never
//! holds up the worker: a question is written at once or queued, and a queue that grows too long
//! ends the link.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use epicepoch_core::positions::Positions;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::frame::{FrameKind, Header, write_frame};
use epicepoch_wire::hello::{Hello, LinkKind, Refusal};
use epicepoch_wire::{BootId, DecodeError, NodeId, StorePosition};
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::sequencer::Sequencer;
use super::signal::Signal;
use crate::consensus::introduction::check_position;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::peers;
use crate::peers::stream::{PeerReader, PeerWriter};

/// Longest time to open a connection: a peer on the other side of the world answers in a third.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time for hello and welcome.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// First pause before another attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest pause before another attempt. A peer that comes back also opens links of its own, and
/// each cuts the pause short.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A connection that ended sooner has shown nothing: a round trip between far places takes 80 ms.
const LASTED_MIN: Duration = Duration::from_millis(100);
/// Bytes that may wait to be sent on a link, three thousand questions: more is a link that hangs.
const OUT_LEN_MAX: usize = 256 << 10;
/// Answers taken in before other links and clients get their turn.
const REPLIES_PER_TURN_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    /// The member at the other end.
    pub(crate) member: Member,
    pipe: RefCell<Option<Pipe>>,
    /// Questions without an answer: every one gets exactly one.
    outstanding: Cell<u64>,
    /// When the last answer came, or the first of the outstanding questions was asked.
    progress_ns: Cell<u64>,
    is_removed: Cell<bool>,
    /// The run at the other end, and how far its data directory had come when it began.
    run: Cell<(BootId, StorePosition)>,
    retry: Signal,
    flush: Signal,
    hang_up: Signal,
}

/// The connected link, from the side of those who send.
#[derive(Debug)]
struct Pipe {
    stream: Rc<PeerWriter>,
    out: Vec<u8>,
}

/// Why a link is not connected.
#[derive(Debug, Error)]
#[non_exhaustive]
enum LinkError {
    /// The member cannot be reached; tried again.
    #[error("no connection: {0}")]
    Connect(#[from] io::Error),
    /// The member said nothing in time; tried again.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The connection broke or carried what is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The member sent a payload that is none.
    #[error("malformed payload: {0}")]
    Payload(#[from] DecodeError),
    /// The member does not take this node for a member: its text says why.
    #[error("refused by the member: {0}")]
    Refused(Refusal),
    /// Somebody else answers at the member's address: correct `RAFT_ADDR` or `PEERS`.
    #[error("somebody else answers at this address: node {node}, data directory {store}")]
    Stranger { node: NodeId, store: String },
    /// The member's data directory was set back to an older state; the text says what to do.
    #[error("{0}")]
    SetBack(String),
    /// The connection ended, or was ended by this node.
    #[error("the connection ended")]
    Ended,
    /// The member sent a frame that does not belong here.
    #[error("an unexpected frame: {0:?}")]
    Unexpected(FrameKind),
}

impl Link {
    /// A link that is not connected yet.
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            pipe: RefCell::new(None),
            outstanding: Cell::new(0),
            progress_ns: Cell::new(0),
            is_removed: Cell::new(false),
            run: Cell::default(),
            retry: Signal::default(),
            flush: Signal::default(),
            hang_up: Signal::default(),
        }
    }

    /// Whether it is connected.
    pub(crate) fn is_up(&self) -> bool {
        self.pipe.borrow().is_some()
    }

    /// Sends a question: at once if the socket takes it, else as soon as it does. Without a
    /// connection it is dropped: the newest is asked again when there is one.
    pub(crate) fn send(&self, frame: &[u8], now_ns: u64) {
        let mut pipe = self.pipe.borrow_mut();
        let Some(Pipe { stream, out }) = pipe.as_mut() else { return };
        if self.outstanding.get() == 0 {
            self.progress_ns.set(now_ns);
        }
        self.outstanding.set(self.outstanding.get() + 1);
        // Behind what waits: written at once, it would land inside an earlier frame.
        let written = if out.is_empty() {
            match stream.try_write(frame) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => return self.hang_up.set(),
            }
        } else {
            0
        };
        if out.len() + frame.len() > OUT_LEN_MAX {
            return self.hang_up.set();
        }
        if written < frame.len() {
            out.extend_from_slice(&frame[written..]);
            self.flush.set();
        }
    }

    /// Ends the link for good.
    pub(crate) fn remove(&self) {
        self.is_removed.set(true);
        self.hang_up.set();
        self.retry.set();
    }

    /// Cuts the pause before the next attempt short.
    pub(crate) fn nudge(&self) {
        self.retry.set();
    }

    /// Ends the connection if a question has been without an answer for `silence_ns_max`.
    pub(crate) fn close_if_silent(&self, now_ns: u64, silence_ns_max: u64) {
        let silence_ns = now_ns.saturating_sub(self.progress_ns.get());
        if self.outstanding.get() > 0 && silence_ns >= silence_ns_max {
            self.hang_up.set();
        }
    }

    /// Ends the connection if the run at the other end has been found set back to an older state
    /// since it was opened: its yeses count no more, and a new connection is refused (S8).
    pub(crate) fn close_if_set_back(&self, positions: &Positions) {
        let (boot, began) = self.run.get();
        if self.is_up() && positions.check(self.member.node, boot, began).is_err() {
            self.hang_up.set();
        }
    }

    /// Keeps the link connected until it is removed.
    pub(crate) async fn run(self: Rc<Self>, sequencer: Rc<Sequencer>) {
        let node = self.member.node;
        let mut backoff = Backoff::default();
        let mut is_known_down = false;
        while !self.is_removed.get() {
            let result = match self.connect(&sequencer).await {
                Ok((reader, stream)) => {
                    tracing::debug!(%node, worker = %sequencer.worker, "confirm link connected");
                    is_known_down = false;
                    let welcomed_at = Instant::now();
                    let ended = self.converse(&sequencer, reader, stream).await;
                    backoff.served(welcomed_at.elapsed());
                    self.pipe.replace(None);
                    sequencer.links.count();
                    ended
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result
                && !std::mem::replace(&mut is_known_down, true)
            {
                let raft_addr = &self.member.raft_addr;
                tracing::info!(%node, %raft_addr, worker = %sequencer.worker, %error,
                    "confirm link down; trying again");
            }
            self.pause(backoff.next()).await;
        }
    }

    /// Waits before the next attempt, by chance between half of `backoff` and all of it, so that
    /// nodes that lost each other together do not come back together.
    async fn pause(&self, backoff: Duration) {
        let backoff = backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
        // A nudge cuts it short, but not to nothing: two nodes that nudge and refuse each other
        // must not do so without end.
        sleep(backoff / 4).await;
        tokio::select! {
            () = sleep(backoff / 4 * 3) => {}
            () = self.retry.wait() => {}
        }
    }

    async fn connect(
        &self,
        sequencer: &Sequencer,
    ) -> Result<(FrameReader<PeerReader>, PeerWriter), LinkError> {
        let (shared, node) = (&sequencer.shared, self.member.node);
        let connecting = peers::connect(shared, &self.member.raft_addr, node);
        let stream = timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| LinkError::Silent(CONNECT_TIMEOUT))??;
        prepare(stream.socket()?)?;
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        timeout(HANDSHAKE_TIMEOUT, self.shake_hands(sequencer, &mut reader, &mut writer))
            .await
            .map_err(|_| LinkError::Silent(HANDSHAKE_TIMEOUT))??;
        Ok((reader, writer))
    }

    async fn shake_hands(
        &self,
        sequencer: &Sequencer,
        reader: &mut FrameReader<PeerReader>,
        writer: &mut PeerWriter,
    ) -> Result<(), LinkError> {
        let shared = &sequencer.shared;
        let (cluster, history) = {
            let published = &sequencer.view().published;
            (published.cluster, published.history)
        };
        let hello = shared.hello(LinkKind::Confirm(sequencer.worker), self.member.node);
        let mut out = Vec::new();
        write_frame(&mut out, FrameKind::Hello, cluster, shared.identity.node, |out| {
            hello.encode(out);
        });
        write_frames(writer, &mut out).await?;
        let (header, payload) = reader.next().await?.ok_or(LinkError::Ended)?;
        match header.kind {
            FrameKind::Welcome => {}
            FrameKind::Refused => return Err(LinkError::Refused(Refusal::decode(payload)?)),
            other => return Err(LinkError::Unexpected(other)),
        }
        let welcome = Hello::decode(payload)?;
        let is_expected = header.cluster == cluster
            && header.from == self.member.node
            && welcome.history == history
            && welcome.store == self.member.store
            && welcome.to == shared.identity.node
            && welcome.cluster_name == shared.config.cluster_name;
        if is_expected {
            self.run.set((welcome.boot, welcome.position));
            return check_position(shared, &self.member, &welcome).map_err(LinkError::SetBack);
        }
        Err(LinkError::Stranger { node: header.from, store: welcome.store.to_string() })
    }

    /// Carries frames both ways until the connection ends.
    async fn converse(
        &self,
        sequencer: &Sequencer,
        mut reader: FrameReader<PeerReader>,
        writer: PeerWriter,
    ) -> Result<(), LinkError> {
        let writer = Rc::new(writer);
        // Whatever was wrong with an earlier connection is over.
        self.hang_up.clear();
        if self.is_removed.get() {
            return Err(LinkError::Ended);
        }
        self.outstanding.set(0);
        self.pipe.replace(Some(Pipe { stream: writer.clone(), out: Vec::new() }));
        let cluster = sequencer.view().published.cluster;
        sequencer.links.count();
        sequencer.ask_again(self.member.node);
        let mut replies_in_a_row = 0;
        loop {
            tokio::select! {
                biased;
                () = self.hang_up.wait() => return Err(LinkError::Ended),
                flushed = self.flush_out(&writer) => flushed?,
                frame = reader.next() => {
                    let (header, payload) = frame?.ok_or(LinkError::Ended)?;
                    if (header.cluster, header.from) != (cluster, self.member.node) {
                        let store = String::from("another");
                        return Err(LinkError::Stranger { node: header.from, store });
                    }
                    self.handle_frame(sequencer, &header, payload)?;
                    replies_in_a_row += 1;
                    if replies_in_a_row >= REPLIES_PER_TURN_MAX {
                        replies_in_a_row = 0;
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    fn handle_frame(
        &self,
        sequencer: &Sequencer,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), LinkError> {
        if header.kind != FrameKind::ConfirmReply {
            return Err(LinkError::Unexpected(header.kind));
        }
        let reply = ConfirmReply::decode(payload)?;
        if reply.store != self.member.store {
            let store = reply.store.to_string();
            return Err(LinkError::Stranger { node: header.from, store });
        }
        self.outstanding.set(self.outstanding.get().saturating_sub(1));
        self.progress_ns.set(sequencer.shared.clock.monotonic_ns());
        if reply.worker == sequencer.worker {
            sequencer.handle_reply(header.from, &reply);
        } else {
            sequencer.links.hand_over(header.from, reply);
        }
        Ok(())
    }

    /// Writes what the socket did not take at once. Never ends before there was something.
    async fn flush_out(&self, writer: &PeerWriter) -> io::Result<()> {
        loop {
            let is_empty = self.pipe.borrow().as_ref().is_none_or(|pipe| pipe.out.is_empty());
            if is_empty {
                self.flush.wait().await;
                continue;
            }
            writer.writable().await?;
            // None when it was not as writable as it seemed.
            let written = poll_fn(|context| {
                let mut pipe = self.pipe.borrow_mut();
                let Some(Pipe { stream, out }) = pipe.as_mut() else {
                    return Poll::Ready(Ok(None));
                };
                let written = ready!(stream.poll_send(context, out))?;
                if let Some(written) = written {
                    out.drain(..written);
                }
                Poll::Ready(Ok::<_, io::Error>(written))
            });
            if written.await? == Some(0) {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
    }
}

/// The pauses between attempts: each twice the one before it. A connection that lasted longer than
/// the pause that comes next begins anew, however many were cut before it: a link that is cut again
/// and again must be back before the node that needs it leads. A peer that ends every connection
/// within [`LASTED_MIN`] is dialled ever more seldom.
#[derive(Debug)]
struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: BACKOFF_MIN }
    }
}

impl Backoff {
    /// A connection has ended that was served for so long after its welcome.
    fn served(&mut self, lasted: Duration) {
        if lasted > self.next.max(LASTED_MIN) {
            *self = Self::default();
        }
    }

    /// The pause before the next attempt.
    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(BACKOFF_MAX);
        pause
    }
}

/// Sets a peer connection up: frames leave at once, and a peer that vanished without a word is
/// noticed within seconds even where nothing is asked.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Silence after which the kernel asks whether the peer is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// Pause between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Questions without an answer that end the connection.
const KEEPALIVE_RETRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use epicepoch_wire::StoreId;
    use epicepoch_wire::hello::RefusalCode;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::peers::stream::PeerStream;

    #[tokio::test(flavor = "current_thread")]
    async fn a_question_behind_a_queue_is_not_written_into_the_middle_of_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stream = TcpStream::connect(addr).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let (_reader, writer) = PeerStream::Plain(stream).into_split();
        writer.writable().await.unwrap();
        let member = Member {
            node: NodeId(2),
            store: StoreId(2),
            raft_addr: addr.to_string(),
            client_addr: String::new(),
        };
        let link = Link::new(member);
        let writer = Rc::new(writer);
        // The first half of one frame has gone out; its rest waits.
        assert_eq!(writer.try_write(b"AA").unwrap(), 2);
        link.pipe.replace(Some(Pipe { stream: writer.clone(), out: b"aa".to_vec() }));
        link.send(b"BBbb", 0);
        let mut got = [0; 8];
        tokio::select! {
            read = other.read_exact(&mut got) => assert_eq!(read.unwrap(), 8),
            _ = link.flush_out(&writer) => unreachable!("a link is flushed for ever"),
        }
        assert_eq!(&got, b"AAaaBBbb");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_link_ends_when_its_peer_is_found_set_back() {
        const BOOT: BootId = BootId(7);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let raft_addr = listener.local_addr().unwrap().to_string();
        let stream = TcpStream::connect(&raft_addr).await.unwrap();
        let (node, store, client_addr) = (NodeId(2), StoreId(2), String::new());
        let link = Link::new(Member { node, store, raft_addr, client_addr });
        let (_reader, writer) = PeerStream::Plain(stream).into_split();
        link.pipe.replace(Some(Pipe { stream: Rc::new(writer), out: Vec::new() }));
        link.run.set((BOOT, StorePosition(5)));
        let mut positions = Positions::default();
        positions.greet(node, BOOT, StorePosition(5)).unwrap();
        positions.hear(node, BOOT, StorePosition(9), StorePosition(5)).unwrap();
        link.close_if_set_back(&positions);
        assert!(!link.hang_up.is_set(), "a peer that goes on");
        // It answers with less than was known of it when it was asked.
        positions.hear(node, BOOT, StorePosition(6), StorePosition(9)).unwrap_err();
        link.close_if_set_back(&positions);
        assert!(link.hang_up.is_set());
    }

    #[test]
    fn pauses_grow_while_nothing_lasts_and_begin_anew_after_what_did() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let grown: Vec<Duration> = (0..9).map(|_| backoff.next()).collect();
        assert_eq!(grown, [10, 20, 40, 80, 160, 320, 640, 1000, 1000].map(ms));
        // Welcomed, and ended at once, again and again.
        backoff.served(ms(1));
        assert_eq!(backoff.next(), BACKOFF_MAX);
        backoff.served(ms(1001));
        assert_eq!(backoff.next(), BACKOFF_MIN);
        // A round trip of 80 ms, and ended by the first answer.
        backoff.served(ms(80));
        assert_eq!(backoff.next(), 2 * BACKOFF_MIN);
        // Cut every 300 ms: never more than the shortest pause, though none lasts a second.
        for _ in 0..20 {
            backoff.served(ms(300));
            assert_eq!(backoff.next(), BACKOFF_MIN);
        }
    }

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let refusal = Refusal::new(RefusalCode::NotBootstrapped, "no cluster here yet");
        let text = LinkError::Refused(refusal).to_string();
        assert_eq!(text, "refused by the member: no cluster here yet (NotBootstrapped)");
    }
}
