//! The lease of a leader, and how long the next leader waits for it (S20).

use epicepoch_core::lease::{Lease, LeaseClocks};
use epicepoch_core::publication::Published;
use epicepoch_core::replica::{AdvanceError, HandOver, Report, SettingsError};
use epicepoch_core::state::{Command, FORMAT_OF_LEASES, FORMATS, Owner, State};
use epicepoch_wire::raft_message::{Configuration, LogEntry, MessageKind, RaftMessage, Snapshot};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::VoterStatus;
use epicepoch_wire::{BootId, Epoch, Guarantee, LogIndex, Mode, NodeId, Term, TimestampFormat};

use crate::support::bench::{Bench, append, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, MS, TICK_NS};

const LEASE_MS: u64 = 50;
const HOLD_NS: u64 = LEASE_MS * 5 / 4 * MS + MS / 2;

fn settings(lease_ms: u64) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        max_n: 100,
        leader_zones: vec![],
        lease_ms,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    }
}

/// Node 1 as the leader of three nodes in a cluster with leases. No request has asked for one.
fn led() -> Bench {
    let mut bench = Bench::made(Disk::genesis(&genesis(&[1, 2, 3])), |config| {
        config.format_max = FORMAT_OF_LEASES;
    });
    bench.replica.allow_leases();
    bench.replica.seed_settings(settings(LEASE_MS));
    bench.elect(&[2, 3]);
    bench.persist();
    bench.report_formats(&[2, 3], FORMAT_OF_LEASES);
    for _ in 0..8 * ELECTION_TICKS {
        beat(&mut bench);
    }
    assert_eq!(bench.replica.settings().map(|it| it.lease_ms), Some(LEASE_MS));
    bench
}

/// A tick in which everything is durable and acknowledged. The clock of the leases shows the time
/// since the start, and five seconds.
fn beat(bench: &mut Bench) {
    let clock_ns = clock_ns(bench);
    show(bench, clock_ns);
    bench.beats(1, &[2, 3]);
    bench.ack_all(2);
    bench.ack_all(3);
}

/// Both clocks of the leases show this.
fn show(bench: &mut Bench, clock_ns: u64) {
    let clocks = LeaseClocks { own_ns: clock_ns, wait_ns: clock_ns };
    bench.replica.handle_lease_clocks(clocks);
}

fn clock_ns(bench: &Bench) -> u64 {
    bench.now_ns + 5_000 * MS
}

fn lease(bench: &Bench) -> Option<Lease> {
    bench.shared.published().lease
}

/// A request asks for a lease now.
fn ask(bench: &mut Bench) {
    bench.replica.handle_lease_asked(bench.now_ns);
}

/// What the log says of leases, from the first entry to the last: the marks, and 0 for a release.
fn marks(bench: &Bench) -> Vec<u64> {
    let entries = bench.durable().entries.iter();
    let mark = |entry: &LogEntry| match Command::decode(&entry.data) {
        Ok(Command::Reserve { lease_ms, .. }) if lease_ms > 0 => Some(lease_ms),
        Ok(Command::Release { .. }) => Some(0),
        _ => None,
    };
    entries.filter_map(mark).collect()
}

#[test]
fn a_lease_begins_when_somebody_asks_is_renewed_and_ends_when_nobody_does() {
    let mut bench = led();
    assert_eq!((lease(&bench), marks(&bench)), (None, vec![]), "nobody has asked");
    ask(&mut bench);
    let before_ns = clock_ns(&bench);
    beat(&mut bench);
    let first = lease(&bench).expect("it is committed and applied");
    assert_eq!(first.term, Term(2));
    assert!(first.until_ns >= before_ns && first.until_ns <= before_ns + (LEASE_MS + 10) * MS);
    beat(&mut bench);
    assert_eq!(lease(&bench), Some(first), "it is too early to renew it");
    beat(&mut bench);
    beat(&mut bench);
    let second = lease(&bench).expect("it is renewed");
    assert!(second.until_ns > first.until_ns && second.until_ns > clock_ns(&bench));
    assert_eq!(bench.replica.lease_left_ns(), second.until_ns - clock_ns(&bench) + TICK_NS);
    for _ in 0..100 {
        beat(&mut bench);
    }
    let count = marks(&bench).len();
    assert!(lease(&bench).is_some_and(|it| it.until_ns < clock_ns(&bench) + LEASE_MS * MS));
    for _ in 0..20 {
        beat(&mut bench);
    }
    assert_eq!(marks(&bench).len(), count, "nobody asks any more");
    assert_eq!(bench.replica.lease_left_ns(), 0);
}

