//! The answering end of a confirm link: the worker of another member asks, and this worker answers
//! from the node's Promise. The core's [`Answers`] decides each answer; here are the reads and
//! writes around it.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use epicepoch_core::confirm::{AnswerError, Answers};
use epicepoch_core::publication::Identity;
use epicepoch_wire::frame::{FrameKind, Header, write_frame};
use epicepoch_wire::peer_hello::PeerHello;
use epicepoch_wire::{ClusterId, NodeId};
use thiserror::Error;

use super::confirm_link::prepare;
use super::sequencer::Sequencer;
use crate::framed::{FrameError, FrameReader, write_frames};
use crate::security::tls::peer_stream::DetachedStream;

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
    /// A frame is not a confirm of this caller.
    #[error(transparent)]
    Answer(#[from] AnswerError),
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
            Ok(()) => tracing::debug!(peer = from.0, "confirm link closed by the other end"),
            Err(error) => tracing::debug!(peer = from.0, %error, "confirm link closed"),
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
        let identity = Identity { node: self.from, store: self.hello.store, boot: self.hello.boot };
        let mut answers = Answers::new(identity, self.cluster, sequencer.shared.identity);
        loop {
            let Some(frame) = reader.next().await? else { return Ok(()) };
            self.answer_one(sequencer, &mut answers, frame, &mut out)?;
            while answers.has_room()
                && let Some(frame) = poll_once(reader.next()).await
            {
                let Some(frame) = frame? else { break };
                self.answer_one(sequencer, &mut answers, frame, &mut out)?;
            }
            write_frames(&mut writer, &mut out).await?;
            answers.handle_written();
        }
    }

    fn answer_one(
        &self,
        sequencer: &Sequencer,
        answers: &mut Answers,
        (header, payload): (Header, &[u8]),
        out: &mut Vec<u8>,
    ) -> Result<(), CallerError> {
        let shared = &sequencer.shared;
        let reply = answers.handle_frame(&header, payload, &shared.core.promise)?;
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
