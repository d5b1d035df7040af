//! What a leader gives back when it hands over as planned (S18): in which order it acts, and how it
//! answers again if the successor does not take over.

use epicepoch_core::publication::{EpochRange, Grant, Role};
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_core::state::{Command, FORMAT_OF_GIVING_BACK, Owner};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::voter_status::VoterStatus;
use epicepoch_wire::{BootId, Epoch, LogIndex, NodeId, Term};

use crate::support::bench::{Bench, append, genesis, message, store};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, START_NS, TICK_NS};

/// Node 1 as the leader of three nodes that all read this format and have reported so.
fn led(format: u32) -> Bench {
    led_in(format, ELECTION_TICKS)
}

/// Like [`led`], with an election timeout of so many ticks.
fn led_in(format: u32, election_ticks: usize) -> Bench {
    let mut bench = Bench::made(Disk::genesis(&genesis(&[1, 2, 3])), |config| {
        (config.format_max, config.election_ticks) = (format, election_ticks);
    });
    bench.elect(&[2, 3]);
    bench.persist();
    bench.report_formats(&[2, 3], format);
    for _ in 0..5 * election_ticks {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
        bench.ack_all(3);
    }
    assert_eq!(bench.replica.state().format, format);
    bench.sent();
    bench
}

fn granted(bench: &Bench) -> Option<Grant> {
    bench.shared.published().grant
}

/// The leader is asked to hand over to node 2.
fn ask(bench: &mut Bench) {
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked);
    bench.drain();
}

/// Node 2 says how long its slowest write took, milliseconds.
fn say(bench: &mut Bench, slowest_ms: u16) {
    let slowest_write_ms = Some(slowest_ms);
    let status = VoterStatus {
        is_fit: true,
        preference: 0,
        zone: None,
        slowest_write_ms,
        waits_for_leases: false,
        closed: None,
    };
    let term = bench.status().term.0;
    let said = message(MessageKind::HeartbeatResponse, term);
    bench.take(2, &RaftMessage { context: status.encode(), ..said }).expect("an answer is taken");
}

/// The allocator stops; `last` was its last epoch.
fn stop(bench: &mut Bench, last: Epoch) {
    bench.replica.handle_allocator_stopped(bench.now_ns, Some(last));
    bench.drain();
}

/// How often the leader has answered again, as it has reported: whether it had offered leadership,
/// and from which range it answers.
fn resumed(bench: &Bench) -> Vec<(bool, Option<EpochRange>)> {
    let resumed = |report: &Report| match report {
        Report::AnswersAgain { is_offered, range, .. } => Some((*is_offered, *range)),
        _ => None,
    };
    bench.reports.iter().filter_map(resumed).collect()
}

/// What the log of the leader gives back, from the first entry to the last.
fn given_back(bench: &Bench) -> Vec<(Owner, EpochRange)> {
    let entries = bench.durable().entries.iter();
    let back = |data: &Vec<u8>| match Command::decode(data) {
        Ok(Command::GiveBack { owner, range }) => Some((owner, range)),
        _ => None,
    };
    entries.filter_map(|entry| back(&entry.data)).collect()
}

#[test]
fn a_handover_gives_back_what_is_above_the_last_timestamp_and_then_offers_leadership() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    let ceiling = bench.replica.ceiling();
    say(&mut bench, 0);
    ask(&mut bench);
    assert_eq!(granted(&bench), None, "the grant is withdrawn first");
    assert!(
        bench.replica.is_handing_over() && !bench.kinds_to(2).contains(&MessageKind::TimeoutNow)
    );
    bench.persist();
    assert_eq!(given_back(&bench), [], "the allocator has not stopped");
    let last = Epoch(grant.range.low.0 + 7);
    stop(&mut bench, last);
    bench.persist();
    let me = Owner { term: grant.term, node: NodeId(1), boot: BootId(7) };
    let range = EpochRange { low: last, high: grant.range.high };
    assert_eq!(given_back(&bench), [(me, range)]);
    let sent: Vec<_> = bench.sent().into_iter().filter(|out| out.to == NodeId(2)).collect();
    let entry = sent.iter().find_map(|out| out.message.entries.last()).expect("the entry is sent");
    let offer = sent.last().map(|out| &out.message).expect("leadership is offered behind it");
    assert_eq!(offer.kind, MessageKind::TimeoutNow);
    assert_eq!((offer.index, offer.log_term), (entry.index, entry.term), "the offer names it");
    let named = (offer.index, offer.log_term);
    bench.ack_all(2);
    let repeated = bench.sent().into_iter().map(|out| out.message);
    let mut repeated = repeated.filter(|message| message.kind == MessageKind::TimeoutNow);
    let repeated = repeated.next().expect("the library repeats the offer");
    assert_eq!((repeated.index, repeated.log_term), named, "every offer of a leader names it");
    let state = bench.replica.state();
    assert_eq!((state.range_end(), state.ceiling), (last, ceiling));
    assert!(bench.reports.contains(&Report::GivenBack { owner: me, range }));
}