#[test]
fn a_lease_counts_from_before_its_proposal_and_needs_a_commit() {
    let mut bench = led();
    ask(&mut bench);
    let proposed_ns = clock_ns(&bench);
    show(&mut bench, proposed_ns);
    bench.tick();
    assert_eq!(lease(&bench), None, "it is proposed only");
    show(&mut bench, proposed_ns + 40 * MS);
    bench.persist();
    assert_eq!(lease(&bench), None, "it is durable here only");
    bench.ack_all(2);
    let until_ns = proposed_ns + LEASE_MS * MS;
    assert_eq!(lease(&bench), Some(Lease { term: Term(2), until_ns }));
}

#[test]
fn a_handover_withdraws_the_lease_and_then_releases_it() {
    let mut bench = led();
    ask(&mut bench);
    beat(&mut bench);
    assert!(lease(&bench).is_some());
    // Another marked reservation is under way.
    let later_ns = clock_ns(&bench) + 30 * MS;
    show(&mut bench, later_ns);
    bench.tick();
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::DiskStuck);
    bench.drain();
    let Published { lease: None, grant: Some(_), .. } = *bench.shared.published() else {
        panic!("workers use rounds until the successor has taken over")
    };
    bench.persist();
    assert_eq!(marks(&bench), [LEASE_MS, LEASE_MS, 0]);
    bench.ack_all(2);
    bench.ack_all(3);
    assert_eq!(lease(&bench), None, "what was marked before the release is no lease");
    let offers = bench.sent().into_iter().filter(|out| out.message.kind == MessageKind::TimeoutNow);
    assert_eq!(offers.count(), 1, "leadership is offered once the successor has the release");
    // The successor does not come. Later reservations are leases again.
    for _ in 0..3 * ELECTION_TICKS {
        ask(&mut bench);
        beat(&mut bench);
    }
    assert!(lease(&bench).is_some());
    assert_eq!(marks(&bench).iter().filter(|mark| **mark == 0).count(), 1);
}

#[test]
fn a_handover_that_gives_back_releases_the_lease_too() {
    let mut bench = led();
    ask(&mut bench);
    beat(&mut bench);
    let status = VoterStatus {
        is_fit: true,
        preference: 0,
        zone: None,
        slowest_write_ms: Some(0),
        waits_for_leases: false,
        closed: None,
    };
    let said = RaftMessage {
        context: status.encode(),
        ..message(MessageKind::HeartbeatResponse, bench.status().term.0)
    };
    bench.take(2, &said).expect("an answer is taken");
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked);
    bench.drain();
    let published = bench.shared.published();
    assert_eq!((published.grant, published.lease), (None, None));
    bench.replica.handle_allocator_stopped(bench.now_ns, Some(Epoch(1)));
    bench.drain();
    bench.persist();
    assert_eq!(marks(&bench), [LEASE_MS, 0]);
    let last = bench.durable().entries.last().map(|entry| Command::decode(&entry.data));
    assert!(matches!(last, Some(Ok(Command::GiveBack { .. }))), "{last:?}");
}

