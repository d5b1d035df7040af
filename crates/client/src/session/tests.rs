//! Tests of a session, without a socket: callers, connections and the clock are moved by hand.

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::message::{goodbye, ping, pong};
use epicepoch_wire::native::{
    COUNT_MAX, ErrorFrame, FEATURE_LATEST, LeaderNotice, Request, TO_SERVER_TAIL_LEN_MAX, ToServer,
};
use epicepoch_wire::{
    ClusterId, Epoch, EpochIndex, Guarantee, HistoryId, ProvedBy, Timestamp, TimestampRange,
};

use super::exchange::{IN_FLIGHT_MAX, OUT_LEN_MAX};
use super::*;
use crate::directory::BACKOFF_MAX;
use crate::error::{BadAnswer, TimestampsError};

mod hedge;
mod latest;
mod limits;

const AFTER: Duration = Duration::from_millis(20);
const ATTEMPT: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(2);
/// A node closes a connection that is silent for this long.
const IDLE: Duration = Duration::from_mins(1);

/// A session, a clock, and the actions that the session has asked for.
struct World {
    now: Instant,
    session: Session,
    opening: VecDeque<(LinkId, String)>,
    closed: Vec<LinkId>,
    /// For each of the two connections: the bytes that the session has sent and the test has not
    /// read yet.
    out: [Vec<u8>; 2],
    /// The most requests in flight that nodes accept.
    in_flight_max: u32,
    /// The largest count that nodes accept.
    count_max: u64,
    /// The features that both ends have.
    features: u64,
}

impl World {
    fn new(hedge_after: Option<Duration>) -> Self {
        Self::of(&["a:1", "b:2"], hedge_after)
    }

    fn of(addrs: &[&str], hedge_after: Option<Duration>) -> Self {
        let session = Session::new(Settings {
            addrs: addrs.iter().map(|&addr| addr.to_owned()).collect(),
            seed: 1,
            cluster_name: None,
            attempt_timeout: ATTEMPT,
            refresh_interval: Duration::from_mins(1),
            hedge_after,
            guarantee: Guarantee::Quorum,
        });
        let (opening, closed, out) = (VecDeque::new(), Vec::new(), Default::default());
        Self {
            now: Instant::now(),
            session,
            opening,
            closed,
            out,
            in_flight_max: 1024,
            count_max: COUNT_MAX,
            features: FEATURE_LATEST,
        }
    }

    /// Returns a session in which one call has been answered, and its connection to the leader at
    /// `a:1`.
    fn serving() -> (Self, LinkId) {
        let mut world = Self::new(None);
        let link = world.warm_up();
        (world, link)
    }

    /// Returns a session in which one call has been answered, and its two connections to the leader
    /// at `a:1`. The second one is for hedged requests.
    fn hedging() -> (Self, LinkId, LinkId) {
        let mut world = Self::new(Some(AFTER));
        let first = world.warm_up();
        let second = world.opened("a:1", 1, 1);
        assert!(second.is_hedge() && !first.is_hedge());
        (world, first, second)
    }

    fn warm_up(&mut self) -> LinkId {
        let call = self.call(1);
        let link = self.opened("a:1", 1, 1);
        let request = self.asked(link);
        self.answer(link, request, 0);
        assert_eq!(self.outcome(call), Some(Ok(range(0, 1))));
        self.session.leave(call);
        link
    }

    fn call(&mut self, count: u64) -> usize {
        let call = self.session.enter(count, self.now + TIMEOUT).expect("there is room").0;
        self.turn();
        call
    }

