//! One HTTP/2 connection as its client sees it: which streams are open, what the peer allows and
//! what came. Bytes in, answers out; it has no socket and no clock.
//!
//! Every limit of the peer is honoured, and every one that the peer breaks ends the session with an
//! error that says which (RFC 9113, sections 5 and 6): nothing after it can be believed.

use std::collections::VecDeque;

use epicepoch_wire::http::{HEADER_ERROR, HEADER_LEADER};
use epicepoch_wire::http2::frame::{self, Frame, ID_MAX, TooLong, code, flag, kind, setting};
use epicepoch_wire::http2::hpack::{Decoder, HpackError};
use thiserror::Error;

use super::request::Request;

/// Bytes of one answer that may come: the largest `n` fits, so that a stream needs no update.
pub const STREAM_WINDOW: u32 = 2 << 20;
/// Bytes of all answers that may be under way. What was read is given back by half windows.
pub const CONNECTION_WINDOW: u32 = 16 << 20;
/// What the window of a connection is before anybody changes it.
const WINDOW_AT_FIRST: u32 = 65_535;
/// Longest header block of an answer, bytes.
pub const BLOCK_LEN_MAX: usize = 16 << 10;
/// CONTINUATION frames of one header block: they may be empty, and would never end.
const CONTINUATIONS_MAX: usize = 16;
/// From the oldest stream that is open to the newest: while one answer is missing and others come,
/// they are remembered.
pub const SPAN_MAX: usize = 1 << 18;
/// No stream.
const NONE: u32 = u32::MAX;

