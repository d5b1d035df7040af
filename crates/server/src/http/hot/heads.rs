//! Answers as bytes: what hyper would write for them, with everything ready that does not differ
//! from request to request. It is made again when the second of the `Date` or the publication has
//! changed, and reads the clock only then.

use std::io::Write as _;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use epicepoch_wire::http::HEADER_REQUEST_ID;
use epicepoch_wire::{EpochIndex, Timestamp, TimestampRange};
use jiff::fmt::rfc2822::DateTimePrinter;

use super::super::answer::{self, Answer};
use super::super::body::Body;
use super::super::query::{Ask, Format};
use crate::worker::sequencer::Sequencer;
use crate::worker::view::View;

const NANOS_OF_A_SECOND: u64 = 1_000_000_000;

/// What is the same in the answers of this second.
#[derive(Debug)]
pub(super) struct Heads {
    view: Rc<View>,
    /// The second ends at this time, monotonic nanoseconds.
    until_ns: u64,
    /// The `Date` header and the end of the head.
    date: Vec<u8>,
    /// Status line and headers of an answer with timestamps, up to those that differ.
    start: Vec<u8>,
    /// The whole head of an answer with one timestamp.
    one: Vec<u8>,
    /// The whole head of an answer with a range.
    range: Vec<u8>,
    /// The whole head of an answer with a list: how many, and the head. Who asks for a hundred
    /// asks for a hundred again.
    list: (u64, Vec<u8>),
}

/// What an answer repeats of its request, beside what was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo<'a> {
    /// The request id; empty where none was given.
    pub(super) request_id: &'a [u8],
    /// Whether the connection ends behind this answer.
    pub(super) closes: bool,
}

impl Echo<'_> {
    fn is_empty(&self) -> bool {
        self.request_id.is_empty() && !self.closes
    }
}

impl Heads {
    /// The heads of answers that are given now.
    pub(super) fn new(sequencer: &Sequencer) -> Self {
        let view = sequencer.view();
        let start = start_of(&answer::timestamps(&view, Format::Binary, Body::Empty));
        let now_ns = sequencer.shared.clock.monotonic_ns();
        let now = SystemTime::now();
        let past = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
        let mut heads = Self {
            view,
            until_ns: now_ns + (NANOS_OF_A_SECOND - u64::from(past)),
            date: date_and_end(now),
            start,
            one: Vec::new(),
            range: Vec::new(),
            list: (0, Vec::new()),
        };
        heads.one = heads.whole(Timestamp::LEN);
        heads.range = heads.whole(TimestampRange::LEN);
        heads
    }

    /// Makes them new if they are of another second or another publication. The time is that of the
    /// worker's last clock reading, a round trip or an idle tick ago.
    pub(super) fn refresh(&mut self, sequencer: &Sequencer) {
        let is_past = sequencer.recent_ns() >= self.until_ns;
        if is_past || !Rc::ptr_eq(&self.view, &sequencer.view()) {
            *self = Self::new(sequencer);
        }
    }

    /// Appends the answer to what was asked for, from the range that is just that.
    pub(super) fn answer(
        &mut self,
        ask: Ask,
        echo: Echo<'_>,
        range: &TimestampRange,
        out: &mut Vec<u8>,
    ) {
        match ask.format {
            Format::Range => {
                self.head(TimestampRange::LEN, echo, out);
                out.extend_from_slice(&range.to_bytes());
            }
            // JSON is never asked for here.
            Format::Binary | Format::Json => {
                self.head(range.count() as usize * Timestamp::LEN, echo, out);
                write_list(range, out);
            }
        }
    }

    /// Appends a refusal, or any other answer that is in memory.
    pub(super) fn refusal(&self, refusal: &Refusal, echo: Echo<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&refusal.start);
        self.rest_of_head(refusal.text.len(), echo, out);
        out.extend_from_slice(&refusal.text);
    }

    fn head(&mut self, body_len: usize, echo: Echo<'_>, out: &mut Vec<u8>) {
        if !echo.is_empty() {
            out.extend_from_slice(&self.start);
            return self.rest_of_head(body_len, echo, out);
        }
        let head = match body_len {
            Timestamp::LEN => &self.one,
            TimestampRange::LEN => &self.range,
            _ => {
                if self.list.0 != body_len as u64 {
                    self.list = (body_len as u64, self.whole(body_len));
                }
                &self.list.1
            }
        };
        out.extend_from_slice(head);
    }

    fn whole(&self, body_len: usize) -> Vec<u8> {
        let mut head = self.start.clone();
        self.rest_of_head(body_len, Echo::default(), &mut head);
        head
    }

    /// Appends the headers that differ, in the order in which hyper writes them.
    fn rest_of_head(&self, body_len: usize, echo: Echo<'_>, out: &mut Vec<u8>) {
        if !echo.request_id.is_empty() {
            out.extend_from_slice(HEADER_REQUEST_ID.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(echo.request_id);
            out.extend_from_slice(b"\r\n");
        }
        if echo.closes {
            out.extend_from_slice(b"connection: close\r\n");
        }
        // Writing to a vector does not fail.
        let _ = write!(out, "content-length: {body_len}\r\n");
        out.extend_from_slice(&self.date);
    }
}

/// A refusal that several requests get.
#[derive(Debug)]
pub(super) struct Refusal {
    start: Vec<u8>,
    text: bytes::Bytes,
}

impl Refusal {
    /// What `answer` is as bytes.
    ///
    /// # Panics
    /// When it is not wholly in memory.
    pub(super) fn new(answer: Answer) -> Self {
        let start = start_of(&answer);
        match answer.into_body() {
            Body::Whole(text) => Self { start, text },
            body => panic!("a refusal is a line of text, not {body:?}"),
        }
    }
}

/// The status line of an answer, and its own headers.
fn start_of(answer: &Answer) -> Vec<u8> {
    let status = answer.status();
    let mut start = format!("HTTP/1.1 {} ", status.as_str()).into_bytes();
    start.extend_from_slice(status.canonical_reason().unwrap_or("<none>").as_bytes());
    start.extend_from_slice(b"\r\n");
    for (name, value) in answer.headers() {
        start.extend_from_slice(name.as_str().as_bytes());
        start.extend_from_slice(b": ");
        start.extend_from_slice(value.as_bytes());
        start.extend_from_slice(b"\r\n");
    }
    start
}

/// The `Date` header, and the empty line behind the head. A clock that no date can be made of gets
/// no header (RFC 9110, 6.6.1: a server without a clock sends none).
fn date_and_end(now: SystemTime) -> Vec<u8> {
    let date = jiff::Timestamp::try_from(now)
        .and_then(|now| DateTimePrinter::new().timestamp_to_rfc9110_string(&now));
    match date {
        Ok(date) => format!("date: {date}\r\n\r\n").into_bytes(),
        Err(_) => b"\r\n".to_vec(),
    }
}

/// Appends every timestamp of a range.
fn write_list(range: &TimestampRange, out: &mut Vec<u8>) {
    let Timestamp { epoch, index: EpochIndex(first) } = range.first();
    if range.count() == 1 {
        return out.extend_from_slice(&range.first().to_bytes());
    }
    let start = out.len();
    out.resize(start + range.count() as usize * Timestamp::LEN, 0);
    let (places, _) = out[start..].as_chunks_mut();
    for (place, at) in places.iter_mut().zip(0..) {
        // The range does not go beyond the last index.
        *place = Timestamp::new(epoch, EpochIndex(first + at)).to_bytes();
    }
}
