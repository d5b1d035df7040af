//! Answers as the bytes that hyper would write. The templates hold everything that is the same for
//! all requests.

use std::io::Write as _;

use epicepoch_wire::http::{HEADER_PROOF, HEADER_REQUEST_ID};
use epicepoch_wire::{ProvedBy, Timestamp, TimestampRange};
use http::HeaderValue;

use crate::front::routes::answer::{self, Answer};
use crate::front::routes::body::Body;
use crate::front::routes::date::{Date, Templates};
use crate::front::routes::query::{Ask, Format};
use crate::worker::view::View;

/// The parts that are the same in all answers of this second.
#[derive(Debug, Default)]
pub(crate) struct ResponseTemplates {
    /// The `Date` header and the end of the head.
    date_and_end: Vec<u8>,
    /// The status line and headers of an answer with timestamps, up to the headers that differ.
    start: Vec<u8>,
    /// The whole head of an answer with one timestamp.
    one: Vec<u8>,
    /// The whole head of an answer with a range.
    range: Vec<u8>,
    /// The count of the latest list, and the whole head of its answer. A client that asks for a
    /// hundred usually asks for a hundred again.
    list: (u64, Vec<u8>),
}

/// The parts of an answer that depend on its request: the request id, the end of the connection, and
/// what has proved the answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo<'a> {
    /// The request id; empty if there is none.
    pub(super) request_id: &'a [u8],
    /// Whether the connection ends after this answer.
    pub(super) closes: bool,
    /// What has proved the answer, if the request names a guarantee.
    pub(super) proof: Option<ProvedBy>,
    /// If another node has answered: what this node knows of it.
    pub(super) forwarded: Option<&'a View>,
}

impl Echo<'_> {
    fn is_empty(&self) -> bool {
        self.request_id.is_empty()
            && !self.closes
            && self.proof.is_none()
            && self.forwarded.is_none()
    }
}

impl Templates for ResponseTemplates {
    fn new(view: &View, date: &Date, _: u64) -> Self {
        let mut templates = Self {
            date_and_end: date_and_end(date),
            start: start_of(&answer::timestamps(view, Format::Binary, Body::Empty)),
            one: Vec::new(),
            range: Vec::new(),
            list: (0, Vec::new()),
        };
        templates.one = templates.whole(Timestamp::LEN);
        templates.range = templates.whole(TimestampRange::LEN);
        templates
    }
}

impl ResponseTemplates {
    /// Appends the answer to `ask`. Its first timestamp is `first`.
    #[inline]
    pub(super) fn answer(&mut self, ask: Ask, echo: Echo<'_>, first: Timestamp, out: &mut Vec<u8>) {
        self.head(ask.body_len(), echo, out);
        ask.put_body(first, out);
    }

    /// Appends a refusal, or any other answer whose body is in memory.
    pub(super) fn refusal(&self, refusal: &RefusalTemplate, echo: Echo<'_>, out: &mut Vec<u8>) {
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

    /// Appends the headers that differ, in hyper's order.
    fn rest_of_head(&self, body_len: usize, echo: Echo<'_>, out: &mut Vec<u8>) {
        if let Some(proof) = echo.proof {
            // A write to a vector cannot fail.
            let _ = write!(out, "{HEADER_PROOF}: {proof}\r\n");
        }
        if let Some(view) = echo.forwarded {
            for (name, value) in view.forwarded_headers() {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(b": ");
                out.extend_from_slice(value.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
        if !echo.request_id.is_empty() {
            out.extend_from_slice(HEADER_REQUEST_ID.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(echo.request_id);
            out.extend_from_slice(b"\r\n");
        }
        if echo.closes {
            out.extend_from_slice(b"connection: close\r\n");
        }
        // A write to a vector cannot fail.
        let _ = write!(out, "content-length: {body_len}\r\n");
        out.extend_from_slice(&self.date_and_end);
    }
}

/// The bytes of a refusal that several requests get.
#[derive(Debug)]
pub(super) struct RefusalTemplate {
    start: Vec<u8>,
    text: bytes::Bytes,
}

impl RefusalTemplate {
    /// The bytes of `answer`.
    ///
    /// # Panics
    /// When its body is not wholly in memory.
    pub(super) fn new(answer: Answer) -> Self {
        let start = start_of(&answer);
        match answer.into_body() {
            Body::Whole(text) => Self { start, text },
            body => panic!("a refusal is a line of text, not {body:?}"),
        }
    }
}

/// The status line of an answer, and the headers that not every answer has.
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

/// The `Date` header, and the empty line behind the head. If the clock gives no valid date, the
/// header is left out (RFC 9110, 6.6.1: a server without a clock sends none).
fn date_and_end(date: &Date) -> Vec<u8> {
    let value = date.value().map(HeaderValue::as_bytes);
    value.map_or_else(|| b"\r\n".to_vec(), |value| [&b"date: "[..], value, b"\r\n\r\n"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_has_proved_it_and_nothing_else_differs() {
        let templates = ResponseTemplates::default();
        let head = |proof| {
            let mut out = Vec::new();
            templates.rest_of_head(16, Echo { proof, ..Echo::default() }, &mut out);
            String::from_utf8(out).expect("a head is text")
        };
        let plain = head(None);
        assert!(!plain.contains(HEADER_PROOF), "{plain}");
        for (proof, word) in [(ProvedBy::Round, "round"), (ProvedBy::Lease, "lease")] {
            assert_eq!(head(Some(proof)), format!("{HEADER_PROOF}: {word}\r\n{plain}"));
            assert!(!Echo { proof: Some(proof), ..Echo::default() }.is_empty());
        }
    }
}
