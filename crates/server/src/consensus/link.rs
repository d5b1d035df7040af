//! The connection to a peer: Raft messages out, clock samples both ways. It is dialled for ever,
//! and it never queues more than it is worth: Raft sends again what a broken link has lost.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::hello::{Hello, LinkKind, Refusal, RefusalCode};
use epicepoch_wire::raft_message::RaftMessage;
use epicepoch_wire::{BootId, ClusterId, StorePosition};
use thiserror::Error;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::introduction::check_welcome;
use super::plane::{Event, Inbox};
use crate::abort::AbortOnPanic;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::peers;
use crate::peers::stream::{PeerReader, PeerWriter};
use crate::shared::NodeShared;

/// Messages that may wait for one peer; beyond it they are dropped, and Raft sends again.
const QUEUE_LEN_MAX: usize = 256;
/// How long to wait for a peer to accept and to answer the hello.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// First and longest wait between two attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Between two clock samples; also what keeps a link known to be alive.
pub(super) const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Silence after which a link is given up and dialled again.
const SILENCE_MAX: Duration = Duration::from_millis(1_500);

/// A link that reconnects by itself until it is dropped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Member,
    queue: mpsc::Sender<RaftMessage>,
    task: AbortHandle,
    is_up: Rc<Notify>,
    /// The newest format that the other end of the connection reads; none while there is no connection.
    reads: Rc<Cell<Option<u32>>>,
}

impl Link {
    /// Starts to connect to `peer`.
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
        };
        let task = tokio::task::spawn_local(dialler.run(queued)).abort_handle();
        Self { peer, queue, task, is_up, reads }
    }

    /// Whether what is connected may be sent entries and states of `format` (S15). Whoever connects
    /// later is asked then.
    pub(super) fn may_carry(&self, format: u32) -> bool {
        self.reads.get().is_none_or(|newest| newest >= format)
    }

    /// The peer has just been heard to be up: a wait for the next attempt ends now. Otherwise its
    /// votes would reach nobody here, nor ours it, for up to the longest wait after it starts.
    pub(super) fn note_up(&self) {
        self.is_up.notify_waiters();
    }

    /// Queues a message; `false` when it was dropped.
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
    /// Where the peer may be: where it was last, and what `PEERS` says now. Tried in turn.
    addrs: Vec<String>,
    inbox: Rc<Inbox>,
    /// Wakes a wait between two attempts.
    is_up: Rc<Notify>,
    /// See [`Link::reads`].
    reads: Rc<Cell<Option<u32>>>,
}

/// Why a connection did not come about, or ended.
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
    #[error("the node ends")]
    Ended,
}

impl Dialler {
    async fn run(self, mut queued: mpsc::Receiver<RaftMessage>) {
        let _abort = AbortOnPanic("link to a peer");
        let (mut backoff, backoff_max) = BACKOFF;
        let mut told = String::new();
        for attempt in 0_usize.. {
            let addr = &self.addrs[attempt % self.addrs.len()];
            let error = match self.connect(addr).await {
                Ok((reader, writer, boot)) => {
                    tracing::info!(peer = self.peer.node.0, "connected");
                    (backoff, told) = (BACKOFF.0, String::new());
                    // What waited for the old connection is stale: Raft sends again.
                    while queued.try_recv().is_ok() {}
                    self.serve(reader, writer, boot, &mut queued).await
                }
                Err(error) => error,
            };
            self.reads.set(None);
            if matches!(error, LinkError::Ended) {
                return;
            }
            self.tell(addr, &error, &mut told).await;
            // The jitter keeps two nodes from dialling each other in step.
            let jitter = Duration::from_micros(jitter_us(&self.shared, backoff));
            drain(&mut queued, backoff + jitter, &self.is_up).await;
            backoff = (backoff * 2).min(backoff_max);
        }
    }