/// Why a session is over.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionError {
    /// The peer does not do as HTTP/2 says.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The peer sends more than it was allowed to.
    #[error("the peer sends more than the window of {0} allows")]
    FlowControl(&'static str),
    /// A header block that cannot be decoded.
    #[error(transparent)]
    Hpack(#[from] HpackError),
    /// A frame, a header block or an answer that is longer than allowed.
    #[error("the peer sends {0} that is longer than allowed")]
    TooLong(&'static str),
    /// An answer on a stream where nothing is open: never asked, or answered already.
    #[error("an answer that nobody waits for, on stream {0}")]
    Unasked(u32),
}

impl From<TooLong> for SessionError {
    fn from(_: TooLong) -> Self {
        Self::TooLong("a frame")
    }
}

/// What a frame meant. A slot is the place of an open stream, less than the depth of the session;
/// it is free again with the event that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Nothing to the caller.
    Nothing,
    /// An answer is whole.
    Answer(Answer<'a>),
    /// The peer ended a stream without an answer.
    Reset {
        /// Its slot.
        slot: usize,
        /// The peer says that it has not looked at the request.
        is_unseen: bool,
    },
    /// The peer takes no more requests. See [`Session::poll_unseen`].
    GoingAway,
}

/// An answer, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The slot of its request.
    pub slot: usize,
    /// The status code.
    pub status: u16,
    /// The header `epicepoch-error`, where the status is not 200.
    pub error: Option<&'a str>,
    /// The header `epicepoch-leader`, where the status is not 200.
    pub leader: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    request: Request,
    decoder: Decoder,
    /// Whether the last block that was decoded said 200.
    is_last_ok: bool,
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// The slot of stream `first_id + 2 * index`, or [`NONE`] if it is over; the front is open.
    order: VecDeque<u32>,
    first_id: u32,
    next_id: u32,
    /// Streams that were cancelled here: what still comes of them is no answer to anybody.
    cancelled: Vec<u32>,
    streams_max: u32,
    has_settings: bool,
    /// The last stream that is answered, once the peer goes away.
    last_id: Option<u32>,
    /// What may still come, bytes.
    window: u32,
    /// What may be sent: nothing is, but the peer must not give more than there can be.
    send_window: u64,
    /// A header block that is not whole.
    block: Vec<u8>,
    continued: Option<Continued>,
}

/// The header block that comes in parts.
#[derive(Clone, Copy, Debug)]
struct Continued {
    stream: u32,
    is_end: bool,
    parts: usize,
}

/// A request that is open.
#[derive(Debug, Default)]
struct Stream {
    id: u32,
    /// 0 until the headers of the answer have come.
    status: u16,
    window: u32,
    body: Vec<u8>,
    error: String,
    leader: String,
}

impl Session {
    /// Begins a connection on which at most `depth` requests are open at once, all of them
    /// `request`. What is to be sent first is appended to `out`.
    #[must_use]
    pub fn new(depth: usize, request: Request, out: &mut Vec<u8>) -> Self {
        Self::beginning_at(1, depth, request, out)
    }

    /// [`Self::new`], whose first stream has this number: all that are below it are over.
    ///
    /// # Panics
    /// If it is none of a client's, which are odd.
    #[must_use]
    pub fn beginning_at(first_id: u32, depth: usize, request: Request, out: &mut Vec<u8>) -> Self {
        assert!(first_id % 2 == 1 && first_id <= ID_MAX, "a stream of a client");
        out.extend_from_slice(frame::PREFACE);
        let window = (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW);
        frame::put_settings(out, &[(setting::ENABLE_PUSH, 0), window]);
        put_window_update(out, CONNECTION_WINDOW - WINDOW_AT_FIRST);
        Self {
            request,
            decoder: Decoder::default(),
            is_last_ok: false,
            slots: (0..depth).map(|_| Stream::default()).collect(),
            free: (0..depth as u32).rev().collect(),
            order: VecDeque::with_capacity(depth),
            first_id,
            next_id: first_id,
            cancelled: Vec::new(),
            streams_max: ID_MAX,
            has_settings: false,
            last_id: None,
            window: CONNECTION_WINDOW,
            send_window: WINDOW_AT_FIRST.into(),
            block: Vec::new(),
            continued: None,
        }
    }

    /// Whether the peer has said what it allows: nothing should be asked before.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_settings
    }

    /// Requests that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another request may be sent.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
            && self.open() < self.streams_max as usize
            && self.last_id.is_none()
            && self.order.len() < SPAN_MAX
            && self.next_id <= ID_MAX
    }

    /// The slot that has been open for longest.
    #[must_use]
    pub fn oldest(&self) -> Option<usize> {
        self.order.front().map(|slot| *slot as usize)
    }

    /// Sends a request, and says in which slot it is.
    ///
    /// # Panics
    /// If there is no room.
    pub fn ask(&mut self, out: &mut Vec<u8>) -> usize {
        assert!(self.has_room(), "room for a request");
        let slot = self.free.pop().expect("room is a free slot");
        let id = self.next_id;
        let stream = &mut self.slots[slot as usize];
        (stream.id, stream.status, stream.window) = (id, 0, STREAM_WINDOW);
        stream.body.clear();
        stream.error.clear();
        stream.leader.clear();
        self.order.push_back(slot);
        self.next_id += 2;
        let flags = flag::END_HEADERS | flag::END_STREAM;
        frame::put_head(out, self.request.len(), kind::HEADERS, flags, id);
        self.request.put(out);
        slot as usize
    }

    /// Gives up a request.
    pub fn cancel(&mut self, slot: usize, out: &mut Vec<u8>) {
        let id = self.slots[slot].id;
        frame::put(out, kind::RST_STREAM, 0, id, &code::CANCEL.to_be_bytes());
        self.cancelled.push(id);
        self.close(id);
    }

    /// A request that the peer, which goes away, will not look at; it is open no more.
    pub fn poll_unseen(&mut self) -> Option<usize> {
        let last = self.last_id?;
        let newest = self.order.iter().rposition(|slot| *slot != NONE)?;
        let slot = self.order[newest] as usize;
        let id = self.slots[slot].id;
        (id > last).then(|| {
            self.close(id);
            slot
        })
    }

    /// Takes in the frame at the front of `input`: how long it was and what it meant. `None` as
    /// long as bytes are missing. Answers to the peer are appended to `out`.
    ///
    /// # Errors
    /// The connection is of no more use after any of them.
    pub fn receive<'a>(
        &'a mut self,
        input: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Event<'a>)>, SessionError> {
        let Some(frame) = Frame::split(input)? else { return Ok(None) };
        let len = frame.len();
        if self.continued.is_some() != (frame.kind == kind::CONTINUATION) {
            return Err(SessionError::Protocol("a header block is interrupted, or nowhere begun"));
        }
        if !self.has_settings && (frame.kind != kind::SETTINGS || frame.has(flag::ACK)) {
            return Err(SessionError::Protocol("it does not begin with its settings"));
        }
        let meaning = match frame.kind {
            kind::DATA => self.data(&frame, out)?,
            kind::HEADERS => self.headers(&frame)?,
            kind::CONTINUATION => self.continuation(&frame)?,
            kind::RST_STREAM => self.reset(&frame)?,
            kind::SETTINGS => self.settings(&frame, out)?,
            kind::PING => ping(&frame, out)?,
            kind::GOAWAY => self.go_away(&frame)?,
            kind::WINDOW_UPDATE => self.window_update(&frame)?,
            kind::PUSH_PROMISE => return Err(SessionError::Protocol("it pushes")),
            kind::PRIORITY if frame.payload.len() != PRIORITY_LEN || frame.stream == 0 => {
                return Err(MALFORMED);
            }
            _ => Meaning::Nothing,
        };
        let event = match meaning {
            Meaning::Nothing => Event::Nothing,
            Meaning::GoingAway => Event::GoingAway,
            Meaning::Reset { slot, is_unseen } => Event::Reset { slot, is_unseen },
            Meaning::Whole { slot, last } => Event::Answer(self.answer(slot, last)),
        };
        Ok(Some((len, event)))
    }

    /// The answer that is whole with these bytes. Its slot is free.
    fn answer<'a>(&'a mut self, slot: usize, last: &'a [u8]) -> Answer<'a> {
        self.close(self.slots[slot].id);
        let stream = &mut self.slots[slot];
        // Nearly always a body is one frame, and is never copied.
        let body = if stream.body.is_empty() {
            last
        } else {
            stream.body.extend_from_slice(last);
            &stream.body
        };
        let is_refusal = stream.status != STATUS_OK;
        let text = |text: &'a String| (is_refusal && !text.is_empty()).then_some(text.as_str());
        let (error, leader) = (text(&stream.error), text(&stream.leader));
        Answer { slot, status: stream.status, error, leader, body }
    }

    fn data<'a>(
        &mut self,
        frame: &Frame<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Meaning<'a>, SessionError> {
        // Padding counts too, and so does what nobody waits for.
        let len = frame.payload.len() as u32;
        let left = self.window.checked_sub(len);
        self.window = left.ok_or(SessionError::FlowControl("the connection"))?;
        if self.window < CONNECTION_WINDOW / 2 {
            put_window_update(out, CONNECTION_WINDOW - self.window);
            self.window = CONNECTION_WINDOW;
        }
        let data = frame.unpadded().ok_or(MALFORMED)?;
        let Some(slot) = self.slot(frame.stream)? else { return Ok(Meaning::Nothing) };
        let stream = &mut self.slots[slot];
        let left = stream.window.checked_sub(len);
        stream.window = left.ok_or(SessionError::FlowControl("a stream"))?;
        if stream.status == 0 {
            return Err(SessionError::Protocol("a body comes before its headers"));
        }
        if frame.has(flag::END_STREAM) {
            return Ok(Meaning::Whole { slot, last: data });
        }
        stream.body.extend_from_slice(data);
        Ok(Meaning::Nothing)
    }

    fn headers<'a>(&mut self, frame: &Frame<'a>) -> Result<Meaning<'a>, SessionError> {
        let mut block = frame.unpadded().ok_or(MALFORMED)?;
        if frame.has(flag::PRIORITY) {
            block = block.get(PRIORITY_LEN..).ok_or(MALFORMED)?;
        }
        let is_end = frame.has(flag::END_STREAM);
        if frame.has(flag::END_HEADERS) {
            return self.header_block(frame.stream, block, is_end);
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        self.continued = Some(Continued { stream: frame.stream, is_end, parts: 0 });
        Ok(Meaning::Nothing)
    }

    fn continuation<'a>(&mut self, frame: &Frame<'a>) -> Result<Meaning<'a>, SessionError> {
        let mut continued = self.continued.take().expect("checked: a block is open");
        if continued.stream != frame.stream {
            return Err(SessionError::Protocol("a header block goes on in another stream"));
        }
        continued.parts += 1;
        let len = self.block.len() + frame.payload.len();
        if continued.parts > CONTINUATIONS_MAX || len > BLOCK_LEN_MAX {
            return Err(SessionError::TooLong("a header block"));
        }
        self.block.extend_from_slice(frame.payload);
        if !frame.has(flag::END_HEADERS) {
            self.continued = Some(continued);
            return Ok(Meaning::Nothing);
        }
        let block = std::mem::take(&mut self.block);
        let meaning = self.header_block(continued.stream, &block, continued.is_end);
        self.block = block;
        meaning
    }

    /// Headers that are whole: of an answer, of one before it (1xx), or behind its body.
    fn header_block<'a>(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
    ) -> Result<Meaning<'a>, SessionError> {
        let slot = self.slot(id)?;
        let mut stream = slot.map(|slot| &mut self.slots[slot]);
        let is_first = stream.as_ref().is_some_and(|stream| stream.status == 0);
        let status = if self.is_last_ok && self.decoder.is_repeated(block) {
            Some(STATUS_OK)
        } else {
            let mut status = None;
            // Even what nobody waits for changes the tables.
            self.decoder.decode(block, |name, value| {
                if name == b":status" {
                    status = Some(number_of(value));
                } else if let Some(stream) = stream.as_mut().filter(|_| is_first) {
                    stream.note(name, value);
                }
            })?;
            self.is_last_ok = status == Some(STATUS_OK);
            status
        };
        let (Some(stream), Some(slot)) = (stream, slot) else { return Ok(Meaning::Nothing) };
        match status {
            None if !is_first && is_end => {}
            Some(100..=199) if is_first && !is_end => {
                stream.error.clear();
                stream.leader.clear();
            }
            Some(status @ 200..=999) if is_first => stream.status = status,
            _ => return Err(SessionError::Protocol("headers are not those of an answer")),
        }
        Ok(if is_end { Meaning::Whole { slot, last: &[] } } else { Meaning::Nothing })
    }

    fn reset<'a>(&mut self, frame: &Frame<'_>) -> Result<Meaning<'a>, SessionError> {
        let code = u32::from_be_bytes(frame.payload.try_into().map_err(|_| MALFORMED)?);
        let id = self.begun(frame.stream)?;
        // One that is over may be reset after its answer.
        let Some(slot) = self.open_slot(id) else { return Ok(Meaning::Nothing) };
        self.close(id);
        Ok(Meaning::Reset { slot, is_unseen: code == code::REFUSED_STREAM })
    }

    fn settings<'a>(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Meaning<'a>, SessionError> {
        let (settings, rest) = frame.payload.as_chunks::<{ frame::SETTING_LEN }>();
        let is_ack = frame.has(flag::ACK);
        if frame.stream != 0 || !rest.is_empty() || (is_ack && !settings.is_empty()) {
            return Err(MALFORMED);
        }
        if is_ack {
            return Ok(Meaning::Nothing);
        }
        for [high, low, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*high, *low]) {
                setting::HEADER_TABLE_SIZE => self.request.limit_table(value as usize),
                setting::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                setting::ENABLE_PUSH if value != 0 => {
                    return Err(SessionError::Protocol("a server that says that it may push"));
                }
                setting::INITIAL_WINDOW_SIZE if value > ID_MAX => {
                    return Err(SessionError::Protocol("a window beyond any"));
                }
                // Nothing that is sent here is longer than the shortest that a peer may set.
                _ => {}
            }
        }
        self.has_settings = true;
        frame::put(out, kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(Meaning::Nothing)
    }

    fn go_away<'a>(&mut self, frame: &Frame<'_>) -> Result<Meaning<'a>, SessionError> {
        // The last stream, a code and a text; whatever the code is, nothing more is answered.
        let (last, _) = frame.payload.split_first_chunk::<4>().ok_or(MALFORMED)?;
        if frame.stream != 0 || frame.payload.len() < GOAWAY_LEN_MIN {
            return Err(MALFORMED);
        }
        let last = u32::from_be_bytes(*last) & ID_MAX;
        if self.last_id.is_some_and(|before| before < last) {
            return Err(SessionError::Protocol("it goes away and takes more requests"));
        }
        self.last_id = Some(last);
        Ok(Meaning::GoingAway)
    }

    fn window_update<'a>(&mut self, frame: &Frame<'_>) -> Result<Meaning<'a>, SessionError> {
        let more = u32::from_be_bytes(frame.payload.try_into().map_err(|_| MALFORMED)?) & ID_MAX;
        if more == 0 {
            return Err(SessionError::Protocol("a window that grows by nothing"));
        }
        if frame.stream != 0 {
            self.begun(frame.stream)?;
            return Ok(Meaning::Nothing);
        }
        self.send_window += u64::from(more);
        if self.send_window > u64::from(ID_MAX) {
            return Err(SessionError::Protocol("a window beyond any"));
        }
        Ok(Meaning::Nothing)
    }

    /// A stream that a request was sent on.
    fn begun(&self, id: u32) -> Result<u32, SessionError> {
        let is_begun = id % 2 == 1 && id < self.next_id;
        is_begun.then_some(id).ok_or(SessionError::Protocol("a frame on a stream that is idle"))
    }

    fn open_slot(&self, id: u32) -> Option<usize> {
        let at = id.checked_sub(self.first_id)? / 2;
        let slot = self.order.get(at as usize).filter(|slot| **slot != NONE)?;
        Some(*slot as usize)
    }

    /// The slot of a stream with an answer to it; `None` if the answer was given up.
    fn slot(&self, id: u32) -> Result<Option<usize>, SessionError> {
        let slot = (id % 2 == 1).then(|| self.open_slot(id)).flatten();
        if slot.is_none() && !self.cancelled.contains(&id) {
            return Err(SessionError::Unasked(id));
        }
        Ok(slot)
    }

    fn close(&mut self, id: u32) {
        let at = (id - self.first_id) / 2;
        let slot = std::mem::replace(&mut self.order[at as usize], NONE);
        assert_ne!(slot, NONE, "a stream ends once");
        self.free.push(slot);
        while self.order.front() == Some(&NONE) {
            self.order.pop_front();
            self.first_id += 2;
        }
    }
}

