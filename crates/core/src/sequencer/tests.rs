//! Tests of the sequencer without clocks, links and tasks.

use std::sync::Arc;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::confirm::Confirm;
use epicepoch_wire::{BootId, ClusterId, Epoch, EpochIndex, ProvedBy, StoreId, Term, Timestamp};

use super::*;
use crate::confirm::Answers;
use crate::lease::Lease;
use crate::promise::Promise;
use crate::publication::{EpochRange, Grant};
use crate::quorum::Voters;

const ME: Identity = identity(1);
const TERM: Term = Term(3);
const LIMITS: Limits =
    Limits { slots_max: 8, round_ns: 100, request_ns: 1_000, probe_ns: Some(80) };

const fn identity(node: u64) -> Identity {
    Identity { node: NodeId(node), store: StoreId(node as u128), boot: BootId(70 + node) }
}

fn published(role: Role, leader: u64, has_grant: bool) -> Published {
    let member = |id: u64| {
        let (raft_addr, client_addr) = (format!("n{id}:1"), format!("n{id}:2"));
        Member { node: NodeId(id), store: StoreId(id.into()), raft_addr, client_addr }
    };
    let range = EpochRange { low: Epoch(0), high: Epoch(9) };
    Published {
        term: TERM,
        role,
        leader: Some(NodeId(leader)),
        voters: Voters::new(&[1, 2, 3].map(NodeId), &[], |id| StoreId(id.0.into())),
        grant: has_grant.then_some(Grant { term: TERM, boot: ME.boot, range }),
        members: Arc::new((1..=3).map(|id| (NodeId(id), member(id))).collect()),
        ..Published::nothing(ME)
    }
}

/// Node 1 of three voters: its worker, and the state that it shares with the consensus plane.
struct Worker {
    sequencer: Sequencer<usize>,
    shared: Shared,
    /// The slots whose waiters were woken.
    woken: Vec<usize>,
    next_index: u64,
    lease_clock_ns: u64,
}

impl Worker {
    fn leading(has_grant: bool) -> Self {
        let first = published(Role::Leader, 1, has_grant);
        let sequencer = Sequencer::new(ME, WorkerId(0), LIMITS, &first);
        Self {
            sequencer,
            shared: Shared::new(TERM, first),
            woken: vec![],
            next_index: 0,
            lease_clock_ns: 0,
        }
    }

    fn join(&mut self, count: u64, now_ns: u64) -> usize {
        self.join_for(Guarantee::Quorum, count, now_ns)
    }

    fn join_for(&mut self, guarantee: Guarantee, count: u64, now_ns: u64) -> usize {
        let slot = self.sequencer.join(1, count, guarantee, || now_ns).unwrap();
        *self.sequencer.outcome(slot).unwrap_err() = Some(slot);
        slot
    }

    fn turn(&mut self, now_ns: u64) -> Option<Confirm> {
        let wake = |slot| self.woken.push(slot);
        self.sequencer
            .handle_turn(now_ns, &self.shared, || self.lease_clock_ns, wake)
            .map(|begun| begun.confirm)
    }

    fn publish(&mut self, now_ns: u64, next: Published) {
        self.shared.publish(Arc::new(next));
        let published = self.shared.published();
        self.sequencer.handle_publication(now_ns, &published, |slot| self.woken.push(slot));
    }

    /// Node 2 answers a confirm with a yes.
    fn confirm(&mut self, confirm: &Confirm) {
        let mut answers = Answers::new(ME, ClusterId(0), identity(2));
        let reply = answers.handle_confirm(confirm, &Promise::new(confirm.term)).unwrap();
        assert!(self.sequencer.handle_reply(NodeId(2), &reply));
    }

    /// Completes the next confirmed batch, from an allocator that counts. Returns its round.
    fn complete(&mut self) -> Option<u64> {
        let batch = self.sequencer.poll_confirmed()?;
        let round = batch.size().round.0;
        let allocate = |key: Confirmed| {
            let first = Timestamp::new(Epoch(5), EpochIndex(self.next_index));
            self.next_index += key.count();
            TimestampRange::new(first, key.count().max(1)).ok_or(AllocateError::Exhausted)
        };
        let wake = |slot| self.woken.push(slot);
        self.sequencer.complete(batch, allocate, &self.shared, wake).unwrap();
        Some(round)
    }

