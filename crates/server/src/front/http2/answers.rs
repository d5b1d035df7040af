//! Header blocks of answers (RFC 7541). Answers with timestamps use the client's header table. In
//! each second, the first such answer on a connection stores all its headers in the table; later
//! answers need one byte per header. Other answers are rare and do not change the table. The table
//! is emptied before it is filled, so the node need not track its contents.

use epicepoch_wire::http::{HEADER_PROOF, HEADER_REQUEST_ID};
use epicepoch_wire::http2::frame::{self, HEAD_LEN, flag, kind};
use epicepoch_wire::http2::hpack::{INDEXED, KEPT, NEWEST, SIZE_UPDATE, TABLE_LEN_MAX, put_string};
use epicepoch_wire::{ProvedBy, Timestamp};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderValue};

use crate::front::routes::answer;
use crate::front::routes::body::Body;
use crate::front::routes::date::{Date, Templates};
use crate::front::routes::query::Format;
use crate::worker::view::View;

/// Bytes of the client's table that the node uses. The node's headers fill a third of them.
const TABLE_LEN: usize = 1024;
/// The size updates that empty the table: to size 0, then to [`TABLE_LEN`], which is 31 + 0x61 + (7
/// << 7).
const TABLE_ANEW: [u8; 4] = [SIZE_UPDATE, SIZE_UPDATE | 0x1f, 0x80 | 0x61, 7];
const _: () = assert!(TABLE_LEN == 0x1f + 0x61 + (7 << 7));

/// Indexes of the static table (RFC 7541, appendix A).
pub(super) mod index {
    pub(in crate::front::http2) const STATUS: u8 = 8;
    pub(super) const CACHE_CONTROL: u8 = 24;
    pub(super) const CONTENT_LENGTH: u8 = 28;
    pub(in crate::front::http2) const CONTENT_TYPE: u8 = 31;
    pub(super) const DATE: u8 = 33;
}

/// The statuses of the static table, with their indexes.
const STATUSES: [(u16, u8); 4] = [(200, 8), (400, 12), (404, 13), (500, 14)];

/// The known state of a client's header table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    holds: Holds,
    /// Whether the table is large enough.
    is_usable: bool,
    /// Whether the client may have shrunk the table since it was last emptied (RFC 7541, 4.2).
    is_changed: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { holds: Holds::Other, is_usable: true, is_changed: false }
    }
}

/// Which headers the table holds. The number is the generation of the [`ResponseTemplates`] that
/// they are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Other,
    /// The table holds all headers except the length of the body.
    Rest(u64),
    /// The table holds all headers. Its oldest entry is the length of a body with one timestamp.
    All(u64),
}

impl Table {
    /// Records the largest size that the client allows, in bytes.
    pub(super) fn resize(&mut self, len: usize) {
        *self = Self { holds: Holds::Other, is_usable: len >= TABLE_LEN, is_changed: true };
    }

    /// Begins a block that does not use the table.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_changed) {
            out.push(SIZE_UPDATE);
        }
    }
}

/// The parts of answers that are the same for one worker.
#[derive(Debug, Default)]
pub(crate) struct ResponseTemplates {
    date: Option<HeaderValue>,
    generation: u64,
    /// Status and headers without the length, as literals that are not stored in a table.
    plain: Vec<u8>,
    /// Status and headers without the length. The client empties its table and stores them there.
    rest: Vec<u8>,
    /// Status and headers without the length, as indexes of the table that `rest` has filled.
    rest_again: Vec<u8>,
    /// Status and headers with the length of one timestamp. The client empties its table and
    /// stores them there.
    all: Vec<u8>,
    /// Both frames of the answer with one timestamp. All headers are read from the table.
    one: Vec<u8>,
}

impl Templates for ResponseTemplates {
    fn new(view: &View, date: &Date, generation: u64) -> Self {
        let mut headers =
            answer::timestamps(view, Format::Binary, Body::Empty).into_parts().0.headers;
        let date = date.value().cloned();
        headers.extend(date.clone().map(|date| (DATE, date)));
        let literals = |literal: u8| {
            let mut block = Vec::new();
            for (name, value) in &headers {
                let index = match name.as_str() {
                    "cache-control" => index::CACHE_CONTROL,
                    "content-type" => index::CONTENT_TYPE,
                    "date" => index::DATE,
                    _ => 0,
                };
                put_literal(literal, index, name.as_str(), value.as_bytes(), &mut block);
            }
            block
        };
        let status = [INDEXED | index::STATUS];
        let length = Timestamp::LEN.to_string();
        let mut kept_length = Vec::new();
        let name = CONTENT_LENGTH.as_str();
        put_literal(KEPT, index::CONTENT_LENGTH, name, length.as_bytes(), &mut kept_length);
        let count = headers.len() as u8;
        let from_table: Vec<u8> = (0..count).map(|at| NEWEST + at).collect();
        let rest_again = [&status[..], &from_table].concat();
        let (mut one, block) = (Vec::new(), [&rest_again[..], &[NEWEST + count]].concat());
        frame::put(&mut one, kind::HEADERS, flag::END_HEADERS, 0, &block);
        frame::put(&mut one, kind::DATA, flag::END_STREAM, 0, &[0; Timestamp::LEN]);
        Self {
            date,
            generation,
            plain: [&status[..], &literals(0)].concat(),
            rest: [&TABLE_ANEW[..], &status, &literals(KEPT)].concat(),
            rest_again,
            all: [&TABLE_ANEW[..], &status, &kept_length, &literals(KEPT)].concat(),
            one,
        }
    }
}

