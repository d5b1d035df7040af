//! Header blocks of answers (RFC 7541). Those with timestamps use the client's table: the first of a
//! second, on each connection, puts all of its headers there, and those behind it are a byte for
//! each. Other answers are rare, and leave the table alone. The table is emptied before it is filled,
//! so that what is in it needs no account of what was.

use std::rc::Rc;

use epicepoch_wire::http::HEADER_REQUEST_ID;
use epicepoch_wire::http2::frame::{self, HEAD_LEN, flag, kind};
use epicepoch_wire::http2::hpack::{INDEXED, KEPT, NEWEST, SIZE_UPDATE, TABLE_LEN_MAX, put_string};
use epicepoch_wire::{EpochIndex, Timestamp, TimestampRange};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderValue};

use super::super::answer;
use super::super::body::Body;
use super::super::date::Date;
use super::super::query::{Ask, Format};
use crate::worker::sequencer::Sequencer;
use crate::worker::view::View;

/// Bytes of the client's table that are used; what is put there takes a third of it.
const TABLE_LEN: usize = 1024;
/// What says so: the size is 0, then [`TABLE_LEN`], which is 31 + 0x61 + (7 << 7).
const TABLE_ANEW: [u8; 4] = [SIZE_UPDATE, SIZE_UPDATE | 0x1f, 0x80 | 0x61, 7];
const _: () = assert!(TABLE_LEN == 0x1f + 0x61 + (7 << 7));

/// Indexes of the static table (RFC 7541, appendix A).
mod index {
    pub(super) const STATUS: u8 = 8;
    pub(super) const CACHE_CONTROL: u8 = 24;
    pub(super) const CONTENT_LENGTH: u8 = 28;
    pub(super) const CONTENT_TYPE: u8 = 31;
    pub(super) const DATE: u8 = 33;
}

/// Statuses that the static table has, with their indexes.
const STATUSES: [(u16, u8); 4] = [(200, 8), (400, 12), (404, 13), (500, 14)];

/// What a connection's client has in its table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    holds: Holds,
    /// Whether it is large enough.
    is_usable: bool,
    /// Whether it was made smaller, maybe, and was not emptied since (section 4.2).
    is_changed: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { holds: Holds::Other, is_usable: true, is_changed: false }
    }
}

/// The headers of which generation of [`Heads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Other,
    /// All but the length.
    Rest(u64),
    /// Behind these, as the oldest, the length of one timestamp.
    All(u64),
}

impl Table {
    /// Notes how large the client lets it be.
    pub(super) fn resize(&mut self, len: usize) {
        *self = Self { holds: Holds::Other, is_usable: len >= TABLE_LEN, is_changed: true };
    }

    /// Begins a block that leaves the table alone.
    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_changed) {
            out.push(SIZE_UPDATE);
        }
    }
}

/// The answers of one worker, as far as they are the same: made again when the second of the `Date`
/// or the publication has changed.
#[derive(Debug)]
pub(super) struct Heads {
    view: Rc<View>,
    date: Date,
    dated: Option<HeaderValue>,
    generation: u64,
    /// Status and headers without the length, as literals that no table keeps.
    plain: Vec<u8>,
    /// The same, put into an empty table.
    rest: Vec<u8>,
    /// The same from the table.
    rest_again: Vec<u8>,
    /// With the length of one timestamp, put into an empty table.
    all: Vec<u8>,
    /// Both frames of the answer with one timestamp, with everything from the table.
    one: Vec<u8>,
}

impl Heads {
    /// The heads of answers that are given now.
    pub(super) fn new(sequencer: &Sequencer) -> Self {
        let mut heads = Self {
            view: sequencer.view(),
            date: Date::default(),
            dated: None,
            generation: 0,
            plain: Vec::new(),
            rest: Vec::new(),
            rest_again: Vec::new(),
            all: Vec::new(),
            one: Vec::new(),
        };
        heads.dated = heads.date.at(sequencer.shared.clock.monotonic_ns());
        heads.make();
        heads
    }

