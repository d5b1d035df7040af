//! The slow parts of an HTTP/2 connection: requests that wait for the service's answer, and bodies
//! that a client does not accept at once. Of a request's body only the length is kept, because its
//! content means nothing.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Buf as _;
use epicepoch_wire::http2::frame::{self, PAYLOAD_LEN_MAX, flag, kind};
use http::{HeaderValue, Method, Request};
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::session::{HEAD_LEN_MAX, STREAMS_MAX, Session};
use crate::front::routes::answer::Answer;
use crate::front::routes::body::{Body, Chunk};
use crate::front::routes::service::{Answering, NodeService};

/// The paths and headers of requests whose bodies have not ended may have this many bytes together:
/// 256 for each stream. With header compression, a few bytes can stand for a head of kilobytes.
const UNFINISHED_LEN_MAX: usize = 256 * STREAMS_MAX;
const _: () = assert!(HEAD_LEN_MAX <= UNFINISHED_LEN_MAX, "a head fits when no other waits");

/// The exchanges of one connection.
#[derive(Default)]
pub(super) struct Exchanges {
    list: Vec<Exchange>,
}

struct Exchange {
    id: u32,
    step: Step,
}

/// The step of an exchange. `chunk` is the part of the body that is made and not sent yet.
enum Step {
    Answering {
        answering: Pin<Box<Answering>>,
        incoming: Rc<Incoming>,
        is_head: bool,
        /// Bytes of the request's path and headers.
        kept_len: usize,
    },
    Sending {
        body: Body,
        chunk: Option<Chunk>,
    },
    Done,
}

/// An answer that can be sent.
pub(super) struct Ready {
    pub(super) id: u32,
    pub(super) answer: Answer,
    /// Whether the request was `HEAD`, so that no body is sent.
    pub(super) is_head: bool,
}

impl Exchanges {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Begins to answer a request. Returns `false` if it must be refused: the heads of requests
    /// whose bodies have not ended have too many bytes.
    pub(super) fn begin(
        &mut self,
        service: &NodeService,
        id: u32,
        request: Request<()>,
        body_len: Option<u64>,
    ) -> bool {
        let kept_len = kept_len(&request);
        if body_len != Some(0) && self.unfinished_len() + kept_len > UNFINISHED_LEN_MAX {
            return false;
        }
        let is_head = *request.method() == Method::HEAD;
        let incoming = Rc::new(Incoming {
            waiting: Cell::new(0),
            has_ended: Cell::new(body_len == Some(0)),
            announced: body_len,
        });
        let request = request.map(|()| RequestBody(incoming.clone()));
        let answering = Box::pin(service.answer(request));
        let step = Step::Answering { answering, incoming, is_head, kept_len };
        self.list.push(Exchange { id, step });
        true
    }

    /// Bytes of the paths and headers of requests whose bodies have not ended.
    fn unfinished_len(&self) -> usize {
        let len = |exchange: &Exchange| match &exchange.step {
            Step::Answering { incoming, kept_len, .. } if !incoming.has_ended.get() => *kept_len,
            Step::Answering { .. } | Step::Sending { .. } | Step::Done => 0,
        };
        self.list.iter().map(len).sum()
    }

    /// Sends a body as fast as its client accepts it. The head is already sent.
    pub(super) fn send(&mut self, id: u32, body: Body) {
        self.list.push(Exchange { id, step: Step::Sending { body, chunk: None } });
    }

    /// Records a part of a request's body.
    pub(super) fn handle_data(&mut self, id: u32, len: usize, ends: bool) {
        if let Some(exchange) = self.list.iter().find(|exchange| exchange.id == id)
            && let Step::Answering { incoming, .. } = &exchange.step
        {
            incoming.waiting.set(incoming.waiting.get() + len);
            incoming.has_ended.set(ends);
        }
    }

    /// Drops the request or the body of a stream.
    pub(super) fn drop_stream(&mut self, id: u32) {
        if let Some(at) = self.list.iter().position(|exchange| exchange.id == id) {
            self.list.swap_remove(at);
        }
    }

    /// Ready with an answer when the service has one.
    pub(super) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Ready> {
        for (at, exchange) in self.list.iter_mut().enumerate() {
            let Step::Answering { answering, is_head, .. } = &mut exchange.step else { continue };
            let (id, is_head) = (exchange.id, *is_head);
            if let Poll::Ready(Ok(answer)) = answering.as_mut().poll(context) {
                self.list.swap_remove(at);
                return Poll::Ready(Ready { id, answer, is_head });
            }
        }
        Poll::Pending
    }

    /// Appends the sendable parts of bodies while `out` is shorter than `len_max`: one frame of
    /// each body in turn. Returns whether `len_max` stopped it.
    pub(super) fn pump(
        &mut self,
        session: &mut Session,
        out: &mut Vec<u8>,
        len_max: usize,
    ) -> bool {
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for Exchange { id, step } in &mut self.list {
                if out.len() >= len_max {
                    return true;
                }
                is_moving |= step.send(*id, session, out);
            }
            self.list.retain(|exchange| !matches!(exchange.step, Step::Done));
        }
        false
    }

    /// Drops all requests and bodies.
    pub(super) fn clear(&mut self) {
        self.list = Vec::new();
    }

    /// Gives back unused memory.
    pub(super) fn give_back(&mut self) {
        self.list.shrink_to_fit();
    }
}