/// An offer of leadership in term 2 that names an entry of that term.
fn offer(index: LogIndex) -> RaftMessage {
    RaftMessage { index, log_term: Term(2), ..message(MessageKind::TimeoutNow, 2) }
}

/// Node 1 as a follower in term 2, with a durable entry of that term at index 2.
fn follower(election_ticks: usize) -> Bench {
    let disk = Disk::genesis(&genesis(&[1, 2, 3]));
    let mut bench = Bench::made(disk, |config| config.election_ticks = election_ticks);
    bench.tick();
    bench.take(2, &append(2, (1, 1), 1, 1)).expect("an append is taken");
    bench.persist();
    bench
}

/// Whether node 1 follows an offer of leadership that has just arrived.
fn follows(bench: &mut Bench, offer: &RaftMessage) -> bool {
    bench.take(2, offer).expect("an offer is taken");
    bench.status().role == Role::Candidate
}

/// Without the entry it would lose the election, and depose its leader for nothing.
#[test]
fn an_offer_that_overtakes_its_entry_is_ignored_until_the_entry_is_there() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 1, 1)).unwrap();
    bench.take(2, &offer(LogIndex(3))).unwrap();
    assert_eq!((bench.status().term, bench.status().role), (Term(2), Role::Follower));
    // An entry of an older term at that index is another entry.
    let older = RaftMessage { log_term: Term(1), ..offer(LogIndex(2)) };
    bench.take(2, &older).unwrap();
    assert_eq!((bench.status().term, bench.status().role), (Term(2), Role::Follower));
    bench.take(2, &append(2, (2, 2), 1, 1)).unwrap();
    bench.take(2, &offer(LogIndex(3))).unwrap();
    assert_eq!((bench.status().term, bench.status().role), (Term(3), Role::Candidate));
    // One sync is enough for the entry and the vote.
    assert!(!bench.kinds_to(3).contains(&MessageKind::RequestVote));
    bench.persist();
    assert!(bench.kinds_to(3).contains(&MessageKind::RequestVote));
}

/// The leader answers again, and has reserved. Without the reservation, its successor would lose.
#[test]
fn an_offer_is_ignored_if_an_entry_has_arrived_behind_it() {
    let mut bench = follower(ELECTION_TICKS);
    let read = |bench: &mut Bench, message: &RaftMessage| {
        let (now_ns, from) = (bench.now_ns, NodeId(2));
        bench.replica.handle_message(now_ns, from, store(2), message).expect("it is taken");
    };
    // The node reads both before it acts, as after a stall of the link.
    read(&mut bench, &offer(LogIndex(2)));
    read(&mut bench, &append(2, (2, 2), 1, 1));
    bench.replica.follow_offer(bench.now_ns);
    assert_eq!((bench.status().term, bench.status().role), (Term(2), Role::Follower));
    assert!(!follows(&mut bench, &offer(LogIndex(2))), "it comes once more, later");
    assert!(follows(&mut bench, &offer(LogIndex(3))), "the offer that the leader makes now");
}

