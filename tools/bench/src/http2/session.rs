//! One HTTP/2 connection of a client: its open streams, the server's limits and the answers. The
//! caller passes in the received bytes and gets answers. This module uses no socket and no clock.
//!
//! The session keeps every limit of the server. If the server breaks a limit or a rule, the session
//! ends with an error that names it (RFC 9113, 5 and 6).

use std::collections::VecDeque;

use epicepoch_wire::http::{HEADER_ERROR, HEADER_LEADER, HEADER_PROOF};
use epicepoch_wire::http2::frame::{self, Frame, ID_MAX, TooLong, code, flag, kind, setting};
use epicepoch_wire::http2::hpack::{Decoder, HpackError};
use thiserror::Error;

use super::request::Request;

/// Flow-control window of one stream, in bytes. The answer with the largest `n` fits, so no stream
/// needs a WINDOW_UPDATE.
pub const STREAM_WINDOW: u32 = 2 << 20;
/// Flow-control window of the connection, in bytes. A WINDOW_UPDATE is sent when half is used.
pub const CONNECTION_WINDOW: u32 = 16 << 20;
/// The window of a connection at its start (RFC 9113, 6.9.2).
const WINDOW_AT_FIRST: u32 = 65_535;
/// Longest header block of an answer, bytes.
pub const BLOCK_LEN_MAX: usize = 16 << 10;
/// One header block may have at most this many CONTINUATION frames. Without this limit, a server
/// could send empty ones for ever.
const CONTINUATIONS_MAX: usize = 16;
/// From the oldest open stream to the newest one there are at most this many streams. The limit is
/// needed because the session also remembers the answered streams between the two.
pub const SPAN_MAX: usize = 1 << 18;
/// Marks a stream that is over.
const NONE: u32 = u32::MAX;

/// Why a session is over.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionError {
    /// The server breaks a rule of HTTP/2.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The server sends more than its window.
    #[error("the peer sends more than the window of {0} allows")]
    FlowControl(&'static str),
    /// The header block cannot be decoded.
    #[error(transparent)]
    Hpack(#[from] HpackError),
    /// The server sent a frame, a header block or an answer that is longer than allowed.
    #[error("the peer sends {0} that is longer than allowed")]
    TooLong(&'static str),
    /// The server answered on a stream that was never opened or is already answered.
    #[error("an answer that nobody waits for, on stream {0}")]
    Unasked(u32),
}

impl From<TooLong> for SessionError {
    fn from(_: TooLong) -> Self {
        Self::TooLong("a frame")
    }
}

/// The meaning of a frame. A slot is the index of an open stream, below the depth of the session.
/// A reset frees the slot of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The caller need not do anything.
    Nothing,
    /// A whole answer. [`Session::answer`] returns it, and frees the slot.
    Answer {
        /// The slot of the stream.
        slot: usize,
        /// The end of the body.
        last: &'a [u8],
    },
    /// The server reset a stream before a whole answer came.
    Reset {
        /// The slot of the stream.
        slot: usize,
        /// Whether the server says that it did not process the request.
        is_unseen: bool,
    },
    /// The server accepts no more requests. See [`Session::poll_unseen`].
    GoingAway,
}

/// A complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// The header `epicepoch-error`, unless the status is 200.
    pub error: Option<&'a str>,
    /// The header `epicepoch-leader`, unless the status is 200.
    pub leader: Option<&'a str>,
    /// The header `epicepoch-proof`.
    pub proof: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    request: Request,
    decoder: Decoder,
    /// Whether the status of the last decoded block was 200.
    is_last_ok: bool,
    /// The header `epicepoch-proof` of the last decoded block; empty if it had none.
    last_proof: String,
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// The slot of stream `first_id + 2 * index`, or [`NONE`] if that stream has ended. The front
    /// one is open.
    order: VecDeque<u32>,
    first_id: u32,
    next_id: u32,
    /// Streams that this client has cancelled. Frames on them are ignored.
    cancelled: Vec<u32>,
    streams_max: u32,
    has_settings: bool,
    /// After a GOAWAY: the last stream that the server will answer.
    last_id: Option<u32>,
    /// The flow-control window of the connection: the server may still send this many bytes.
    window: u32,
    /// The window for sending. The client sends no body, but the server must not raise the window
    /// above the limit of HTTP/2.
    send_window: u64,
    /// The received part of a header block whose end has not come yet.
    block: Vec<u8>,
    continued: Option<Continued>,
}

