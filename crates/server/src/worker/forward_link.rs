//! The connection of a worker to the leader's client address, over which it sends requests on. It
//! speaks the native protocol, checks who answers, and reconnects when the connection breaks. If
//! nodes have certificates, both ends show them, and the leader asks for no token of a client. It
//! never blocks the worker, and decides nothing about requests.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use epicepoch_core::sequencer::{Refused, Unasked};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::pong;
use epicepoch_wire::native::{
    ClientHello, ClientHelloError, FEATURE_CHECKED_CERTIFICATES, FEATURE_CHECKED_TOKENS,
    FEATURE_DIRECT, FORWARDER_AGENT, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, split,
};
use epicepoch_wire::{DecodeError, Guarantee, NodeId, WorkerId};
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::forwarding::Forwarding;
use super::sequencer::Sequencer;
use crate::peers;
use crate::security::authz::Right;
use crate::security::tls::peer_stream::{PeerReader, PeerWriter};
use crate::shared::NodeShared;

/// The longest time to open a connection, TLS, hello and welcome included. Between continents these
/// are three round trips of 0.3 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The first pause after a connection that has failed or ended; each further one is twice as long. A
/// leader that has just lost leadership refuses until this node knows the next one; then a
/// publication ends the pause, and the next one is short again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(320);
/// After a connection that has lasted this long, the next pause is short.
const LASTED_MIN: Duration = Duration::from_secs(1);
/// Bytes that are received at once. The longest frame fits.
const INPUT_LEN: usize = 64 << 10;
/// At most this many bytes wait to be sent: a few frames, and answers to pings.
const OUT_LEN_MAX: usize = 4 << 10;

const _: () = assert!(TO_CLIENT_TAIL_LEN_MAX < INPUT_LEN);

/// Why the connection to the leader is closed.
#[derive(Debug, Error)]
#[non_exhaustive]
enum ForwardError {
    /// The leader cannot be reached, or the connection broke; the next attempt follows.
    #[error("no connection: {0}")]
    Io(#[from] io::Error),
    /// The leader has not answered in time; the next attempt follows.
    #[error("no welcome within {CONNECT_TIMEOUT:?}")]
    Silent,
    /// The other end breaks the protocol: look at what listens at `ADVERTISE_ADDR` of the leader.
    #[error("malformed: {0}")]
    Malformed(#[from] ClientHelloError),
    /// The other end sent an answer that this node has not asked for.
    #[error("an answer to a frame that is not on its way")]
    Unasked,
    /// The leader refuses this node as a client; its text says why.
    #[error("refused with {code}: {text}")]
    Refused { code: u16, text: String },
    /// Another node, or another cluster, answers at the leader's client address: correct
    /// `ADVERTISE_ADDR` of the leader.
    #[error("node {0} answers at the leader's client address, or it is of another cluster")]
    Stranger(NodeId),
    /// The other node does not lead, or ends the connection.
    #[error("the other node does not lead, or ends the connection")]
    Ended,
}

impl From<DecodeError> for ForwardError {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error.into())
    }
}

impl From<Unasked> for ForwardError {
    fn from(_: Unasked) -> Self {
        Self::Unasked
    }
}

impl ForwardError {
    /// What the end of a connection says about its successor.
    fn standing(&self) -> Standing {
        match self {
            Self::Ended => Standing::Up,
            // The handshake has failed, or the other end has the certificate of another node.
            Self::Io(error)
                if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::Other) =>
            {
                Standing::Refused
            }
            Self::Io(_) | Self::Silent => Standing::Down,
            Self::Malformed(_) | Self::Unasked | Self::Refused { .. } | Self::Stranger(_) => {
                Standing::Refused
            }
        }
    }
}

/// What the log knows about the connection to the leader. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// Nothing is wrong.
    Up,
    /// The leader is not reached. The next attempt, or the next leader, may mend that.
    Down,
    /// The other end refuses this node, or is not the leader. Somebody has to mend that.
    Refused,
}

/// Logs the end of a connection, unless the log has it already, or worse.
fn log_end(worker: WorkerId, ended: &ForwardError, logged: &mut Standing) {
    let standing = ended.standing();
    if standing <= *logged {
        return;
    }
    *logged = standing;
    let worker = worker.0;
    if standing == Standing::Refused {
        tracing::warn!(worker, error = %ended, "requests cannot be sent on to the leader");
    } else {
        tracing::info!(worker, error = %ended, "link to the leader down; trying again");
    }
}