#[test]
fn of_two_offers_that_arrive_together_the_one_of_the_newer_term_counts() {
    let newer = |bench: &Bench| RaftMessage { term: Term(3), ..offer(bench.status().last) };
    for is_newer_first in [true, false] {
        let mut bench = follower(ELECTION_TICKS);
        let mut both = [newer(&bench), offer(LogIndex(1))];
        if !is_newer_first {
            both.reverse();
        }
        for message in &both {
            bench.replica.handle_message(bench.now_ns, NodeId(2), store(2), message).unwrap();
        }
        bench.replica.follow_offer(bench.now_ns);
        assert_eq!((bench.status().term, bench.status().role), (Term(4), Role::Candidate));
    }
}

/// The leader repeats its offer with the entry that is its last one by then.
#[test]
fn of_two_offers_of_a_term_that_arrive_together_the_later_one_counts() {
    for is_current_last in [true, false] {
        let mut bench = follower(ELECTION_TICKS);
        let mut both = [offer(LogIndex(1)), offer(bench.status().last)];
        if !is_current_last {
            both.reverse();
        }
        for message in &both {
            bench.replica.handle_message(bench.now_ns, NodeId(2), store(2), message).unwrap();
        }
        bench.replica.follow_offer(bench.now_ns);
        assert_eq!(bench.status().role == Role::Candidate, is_current_last);
    }
}

/// The offer, and all that its leader has sent since, may have waited for as long as the pause.
#[test]
fn a_node_that_was_paused_ignores_offers_until_two_ticks_have_come_in_time() {
    let late_ns = TICK_NS + ELECTION_TICKS as u64 * TICK_NS / 4;
    let mut bench = follower(ELECTION_TICKS);
    bench.now_ns += late_ns;
    assert!(follows(&mut bench, &offer(LogIndex(2))), "the next tick is not late yet");

    let mut bench = follower(ELECTION_TICKS);
    bench.now_ns += late_ns + 1;
    assert!(!follows(&mut bench, &offer(LogIndex(2))), "the next tick is late");
    bench.now_ns -= TICK_NS;
    for in_time in 0..2 {
        bench.tick();
        assert!(!follows(&mut bench, &offer(LogIndex(2))), "after {in_time} ticks in time");
    }
    bench.tick();
    assert!(follows(&mut bench, &offer(LogIndex(2))));
}

/// The leader knows how long the last writes have taken, but not the one that has just begun. For
/// an offer that the library makes later, the leader has waited for this node's disk.
#[test]
fn an_offer_right_behind_its_entry_is_followed_only_while_the_own_disk_is_free() {
    // With an election timeout of 20 ticks, a write on a fast disk takes at most two.
    for (ticks, is_followed) in [(2, true), (3, false)] {
        let mut bench = follower(20);
        let beat = RaftMessage { commit: LogIndex(2), ..message(MessageKind::Heartbeat, 2) };
        bench.take(2, &beat).unwrap();
        assert_eq!(bench.status().writes_outstanding, 1, "the commit index");
        bench.ticks(ticks);
        bench.take(2, &append(2, (2, 2), 1, 1)).unwrap();
        assert_eq!(follows(&mut bench, &offer(LogIndex(3))), is_followed, "{ticks} ticks");

        // The same old write, but the entry of the offer is durable.
        let mut bench = follower(20);
        bench.take(2, &beat).unwrap();
        bench.ticks(ticks);
        assert!(follows(&mut bench, &offer(LogIndex(2))), "{ticks} ticks");
    }
}

/// The vote of such a successor might leave only when its leader has answered again.
#[test]
fn a_successor_whose_disk_is_not_known_to_be_fast_is_asked_once_it_has_the_entry() {
    for slowest_ms in [None, Some(10)] {
        let mut bench = led(FORMAT_OF_GIVING_BACK);
        let grant = granted(&bench).expect("it serves");
        if let Some(ms) = slowest_ms {
            say(&mut bench, ms);
        }
        ask(&mut bench);
        stop(&mut bench, Epoch(grant.range.low.0 + 7));
        bench.persist();
        assert_eq!(given_back(&bench).len(), 1);
        assert!(!bench.kinds_to(2).contains(&MessageKind::TimeoutNow), "{slowest_ms:?}");
        bench.ack_all(2);
        assert!(bench.kinds_to(2).contains(&MessageKind::TimeoutNow), "{slowest_ms:?}");
    }
}