    /// The index of the first timestamp in a slot, or the code of its refusal.
    fn told(&mut self, slot: usize) -> Option<Result<u64, ErrorCode>> {
        let outcome = self.sequencer.outcome(slot).ok()?;
        Some(outcome.map(|answer| answer.range.first().index.0))
    }

    fn fail(&mut self, now_ns: u64) -> Option<(u64, RoundFailure)> {
        let wake = |slot| self.woken.push(slot);
        let failed = self.sequencer.poll_failed(now_ns, &self.shared, wake)?;
        Some((failed.0.0, failed.1))
    }
}

#[test]
fn a_request_that_comes_after_a_round_was_asked_waits_for_the_next_round() {
    let mut worker = Worker::leading(true);
    let first = worker.join(2, 0);
    let round = worker.turn(1).unwrap();
    let late = worker.join(1, 2);
    worker.confirm(&round);
    assert_eq!((worker.complete(), worker.complete()), (Some(1), None));
    assert_eq!((worker.told(first), worker.told(late)), (Some(Ok(0)), None));
    assert_eq!((&worker.woken[..], worker.sequencer.is_turn_due()), (&[first][..], true));
    let round = worker.turn(3).unwrap();
    worker.confirm(&round);
    assert_eq!((worker.complete(), worker.told(late)), (Some(2), Some(Ok(2))));
}

#[test]
fn a_request_for_the_latest_timestamp_waits_for_a_round_and_takes_none() {
    let mut worker = Worker::leading(true);
    let alone = worker.join(LATEST, 0);
    let round = worker.turn(1).unwrap();
    let late = [worker.join(LATEST, 2), worker.join(3, 2)];
    assert_eq!((worker.complete(), worker.told(alone)), (None, None), "nothing is confirmed");
    worker.confirm(&round);
    assert_eq!((worker.complete(), worker.told(alone)), (Some(1), Some(Ok(0))));
    assert_eq!((worker.next_index, late.map(|slot| worker.told(slot))), (0, [None; 2]));
    let round = worker.turn(3).unwrap();
    worker.confirm(&round);
    worker.complete();
    assert_eq!(late.map(|slot| worker.told(slot)), [Some(Ok(2)), Some(Ok(0))]);
    let refused = worker.join(LATEST, 4);
    worker.publish(5, published(Role::Follower, 2, false));
    assert_eq!(worker.told(refused), Some(Err(ErrorCode::NotLeader)));
}

#[test]
fn without_a_lease_requests_of_both_guarantees_share_a_round_and_are_told_so() {
    let mut worker = Worker::leading(true);
    let quorum = worker.join(2, 3);
    let lease = worker.join_for(Guarantee::Lease, 1, 5);
    assert!(worker.sequencer.is_turn_due());
    let round = worker.turn(7).unwrap();
    let late = worker.join_for(Guarantee::Lease, 1, 8);
    worker.confirm(&round);
    assert_eq!((worker.complete(), worker.told(late)), (Some(1), None));
    let told = [quorum, lease].map(|slot| worker.sequencer.outcome(slot).unwrap().unwrap());
    let told = told.map(|it| (it.range.first().index.0, it.range.count(), it.proved_by));
    assert_eq!(told, [(0, 2, ProvedBy::Round), (2, 1, ProvedBy::Round)]);
    worker.publish(9, published(Role::Follower, 2, false));
    assert_eq!(worker.told(late), Some(Err(ErrorCode::NotLeader)));
}

