//! What the sweep must know of a client's connection: whether requests are being answered, and
//! since when it is silent or in the middle of a head. It reads no clock and closes nothing.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::config::Limits;
use crate::origins::ConnectionPermit;
use crate::rights::{Caller, Port};
use crate::shared::NodeClock;

/// Sweeps of silence after which a connection gives back the memory that it grew to: a busy one
/// would ask for it again.
const GIVE_BACK_AFTER: u64 = 2;
/// Streams at once beyond which a connection of HTTP/3 has grown, and keeps what they took.
const GROWN_STREAMS: u32 = 16;
/// Time between two looks at all connections.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How long connections may keep a node waiting, in sweeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    head: u64,
    idle: u64,
}

impl Patience {
    pub(super) fn new(limits: &Limits) -> Self {
        let sweeps =
            |limit: Duration| limit.as_millis().div_ceil(SWEEP_INTERVAL.as_millis()) as u64;
        Self { head: sweeps(limits.head_timeout), idle: sweeps(limits.idle_timeout) }
    }
}

/// What the sweep must know of a connection. Times are counted in sweeps.
#[derive(Debug)]
pub(crate) struct ClientState {
    from: Option<IpAddr>,
    port: Port,
    is_encrypted: Cell<bool>,
    /// Counts the connection, and what its address asks.
    permit: ConnectionPermit,
    /// Whether what its address asks is limited.
    is_rated: bool,
    sweeps: Rc<Cell<u64>>,
    /// Requests that the service is answering.
    in_flight: Cell<u32>,
    /// Requests that are being answered beside it.
    hot_in_flight: Cell<u32>,
    pub(super) is_native: Cell<bool>,
    /// When a request last came or was answered, or the socket last took bytes.
    active_at: Cell<u64>,
    /// When the connection began, or the first byte of a request came, whose head is not complete.
    head_at: Cell<Option<u64>>,
    /// The client has closed its side, or the connection broke.
    pub(super) has_ended: Cell<bool>,
    /// Whatever many requests take is given back.
    pub(super) keeps_little: Cell<bool>,
    /// Most requests that were answered at once.
    in_flight_peak: Cell<u32>,
    /// The sweep found that it holds much for nothing: it is to end as if the node stopped.
    pub(super) is_retired: Cell<bool>,
    /// The sweep found it silent: what it had grown to is to be given back.
    gives_back: Cell<bool>,
    /// The sweep found it overdue.
    pub(super) is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl ClientState {
    /// A connection that begins now; `sweeps` counts its time.
    pub(super) fn new(sweeps: Rc<Cell<u64>>, caller: Caller, permit: ConnectionPermit) -> Self {
        Self {
            from: caller.from,
            port: caller.port,
            is_encrypted: Cell::new(caller.is_encrypted),
            is_rated: permit.has_rate(),
            permit,
            in_flight: Cell::default(),
            hot_in_flight: Cell::default(),
            is_native: Cell::default(),
            active_at: Cell::new(sweeps.get()),
            // The first byte belongs to the first head.
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

    /// Whom the connection is from.
    pub(crate) fn caller(&self) -> Caller {
        Caller { from: self.from, port: self.port, is_encrypted: self.is_encrypted.get() }
    }

    /// Notes that a request has come whole.
    pub(crate) fn begin(self: &Rc<Self>) -> InFlight {
        self.in_flight.set(self.in_flight.get() + 1);
        self.in_flight_peak.set(self.in_flight_peak.get().max(self.in_flight.get()));
        self.head_at.set(None);
        self.active_at.set(self.sweeps.get());
        InFlight(self.clone())
    }

    /// Notes that a native client has begun its hello.
    pub(crate) fn begin_hello(&self) {
        self.is_native.set(true);
        self.head_at.set(Some(self.sweeps.get()));
    }

    /// Notes that a handshake is over, which had as much time as a head. The first head has its
    /// own from here on.
    pub(super) fn end_handshake(&self) {
        self.is_encrypted.set(true);
        self.head_at.set(Some(self.sweeps.get()));
    }

    /// Notes that the hello of a native client has come whole, or the head of the first frame of one
    /// of HTTP/2. From here on it may be silent.
    pub(crate) fn end_hello(&self) {
        self.head_at.set(None);
        self.active_at.set(self.sweeps.get());
    }

    /// Notes what a read brought, of which the hot path took requests in: whether it took any, and
    /// whether what is left is the beginning of another.
    pub(crate) fn note_requests(&self, has_taken: bool, is_in_head: bool) {
        if has_taken {
            self.active_at.set(self.sweeps.get());
            self.head_at.set(None);
        }
        if is_in_head && self.head_at.get().is_none() {
            self.head_at.set(Some(self.sweeps.get()));
        }
    }

    /// Notes how many requests of a native client, or on a hot path, are being answered.
    pub(crate) fn set_hot_in_flight(&self, requests: u32) {
        if self.hot_in_flight.replace(requests) != requests {
            self.active_at.set(self.sweeps.get());
        }
    }

    /// Notes that the client sends no more.
    pub(crate) fn note_end(&self) {
        self.has_ended.set(true);
    }

    /// Notes bytes that were read for hyper; none at the end.
    pub(super) fn handle_read(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.has_ended.set(true);
            return;
        }
        // Reading alone is no activity: a client that sends and takes nothing off its socket would
        // never be idle. A ping counts by the answer to it, once the socket took that.
        if self.in_flight() == 0 && self.head_at.get().is_none() {
            self.head_at.set(Some(self.sweeps.get()));
        }
    }

    /// Notes that the socket took bytes: the client reads, or its window still has room.
    pub(crate) fn handle_write(&self) {
        self.active_at.set(self.sweeps.get());
    }

    /// Whether the client has been silent, or in the middle of a request's head, for too long. A
    /// request that is being answered has a deadline of its own.
    pub(super) fn is_overdue(&self, patience: Patience) -> bool {
        let is_past = |since: u64, limit: u64| self.sweeps.get() - since > limit;
        let is_slow = self.head_at.get().is_some_and(|since| is_past(since, patience.head));
        self.in_flight() == 0 && (is_slow || is_past(self.active_at.get(), patience.idle))
    }

    /// Has the connection give back the memory that it grew to, once it has begun to be silent.
    pub(super) fn note_sweep(&self) {
        let silence = self.sweeps.get() - self.active_at.get();
        if silence == GIVE_BACK_AFTER && self.in_flight() == 0 {
            self.gives_back.set(true);
            self.wake();
        }
    }

    /// Whether it is silent, and holds memory for many streams of HTTP/3, which nothing but its end
    /// gives back.
    pub(super) fn is_grown(&self) -> bool {
        let is_silent = self.sweeps.get() - self.active_at.get() >= GIVE_BACK_AFTER;
        let has_grown = !self.keeps_little.get() && self.in_flight_peak.get() > GROWN_STREAMS;
        is_silent && self.in_flight() == 0 && has_grown
    }

    /// Ends it as if the node stopped, and at once where its client has not taken that to heart.
    pub(super) fn retire(&self) {
        self.is_cut.set(self.is_retired.replace(true));
        self.wake();
    }

    /// Whether memory is to be given back now; asked once.
    pub(super) fn gives_back(&self) -> bool {
        self.gives_back.get() && self.gives_back.take()
    }

    /// How many of `requests` are within what the client's address may ask now. They are counted;
    /// the others are to be refused.
    pub(crate) fn take(&self, requests: u32, clock: &NodeClock) -> u32 {
        if !self.is_rated {
            return requests;
        }
        self.permit.take(requests, clock.monotonic_ns())
    }

    /// Takes back that so many requests were counted: they found no room, and are taken later.
    pub(crate) fn give_back(&self, requests: u32) {
        self.permit.give_back(requests);
    }

    /// How many requests are being answered.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.get() + self.hot_in_flight.get()
    }

    /// The time, in sweeps.
    pub(super) fn sweeps(&self) -> u64 {
        self.sweeps.get()
    }

    /// Notes who is to be woken.
    pub(super) fn note_waker(&self, context: &Context<'_>) {
        let mut noted = self.waker.borrow_mut();
        if !noted.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *noted = Some(context.waker().clone());
        }
    }

