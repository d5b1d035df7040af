//! The frames that begin streams and end bodies: HEADERS and CONTINUATION (RFC 9113, 6.2 and 6.10).
//! Each block is decoded, also one that is then ignored, because later blocks refer to its entries
//! in the table.

use epicepoch_wire::http2::frame::{Frame, code, flag};
use epicepoch_wire::http2::hpack::HpackError;

use super::unfinished::{Unfinished, depends_on};
use super::{Closing, Event, FastRequest, Fault, HEAD_LEN_MAX, STREAMS_MAX, Session};
use crate::front::routes::query::Ask;

/// At most this many bytes in a header block that comes in several frames. A head of allowed length
/// is shorter.
const BLOCK_LEN_MAX: usize = 2 * HEAD_LEN_MAX;
/// At most this many CONTINUATION frames of one header block. Without a limit, empty CONTINUATION
/// frames could go on for ever (CVE-2024-27316).
pub(super) const CONTINUATIONS_MAX: usize = 16;

impl Session {
    pub(super) fn handle_headers(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        if frame.stream == 0 {
            return Err(Fault::PROTOCOL);
        }
        let mut fragment = frame.unpadded().ok_or(Fault::PROTOCOL)?;
        let mut depends_on_itself = false;
        if frame.has(flag::PRIORITY) {
            let (priority, rest) = fragment.split_first_chunk().ok_or(Fault::SIZE)?;
            depends_on_itself = depends_on(*priority) == frame.stream;
            fragment = rest;
        }
        let (id, ends) = (frame.stream, frame.has(flag::END_STREAM));
        if frame.has(flag::END_HEADERS) {
            return self.handle_block(id, ends, depends_on_itself, fragment, out);
        }
        self.unfinished = Some(Unfinished { id, ends, depends_on_itself, parts: 0 });
        self.block.clear();
        self.block.extend_from_slice(fragment);
        Ok(Event::Nothing)
    }

    pub(super) fn handle_continuation(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        let unfinished = self.unfinished.as_mut().filter(|it| it.id == frame.stream);
        let unfinished = unfinished.ok_or(Fault::PROTOCOL)?;
        unfinished.parts += 1;
        if unfinished.parts > CONTINUATIONS_MAX
            || self.block.len() + frame.payload.len() > BLOCK_LEN_MAX
        {
            return Err(Fault::CALM);
        }
        self.block.extend_from_slice(frame.payload);
        if !frame.has(flag::END_HEADERS) {
            return Ok(Event::Nothing);
        }
        let Unfinished { id, ends, depends_on_itself, .. } = *unfinished;
        self.unfinished = None;
        let mut block = std::mem::take(&mut self.block);
        let event = self.handle_block(id, ends, depends_on_itself, &block, out);
        block.clear();
        self.block = block;
        event
    }

    /// Handles a whole header block. Even a block that is then ignored is decoded, because later
    /// blocks refer to its entries in the table.
    fn handle_block(
        &mut self,
        id: u32,
        ends: bool,
        depends_on_itself: bool,
        block: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        if id.is_multiple_of(2) {
            return Err(Fault::PROTOCOL);
        }
        if id <= self.last_id {
            return self.handle_trailer(id, ends, block, out);
        }
        let is_fast_again = ends && self.fast_request.is_some() && self.decoder.is_repeated(block);
        if !is_fast_again {
            self.decode(block)?;
        }
        if self.closing == Closing::Told {
            return Ok(Event::Nothing);
        }
        self.last_id = id;
        if self.streams.open() == STREAMS_MAX {
            self.refuse(id, out);
            return Ok(Event::Nothing);
        }
        if is_fast_again && !depends_on_itself {
            self.streams.push(id, false, None, self.stream_window);
            return Ok(Event::Fast { id });
        }
        let announced = if ends { None } else { self.head.content_length() };
        self.streams.push(id, !ends, announced, self.stream_window);
        if self.head.is_too_long() {
            return Ok(Event::TooLong { id });
        }
        let is_short = ends && self.head.content_length().is_some_and(|length| length > 0);
        if depends_on_itself || is_short || !self.head.is_request() {
            return self.fault(id, code::PROTOCOL_ERROR, out);
        }
        if ends
            && self.takes_fast
            && let Some(ask) = self.head.fast_ask(self.limits)
        {
            self.keep_fast_request(ask);
            return Ok(Event::Fast { id });
        }
        let Some(request) = self.head.request() else {
            return self.fault(id, code::PROTOCOL_ERROR, out);
        };
        let body_len = if ends { Some(0) } else { announced };
        Ok(Event::Request { id, request: Box::new(request), body_len })
    }

    /// Handles a block on a stream that has begun: trailers.
    fn handle_trailer(
        &mut self,
        id: u32,
        ends: bool,
        block: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fault> {
        match self.streams.get(id) {
            Some(stream) if stream.is_sending => {}
            Some(_) => return Err(Fault::CLOSED),
            None if self.ended.has(id) => {
                self.decode(block)?;
                return Ok(Event::Nothing);
            }
            // Only the newest id certainly had a stream: a client may skip ids below it.
            None if id == self.last_id => return Err(Fault::CLOSED),
            None => return Err(Fault::PROTOCOL),
        }
        self.decode(block)?;
        if !ends || !self.head.is_trailer() {
            return self.fault(id, code::PROTOCOL_ERROR, out);
        }
        self.take_body(id, 0, true, out)
    }

    fn decode(&mut self, block: &[u8]) -> Result<(), Fault> {
        self.fast_request = None;
        let Self { decoder, head, .. } = self;
        head.clear();
        decoder.decode(block, |name, value| head.take(name, value)).map_err(|error| match error {
            HpackError::TooLong => Fault::CALM,
            _ => Fault::new(code::COMPRESSION_ERROR),
        })
    }

    fn keep_fast_request(&mut self, ask: Ask) {
        self.fast_request = Some(FastRequest {
            ask,
            request_id: self.head.request_id().to_vec(),
            authorization: self.head.authorization().to_vec(),
            is_direct: self.head.is_direct(),
        });
    }
}
