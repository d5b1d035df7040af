//! One HTTP/2 connection as its server sees it (RFC 9113, sections 3 to 6): the open streams, how
//! much may be sent, and what the client's frames mean. A session takes bytes and returns requests.
//! It has no socket and no clock, and does not know how a request is answered.
//!
//! A client that breaks a rule of the connection is told which rule, and its further bytes are
//! ignored. A client that breaks a rule of a stream loses the stream; too many such faults end the
//! connection.

use std::collections::VecDeque;

use epicepoch_wire::http2::frame::{self, Frame, HEAD_LEN, PREFACE, code, flag, kind, setting};
use epicepoch_wire::http2::hpack::Decoder;

pub use super::head::HEAD_LEN_MAX;
use super::head::Head;
use super::streams::{Streams, WINDOW_MAX};
use crate::front::routes::query::Limits;
pub use event::{Event, FastRequest, Fault};
use unfinished::{Unfinished, depends_on};

mod event;
mod header_blocks;
mod unfinished;

/// At most this many open requests of one connection.
pub const STREAMS_MAX: usize = 256;
/// At most this many streams may end because of a client's errors. One more ends the connection
/// (CVE-2025-8671).
const FAULTS_MAX: usize = 64;
/// Initial size of every window, bytes. The node does not change its receive windows, because
/// bodies here are small.
const WINDOW_AT_FIRST: i64 = 65_535;
/// The node reopens the connection's window when it has received this many bytes.
const OWED_MAX: u32 = 32 << 10;
/// Payload of the PING that follows the announcement of the end. Its answer shows that the client
/// knows of the end.
const END_PING: [u8; 8] = *b"epicend\n";
/// The highest possible stream id.
const ID_MAX: u32 = frame::ID_MAX;

/// The stages of the connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// The node has announced the end. Requests that the client sent before it got the announcement
    /// are answered.
    Announced,
    /// The client knows of the end, or has had its time to say so. New requests are ignored.
    Told,
}

/// The protocol state of one HTTP/2 connection.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    takes_fast: bool,
    decoder: Decoder,
    head: Head,
    fast_request: Option<FastRequest>,
    /// The part of a header block that has arrived.
    block: Vec<u8>,
    unfinished: Option<Unfinished>,
    streams: Streams,
    /// The highest stream id that the client has begun.
    last_id: u32,
    /// Streams that this node has ended. Their client may not know it yet.
    ended: Ended,
    faults: usize,
    has_settings: bool,
    /// Bytes that may be sent on all streams together.
    window: i64,
    /// Bytes that may be sent on each new stream.
    stream_window: i64,
    /// Bytes that were received since the connection's window was last reopened.
    owed: u32,
    /// Whether the connection's window stays as it is, because too much of what came is not used.
    is_held: bool,
    closing: Closing,
}

/// The ids of ended streams. A client that has not read the settings yet may have begun any number
/// of streams, so only the latest ids are kept, and the highest of the others.
#[derive(Debug, Default)]
struct Ended {
    latest: VecDeque<u32>,
    highest_before: u32,
}

impl Ended {
    fn push(&mut self, id: u32) {
        if self.latest.len() == STREAMS_MAX
            && let Some(earlier) = self.latest.pop_front()
        {
            self.highest_before = self.highest_before.max(earlier);
        }
        self.latest.push_back(id);
    }

    /// Whether a stream was ended, or may have been: also true of others below the kept ones.
    fn has(&self, id: u32) -> bool {
        id <= self.highest_before || self.latest.contains(&id)
    }
}

impl Session {
    /// Sets what a request on the fast path may ask for. If that changes, the latest request is
    /// checked again when it is repeated.
    pub fn set_limits(&mut self, limits: Limits) {
        if self.limits != limits {
            self.limits = limits;
            self.fast_request = None;
        }
    }