/// A voter that has just started, or has just got a snapshot, would wait for leases.
#[test]
fn a_voter_that_would_wait_for_leases_is_the_last_one_to_get_leadership() {
    for (waiting, to) in [(&[2][..], 3), (&[3], 2), (&[2, 3], 2), (&[], 2)] {
        let mut bench = led();
        for node in [2, 3] {
            let waits_for_leases = waiting.contains(&node);
            let (preference, zone, slowest_write_ms) = (0, None, Some(0));
            let is_fit = true;
            let status = VoterStatus {
                is_fit,
                preference,
                zone,
                slowest_write_ms,
                waits_for_leases,
                closed: None,
            };
            let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
            let answer = RaftMessage { context: status.encode(), ..answer };
            bench.take(node, &answer).expect("an answer is taken");
        }
        bench.replica.hand_over(bench.now_ns, None, HandOver::DiskStuck);
        bench.drain();
        let handed = Report::HandingOver { to: NodeId(to), why: HandOver::DiskStuck };
        assert!(bench.reports.contains(&handed), "{waiting:?}: {:?}", bench.reports);
    }
}

/// What node 1 says of itself to node 2, which leads term 2.
fn says_that_it_would_wait(bench: &mut Bench) -> bool {
    bench.take(2, &message(MessageKind::Heartbeat, 2)).expect("a heartbeat is taken");
    bench.persist();
    let sent = bench.sent();
    let mut answers = sent.iter().filter(|out| out.message.kind == MessageKind::HeartbeatResponse);
    let answer = answers.next_back().expect("an answer");
    VoterStatus::decode(&answer.message.context).expect("a status").waits_for_leases
}

#[test]
fn a_voter_says_that_it_would_wait_for_leases_of_others_than_its_leader() {
    let mut bench = follower(&[marked()]);
    assert!(!says_that_it_would_wait(&mut bench), "its leader releases its own lease");
    let earlier = Owner { term: Term(1), node: NodeId(3), boot: BootId(9) };
    let of_another = Command::Reserve { owner: earlier, until: Epoch(2_000), lease_ms: LEASE_MS };
    let mut bench = follower(&[of_another]);
    assert!(says_that_it_would_wait(&mut bench));
    show(&mut bench, 5_000 * MS + HOLD_NS);
    assert!(!says_that_it_would_wait(&mut bench));
    // After a restart it does not know whose leases may run.
    bench.disk.crash();
    let mut bench = Bench::made(bench.disk, |config| config.format_max = FORMATS.newest);
    assert!(says_that_it_would_wait(&mut bench));
    show(&mut bench, 9_000 * MS);
    assert!(says_that_it_would_wait(&mut bench));
    show(&mut bench, 9_000 * MS + HOLD_NS);
    assert!(!says_that_it_would_wait(&mut bench));
}

/// Node 3 reads no format with leases. The other settings do not wait for it for ever.
#[test]
fn first_settings_with_leases_wait_for_their_format_but_not_for_ever() {
    let mut bench = Bench::made(Disk::genesis(&genesis(&[1, 2, 3])), |config| {
        config.format_max = FORMAT_OF_LEASES;
    });
    bench.replica.allow_leases();
    bench.replica.seed_settings(settings(LEASE_MS));
    bench.elect(&[2, 3]);
    bench.persist();
    bench.report_formats(&[2], FORMAT_OF_LEASES);
    bench.report_formats(&[3], FORMAT_OF_LEASES - 1);
    for _ in 0..20 * ELECTION_TICKS {
        beat(&mut bench);
    }
    assert_eq!((bench.replica.state().format, bench.replica.settings()), (4, None));
    let missing = SettingsError::NotSeeded { not_reading: vec![NodeId(3)] };
    assert!(missing.to_string().contains("the format of that: 3;"), "{missing}");
    assert_eq!(bench.replica.change_settings(bench.now_ns, 7, &settings(0)), Err(missing));
    for _ in 0..10 * ELECTION_TICKS {
        beat(&mut bench);
    }
    assert_eq!(bench.replica.settings(), Some(&settings(0)), "all others");
    // Once all members read the format, an operator switches leases on.
    bench.report_formats(&[3], FORMAT_OF_LEASES);
    for _ in 0..2 * ELECTION_TICKS {
        beat(&mut bench);
    }
    assert_eq!(bench.replica.change_settings(bench.now_ns, 8, &settings(LEASE_MS)), Ok(()));
}

