//! A leader whose own write is late keeps leading while its range lasts, unless another voter's
//! disk is known to be faster. It never hands over to a voter whose disk is as slow.

use epicepoch_core::replica::{HandOver, Report};
use epicepoch_wire::NodeId;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::voter_status::VoterStatus;

use crate::support::ELECTION_TICKS;
use crate::support::bench::{Bench, MS, RESERVATION_NS, START_NS, TICK_NS, append, message};

/// Ticks of a whole reservation window.
const WINDOW_TICKS: usize = (RESERVATION_NS / TICK_NS) as usize;
const ELECTION_MS: u64 = TICK_NS / MS * ELECTION_TICKS as u64;

/// Node 1 leads three nodes and has a range. Its next write never ends.
fn stuck() -> Bench {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.reports.clear();
    bench
}

/// A tick in which each other voter answers. Each one reports the time of its slowest write, ms;
/// with `None` it sends no status. The voters in `acked` acknowledge everything.
fn beat(bench: &mut Bench, slowest: [Option<u64>; 2], acked: &[u64]) {
    bench.tick();
    hear(bench, slowest, acked);
}

/// The answers of the other voters in such a tick.
fn hear(bench: &mut Bench, slowest: [Option<u64>; 2], acked: &[u64]) {
    for (node, slowest) in [2, 3].into_iter().zip(slowest) {
        if !bench.is_leader() {
            return;
        }
        let (term, last) = (bench.status().term.0, bench.status().last);
        let context = slowest.map_or_else(Vec::new, |ms| {
            let slowest_write_ms = Some(ms as u16);
            VoterStatus {
                is_fit: true,
                preference: 0,
                zone: None,
                slowest_write_ms,
                waits_for_leases: false,
                closed: None,
            }
            .encode()
        });
        let said = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
        bench.take(node, &said).expect("an answer is taken");
        if acked.contains(&node) {
            bench.ack(node, last);
        }
    }
}

/// Beats until leadership is offered or given up, at most `ticks` times. Returns for how many
/// milliseconds the write was late by then, and the voter that was asked.
fn offered(
    bench: &mut Bench,
    ticks: usize,
    slowest: [Option<u64>; 2],
    acked: &[u64],
) -> Option<(u64, Option<NodeId>)> {
    let mut late_ms = 0;
    for _ in 0..ticks {
        beat(bench, slowest, acked);
        late_ms += if bench.status().writes_outstanding > 0 { TICK_NS / MS } else { 0 };
        let found = bench.reports.iter().find_map(|report| match report {
            Report::HandingOver { to, why: HandOver::DiskStuck } => Some(Some(*to)),
            Report::SteppedDown { why: HandOver::DiskStuck } => Some(None),
            _ => None,
        });
        if let Some(to) = found {
            return Some((late_ms, to));
        }
    }
    None
}

/// For how many milliseconds the leader's range lasts.
fn left_ms(bench: &Bench) -> u64 {
    let grant = bench.shared.published().grant;
    grant.map_or(0, |it| it.range.high.0.saturating_sub(START_NS + bench.now_ns) / MS)
}

#[test]
fn a_late_write_costs_no_leadership_while_the_range_lasts_and_no_disk_is_known_to_be_faster() {
    let slow = Some(2_000);
    for slowest in [[slow, slow], [None, None]] {
        let mut bench = stuck();
        let mut ticks = 0;
        while left_ms(&bench) > ELECTION_MS + TICK_NS / MS {
            assert_eq!(offered(&mut bench, 1, slowest, &[2, 3]), None, "{slowest:?}");
            assert!(bench.is_leader() && !bench.replica.is_impaired());
            ticks += 1;
        }
        assert!(bench.status().writes_outstanding > 0 && ticks > WINDOW_TICKS / 2, "{ticks} ticks");
    }
}

#[test]
fn a_voter_that_is_known_to_be_faster_gets_leadership_once_the_write_is_very_late() {
    // The other voter is as slow, or says nothing.
    for other in [Some(2_000), None] {
        let mut bench = stuck();
        let (late_ms, to) =
            offered(&mut bench, WINDOW_TICKS, [other, Some(5)], &[2, 3]).expect("an offer");
        assert_eq!(to, Some(NodeId(3)), "{other:?}");
        assert!((2 * ELECTION_MS..=3 * ELECTION_MS).contains(&late_ms), "after {late_ms} ms");
    }
}