    fn outcome(&mut self, call: usize) -> Option<Outcome> {
        match self.session.poll_call(call, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Moves the clock by `time`, and gives the session a turn whenever it asks for one.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(timeout) = self.session.timeout().filter(|timeout| *timeout <= end) {
            self.now = self.now.max(timeout);
            self.turn();
        }
        self.now = end;
        self.turn();
    }

    fn turn(&mut self) {
        self.session.handle_time(self.now);
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Open { link, addr } => self.opening.push_back((link, addr)),
                Action::Close { link } => self.closed.push(link),
                Action::Refresh { .. } => {}
            }
        }
    }

    /// Opens the next connection that the session wants, which must be to `addr`. The node there
    /// has the id `node` and names `leader` as the leader; 0 for none.
    fn opened(&mut self, addr: &str, node: u64, leader: u64) -> LinkId {
        let (link, wanted) = self.opening.pop_front().expect("a connection is wanted");
        assert_eq!(wanted, addr);
        let addr = format!("{}:{leader}", name(leader));
        let leader = (leader > 0).then_some(MemberAddr { node: NodeId(leader), addr });
        let welcome = Welcome {
            version: 1,
            cluster: Some((ClusterId(7), HistoryId(1))),
            node: NodeId(node),
            leader,
            in_flight_max: self.in_flight_max,
            idle_ms: IDLE.as_millis() as u32,
            count_max: self.count_max,
            features: self.features,
            ..Welcome::default()
        };
        self.session.handle_opened(link, Ok(welcome), self.now);
        self.turn();
        link
    }

    /// TLS fails with the node at `addr`, to which the session wants the next connection.
    fn tls_fails(&mut self, addr: &str) {
        let (link, wanted) = self.opening.pop_front().expect("a connection is wanted");
        assert_eq!(wanted, addr);
        let failed_attempt = FailedAttempt::Tls { addr: wanted, reason: "expired".to_owned() };
        self.session.handle_opened(link, Err(failed_attempt.into()), self.now);
        self.turn();
    }

    /// Returns the requests that the session sends over a connection now.
    fn all_asked(&mut self, link: LinkId) -> Vec<Request> {
        let out = &mut self.out[usize::from(link.is_hedge())];
        self.session.poll_transmit(link, self.now, out);
        let (mut requests, mut taken) = (Vec::new(), 0);
        while let Some(frame) = split(&out[taken..], TO_SERVER_TAIL_LEN_MAX).unwrap() {
            taken += frame.len();
            if let ToServer::Request(request) = ToServer::decode(&frame).unwrap() {
                requests.push(request);
            }
        }
        out.clear();
        requests
    }

    fn asked(&mut self, link: LinkId) -> Request {
        let requests = self.all_asked(link);
        let [request] = requests[..] else { panic!("{requests:?}") };
        request
    }

    fn receive(&mut self, link: LinkId, bytes: &[u8]) {
        let out = &mut self.out[usize::from(link.is_hedge())];
        assert_eq!(self.session.handle_received(link, bytes, self.now, out), bytes.len());
        self.turn();
    }

    /// The node answers the request with timestamps whose indexes begin at `index`.
    fn answer(&mut self, link: LinkId, request: Request, index: u64) {
        self.receive(link, &request.answer(stamp(index)));
    }

    fn refuse(&mut self, link: LinkId, request: Request, code: ErrorCode) {
        let mut out = Vec::new();
        let frame = ErrorFrame { code: code as u16, closes: false, id: request.id, text: "" };
        frame.encode(&mut out);
        self.receive(link, &out);
    }
}

fn name(node: u64) -> char {
    char::from(b'`' + node as u8)
}

fn stamp(index: u64) -> Timestamp {
    Timestamp::new(Epoch(9), EpochIndex(index))
}

fn range(index: u64, count: u64) -> TimestampRange {
    TimestampRange::new(stamp(index), count).unwrap()
}

#[test]
fn callers_share_a_request_and_each_gets_its_own_part() {
    let (mut world, link) = World::serving();
    let calls = [2, 1, 3].map(|count| world.call(count));
    let request = world.asked(link);
    assert_eq!(request.count(), 6);
    world.answer(link, request, 10);
    let got = calls.map(|call| world.outcome(call));
    assert_eq!(got, [range(10, 2), range(12, 1), range(13, 3)].map(|range| Some(Ok(range))));
}

#[test]
fn a_call_never_joins_a_request_that_was_sent() {
    let (mut world, link) = World::serving();
    let early = world.call(1);
    let first = world.asked(link);
    let late = world.call(1);
    let second = world.asked(link);
    assert_ne!(first.id, second.id);
    world.answer(link, first, 5);
    assert_eq!((world.outcome(early), world.outcome(late)), (Some(Ok(range(5, 1))), None));
    world.answer(link, second, 6);
    assert_eq!(world.outcome(late), Some(Ok(range(6, 1))));
}