#[test]
fn a_lease_answers_the_requests_that_ask_for_one_without_a_round() {
    let mut worker = Worker::leading(true);
    let lease = Some(Lease { term: TERM, until_ns: 100 });
    worker.publish(0, Published { lease, ..published(Role::Leader, 1, true) });
    worker.lease_clock_ns = 99;
    let quorum = worker.join(1, 5);
    let first = worker.join_for(Guarantee::Lease, 2, 6);
    let latest = worker.join_for(Guarantee::Lease, LATEST, 6);
    assert_eq!(worker.sequencer.lease_asked_ns(), 0);
    let round = worker.turn(7).unwrap();
    assert!(worker.sequencer.has_proved() && worker.sequencer.lease_asked_ns() == 7);
    let late = worker.join_for(Guarantee::Lease, 1, 8);
    assert_eq!((worker.complete(), worker.complete()), (Some(0), None));
    let told = [first, latest].map(|slot| worker.sequencer.outcome(slot).unwrap().unwrap());
    let told = told.map(|it| (it.range.last().index.0, it.proved_by));
    assert_eq!(told, [(1, ProvedBy::Lease); 2]);
    assert_eq!([quorum, late].map(|slot| worker.told(slot)), [None; 2]);
    assert!(worker.sequencer.is_turn_due() && !worker.sequencer.has_proved());
    // While the lease answers, rounds still show that a quorum can be reached.
    worker.confirm(&round);
    assert_eq!((worker.complete(), worker.told(quorum)), (Some(1), Some(Ok(2))));
    let probe = worker.sequencer.handle_tick(90, &worker.shared, |_| ());
    assert!(probe.is_some(), "it probes although a request waits for the lease");
    worker.lease_clock_ns = 100;
    let round = worker.turn(91).unwrap();
    assert!(!worker.sequencer.has_proved(), "the lease is over");
    worker.confirm(&round);
    while worker.complete().is_some() {}
    let told = worker.sequencer.outcome(late).unwrap().unwrap();
    assert_eq!(told.proved_by, ProvedBy::Round);
}

#[test]
fn a_lease_answers_while_no_further_round_may_begin() {
    let mut worker = Worker::leading(true);
    let lease = Some(Lease { term: TERM, until_ns: 100 });
    worker.publish(0, Published { lease, ..published(Role::Leader, 1, true) });
    for at in 0..UNPACED_ROUNDS as u64 {
        worker.join(1, at);
        worker.turn(at).unwrap();
    }
    let waits = worker.join(1, 9);
    assert!(!worker.sequencer.is_turn_due());
    let slot = worker.join_for(Guarantee::Lease, 1, 9);
    assert!(worker.sequencer.is_turn_due());
    assert!(worker.turn(10).is_none() && worker.complete() == Some(0));
    assert_eq!((worker.told(slot), worker.told(waits)), (Some(Ok(0)), None));
    worker.lease_clock_ns = 100;
    worker.join_for(Guarantee::Lease, 1, 11);
    assert!(worker.turn(12).is_none() && !worker.sequencer.is_turn_due(), "it waits for a round");
}

#[test]
fn a_later_round_completes_the_earlier_ones_first() {
    let mut worker = Worker::leading(true);
    let asked = [0, 1, 2].map(|at| (worker.join(1, at), worker.turn(at).unwrap()));
    worker.confirm(&asked[1].1);
    assert_eq!([0; 3].map(|_| worker.complete()), [Some(1), Some(2), None]);
    assert_eq!(asked.map(|(slot, _)| worker.told(slot)), [Some(Ok(0)), Some(Ok(1)), None]);
}

#[test]
fn only_so_many_rounds_overlap_without_a_pause_and_then_a_batch_grows() {
    let mut worker = Worker::leading(true);
    let mut rounds = vec![];
    for at in 0..UNPACED_ROUNDS as u64 {
        worker.join(1, at);
        rounds.push(worker.turn(at).unwrap());
    }
    let waits = [worker.join(1, 9), worker.join(1, 9)];
    assert_eq!((worker.turn(9), worker.sequencer.is_turn_due()), (None, false));
    worker.confirm(&rounds[0]);
    worker.complete();
    assert!(worker.sequencer.is_turn_due());
    let round = worker.turn(10).unwrap();
    worker.confirm(&round);
    while worker.complete().is_some() {}
    assert_eq!(waits.map(|slot| worker.told(slot)), [Some(Ok(4)), Some(Ok(5))]);
}

/// A worker whose unpaced rounds all begin at 0, and none is answered.
fn on_a_long_round_trip() -> Worker {
    let mut worker = Worker::leading(true);
    for _ in 0..UNPACED_ROUNDS {
        let slot = worker.join(1, 0);
        worker.turn(0).unwrap();
        worker.sequencer.leave(slot);
    }
    worker
}

