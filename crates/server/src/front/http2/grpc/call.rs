//! The open calls of one connection: what has arrived of a message, how many requests wait, and
//! answers that the client's windows do not allow yet. This module knows no method's meaning.
//!
//! A client may send faster than it reads. Then the call pauses: its messages are held and not
//! handled, and the client gets no window to send more, first for this stream and then for the
//! connection. Window updates still arrive, so the call goes on when the client reads again.
//!
//! Everything that a call holds is counted, and limited for the connection.

use std::ops::{AddAssign, SubAssign};

use epicepoch_wire::grpc::health::{self, Serving};
use epicepoch_wire::grpc::message::{self, MESSAGE_LEN_MAX, Message, PREFIX_LEN};
use epicepoch_wire::http2::frame::{self, PAYLOAD_LEN_MAX, kind};
use epicepoch_wire::{ProvedBy, Timestamp};

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
/// The client may send no more on any stream while its paused calls hold this many bytes. Parts of
/// messages do not count: with a closed window, their rest could never arrive.
const PAUSED_LEN_MAX: usize = 32 << 10;
/// Parts of messages, and requests whose call the client has not ended, may have this many bytes
/// together: 64 messages of the greatest length. The call that brings more ends.
const UNFINISHED_LEN_MAX: usize = 64 * (MESSAGE_LEN_MAX + PREFIX_LEN);
/// Capacity that a buffer keeps in any case, bytes: enough for an answer with timestamps, so that
/// such an answer allocates nothing.
const KEPT_LEN: usize = 256;
/// The node lets a client send more on a stream when it has used this many bytes.
const OWED_MAX: u32 = 16 << 10;

/// The calls of one connection.
///
/// Invariants: sorted by stream. `lens` is the sum of what the calls hold. No buffer of a call has
/// more capacity than twice its length or [`KEPT_LEN`], whichever is more.
#[derive(Debug, Default)]
pub(in crate::front::http2) struct Calls {
    list: Vec<Call>,
    lens: Lens,
}

/// How many bytes a call holds, or all calls of a connection together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lens {
    /// Answers that the client's windows do not allow yet.
    waiting: usize,
    /// Messages of paused calls.
    paused: usize,
    /// Parts of messages of other calls, and requests whose call the client has not ended.
    unfinished: usize,
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
    request: Option<Vec<u8>>,
    /// Requests that wait for timestamps.
    in_flight: u32,
    /// Bytes that the client has sent since its window was last reopened.
    owed: u32,
    has_head: bool,
    has_client_ended: bool,
    /// Answers that the client's windows do not allow yet.
    waiting: Vec<u8>,
    /// How the call ends when no request waits and all answers are sent. Requests that come later
    /// are ignored.
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

/// The answer to a request for timestamps.
#[derive(Clone, Copy, Debug)]
pub(in crate::front::http2) struct Given {
    pub(in crate::front::http2) first: Timestamp,
    pub(in crate::front::http2) proved_by: ProvedBy,
    /// The id of this node, if it has sent the request on to the leader.
    pub(in crate::front::http2) forwarded_by: Option<u64>,
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

    /// Whether the call ends when its answers are sent.
    pub(super) const fn is_ending(&self) -> bool {
        self.end.is_some()
    }

