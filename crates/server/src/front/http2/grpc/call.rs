//! The open calls of one connection: what has arrived of a message, how many requests wait, and
//! answers that the client's windows do not allow yet. This module knows no method's meaning.

use epicepoch_wire::grpc::message::{self, MESSAGE_LEN_MAX, Message};
use epicepoch_wire::http2::frame::{self, PAYLOAD_LEN_MAX, kind};

use super::blocks;
use super::status::{self, Status};
use crate::front::http2::answers::Table;
use crate::front::http2::session::Session;
use crate::front::routes::table::Call as Method;

/// At most this many requests of one call wait for timestamps. PD's client has 64 at most.
const IN_FLIGHT_MAX: u32 = 1024;
/// At most this many bytes of a connection's answers wait for the client's windows. The call that
/// exceeds it ends.
const WAITING_LEN_MAX: usize = 64 << 10;
/// Capacity that is kept for the part of a message that has arrived, bytes.
const PARTIAL_LEN: usize = MESSAGE_LEN_MAX + 8;
/// The node lets a client send more on a stream when it has used this many bytes.
const OWED_MAX: u32 = 16 << 10;

/// The calls of one connection.
///
/// Invariants: sorted by stream. `waiting_len` is the length of all waiting answers.
#[derive(Debug, Default)]
pub(in crate::front::http2) struct Calls {
    list: Vec<Call>,
    waiting_len: usize,
}

/// An open call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: u32,
    pub(super) method: Method,
    /// The header of that name, checked again with each message.
    pub(super) authorization: Vec<u8>,
    /// The part of a message that has arrived. It is shorter than the longest message.
    partial: Vec<u8>,
    /// The whole request of a call that has only one.
    pub(super) request: Option<Vec<u8>>,
    /// Requests that wait for timestamps.
    in_flight: u32,
    /// Bytes that the client has sent since its window was last reopened.
    owed: u32,
    has_head: bool,
    has_client_ended: bool,
    /// Answers that the client's windows do not allow yet.
    waiting: Vec<u8>,
    /// How the call ends when no request waits. Requests that come later are ignored.
    end: Option<Status>,
}

/// The connection on which answers are sent.
pub(in crate::front::http2) struct Sink<'a> {
    pub(in crate::front::http2) session: &'a mut Session,
    pub(in crate::front::http2) table: &'a mut Table,
    pub(in crate::front::http2) out: &'a mut Vec<u8>,
}

impl Call {
    pub(super) fn new(id: u32, method: Method, authorization: Vec<u8>) -> Self {
        Self {
            id,
            method,
            authorization,
            partial: Vec::new(),
            request: None,
            in_flight: 0,
            owed: 0,
            has_head: false,
            has_client_ended: false,
            waiting: Vec::new(),
            end: None,
        }
    }

    /// Counts a request that waits for timestamps.
    ///
    /// # Errors
    /// When too many wait.
    pub(super) fn count_request(&mut self) -> Result<(), Status> {
        if self.in_flight == IN_FLIGHT_MAX {
            return Err(status::TOO_MANY);
        }
        self.in_flight += 1;
        Ok(())
    }
}

impl Calls {
    pub(in crate::front::http2) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn begin(&mut self, call: Call) {
        debug_assert!(self.list.last().is_none_or(|last| last.id < call.id));
        self.list.push(call);
    }

    pub(super) fn get(&mut self, id: u32) -> Option<&mut Call> {
        let at = self.position(id)?;
        Some(&mut self.list[at])
    }

    /// Forgets a call whose stream has ended. Returns whether there was one.
    pub(in crate::front::http2) fn drop_stream(&mut self, id: u32) -> bool {
        let Some(at) = self.position(id) else { return false };
        self.waiting_len -= self.list.remove(at).waiting.len();
        true
    }

    /// Forgets all calls.
    pub(in crate::front::http2) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back unused memory.
    pub(in crate::front::http2) fn give_back(&mut self) {
        self.list.shrink_to_fit();
        for call in &mut self.list {
            call.partial.shrink_to_fit();
            call.waiting.shrink_to_fit();
        }
    }