#[test]
fn a_further_round_begins_after_the_pause_and_takes_all_requests_that_came_since() {
    let mut worker = on_a_long_round_trip();
    let waits = [worker.join(1, 1), worker.join(1, PACE_NS_MIN - 1)];
    assert_eq!(worker.turn(PACE_NS_MIN - 1), None);
    let round = worker.turn(PACE_NS_MIN).unwrap();
    assert_eq!(worker.sequencer.rounds.len(), UNPACED_ROUNDS + 1);
    worker.confirm(&round);
    while worker.complete().is_some() {}
    assert_eq!(waits.map(|slot| worker.told(slot)), [Some(Ok(4)), Some(Ok(5))]);
}

#[test]
fn a_tick_begins_the_round_for_which_no_turn_came() {
    let mut worker = on_a_long_round_trip();
    worker.join(1, PACE_NS_MIN);
    let begun = worker.sequencer.handle_tick(PACE_NS_MIN + 1, &worker.shared, |_| ());
    assert_eq!(begun.map(|it| it.confirm.round), Some(Round(UNPACED_ROUNDS as u64 + 1)));
    worker.join(1, PACE_NS_MIN + 2);
    let begun = worker.sequencer.handle_tick(PACE_NS_MIN + 3, &worker.shared, |_| ());
    assert!(begun.is_none(), "it is too early for another one");
}

#[test]
fn while_no_round_ends_each_pause_is_longer_and_the_rounds_have_a_limit() {
    let mut worker = on_a_long_round_trip();
    let mut begun_ns = vec![];
    for at_ns in (0..60_000).map(|ms| ms * PACE_NS_MIN) {
        let slot = worker.join(1, at_ns);
        if worker.turn(at_ns).is_some() {
            begun_ns.push(at_ns);
        }
        worker.sequencer.leave(slot);
    }
    assert_eq!(worker.sequencer.rounds.len(), ROUNDS_IN_FLIGHT_MAX);
    for pair in begun_ns.windows(2) {
        let pause_ns = pair[1] - pair[0];
        assert!(pause_ns >= PACE_NS_MIN && pause_ns >= pair[1] / PACED_ROUNDS, "{pair:?}");
        assert!(pause_ns <= pair[1] / PACED_ROUNDS + PACE_NS_MIN, "{pair:?}");
    }
}

#[test]
fn a_leader_without_a_grant_keeps_its_batch_until_it_has_one() {
    let mut worker = Worker::leading(false);
    let slot = worker.join(1, 0);
    assert_eq!((worker.turn(1), worker.sequencer.is_turn_due()), (None, false));
    worker.publish(2, published(Role::Leader, 1, true));
    assert!(worker.sequencer.is_turn_due());
    // The grant is lost again, and this worker has not followed that yet.
    worker.shared.publish(Arc::new(published(Role::Leader, 1, false)));
    assert_eq!((worker.turn(3), worker.told(slot)), (None, None));
    worker.publish(4, published(Role::Leader, 1, true));
    let round = worker.turn(5).unwrap();
    worker.confirm(&round);
    assert_eq!((worker.complete(), worker.told(slot)), (Some(1), Some(Ok(0))));
}

#[test]
fn a_worker_that_leads_no_longer_refuses_what_waits_and_names_the_next_leader() {
    let mut worker = Worker::leading(true);
    let in_flight = worker.join(1, 0);
    let round = worker.turn(1).unwrap();
    let open = worker.join(1, 2);
    worker.publish(3, published(Role::Follower, 2, false));
    assert_eq!((worker.fail(3), worker.fail(3)), (Some((1, RoundFailure::GrantLost)), None));
    let refused = Some(Err(ErrorCode::NotLeader));
    assert_eq!([in_flight, open].map(|slot| worker.told(slot)), [refused; 2]);
    assert_eq!(worker.sequencer.join(1, 1, Guarantee::Quorum, || 4), Err(ErrorCode::NotLeader));
    // The round is over: a yes that comes now confirms nothing.
    let mut answers = Answers::new(ME, ClusterId(0), identity(2));
    let yes = answers.handle_confirm(&round, &Promise::new(TERM)).unwrap();
    assert!(!worker.sequencer.handle_reply(NodeId(2), &yes));
    assert_eq!(worker.complete(), None);
}

