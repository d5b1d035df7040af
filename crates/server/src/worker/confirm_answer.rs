//! The answering end of a confirm link: the worker of another member asks, and this worker answers
//! from the node's Promise. The core's [`answer`] loads the Promise after the frame was read;
//! nothing is cached in between (S4).

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use epicepoch_core::confirm::answer;
use epicepoch_wire::confirm::Confirm;
use epicepoch_wire::frame::{FrameKind, Header, write_frame};
use epicepoch_wire::peer_hello::PeerHello;
use epicepoch_wire::{ClusterId, DecodeError, NodeId};
use thiserror::Error;

use super::confirm_link::prepare;
use super::sequencer::Sequencer;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::security::tls::peer_stream::DetachedStream;

/// Most questions answered with one write. Further ones wait in the socket until it is done.
const ANSWERS_PER_WRITE_MAX: usize = 64;

/// A confirm link that another member opened and whose hello was accepted.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The member that asks.
    pub(crate) from: NodeId,
    /// The hello of that member.
    pub(crate) hello: PeerHello,
    /// The cluster that both nodes belong to.
    pub(crate) cluster: ClusterId,
}

/// Why this node stopped answering a caller. The link is closed; the caller opens another.
#[derive(Debug, Error)]
#[non_exhaustive]
enum CallerError {
    /// The connection broke or carried malformed frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The payload is not a confirm.
    #[error("malformed payload: {0}")]
    Payload(#[from] DecodeError),
    /// The frame is of another kind, or its cluster, node, data directory or boot id differs from
    /// the link's.
    #[error("a frame that does not belong to this link: {0:?}")]
    Foreign(Header),
}

impl From<std::io::Error> for CallerError {
    fn from(error: std::io::Error) -> Self {
        Self::Frame(FrameError::Io(error))
    }
}

impl Caller {
    /// Answers confirms until the connection ends.
    pub(crate) async fn serve(self, sequencer: Rc<Sequencer>, stream: DetachedStream) {
        let from = self.from;
        match self.answer_all(&sequencer, stream).await {
            Ok(()) => tracing::debug!(%from, "confirm link closed by the other end"),
            Err(error) => tracing::debug!(%from, %error, "confirm link closed"),
        }
    }

    async fn answer_all(
        &self,
        sequencer: &Sequencer,
        stream: DetachedStream,
    ) -> Result<(), CallerError> {
        let stream = stream.attach()?;
        prepare(stream.socket()?)?;
        let (reader, mut writer) = stream.into_split();
        let mut reader = FrameReader::new(reader);
        let mut out = Vec::new();
        loop {
            let Some((header, payload)) = reader.next().await? else { return Ok(()) };
            self.answer_one(sequencer, &header, payload, &mut out)?;
            for _ in 1..ANSWERS_PER_WRITE_MAX {
                let Some(frame) = poll_once(reader.next()).await else { break };
                let Some((header, payload)) = frame? else { break };
                self.answer_one(sequencer, &header, payload, &mut out)?;
            }
            write_frames(&mut writer, &mut out).await?;
        }
    }

    fn answer_one(
        &self,
        sequencer: &Sequencer,
        header: &Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CallerError> {
        let is_ours = header.kind == FrameKind::Confirm
            && header.cluster == self.cluster
            && header.from == self.from;
        if !is_ours {
            return Err(CallerError::Foreign(*header));
        }
        let confirm = Confirm::decode(payload)?;
        if (confirm.store, confirm.boot) != (self.hello.store, self.hello.boot) {
            return Err(CallerError::Foreign(*header));
        }
        let shared = &sequencer.shared;
        let reply = answer(self.from, &confirm, shared.identity, &shared.core.promise);
        let metrics = sequencer.metrics();
        let count = if reply.is_yes() { &metrics.confirms_yes } else { &metrics.confirms_no };
        count.add_alone(1);
        write_frame(out, FrameKind::ConfirmReply, self.cluster, shared.identity.node, |out| {
            reply.encode(out);
        });
        Ok(())
    }
}

/// Polls `future` once. Returns its result, or `None` if it would have to wait.
async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(ready) => Poll::Ready(Some(ready)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