#[test]
fn an_answer_behind_a_wrong_one_goes_to_no_caller() {
    let (mut world, link) = World::serving();
    let got = world.call(1);
    let request = world.asked(link);
    world.answer(link, request, 10);
    assert_eq!(world.outcome(got), Some(Ok(range(10, 1))));
    let one = world.call(1);
    let first = world.asked(link);
    let other = world.call(1);
    let second = world.asked(link);
    let read = [first.answer(stamp(5)), second.answer(stamp(11))].concat();
    let taken = world.session.handle_received(link, &read, world.now, &mut Vec::new());
    assert_eq!(taken, read.len() / 2, "the second one is not looked at");
    world.turn();
    for call in [one, other] {
        let outcome = world.outcome(call);
        let is_wrong = matches!(outcome, Some(Err(TimestampsError::WentBackwards { .. })));
        assert!(is_wrong, "{outcome:?}");
    }
}

#[test]
fn an_answer_that_a_lease_has_proved_is_accepted_only_if_the_client_asks_for_a_lease() {
    for guarantee in [Guarantee::Quorum, Guarantee::Lease] {
        let (mut world, link) = World::serving();
        world.session.state.settings.guarantee = guarantee;
        let call = world.call(1);
        let request = world.asked(link);
        world.receive(link, &request.answer_proved_by(stamp(5), ProvedBy::Lease));
        match world.outcome(call) {
            Some(Ok(got)) if guarantee == Guarantee::Lease => assert_eq!(got, range(5, 1)),
            Some(Err(TimestampsError::BadAnswer(_))) if guarantee == Guarantee::Quorum => {}
            got => panic!("{guarantee}: {got:?}"),
        }
    }
}

#[test]
fn an_answer_goes_to_the_callers_of_its_request_in_whatever_order_answers_come() {
    let (mut world, link) = World::serving();
    let mut asked = Vec::new();
    for _ in 0..3 {
        let call = world.call(1);
        asked.push((call, world.asked(link)));
    }
    for (index, (call, request)) in asked.into_iter().rev().enumerate() {
        let index = 7 + index as u64;
        world.answer(link, request, index);
        assert_eq!(world.outcome(call), Some(Ok(range(index, 1))));
    }
}

#[test]
fn each_answer_must_lie_above_what_was_returned_before_its_own_sending() {
    for (is_hedged, index, is_right) in
        [(false, 5, true), (false, 0, false), (true, 11, true), (true, 10, false)]
    {
        let (mut world, first, second) = World::hedging();
        let slow = world.call(1);
        let request = world.asked(first);
        // Another call gets index 10 before the copy of the first request is sent. So the answer to
        // the copy must be above 10; the answer to the first request may be below.
        let quick = world.call(1);
        let other = world.asked(first);
        world.answer(first, other, 10);
        assert_eq!(world.outcome(quick), Some(Ok(range(10, 1))));
        world.pass(AFTER);
        let copy = world.asked(second);
        assert_eq!(copy, request);
        world.answer(if is_hedged { second } else { first }, copy, index);
        let got = world.outcome(slow);
        match got {
            Some(Ok(got)) if is_right => assert_eq!(got, range(index, 1)),
            Some(Err(TimestampsError::WentBackwards { .. })) if !is_right => {}
            got => panic!("hedged {is_hedged}, {index}: {got:?}"),
        }
    }
}

#[test]
fn a_reply_of_a_connection_that_was_left_is_ignored() {
    let (mut world, old) = World::serving();
    let call = world.call(1);
    let lost = world.asked(old);
    world.session.handle_closed(old, &"reset", world.now);
    world.pass(ATTEMPT / 4);
    let new = world.opened("b:2", 2, 2);
    let request = world.asked(new);
    assert_ne!(request.id, lost.id, "an id is never used again");
    // The driver may report events of the old connection late: an answer (even one with the id of
    // the new request), a refusal, or the end of the connection. They must change nothing.
    world.answer(old, lost, 10);
    world.answer(old, request, 11);
    world.refuse(old, request, ErrorCode::NoQuorum);
    world.session.handle_closed(old, &"reset", world.now);
    world.session.handle_opened(old, Err(OpenError::AnotherCluster(String::new())), world.now);
    world.turn();
    assert_eq!(world.outcome(call), None);
    world.answer(new, request, 12);
    assert_eq!(world.outcome(call), Some(Ok(range(12, 1))));
}