#[test]
fn without_a_lease_a_handover_releases_nothing() {
    let mut bench = led();
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::DiskStuck);
    bench.drain();
    bench.persist();
    assert_eq!(marks(&bench), []);
}

#[test]
fn a_lease_that_is_switched_off_is_released_and_a_node_that_stops_marks_none() {
    let mut bench = led();
    ask(&mut bench);
    beat(&mut bench);
    assert_eq!(bench.replica.change_settings(bench.now_ns, 7, &settings(0)), Ok(()));
    bench.drain();
    bench.persist();
    bench.ack_all(2);
    bench.persist();
    assert_eq!((lease(&bench), marks(&bench)), (None, vec![LEASE_MS, 0]));
    for _ in 0..10 {
        ask(&mut bench);
        beat(&mut bench);
    }
    assert_eq!(marks(&bench), [LEASE_MS, 0]);
    let mut bench = led();
    bench.replica.handle_shutdown_request(bench.now_ns);
    for _ in 0..3 * ELECTION_TICKS {
        ask(&mut bench);
        beat(&mut bench);
    }
    assert_eq!(marks(&bench), []);
}

#[test]
fn a_lease_that_may_not_be_is_refused_with_the_reason() {
    let mut bench = led();
    let now_ns = bench.now_ns;
    let mut set = |lease_ms| bench.replica.change_settings(now_ns, 7, &settings(lease_ms));
    let error = SettingsError::LeaseTooLong { lease_ms: 51, election_ms: 50 };
    assert_eq!(set(51), Err(error));
    assert!(matches!(set(49), Err(SettingsError::NotAllowed { .. })));
    let mut bench = Bench::led(&[1, 2, 3]);
    let change = |bench: &mut Bench| bench.replica.change_settings(0, 7, &settings(50));
    assert_eq!(change(&mut bench), Err(SettingsError::LeaseClock));
    bench.replica.allow_leases();
    assert!(matches!(change(&mut bench), Err(SettingsError::Format { .. })));
}

#[test]
fn a_leader_that_takes_no_lease_still_changes_other_settings_and_switches_leases_off() {
    let seed = Command::Settings { nonce: 3, is_seed: true, settings: settings(LEASE_MS) };
    let mut bench = follower(&[seed]);
    take_over(&mut bench);
    let longer = SettingsError::LeaseClock;
    assert_eq!(bench.replica.change_settings(0, 7, &settings(LEASE_MS + 1)), Err(longer));
    let other = ClusterSettings { max_n: 50, ..settings(LEASE_MS) };
    for new in [other, settings(0)] {
        assert_eq!(bench.replica.change_settings(0, 8, &new), Ok(()));
        bench.persist();
        bench.ack_all(2);
        bench.persist();
        assert_eq!(bench.replica.settings(), Some(&new));
    }
}

/// Node 1 as a follower with these entries of node 2, which led term 2. They arrived when its clock
/// showed five seconds.
fn follower(commands: &[Command]) -> Bench {
    let mut state = State::new(&genesis(&[1, 2, 3]));
    state.format = FORMAT_OF_LEASES;
    let disk = Disk::genesis_of(&genesis(&[1, 2, 3]), &state);
    let mut bench = Bench::made(disk, |config| config.format_max = FORMATS.newest);
    show(&mut bench, 5_000 * MS);
    bench.tick();
    let mut said = append(2, (1, 1), commands.len() as u64, 1);
    for (entry, command) in said.entries.iter_mut().zip(commands) {
        entry.data = command.encode();
    }
    bench.take(2, &said).expect("an append is taken");
    bench.persist();
    bench
}

const OTHER: Owner = Owner { term: Term(2), node: NodeId(2), boot: BootId(8) };

fn marked() -> Command {
    Command::Reserve { owner: OTHER, until: Epoch(1_000_000), lease_ms: LEASE_MS }
}

/// Node 1 is elected, and its first reservation is applied.
fn take_over(bench: &mut Bench) {
    bench.elect(&[2, 3]);
    bench.persist();
    bench.ack_all(2);
    bench.persist();
}

