//! The loop that drives one client's connection of any protocol. It answers requests whose round is
//! over, lets new requests join the open batch, and writes. It stops reading while too much waits.
//! It does not interpret a byte itself. [`Rated`] and [`settle`] hold the decisions about requests
//! for timestamps; the service uses them, too.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use epicepoch_core::sequencer::{self, Outcome};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{COMPACT_INDEXES, Guarantee};

use super::protocol::{Common, Line, Protocol, Stage};
use super::queue::{Answers, Refused};
use super::refusal::Refusal;
use crate::front::deadlines::ClientState;
use crate::metrics::worker::WorkerMetrics;
use crate::security::excess::Excess;
use crate::security::tls::socket::Socket;
use crate::worker::sequencer::{Sequencer, Ticket};

/// At most this many reads of one connection, or retries of held bytes, before other connections
/// have a turn. A refusal is immediate, so a client that keeps sending could otherwise occupy the
/// worker for ever.
const TURNS_MAX: u32 = 4;
/// The status that metrics use for answers with timestamps.
const OK: u16 = 200;

/// How a connection leaves the pipeline.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// The connection is over and must be closed.
    #[default]
    Over,
    /// Another protocol takes over. It gets the bytes that were read and not answered; all requests
    /// before them are answered and written.
    HandOver(Vec<u8>),
}

/// One client's connection in the pipeline.
pub(crate) struct Connection<P: Protocol> {
    common: Rc<Common<P>>,
    protocol: P,
    line: Line<P::Request>,
}

impl<P: Protocol> Connection<P> {
    /// A connection that has read nothing yet.
    pub(crate) fn new(common: Rc<Common<P>>, state: Rc<ClientState>) -> Self {
        let protocol = P::begin(&common, &state);
        Self { common, protocol, line: Line::new(state) }
    }

