//! Leaders that get their grant late, whose handover is declined, or that pause.
use epicepoch_core::replica::{Fatal, HandOver, Report};
use epicepoch_wire::NodeId;
use epicepoch_wire::raft_message::MessageKind;

use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, RESERVATION_NS, START_NS, TICK_NS};

fn beat(bench: &mut Bench, rounds: Option<u64>, ackers: &[u64]) {
    bench.now_ns += TICK_NS;
    if let Some(at) = rounds {
        bench.replica.handle_rounds(at);
    }
    bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns).expect("no reason to stop");
    bench.drain();
    bench.persist();
    for other in [2, 3] {
        bench.hear(other);
    }
    for acker in ackers {
        let last = bench.status().last;
        if bench.is_leader() {
            bench.ack(*acker, last);
        }
    }
    bench.persist();
}

/// The grant comes more than two election timeouts after the election. No round could begin without
/// the grant. So the leader must not hand over in the first tick after the grant.
#[test]
fn a_late_grant_is_no_stuck_data_plane() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_compared(false);
    bench.elect(&[2, 3]);
    for _ in 0..3 * ELECTION_TICKS {
        beat(&mut bench, None, &[2, 3]);
    }
    assert!(bench.shared.published().grant.is_none());
    bench.replica.handle_compared(true);
    beat(&mut bench, None, &[2, 3]);
    assert!(bench.shared.published().grant.is_some());
    bench.reports.clear();
    beat(&mut bench, None, &[2, 3]);
    let stuck = bench
        .reports
        .iter()
        .any(|r| matches!(r, Report::HandingOver { why: HandOver::RoundsStuck, .. }));
    assert!(!stuck, "one tick after the grant: {:?}", bench.reports);
}

/// A leader's clock is off, and its successor does not take over. The leader must then reserve
/// again.
#[test]
fn a_declined_handover_does_not_stop_reservations() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2, 3]);
    for i in 0..2 * ELECTION_TICKS {
        beat(&mut bench, Some(1 + i as u64), &[2, 3]);
    }
    assert!(bench.shared.published().grant.is_some());
    // Both others have right clocks. Node 2, the first choice, refuses to take over because its
    // disk is slow (`may_take_over`), and is healthy otherwise.
    bench.replica.handle_clock(Some(vec![NodeId(2), NodeId(3)]));
    let ticks = 10 * RESERVATION_NS / TICK_NS;
    let (mut granted, mut to) = (0, std::collections::BTreeMap::new());
    for i in 0..ticks {
        bench.reports.clear();
        beat(&mut bench, Some(1_000 + i), &[2, 3]);
        for report in &bench.reports {
            match report {
                Report::Granted { .. } => granted += 1,
                Report::HandingOver { to: node, .. } => *to.entry(node.0).or_insert(0) += 1,
                _ => {}
            }
        }
    }
    assert!(bench.is_leader());
    let high = bench.shared.published().grant.unwrap().range.high.0;
    let now = START_NS + bench.now_ns;
    assert!(
        high > now,
        "{granted} reservations in 10 s, handovers tried {to:?}, the range ended {} ms ago",
        (now - high) / 1_000_000
    );
}

/// The process is paused for a minute while a reservation is under way. The pause counts as one
/// missed deadline, and not as one per tick.
#[test]
fn a_pause_counts_as_one_missed_deadline() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2, 3]);
    let mut i = 0;
    // Entries are acknowledged until the first grant and not after it, so the next reservation
    // stays pending.
    while bench.shared.published().grant.is_none() {
        i += 1;
        beat(&mut bench, Some(i), &[2, 3]);
    }
    let last = bench.status().last;
    while bench.status().last == last {
        i += 1;
        beat(&mut bench, Some(i), &[]);
    }
    bench.now_ns += 60_000_000_000;
    // After the pause, all nodes go on. The followers' disks need half a second.
    let mut missed = 0;
    let mut fatal = None;
    for tick in 0..100 {
        i += 1;
        bench.now_ns += TICK_NS;
        bench.replica.handle_rounds(i);
        let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
        for other in [2, 3] {
            bench.take(other, &answer).expect("an answer is taken");
        }
        bench.reports.clear();
        if let Err(error) = bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns) {
            fatal = Some((tick, error));
            break;
        }
        bench.drain();
        bench.persist();
        missed +=
            bench.reports.iter().filter(|r| matches!(r, Report::ReservationLate { .. })).count();
    }
    assert!(missed <= 3 && fatal.is_none(), "{missed} deadlines missed in one second; {fatal:?}");
}

