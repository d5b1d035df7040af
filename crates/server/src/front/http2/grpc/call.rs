//! The open calls of one connection: what has arrived of a message, how many requests wait, and
//! answers that the client's windows do not allow yet. This module knows no method's meaning.
//!
//! A client may send faster than it reads. Then the call pauses: its messages are held and not
//! handled, and the client gets no window to send more, first for this stream and then for the
//! connection. Window updates still arrive, so the call goes on when the client reads again.

use epicepoch_wire::grpc::health::Serving;
use epicepoch_wire::grpc::message::{self, MESSAGE_LEN_MAX, Message};
use epicepoch_wire::http2::frame::{self, PAYLOAD_LEN_MAX, kind};

use super::blocks;
use super::health::Watched;
use super::status::{self, Status};
use crate::front::http2::answers::Table;
use crate::front::http2::session::Session;
use crate::front::routes::table::Call as Method;

/// A call pauses while this many of its requests wait for timestamps. PD's client has 64 at most.
const IN_FLIGHT_MAX: u32 = 1024;
/// A call pauses while this many bytes of its answers wait for the client's windows.
const WAITING_LEN_MAX: usize = 16 << 10;
/// All calls of a connection pause while this many bytes of answers wait.
const WAITING_LEN_MAX_ALL: usize = 256 << 10;
/// The client may send no more on any stream while this many bytes of messages are held.
const HELD_LEN_MAX: usize = 32 << 10;
/// Capacity that is kept for the part of a message that has arrived, bytes.
const PARTIAL_LEN: usize = MESSAGE_LEN_MAX + 8;
/// The node lets a client send more on a stream when it has used this many bytes.
const OWED_MAX: u32 = 16 << 10;

/// The calls of one connection.
///
/// Invariants: sorted by stream. `waiting_len` is the length of all waiting answers, and `held_len`
/// that of all held bytes.
#[derive(Debug, Default)]
pub(in crate::front::http2) struct Calls {
    list: Vec<Call>,
    waiting_len: usize,
    held_len: usize,
}

/// An open call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: u32,
    pub(super) method: Method,
    pub(super) head: Head,
    /// What a `Watch` call watches, and what it has told last.
    pub(super) watch: Option<Watch>,
    /// Bytes that are not handled yet: a part of a message; while the call pauses, whole messages.
    held: Vec<u8>,
    /// Whether a whole message is held.
    is_paused: bool,
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

/// The parts of a call's head that each of its requests for timestamps has.
#[derive(Debug)]
pub(super) struct Head {
    /// The header of that name, checked again with each message.
    pub(super) authorization: Vec<u8>,
    /// Whether the client follows to the leader by itself.
    pub(super) is_direct: bool,
}

/// What is left of the messages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// More may come, or is held.
    More,
    /// The client has ended, and all messages are handled.
    Nothing,
    /// The client has ended in the middle of a message.
    Part,
}

/// The state of a `Watch` call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watch {
    pub(super) of: Watched,
    pub(super) told: Serving,
}

/// The connection on which answers are sent.
pub(in crate::front::http2) struct Sink<'a> {
    pub(in crate::front::http2) session: &'a mut Session,
    pub(in crate::front::http2) table: &'a mut Table,
    pub(in crate::front::http2) out: &'a mut Vec<u8>,
}

impl Call {
    pub(super) const fn new(id: u32, method: Method) -> Self {
        Self {
            id,
            method,
            head: Head { authorization: Vec::new(), is_direct: true },
            watch: None,
            held: Vec::new(),
            is_paused: false,
            request: None,
            in_flight: 0,
            owed: 0,
            has_head: false,
            has_client_ended: false,
            waiting: Vec::new(),
            end: None,
        }
    }

    /// Counts a request that waits for its answer. The call does not end before that.
    pub(super) const fn count_request(&mut self) {
        self.in_flight += 1;
    }

    /// Appends an answer, which [`Calls::flush`] sends.
    pub(super) fn put(&mut self, content: impl FnOnce(&mut Vec<u8>)) {
        message::put(&mut self.waiting, content);
    }