#[test]
fn a_late_event_of_a_connection_that_was_left_changes_nothing_while_another_is_opened() {
    let (mut world, old) = World::serving();
    let call = world.call(1);
    let lost = world.asked(old);
    world.session.handle_closed(old, &"reset", world.now);
    world.pass(ATTEMPT / 4);
    // The session connects to b:2 now. A late result of the first connection is not taken for it.
    let bad = BadAnswer::foreign("a:1", "no welcome");
    world.session.handle_opened(old, Err(bad.into()), world.now);
    world.answer(old, lost, 10);
    assert_eq!(world.outcome(call), None);
    // The node b:2 knows no leader, so the session listens there. Garbage from a:1 is skipped.
    let new = world.opened("b:2", 2, 0);
    world.receive(old, &[0xff; 64]);
    assert_eq!((world.outcome(call), world.closed.contains(&new)), (None, false));
}

#[test]
fn a_node_without_a_leader_is_suspected_as_soon_as_it_closes_the_connection() {
    let mut world = World::new(None);
    world.call(1);
    let listening = world.opened("a:1", 1, 0);
    let now = world.now;
    assert!(!world.session.directory().is_suspect("a:1", now), "it answered");
    world.session.handle_closed(listening, &"reset", now);
    assert!(world.session.directory().is_suspect("a:1", now));
    world.pass(BACKOFF_MAX);
    assert_eq!(world.opening.front().map(|(_, addr)| addr.as_str()), Some("b:2"));
}

#[test]
fn a_node_that_becomes_the_leader_is_asked_at_the_address_that_worked() {
    let mut world = World::new(None);
    world.call(1);
    let listening = world.opened("a:1", 1, 0);
    let mut notice = Vec::new();
    LeaderNotice { node: NodeId(1), addr: "inside:1" }.encode(&mut notice);
    world.receive(listening, &notice);
    assert_eq!(world.opening.front().map(|(_, addr)| addr.as_str()), Some("a:1"));
}

#[test]
fn a_leader_that_breaks_the_protocol_is_not_the_first_to_be_asked_again() {
    let (mut world, link) = World::serving();
    let call = world.call(1);
    world.all_asked(link);
    let mut welcome = Vec::new();
    Welcome::default().encode(&mut welcome);
    world.receive(link, &welcome);
    assert!(matches!(world.outcome(call), Some(Err(TimestampsError::BadAnswer(_)))));
    world.call(1);
    assert_eq!(world.opening.front().map(|(_, addr)| addr.as_str()), Some("b:2"));
}

#[test]
fn a_call_that_was_left_gives_its_number_to_another() {
    let (mut world, _) = World::serving();
    let (first, second) = (world.call(1), world.call(1));
    world.session.leave(first);
    assert_eq!(world.call(1), first);
    assert_ne!(first, second);
}

#[test]
fn a_lost_request_is_repeated_with_the_callers_that_came_meanwhile() {
    let (mut world, old) = World::serving();
    let call = world.call(2);
    let lost = world.asked(old);
    world.session.handle_closed(old, &"reset", world.now);
    let late = world.call(3);
    world.pass(ATTEMPT / 4);
    let new = world.opened("b:2", 2, 2);
    let request = world.asked(new);
    assert_eq!((request.count(), request.id == lost.id), (5, false));
    world.answer(new, request, 10);
    let got = [call, late].map(|call| world.outcome(call));
    assert_eq!(got, [range(10, 2), range(12, 3)].map(|range| Some(Ok(range))));
}

#[test]
fn every_request_of_a_lost_connection_is_repeated_oldest_first() {
    let (mut world, old) = World::serving();
    let mut calls = Vec::new();
    for count in 1..=3 {
        calls.push(world.call(count));
        world.asked(old);
    }
    world.session.handle_closed(old, &"reset", world.now);
    world.pass(ATTEMPT / 4);
    let new = world.opened("b:2", 2, 2);
    let request = world.asked(new);
    world.answer(new, request, 10);
    let got: Vec<_> = calls.into_iter().map(|call| world.outcome(call)).collect();
    assert_eq!(got, [range(10, 1), range(11, 2), range(13, 3)].map(|range| Some(Ok(range))));
}

