//! The generator over the native protocol: the leader, answers out of order, wrong answers, and
//! connections that end.

mod oracle;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use epicepoch_bench::run::{self, Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::{
    COUNT_MAX, ErrorFrame, Request, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split,
};
use epicepoch_wire::{
    ClusterId, Epoch, EpochIndex, Guarantee, HistoryId, NodeId, ProvedBy, Timestamp,
};

use oracle::undisturbed;

/// The behaviour of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Play {
    /// Answers the requests of one read in reverse.
    Leads,
    /// Names another node as the leader.
    Follows(SocketAddr),
    /// Answers this many requests of a connection, then closes it.
    Leaves(usize),
    /// Gives one timestamp less than requested.
    Cheats,
    /// Answers the 10th request of a connection twice.
    AnswersTwice,
    /// Refuses the first request of a connection, and answers the others a moment later.
    Overloads,
    /// Sends its welcome after this time, and answers after [`ANSWERS_AFTER`].
    WelcomesLate(Duration),
    /// Answers after [`ANSWERS_AFTER`], and the 4th request of the first connection much later.
    HoldsBack,
    /// Gives timestamps below its last answer.
    Descends,
    /// Says that a lease has proved its answers.
    Leases,
}

fn serve(play: Play) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let next = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let next = next.clone();
            std::thread::spawn(move || converse(stream.unwrap(), play, &next));
        }
    });
    Target::new(u64::from(addr.port()), addr)
}

/// Serves one client as `play` says. Returns when the connection ends.
fn converse(mut stream: TcpStream, play: Play, next: &AtomicU64) -> Option<()> {
    let mut input = Vec::new();
    let mut answered = 0;
    let mut has_hello = false;
    let mut held_back = None;
    let here = stream.local_addr().unwrap().to_string();
    loop {
        let mut chunk = [0; 4096];
        let length = stream.read(&mut chunk).ok().filter(|length| *length > 0)?;
        input.extend_from_slice(&chunk[..length]);
        let mut out = Vec::new();
        let mut requests = Vec::new();
        let mut taken = 0;
        while let Some(frame) = split(&input[taken..], TO_SERVER_TAIL_LEN_MAX).unwrap() {
            taken += frame.len();
            match ToServer::decode(&frame).unwrap() {
                ToServer::ClientHello(_) => {
                    if let Play::WelcomesLate(after) = play {
                        std::thread::sleep(after);
                    }
                    let member = MemberAddr { node: NodeId(1), addr: here.clone() };
                    assert!(!std::mem::replace(&mut has_hello, true), "a second hello");
                    let leader = Some(member);
                    Welcome { leader, ..welcome() }.encode(&mut out);
                }
                ToServer::Request(request) => requests.push(request),
                other => panic!("{other:?}"),
            }
        }
        input.drain(..taken);
        let mut late = Vec::new();
        // The requests of one read are answered in reverse: the last one is answered first and gets
        // the lowest timestamps.
        for request in requests.into_iter().rev() {
            answered += 1;
            match play {
                Play::Leaves(requests_max) if answered > requests_max => return None,
                Play::Follows(leader) => {
                    let (code, text) = (ErrorCode::NotLeader as u16, leader.to_string());
                    ErrorFrame { code, closes: false, id: request.id, text: &text }
                        .encode(&mut out);
                }
                Play::HoldsBack if request.id == 3 && next.load(Ordering::SeqCst) < 100 => {
                    held_back = Some((Instant::now(), request));
                }
                Play::Leads | Play::Leaves(_) | Play::WelcomesLate(_) => {
                    out.extend(answer(request, next));
                }
                Play::Cheats => {
                    let less = Request::new(request.id, request.count() - 1).unwrap();
                    out.extend(answer(less, next));
                }
                Play::AnswersTwice => {
                    out.extend(answer(request, next));
                    if answered == 10 {
                        out.extend(answer(request, next));
                    }
                }
                Play::Overloads if request.id == 0 => {
                    let code = ErrorCode::Overloaded as u16;
                    let mut refusal = Vec::new();
                    ErrorFrame { code, closes: false, id: 0, text: "" }.encode(&mut refusal);
                    stream.write_all(&refusal).ok()?;
                    std::thread::sleep(Duration::from_millis(20));
                }
                Play::HoldsBack | Play::Overloads => late.extend(answer(request, next)),
                Play::Leases => {
                    let first = EpochIndex(next.fetch_add(request.count(), Ordering::SeqCst));
                    let first = Timestamp::new(Epoch(7), first);
                    out.extend(request.answer_proved_by(first, ProvedBy::Lease));
                }
                Play::Descends => {
                    let given = next.fetch_add(request.count(), Ordering::SeqCst);
                    let first = EpochIndex((1 << 40) - given - request.count());
                    out.extend(request.answer(Timestamp::new(Epoch(7), first)));
                }
            }
        }
        if matches!(play, Play::HoldsBack | Play::WelcomesLate(_)) {
            std::thread::sleep(ANSWERS_AFTER);
        }
        if let Some((_, request)) = held_back.take_if(|it| it.0.elapsed() >= HELD_BACK) {
            std::thread::sleep(HELD_BACK_MORE);
            out.extend(answer(request, next));
        }
        out.append(&mut late);
        stream.write_all(&out).ok()?;
    }
}