#[test]
fn a_voter_is_faster_if_its_slowest_write_took_half_as_long_as_the_late_one_at_most() {
    // The write is very late after two election timeouts, and the range lasts for longer.
    let very_late_ms = 2 * ELECTION_MS;
    for slowest_ms in [very_late_ms / 2, very_late_ms / 2 + TICK_NS / MS] {
        let mut bench = stuck();
        let voters = [Some(2_000), Some(slowest_ms)];
        let (late_ms, to) = offered(&mut bench, WINDOW_TICKS, voters, &[2, 3]).expect("an offer");
        assert_eq!(to, Some(NodeId(3)), "{slowest_ms} ms");
        let (least_ms, tick_ms) = (very_late_ms.max(2 * slowest_ms), TICK_NS / MS);
        assert!((least_ms..=least_ms + 2 * tick_ms).contains(&late_ms), "{slowest_ms}: {late_ms}");
    }
}

#[test]
fn slow_disks_of_all_voters_hide_no_rounds_that_do_not_complete() {
    let mut bench = stuck();
    let slow = Some(60_000);
    let why = |bench: &Bench| {
        bench.reports.iter().find_map(|report| match report {
            Report::HandingOver { why, .. } => Some(*why),
            _ => None,
        })
    };
    let lasts = (0..WINDOW_TICKS).take_while(|_| {
        beat(&mut bench, [slow, slow], &[]);
        !bench.replica.is_impaired()
    });
    assert!(lasts.count() < WINDOW_TICKS, "the range ends");
    assert_eq!(why(&bench), None);
    for _ in 0..WINDOW_TICKS {
        // As `Bench::tick`, without a completed round.
        bench.now_ns += TICK_NS;
        let trusted_ns = START_NS + bench.now_ns;
        bench.replica.handle_tick(bench.now_ns, trusted_ns).expect("no reason to stop");
        bench.drain();
        hear(&mut bench, [slow, slow], &[]);
        if why(&bench).is_some() {
            break;
        }
    }
    assert_eq!(why(&bench), Some(HandOver::RoundsStuck));
}

#[test]
fn before_its_range_ends_a_leader_hands_over_to_a_voter_that_is_not_known_to_be_as_slow() {
    let mut bench = stuck();
    // Only one of two followers has a disk, and it reports nothing. So nothing is committed.
    let (_, to) = offered(&mut bench, WINDOW_TICKS, [Some(2_000), None], &[3]).expect("an offer");
    assert_eq!(to, Some(NodeId(3)));
    let left_ms = left_ms(&bench);
    assert!(0 < left_ms && left_ms <= ELECTION_MS, "{left_ms} ms are left");
}

#[test]
fn a_leader_asks_nobody_and_does_not_step_down_if_all_disks_are_as_slow() {
    let mut bench = stuck();
    let slow = Some(60_000);
    assert_eq!(offered(&mut bench, 3 * WINDOW_TICKS, [slow, slow], &[]), None);
    assert!(bench.is_leader());
    // Its range has ended, so it is impaired, and workers refuse timestamps.
    assert!(bench.replica.is_impaired());
    // The disks go on, and so does the leader.
    for _ in 0..10 {
        bench.persist();
        beat(&mut bench, [slow, slow], &[2, 3]);
    }
    assert!(bench.is_leader() && !bench.replica.is_impaired());
}

/// The status has the slowest write of the last one to two periods, also one that still waits.
#[test]
fn a_follower_reports_its_slowest_write() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let said = |bench: &mut Bench| {
        bench.sent();
        bench.take(2, &message(MessageKind::Heartbeat, 1)).expect("a heartbeat is taken");
        let mut sent = bench.sent().into_iter().map(|out| out.message);
        let answer = sent.rfind(|it| it.kind == MessageKind::HeartbeatResponse);
        let context = answer.expect("an answer").context;
        VoterStatus::decode(&context).expect("a status").slowest_write_ms.expect("a time")
    };
    bench.take(2, &message(MessageKind::Heartbeat, 1)).expect("a heartbeat is taken");
    bench.persist();
    assert_eq!(said(&mut bench), 0);
    bench.take(2, &append(1, (1, 1), 2, 1)).expect("entries are taken");
    for waited_ms in [10, 20, 30] {
        bench.tick();
        assert_eq!(said(&mut bench), waited_ms);
    }
    bench.persist();
    let period = 5 * ELECTION_TICKS;
    for _ in 0..period {
        // It hears its leader, so it does not campaign.
        bench.tick();
        assert_eq!(said(&mut bench), 30);
    }
    for _ in 0..period {
        bench.tick();
        said(&mut bench);
    }
    assert_eq!(said(&mut bench), 0, "that was long ago");
}