#[test]
fn a_new_leader_publishes_no_grant_while_the_lease_of_another_may_run() {
    let mut bench = follower(&[marked()]);
    take_over(&mut bench);
    let granted = |bench: &Bench| bench.shared.published().grant.is_some();
    assert!(!granted(&bench) && bench.status().applied > LogIndex(2), "its range is assigned");
    assert_eq!(bench.replica.lease_wait_ns(), HOLD_NS);
    show(&mut bench, 5_000 * MS + HOLD_NS - 1);
    bench.tick();
    assert!(!granted(&bench));
    show(&mut bench, 5_000 * MS + HOLD_NS);
    bench.tick();
    assert!(granted(&bench) && bench.replica.lease_wait_ns() == 0);
}

#[test]
fn a_new_leader_does_not_wait_for_a_lease_that_was_released() {
    let mut bench = follower(&[marked(), Command::Release { owner: OTHER }]);
    take_over(&mut bench);
    assert!(bench.shared.published().grant.is_some());
    let mut bench = follower(&[marked(), Command::Release { owner: OTHER }, marked()]);
    take_over(&mut bench);
    assert!(bench.shared.published().grant.is_none(), "a later one counts again");
}

#[test]
fn entries_that_were_overwritten_and_a_restart_are_waited_for() {
    let mut bench = follower(&[marked()]);
    // Node 3 leads term 3 and overwrites the entry, which may have been committed elsewhere.
    bench.take(3, &append(3, (1, 1), 1, 1)).expect("an append is taken");
    bench.persist();
    take_over(&mut bench);
    assert!(bench.shared.published().grant.is_none());

    let bench = follower(&[marked()]);
    let mut disk = bench.disk;
    disk.crash();
    let mut bench = Bench::made(disk, |config| config.format_max = FORMATS.newest);
    take_over(&mut bench);
    assert!(bench.shared.published().grant.is_none(), "its clock was not read yet");
    show(&mut bench, 9_000 * MS);
    show(&mut bench, 9_000 * MS + HOLD_NS - 1);
    bench.tick();
    assert!(bench.shared.published().grant.is_none());
    show(&mut bench, 9_000 * MS + HOLD_NS);
    bench.tick();
    assert!(bench.shared.published().grant.is_some());
}

#[test]
fn a_leader_that_waits_for_the_lease_of_another_reports_no_advance() {
    let mut bench = follower(&[marked()]);
    take_over(&mut bench);
    // Its range is above both times, but the other leader may still answer below them.
    for to in [Epoch(1), Epoch(2_000_000)] {
        assert_eq!(bench.replica.plan_advance(to, u64::MAX), Err(AdvanceError::NotServing));
        let advance = bench.replica.advance(bench.now_ns, to, u64::MAX);
        assert_eq!(advance, Err(AdvanceError::NotServing));
    }
    show(&mut bench, 5_000 * MS + HOLD_NS);
    bench.tick();
    let to = Epoch(2_000_000);
    bench.replica.advance(bench.now_ns, to, u64::MAX).expect("it serves");
    bench.drain();
    assert!(bench.reports.contains(&Report::Advanced { to }));
}

/// The machine of a node that waits is suspended, and its system counts that as too long a time.
#[test]
fn a_node_that_waits_counts_no_time_in_which_its_machine_was_suspended() {
    let mut bench = follower(&[marked()]);
    take_over(&mut bench);
    let own_ns = 60_000 * MS;
    for (wait_ns, is_granted) in [(HOLD_NS - 1, false), (HOLD_NS, true)] {
        let wait_ns = 5_000 * MS + wait_ns;
        bench.replica.handle_lease_clocks(LeaseClocks { own_ns, wait_ns });
        bench.tick();
        assert_eq!(bench.shared.published().grant.is_some(), is_granted);
    }
}

