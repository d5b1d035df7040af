//! The way back from interval mode (S26): the nodes stop and say so, and the leader ends interval
//! mode above what they have given.

use epicepoch_core::admin::{AdminCommands, Answered, Command as Order};
use epicepoch_core::replica::{HandOver, Report, SettingsError};
use epicepoch_core::state::{
    Command, FORMAT_OF_CLOSING, FORMAT_OF_INTERVALS, MembershipChange, MembershipStep,
};
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::voter_status::{Closed, VoterStatus};
use epicepoch_wire::{Epoch, Guarantee, Mode, NodeId, TimestampFormat};

use crate::support::ELECTION_TICKS;
use crate::support::bench::{Bench, START_NS, genesis, message};
use crate::support::disk::Disk;

fn settings(mode: Mode) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 2_000,
        clock_offset_max_ms: 500,
        max_n: 65_536,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode,
    }
}

/// Ticks in which the others answer, and say this of themselves.
fn beats(bench: &mut Bench, count: usize, said: &[(u64, Option<Closed>)]) {
    for _ in 0..count {
        beat(bench, said);
        bench.ack_all(2);
    }
}

/// A tick in which the others answer, and acknowledge nothing.
fn beat(bench: &mut Bench, said: &[(u64, Option<Closed>)]) {
    bench.tick();
    bench.persist();
    for (node, closed) in said {
        let status = VoterStatus {
            is_fit: true,
            preference: 0,
            zone: None,
            slowest_write_ms: Some(0),
            waits_for_leases: false,
            closed: *closed,
        };
        let term = bench.status().term.0;
        let context = status.encode();
        let beat = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
        bench.take(*node, &beat).expect("an answer is taken");
    }
}

const SILENT: [(u64, Option<Closed>); 2] = [(2, None), (3, None)];

fn change(bench: &mut Bench, nonce: u64, mode: Mode) -> Result<(), SettingsError> {
    let asked = bench.replica.change_settings(bench.now_ns, nonce, &settings(mode));
    bench.drain();
    bench.ack_all(2);
    asked
}

/// Node 1 as the leader of three nodes in interval mode.
fn in_intervals(format: u32) -> Bench {
    let disk = Disk::genesis(&genesis(&[1, 2, 3]));
    let mut bench = Bench::made(disk, |config| config.format_max = format);
    bench.replica.seed_settings(settings(Mode::Quorum));
    bench.elect(&[2, 3]);
    bench.persist();
    bench.report_formats(&[2, 3], format);
    beats(&mut bench, 12 * ELECTION_TICKS, &SILENT);
    assert_eq!(bench.replica.state().format, format);
    assert_eq!(change(&mut bench, 1, Mode::Interval), Ok(()));
    assert!(bench.shared.published().opening.is_some());
    bench
}

/// The same, told to go back.
fn closing() -> Bench {
    let mut bench = in_intervals(FORMAT_OF_CLOSING);
    assert_eq!(change(&mut bench, 2, Mode::Quorum), Ok(()));
    bench
}

fn closed(change: u64, given_ns: u64) -> Closed {
    Closed { change, given_ns }
}