#[test]
fn a_leader_is_found_by_what_a_follower_says() {
    let mut world = World::new(None);
    let call = world.call(1);
    world.opened("a:1", 1, 2);
    let link = world.opened("b:2", 2, 2);
    let request = world.asked(link);
    world.answer(link, request, 3);
    assert_eq!(world.outcome(call), Some(Ok(range(3, 1))));
}

#[test]
fn a_call_tries_every_address_although_tls_failed_with_some_of_them_in_earlier_calls() {
    let mut world = World::of(&["a:1", "b:2", "c:3"], None);
    let early = world.session.enter(1, world.now + TICK).expect("there is room").0;
    world.turn();
    world.tls_fails("a:1");
    world.pass(TICK * 7 / 8);
    world.tls_fails("b:2");
    // The deadline passes during the pause before c:3 is asked.
    world.pass(TICK);
    let Some(Err(TimestampsError::DeadlineExceeded { last: Some(last) })) = world.outcome(early)
    else {
        panic!("its deadline has passed");
    };
    assert_eq!(last.to_string(), "TLS with b:2 failed: expired");
    world.session.leave(early);
    world.pass(Duration::from_hours(5));
    assert!(world.opening.is_empty(), "no caller waits");
    let late = world.call(1);
    world.tls_fails("c:3");
    assert_eq!(world.outcome(late), None, "the certificates of a:1 and b:2 have been renewed");
    world.pass(BACKOFF_MAX);
    let link = world.opened("a:1", 1, 1);
    let request = world.asked(link);
    world.answer(link, request, 3);
    assert_eq!(world.outcome(late), Some(Ok(range(3, 1))));
}

#[test]
fn a_call_ends_long_before_its_deadline_if_tls_fails_at_every_address() {
    for addrs in [&["a:1", "b:2", "c:3"][..], &["a:1"][..]] {
        let mut world = World::of(addrs, None);
        let begin = world.now;
        // Each call tries every address, and is not judged by what the call before it found.
        for _ in 0..2 {
            let call = world.call(1);
            for attempt in 0..3 {
                assert_eq!(world.outcome(call), None);
                world.tls_fails(addrs[attempt % addrs.len()]);
                if attempt < 2 {
                    world.pass(BACKOFF_MAX);
                }
            }
            let got = world.outcome(call);
            let is_tls =
                matches!(got, Some(Err(TimestampsError::BadAnswer(BadAnswer::Tls { .. }))));
            assert!(is_tls, "{got:?}");
            world.session.leave(call);
            world.pass(BACKOFF_MAX);
        }
        assert!(world.now - begin < TIMEOUT / 4);
    }
}

#[test]
fn a_change_of_phase_does_not_delay_a_deadline() {
    let mut world = World::new(None);
    let call = world.session.enter(1, world.now + TICK).expect("there is room").0;
    world.turn();
    world.pass(TICK * 7 / 8);
    // The node at a:1 knows no leader. So the session waits there for a notice of the leader, and
    // the call's deadline must still be checked.
    world.opened("a:1", 1, 0);
    world.pass(TICK / 8);
    assert!(matches!(world.outcome(call), Some(Err(TimestampsError::DeadlineExceeded { .. }))));
}

#[test]
fn an_idle_connection_is_never_silent_for_half_as_long_as_its_node_allows() {
    let (mut world, link) = World::serving();
    let second = Duration::from_secs(1);
    let mut silent = Duration::ZERO;
    for _ in 0..300 {
        world.pass(second);
        let mut sent = Vec::new();
        world.session.poll_transmit(link, world.now, &mut sent);
        let frame = split(&sent, TO_SERVER_TAIL_LEN_MAX).unwrap();
        let is_ping = |frame| matches!(ToServer::decode(&frame), Ok(ToServer::Ping(_)));
        silent = if frame.is_some_and(is_ping) { Duration::ZERO } else { silent + second };
        assert!(silent < IDLE / 2, "{silent:?}");
    }
}

#[test]
fn a_node_that_pings_and_does_not_read_is_left_whatever_waits_to_be_sent() {
    for waiting in [OUT_LEN_MAX - 1, OUT_LEN_MAX] {
        let (mut world, link) = World::serving();
        let mut out = vec![0; waiting];
        world.session.handle_received(link, &ping(7), world.now, &mut out);
        world.turn();
        assert_eq!(world.closed, [link], "{waiting}");
    }
}

