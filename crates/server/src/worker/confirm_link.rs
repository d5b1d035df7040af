//! One confirm link from this worker to another member. It connects, does the handshake, sends
//! questions and receives answers, and reconnects when the connection breaks. It never delays the
//! worker: a question is written at once or queued, and if the queue grows too long, the link ends.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use epicepoch_core::positions::PeerBoot;
use epicepoch_wire::confirm::ConfirmReply;
use epicepoch_wire::frame::{FrameKind, Header, write_frame};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal};
use epicepoch_wire::{DecodeError, NodeId};
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::link::{Link, Pipe};
use super::sequencer::Sequencer;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::peers;
use crate::peers::handshake::check_position;
use crate::security::tls::peer_stream::{PeerReader, PeerWriter};

/// The longest time to open a connection. A peer on the other side of the world answers in a third
/// of this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time for the handshake: hello and welcome.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The first pause before another attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest pause before another attempt. A peer that comes back also opens links of its own,
/// and each of them shortens the pause.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A connection must last at least this long to prove that the link works. A shorter one may have
/// ended with its first answer: a round trip between distant places takes 80 ms.
const LASTED_MIN: Duration = Duration::from_millis(100);
/// At most this many answers are handled before other links and clients get their turn.
const REPLIES_PER_TURN_MAX: usize = 256;