    /// Whether all answers so far are sent.
    pub(super) const fn is_flushed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a message must wait until answers are sent.
    const fn must_pause(&self) -> bool {
        self.in_flight >= IN_FLIGHT_MAX || self.waiting.len() >= WAITING_LEN_MAX
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
        let call = self.list.remove(at);
        self.waiting_len -= call.waiting.len();
        self.held_len -= call.held.len();
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
            call.held.shrink_to_fit();
            call.waiting.shrink_to_fit();
        }
    }

    /// Takes a part of a call's body: `counted` bytes of the client's window. Passes each whole
    /// message to `each`, with the call, until the call pauses.
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
        let Some(at) = self.position(id) else { return Ok(()) };
        let call = &mut self.list[at];
        call.owed += counted as u32;
        let mut held = std::mem::take(&mut call.held);
        self.held_len -= held.len();
        let is_whole = held.is_empty();
        if !is_whole {
            held.extend_from_slice(payload);
        }
        let bytes = if is_whole { payload } else { &held[..] };
        let mut rest = bytes;
        let others_waiting = self.waiting_len - call.waiting.len();
        call.is_paused = false;
        let handled = loop {
            match Message::split(rest) {
                Ok(None) => break Ok(()),
                Ok(Some((_, behind))) if call.end.is_some() => rest = behind,
                Ok(Some((message, behind))) => {
                    let waiting = others_waiting + call.waiting.len();
                    if waiting >= WAITING_LEN_MAX_ALL || call.must_pause() {
                        call.is_paused = true;
                        break Ok(());
                    }
                    rest = behind;
                    if let Err(status) = each(call, message) {
                        break Err(status);
                    }
                }
                Err(error) => break Err(error.into()),
            }
        };
        self.waiting_len = others_waiting + call.waiting.len();
        handled?;
        let used = bytes.len() - rest.len();
        if is_whole {
            held.extend_from_slice(&payload[used..]);
        } else {
            held.drain(..used);
        }
        // A part of a message is short. A frame that has brought many messages is not.
        held.shrink_to(PARTIAL_LEN);
        self.held_len += held.len();
        call.held = held;
        Ok(())
    }

    /// Records that the client sends no more.
    pub(super) fn end_input(&mut self, id: u32) {
        if let Some(call) = self.get(id) {
            call.has_client_ended = true;
        }
    }

    /// What is left of the messages of a call that has handled all it may.
    pub(super) fn rest(&mut self, id: u32) -> Rest {
        match self.get(id) {
            Some(call) if call.has_client_ended && !call.is_paused => {
                if call.held.is_empty() {
                    Rest::Nothing
                } else {
                    Rest::Part
                }
            }
            Some(_) | None => Rest::More,
        }
    }

    /// A call that has paused and may go on, if there is one.
    pub(super) fn resumable(&self) -> Option<u32> {
        if self.held_len == 0 || self.waiting_len >= WAITING_LEN_MAX_ALL {
            return None;
        }
        let found = self.list.iter().find(|call| call.is_paused && !call.must_pause());
        found.map(|call| call.id)
    }

    /// Lets the client send on any stream, or not, by how much is held.
    pub(super) fn hold(&self, sink: &mut Sink<'_>) {
        sink.session.hold(self.held_len >= HELD_LEN_MAX, sink.out);
    }

    /// Sends a message as the answer to the oldest waiting request of a call.
    pub(super) fn answer(&mut self, id: u32, sink: &mut Sink<'_>, put: impl FnOnce(&mut Vec<u8>)) {
        let Some(call) = self.get(id) else { return };
        call.in_flight = call.in_flight.saturating_sub(1);
        let before = call.waiting.len();
        call.put(put);
        let added = call.waiting.len() - before;
        self.waiting_len += added;
        self.flush(id, sink);
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
        for id in self.ids(chosen) {
            if let Some(call) = self.get(id) {
                call.end.get_or_insert_with(|| status.clone());
                // The messages that are held get no answer.
                call.is_paused = false;
                if call.watch.is_some() {
                    call.in_flight = 0;
                }
            }
            self.flush(id, sink);
        }
    }

    /// The streams of the calls for which `chosen` says so.
    pub(super) fn ids(&self, chosen: impl Fn(&Call) -> bool) -> Vec<u32> {
        self.list.iter().filter(|call| chosen(call)).map(|it| it.id).collect()
    }

    /// Sends waiting answers of all calls as far as the client's windows allow.
    pub(in crate::front::http2) fn flush_all(&mut self, sink: &mut Sink<'_>) {
        if self.waiting_len == 0 {
            return;
        }
        for id in self.ids(|call| !call.waiting.is_empty()) {
            self.flush(id, sink);
        }
    }

    /// Sends what the client's windows allow. Then ends the call if nothing is left to do, or lets
    /// the client send more.
    pub(super) fn flush(&mut self, id: u32, sink: &mut Sink<'_>) {
        let Some(at) = self.position(id) else { return };
        let call = &mut self.list[at];
        if !call.has_head && !call.waiting.is_empty() {
            call.has_head = true;
            blocks::put_head(sink.table, id, sink.out);
        }
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
            let done = (call.has_client_ended && !call.is_paused).then_some(status::DONE);
            if let Some(status) = call.end.take().or(done) {
                return self.end(id, &status, sink);
            }
        }
        if call.owed >= OWED_MAX && !call.is_paused {
            sink.session.reopen(id, std::mem::take(&mut call.owed), sink.out);
        }
    }

    fn position(&self, id: u32) -> Option<usize> {
        self.list.binary_search_by_key(&id, |call| call.id).ok()
    }
}