#[test]
fn a_disk_is_fast_if_its_slowest_write_took_a_quarter_of_the_wait_at_most() {
    // The leader waits for ten ticks. A quarter of that are two whole ticks: 20 ms.
    for (slowest_ms, is_asked_at_once) in [(20, true), (21, false)] {
        let mut bench = led_in(FORMAT_OF_GIVING_BACK, 20);
        let grant = granted(&bench).expect("it serves");
        say(&mut bench, slowest_ms);
        ask(&mut bench);
        stop(&mut bench, Epoch(grant.range.low.0 + 7));
        bench.persist();
        assert_eq!(given_back(&bench).len(), 1);
        let is_asked = bench.kinds_to(2).contains(&MessageKind::TimeoutNow);
        assert_eq!(is_asked, is_asked_at_once, "{slowest_ms} ms");
    }
}

/// The library repeats an offer only when the successor has acknowledged everything.
#[test]
fn leadership_is_not_offered_at_once_to_a_voter_that_was_not_sent_everything() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    // After a lost connection, the library sends nothing more until the voter has answered.
    bench.replica.handle_unreachable(bench.now_ns, NodeId(2));
    reserve(&mut bench);
    bench.ack_all(3);
    bench.sent();
    say(&mut bench, 0);
    ask(&mut bench);
    stop(&mut bench, Epoch(grant.range.low.0 + 7));
    bench.persist();
    assert_eq!(given_back(&bench).len(), 1);
    assert!(!bench.kinds_to(2).contains(&MessageKind::TimeoutNow));
    bench.ack_all(2);
    assert!(bench.kinds_to(2).contains(&MessageKind::TimeoutNow));
}

/// The library sends a limited number of messages without an answer, and keeps the others.
#[test]
fn leadership_is_not_offered_at_once_while_entries_wait_for_earlier_answers() {
    let propose = |bench: &mut Bench| {
        bench.replica.propose_barrier(bench.now_ns).expect("it leads");
        bench.drain();
        bench.persist();
        bench.ack_all(3);
        bench.sent().iter().any(|out| out.to == NodeId(2) && !out.message.entries.is_empty())
    };
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let sent_max = (0..1_000).take_while(|_| propose(&mut bench)).count();
    assert!((1..1_000).contains(&sent_max));
    for (proposed, is_asked_at_once) in [(sent_max - 1, true), (sent_max, false)] {
        let mut bench = led(FORMAT_OF_GIVING_BACK);
        let grant = granted(&bench).expect("it serves");
        say(&mut bench, 0);
        for _ in 0..proposed {
            assert!(propose(&mut bench));
        }
        ask(&mut bench);
        stop(&mut bench, Epoch(grant.range.low.0 + 7));
        bench.persist();
        assert_eq!(given_back(&bench).len(), 1);
        let is_asked = bench.kinds_to(2).contains(&MessageKind::TimeoutNow);
        assert_eq!(is_asked, is_asked_at_once, "behind {proposed} entries");
    }
}

#[test]
fn a_leader_that_has_used_everything_gives_nothing_back_and_offers_leadership_once() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    say(&mut bench, 0);
    ask(&mut bench);
    stop(&mut bench, grant.range.high);
    bench.persist();
    assert_eq!(given_back(&bench), []);
    let offers = bench.kinds_to(2).into_iter().filter(|kind| *kind == MessageKind::TimeoutNow);
    assert_eq!(offers.count(), 1);
}

#[test]
fn a_leader_whose_successor_does_not_come_reserves_anew_above_what_it_gave_back() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    let last = Epoch(grant.range.low.0 + 7);
    ask(&mut bench);
    stop(&mut bench, last);
    bench.ack_all(2);
    for _ in 0..ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
    }
    let again = granted(&bench).expect("it answers again");
    assert_eq!((again.term, again.range.low), (grant.term, last));
    assert!(again.range.high > Epoch(START_NS + bench.now_ns), "it is a whole window");
    assert_eq!(resumed(&bench), [(true, None)], "it had to reserve");
}