    /// Answers, writes and reads as far as possible without waiting. Ready when the connection
    /// leaves the pipeline.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Socket,
    ) -> Poll<io::Result<End>> {
        let mut turns = 0;
        loop {
            let gives_way = self.settle(context);
            let Self { common, protocol, line } = self;
            let before = line.queue.len();
            let has_more = protocol.advance(common, line, context);
            let has_new = line.queue.len() > before;
            let is_over = gives_way || turns == TURNS_MAX;
            if self.may_parse_held() && !is_over {
                turns += 1;
                self.parse_held();
                continue;
            }
            let is_through = self.is_through();
            if is_through {
                self.protocol.end_output(self.line.outbox.bytes());
            }
            let before = self.line.outbox.len();
            let writing = self.line.outbox.poll_write(context, stream)?;
            let written = before - self.line.outbox.len();
            if written > 0 {
                self.protocol.record_written(written);
                self.line.state.handle_write();
            }
            if let Some(end) = self.end(is_through, writing.is_ready()) {
                return Poll::Ready(Ok(end));
            }
            if is_over {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.may_parse_held() {
                continue;
            }
            // New requests join a batch even if the client reads nothing. Otherwise the connection
            // would have requests in flight, and would never be overdue.
            let goes_on = has_new || has_more && writing.is_ready();
            if !goes_on && self.poll_read(context, stream)?.is_pending() {
                return Poll::Pending;
            }
            turns += 1;
        }
    }

    /// Stops accepting requests, answers the accepted ones, and ends.
    pub(crate) fn close(&mut self) {
        self.protocol.close(&mut self.line);
    }

    /// Gives back memory that bursts have made grow.
    pub(crate) fn give_back(&mut self) {
        self.line.held.shrink_to_fit();
        self.line.queue.give_back();
        self.line.outbox.give_back();
        self.protocol.give_back();
    }

    /// Whether all accepted requests are answered and no more are accepted.
    fn is_through(&self) -> bool {
        match self.line.stage {
            Stage::Open | Stage::Cut => false,
            Stage::Leaving | Stage::Ending => self.line.queue.len() == 0,
        }
    }

    /// How the connection ends; `None` if it goes on.
    fn end(&mut self, is_through: bool, is_written: bool) -> Option<End> {
        match self.line.stage {
            Stage::Open => (is_written && self.protocol.is_over()).then_some(End::Over),
            Stage::Cut => Some(End::Over),
            Stage::Ending => (is_through && is_written).then_some(End::Over),
            Stage::Leaving => (is_through && is_written)
                .then(|| End::HandOver(std::mem::take(&mut self.line.held))),
        }
    }

    /// Answers bursts that have their outcome, and lets new requests join a batch. Returns whether
    /// other connections should have a turn first, because they may want the capacity that became
    /// free.
    fn settle(&mut self, context: &mut Context<'_>) -> bool {
        if self.line.queue.len() == 0 {
            return false;
        }
        let is_held_up = self.line.queue.joined() > 0 && self.line.queue.has_new();
        let before = self.line.queue.bursts();
        loop {
            while let Poll::Ready(Some((requests, outcome, is_forwarded))) =
                self.line.queue.poll(context)
            {
                self.answer(0..requests, outcome, is_forwarded, 0);
            }
            if !self.line.queue.has_new() {
                return false;
            }
            if is_held_up && self.line.queue.bursts() < before {
                return true;
            }
            if !self.join() {
                return false;
            }
        }
    }

    /// Lets new requests join the open batch: as many as the rate of their address and the
    /// admission limit of the node allow. The other new requests wait if the protocol allows that
    /// and earlier requests of this connection are in a batch; otherwise they are refused. Returns
    /// whether there is something new to settle.
    fn join(&mut self) -> bool {
        let default = self.common.sequencer.shared.guarantee_default();
        let guarantee = self.protocol.guarantee(&self.line.queue, default);
        // The leader proves what it gives to others by a round. A request that names a lease
        // follows.
        let may_forward = self.common.sequencer.forwards()
            && self.protocol.may_forward(&self.line.queue)
            && self.protocol.guarantee(&self.line.queue, Guarantee::Quorum) == Guarantee::Quorum;
        let Line { state, queue, .. } = &mut self.line;
        // The requests of a burst share a range, and a range of compact timestamps has one
        // millisecond.
        let wanted = if may_forward || self.common.sequencer.shared.is_compact() {
            queue.wanted_within(COMPACT_INDEXES)
        } else {
            queue.wanted()
        };
        if wanted == 0 {
            if queue.joined() > 0 {
                return false;
            }
            // All requests were cancelled.
            self.answer(0..self.line.queue.len(), None, false, 0);
            return true;
        }
        let sequencer = &self.common.sequencer;
        let rated = Rated::new(sequencer, state, wanted);
        let total = |admitted| queue.total(admitted);
        let (admitted, code) = match rated.join(sequencer, guarantee, may_forward, total) {
            Ok(ticket) => {
                let admitted = ticket.requests();
                queue.join(ticket);
                (admitted, ErrorCode::Overloaded)
            }
            Err(code) => (0, code),
        };
        if P::WAITS_FOR_ADMISSION && queue.joined() > 0 {
            // Requests that must wait are taken out of the rate's count. They are counted when they
            // join a batch.
            state.give_back(rated.allowed - admitted);
            return admitted > 0;
        }
        if admitted < wanted {
            let refused = queue.joined()..queue.len();
            let over_rate = rated.over_rate(admitted, queue.live_of(refused.clone()) as u64);
            record_over_rate(sequencer, state, over_rate);
            self.answer(refused, Some(Err(code)), false, over_rate);
        }
        true
    }

    /// Answers or refuses `requests`, or drops them if all were cancelled. Only the oldest requests
    /// may get timestamps. `over_rate` of the requests are refused because of their address's rate.
    fn answer(
        &mut self,
        requests: Range<usize>,
        outcome: Option<Outcome>,
        is_forwarded: bool,
        over_rate: u64,
    ) {
        let Self { common, protocol, line } = self;
        let (queue, out) = (&mut line.queue, line.outbox.bytes());
        let live = queue.live_of(requests.clone()) as u64;
        let latest = queue.latest_of(requests.clone()) as u64;
        let count = |it: &WorkerMetrics, status, n| P::count(it, status, n, latest);
        let mut unfit = 0;
        let outcome = outcome.map(|outcome| {
            outcome.and_then(|answer| {
                unfit = protocol.check(common, queue, requests.end, &answer.range)?;
                Ok(answer)
            })
        });
        match outcome.map(|it| settle(&common.sequencer, it, live - unfit, over_rate, count)) {
            None => queue.drain(requests, |_, _| {}),
            Some(Ok(sequencer::Answer { range, proved_by })) => {
                let requests = requests.end;
                let answers = Answers { queue, requests, range, proved_by, is_forwarded };
                protocol.answer(common, answers, out);
            }
            Some(Err(refusal)) => {
                protocol.refuse(common, Refused { queue, range: requests }, &refusal, out);
            }
        }
        line.record_in_flight();
    }

    /// Whether held bytes, which did not fit before, may be handled now.
    fn may_parse_held(&self) -> bool {
        self.line.is_full && self.protocol.read_allowance(&self.line) > 0
    }

    /// Reads once if allowed, and parses. Pending when there is nothing to read, or when too many
    /// requests or answers wait.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Socket,
    ) -> Poll<io::Result<()>> {
        let Self { common, protocol, line } = self;
        let (held, allowance) = (line.held.len(), protocol.read_allowance(line));
        if line.stage != Stage::Open || held >= allowance {
            return Poll::Pending;
        }
        let mut scratch = common.scratch.borrow_mut();
        let scratch = &mut scratch[..allowance];
        let length = ready!(stream.poll_read_behind(context, &line.held, scratch))?;
        if length > held {
            parse_requests(common, protocol, line, &scratch[..length], held);
        } else {
            protocol.end_input(line);
        }
        Poll::Ready(Ok(()))
    }

    /// Parses the held bytes again.
    fn parse_held(&mut self) {
        let Self { common, protocol, line } = self;
        let mut scratch = common.scratch.borrow_mut();
        let held = line.held.len();
        scratch[..held].copy_from_slice(&line.held);
        parse_requests(common, protocol, line, &scratch[..held], held);
    }
}