fn answer(request: Request, next: &AtomicU64) -> [u8; 32] {
    let index = EpochIndex(next.fetch_add(request.count(), Ordering::SeqCst));
    request.answer(Timestamp::new(Epoch(7), index))
}

fn welcome() -> Welcome {
    Welcome {
        version: 1,
        node: NodeId(1),
        cluster: Some((ClusterId(1), HistoryId(1))),
        in_flight_max: 64,
        idle_ms: 1000,
        count_max: COUNT_MAX,
        ..Welcome::default()
    }
}

fn config(targets: Vec<Target>) -> RunConfig {
    RunConfig {
        transport: Transport::Native { in_flight: 16 },
        connections: 2,
        count: 3,
        warmup: Duration::ZERO,
        duration: Duration::from_millis(500),
        ..RunConfig::new(targets)
    }
}

#[test]
fn the_leader_is_followed_over_the_native_protocol_in_both_loops() {
    let leader = serve(Play::Leads);
    let follower = serve(Play::Follows(leader.addr));
    for pace in [Pace::Closed, Pace::Open { rate: 2000.0, arrivals: Arrivals::Poisson }] {
        let config = RunConfig { pace, ..config(vec![follower.clone(), leader.clone()]) };
        let measured = run::run(config, |_, _| {});
        let table = measured.to_string();
        assert_eq!(measured.counts.failed(), 0, "{table}");
        assert!(measured.counts.redirects > 0 && measured.counts.answers > 500, "{table}");
        assert_eq!(measured.counts.timestamps, 3 * measured.counts.answers);
        assert_eq!(measured.counts.answers_by_node.keys().collect::<Vec<_>>(), [&leader.id]);
        measured.checked.expect("on by default").verdict.assert_clean();
    }
}