    /// Reports an error: once in the log per new text, and to the replica.
    async fn tell(&self, addr: &str, error: &LinkError, told: &mut String) {
        let node = self.peer.node;
        let text = error.to_string();
        if !told.contains(&text) {
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
            if told.len() > TOLD_LEN_MAX {
                told.clear();
            }
            told.push_str(&text);
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
    ) -> Result<(FrameReader<PeerReader>, PeerWriter, BootId), LinkError> {
        let hello = self.shared.hello(LinkKind::Raft, self.peer.node);
        let attempt = async {
            let stream = peers::connect(&self.shared, addr, self.peer.node).await?;
            let (reader, mut writer) = stream.into_split();
            let mut frames = Vec::new();
            let me = self.shared.identity.node;
            write_frame(&mut frames, FrameKind::Hello, self.cluster, me, |out| hello.encode(out));
            write_frames(&mut writer, &mut frames).await?;
            let mut reader = FrameReader::new(reader);
            let (header, payload) = reader.next().await?.ok_or(LinkError::Closed)?;
            let boot = match header.kind {
                FrameKind::Welcome => {
                    let welcome = Hello::decode(payload).map_err(FrameError::from)?;
                    let from = (header.cluster, header.from);
                    check_welcome(&self.shared, self.cluster, &self.peer, from, &welcome)
                        .map_err(LinkError::WrongPeer)?;
                    // In the same step as the check: nothing is raised in between.
                    self.reads.set(Some(welcome.formats.newest));
                    let member = Member {
                        raft_addr: welcome.raft_addr.clone(),
                        client_addr: welcome.client_addr.clone(),
                        ..self.peer.clone()
                    };
                    let boot = welcome.boot;
                    self.inbox.send(Event::Introduced { member, hello: welcome }).await;
                    boot
                }
                FrameKind::Refused => {
                    let refusal = Refusal::decode(payload).map_err(FrameError::from)?;
                    return Err(LinkError::Refused(refusal));
                }
                kind => {
                    return Err(LinkError::WrongPeer(format!("{kind:?} instead of a welcome")));
                }
            };
            Ok((reader, writer, boot))
        };
        timeout(CONNECT_TIMEOUT, attempt).await.map_err(|_| LinkError::Timeout)?
    }

    /// Serves a connection until it breaks.
    async fn serve(
        &self,
        mut reader: FrameReader<PeerReader>,
        mut writer: PeerWriter,
        boot: BootId,
        queued: &mut mpsc::Receiver<RaftMessage>,
    ) -> LinkError {
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        // The last question, and what was known of the peer's position when it was sent.
        let mut asked = (0, StorePosition(0));
        let mut frames = Vec::new();
        loop {
            tokio::select! {
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
                        let received_ns = self.shared.clock.monotonic_ns();
                        let node = self.peer.node;
                        let is_last = pong.sent_ns == asked.0;
                        let since = if is_last { asked.1 } else { StorePosition(0) };
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
                    asked = (ping.sent_ns, self.shared.core.positions().of(self.peer.node));
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

/// Bytes of errors that are remembered as told, so that each stands in the log once.
const TOLD_LEN_MAX: usize = 2_048;
/// Bytes of frames that wait to be written before no more messages are taken from the queue.
const FRAMES_LEN_MAX: usize = 256 << 10;

/// Waits, for no longer than until the peer is known to be up, and drops what is queued meanwhile.
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

/// Up to a quarter of `backoff`, microseconds; drawn from the clock, since nothing depends on it.
fn jitter_us(shared: &NodeShared, backoff: Duration) -> u64 {
    let quarter = backoff.as_micros() as u64 / 4;
    fastrand::Rng::with_seed(shared.clock.monotonic_ns()).u64(0..=quarter)
}

/// Whether a refusal means that this node must end, once it is heard `times` in a row. Who was
/// removed ends by rules of its own ([`super::farewell`]).
pub(super) fn is_fatal(code: RefusalCode, times: u32) -> bool {
    match code {
        // Another process of this id may be about to end; a wrong address of one peer is no
        // reason to end a node that serves.
        RefusalCode::DuplicateNode => times >= DUPLICATE_REFUSALS_MAX,
        RefusalCode::WrongStore | RefusalCode::SetBack | RefusalCode::EndedHistory => true,
        // All others may heal, or concern one address only; so may a later version's codes.
        _ => false,
    }
}

/// Refusals as a duplicate that are waited out, a few seconds in all.
const DUPLICATE_REFUSALS_MAX: u32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_for_the_next_attempt_ends_when_the_peer_is_up() {
        let (_queue, mut queued) = mpsc::channel(1);
        let is_up = Notify::new();
        let wait = Duration::from_mins(1);
        let waited = async {
            tokio::join!(drain(&mut queued, wait, &is_up), async { is_up.notify_waiters() });
        };
        timeout(wait / 2, waited).await.expect("it does not wait to its end");
        // What was heard while nobody waited shortens no later wait.
        is_up.notify_waiters();
        let later = drain(&mut queued, Duration::from_mins(1), &is_up);
        assert!(timeout(Duration::from_millis(20), later).await.is_err());
    }
}