/// The machine of a leader was suspended. Its lease is counted by the clock that went on.
#[test]
fn a_leader_counts_the_time_in_which_its_machine_was_suspended() {
    let mut bench = led();
    ask(&mut bench);
    let clocks = |own_ms: u64| LeaseClocks { own_ns: own_ms * MS, wait_ns: 1 };
    bench.replica.handle_lease_clocks(clocks(60_000));
    bench.tick();
    bench.persist();
    bench.ack_all(2);
    let until_ns = (60_000 + LEASE_MS) * MS;
    assert_eq!(lease(&bench), Some(Lease { term: Term(2), until_ns }));
    bench.replica.handle_lease_clocks(clocks(60_030));
    assert_eq!(bench.replica.lease_left_ns(), (LEASE_MS - 30) * MS);
}

#[test]
fn a_leader_whose_clock_may_have_stood_still_gives_its_lease_back_and_takes_none() {
    let mut bench = led();
    ask(&mut bench);
    beat(&mut bench);
    assert!(lease(&bench).is_some() && bench.replica.may_take_leases());
    // Another marked reservation is under way.
    let later_ns = clock_ns(&bench) + 30 * MS;
    show(&mut bench, later_ns);
    bench.tick();
    bench.replica.forbid_leases(bench.now_ns);
    bench.drain();
    assert!(lease(&bench).is_none() && bench.shared.published().grant.is_some());
    bench.persist();
    assert_eq!(marks(&bench), [LEASE_MS, LEASE_MS, 0]);
    for _ in 0..10 {
        ask(&mut bench);
        beat(&mut bench);
    }
    assert_eq!((lease(&bench), marks(&bench).len()), (None, 3));
    let longer = bench.replica.change_settings(bench.now_ns, 7, &settings(LEASE_MS));
    assert_eq!(longer, Ok(()), "the length in effect may stay");
    assert!(!bench.replica.may_take_leases());
}

/// A follower gets a snapshot, which may hide a marked reservation of a leader that nobody names.
#[test]
fn a_snapshot_is_waited_for_with_the_longest_lease_so_far() {
    for (longest_ms, is_waited_for) in [(0, false), (LEASE_MS, true)] {
        let mut bench = follower(&[]);
        let mut state = bench.replica.state().clone();
        state.lease_longest_ms = longest_ms;
        let data = state.encode();
        let voters = [1, 2, 3].map(NodeId).to_vec();
        let configuration = Configuration { voters, ..Configuration::default() };
        let (index, term) = (LogIndex(9), Term(2));
        let snapshot = Snapshot { index, term, configuration, data };
        let sent = RaftMessage { snapshot: Some(snapshot), ..message(MessageKind::Snapshot, 2) };
        show(&mut bench, 7_000 * MS);
        bench.take(2, &sent).expect("a snapshot is taken");
        bench.persist();
        assert_eq!(bench.status().applied, index);
        take_over(&mut bench);
        let is_granted = |bench: &Bench| bench.shared.published().grant.is_some();
        assert_eq!(is_granted(&bench), !is_waited_for, "{longest_ms}");
        show(&mut bench, 7_000 * MS + HOLD_NS - 1);
        bench.tick();
        assert_eq!(is_granted(&bench), !is_waited_for, "{longest_ms}");
        show(&mut bench, 7_000 * MS + HOLD_NS);
        bench.tick();
        assert!(is_granted(&bench));
    }
}

#[test]
fn the_default_guarantee_needs_the_format_of_leases_and_no_lease() {
    let mut bench = Bench::led(&[1, 2, 3]);
    let default = ClusterSettings { guarantee_default: Guarantee::Lease, ..settings(0) };
    let refused = bench.replica.change_settings(0, 7, &default);
    assert!(matches!(refused, Err(SettingsError::Format { .. })), "{refused:?}");
    let seed = Command::Settings { nonce: 3, is_seed: true, settings: settings(0) };
    let mut bench = follower(&[seed]);
    take_over(&mut bench);
    assert_eq!(bench.replica.change_settings(0, 8, &default), Ok(()));
    bench.persist();
    bench.ack_all(2);
    bench.persist();
    assert_eq!(bench.replica.settings(), Some(&default));
}