impl Stream {
    /// Keeps what a refusal says.
    fn note(&mut self, name: &[u8], value: &[u8]) {
        let field = match name {
            _ if name == HEADER_ERROR.as_bytes() => &mut self.error,
            _ if name == HEADER_LEADER.as_bytes() => &mut self.leader,
            _ => return,
        };
        field.clear();
        field.push_str(std::str::from_utf8(value).unwrap_or_default());
    }
}

/// What a frame meant, before anything is lent to the caller.
enum Meaning<'a> {
    Nothing,
    Whole { slot: usize, last: &'a [u8] },
    Reset { slot: usize, is_unseen: bool },
    GoingAway,
}

fn ping<'a>(frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Meaning<'a>, SessionError> {
    if frame.stream != 0 || frame.payload.len() != PING_LEN {
        return Err(MALFORMED);
    }
    if !frame.has(flag::ACK) {
        frame::put(out, kind::PING, flag::ACK, 0, frame.payload);
    }
    Ok(Meaning::Nothing)
}

fn put_window_update(out: &mut Vec<u8>, more: u32) {
    frame::put(out, kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
}

/// A status code: three digits; 0 is none.
fn number_of(status: &[u8]) -> u16 {
    let is_number = status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(status).ok().filter(|_| is_number);
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

const STATUS_OK: u16 = 200;
const PRIORITY_LEN: usize = 5;
const PING_LEN: usize = 8;
const GOAWAY_LEN_MIN: usize = 8;
const MALFORMED: SessionError = SessionError::Protocol("a frame that is not as its kind must be");