    /// Whether all answers so far are sent.
    pub(super) const fn is_flushed(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Keeps the request of a call that has only one. Returns whether it is the first.
    pub(super) fn keep_request(&mut self, bytes: &[u8]) -> bool {
        self.request.replace(bytes.to_vec()).is_none()
    }

    /// Whether a message must wait until answers are sent.
    const fn must_pause(&self) -> bool {
        self.in_flight >= IN_FLIGHT_MAX || self.waiting.len() >= WAITING_LEN_MAX
    }

    /// Whether all requests have come and are handled, so that the call ends well when they are
    /// answered.
    const fn is_complete(&self) -> bool {
        self.has_client_ended && !self.is_paused && self.watch.is_none()
    }

    /// Drops the messages that are not handled.
    fn discard(&mut self) {
        self.held = Vec::new();
        self.is_paused = false;
        self.request = None;
    }

    fn lens(&self) -> Lens {
        let held = self.held.len();
        let (paused, part) = if self.is_paused { (held, 0) } else { (0, held) };
        let unfinished = part + self.request.as_ref().map_or(0, Vec::len);
        Lens { waiting: self.waiting.len(), paused, unfinished }
    }

    /// Takes a part of the body. `others_waiting` is the length of the answers of other calls that
    /// wait. See [`Calls::receive`].
    fn receive(
        &mut self,
        payload: &[u8],
        counted: usize,
        others_waiting: usize,
        mut each: impl FnMut(&mut Self, Message<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.owed += counted as u32;
        if self.end.is_some() {
            return Ok(());
        }
        let mut held = std::mem::take(&mut self.held);
        let is_whole = held.is_empty();
        if !is_whole {
            held.extend_from_slice(payload);
        }
        let bytes = if is_whole { payload } else { &held[..] };
        let mut rest = bytes;
        self.is_paused = false;
        while let Some((message, behind)) = Message::split(rest)? {
            if others_waiting + self.waiting.len() >= WAITING_LEN_MAX_ALL || self.must_pause() {
                self.is_paused = true;
                break;
            }
            rest = behind;
            each(self, message)?;
        }
        let used = bytes.len() - rest.len();
        if is_whole {
            held.extend_from_slice(&payload[used..]);
        } else {
            held.drain(..used);
        }
        trim(&mut held);
        self.held = held;
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
        self.lens -= self.list.remove(at).lens();
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
    /// When the bytes are no messages, when too much of unfinished messages is held, or when `each`
    /// fails: the call must end with the status.
    pub(super) fn receive(
        &mut self,
        id: u32,
        payload: &[u8],
        counted: usize,
        each: impl FnMut(&mut Call, Message<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let Some(at) = self.position(id) else { return Ok(()) };
        let others_waiting = self.lens.waiting - self.list[at].waiting.len();
        self.change(at, |call| call.receive(payload, counted, others_waiting, each))?;
        // The request of a call that its client has ended is handled now.
        let is_too_much =
            self.lens.unfinished > UNFINISHED_LEN_MAX && !self.list[at].has_client_ended;
        if is_too_much { Err(status::UNFINISHED) } else { Ok(()) }
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
            Some(call) if call.has_client_ended && !call.is_paused && call.end.is_none() => {
                if call.held.is_empty() { Rest::Nothing } else { Rest::Part }
            }
            Some(_) | None => Rest::More,
        }
    }

    /// Takes the request of a call that has only one.
    pub(super) fn take_request(&mut self, id: u32) -> Option<Vec<u8>> {
        let at = self.position(id)?;
        self.change(at, |call| call.request.take())
    }

    /// A call that has paused and may go on, if there is one.
    pub(super) fn resumable(&self) -> Option<u32> {
        if self.lens.paused == 0 || self.lens.waiting >= WAITING_LEN_MAX_ALL {
            return None;
        }
        let found = self.list.iter().find(|call| call.is_paused && !call.must_pause());
        found.map(|call| call.id)
    }

    /// Lets the client send on any stream, or not, by how much paused calls hold.
    pub(super) fn hold(&self, sink: &mut Sink<'_>) {
        sink.session.hold(self.lens.paused >= PAUSED_LEN_MAX, sink.out);
    }

    /// Sends a message as the answer to the oldest waiting request of a call. Does nothing if no
    /// request waits: the call ends, and its requests were dropped.
    pub(super) fn answer(&mut self, id: u32, sink: &mut Sink<'_>, put: impl FnOnce(&mut Vec<u8>)) {
        let Some(at) = self.position(id).filter(|at| self.list[*at].in_flight > 0) else { return };
        self.change(at, |call| {
            call.in_flight -= 1;
            call.put(put);
        });
        self.flush(id, sink);
    }

    /// Tells a `Watch` call a changed health.
    pub(super) fn tell(&mut self, id: u32, now: Serving, sink: &mut Sink<'_>) {
        let Some(call) = self.get(id) else { return };
        let Some(watch) = &mut call.watch else { return };
        watch.told = now;
        call.count_request();
        self.answer(id, sink, |out| health::put_checked(out, now));
    }

    /// Ends a call. The answers that wait are sent first. Its waiting requests are dropped, and
    /// those that come later are ignored.
    pub(super) fn end(&mut self, id: u32, status: &Status, sink: &mut Sink<'_>) {
        let Some(at) = self.position(id) else { return };
        self.change(at, |call| {
            call.end.get_or_insert_with(|| status.clone());
            call.in_flight = 0;
            call.discard();
        });
        self.flush(id, sink);
    }

    /// Ends the calls for which `chosen` says so, each when its waiting requests are answered. Does
    /// nothing to a call whose requests have all come: it ends by itself.
    pub(super) fn end_after_answers(
        &mut self,
        status: &Status,
        sink: &mut Sink<'_>,
        chosen: impl Fn(&Call) -> bool,
    ) {
        for id in self.ids(|it| it.end.is_none() && !it.is_complete() && chosen(it)) {
            let Some(at) = self.position(id) else { continue };
            self.change(at, |call| {
                call.end = Some(status.clone());
                call.discard();
                if call.watch.is_some() {
                    call.in_flight = 0;
                }
            });
            self.flush(id, sink);
        }
    }

    /// The streams of the calls for which `chosen` says so.
    pub(super) fn ids(&self, chosen: impl Fn(&Call) -> bool) -> Vec<u32> {
        self.list.iter().filter(|call| chosen(call)).map(|it| it.id).collect()
    }

    /// Sends waiting answers of all calls as far as the client's windows allow.
    pub(in crate::front::http2) fn flush_all(&mut self, sink: &mut Sink<'_>) {
        if self.lens.waiting == 0 {
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
        let mut sent = 0;
        while sent < call.waiting.len() {
            let wanted = (call.waiting.len() - sent).min(PAYLOAD_LEN_MAX);
            let len = sink.session.spend(id, wanted).unwrap_or_default();
            if len == 0 {
                break;
            }
            frame::put(sink.out, kind::DATA, 0, id, &call.waiting[sent..sent + len]);
            sent += len;
        }
        call.waiting.drain(..sent);
        trim(&mut call.waiting);
        self.lens.waiting -= sent;
        if !call.waiting.is_empty() {
            return;
        }
        if call.in_flight == 0 {
            let done = (call.has_client_ended && !call.is_paused).then_some(status::DONE);
            if let Some(status) = call.end.take().or(done) {
                return self.finish(at, &status, sink);
            }
        }
        if call.owed >= OWED_MAX && !call.is_paused {
            sink.session.reopen(id, std::mem::take(&mut call.owed), sink.out);
        }
    }

    /// Sends the status of a call, which is its last word, and forgets the call.
    fn finish(&mut self, at: usize, status: &Status, sink: &mut Sink<'_>) {
        let call = self.list.remove(at);
        self.lens -= call.lens();
        blocks::put_end(sink.table, call.id, call.has_head, status, sink.out);
        sink.session.finish(call.id, sink.out);
    }

    /// Changes a call, and counts again what it holds.
    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Call) -> T) -> T {
        let call = &mut self.list[at];
        self.lens -= call.lens();
        let result = change(call);
        self.lens += call.lens();
        result
    }

    fn position(&self, id: u32) -> Option<usize> {
        self.list.binary_search_by_key(&id, |call| call.id).ok()
    }
}

impl AddAssign for Lens {
    fn add_assign(&mut self, other: Self) {
        self.waiting += other.waiting;
        self.paused += other.paused;
        self.unfinished += other.unfinished;
    }
}

impl SubAssign for Lens {
    fn sub_assign(&mut self, other: Self) {
        self.waiting -= other.waiting;
        self.paused -= other.paused;
        self.unfinished -= other.unfinished;
    }
}

/// Frees capacity that is not needed any more.
fn trim(bytes: &mut Vec<u8>) {
    if bytes.capacity() > KEPT_LEN.max(2 * bytes.len()) {
        bytes.shrink_to(KEPT_LEN.max(bytes.len()));
    }
}

#[cfg(test)]
mod tests;
