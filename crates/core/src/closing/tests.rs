//! What a leader knows of the nodes that have stopped, and when interval mode ends.

use epicepoch_wire::bootstrap::{Genesis, MEMBERS_MAX, Member};
use epicepoch_wire::raft_message::{Configuration, ENTRY_LEN_MAX};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{
    BootId, ClusterId, Epoch, Guarantee, HistoryId, Mode, StoreId, Term, TimestampFormat,
};

use super::*;
use crate::state::{FORMAT_OF_CLOSING, FORMAT_OF_INTERVALS, Outcome, Owner, REMOVED_MAX};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);

fn member(node: NodeId) -> Member {
    let addr = format!("n{node}:1");
    Member { node, store: StoreId(node.0.into()), raft_addr: addr.clone(), client_addr: addr }
}

/// Sets the mode.
fn set(state: &mut State, mode: Mode) -> Outcome {
    let first = || ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        max_n: 100,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode,
    };
    let settings = ClusterSettings { mode, ..state.settings.clone().unwrap_or_else(first) };
    state.apply(Term(1), &Command::Settings { nonce: 1, is_seed: false, settings })
}

/// A cluster of three nodes in interval mode.
fn state() -> State {
    let genesis = Genesis {
        cluster: ClusterId(1),
        history: HistoryId(1),
        members: [ONE, TWO, THREE].map(member).into(),
        floor: Epoch(100),
        removed: vec![],
    };
    let mut state = State { format: FORMAT_OF_CLOSING, ..State::new(&genesis) };
    let owner = Owner { term: Term(1), node: ONE, boot: BootId(1) };
    let reserve = Command::Reserve { owner, until: Epoch(50_000), lease_ms: 0 };
    assert!(matches!(state.apply(Term(1), &reserve), Outcome::Assigned(..)));
    assert_eq!(set(&mut state, Mode::Interval), Outcome::Set);
    assert_eq!((state.mode(), state.mode_changes, state.closing()), (Mode::Interval, 1, None));
    state
}

/// The same, while interval mode closes by change 2.
fn closing() -> State {
    let mut state = state();
    assert_eq!(set(&mut state, Mode::Quorum), Outcome::Set);
    assert_eq!((state.mode(), state.closing()), (Mode::Interval, Some(2)));
    state
}

fn closed(change: u64, given_ns: u64) -> Closed {
    Closed { change, given_ns }
}

fn remove(state: &mut State, node: NodeId) {
    let voters = state.members.keys().copied().filter(|it| *it != node).collect();
    state.reconcile(&Configuration { voters, ..Configuration::default() });
}

#[test]
fn interval_mode_ends_when_every_member_has_stopped_and_the_clock_is_beyond_what_they_gave() {
    let mut state = closing();
    let mut known = Confirmations::default();
    known.record(&state, ONE, closed(2, 70_000));
    known.record(&state, TWO, closed(2, 60_000));
    assert_eq!(known.progress(&state).unwrap().missing, [THREE]);
    assert_eq!(known.end(&state, u64::MAX), None);
    known.record(&state, THREE, closed(2, 0));
    assert_eq!(known.end(&state, 69_999), None, "the ceiling would be ahead of the clock");
    let end = known.end(&state, 70_000).unwrap();
    assert_eq!(Command::decode(&end.encode()), Ok(end.clone()));
    assert_eq!(end.format(), FORMAT_OF_CLOSING);
    assert_eq!(state.apply(Term(1), &end), Outcome::IntervalsEnded(Epoch(70_000)));
    assert_eq!(
        (state.mode(), state.closing(), state.range_end()),
        (Mode::Quorum, None, Epoch(70_000))
    );
    assert_eq!(state.apply(Term(1), &end), Outcome::Stale, "once");
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    // A reservation that was proposed before begins above it, too.
    let owner = Owner { term: Term(1), node: ONE, boot: BootId(1) };
    let reserve = Command::Reserve { owner, until: Epoch(60_000), lease_ms: 0 };
    let Outcome::Assigned(_, range) = state.apply(Term(1), &reserve) else { panic!("no range") };
    assert_eq!(range.low, Epoch(70_000));
    // And there again: interval mode begins above all of that.
    assert_eq!(set(&mut state, Mode::Interval), Outcome::Set);
    assert_eq!((state.mode_changes, state.intervals.as_ref().unwrap().ceiling), (3, range.high));
}

/// The longest command of all. A node rejects an append with a longer entry than this.
#[test]
fn the_end_of_interval_mode_fits_into_an_entry_after_as_many_removals_as_there_may_be() {
    let mut state = closing();
    let all = (1..=REMOVED_MAX as u64).map(NodeId);
    let left = MEMBERS_MAX as u64;
    state.members = all.clone().take(MEMBERS_MAX).map(|node| (node, member(node))).collect();
    state.intervals.as_mut().unwrap().removed = all.clone().filter(|it| it.0 > left).collect();
    let mut known = Confirmations::default();
    for node in all {
        known.record(&state, node, closed(2, u64::MAX - node.0));
    }
    let end = known.end(&state, u64::MAX).unwrap();
    let bytes = end.encode();
    assert!(bytes.len() <= ENTRY_LEN_MAX, "{} bytes", bytes.len());
    assert_eq!(Command::decode(&bytes), Ok(end.clone()));
    assert!(matches!(state.apply(Term(1), &end), Outcome::IntervalsEnded(_)));
}