/// Followers hear the leader, but no entry is committed. Each reservation is late, until the leader
/// stops exactly at the limit and gives a reason.
#[test]
fn a_leader_whose_reservations_are_always_late_stops_at_the_limit() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.elect(&[2, 3]);
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    let deadline_ticks = RESERVATION_NS / 2 / TICK_NS;
    let (mut missed, mut ticks) = (0, 0);
    let fatal = loop {
        bench.now_ns += TICK_NS;
        for other in [2, 3] {
            bench.take(other, &answer).expect("an answer is taken");
        }
        ticks += 1;
        assert!(ticks <= 101 * deadline_ticks, "{missed} deadlines missed, and no end");
        let result = bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns);
        bench.drain();
        bench.persist();
        let late = |report: &Report| match report {
            Report::ReservationLate { missed } => Some(*missed),
            _ => None,
        };
        missed = bench.reports.iter().filter_map(late).max().unwrap_or(0);
        if let Err(fatal) = result {
            break fatal;
        }
        assert!(missed < 100, "the limit is reached");
    };
    assert_eq!((fatal, missed), (Fatal::DeadlineLimit { missed: 100 }, 100));
    assert!(bench.is_leader(), "its quorum was heard all along");
}

/// A disk accepts writes but finishes none. After 512 writes, which take some minutes, the process
/// ends. Otherwise it would keep more and more unfinished writes in memory.
#[test]
fn a_disk_that_finishes_no_write_ends_the_process() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(1, (1, 1), 1, 0)).expect("an entry is taken");
    let mut last = bench.status().last.0;
    let fatal = loop {
        bench.take(2, &append(1, (last, 1), 1, 0)).expect("an entry is taken");
        last += 1;
        let outstanding = bench.status().writes_outstanding;
        assert!(outstanding <= 600, "{outstanding} writes, and no end");
        bench.now_ns += TICK_NS;
        if let Err(fatal) = bench.replica.handle_tick(bench.now_ns, START_NS + bench.now_ns) {
            break fatal;
        }
        bench.drain();
    };
    assert!(
        matches!(fatal, Fatal::DiskStuck { outstanding } if outstanding >= 500),
        "{fatal:?}: a slow disk is no dead one"
    );
}

/// A leader hears no follower, but the followers hear it. The library would notice this within two
/// election timeouts, and the followers would wait for another one. This leader gives up after one
/// and a quarter. Its last message asks the most up-to-date of the nodes heard lately to campaign.
#[test]
fn a_leader_that_hears_no_quorum_gives_up_and_asks_another_to_campaign() {
    let mut bench = Bench::led(&[1, 2, 3]);
    // Node 3 was heard until lately, and lacks the last entries.
    bench.beats(2, &[2, 3]);
    bench.ack_all(2);
    bench.sent();
    bench.reports.clear();
    let mut ticks = 0;
    while bench.is_leader() {
        bench.tick();
        ticks += 1;
        assert!(ticks <= ELECTION_TICKS + 3, "it leads on");
    }
    assert!(ticks > ELECTION_TICKS, "an answer may be late: {ticks} ticks");
    let why = HandOver::Unheard;
    let told = [Report::SteppedDown { why }, Report::HandingOver { to: NodeId(2), why }];
    assert!(told.iter().all(|it| bench.reports.contains(it)), "{:?}", bench.reports);
    let last_words: Vec<_> = bench
        .sent()
        .into_iter()
        .filter(|out| out.message.kind == MessageKind::TimeoutNow)
        .map(|out| (out.to, out.message.term))
        .collect();
    assert_eq!(last_words, [(NodeId(2), bench.status().term)]);
    assert!(bench.shared.published().grant.is_none());
}

/// It is enough that the leader hears one of two followers.
#[test]
fn a_leader_that_hears_a_quorum_still_leads() {
    let mut bench = Bench::led(&[1, 2, 3]);
    for _ in 0..10 * ELECTION_TICKS {
        bench.beats(1, &[3]);
        bench.persist();
    }
    assert!(bench.is_leader());
}

/// A leader that was paused has heard no follower for long. It sends a heartbeat at once and waits
/// for the answers. If the answers come, it keeps leading.
#[test]
fn a_leader_that_stood_still_asks_before_it_gives_up() {
    let mut bench = Bench::beating(Disk::genesis(&genesis(&[1, 2, 3])), 5, ELECTION_TICKS - 1);
    bench.elect(&[2, 3]);
    bench.persist();
    bench.ack_all(2);
    bench.ack_all(3);
    for ticks in 0.. {
        assert!(ticks < ELECTION_TICKS, "it sends no heartbeat");
        bench.sent();
        bench.tick();
        if bench.kinds_to(2).contains(&MessageKind::Heartbeat) {
            break;
        }
    }
    bench.now_ns += 10 * ELECTION_TICKS as u64 * TICK_NS;
    bench.tick();
    assert!(bench.kinds_to(2).contains(&MessageKind::Heartbeat), "nobody is asked");
    let term = bench.status().term.0;
    bench.take(2, &message(MessageKind::HeartbeatResponse, term)).expect("an answer is taken");
    bench.tick();
    assert!(bench.is_leader(), "it was answered");
}