/// Keeps a connection to the leader while requests are sent on to it. Never ends.
pub(super) async fn run(sequencer: Rc<Sequencer>) {
    let Some(forwarding) = &sequencer.forwarding else { return };
    let (mut logged, mut pause) = (Standing::Up, PAUSE_MIN);
    loop {
        while !forwarding.needs_link() {
            forwarding.due.wait().await;
        }
        forwarding.hang_up.clear();
        let (leader, began) = (forwarding.leader(), Instant::now());
        let connecting = tokio::select! {
            biased;
            () = forwarding.hang_up.wait() => continue,
            connecting = timeout(CONNECT_TIMEOUT, connect(&sequencer)) => connecting,
        };
        let ended = match connecting {
            Err(_) => ForwardError::Silent,
            Ok(Err(error)) => error,
            Ok(Ok(mut link)) => {
                logged = Standing::Up;
                forwarding.state.borrow_mut().handle_linked();
                let ended = link.converse(&sequencer, forwarding).await;
                let requests = forwarding.state.borrow_mut().handle_link_lost();
                sequencer.metrics().forwarded[2].add_alone(requests);
                // The leader closes connections that are idle for long.
                let is_idle = requests == 0 && ended.standing() == Standing::Down;
                if is_idle { ForwardError::Ended } else { ended }
            }
        };
        log_end(sequencer.worker, &ended, &mut logged);
        if forwarding.leader() != leader {
            pause = PAUSE_MIN;
            continue;
        }
        if began.elapsed() >= LASTED_MIN {
            pause = PAUSE_MIN;
        }
        tokio::select! {
            () = sleep(pause) => pause = (2 * pause).min(PAUSE_MAX),
            () = forwarding.hang_up.wait() => pause = PAUSE_MIN,
        }
    }
}

/// Connects to the leader's client address, and checks who answers there.
async fn connect(sequencer: &Sequencer) -> Result<Link, ForwardError> {
    let published = sequencer.view().published.clone();
    let leader = published.other_leader().ok_or(ForwardError::Ended)?;
    let addr = &leader.client_addr;
    let stream = peers::connect_to_forward(&sequencer.shared, addr, leader.node).await?;
    let (reader, writer) = stream.into_split();
    let input = vec![0; INPUT_LEN].into_boxed_slice();
    let mut link = Link { reader, writer, out: Vec::new(), input, filled: 0 };
    let own = (published.cluster, published.history);
    let hello = ClientHello {
        features: features(&sequencer.shared),
        cluster_name: sequencer.shared.config.cluster_name.clone(),
        cluster: Some(own),
        agent: format!("{FORWARDER_AGENT}{}", sequencer.shared.identity.node),
        guarantee: Some(Guarantee::Quorum),
        ..ClientHello::default()
    };
    hello.encode(&mut link.out);
    loop {
        link.flush()?;
        let Some(frame) = split(&link.input[..link.filled], TO_CLIENT_TAIL_LEN_MAX)? else {
            link.receive().await?;
            continue;
        };
        match ToClient::decode(&frame)? {
            ToClient::Welcome(welcome)
                if welcome.cluster == Some(own) && welcome.node == leader.node => {}
            ToClient::Welcome(welcome) => return Err(ForwardError::Stranger(welcome.node)),
            ToClient::Error(error) => {
                return Err(ForwardError::Refused {
                    code: error.code,
                    text: error.text.to_owned(),
                });
            }
            _ => return Err(ForwardError::Ended),
        }
        let length = frame.len();
        link.consume(length);
        return Ok(link);
    }
}

/// What the hello says: that no node may send the requests on, and which checks of clients are
/// behind them.
fn features(shared: &NodeShared) -> u64 {
    let checks_tokens = shared.authz.needs_token(Right::Timestamps);
    let checks_certificates = shared.tls.as_ref().is_some_and(|tls| tls.roots.is_some());
    FEATURE_DIRECT
        | if checks_tokens { FEATURE_CHECKED_TOKENS } else { 0 }
        | if checks_certificates { FEATURE_CHECKED_CERTIFICATES } else { 0 }
}

/// A connection to the leader.
struct Link {
    reader: PeerReader,
    writer: PeerWriter,
    /// Bytes that wait to be sent.
    out: Vec<u8>,
    /// The receive buffer. The first `filled` bytes are received bytes.
    input: Box<[u8]>,
    filled: usize,
}

impl Link {
    /// Sends frames and handles answers until the connection ends.
    async fn converse(&mut self, sequencer: &Sequencer, own: &Forwarding) -> ForwardError {
        loop {
            if let Err(error) = self.send_frames(sequencer, own) {
                return error;
            }
            tokio::select! {
                biased;
                () = own.hang_up.wait() => return ForwardError::Ended,
                received = self.receive() => {
                    if let Err(error) = received.map_err(Into::into).and_then(|()| self.handle(sequencer, own)) {
                        return error;
                    }
                }
                () = own.due.wait() => {}
            }
        }
    }