/// Why a link is not connected.
#[derive(Debug, Error)]
#[non_exhaustive]
enum LinkError {
    /// The member cannot be reached; the link tries again.
    #[error("no connection: {0}")]
    Connect(#[from] io::Error),
    /// The member did not answer in time; the link tries again.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The connection broke or carried malformed frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The member sent a payload that cannot be decoded.
    #[error("malformed payload: {0}")]
    Payload(#[from] DecodeError),
    /// The member refuses this node; the text of the refusal says why.
    #[error("refused by the member: {0}")]
    Refused(Refusal),
    /// Another node answers at the member's address: correct `RAFT_ADDR` or `PEERS`.
    #[error("somebody else answers at this address: node {node}, data directory {store}")]
    Stranger { node: NodeId, store: String },
    /// The member's data directory was rolled back to an older state; the text says what to do.
    #[error("{0}")]
    RolledBack(String),
    /// The other end or this node ended the connection.
    #[error("the connection ended")]
    Ended,
    /// The member sent a frame that does not belong on a confirm link.
    #[error("an unexpected frame: {0:?}")]
    Unexpected(FrameKind),
}

impl Link {
    /// Keeps the link connected until it is removed.
    pub(crate) async fn run(self: Rc<Self>, sequencer: Rc<Sequencer>) {
        let (node, worker) = (self.member.node, sequencer.worker.0);
        let mut backoff = Backoff::default();
        let mut is_known_down = false;
        while !self.is_removed.get() {
            let result = match self.connect(&sequencer).await {
                Ok((reader, stream)) => {
                    tracing::debug!(peer = node.0, worker, "confirm link connected");
                    is_known_down = false;
                    let welcomed_at = Instant::now();
                    let ended = self.converse(&sequencer, reader, stream).await;
                    backoff.served(welcomed_at.elapsed());
                    self.pipe.replace(None);
                    sequencer.links.count();
                    sequencer.ask_rest();
                    ended
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result
                && !std::mem::replace(&mut is_known_down, true)
            {
                let addr = &self.member.raft_addr;
                tracing::info!(
                    peer = node.0,
                    addr,
                    worker,
                    %error,
                    "confirm link down; trying again"
                );
            }
            self.pause(backoff.next()).await;
        }
    }

    /// Waits before the next attempt. The wait is random, between half of `backoff` and all of it.
    /// So nodes that lost their connections at the same moment do not reconnect at the same moment.
    async fn pause(&self, backoff: Duration) {
        let backoff = backoff.mul_f64(0.5 + fastrand::f64() / 2.0);
        // A nudge ends the wait early, but not before this first quarter is over. Otherwise two
        // nodes that nudge and refuse each other would do so without pause.
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
        let addr = &self.member.raft_addr;
        let connecting = peers::connect_link(shared, addr, node, &self.tried);
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
        write_frame(&mut out, FrameKind::PeerHello, cluster, shared.identity.node, |out| {
            hello.encode(out);
        });
        write_frames(writer, &mut out).await?;
        let (header, payload) = reader.next().await?.ok_or(LinkError::Ended)?;
        match header.kind {
            FrameKind::Welcome => {}
            FrameKind::Refused => return Err(LinkError::Refused(Refusal::decode(payload)?)),
            other => return Err(LinkError::Unexpected(other)),
        }
        let welcome = PeerHello::decode(payload)?;
        let is_expected = header.cluster == cluster
            && header.from == self.member.node
            && welcome.history == history
            && welcome.store == self.member.store
            && welcome.to == shared.identity.node
            && welcome.cluster_name == shared.config.cluster_name;
        if is_expected {
            self.boot.set((welcome.boot, welcome.position));
            self.welcomed.set(shared.addresses.book.turn());
            return check_position(shared, &self.member, &welcome).map_err(LinkError::RolledBack);
        }
        Err(LinkError::Stranger { node: header.from, store: welcome.store.to_string() })
    }

    /// Sends questions and receives answers until the connection ends.
    async fn converse(
        &self,
        sequencer: &Sequencer,
        mut reader: FrameReader<PeerReader>,
        writer: PeerWriter,
    ) -> Result<(), LinkError> {
        let writer = Rc::new(writer);
        // An earlier request to hang up was about the previous connection.
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
        let now_ns = sequencer.shared.clock.monotonic_ns();
        self.progress_ns.set(now_ns);
        let (boot, began) = self.boot.get();
        let voter = PeerBoot { node: header.from, boot, began };
        // If the answer is refused, the handshake of the next connection says what to do.
        let is_own = sequencer.links.is_own(&sequencer.shared.core, voter, reply, now_ns);
        if is_own.map_err(|_| LinkError::Ended)? {
            sequencer.handle_reply(voter.node, &reply);
        }
        Ok(())
    }

    /// Writes the bytes that the socket did not take at once. Ends only when a write fails.
    async fn flush_out(&self, writer: &PeerWriter) -> io::Result<()> {
        loop {
            let is_empty = self.pipe.borrow().as_ref().is_none_or(|pipe| pipe.out.is_empty());
            if is_empty {
                self.flush.wait().await;
                continue;
            }
            writer.writable().await?;
            // `written` is `None` when the socket takes nothing after all.
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

/// The pauses between attempts to connect; each is twice the one before. After a connection that
/// lasted longer than the next pause, the pauses begin again with the shortest, even if many
/// connections were cut before. The reason: a link that is often cut must be back before this node
/// becomes the leader and needs it. A peer that ends every connection within [`LASTED_MIN`] is
/// dialled less and less often.
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
    /// Records that a connection has ended that lasted for `lasted` after its welcome.
    fn served(&mut self, lasted: Duration) {
        if lasted > self.next.max(LASTED_MIN) {
            *self = Self::default();
        }
    }

    /// Returns the pause before the next attempt.
    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(BACKOFF_MAX);
        pause
    }
}

/// Prepares the socket of a peer connection: frames are sent at once, and the kernel notices within
/// seconds when the peer vanishes, even on an idle connection.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Silence after which the kernel sends a keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// Pause between two keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Unanswered keepalive probes after which the kernel ends the connection.
const KEEPALIVE_RETRIES: u32 = 3;

#[cfg(test)]
mod tests {
    use epicepoch_wire::StoreId;
    use epicepoch_wire::bootstrap::Member;
    use epicepoch_wire::peer_hello::RefusalCode;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::super::link::OUT_LEN_MAX;
    use super::*;
    use crate::security::tls::peer_stream::PeerStream;

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
        // The first half of one frame is sent, and its second half waits.
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

    #[test]
    fn pauses_grow_while_nothing_lasts_and_begin_anew_after_what_did() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let grown: Vec<Duration> = (0..9).map(|_| backoff.next()).collect();
        assert_eq!(grown, [10, 20, 40, 80, 160, 320, 640, 1000, 1000].map(ms));
        // A connection that is welcomed and then ended at once does not shorten the pause.
        backoff.served(ms(1));
        assert_eq!(backoff.next(), BACKOFF_MAX);
        backoff.served(ms(1001));
        assert_eq!(backoff.next(), BACKOFF_MIN);
        // This connection lasted 80 ms, one long round trip, and ended with the first answer. The
        // pauses go on growing.
        backoff.served(ms(80));
        assert_eq!(backoff.next(), 2 * BACKOFF_MIN);
        // These connections are cut every 300 ms. The pause stays the shortest one, although no
        // connection lasts a second.
        for _ in 0..20 {
            backoff.served(ms(300));
            assert_eq!(backoff.next(), BACKOFF_MIN);
        }
    }

    #[test]
    fn a_connection_must_last_longer_than_the_least_to_prove_the_link() {
        let mut backoff = Backoff::default();
        let grown = (backoff.next(), backoff.next());
        backoff.served(LASTED_MIN);
        assert_eq!(backoff.next(), 2 * grown.1, "not longer");
        backoff.served(LASTED_MIN + Duration::from_nanos(1));
        assert_eq!(backoff.next(), BACKOFF_MIN);
    }

    fn link_to(addr: String) -> Link {
        let (node, store, client_addr) = (NodeId(2), StoreId(2), String::new());
        Link::new(Member { node, store, raft_addr: addr, client_addr })
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pause_lasts_for_half_of_its_time_at_least_and_a_nudge_leaves_a_quarter() {
        let link = link_to("n2:1".to_owned());
        let ms = Duration::from_millis;
        for _ in 0..4 {
            let start = Instant::now();
            link.pause(ms(20)).await;
            assert!(start.elapsed() >= ms(10), "{:?}", start.elapsed());
        }
        link.nudge();
        let start = Instant::now();
        tokio::select! {
            biased;
            () = link.pause(ms(4_000)) => {}
            // Half of the time is the shortest pause without a nudge.
            () = sleep(ms(2_000)) => panic!("the nudge does not end the pause"),
        }
        assert!(start.elapsed() >= ms(500), "{:?}", start.elapsed());
        // A link that is removed does not wait for the rest either.
        link.remove();
        assert!(link.is_removed.get() && link.hang_up.is_set() && link.retry.is_set());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_to_a_peer_sends_at_once_and_notices_when_the_peer_vanishes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream).unwrap();
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_RETRIES);
    }

    /// The peer does not read. The link queues what the kernel does not take, up to a limit.
    #[tokio::test(flavor = "current_thread")]
    async fn a_link_whose_peer_does_not_read_queues_questions_and_then_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stream = TcpStream::connect(addr).await.unwrap();
        let (other, _) = listener.accept().await.unwrap();
        let (_reader, writer) = PeerStream::Plain(stream).into_split();
        writer.writable().await.unwrap();
        let link = link_to(addr.to_string());
        link.pipe.replace(Some(Pipe { stream: Rc::new(writer), out: Vec::new() }));
        let queued = || link.pipe.borrow().as_ref().map_or(0, |pipe| pipe.out.len());
        let frame = [7; 1 << 10];
        link.send(&frame, 10);
        assert!(queued() == 0 && !link.flush.is_set(), "the kernel took it");
        let mut sent = 1_u64;
        while !link.hang_up.is_set() {
            link.send(&frame, 10 + sent);
            sent += 1;
            assert!(queued() <= OUT_LEN_MAX);
            assert!(sent < 1 << 20, "it does not end");
        }
        assert!(queued() + frame.len() > OUT_LEN_MAX, "it ends only when the queue is full");
        assert_eq!((link.outstanding.get(), link.progress_ns.get()), (sent, 10));
        // Only an answer that is missing for too long ends a link: an idle link stays.
        link.hang_up.clear();
        link.outstanding.set(0);
        link.close_if_silent(1 << 60, 30);
        assert!(!link.hang_up.is_set());
        // The next question begins a new wait only when all were answered.
        link.pipe.borrow_mut().as_mut().unwrap().out.clear();
        link.send(&frame, 5);
        link.close_if_silent(34, 30);
        assert_eq!((link.outstanding.get(), link.progress_ns.get()), (1, 5));
        assert!(!link.hang_up.is_set(), "a kernel that takes nothing is no error");
        link.close_if_silent(35, 30);
        assert!(link.hang_up.is_set());
        link.hang_up.clear();
        // A broken connection ends the link at once.
        drop(other);
        link.pipe.borrow_mut().as_mut().unwrap().out.clear();
        let mut tries = 0;
        while !link.hang_up.is_set() {
            tries += 1;
            assert!(tries < 1 << 20, "it does not end");
            tokio::task::yield_now().await;
            link.pipe.borrow_mut().as_mut().unwrap().out.clear();
            link.send(&frame, 6);
        }
    }

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let refusal = Refusal::new(RefusalCode::NotBootstrapped, "no cluster here yet");
        let text = LinkError::Refused(refusal).to_string();
        assert_eq!(text, "refused by the member: no cluster here yet (NotBootstrapped)");
    }
}