    /// Has the task of the connection look again.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// Held while a request is being answered.
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
    use super::*;

    struct Fixture {
        sweeps: Rc<Cell<u64>>,
        state: Rc<ClientState>,
    }

    impl Fixture {
        fn new() -> Self {
            let sweeps = Rc::new(Cell::new(0));
            let caller = Caller { from: None, port: Port::Shared, is_encrypted: false };
            let origins = crate::origins::Origins::new(None);
            let permit = origins.admit(IpAddr::from([192, 0, 2, 1]), 1).unwrap();
            Self { state: Rc::new(ClientState::new(sweeps.clone(), caller, permit)), sweeps }
        }

        /// Whether the connection is overdue after so many more seconds.
        fn is_overdue_after(&self, seconds: u64) -> bool {
            self.sweeps.set(self.sweeps.get() + seconds);
            self.state.is_overdue(Patience::new(&Limits::default()))
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
        silent.state.note_requests(true, false);
        assert!(!silent.is_overdue_after(120));
        assert!(silent.is_overdue_after(1));
    }

    #[test]
    fn half_a_request_is_overdue_after_ten_seconds_however_it_trickles() {
        let slow = Fixture::new();
        slow.state.note_requests(true, false);
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
    fn the_beginning_of_a_request_behind_hot_ones_has_ten_seconds_of_its_own() {
        let slow = Fixture::new();
        slow.state.note_requests(false, true);
        assert!(!slow.is_overdue_after(9));
        slow.state.note_requests(true, true);
        slow.state.note_requests(false, true);
        assert!(!slow.is_overdue_after(10));
        assert!(slow.is_overdue_after(1));
        slow.state.note_requests(true, false);
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
        busy.state.set_hot_in_flight(3);
        let other = ClientState::begin(&busy.state);
        assert_eq!(busy.state.in_flight(), 4);
        busy.state.set_hot_in_flight(0);
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