    fn send_frames(&mut self, sequencer: &Sequencer, own: &Forwarding) -> Result<(), ForwardError> {
        while self.out.is_empty() {
            let now_ns = sequencer.shared.clock.monotonic_ns();
            let Some(frame) = own.state.borrow_mut().poll_frame(now_ns) else { break };
            if let Some(request) = Request::new(frame.id, frame.count) {
                self.out.extend_from_slice(&request.to_bytes());
            } else {
                let code = ErrorCode::BadCount;
                own.state.borrow_mut().handle_refusal(frame.id, code, Waker::wake)?;
            }
            self.flush()?;
        }
        self.flush()?;
        if self.out.len() > OUT_LEN_MAX { Err(ForwardError::Ended) } else { Ok(()) }
    }

    /// Handles the frames that have arrived.
    fn handle(&mut self, sequencer: &Sequencer, own: &Forwarding) -> Result<(), ForwardError> {
        let mut done = 0;
        while let Some(frame) = split(&self.input[done..self.filled], TO_CLIENT_TAIL_LEN_MAX)? {
            let mut state = own.state.borrow_mut();
            match ToClient::decode(&frame)? {
                ToClient::Answer { id, range, is_latest: false, .. } => {
                    let size = state.handle_answer(id, range, Waker::wake)?;
                    sequencer.record_forwarded(&size);
                }
                ToClient::Answer { is_latest: true, .. } => return Err(ForwardError::Unasked),
                ToClient::Error(error) if error.closes => {
                    let text = error.text.to_owned();
                    return Err(ForwardError::Refused { code: error.code, text });
                }
                ToClient::Error(error) => {
                    let code = error.error_code().unwrap_or(ErrorCode::Internal);
                    match state.handle_refusal(error.id, code, Waker::wake)? {
                        Refused::Told => {}
                        Refused::NotLeading => return Err(ForwardError::Ended),
                    }
                }
                ToClient::Ping(id) => self.out.extend_from_slice(&pong(id)),
                ToClient::Goodbye | ToClient::Welcome(_) => return Err(ForwardError::Ended),
                ToClient::Leader(_) | ToClient::Pong(_) | ToClient::Unknown => {}
            }
            done += frame.len();
        }
        self.consume(done);
        Ok(())
    }

    /// Sends as many of the waiting bytes as the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.writer.try_write(&self.out) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until bytes have arrived, or the waiting bytes are sent. Cancel safe.
    async fn receive(&mut self) -> io::Result<()> {
        let Self { reader, writer, out, input, filled } = self;
        let read = reader.read(&mut input[*filled..]);
        let length = if out.is_empty() {
            read.await?
        } else {
            tokio::select! {
                // Requests may wait for this.
                sent = send(writer, out) => return sent,
                length = read => length?,
            }
        };
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        *filled += length;
        Ok(())
    }

    /// Drops `length` bytes from the front of the received bytes.
    fn consume(&mut self, length: usize) {
        self.input.copy_within(length..self.filled, 0);
        self.filled -= length;
    }
}

/// Waits until all bytes of `out` are sent. Cancel safe.
async fn send(writer: &PeerWriter, out: &mut Vec<u8>) -> io::Result<()> {
    while !out.is_empty() {
        writer.writable().await?;
        // `None` when the socket takes nothing after all.
        match poll_fn(|context| writer.poll_send(context, out)).await? {
            Some(0) => return Err(ErrorKind::WriteZero.into()),
            Some(written) => drop(out.drain(..written)),
            None => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_learns_of_a_refusal_also_after_a_leader_that_was_not_reached() {
        let lost = || ForwardError::Io(ErrorKind::ConnectionRefused.into());
        let refused = || ForwardError::Refused { code: 1, text: String::new() };
        let mut logged = Standing::Up;
        let mut log = |ended: ForwardError| {
            log_end(WorkerId(0), &ended, &mut logged);
            logged
        };
        assert_eq!(log(ForwardError::Ended), Standing::Up);
        assert_eq!(log(lost()), Standing::Down);
        assert_eq!(log(ForwardError::Ended), Standing::Down);
        assert_eq!(log(refused()), Standing::Refused);
        assert_eq!(log(lost()), Standing::Refused);
    }

    #[test]
    fn a_certificate_of_another_node_is_a_refusal_and_a_lost_connection_is_none() {
        let standing = |kind: ErrorKind| ForwardError::Io(kind.into()).standing();
        // What rustls says of a handshake, and what the check of the name says.
        assert_eq!(
            [ErrorKind::InvalidData, ErrorKind::Other].map(standing),
            [Standing::Refused; 2]
        );
        let lost = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::TimedOut];
        assert_eq!(lost.map(standing), [Standing::Down; 3]);
        assert_eq!(ForwardError::Stranger(NodeId(3)).standing(), Standing::Refused);
    }
}
