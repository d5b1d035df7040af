//! The state of a client's connection that the sweep reads. It says whether requests are being
//! answered, and since when the client is silent or in the middle of a request's head. This module
//! reads no clock and closes nothing.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use epicepoch_wire::NodeId;

use crate::config::Limits;
use crate::security::authz::{Caller, Port};
use crate::security::limits::ConnectionPermit;
use crate::shared::NodeClock;

/// A connection gives back memory after this many sweeps of silence. A busy connection would need
/// the memory again.
const GIVE_BACK_AFTER: u64 = 2;
/// An HTTP/3 connection that has had more than this many streams at once keeps their memory. It is
/// then treated as grown.
const GROWN_STREAMS: u32 = 16;
/// Time between two sweeps over all connections.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How long a connection may be silent or incomplete, in sweeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeout {
    head: u64,
    idle: u64,
}

impl Timeout {
    pub(super) fn new(limits: &Limits) -> Self {
        let sweeps =
            |limit: Duration| limit.as_millis().div_ceil(SWEEP_INTERVAL.as_millis()) as u64;
        Self { head: sweeps(limits.head_timeout), idle: sweeps(limits.idle_timeout) }
    }
}

/// The state of a connection that the sweep reads. Times are counted in sweeps.
#[derive(Debug)]
pub(crate) struct ClientState {
    from: Option<IpAddr>,
    port: Port,
    is_encrypted: Cell<bool>,
    /// The node that has shown its certificate, in order to send requests on.
    forwarder: Cell<Option<NodeId>>,
    /// Counts the connection, and the requests of its address.
    permit: ConnectionPermit,
    /// Whether the request rate of its address is limited.
    is_rated: Cell<bool>,
    sweeps: Rc<Cell<u64>>,
    /// Requests that the service is answering.
    in_flight: Cell<u32>,
    /// Requests that a fast path or the native protocol is answering.
    fast_in_flight: Cell<u32>,
    pub(super) is_native: Cell<bool>,
    /// The connection has had gRPC calls. It wants to know when this node stops to lead.
    pub(super) has_calls: Cell<bool>,
    /// When a request last arrived, a request was last answered, or the socket last accepted bytes.
    active_at: Cell<u64>,
    /// Since when a head is incomplete: the start of the connection, or the first byte of a
    /// request. `None` if no head is incomplete.
    head_at: Cell<Option<u64>>,
    /// The client has closed its side, or the connection broke.
    pub(super) has_ended: Cell<bool>,
    /// The connection gives back by itself the memory that many requests needed. So it never counts
    /// as grown.
    pub(super) keeps_little: Cell<bool>,
    /// The largest number of requests that were being answered at once.
    in_flight_peak: Cell<u32>,
    /// The sweep found that an idle connection holds much memory: it must end as if the node
    /// stopped.
    pub(super) is_retired: Cell<bool>,
    /// The sweep found the client silent: the connection must give back grown memory.
    gives_back: Cell<bool>,
    /// The sweep found the connection overdue.
    pub(super) is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl ClientState {
    /// A connection that begins now. `sweeps` is its clock.
    pub(super) fn new(sweeps: Rc<Cell<u64>>, caller: Caller, permit: ConnectionPermit) -> Self {
        Self {
            from: caller.from,
            port: caller.port,
            is_encrypted: Cell::new(caller.is_encrypted),
            forwarder: Cell::default(),
            is_rated: Cell::new(permit.has_rate()),
            permit,
            in_flight: Cell::default(),
            fast_in_flight: Cell::default(),
            is_native: Cell::default(),
            has_calls: Cell::default(),
            active_at: Cell::new(sweeps.get()),
            // The time limit of the first head starts with the connection, before the first byte.
            head_at: Cell::new(Some(sweeps.get())),
            has_ended: Cell::default(),
            keeps_little: Cell::default(),
            in_flight_peak: Cell::default(),
            is_retired: Cell::default(),
            gives_back: Cell::default(),
            is_cut: Cell::default(),
            waker: RefCell::default(),
            sweeps,
        }
    }

    /// The caller of this connection.
    pub(crate) fn caller(&self) -> Caller {
        Caller { from: self.from, port: self.port, is_encrypted: self.is_encrypted.get() }
    }

    /// Records that the caller is a node of this cluster, which sends requests on. The rate of its
    /// address does not count these: they stand for many clients, and the node has counted each of
    /// them.
    pub(super) fn record_forwarder(&self, node: NodeId) {
        self.forwarder.set(Some(node));
        self.is_rated.set(false);
    }

    /// The node that sends requests on over this connection; `None` if the caller is a client.
    pub(crate) fn forwarder(&self) -> Option<NodeId> {
        self.forwarder.get()
    }

    /// Records that a whole request has arrived.
    pub(crate) fn begin(self: &Rc<Self>) -> InFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        self.in_flight_peak.set(self.in_flight_peak.get().max(self.in_flight.get()));
        self.head_at.set(None);
        self.active_at.set(self.sweeps.get());
        InFlight(self.clone())
    }