#[test]
fn quorum_mode_begins_when_all_have_stopped_and_above_what_they_gave() {
    let mut bench = closing();
    let published = bench.shared.published();
    assert_eq!(
        (published.mode, published.opening, published.closing),
        (Mode::Interval, None, Some(2))
    );
    assert_eq!((published.grant, bench.replica.closing_due()), (None, Some(2)));
    let given_ns = START_NS + bench.now_ns;
    // A majority is not enough, and this node is one of those that must stop.
    let two = (2, Some(closed(2, given_ns)));
    beats(&mut bench, 2 * ELECTION_TICKS, &[two, (3, None)]);
    bench.replica.handle_intervals_closed(closed(2, given_ns));
    assert_eq!(bench.replica.closing_due(), None);
    beats(&mut bench, 2 * ELECTION_TICKS, &[two, (3, Some(closed(1, 0)))]);
    let progress = bench.replica.closing_progress().expect("it closes");
    assert_eq!((progress.missing, progress.highest_ns), (vec![NodeId(3)], given_ns));
    assert_eq!(bench.shared.published().mode, Mode::Interval);
    // The clock of node 3 was half a second ahead.
    let ahead_ns = START_NS + bench.now_ns + 500_000_000;
    let three = (3, Some(closed(2, ahead_ns)));
    while START_NS + bench.now_ns < ahead_ns {
        assert_eq!(bench.shared.published().mode, Mode::Interval, "the clock is not there yet");
        assert_eq!(bench.shared.published().grant, None);
        beats(&mut bench, 1, &[two, three]);
    }
    beats(&mut bench, 2 * ELECTION_TICKS, &[two, three]);
    let published = bench.shared.published();
    assert_eq!((published.mode, published.opening, published.closing), (Mode::Quorum, None, None));
    let grant = published.grant.expect("the leader has reserved");
    assert!(grant.range.low >= Epoch(ahead_ns), "{grant:?}");
    let is_end = |it: &&Report| matches!(it, Report::IntervalsEnded { .. });
    assert_eq!(bench.reports.iter().filter(is_end).count(), 1);
    // And there again.
    assert_eq!(change(&mut bench, 3, Mode::Interval), Ok(()));
    let opening = bench.shared.published().opening.expect("interval mode");
    assert_eq!(opening.change, 3);
    assert!(opening.ceiling >= grant.range.high);
}

#[test]
fn a_change_back_may_be_cancelled_and_is_asked_anew() {
    let mut bench = closing();
    bench.replica.handle_intervals_closed(closed(2, 7));
    let said = |of: u64| [(2, Some(closed(of, 7))), (3, Some(closed(of, 7)))];
    assert_eq!(change(&mut bench, 3, Mode::Interval), Ok(()));
    let opening = bench.shared.published().opening.expect("interval mode goes on");
    assert_eq!((opening.change, bench.replica.closing_due()), (3, None));
    beats(&mut bench, 2 * ELECTION_TICKS, &said(2));
    assert_eq!(change(&mut bench, 4, Mode::Quorum), Ok(()));
    assert_eq!(bench.replica.closing_due(), Some(4));
    beats(&mut bench, 2 * ELECTION_TICKS, &said(2));
    let progress = bench.replica.closing_progress().expect("it closes");
    assert_eq!(progress.missing, [1, 2, 3].map(NodeId));
    bench.replica.handle_intervals_closed(closed(4, 7));
    beats(&mut bench, 2 * ELECTION_TICKS, &said(4));
    assert_eq!(bench.shared.published().mode, Mode::Quorum);
}

#[test]
fn a_follower_says_that_it_has_stopped_once_it_is_durable() {
    let mut bench = closing();
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a leader");
    bench.persist();
    let said = |bench: &mut Bench| {
        let term = bench.status().term.0;
        bench.sent();
        bench.take(2, &message(MessageKind::Heartbeat, term)).expect("the leader");
        bench.persist();
        let sent = bench.sent();
        let answer = sent.iter().find(|it| it.message.kind == MessageKind::HeartbeatResponse);
        let context = &answer.expect("an answer").message.context;
        VoterStatus::decode(context).expect("a status").closed
    };
    assert_eq!(said(&mut bench), None);
    bench.replica.handle_intervals_closed(closed(2, 9));
    assert_eq!(said(&mut bench), Some(closed(2, 9)));
}

#[test]
fn before_its_format_interval_mode_does_not_end_and_only_removed_nodes_can_be_gone() {
    let mut bench = in_intervals(FORMAT_OF_INTERVALS);
    let format = FORMAT_OF_INTERVALS;
    let refused = Err(SettingsError::FormatOfClosing { format });
    assert_eq!(change(&mut bench, 2, Mode::Quorum), refused);
    let bench = closing();
    let refused = Err(SettingsError::NotRemoved { node: NodeId(3) });
    let (to_quorum, to_interval) = (settings(Mode::Quorum), settings(Mode::Interval));
    assert_eq!(bench.replica.check_gone(&[NodeId(3)], &to_quorum), refused);
    let refused = Err(SettingsError::StoppedWithoutChange);
    assert_eq!(bench.replica.check_gone(&[NodeId(3)], &to_interval), refused);
    assert_eq!(bench.replica.check_gone(&[], &to_quorum), Ok(()));
    assert_eq!(bench.replica.check_gone(&[], &to_interval), Ok(()));
}