#[test]
fn no_other_handover_begins_while_a_leader_gives_back() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    ask(&mut bench);
    bench.reports.clear();
    bench.replica.handle_clock(Some(vec![NodeId(3)]));
    let begins = |bench: &Bench| {
        let mut begun = bench.reports.iter();
        begun.any(|report| matches!(report, Report::HandingOver { why: HandOver::ClockOff, .. }))
    };
    while bench.replica.is_handing_over() && granted(&bench).is_none() {
        assert!(!begins(&bench));
        bench.beats(1, &[2, 3]);
    }
    bench.beats(4 * ELECTION_TICKS, &[2, 3]);
    assert!(begins(&bench), "its clock is still off");
}

#[test]
fn a_leader_that_is_asked_twice_to_hand_over_offers_nothing_before_it_has_given_back() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    say(&mut bench, 0);
    ask(&mut bench);
    assert_eq!(bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked), None);
    bench.drain();
    let offer = MessageKind::TimeoutNow;
    assert!(!bench.kinds_to(2).contains(&offer), "its allocator has not stopped");
    stop(&mut bench, grant.range.low);
    bench.persist();
    assert!(bench.kinds_to(2).contains(&offer) && given_back(&bench).len() == 1);
}

#[test]
fn the_allocator_is_to_be_stopped_at_each_tick_until_it_has_stopped() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    assert!(!bench.replica.take_stop(), "nothing is handed over");
    ask(&mut bench);
    assert!(bench.replica.take_stop() && !bench.replica.take_stop(), "once for each try");
    bench.replica.handle_allocator_stopped(bench.now_ns, None);
    bench.beats(1, &[2, 3]);
    assert!(bench.replica.take_stop() && !bench.replica.take_stop(), "once more");
    stop(&mut bench, grant.range.low);
    bench.beats(1, &[2, 3]);
    assert!(!bench.replica.take_stop());
}

#[test]
fn an_allocator_that_does_not_stop_delays_a_handover_by_half_an_election_timeout_at_most() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    ask(&mut bench);
    for _ in 0..=ELECTION_TICKS.div_ceil(2) {
        assert_eq!(granted(&bench), None, "it waits");
        bench.replica.handle_allocator_stopped(bench.now_ns, None);
        bench.beats(1, &[2, 3]);
    }
    bench.persist();
    bench.ack_all(2);
    assert!(bench.kinds_to(2).contains(&MessageKind::TimeoutNow), "leadership is offered");
    let again = granted(&bench).expect("it answers again");
    assert_eq!((again.term, again.range.low), (grant.term, grant.range.low), "nothing is lost");
    assert!(again.range.high >= grant.range.high);
    assert_eq!(resumed(&bench), [(false, Some(grant.range))]);
    assert_eq!(given_back(&bench), []);
}

/// Waits until the leader has proposed a reservation that nobody has acknowledged.
fn reserve(bench: &mut Bench) {
    let reserved = |bench: &Bench| {
        let entries = bench.durable().entries.iter();
        let is_one = |data: &Vec<u8>| matches!(Command::decode(data), Ok(Command::Reserve { .. }));
        entries.filter(|entry| is_one(&entry.data)).count()
    };
    let before = reserved(bench);
    for _ in 0..1_000 {
        bench.beats(1, &[2, 3]);
        bench.persist();
        if reserved(bench) > before {
            return;
        }
    }
    panic!("no reservation is proposed");
}

#[test]
fn a_leader_that_has_proposed_nothing_answers_again_from_the_range_that_it_withdrew() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    reserve(&mut bench);
    let grant = granted(&bench).expect("it serves");
    let last = Epoch(grant.range.low.0 + 7);
    ask(&mut bench);
    stop(&mut bench, last);
    while granted(&bench).is_none() {
        bench.beats(1, &[2, 3]);
    }
    assert_eq!(granted(&bench), Some(grant), "the reservation is late");
    assert_eq!(resumed(&bench), [(false, Some(grant.range))]);
    bench.persist();
    bench.ack_all(2);
    let longer = granted(&bench).expect("it serves");
    assert_eq!(longer.range.low, grant.range.low);
    assert!(longer.range.high > grant.range.high, "the reservation extends the range");
    assert_eq!(given_back(&bench), []);
    // The next handover gives back what is above the last timestamp, which is a later one.
    while bench.replica.is_handing_over() {
        bench.beats(1, &[2, 3]);
    }
    ask(&mut bench);
    stop(&mut bench, Epoch(last.0 + 7));
    bench.persist();
    let me = Owner { term: grant.term, node: NodeId(1), boot: BootId(7) };
    let range = EpochRange { low: Epoch(last.0 + 7), high: longer.range.high };
    assert_eq!(given_back(&bench), [(me, range)]);
}