    /// Records that a native client has begun its hello.
    pub(crate) fn begin_hello(&self) {
        self.is_native.set(true);
        self.head_at.set(Some(self.sweeps.get()));
    }

    /// Records that the TLS handshake is over. The handshake had the same time limit as a request's
    /// head. The time limit of the first head starts now.
    pub(super) fn end_handshake(&self) {
        self.is_encrypted.set(true);
        self.head_at.set(Some(self.sweeps.get()));
    }

    /// Records that a native client's hello, or the head of an HTTP/2 client's first frame, has
    /// arrived whole. From now on the client may be silent.
    pub(crate) fn end_hello(&self) {
        self.head_at.set(None);
        self.active_at.set(self.sweeps.get());
    }

    /// Records the result of a read on a fast path. `has_taken` means that the read brought at
    /// least one whole request. `is_in_head` means that the remaining bytes begin another request.
    pub(crate) fn record_requests(&self, has_taken: bool, is_in_head: bool) {
        if has_taken {
            self.active_at.set(self.sweeps.get());
        }
        self.record_frames(has_taken, is_in_head);
    }

    /// Records the result of a read of HTTP/2. `has_whole` means that a frame has ended, and with it
    /// its header block. `is_in_part` means that the bytes end within a frame or a header block.
    /// Frames alone are no activity, because a client may never read.
    pub(crate) fn record_frames(&self, has_whole: bool, is_in_part: bool) {
        if has_whole {
            self.head_at.set(None);
        }
        if is_in_part && self.head_at.get().is_none() {
            self.head_at.set(Some(self.sweeps.get()));
        }
    }

    /// Records how many requests of a native client, or on a fast path, are being answered.
    pub(crate) fn set_fast_in_flight(&self, requests: u32) {
        if self.fast_in_flight.replace(requests) != requests {
            self.active_at.set(self.sweeps.get());
        }
    }

    /// Records that the client sends no more.
    pub(crate) fn record_end(&self) {
        self.has_ended.set(true);
    }