    /// A connection whose preface has arrived. If `takes_fast`, requests of the fast path that
    /// `limits` allow get their own event. Appends the server's first frame.
    #[must_use]
    pub fn new(limits: impl Into<Limits>, takes_fast: bool, out: &mut Vec<u8>) -> Self {
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, STREAMS_MAX as u32),
            (setting::MAX_HEADER_LIST_SIZE, HEAD_LEN_MAX as u32),
        ];
        frame::put_settings(out, &settings);
        Self {
            limits: limits.into(),
            takes_fast,
            decoder: Decoder::default(),
            head: Head::default(),
            fast_request: None,
            block: Vec::new(),
            unfinished: None,
            streams: Streams::default(),
            last_id: 0,
            ended: Ended::default(),
            faults: 0,
            has_settings: false,
            window: WINDOW_AT_FIRST,
            stream_window: WINDOW_AT_FIRST,
            owed: 0,
            is_held: false,
            closing: Closing::No,
        }
    }

    /// `Some(true)` if `bytes` begin with the client's whole preface; `Some(false)` if they are a
    /// part of it so far; `None` if they differ from it.
    #[must_use]
    pub fn preface(bytes: &[u8]) -> Option<bool> {
        if bytes.starts_with(PREFACE) {
            return Some(true);
        }
        PREFACE.starts_with(bytes).then_some(false)
    }

    /// The length and the meaning of the first frame of `bytes`; `None` if the frame is incomplete.
    /// Appends the frames that must be sent at once.
    ///
    /// # Errors
    /// When the connection is over; see [`Session::end`].
    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Event)>, Fault> {
        let Some(frame) = Frame::split(bytes).map_err(|_| Fault::SIZE)? else { return Ok(None) };
        if self.unfinished.is_some() && frame.kind != kind::CONTINUATION {
            return Err(Fault::PROTOCOL);
        }
        if !self.has_settings {
            if frame.kind != kind::SETTINGS || frame.has(flag::ACK) {
                return Err(Fault::PROTOCOL);
            }
            self.has_settings = true;
        }
        let event = match frame.kind {
            kind::HEADERS => self.handle_headers(&frame, out)?,
            kind::DATA => self.handle_data(&frame, out)?,
            kind::RST_STREAM => self.handle_reset(&frame)?,
            kind::WINDOW_UPDATE => self.handle_window(&frame, out)?,
            kind::SETTINGS => self.handle_settings(&frame, out)?,
            kind::PING => self.handle_ping(&frame, out)?,
            kind::CONTINUATION => self.handle_continuation(&frame, out)?,
            kind::PRIORITY => handle_priority(&frame)?,
            kind::GOAWAY => handle_goaway(&frame)?,
            kind::PUSH_PROMISE => return Err(Fault::PROTOCOL),
            _ => Event::Nothing,
        };
        Ok(Some((HEAD_LEN + frame.payload.len(), event)))
    }

    /// The latest request of the fast path.
    #[must_use]
    pub fn fast_request(&self) -> Option<&FastRequest> {
        self.fast_request.as_ref()
    }

    /// Whether a part of a header block has arrived.
    #[must_use]
    pub fn is_in_block(&self) -> bool {
        self.unfinished.is_some()
    }

    /// How many streams are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.streams.open()
    }

    /// Spends the windows on the whole body of an answer, and closes its stream. Returns
    /// `Some(false)` and does nothing if the windows are too small or the client still sends its
    /// body. Returns `None` if the stream is not open.
    pub fn spend_all(&mut self, id: u32, len: usize) -> Option<bool> {
        let len = len as i64;
        let stream = self.streams.get(id)?;
        if stream.is_sending || self.window < len || stream.window < len {
            return Some(false);
        }
        self.window -= len;
        self.streams.close(id);
        Some(true)
    }

    /// Spends the windows on up to `wanted` bytes of a body. Returns how many bytes may be sent;
    /// `None` if the stream is not open.
    pub fn spend(&mut self, id: u32, wanted: usize) -> Option<usize> {
        let len = wanted.min(self.allowed(id)?);
        self.window -= len as i64;
        self.streams.get(id)?.window -= len as i64;
        Some(len)
    }

    /// Bytes of a body that may be sent on a stream now; `None` if the stream is not open.
    pub fn allowed(&mut self, id: u32) -> Option<usize> {
        let stream = self.streams.get(id)?;
        Some(self.window.min(stream.window).max(0) as usize)
    }

    /// Closes a stream whose answer has ended. If the client still sends its body, the node tells
    /// it to stop (RFC 9113, 8.1).
    pub fn finish(&mut self, id: u32, out: &mut Vec<u8>) {
        if self.streams.get(id).is_some_and(|stream| stream.is_sending) {
            self.reset(id, code::NO_ERROR, out);
        } else {
            self.streams.close(id);
        }
    }

    /// Refuses a request that has not begun. Its client may send it again.
    pub fn refuse(&mut self, id: u32, out: &mut Vec<u8>) {
        self.reset(id, code::REFUSED_STREAM, out);
    }

    /// Lets the client send `len` more bytes on a stream, because the node has used as many. Does
    /// nothing if the client has ended the stream.
    pub fn reopen(&mut self, id: u32, len: u32, out: &mut Vec<u8>) {
        if let Some(stream) = self.streams.get(id).filter(|stream| stream.is_sending && len > 0) {
            stream.received = stream.received.saturating_sub(len);
            frame::put(out, kind::WINDOW_UPDATE, 0, id, &len.to_be_bytes());
        }
    }

    /// Lets the client send no more on any stream when the connection's window is used up, or lets
    /// it send on.
    pub fn hold(&mut self, is_held: bool, out: &mut Vec<u8>) {
        self.is_held = is_held;
        self.reopen_all(out);
    }

    /// Whether the connection's window stays as it is.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    fn reopen_all(&mut self, out: &mut Vec<u8>) {
        if self.owed >= OWED_MAX && !self.is_held {
            let owed = std::mem::take(&mut self.owed);
            frame::put(out, kind::WINDOW_UPDATE, 0, 0, &owed.to_be_bytes());
        }
    }

    /// Announces the end of the connection, once.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if self.closing == Closing::No {
            self.closing = Closing::Announced;
            put_goaway(ID_MAX, code::NO_ERROR, out);
            frame::put(out, kind::PING, 0, 0, &END_PING);
        }
    }

    /// Accepts no more requests, although the client may not know of the end.
    pub fn stop_waiting(&mut self, out: &mut Vec<u8>) {
        if self.closing == Closing::Announced {
            self.closing = Closing::Told;
            put_goaway(self.last_id, code::NO_ERROR, out);
        }
    }

    /// Whether the node has announced the end.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing != Closing::No
    }

    /// Whether no stream is open and none will be.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.closing == Closing::Told && self.streams.open() == 0
    }

    /// Tells the client why the connection ends now.
    pub fn end(&self, fault: Fault, out: &mut Vec<u8>) {
        put_goaway(self.last_id, fault.code, out);
    }

    /// Gives back unused memory.
    pub fn give_back(&mut self) {
        self.decoder.give_back();
        self.head.give_back();
        self.streams.give_back();
        self.ended.latest.shrink_to_fit();
        if self.unfinished.is_none() {
            self.block = Vec::new();
        }
    }

    fn handle_data(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Event, Fault> {
        let id = frame.stream;
        if id == 0 || self.is_idle(id) {
            return Err(Fault::PROTOCOL);
        }
        let length = frame.unpadded().ok_or(Fault::PROTOCOL)?.len();
        let counted = frame.payload.len() as u32;
        self.owed += counted;
        if i64::from(self.owed) > WINDOW_AT_FIRST {
            return Err(Fault::WINDOW);
        }
        self.reopen_all(out);
        match self.streams.get(id) {
            Some(stream) if stream.is_sending => stream.received += counted,
            None if self.ended.has(id) || id > self.last_id => return Ok(Event::Nothing),
            Some(_) | None => return Err(Fault::CLOSED),
        }
        self.take_body(id, length, frame.has(flag::END_STREAM), out)
    }

    /// Applies a part of a body to its stream.
    fn take_body(
        &mut self,
        id: u32,
        len: usize,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        let Some(stream) = self.streams.get(id) else { return Ok(Event::Nothing) };
        if i64::from(stream.received) > WINDOW_AT_FIRST {
            return self.fault(id, code::FLOW_CONTROL_ERROR, out);
        }
        if let Some(left) = stream.announced {
            match left.checked_sub(len as u64) {
                Some(left) if left == 0 || !ends => stream.announced = Some(left),
                _ => return self.fault(id, code::PROTOCOL_ERROR, out),
            }
        }
        stream.is_sending = !ends;
        Ok(Event::Data { id, len, ends })
    }

    fn handle_reset(&mut self, frame: &Frame<'_>) -> Result<Event, Fault> {
        if frame.payload.len() != 4 {
            return Err(Fault::SIZE);
        }
        let id = frame.stream;
        if id == 0 || self.is_idle(id) {
            return Err(Fault::PROTOCOL);
        }
        Ok(if self.streams.close(id) { Event::Reset { id } } else { Event::Nothing })
    }

    fn handle_window(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Event, Fault> {
        let more: [u8; 4] = frame.payload.try_into().map_err(|_| Fault::SIZE)?;
        let more = i64::from(u32::from_be_bytes(more) & ID_MAX);
        let id = frame.stream;
        if id == 0 {
            if more == 0 {
                return Err(Fault::PROTOCOL);
            }
            self.window += more;
            return if self.window > WINDOW_MAX { Err(Fault::WINDOW) } else { Ok(Event::Window) };
        }
        if self.is_idle(id) {
            return Err(Fault::PROTOCOL);
        }
        let Some(stream) = self.streams.get(id) else { return Ok(Event::Nothing) };
        if more == 0 {
            return self.fault(id, code::PROTOCOL_ERROR, out);
        }
        if stream.window + more > WINDOW_MAX {
            return self.fault(id, code::FLOW_CONTROL_ERROR, out);
        }
        stream.window += more;
        Ok(Event::Window)
    }

    fn handle_settings(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Event, Fault> {
        if frame.stream != 0 {
            return Err(Fault::PROTOCOL);
        }
        if frame.has(flag::ACK) {
            return if frame.payload.is_empty() { Ok(Event::Nothing) } else { Err(Fault::SIZE) };
        }
        let (settings, rest) = frame.payload.as_chunks::<{ frame::SETTING_LEN }>();
        if !rest.is_empty() {
            return Err(Fault::SIZE);
        }
        let mut event = Event::Window;
        let mut stream_window = self.stream_window;
        for [high, low, value @ ..] in settings {
            let value = u32::from_be_bytes(*value);
            match u16::from_be_bytes([*high, *low]) {
                setting::HEADER_TABLE_SIZE => event = Event::Table(value as usize),
                setting::ENABLE_PUSH if value > 1 => return Err(Fault::PROTOCOL),
                setting::INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(Fault::WINDOW);
                }
                // One frame may hold thousands of initial window sizes. So only the last one is
                // applied to all streams.
                setting::INITIAL_WINDOW_SIZE => stream_window = i64::from(value),
                setting::MAX_FRAME_SIZE => {
                    // The node's frames are never longer than the lowest allowed value.
                    let allowed = frame::PAYLOAD_LEN_MAX as u32..1 << 24;
                    if !allowed.contains(&value) {
                        return Err(Fault::PROTOCOL);
                    }
                }
                _ => {}
            }
        }
        self.change_stream_window(stream_window)?;
        frame::put(out, kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(event)
    }

    fn change_stream_window(&mut self, window: i64) -> Result<(), Fault> {
        let change = window - self.stream_window;
        self.stream_window = window;
        if change == 0 || self.streams.change_windows(change) { Ok(()) } else { Err(Fault::WINDOW) }
    }

    fn handle_ping(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Event, Fault> {
        if frame.stream != 0 {
            return Err(Fault::PROTOCOL);
        }
        if frame.payload.len() != END_PING.len() {
            return Err(Fault::SIZE);
        }
        if !frame.has(flag::ACK) {
            frame::put(out, kind::PING, flag::ACK, 0, frame.payload);
        } else if frame.payload == END_PING {
            self.stop_waiting(out);
        }
        Ok(Event::Nothing)
    }

    /// Whether the client has not begun this stream yet. After the final GOAWAY, newer streams are
    /// ignored and do not count as idle.
    fn is_idle(&self, id: u32) -> bool {
        id > self.last_id && self.closing != Closing::Told
    }

    /// Ends a stream because of a client's fault.
    fn fault(&mut self, id: u32, code: u32, out: &mut Vec<u8>) -> Result<Event, Fault> {
        self.faults += 1;
        if self.faults > FAULTS_MAX {
            return Err(Fault::CALM);
        }
        self.reset(id, code, out);
        Ok(Event::Reset { id })
    }

    /// Resets a stream. Until the client reads the reset, its frames for that stream are not a
    /// fault.
    fn reset(&mut self, id: u32, code: u32, out: &mut Vec<u8>) {
        self.streams.close(id);
        self.ended.push(id);
        frame::put(out, kind::RST_STREAM, 0, id, &code.to_be_bytes());
    }
}

fn handle_priority(frame: &Frame<'_>) -> Result<Event, Fault> {
    let priority = frame.payload.try_into().map_err(|_| Fault::SIZE)?;
    if frame.stream == 0 || depends_on(priority) == frame.stream {
        return Err(Fault::PROTOCOL);
    }
    Ok(Event::Nothing)
}

/// A GOAWAY needs no answer: the client closes the connection when it has its answers.
fn handle_goaway(frame: &Frame<'_>) -> Result<Event, Fault> {
    match frame {
        Frame { stream: 0, payload: [_, _, _, _, _, _, _, _, ..], .. } => Ok(Event::Nothing),
        Frame { stream: 0, .. } => Err(Fault::SIZE),
        _ => Err(Fault::PROTOCOL),
    }
}

fn put_goaway(last: u32, code: u32, out: &mut Vec<u8>) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&last.to_be_bytes());
    payload[4..].copy_from_slice(&code.to_be_bytes());
    frame::put(out, kind::GOAWAY, 0, 0, &payload);
}

#[cfg(test)]
mod tests;