#[test]
fn a_turn_that_finds_another_leader_refuses_its_batch() {
    let mut worker = Worker::leading(true);
    let slot = worker.join(1, 0);
    worker.shared.publish(Arc::new(published(Role::Follower, 2, false)));
    assert_eq!(worker.turn(1), None);
    assert_eq!(worker.told(slot), Some(Err(ErrorCode::NotLeader)));
}

#[test]
fn a_confirmed_batch_without_a_grant_gets_nothing() {
    for (error, code) in [
        (AllocateError::NoGrant, ErrorCode::NoLeader),
        (AllocateError::OtherTerm, ErrorCode::NoLeader),
        (AllocateError::BehindLast, ErrorCode::Internal),
        (AllocateError::Exhausted, ErrorCode::Internal),
        (AllocateError::Ahead, ErrorCode::Overloaded),
        (AllocateError::TooMany, ErrorCode::BadCount),
    ] {
        let mut worker = Worker::leading(true);
        let slot = worker.join(1, 0);
        let round = worker.turn(1).unwrap();
        worker.confirm(&round);
        let batch = worker.sequencer.poll_confirmed().unwrap();
        let expected = error.to_string();
        let mut error = Some(error);
        let allocate = |_| Err(error.take().expect("it is called once"));
        let told = worker.sequencer.complete(batch, allocate, &worker.shared, |_| ());
        assert_eq!(told.map_err(|error| error.to_string()), Err(expected));
        assert_eq!(worker.told(slot), Some(Err(code)));
    }
}

#[test]
fn deadlines_end_rounds_and_requests() {
    let mut worker = Worker::leading(true);
    let slot = worker.join(1, 0);
    worker.turn(1).unwrap();
    assert_eq!(worker.fail(100), None);
    assert_eq!(worker.fail(101), Some((1, RoundFailure::TimedOut)));
    assert_eq!(worker.told(slot), Some(Err(ErrorCode::NoQuorum)));
    worker.publish(200, published(Role::Leader, 1, false));
    let slot = worker.join(1, 200);
    for (now_ns, told) in [(1_199, None), (1_200, Some(Err(ErrorCode::NoQuorum)))] {
        let begun = worker.sequencer.handle_tick(now_ns, &worker.shared, |_| ());
        assert_eq!((begun.is_none(), worker.told(slot)), (true, told));
    }
}

#[test]
fn an_idle_leader_probes_and_its_probe_takes_no_timestamp() {
    let mut worker = Worker::leading(true);
    let tick = |worker: &mut Worker, now_ns| {
        worker.sequencer.handle_tick(now_ns, &worker.shared, |_| ()).map(|begun| begun.confirm)
    };
    assert_eq!(tick(&mut worker, 69), None);
    let probe = tick(&mut worker, 70).unwrap();
    assert_eq!(tick(&mut worker, 150), None, "one is in flight");
    worker.confirm(&probe);
    assert_eq!((worker.complete(), worker.next_index), (Some(1), 0));
    assert_eq!(tick(&mut worker, 139), None);
    assert!(tick(&mut worker, 140).is_some());
}

#[test]
fn a_full_worker_refuses_and_a_client_that_leaves_makes_room() {
    let mut worker = Worker::leading(true);
    let slots: Vec<usize> = (0..LIMITS.slots_max).map(|_| worker.join(1, 0)).collect();
    assert_eq!(worker.sequencer.join(1, 1, Guarantee::Quorum, || 0), Err(ErrorCode::Overloaded));
    let round = worker.turn(1).unwrap();
    worker.sequencer.leave(slots[0]);
    let next = worker.join(1, 2);
    assert_eq!(next, slots[0]);
    worker.confirm(&round);
    worker.complete();
    // The batch has one more timestamp than there are clients. The client that came later gets none
    // of them.
    assert_eq!((worker.told(next), worker.told(slots[7])), (None, Some(Ok(7))));
}