#[test]
fn a_confirmation_counts_for_its_own_change_only() {
    let mut state = closing();
    let mut known = Confirmations::default();
    for node in [ONE, TWO, THREE] {
        known.record(&state, node, closed(2, 7));
    }
    let early = known.end(&state, 7).unwrap();
    // The operator cancels, and begins again.
    assert_eq!(set(&mut state, Mode::Interval), Outcome::Set);
    assert_eq!((state.closing(), state.mode_changes), (None, 3));
    assert_eq!(known.end(&state, 7), None);
    assert_eq!(state.apply(Term(1), &early), Outcome::Stale);
    assert_eq!(set(&mut state, Mode::Quorum), Outcome::Set);
    assert_eq!(state.closing(), Some(4));
    assert_eq!(state.apply(Term(1), &early), Outcome::Stale);
    assert_eq!(known.progress(&state).unwrap().missing, [ONE, TWO, THREE]);
    known.record(&state, TWO, closed(2, 7));
    assert_eq!(known.progress(&state).unwrap().missing, [ONE, TWO, THREE], "late");
    known.record(&state, TWO, closed(4, 9));
    assert_eq!(known.progress(&state).unwrap().missing, [ONE, THREE]);
}

#[test]
fn other_settings_change_while_interval_mode_closes_and_it_goes_on_closing() {
    let mut state = closing();
    let settings = ClusterSettings { max_n: 7, ..state.settings.clone().unwrap() };
    let other = Command::Settings { nonce: 3, is_seed: false, settings };
    assert_eq!(state.apply(Term(1), &other), Outcome::Set);
    assert_eq!(state.closing(), Some(2));
    let bytes = state.encode();
    assert_eq!(State::decode(&bytes), Ok(state.clone()));
    let settings = ClusterSettings {
        timestamp_format: TimestampFormat::Compact,
        ..state.settings.clone().unwrap()
    };
    let compact = Command::Settings { nonce: 4, is_seed: false, settings };
    assert!(matches!(state.apply(Term(1), &compact), Outcome::Refused(_)));
}

#[test]
fn a_node_that_was_removed_in_interval_mode_holds_the_end_back_until_it_is_stated_to_be_gone() {
    let mut state = state();
    remove(&mut state, THREE);
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    let mut known = Confirmations::default();
    known.record_gone(&state, &[TWO, THREE], 1_000, 50);
    assert_eq!(set(&mut state, Mode::Quorum), Outcome::Set);
    known.record(&state, ONE, closed(2, 7));
    let given_ns = 1_050 + STAMP_AHEAD_NS_MAX;
    let progress = Progress { missing: vec![TWO], removed: vec![], highest_ns: given_ns };
    assert_eq!(known.progress(&state), Some(progress), "node 2 is a member");
    known.record(&state, TWO, closed(2, 8));
    assert_eq!(known.end(&state, given_ns - 1), None);
    let end = known.end(&state, given_ns).unwrap();
    // A leader that does not know the statement does not end it.
    let mut other = Confirmations::default();
    other.record(&state, ONE, closed(2, 7));
    other.record(&state, TWO, closed(2, 8));
    assert_eq!(other.progress(&state).unwrap().removed, [THREE]);
    assert_eq!(other.end(&state, u64::MAX), None);
    // Nor does apply, if a member was removed or added after the end was proposed.
    let mut changed = state.clone();
    changed.members.insert(NodeId(4), member(NodeId(4)));
    assert_eq!(changed.apply(Term(1), &end), Outcome::Stale);
    remove(&mut state, TWO);
    assert_eq!(state.apply(Term(1), &end), Outcome::IntervalsEnded(Epoch(given_ns)));
    assert_eq!(state.intervals, None);
}

#[test]
fn before_format_8_interval_mode_does_not_end_and_then_all_removed_nodes_count() {
    let mut state = State { format: FORMAT_OF_INTERVALS, mode_changes: 0, ..state() };
    remove(&mut state, TWO);
    assert!(state.intervals.as_ref().unwrap().removed.is_empty());
    assert!(matches!(set(&mut state, Mode::Quorum), Outcome::Refused(_)));
    assert_eq!(state.mode_changes, 0);
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    assert_eq!(state.apply(Term(1), &Command::Raise(8)), Outcome::Raised(8));
    assert_eq!(set(&mut state, Mode::Quorum), Outcome::Set);
    let known = Confirmations::default();
    let progress = known.progress(&state).unwrap();
    assert_eq!((progress.missing, progress.removed), (vec![ONE, THREE], vec![TWO]));
}