/// A refused command records no statement: its operator was told that nothing was done.
#[test]
fn the_statement_of_a_refused_command_does_not_count() {
    let mut bench = closing();
    let removal = MembershipChange { nonce: 5, steps: vec![MembershipStep::Remove(NodeId(3))] };
    bench.replica.propose_change(bench.now_ns, &removal).expect("it is proposed");
    bench.drain();
    bench.ack_all(2);
    let removed = |bench: &Bench| bench.replica.closing_progress().expect("it closes").removed;
    assert_eq!(removed(&bench), [NodeId(3)]);
    let mut commands = AdminCommands::default();
    let mut set = |bench: &mut Bench, number: u64, gone: Vec<NodeId>| {
        let changes = vec![(SettingName::MaxN, (number + 70).to_string())];
        let order = Order::Set { changes, is_forced: false, gone };
        let (now_ns, replica) = (bench.now_ns, &mut bench.replica);
        commands.handle_command(now_ns, number, order, number, Epoch(0), replica);
        bench.drain();
        commands.poll_answer(now_ns, &bench.replica).map(|Answered { reply, answer, .. }| {
            assert_eq!(reply, number);
            answer.expect_err("it is refused")
        })
    };
    assert_eq!(set(&mut bench, 1, vec![]), None, "it is under way");
    assert_eq!(set(&mut bench, 2, vec![NodeId(3)]), Some(SettingsError::Busy.into()));
    assert_eq!(removed(&bench), [NodeId(3)]);
    bench.ack_all(2);
    assert_eq!(set(&mut bench, 3, vec![NodeId(3)]), None, "it is under way");
    assert_eq!(removed(&bench), []);
}

/// The end is in the log when a handover begins, and is applied while the leader gives back what it
/// has reserved in interval mode.
#[test]
fn a_handover_over_the_end_of_interval_mode_grants_nothing_from_before_it() {
    for is_stopped in [false, true] {
        let mut bench = closing();
        let given_ns = START_NS + bench.now_ns;
        bench.replica.handle_intervals_closed(closed(2, given_ns));
        let said = [2, 3].map(|node| (node, Some(closed(2, given_ns))));
        let ends = |bench: &Bench| {
            let mut data = bench.durable().entries.iter().map(|entry| Command::decode(&entry.data));
            data.any(|command| matches!(command, Ok(Command::EndIntervals { .. })))
        };
        for _ in 0..4 * ELECTION_TICKS {
            if !ends(&bench) {
                beat(&mut bench, &said);
            }
        }
        assert!(ends(&bench), "the end is proposed");
        bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked);
        bench.drain();
        assert!(bench.replica.is_handing_over());
        if is_stopped {
            bench.replica.handle_allocator_stopped(bench.now_ns, Some(Epoch(7)));
            bench.drain();
        }
        assert_eq!(
            bench.shared.published().mode,
            Mode::Interval,
            "no node has applied the end yet"
        );
        bench.ack_all(2);
        let published = bench.shared.published();
        assert_eq!((published.mode, published.grant), (Mode::Quorum, None), "{is_stopped}");
        // The successor does not come, and the leader answers again.
        for _ in 0..4 * ELECTION_TICKS {
            beats(&mut bench, 1, &said);
            let grant = bench.shared.published().grant;
            assert!(grant.is_none_or(|it| it.range.low >= Epoch(given_ns)), "{grant:?}");
        }
        assert!(bench.shared.published().grant.is_some(), "{is_stopped}");
    }
}
