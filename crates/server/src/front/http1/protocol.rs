//! HTTP/1.1 in the pipeline: it serves only `GET /timestamp` and `GET /latest`. At any other
//! request, hyper takes over the rest of the connection.

use std::cell::RefCell;
use std::rc::Rc;

use epicepoch_wire::{Guarantee, Timestamp};

use super::scan::{FastRequest, REQUEST_LEN_MAX, Scan, scan};
use super::templates::{Echo, RefusalTemplate, ResponseTemplates};
use crate::front::deadlines::ClientState;
use crate::front::pipeline::protocol::{ANSWERS_LEN_MAX, Common, Line, Protocol, Stage};
use crate::front::pipeline::queue::{Answers, Refused, Waiting};
use crate::front::pipeline::refusal::Refusal;
use crate::front::routes::answer::{self, Answer};
use crate::front::routes::date::Dated;
use crate::front::routes::query::{Ask, LIST_COUNT_MAX, Limits};
use crate::worker::sequencer::Sequencer;

/// Approximate bytes of the head of an answer. An answer with timestamps has about 210, and 24 more
/// for what has proved it. A request id is not counted.
const HEAD_LEN: usize = 256;

// After a partial request, the read limit still has room for the rest of that request.
const _: () = assert!(REQUEST_LEN_MAX < Http1::READ_LEN_MAX);
const _: () = assert!(LIST_COUNT_MAX as usize * Timestamp::LEN <= ANSWERS_LEN_MAX);
const _: () = assert!(Http1::QUEUE_LEN_MAX * (HEAD_LEN + Timestamp::LEN) <= ANSWERS_LEN_MAX);

/// The protocol HTTP/1.1 in the pipeline. Its connections need no state beside the pipeline's.
#[derive(Debug)]
pub(crate) struct Http1;

/// An accepted request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    ask: Ask,
    request_id_len: u8,
    is_direct: bool,
    /// Whether it is the last request of its connection.
    closes: bool,
}

impl Waiting for Request {
    const MAY_ASK_FOR_LATEST: bool = true;

    #[inline]
    fn count(&self) -> u64 {
        self.ask.count
    }

    #[inline]
    fn answer_len(&self) -> usize {
        HEAD_LEN + self.ask.body_len()
    }

    #[inline]
    fn guarantee(&self) -> Option<Guarantee> {
        self.ask.guarantee
    }

    /// A node that is behind could not spell a compact timestamp.
    #[inline]
    fn is_direct(&self) -> bool {
        self.is_direct || self.ask.format.is_compact()
    }

    #[inline]
    fn request_id_len(&self) -> usize {
        self.request_id_len.into()
    }
}

impl Protocol for Http1 {
    type Request = Request;
    type Shared = RefCell<Dated<ResponseTemplates>>;

    const QUEUE_LEN_MAX: usize = 120;
    const READ_LEN_MAX: usize = 16 << 10;
    const WAITS_FOR_ADMISSION: bool = true;

    fn share(_: &Rc<Sequencer>) -> Self::Shared {
        RefCell::default()
    }

    fn begin(_: &Rc<Common<Self>>, _: &Rc<ClientState>) -> Self {
        Self
    }

    #[inline]
    fn receive<'a>(
        &mut self,
        common: &Common<Self>,
        line: &mut Line<Request>,
        bytes: &'a [u8],
        _: usize,
    ) -> &'a [u8] {
        let shared = &common.sequencer.shared;
        let limits = Limits::of(shared);
        let before = line.queue.len();
        let mut rest = bytes;
        while line.stage == Stage::Open && !rest.is_empty() {
            if self.read_allowance(line) == 0 {
                line.is_full = true;
                break;
            }
            match scan(rest, limits) {
                // The caller may not get timestamps. Hyper takes over; the service refuses, counts
                // and logs the request.
                Scan::Fast(request) if shared.authz.check_fast(request.authorization).is_err() => {
                    line.stage = Stage::Leaving;
                }
                Scan::Fast(request) => {
                    push(line, &request);
                    rest = &rest[request.len..];
                }
                Scan::Partial => break,
                Scan::Other => line.stage = Stage::Leaving,
            }
        }
        let has_taken = line.queue.len() > before;
        let is_in_head = line.stage == Stage::Open && !rest.is_empty() && !line.is_full;
        line.state.record_requests(has_taken, is_in_head);
        rest
    }

    fn end_input(&mut self, line: &mut Line<Request>) {
        if line.held.is_empty() {
            // The client sends no more, but may still read.
            line.state.record_end();
            line.stage = Stage::Ending;
        } else {
            // The rest of the bytes is an incomplete request: hyper answers it.
            line.stage = Stage::Leaving;
        }
    }

    #[inline]
    fn answer(&mut self, common: &Common<Self>, answers: Answers<'_, Request>, out: &mut Vec<u8>) {
        let mut templates = common.templates();
        let proved_by = answers.proved_by();
        let view = answers.is_forwarded().then(|| common.sequencer.view());
        let forwarded = view.as_deref();
        answers.each(|Request { ask, closes, .. }, request_id, first| {
            let proof = ask.shown(proved_by);
            templates.answer(ask, Echo { request_id, closes, proof, forwarded }, first, out);
        });
    }

    fn refuse(
        &mut self,
        common: &Common<Self>,
        refused: Refused<'_, Request>,
        refusal: &Refusal,
        out: &mut Vec<u8>,
    ) {
        let templates = common.templates();
        let template = RefusalTemplate::new(answer::refused(refusal));
        refused.each(|Request { closes, .. }, request_id| {
            templates.refusal(&template, Echo { request_id, closes, ..Echo::default() }, out);
        });
    }

    /// The last answer announces the end of the connection.
    fn close(&mut self, line: &mut Line<Request>) {
        if let Some(last) = line.queue.last_mut() {
            last.closes = true;
        }
        line.stop();
    }
}

/// Appends an answer that is the last one of its connection, and has its whole body in memory.
pub(crate) fn put_last(common: &Common<Http1>, answer: Answer, out: &mut Vec<u8>) {
    let echo = Echo { closes: true, ..Echo::default() };
    common.templates().refusal(&RefusalTemplate::new(answer), echo, out);
}

#[inline]
fn push(line: &mut Line<Request>, request: &FastRequest<'_>) {
    let FastRequest { ask, request_id, is_direct, closes, .. } = *request;
    let request_id_len = request_id.len() as u8;
    line.queue.push(Request { ask, request_id_len, is_direct, closes }, request_id);
    if closes {
        // The node ignores bytes behind a client's last request.
        line.stage = Stage::Ending;
    }
}