#[test]
fn a_connection_that_ends_costs_what_was_open_on_it_and_is_opened_again() {
    let measured = run::run(config(vec![serve(Play::Leaves(100))]), |_, _| {});
    let table = measured.to_string();
    assert!(measured.counts.failures["lost"] > 0, "{table}");
    assert!(measured.counts.answers > 200, "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

#[test]
fn an_answer_with_fewer_timestamps_than_were_asked_for_is_a_violation() {
    let measured = run::run(config(vec![serve(Play::Cheats)]), |_, _| {});
    assert!(measured.counts.failures["broken"] > 0);
    assert_eq!(measured.counts.answers, 0);
    assert!(!measured.checked.expect("on by default").verdict.is_clean());
}

#[test]
fn an_answer_that_a_lease_has_proved_is_a_violation_unless_a_lease_was_asked_for() {
    for guarantee in [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)] {
        let config = RunConfig { guarantee, ..config(vec![serve(Play::Leases)]) };
        let measured = run::run(config, |_, _| {});
        let (counts, table) = (&measured.counts, measured.to_string());
        let is_right = guarantee == Some(Guarantee::Lease);
        assert_eq!(counts.answers > 0, is_right, "{table}");
        assert_eq!(counts.failures.contains_key("protocol"), !is_right, "{table}");
    }
}

#[test]
fn many_callers_of_one_client_share_requests() {
    let oracle = serve(Play::Leads);
    let follower = serve(Play::Follows(oracle.addr));
    let config = RunConfig {
        transport: Transport::Client { callers: 100 },
        connections: 1,
        ..config(vec![follower, oracle.clone()])
    };
    let measured = run::run(config, |_, _| {});
    let table = measured.to_string();
    assert_eq!(measured.counts.failed(), 0, "{table}");
    assert!(measured.counts.answers > 1000, "{table}");
    assert_eq!(measured.counts.timestamps, 3 * measured.counts.answers);
    // The client library found the leader by itself. The report names that node and no other.
    assert_eq!(measured.counts.answers_by_node.keys().collect::<Vec<_>>(), [&oracle.id], "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

/// The client library rejects the wrong answer, so the checker never sees it. The report must still
/// count a violation.
#[test]
fn an_answer_that_a_client_library_finds_wrong_is_a_violation() {
    for (play, story) in [(Play::Descends, "is not above"), (Play::Cheats, "instead of 3")] {
        let config = RunConfig {
            transport: Transport::Client { callers: 1 },
            connections: 1,
            ..config(vec![serve(play)])
        };
        let measured = run::run(config, |_, _| {});
        let table = measured.to_string();
        assert!(measured.counts.failures["broken"] > 0, "{table}");
        let verdict = measured.checked.expect("on by default").verdict;
        assert!(!verdict.is_clean() && table.contains(story), "{table}");
    }
}

#[test]
fn a_request_that_is_answered_twice_is_a_violation_and_the_connection_is_left_at_once() {
    let config = RunConfig {
        connections: 1,
        retry_pause: Duration::from_millis(1),
        ..config(vec![serve(Play::AnswersTwice)])
    };
    let measured = run::run(config, |_, _| {});
    let table = measured.to_string();
    assert!(measured.counts.failures["broken"] > 1, "not once on every connection: {table}");
    assert!(!measured.counts.failures.contains_key("timeout"), "{table}");
    assert!(table.contains("answered before or never sent"), "{table}");
    assert!(!measured.checked.expect("on by default").verdict.is_clean(), "{table}");
}

#[test]
fn a_request_that_is_past_its_time_before_it_is_sent_on_takes_nothing_with_it() {
    let leader = serve(Play::WelcomesLate(Duration::from_millis(600)));
    let follower = serve(Play::Follows(leader.addr));
    let config = RunConfig {
        connections: 1,
        pace: Pace::Open { rate: 100.0, arrivals: Arrivals::Constant },
        duration: Duration::from_secs(1),
        // The leader's welcome comes after 600 ms, so the first requests time out before it. The
        // timeout is still much longer than an answer takes.
        request_timeout: Duration::from_millis(500),
        ..config(vec![follower, leader.clone()])
    };
    let measured = undisturbed(|| run::run(config.clone(), |_, _| {}));
    let (counts, table) = (&measured.counts, measured.to_string());
    // Only requests that the follower has refused fail: they waited for the leader's welcome for
    // too long.
    let refused = counts.failures.get("NOT_LEADER").copied().unwrap_or(0);
    assert!((1..=10).contains(&refused), "{table}");
    assert_eq!(counts.failures.len(), 1, "{table}");
    assert_eq!((counts.answers, counts.unsent), (100 - refused, 0), "{table}");
}

#[test]
fn an_answer_that_is_late_costs_its_request_alone_and_may_still_come() {
    let config = RunConfig {
        connections: 1,
        pace: Pace::Open { rate: 100.0, arrivals: Arrivals::Constant },
        duration: HELD_BACK * 4 / 3,
        // The answer that is held back comes after 1300 ms. Its request has then timed out, but the
        // later requests that are answered together with it have not.
        request_timeout: HELD_BACK + HELD_BACK_MORE * 3 / 4,
        ..config(vec![serve(Play::HoldsBack)])
    };
    let measured = run::run(config, |_, _| {});
    let (counts, table) = (&measured.counts, measured.to_string());
    assert_eq!(counts.failures, [("timeout", 1)].into(), "{table}");
    assert_eq!((counts.answers, counts.unsent), (119, 0), "{table}");
    measured.checked.expect("on by default").verdict.assert_clean();
}

/// Delay of an answer.
const ANSWERS_AFTER: Duration = Duration::from_millis(20);
/// How long [`Play::HoldsBack`] delays an answer while others come.
const HELD_BACK: Duration = Duration::from_millis(900);
/// How much longer [`Play::HoldsBack`] delays that answer after [`HELD_BACK`]. It then comes
/// together with later answers.
const HELD_BACK_MORE: Duration = Duration::from_millis(400);

#[test]
fn a_refusal_stops_what_is_sent_and_not_what_is_read() {
    let config = RunConfig {
        transport: Transport::Native { in_flight: 4 },
        connections: 1,
        // The pause after the refusal is longer than the measurement, so no further request is
        // sent.
        retry_pause: Duration::from_secs(2),
        ..config(vec![serve(Play::Overloads)])
    };
    let measured = run::run(config, |_, _| {});
    let table = measured.to_string();
    assert_eq!(measured.counts.failures.get("OVERLOADED"), Some(&1), "{table}");
    assert_eq!((measured.counts.answers, measured.counts.failed()), (3, 1), "{table}");
    let slowest = Duration::from_nanos(measured.counts.latency_ns.max());
    assert!(slowest < Duration::from_secs(1), "{table}");
}