    /// Records bytes that were read for hyper. No bytes mean the end.
    pub(super) fn handle_read(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.has_ended.set(true);
            return;
        }
        // A read alone is no activity: otherwise a client that sends, and never reads, would never
        // be idle. A ping counts when the socket accepts its answer.
        if self.in_flight() == 0 && self.head_at.get().is_none() {
            self.head_at.set(Some(self.sweeps.get()));
        }
    }

    /// Records that the socket accepted bytes: the client reads, or its window is not full.
    pub(crate) fn handle_write(&self) {
        self.active_at.set(self.sweeps.get());
    }

    /// Whether the client has been silent, or in the middle of a request's head, for too long. A
    /// connection with requests in flight is never overdue, because each request has a deadline.
    pub(super) fn is_overdue(&self, timeout: Timeout) -> bool {
        let is_past = |since: u64, limit: u64| self.sweeps.get() - since > limit;
        let is_slow = self.head_at.get().is_some_and(|since| is_past(since, timeout.head));
        self.in_flight() == 0 && (is_slow || is_past(self.active_at.get(), timeout.idle))
    }

    /// Makes the connection give back grown memory when the client has just become silent.
    pub(super) fn record_sweep(&self) {
        let silence = self.sweeps.get() - self.active_at.get();
        if silence == GIVE_BACK_AFTER && self.in_flight() == 0 {
            self.gives_back.set(true);
            self.wake();
        }
    }

    /// Whether the client is silent and the connection holds the memory of many HTTP/3 streams.
    /// Only the end of the connection frees that memory.
    pub(super) fn is_grown(&self) -> bool {
        let is_silent = self.sweeps.get() - self.active_at.get() >= GIVE_BACK_AFTER;
        let has_grown = !self.keeps_little.get() && self.in_flight_peak.get() > GROWN_STREAMS;
        is_silent && self.in_flight() == 0 && has_grown
    }

    /// Ends the connection as if the node stopped. The second call cuts it off at once.
    pub(super) fn retire(&self) {
        self.is_cut.set(self.is_retired.replace(true));
        self.wake();
    }

    /// Whether the connection must give back memory now. The next call returns `false` again.
    pub(super) fn gives_back(&self) -> bool {
        self.gives_back.get() && self.gives_back.take()
    }

    /// How many of `requests` the rate of the client's address allows now. The allowed requests are
    /// counted; the others must be refused.
    pub(crate) fn take(&self, requests: u32, clock: &NodeClock) -> u32 {
        if !self.is_rated.get() {
            return requests;
        }
        self.permit.take(requests, clock.monotonic_ns())
    }

    /// Takes this many requests out of the count: the node had no capacity for them, and will count
    /// them again later.
    pub(crate) fn give_back(&self, requests: u32) {
        if self.is_rated.get() {
            self.permit.give_back(requests);
        }
    }

    /// How many requests are being answered.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.get() + self.fast_in_flight.get()
    }

    /// The time, in sweeps.
    pub(super) fn sweeps(&self) -> u64 {
        self.sweeps.get()
    }

    /// Records the task to wake.
    pub(super) fn record_waker(&self, context: &Context<'_>) {
        let mut noted = self.waker.borrow_mut();
        if !noted.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *noted = Some(context.waker().clone());
        }
    }

    /// Wakes the task of the connection.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// Counts a request as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Rc<ClientState>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let state = &self.0;
        state.in_flight.set(state.in_flight.get() - 1);
        state.active_at.set(state.sweeps.get());
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::NodeId;

    use super::*;
    use crate::config::Config;

    struct Fixture {
        sweeps: Rc<Cell<u64>>,
        state: Rc<ClientState>,
    }

    impl Fixture {
        fn new() -> Self {
            let sweeps = Rc::new(Cell::new(0));
            let caller = Caller { from: None, port: Port::Shared, is_encrypted: false };
            let address_limits = crate::security::limits::AddressLimits::new(None);
            let permit = address_limits.admit(IpAddr::from([192, 0, 2, 1]), 1).unwrap();
            Self { state: Rc::new(ClientState::new(sweeps.clone(), caller, permit)), sweeps }
        }

        /// Lets `seconds` pass. Returns whether the connection is overdue then.
        fn is_overdue_after(&self, seconds: u64) -> bool {
            self.sweeps.set(self.sweeps.get() + seconds);
            self.state.is_overdue(Timeout::new(&Config::new(NodeId(1), "").limits))
        }
    }

    #[test]
    fn a_client_that_never_says_anything_is_overdue_after_ten_seconds() {
        let mute = Fixture::new();
        assert!(!mute.is_overdue_after(10));
        assert!(mute.is_overdue_after(1));
    }

    #[test]
    fn a_silent_client_is_overdue_after_two_minutes() {
        let silent = Fixture::new();
        silent.state.record_requests(true, false);
        assert!(!silent.is_overdue_after(120));
        assert!(silent.is_overdue_after(1));
    }

    #[test]
    fn half_a_request_is_overdue_after_ten_seconds_however_it_trickles() {
        let slow = Fixture::new();
        slow.state.record_requests(true, false);
        assert!(!slow.is_overdue_after(60));
        slow.state.handle_read(b"GET /times");
        assert!(!slow.is_overdue_after(10));
        slow.state.handle_read(b"t");
        assert!(slow.is_overdue_after(1));
    }

    #[test]
    fn a_head_that_begins_as_http2_does_has_no_more_time_than_another() {
        let slow = Fixture::new();
        slow.state.handle_read(b"PRI * HTTP/1.1\r\nhost: a\r\nx-a: ");
        assert!(!slow.is_overdue_after(10));
        slow.state.handle_read(b"one more of the many bytes of a head");
        assert!(slow.is_overdue_after(1));
    }

    #[test]
    fn a_partial_request_behind_whole_ones_has_ten_seconds_of_its_own() {
        let slow = Fixture::new();
        slow.state.record_requests(false, true);
        assert!(!slow.is_overdue_after(9));
        slow.state.record_requests(true, true);
        slow.state.record_requests(false, true);
        assert!(!slow.is_overdue_after(10));
        assert!(slow.is_overdue_after(1));
        slow.state.record_requests(true, false);
        assert!(!slow.is_overdue_after(120));
        assert!(slow.is_overdue_after(1));
    }

    #[test]
    fn a_request_that_is_being_answered_is_never_overdue() {
        let busy = Fixture::new();
        busy.state.handle_read(b"GET /timestamp HTTP/1.1\r\n\r\n");
        let in_flight = ClientState::begin(&busy.state);
        assert!(!busy.is_overdue_after(1000));
        drop(in_flight);
        assert!(!busy.is_overdue_after(120));
        assert!(busy.is_overdue_after(1));
    }

    #[test]
    fn an_http2_client_that_only_pings_is_kept_while_it_takes_the_answers() {
        let silent = Fixture::new();
        assert!(silent.is_overdue_after(11), "SETTINGS belong to the beginning");
        let pinging = Fixture::new();
        pinging.state.end_hello();
        for _ in 0..10 {
            assert!(!pinging.is_overdue_after(100));
            pinging.state.handle_write();
        }
        assert!(pinging.is_overdue_after(121));
    }

    #[test]
    fn a_connection_that_had_many_requests_at_once_has_grown_once_it_is_silent() {
        let grown = |requests: u32, keeps_little: bool| {
            let busy = Fixture::new();
            busy.state.keeps_little.set(keeps_little);
            let begun: Vec<_> = (0..requests).map(|_| ClientState::begin(&busy.state)).collect();
            assert!(!busy.is_overdue_after(GIVE_BACK_AFTER) && !busy.state.is_grown());
            drop(begun);
            assert!(!busy.state.is_grown(), "it was busy a moment ago");
            assert!(!busy.is_overdue_after(GIVE_BACK_AFTER));
            busy.state.is_grown()
        };
        assert_eq!([grown(17, false), grown(16, false), grown(17, true)], [true, false, false]);
        let asked = Fixture::new();
        asked.state.retire();
        assert!(asked.state.is_retired.get() && !asked.state.is_cut.get());
        asked.state.retire();
        assert!(asked.state.is_cut.get(), "it was asked, and has stayed");
    }

    #[test]
    fn a_request_of_either_kind_is_in_flight() {
        let busy = Fixture::new();
        busy.state.set_fast_in_flight(3);
        let other = ClientState::begin(&busy.state);
        assert_eq!(busy.state.in_flight(), 4);
        busy.state.set_fast_in_flight(0);
        assert!(!busy.is_overdue_after(1000));
        drop(other);
        assert_eq!(busy.state.in_flight(), 0);
    }

    #[test]
    fn a_client_that_takes_no_answer_is_overdue() {
        let stuck = Fixture::new();
        drop(ClientState::begin(&stuck.state));
        stuck.sweeps.set(100);
        stuck.state.handle_write();
        assert!(!stuck.is_overdue_after(120));
        assert!(stuck.is_overdue_after(1));
    }
}