    /// Makes them new if they are of another second or another publication. The time is that of the
    /// worker's last clock reading, a round trip or an idle tick ago.
    pub(super) fn refresh(&mut self, sequencer: &Sequencer) {
        let view = sequencer.view();
        let dated = self.date.at(sequencer.recent_ns());
        if dated != self.dated || !Rc::ptr_eq(&view, &self.view) {
            (self.view, self.dated) = (view, dated);
            self.make();
        }
    }

    fn make(&mut self) {
        self.generation += 1;
        let answer = answer::timestamps(&self.view, Format::Binary, Body::Empty);
        let mut headers = answer.headers().clone();
        headers.extend(self.dated.iter().map(|date| (DATE, date.clone())));
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
        self.plain = [&status[..], &literals(0)].concat();
        self.rest = [&TABLE_ANEW[..], &status, &literals(KEPT)].concat();
        self.rest_again = [&status[..], &from_table].concat();
        self.all = [&TABLE_ANEW[..], &status, &kept_length, &literals(KEPT)].concat();
        self.one.clear();
        let block = [&self.rest_again[..], &[NEWEST + count]].concat();
        frame::put(&mut self.one, kind::HEADERS, flag::END_HEADERS, 0, &block);
        frame::put(&mut self.one, kind::DATA, flag::END_STREAM, 0, &[0; Timestamp::LEN]);
    }

    /// Appends the whole answer with one timestamp and no request id.
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
        self.head(table, id, Timestamp::LEN, &[], out);
        frame::put(out, kind::DATA, flag::END_STREAM, id, &stamp.to_bytes());
    }

    /// Appends the head of an answer with timestamps.
    pub(super) fn head(
        &self,
        table: &mut Table,
        id: u32,
        body_len: usize,
        request_id: &[u8],
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
        put_request_id(request_id, out);
        end_head(at, flag::END_HEADERS, id, out);
    }

    /// Appends the head of any answer, with the `Date`.
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
        if let Some(date) = &self.dated {
            put_literal(0, index::DATE, DATE.as_str(), date.as_bytes(), out);
        }
        put_request_id(request_id, out);
        let flags =
            if answer.ends { flag::END_HEADERS | flag::END_STREAM } else { flag::END_HEADERS };
        end_head(at, flags, id, out);
    }
}

/// The head of an answer that is not one with timestamps, or that is rare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other<'a> {
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
    /// Bytes of the body, if that is known.
    pub(super) body_len: Option<u64>,
    /// Whether no body comes.
    pub(super) ends: bool,
}

/// Appends every timestamp of a range, or the range as such.
pub(super) fn put_body(ask: Ask, range: &TimestampRange, out: &mut Vec<u8>) {
    match ask.format {
        Format::Range => out.extend_from_slice(&range.to_bytes()),
        // JSON is never asked for here.
        Format::Binary | Format::Json => {
            let Timestamp { epoch, index: EpochIndex(first) } = range.first();
            for at in 0..range.count() {
                // The range does not go beyond the last index.
                let stamp = Timestamp::new(epoch, EpochIndex(first + at));
                out.extend_from_slice(&stamp.to_bytes());
            }
        }
    }
}

/// Bytes of the body of a hot answer.
pub(super) fn body_len(ask: Ask) -> usize {
    match ask.format {
        Format::Range => TimestampRange::LEN,
        Format::Binary | Format::Json => ask.count as usize * Timestamp::LEN,
    }
}

/// Leaves room for the head of a frame; returns where.
fn begin_head(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; HEAD_LEN]);
    at
}

/// Writes the head of the frame that began there.
///
/// # Panics
/// When it is longer than any client must take: the headers of an answer never are.
fn end_head(at: usize, flags: u8, id: u32, out: &mut [u8]) {
    let len = out.len() - at - HEAD_LEN;
    assert!(len <= frame::PAYLOAD_LEN_MAX, "the head of an answer of {len} bytes");
    out[at..at + 3].copy_from_slice(&(len as u32).to_be_bytes()[1..]);
    (out[at + 3], out[at + 4]) = (kind::HEADERS, flags);
    out[at + 5..at + HEAD_LEN].copy_from_slice(&id.to_be_bytes());
}

/// Appends a field: its name by an index of the static table, or by itself where that is 0.
fn put_literal(literal: u8, index: u8, name: &str, value: &[u8], out: &mut Vec<u8>) {
    // The prefix of a literal that is not kept has four bits, the other has six.
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