/// Accepts as many whole requests as fit, and holds the remaining bytes.
#[inline]
fn parse_requests<P: Protocol>(
    common: &Common<P>,
    protocol: &mut P,
    line: &mut Line<P::Request>,
    bytes: &[u8],
    seen: usize,
) {
    line.is_full = false;
    let rest = protocol.receive(common, line, bytes, seen);
    line.held.clear();
    if line.stage != Stage::Ending {
        line.held.extend_from_slice(rest);
    }
    line.record_in_flight();
}

/// Requests of one client, of which the rate of its address allows some. The allowed ones count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rated {
    wanted: u32,
    allowed: u32,
}

impl Rated {
    fn new(sequencer: &Sequencer, client: &ClientState, wanted: u32) -> Self {
        Self { wanted, allowed: client.take(wanted, &sequencer.shared.clock) }
    }

    /// A single request. It is refused at once if the rate does not allow it. The refusal is already
    /// counted and logged; the metric of refusals does not count it.
    pub(crate) fn single(sequencer: &Sequencer, client: &ClientState) -> Result<Self, OverRate> {
        let rated = Self::new(sequencer, client, 1);
        if rated.allowed == 0 {
            record_over_rate(sequencer, client, 1);
            return Err(OverRate);
        }
        Ok(rated)
    }

    /// Lets the allowed requests join the open batch, as many as the admission limit of the node
    /// allows. Returns the code of the refusal if none can join.
    #[inline]
    pub(crate) fn join(
        self,
        sequencer: &Rc<Sequencer>,
        guarantee: Guarantee,
        may_forward: bool,
        total: impl FnOnce(u32) -> u64,
    ) -> Result<Ticket, ErrorCode> {
        match self.allowed {
            0 => Err(OverRate::CODE),
            allowed => sequencer.join(allowed, guarantee, may_forward, total),
        }
    }