impl ResponseTemplates {
    /// Appends the whole answer with one timestamp and without a request id.
    pub(super) fn one(&self, table: &mut Table, id: u32, stamp: Timestamp, out: &mut Vec<u8>) {
        if table.holds == Holds::All(self.generation) {
            let start = out.len();
            out.extend_from_slice(&self.one);
            let answer = &mut out[start..];
            let body_at = answer.len() - Timestamp::LEN;
            let id = id.to_be_bytes();
            answer[HEAD_LEN - id.len()..HEAD_LEN].copy_from_slice(&id);
            answer[body_at - id.len()..body_at].copy_from_slice(&id);
            answer[body_at..].copy_from_slice(&stamp.to_bytes());
            return;
        }
        self.head(table, id, Timestamp::LEN, Echo::default(), out);
        frame::put(out, kind::DATA, flag::END_STREAM, id, &stamp.to_bytes());
    }

    /// Appends the head of an answer with timestamps.
    pub(super) fn head(
        &self,
        table: &mut Table,
        id: u32,
        body_len: usize,
        echo: Echo<'_>,
        out: &mut Vec<u8>,
    ) {
        let at = begin_head(out);
        let is_one = body_len == Timestamp::LEN;
        if !table.is_usable {
            table.begin(out);
            out.extend_from_slice(&self.plain);
            put_length(body_len, out);
        } else if table.holds == Holds::All(self.generation)
            || table.holds == Holds::Rest(self.generation) && !is_one
        {
            out.extend_from_slice(&self.rest_again);
            put_length(body_len, out);
        } else if is_one {
            (table.holds, table.is_changed) = (Holds::All(self.generation), false);
            out.extend_from_slice(&self.all);
        } else {
            (table.holds, table.is_changed) = (Holds::Rest(self.generation), false);
            out.extend_from_slice(&self.rest);
            put_length(body_len, out);
        }
        if let Some(proof) = echo.proof {
            put_literal(0, 0, HEADER_PROOF, proof.name().as_bytes(), out);
        }
        for (name, value) in echo.forwarded.into_iter().flat_map(View::forwarded_headers) {
            put_literal(0, 0, name, value.as_bytes(), out);
        }
        put_request_id(echo.request_id, out);
        end_head(at, flag::END_HEADERS, id, out);
    }

    /// Appends the head of any answer, including the `Date`.
    pub(super) fn other(
        &self,
        table: &mut Table,
        id: u32,
        answer: &Other<'_>,
        request_id: &[u8],
        out: &mut Vec<u8>,
    ) {
        let at = begin_head(out);
        table.begin(out);
        if let Some((_, index)) = STATUSES.iter().find(|(status, _)| *status == answer.status) {
            out.push(INDEXED | index);
        } else {
            let status = answer.status.to_string();
            put_literal(0, index::STATUS, ":status", status.as_bytes(), out);
        }
        for (name, value) in answer.headers {
            put_literal(0, 0, name.as_str(), value.as_bytes(), out);
        }
        if let Some(len) = answer.body_len
            && !answer.headers.contains_key(CONTENT_LENGTH)
        {
            put_length(len as usize, out);
        }
        if let Some(date) = &self.date {
            put_literal(0, index::DATE, DATE.as_str(), date.as_bytes(), out);
        }
        put_request_id(request_id, out);
        let flags =
            if answer.ends { flag::END_HEADERS | flag::END_STREAM } else { flag::END_HEADERS };
        end_head(at, flags, id, out);
    }
}

/// The parts of an answer with timestamps that depend on its request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo<'a> {
    /// The request id; empty if there is none.
    pub(super) request_id: &'a [u8],
    /// What has proved the answer, if the request names a guarantee.
    pub(super) proof: Option<ProvedBy>,
    /// If another node has answered: what this node knows of it.
    pub(super) forwarded: Option<&'a View>,
}

/// The head of an answer that has no timestamps, or of another rare answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other<'a> {
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
    /// Bytes of the body, if known.
    pub(super) body_len: Option<u64>,
    /// Whether the answer has no body.
    pub(super) ends: bool,
}

/// Reserves the head of a frame and returns its position.
pub(super) fn begin_head(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; HEAD_LEN]);
    at
}

/// Writes the head of the frame that begins at `at`.
///
/// # Panics
/// When the frame is longer than the length that every client must accept. The headers of an answer
/// are never that long.
pub(super) fn end_head(at: usize, flags: u8, id: u32, out: &mut [u8]) {
    let len = out.len() - at - HEAD_LEN;
    assert!(len <= frame::PAYLOAD_LEN_MAX, "the head of an answer of {len} bytes");
    out[at..at + 3].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    (out[at + 3], out[at + 4]) = (kind::HEADERS, flags);
    out[at + 5..at + HEAD_LEN].copy_from_slice(&id.to_be_bytes());
}

/// Appends a field. Its name is an index of the static table, or the text `name` if `index` is 0.
pub(super) fn put_literal(literal: u8, index: u8, name: &str, value: &[u8], out: &mut Vec<u8>) {
    // The index has a prefix of four bits, or of six if the table keeps the literal.
    let most = if literal == KEPT { 0x3f } else { 0x0f };
    if index < most {
        out.push(literal | index);
    } else {
        out.extend_from_slice(&[literal | most, index - most]);
    }
    if index == 0 {
        put_string(out, name.as_bytes());
    }
    put_string(out, value);
}

fn put_length(len: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), len);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    put_literal(0, index::CONTENT_LENGTH, CONTENT_LENGTH.as_str(), &digits[at..], out);
}

fn put_request_id(request_id: &[u8], out: &mut Vec<u8>) {
    if !request_id.is_empty() {
        put_literal(0, 0, HEADER_REQUEST_ID, request_id, out);
    }
}

const _: () = assert!(TABLE_LEN <= TABLE_LEN_MAX);