/// Bytes of a request's path and headers.
fn kept_len(request: &Request<()>) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    path + request.headers().values().map(HeaderValue::len).sum::<usize>()
}

impl Step {
    /// Appends the next frame of a body, if the windows allow one. Returns whether it did.
    fn send(&mut self, id: u32, session: &mut Session, out: &mut Vec<u8>) -> bool {
        let Self::Sending { body, chunk } = self else { return false };
        let Some(room) = session.allowed(id) else {
            *self = Self::Done;
            return false;
        };
        // The next chunk is made only when the client accepts more.
        if room == 0 {
            return false;
        }
        let Some(mut rest) = chunk.take().or_else(|| body.next_chunk_for(room)) else {
            unreachable!("a body that has ended is sent on");
        };
        let wanted = rest.remaining().min(PAYLOAD_LEN_MAX);
        let len = session.spend(id, wanted).unwrap_or_default();
        let has_rest = len < rest.remaining();
        let ends = !has_rest && body.is_empty();
        let flags = if ends { flag::END_STREAM } else { 0 };
        frame::put(out, kind::DATA, flags, id, &rest.chunk()[..len]);
        if ends {
            session.finish(id, out);
            *self = Self::Done;
        } else if has_rest {
            rest.advance(len);
            *chunk = Some(rest);
        }
        true
    }
}

/// A request's body: how many bytes have arrived and are unread.
struct Incoming {
    waiting: Cell<usize>,
    has_ended: Cell<bool>,
    announced: Option<u64>,
}

/// The body of a request, with every byte replaced by 0, because its content means nothing. It
/// needs no waker, because it is polled whenever its connection is polled.
pub(super) struct RequestBody(Rc<Incoming>);

static NOTHING: [u8; PAYLOAD_LEN_MAX] = [0; PAYLOAD_LEN_MAX];

impl HttpBody for RequestBody {
    type Data = &'static [u8];
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<&'static [u8]>, Infallible>>> {
        let waiting = self.0.waiting.get();
        if waiting == 0 {
            return if self.0.has_ended.get() { Poll::Ready(None) } else { Poll::Pending };
        }
        let len = waiting.min(NOTHING.len());
        self.0.waiting.set(waiting - len);
        Poll::Ready(Some(Ok(Frame::data(&NOTHING[..len]))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.waiting.get() == 0 && self.0.has_ended.get()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.announced.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::http2::frame::{HEAD_LEN, put, put_settings, setting};
    use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

    use super::*;

    const COUNT: u64 = 1_000;

    fn range() -> TimestampRange {
        TimestampRange::new(Timestamp::new(Epoch(1), EpochIndex(7)), COUNT).unwrap()
    }

    /// A session with one open stream whose window is `window`.
    fn session(window: u32) -> Session {
        let (mut session, mut bytes) = (Session::new(65_536, true, &mut Vec::new()), Vec::new());
        put_settings(&mut bytes, &[(setting::INITIAL_WINDOW_SIZE, window)]);
        let block = b"\x82\x86\x44\x0a/timestamp\x41\x01a";
        put(&mut bytes, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, block);
        while let Some((len, _)) = session.receive(&bytes, &mut Vec::new()).unwrap() {
            bytes.drain(..len);
        }
        session
    }

    fn give(session: &mut Session, more: u32) {
        let mut frame = Vec::new();
        put(&mut frame, kind::WINDOW_UPDATE, 0, 1, &more.to_be_bytes());
        session.receive(&frame, &mut Vec::new()).unwrap();
    }

    /// For the first exchange: how many bytes of its body were made but not sent, and how many are
    /// not made yet.
    fn held(exchanges: &Exchanges) -> (usize, Option<u64>) {
        match &exchanges.list[0].step {
            Step::Sending { body, chunk } => {
                (chunk.as_ref().map_or(0, bytes::Buf::remaining), body.len())
            }
            _ => unreachable!("a body is sent"),
        }
    }

    #[test]
    fn a_body_that_its_client_does_not_take_is_not_made() {
        let (mut session, mut exchanges, mut out) = (session(0), Exchanges::default(), Vec::new());
        exchanges.send(1, Body::list(range()));
        assert!(!exchanges.pump(&mut session, &mut out, 1 << 20));
        assert_eq!((held(&exchanges), out.len()), ((0, Some(COUNT * 16)), 0));
        give(&mut session, 33);
        exchanges.pump(&mut session, &mut out, 1 << 20);
        assert_eq!(held(&exchanges), (15, Some((COUNT - 3) * 16)));
        exchanges.pump(&mut session, &mut out, 1 << 20);
        assert_eq!(held(&exchanges), (15, Some((COUNT - 3) * 16)));
        give(&mut session, 1 << 14);
        exchanges.pump(&mut session, &mut out, 1 << 20);
        assert!(exchanges.is_empty() && session.open() == 0);
        let (mut rest, mut sent, mut flags) = (&out[..], Vec::new(), Vec::new());
        while let Some(frame) = frame::Frame::split(rest).unwrap() {
            sent.extend_from_slice(frame.payload);
            flags.push(frame.has(flag::END_STREAM));
            rest = &rest[HEAD_LEN + frame.payload.len()..];
        }
        assert_eq!(sent, range().iter().flat_map(Timestamp::to_bytes).collect::<Vec<_>>());
        assert_eq!(flags.iter().position(|ends| *ends), Some(flags.len() - 1));
    }
}
