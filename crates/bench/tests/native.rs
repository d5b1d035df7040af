//! The generator over the native protocol: the leader, answers out of order, answers that are
//! wrong, and a connection that ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epicepoch_bench::run::{self, Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_bench::text;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::hello::MemberAddr;
use epicepoch_wire::native::{
    COUNT_MAX, ErrorFrame, Request, TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split,
};
use epicepoch_wire::{ClusterId, Epoch, EpochIndex, HistoryId, NodeId, Timestamp};

/// What a node does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Play {
    /// Answers, the requests of one read in reverse.
    Leads,
    /// Names another node.
    Follows(SocketAddr),
    /// Answers so many requests of a connection, then closes it.
    Leaves(usize),
    /// Gives one timestamp less than was asked for.
    Cheats,
    /// Gives timestamps below those of its last answer.
    Descends,
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
    Target { id: u64::from(addr.port()), name: addr.to_string(), addr }
}

/// Ends with the connection.
fn converse(mut stream: TcpStream, play: Play, next: &AtomicU64) -> Option<()> {
    let mut input = Vec::new();
    let mut answered = 0;
    let mut greeted = false;
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
                ToServer::Hello(_) => {
                    let member = MemberAddr { node: NodeId(1), addr: here.clone() };
                    assert!(!std::mem::replace(&mut greeted, true), "a second hello");
                    let leader = Some(member);
                    Welcome { leader, ..welcome() }.encode(&mut out);
                }
                ToServer::Request(request) => requests.push(request),
                other => panic!("{other:?}"),
            }
        }
        input.drain(..taken);
        // The later request may get the earlier answer, and the lower timestamps.
        for request in requests.into_iter().rev() {
            answered += 1;
            match play {
                Play::Leaves(requests_max) if answered > requests_max => return None,
                Play::Follows(leader) => {
                    let (code, text) = (ErrorCode::NotLeader as u16, leader.to_string());
                    ErrorFrame { code, closes: false, id: request.id, text: &text }
                        .encode(&mut out);
                }
                Play::Leads | Play::Leaves(_) => out.extend(answer(request, next)),
                Play::Cheats => {
                    let less = Request { more: request.more - 1, ..request };
                    out.extend(answer(less, next));
                }
                Play::Descends => {
                    let given = next.fetch_add(request.count(), Ordering::SeqCst);
                    let first = EpochIndex((1 << 40) - given - request.count());
                    out.extend(request.answer(Timestamp::new(Epoch(7), first)));
                }
            }
        }
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
        let table = text::run_table(&measured, None, &[]);
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
    let table = text::run_table(&measured, None, &[]);
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
fn many_callers_of_one_client_share_requests() {
    let oracle = serve(Play::Leads);
    let config = RunConfig {
        transport: Transport::Client { callers: 100 },
        connections: 1,
        ..config(vec![oracle])
    };
    let measured = run::run(config, |_, _| {});
    let table = text::run_table(&measured, None, &[]);
    assert_eq!(measured.counts.failed(), 0, "{table}");
    assert!(measured.counts.answers > 1000, "{table}");
    assert_eq!(measured.counts.timestamps, 3 * measured.counts.answers);
    measured.checked.expect("on by default").verdict.assert_clean();
}

/// The client finds it, so that the checker never sees the answer.
#[test]
fn an_answer_that_a_client_library_finds_wrong_is_a_violation() {
    for (play, story) in [(Play::Descends, "is not above"), (Play::Cheats, "instead of 3")] {
        let config = RunConfig {
            transport: Transport::Client { callers: 1 },
            connections: 1,
            ..config(vec![serve(play)])
        };
        let measured = run::run(config, |_, _| {});
        let table = text::run_table(&measured, None, &[]);
        assert!(measured.counts.failures["broken"] > 0, "{table}");
        let verdict = measured.checked.expect("on by default").verdict;
        assert!(!verdict.is_clean() && table.contains(story), "{table}");
    }
}