    /// How many of `refused` requests are refused because of the rate, after `admitted` requests
    /// have joined a batch. If the node had capacity for all allowed requests, only the rate has
    /// refused any.
    fn over_rate(self, admitted: u32, refused: u64) -> u64 {
        if admitted == self.allowed {
            return refused;
        }
        refused.min(u64::from(self.wanted - self.allowed))
    }
}

/// A request is refused because its address exceeded its rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverRate;

impl OverRate {
    /// The code that the client gets.
    pub(crate) const CODE: ErrorCode = ErrorCode::Overloaded;
}

/// Counts and logs requests that are refused because of the rate of their address.
fn record_over_rate(sequencer: &Sequencer, client: &ClientState, requests: u64) {
    if requests > 0 {
        sequencer.metrics().requests_over_rate.add_alone(requests);
        let detail = "its requests beyond ADDRESS_REQUEST_RATE_MAX are refused";
        sequencer.shared.record_excess(Excess::Rate, &client.caller(), detail);
    }
}

/// Counts requests whose outcome is known, with `count` by their status. Returns the refusal if
/// they get no timestamps. The metric of refusals does not count the `over_rate` requests among
/// them: their client sends too much, while the node has capacity.
#[inline]
pub(crate) fn settle(
    sequencer: &Sequencer,
    outcome: Outcome,
    requests: u64,
    over_rate: u64,
    count: impl FnOnce(&WorkerMetrics, u16, u64),
) -> Result<sequencer::Answer, Refusal> {
    let settled = outcome.map_err(|code| Refusal::now(sequencer, code));
    let status = settled.as_ref().map_or_else(|refusal| refusal.code.status(), |_| OK);
    let metrics = sequencer.metrics();
    count(metrics, status, requests);
    settled.inspect_err(|refusal| metrics.count_refusals(refusal.code, requests - over_rate))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::IpAddr;
    use std::num::NonZeroU32;

    use epicepoch_wire::WorkerId;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::consensus::fixture::logged;
    use crate::front::pipeline::queue::Waiting;
    use crate::metrics::cell::Count;
    use crate::security::authz::{Caller, Port};
    use crate::security::limits::AddressLimits;
    use crate::worker::fixture::sequencer;

    /// A protocol whose client has sent a request that is taken up later, as a paused call does it.
    struct Late {
        has_asked: bool,
        refused: Rc<Cell<usize>>,
    }

    #[derive(Clone, Copy)]
    struct Request;

    impl Waiting for Request {
        fn count(&self) -> u64 {
            1
        }
    }

    impl Protocol for Late {
        type Request = Request;
        type Shared = Rc<Cell<usize>>;

        const QUEUE_LEN_MAX: usize = 1;
        const READ_LEN_MAX: usize = 1;
        const WAITS_FOR_ADMISSION: bool = true;

        fn share(_: &Rc<Sequencer>) -> Self::Shared {
            Rc::default()
        }

        fn begin(common: &Rc<Common<Self>>, _: &Rc<ClientState>) -> Self {
            Self { has_asked: false, refused: common.shared.clone() }
        }

        fn receive<'a>(
            &mut self,
            _: &Common<Self>,
            _: &mut Line<Request>,
            bytes: &'a [u8],
            _: usize,
        ) -> &'a [u8] {
            bytes
        }

        fn end_input(&mut self, _: &mut Line<Request>) {}

        fn answer(&mut self, _: &Common<Self>, _: Answers<'_, Request>, _: &mut Vec<u8>) {
            unreachable!("this node does not lead")
        }

        fn refuse(
            &mut self,
            _: &Common<Self>,
            refused: Refused<'_, Request>,
            _: &Refusal,
            _: &mut Vec<u8>,
        ) {
            refused.each(|_, _| self.refused.set(self.refused.get() + 1));
        }

        fn close(&mut self, _: &mut Line<Request>) {}

        fn advance(
            &mut self,
            _: &Common<Self>,
            line: &mut Line<Request>,
            _: &mut Context<'_>,
        ) -> bool {
            if !std::mem::replace(&mut self.has_asked, true) {
                line.queue.push(Request, &[]);
            }
            false
        }
    }

    #[tokio::test]
    async fn a_request_is_settled_although_its_client_reads_nothing() {
        /// More than the buffers of a socket take.
        const UNREAD_LEN: usize = 64 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut socket = Socket::Plain(listener.accept().await.unwrap().0);
        let permit = AddressLimits::new(None).admit(IpAddr::from([192, 0, 2, 1]), 1).unwrap();
        let caller = Caller { from: None, port: Port::Shared, is_encrypted: false };
        let state = Rc::new(ClientState::new(Rc::default(), caller, permit));
        let common = Common::<Late>::new(sequencer(WorkerId(0)));
        let mut connection = Connection::new(common.clone(), state);
        connection.line.outbox.bytes().resize(UNREAD_LEN, 0);
        let polled = std::future::poll_fn(|context| {
            Poll::Ready(connection.poll(context, &mut socket).is_pending())
        });
        assert!(polled.await && connection.line.outbox.len() > 0);
        assert_eq!((common.shared.get(), connection.line.queue.len()), (1, 0));
        drop(client);
    }

    /// A client at an address that may ask once, and again after a second.
    fn slow_client() -> Rc<ClientState> {
        let from = IpAddr::from([192, 0, 2, 7]);
        let permit = AddressLimits::new(NonZeroU32::new(1)).admit(from, 1).unwrap();
        let caller = Caller { from: Some(from), port: Port::Shared, is_encrypted: false };
        Rc::new(ClientState::new(Rc::default(), caller, permit))
    }

    /// How many requests the metrics count as over the rate, and as refused for other reasons.
    fn counted(sequencer: &Sequencer) -> (u64, u64) {
        let metrics = sequencer.metrics();
        let refusals = metrics.refusals.iter().map(Count::load).sum();
        (metrics.requests_over_rate.load(), refusals)
    }

    #[test]
    fn a_request_over_the_rate_is_no_overload_and_the_log_names_its_client() {
        let (sequencer, client) = (sequencer(WorkerId(0)), slow_client());
        assert!(Rated::single(&sequencer, &client).is_ok());
        let lines = logged(|| {
            for _ in 0..3 {
                assert!(Rated::single(&sequencer, &client).is_err());
            }
        });
        assert_eq!(counted(&sequencer), (3, 0));
        let detail = "its requests beyond ADDRESS_REQUEST_RATE_MAX are refused";
        let line = "WARN a client sends too much addr=192.0.2.7 kind=rate";
        assert_eq!(lines, [format!("{line} detail={detail} others=0")]);
    }

    #[test]
    fn of_a_burst_only_the_allowed_requests_count_as_refused_for_other_reasons() {
        let (common, client) = (Common::<Late>::new(sequencer(WorkerId(0))), slow_client());
        let mut connection = Connection::new(common.clone(), client);
        // This node belongs to no cluster. So it also refuses the request that the rate allows.
        for (refused, expected) in [(3, (2, 1)), (6, (5, 1))] {
            for _ in 0..3 {
                connection.line.queue.push(Request, &[]);
            }
            assert!(connection.join());
            assert_eq!((common.shared.get(), counted(&common.sequencer)), (refused, expected));
        }
    }

    #[test]
    fn all_requests_beyond_what_the_rate_allowed_are_over_the_rate() {
        let rated = Rated { wanted: 10, allowed: 4 };
        // More requests may be refused than were wanted for one batch.
        assert_eq!([rated.over_rate(4, 6), rated.over_rate(4, 9)], [6, 9]);
        // The node had capacity for only one, so three are refused as an overload.
        assert_eq!([rated.over_rate(1, 9), rated.over_rate(0, 10)], [6, 6]);
        assert_eq!(Rated { wanted: 10, allowed: 10 }.over_rate(1, 9), 0);
    }
}