#[test]
fn requests_in_flight_stay_within_the_limits_of_node_and_client() {
    for (in_flight_max, expected) in [(2, 2), (1024, IN_FLIGHT_MAX)] {
        let mut world = World::new(None);
        world.in_flight_max = in_flight_max;
        let link = world.warm_up();
        let mut asked = Vec::new();
        for _ in 0..2 * IN_FLIGHT_MAX {
            world.call(1);
            asked.extend(world.all_asked(link));
        }
        assert_eq!(asked.len(), expected);
        world.answer(link, asked[0], 1);
        assert_eq!(world.all_asked(link).len(), 1);
    }
}

#[test]
fn only_a_notice_of_another_node_at_an_address_is_followed() {
    for (node, addr, is_followed) in
        [(0, "", false), (1, "b:2", false), (2, "nowhere", false), (2, "b:2", true)]
    {
        let (mut world, link) = World::serving();
        let mut notice = Vec::new();
        LeaderNotice { node: NodeId(node), addr }.encode(&mut notice);
        world.receive(link, &notice);
        assert_eq!(world.closed.is_empty(), !is_followed, "{node} {addr}");
    }
}

#[test]
fn a_leader_that_a_refusal_names_is_asked_next() {
    let (mut world, link) = World::serving();
    world.call(1);
    let request = world.asked(link);
    let code = ErrorCode::NotLeader as u16;
    let mut bytes = Vec::new();
    ErrorFrame { code, closes: false, id: request.id, text: "c:3" }.encode(&mut bytes);
    world.receive(link, &bytes);
    assert_eq!(world.opening.front().expect("a connection is wanted").1, "c:3");
}

#[test]
fn calls_outlive_a_connection_whose_token_was_revoked() {
    let (mut world, link) = World::serving();
    let call = world.call(1);
    world.asked(link);
    let mut bytes = Vec::new();
    let code = ErrorCode::Unauthorized as u16;
    ErrorFrame { code, closes: true, id: 0, text: "" }.encode(&mut bytes);
    world.receive(link, &bytes);
    assert_eq!((world.outcome(call), &world.closed[..]), (None, &[link][..]));
    world.pass(BACKOFF_MAX);
    let addr = world.opening.front().expect("a connection is wanted").1.clone();
    let next = world.opened(&addr, 1, 1);
    let request = world.asked(next);
    world.answer(next, request, 5);
    assert_eq!(world.outcome(call), Some(Ok(range(5, 1))));
}

#[test]
fn every_call_ends_at_its_deadline_whatever_the_session_waits_for() {
    type Case = fn(&mut World);
    let cases: [(&str, Case); 4] = [
        ("no connection is made", |_| {}),
        ("connections are refused", |world| {
            while let Some((link, addr)) = world.opening.pop_front() {
                let failed_attempt = FailedAttempt::Unreachable { addr, reason: String::new() };
                world.session.handle_opened(link, Err(failed_attempt.into()), world.now);
            }
        }),
        ("the leader is silent", |world| {
            if let Some((_, addr)) = world.opening.front().cloned() {
                let node = if addr == "a:1" { 1 } else { 2 };
                let link = world.opened(&addr, node, node);
                world.all_asked(link);
            }
        }),
        ("two nodes name each other", |world| {
            if let Some((_, addr)) = world.opening.front().cloned() {
                let node = if addr == "a:1" { 1 } else { 2 };
                world.opened(&addr, node, 3 - node);
            }
        }),
    ];
    for hedge_after in [None, Some(AFTER)] {
        for (what, case) in cases {
            let mut world = World::new(hedge_after);
            let begin = world.now;
            let call = world.call(1);
            while world.now < begin + TIMEOUT {
                assert_eq!(world.outcome(call), None, "{what}");
                case(&mut world);
                world.pass(Duration::from_millis(1));
            }
            world.pass(TICK);
            let got = world.outcome(call);
            let is_late = matches!(got, Some(Err(TimestampsError::DeadlineExceeded { .. })));
            assert!(is_late, "{what}: {got:?}");
        }
    }
}