/// The header block whose CONTINUATION frames are awaited.
#[derive(Clone, Copy, Debug)]
struct Continued {
    stream: u32,
    is_end: bool,
    parts: usize,
}

/// An open request.
#[derive(Debug, Default)]
struct Stream {
    id: u32,
    /// 0 until the headers of the answer have been received.
    status: u16,
    window: u32,
    body: Vec<u8>,
    error: String,
    leader: String,
    proof: String,
}

impl Session {
    /// Begins a connection with at most `depth` open requests. Each of them sends `request`.
    /// Appends the first bytes to send to `out`.
    #[must_use]
    pub fn new(depth: usize, request: Request, out: &mut Vec<u8>) -> Self {
        Self::beginning_at(1, depth, request, out)
    }

    /// Like [`Self::new`], but the first stream is `first_id`. Lower streams count as ended.
    ///
    /// # Panics
    /// If `first_id` is even: a client's streams are odd.
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
            last_proof: String::new(),
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

    /// Whether the server's settings have been received. No request may be sent before that.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_settings
    }

    /// Number of open requests.
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

    /// The slot of the request that has been open longest.
    #[must_use]
    pub fn oldest(&self) -> Option<usize> {
        self.order.front().map(|slot| *slot as usize)
    }

    /// Sends a request and returns its slot.
    ///
    /// # Panics
    /// If [`Self::has_room`] is false.
    pub fn ask(&mut self, out: &mut Vec<u8>) -> usize {
        assert!(self.has_room(), "room for a request");
        let slot = self.free.pop().expect("room is a free slot");
        let id = self.next_id;
        let stream = &mut self.slots[slot as usize];
        (stream.id, stream.status, stream.window) = (id, 0, STREAM_WINDOW);
        stream.body.clear();
        stream.error.clear();
        stream.leader.clear();
        stream.proof.clear();
        self.order.push_back(slot);
        self.next_id += 2;
        let flags = flag::END_HEADERS | flag::END_STREAM;
        frame::put_head(out, self.request.len(), kind::HEADERS, flags, id);
        self.request.put(out);
        slot as usize
    }

    /// Cancels a request.
    pub fn cancel(&mut self, slot: usize, out: &mut Vec<u8>) {
        let id = self.slots[slot].id;
        frame::put(out, kind::RST_STREAM, 0, id, &code::CANCEL.to_be_bytes());
        self.cancelled.push(id);
        self.close(id);
    }

    /// After a GOAWAY: closes one request that the server will not process, and returns its slot.
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

    /// Handles the frame at the front of `input`. Returns its length and meaning, or `None` if more
    /// bytes are needed. Appends replies to `out`.
    ///
    /// # Errors
    /// The connection is unusable after any error.
    pub fn receive<'a>(
        &mut self,
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
        let event = match frame.kind {
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
            _ => Event::Nothing,
        };
        Ok(Some((len, event)))
    }

    /// Returns the answer of an [`Event::Answer`], whose body ends with the bytes `last`. Frees its
    /// slot.
    pub fn answer<'a>(&'a mut self, slot: usize, last: &'a [u8]) -> Answer<'a> {
        self.close(self.slots[slot].id);
        let stream = &mut self.slots[slot];
        // Nearly every body comes in one frame; then it is not copied.
        let body = if stream.body.is_empty() {
            last
        } else {
            stream.body.extend_from_slice(last);
            &stream.body
        };
        let is_refusal = stream.status != STATUS_OK;
        let text = |text: &'a String| (!text.is_empty()).then_some(text.as_str());
        let refusal = |told: &'a String| text(told).filter(|_| is_refusal);
        let (error, leader) = (refusal(&stream.error), refusal(&stream.leader));
        Answer { status: stream.status, error, leader, proof: text(&stream.proof), body }
    }

    fn data<'a>(
        &mut self,
        frame: &Frame<'a>,
        out: &mut Vec<u8>,
    ) -> Result<Event<'a>, SessionError> {
        // Every DATA frame uses the window, including its padding, even if its stream was
        // cancelled.
        let len = frame.payload.len() as u32;
        let left = self.window.checked_sub(len);
        self.window = left.ok_or(SessionError::FlowControl("the connection"))?;
        if self.window < CONNECTION_WINDOW / 2 {
            put_window_update(out, CONNECTION_WINDOW - self.window);
            self.window = CONNECTION_WINDOW;
        }
        let data = frame.unpadded().ok_or(MALFORMED)?;
        let Some(slot) = self.slot(frame.stream)? else { return Ok(Event::Nothing) };
        let stream = &mut self.slots[slot];
        let left = stream.window.checked_sub(len);
        stream.window = left.ok_or(SessionError::FlowControl("a stream"))?;
        if stream.status == 0 {
            return Err(SessionError::Protocol("a body comes before its headers"));
        }
        if frame.has(flag::END_STREAM) {
            return Ok(Event::Answer { slot, last: data });
        }
        stream.body.extend_from_slice(data);
        Ok(Event::Nothing)
    }

    fn headers<'a>(&mut self, frame: &Frame<'a>) -> Result<Event<'a>, SessionError> {
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
        Ok(Event::Nothing)
    }

    fn continuation<'a>(&mut self, frame: &Frame<'a>) -> Result<Event<'a>, SessionError> {
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
            return Ok(Event::Nothing);
        }
        let block = std::mem::take(&mut self.block);
        let event = self.header_block(continued.stream, &block, continued.is_end);
        self.block = block;
        event
    }

    /// Handles a complete header block: of an answer, of an interim answer (1xx), or trailers.
    fn header_block<'a>(
        &mut self,
        id: u32,
        block: &[u8],
        is_end: bool,
    ) -> Result<Event<'a>, SessionError> {
        let slot = self.slot(id)?;
        let mut stream = slot.map(|slot| &mut self.slots[slot]);
        let is_first = stream.as_ref().is_some_and(|stream| stream.status == 0);
        let status = if self.is_last_ok && self.decoder.is_repeated(block) {
            Some(STATUS_OK)
        } else {
            let mut status = None;
            self.last_proof.clear();
            let last_proof = &mut self.last_proof;
            // Blocks of cancelled streams are decoded too, because they change the HPACK table.
            self.decoder.decode(block, |name, value| {
                if name == b":status" {
                    status = Some(number_of(value));
                } else if name == HEADER_PROOF.as_bytes() {
                    last_proof.push_str(std::str::from_utf8(value).unwrap_or(NO_TEXT));
                } else if let Some(stream) = stream.as_mut().filter(|_| is_first) {
                    stream.record(name, value);
                }
            })?;
            self.is_last_ok = status == Some(STATUS_OK);
            status
        };
        let (Some(stream), Some(slot)) = (stream, slot) else { return Ok(Event::Nothing) };
        match status {
            None if !is_first && is_end => {}
            Some(100..=199) if is_first && !is_end => {
                stream.error.clear();
                stream.leader.clear();
            }
            Some(status @ 200..=999) if is_first => {
                stream.status = status;
                stream.proof.push_str(&self.last_proof);
            }
            _ => return Err(SessionError::Protocol("headers are not those of an answer")),
        }
        Ok(if is_end { Event::Answer { slot, last: &[] } } else { Event::Nothing })
    }

    fn reset<'a>(&mut self, frame: &Frame<'_>) -> Result<Event<'a>, SessionError> {
        let code = u32::from_be_bytes(frame.payload.try_into().map_err(|_| MALFORMED)?);
        let id = self.begun(frame.stream)?;
        // A reset of a stream that is no longer open is allowed: the server may reset a stream
        // after its answer.
        let Some(slot) = self.open_slot(id) else { return Ok(Event::Nothing) };
        self.close(id);
        Ok(Event::Reset { slot, is_unseen: code == code::REFUSED_STREAM })
    }

    fn settings<'a>(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Event<'a>, SessionError> {
        let (settings, rest) = frame.payload.as_chunks::<{ frame::SETTING_LEN }>();
        let is_ack = frame.has(flag::ACK);
        if frame.stream != 0 || !rest.is_empty() || (is_ack && !settings.is_empty()) {
            return Err(MALFORMED);
        }
        if is_ack {
            return Ok(Event::Nothing);
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
                // No other setting matters here: the client's frames are shorter than any limit
                // that a server may set.
                _ => {}
            }
        }
        self.has_settings = true;
        frame::put(out, kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(Event::Nothing)
    }

    fn go_away<'a>(&mut self, frame: &Frame<'_>) -> Result<Event<'a>, SessionError> {
        // The payload of a GOAWAY is the last stream that is answered, an error code and a text.
        // Whatever the code is, later streams get no answer.
        let (last, _) = frame.payload.split_first_chunk::<4>().ok_or(MALFORMED)?;
        if frame.stream != 0 || frame.payload.len() < GOAWAY_LEN_MIN {
            return Err(MALFORMED);
        }
        let last = u32::from_be_bytes(*last) & ID_MAX;
        if self.last_id.is_some_and(|before| before < last) {
            return Err(SessionError::Protocol("it goes away and takes more requests"));
        }
        self.last_id = Some(last);
        Ok(Event::GoingAway)
    }

    fn window_update<'a>(&mut self, frame: &Frame<'_>) -> Result<Event<'a>, SessionError> {
        let more = u32::from_be_bytes(frame.payload.try_into().map_err(|_| MALFORMED)?) & ID_MAX;
        if more == 0 {
            return Err(SessionError::Protocol("a window that grows by nothing"));
        }
        if frame.stream != 0 {
            self.begun(frame.stream)?;
            return Ok(Event::Nothing);
        }
        self.send_window += u64::from(more);
        if self.send_window > u64::from(ID_MAX) {
            return Err(SessionError::Protocol("a window beyond any"));
        }
        Ok(Event::Nothing)
    }

    /// Checks that a request was sent on stream `id`.
    fn begun(&self, id: u32) -> Result<u32, SessionError> {
        let is_begun = id % 2 == 1 && id < self.next_id;
        is_begun.then_some(id).ok_or(SessionError::Protocol("a frame on a stream that is idle"))
    }

    fn open_slot(&self, id: u32) -> Option<usize> {
        let at = id.checked_sub(self.first_id)? / 2;
        let slot = self.order.get(at as usize).filter(|slot| **slot != NONE)?;
        Some(*slot as usize)
    }

    /// Returns the slot of a stream on which an answer came, or `None` if the stream was cancelled.
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
    /// Stores the headers that explain a refusal.
    fn record(&mut self, name: &[u8], value: &[u8]) {
        let field = match name {
            _ if name == HEADER_ERROR.as_bytes() => &mut self.error,
            _ if name == HEADER_LEADER.as_bytes() => &mut self.leader,
            _ => return,
        };
        field.clear();
        field.push_str(std::str::from_utf8(value).unwrap_or_default());
    }
}

fn ping<'a>(frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Event<'a>, SessionError> {
    if frame.stream != 0 || frame.payload.len() != PING_LEN {
        return Err(MALFORMED);
    }
    if !frame.has(flag::ACK) {
        frame::put(out, kind::PING, flag::ACK, 0, frame.payload);
    }
    Ok(Event::Nothing)
}

fn put_window_update(out: &mut Vec<u8>, more: u32) {
    frame::put(out, kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
}

/// Parses a status code of three digits. Returns 0 if it is not one.
fn number_of(status: &[u8]) -> u16 {
    let is_number = status.len() == 3 && status.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(status).ok().filter(|_| is_number);
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

const STATUS_OK: u16 = 200;
/// Stands for a header value that is not UTF-8. No header that is read here has this value.
const NO_TEXT: &str = "?";
const PRIORITY_LEN: usize = 5;
const PING_LEN: usize = 8;
const GOAWAY_LEN_MIN: usize = 8;
const MALFORMED: SessionError = SessionError::Protocol("a frame that is not as its kind must be");