#[test]
fn a_worker_says_whether_it_has_work_and_what_it_asked_last() {
    let mut worker = Worker::leading(true);
    let seen = |worker: &Worker| {
        let newest = worker.sequencer.newest().map(|begun| begun.confirm.round.0);
        (worker.sequencer.is_active(), newest, worker.sequencer.recent_ns())
    };
    assert_eq!(seen(&worker), (false, None, 0));
    let slot = worker.join(1, 5);
    assert_eq!(seen(&worker), (true, None, 5));
    let round = worker.turn(7).unwrap();
    assert_eq!(seen(&worker), (true, Some(1), 7));
    worker.confirm(&round);
    worker.complete();
    assert_eq!(seen(&worker), (true, None, 7), "the outcome is not read yet");
    worker.sequencer.leave(slot);
    assert_eq!(seen(&worker), (false, None, 7));
    assert!(worker.sequencer.handle_tick(90, &worker.shared, |_| ()).is_some());
    assert_eq!(seen(&worker), (true, Some(2), 90), "its probe is in flight");
    assert_eq!(worker.sequencer.refusal(), None);
    worker.publish(95, published(Role::Follower, 2, false));
    assert_eq!(worker.sequencer.refusal(), Some(ErrorCode::NotLeader));
}

/// Completes the next confirmed batch from an allocator of compact timestamps that has `left` of a
/// millisecond.
fn complete_compact(worker: &mut Worker, left: u64) -> Result<u64, AllocateError> {
    let batch = worker.sequencer.poll_confirmed().unwrap();
    let (mut next, mut is_whole) = (COMPACT_INDEXES - left, true);
    let allocate = |key: Confirmed| {
        if std::mem::take(&mut is_whole) && key.count() > left {
            return Err(AllocateError::Divide(key));
        }
        // Only one millisecond is left.
        if next + key.count() > 2 * COMPACT_INDEXES {
            return Err(AllocateError::Ahead);
        }
        let first = Timestamp::new(Epoch(5), EpochIndex(next));
        next += key.count();
        TimestampRange::new(first, key.count().max(1)).ok_or(AllocateError::Exhausted)
    };
    let wake = |slot| worker.woken.push(slot);
    worker.sequencer.complete(batch, allocate, &worker.shared, wake)
}

#[test]
fn a_batch_that_does_not_fit_into_a_millisecond_is_divided_by_requests() {
    let mut worker = Worker::leading(true);
    let counts = [2, 3, LATEST, COMPACT_INDEXES + 1, COMPACT_INDEXES, 1];
    let slots = counts.map(|count| worker.join(count, 0));
    let round = worker.turn(1).unwrap();
    worker.confirm(&round);
    assert_eq!(complete_compact(&mut worker, 4), Ok(6));
    let at = COMPACT_INDEXES - 4;
    let told = slots.map(|slot| worker.told(slot).unwrap());
    let (too_many, ahead) = (Err(ErrorCode::BadCount), Err(ErrorCode::Overloaded));
    assert_eq!(told, [Ok(at), Ok(at + 2), Ok(at + 6), too_many, ahead, Ok(at + 5)]);
    let [one, two, latest, three, four, five] = slots;
    assert_eq!(worker.woken, [one, two, three, four, five, latest]);
}

#[test]
fn a_divided_batch_that_gets_nothing_says_why() {
    let mut worker = Worker::leading(true);
    let slot = worker.join(COMPACT_INDEXES, 0);
    let round = worker.turn(1).unwrap();
    worker.confirm(&round);
    let batch = worker.sequencer.poll_confirmed().unwrap();
    let mut is_whole = true;
    let allocate = |key| {
        let is_first = std::mem::take(&mut is_whole);
        Err(if is_first { AllocateError::Divide(key) } else { AllocateError::Ahead })
    };
    let told = worker.sequencer.complete(batch, allocate, &worker.shared, |_| ());
    assert_eq!(
        (told, worker.told(slot)),
        (Err(AllocateError::Ahead), Some(Err(ErrorCode::Overloaded)))
    );
}

#[test]
fn a_burst_that_was_read_before_timestamps_were_compact_is_asked_again() {
    let mut worker = Worker::leading(true);
    let burst = worker.sequencer.join(2, COMPACT_INDEXES + 2, Guarantee::Quorum, || 0).unwrap();
    let round = worker.turn(1).unwrap();
    worker.confirm(&round);
    assert_eq!(complete_compact(&mut worker, 4), Ok(0));
    assert_eq!(worker.told(burst), Some(Err(ErrorCode::Overloaded)));
}