    /// Takes a part of a call's body: `counted` bytes of the client's window. Passes each whole
    /// message to `each`, with the call.
    ///
    /// # Errors
    /// When the bytes are no messages, or `each` fails: the call must end with the status.
    pub(super) fn receive(
        &mut self,
        id: u32,
        payload: &[u8],
        counted: usize,
        mut each: impl FnMut(&mut Call, Message<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let Some(call) = self.get(id) else { return Ok(()) };
        call.owed += counted as u32;
        let mut held = std::mem::take(&mut call.partial);
        let is_whole = held.is_empty();
        if !is_whole {
            held.extend_from_slice(payload);
        }
        let bytes = if is_whole { payload } else { &held[..] };
        let mut rest = bytes;
        while let Some((message, behind)) = Message::split(rest)? {
            rest = behind;
            if call.end.is_none() {
                each(call, message)?;
            }
        }
        let used = bytes.len() - rest.len();
        if is_whole {
            held.extend_from_slice(&payload[used..]);
        } else {
            held.drain(..used);
        }
        // A part of a message is short. A frame that has brought many messages is not.
        held.shrink_to(PARTIAL_LEN);
        call.partial = held;
        Ok(())
    }

    /// Records that the client sends no more. Returns whether it ended within a message.
    pub(super) fn end_input(&mut self, id: u32) -> bool {
        let Some(call) = self.get(id) else { return false };
        call.has_client_ended = true;
        !call.partial.is_empty()
    }

    /// Sends a message as the answer to the oldest waiting request of a call.
    pub(super) fn answer(&mut self, id: u32, sink: &mut Sink<'_>, put: impl FnOnce(&mut Vec<u8>)) {
        let Some(call) = self.get(id) else { return };
        call.in_flight = call.in_flight.saturating_sub(1);
        if !call.has_head {
            call.has_head = true;
            blocks::put_head(sink.table, id, sink.out);
        }
        let before = call.waiting.len();
        message::put(&mut call.waiting, put);
        self.waiting_len += self.list_waiting(id) - before;
        self.flush(id, sink);
        if self.waiting_len > WAITING_LEN_MAX && self.list_waiting(id) > 0 {
            self.end(id, &status::UNREAD, sink);
        }
    }

    /// Ends a call now. Its waiting requests are dropped.
    pub(super) fn end(&mut self, id: u32, status: &Status, sink: &mut Sink<'_>) {
        let Some(call) = self.get(id) else { return };
        blocks::put_end(sink.table, id, call.has_head, status, sink.out);
        sink.session.finish(id, sink.out);
        self.drop_stream(id);
    }

    /// Ends the calls for which `chosen` says so, each when its waiting requests are answered.
    pub(super) fn end_after_answers(
        &mut self,
        status: &Status,
        sink: &mut Sink<'_>,
        chosen: impl Fn(&Call) -> bool,
    ) {
        let ids: Vec<_> = self.list.iter().filter(|call| chosen(call)).map(|it| it.id).collect();
        for id in ids {
            if let Some(call) = self.get(id) {
                call.end.get_or_insert_with(|| status.clone());
            }
            self.flush(id, sink);
        }
    }

    /// Sends waiting answers of all calls as far as the client's windows allow.
    pub(in crate::front::http2) fn flush_all(&mut self, sink: &mut Sink<'_>) {
        if self.waiting_len == 0 {
            return;
        }
        let ids: Vec<_> =
            self.list.iter().filter(|call| !call.waiting.is_empty()).map(|it| it.id).collect();
        for id in ids {
            self.flush(id, sink);
        }
    }

    /// Sends what the client's windows allow. Then ends the call if nothing is left to do, or lets
    /// the client send more.
    pub(super) fn flush(&mut self, id: u32, sink: &mut Sink<'_>) {
        let Some(at) = self.position(id) else { return };
        let call = &mut self.list[at];
        while !call.waiting.is_empty() {
            let wanted = call.waiting.len().min(PAYLOAD_LEN_MAX);
            let len = sink.session.spend(id, wanted).unwrap_or_default();
            if len == 0 {
                return;
            }
            frame::put(sink.out, kind::DATA, 0, id, &call.waiting[..len]);
            call.waiting.drain(..len);
            self.waiting_len -= len;
        }
        if call.in_flight == 0 {
            let done = call.has_client_ended.then_some(status::DONE);
            if let Some(status) = call.end.take().or(done) {
                return self.end(id, &status, sink);
            }
        }
        if call.owed >= OWED_MAX {
            sink.session.reopen(id, std::mem::take(&mut call.owed), sink.out);
        }
    }

    fn list_waiting(&self, id: u32) -> usize {
        self.position(id).map_or(0, |at| self.list[at].waiting.len())
    }

    fn position(&self, id: u32) -> Option<usize> {
        self.list.binary_search_by_key(&id, |call| call.id).ok()
    }
}