#[test]
fn a_reservation_under_way_is_waited_for_and_gives_no_grant() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    reserve(&mut bench);
    let grant = granted(&bench).expect("it serves");
    ask(&mut bench);
    stop(&mut bench, Epoch(grant.range.low.0 + 7));
    bench.persist();
    assert_eq!(given_back(&bench), [], "the reservation comes first");
    bench.ack_all(2);
    bench.persist();
    assert_eq!(granted(&bench), None);
    let reported = |report: &Report| match report {
        Report::Granted { range, .. } => Some(range.high),
        _ => None,
    };
    let highest = bench.reports.iter().filter_map(reported).max();
    let [(_, range)] = given_back(&bench)[..] else { panic!("{:?}", given_back(&bench)) };
    assert!(range.high > grant.range.high, "the new range is given back with the old one");
    assert_eq!(highest, Some(range.high), "the reservation is reported although it gives no grant");
    assert_eq!(range.low, Epoch(grant.range.low.0 + 7));
}

#[test]
fn what_an_advance_has_promised_is_not_given_back() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    let grant = granted(&bench).expect("it serves");
    let to = Epoch(grant.range.high.0 - 5);
    let advance = bench.replica.advance(bench.now_ns, to, u64::MAX);
    assert!(advance.is_ok(), "{advance:?}");
    let last = Epoch(grant.range.low.0 + 7);
    ask(&mut bench);
    stop(&mut bench, last);
    bench.ack_all(2);
    assert_eq!(bench.replica.state().range_end(), to);
    // The successor does not come, and the next handover begins before the leader has a grant.
    while bench.replica.is_handing_over() {
        bench.beats(1, &[2, 3]);
    }
    assert_eq!(granted(&bench), None, "nobody has acknowledged the new reservation");
    ask(&mut bench);
    stop(&mut bench, last);
    bench.ack_all(2);
    assert_eq!(bench.replica.state().range_end(), to);
}

#[test]
fn nothing_is_given_back_in_an_older_format_and_when_the_disk_is_stuck() {
    for (format, why) in
        [(FORMAT_OF_GIVING_BACK - 1, HandOver::Asked), (FORMAT_OF_GIVING_BACK, HandOver::DiskStuck)]
    {
        let mut bench = led(format);
        bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), why);
        bench.drain();
        assert!(granted(&bench).is_some(), "{format}");
        assert!(bench.kinds_to(2).contains(&MessageKind::TimeoutNow), "{format}");
    }
}

/// If its successor did not come, the leader would have to reserve before it answers, and its own
/// disk would delay that.
#[test]
fn a_leader_with_a_slow_disk_gives_nothing_back() {
    for (ticks, gives_back) in [(ELECTION_TICKS / 2, true), (ELECTION_TICKS / 2 + 1, false)] {
        let mut bench = led(FORMAT_OF_GIVING_BACK);
        while bench.status().writes_outstanding == 0 {
            bench.beats(1, &[2, 3]);
        }
        // The write of its reservation waits for so many ticks.
        bench.beats(ticks, &[2, 3]);
        ask(&mut bench);
        assert!(bench.replica.is_handing_over());
        assert_eq!(granted(&bench).is_none(), gives_back, "{ticks} ticks");
    }
}

#[test]
fn a_leader_that_is_deposed_gives_nothing_back() {
    let mut bench = led(FORMAT_OF_GIVING_BACK);
    ask(&mut bench);
    let term = bench.status().term.0 + 1;
    let beat = message(MessageKind::Heartbeat, term);
    bench.take(3, &beat).expect("a heartbeat is taken");
    stop(&mut bench, Epoch(1));
    bench.persist();
    assert_eq!((given_back(&bench), bench.status().term), (vec![], Term(term)));
}
