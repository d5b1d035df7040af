//! Tests of the floor: every epoch that it must be above, and every reason why there is none.

use epicepoch_wire::raft_message::{Configuration, LogEntry};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{BootId, ClusterId, Guarantee, Mode, StoreId, Term, TimestampFormat};
use proptest::prelude::*;

use super::*;
use crate::durable::{HardState, Record};
use crate::positions::Positions;
use crate::state::{
    FORMAT_OF_CLOSING, FORMAT_OF_LEASES, FORMAT_OF_SETTINGS, MembershipChange, MembershipStep,
    Outcome, Owner, WIDTH_MIN_NS,
};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
/// When the backup was taken.
const TAKEN: u64 = 1_700_000_000 * S;

fn member(node: u64) -> Member {
    let addr = format!("n{node}:1");
    let store = StoreId(u128::from(node) + 100);
    Member { node: NodeId(node), store, raft_addr: addr.clone(), client_addr: addr }
}

fn around(taken_ns: u64) -> Surroundings {
    let name = "epicepoch".to_owned();
    Surroundings { name, taken_ns, reservation_ms: 1_000, clock_offset_max_ms: 500 }
}

fn state(ceiling: u64) -> State {
    let mut state = State::new(&Genesis {
        cluster: ClusterId(5),
        history: HistoryId(6),
        members: vec![member(1), member(2), member(3)],
        floor: Epoch(ceiling),
        removed: vec![],
    });
    state.removed.insert(NodeId(9));
    state
}

#[test]
fn a_founder_waits_for_the_longest_lease_that_the_old_history_can_have() {
    let mut led = State { format: FORMAT_OF_LEASES, ..state(TAKEN + S) };
    let owner = Owner { term: Term(2), node: NodeId(1), boot: BootId(7) };
    for lease_ms in [400, 100] {
        let until = Epoch(TAKEN + 2 * S);
        led.apply(Term(2), &Command::Reserve { owner, until, lease_ms });
    }
    let with_lease = backup(&led, LogIndex(41), around(TAKEN));
    assert_eq!((with_lease.lease_longest_ms, taken().lease_longest_ms), (400, 0));
    assert_eq!(newest(taken(), with_lease.clone()).lease_longest_ms, 400);
    assert_eq!(newest(with_lease.clone(), taken()).lease_longest_ms, 400);
    let mut set = with_lease.clone();
    set.settings = Some(ClusterSettings { lease_ms: 1_000, ..settings(1_000, 500) });
    let damaged = Backup { lease_longest_ms: u64::MAX, ..taken() };
    for (backup, named_ms, longest_ms) in [
        (None, 0, 0),
        (None, 300, 300),
        (Some(&taken()), 0, 0),
        (Some(&taken()), 200, 200),
        (Some(&with_lease), 200, 400),
        (Some(&set), 200, 1_000),
        (Some(&set), LEASE_MS_MAX, 60_000),
        (Some(&damaged), 0, 60_000),
    ] {
        assert_eq!(lease_longest_ms(backup, named_ms), longest_ms);
    }
    assert_eq!(lease_wait_ns(60_000), 75 * S);
}

/// A backup of a healthy cluster: its ceiling is a window ahead of the clock.
fn taken() -> Backup {
    backup(&state(TAKEN + S), LogIndex(40), around(TAKEN))
}

fn settings(reservation_ms: u64, clock_offset_max_ms: u64) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms,
        clock_offset_max_ms,
        max_n: 100,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    }
}

fn grounds(wall_ns: u64, others: &[u64]) -> Grounds {
    let others = others.iter().zip(2..).map(|(wall_ns, node)| WallSample {
        node: NodeId(node),
        wall_ns: *wall_ns,
        took_ns: 0,
        age_ns: 0,
    });
    Grounds {
        by_hand: None,
        own: (NodeId(1), wall_ns),
        others: others.collect(),
        reservation_ns: S,
        bound_ns: 500 * MS,
    }
}

#[test]
fn a_floor_is_above_compact_timestamps_of_a_cluster_that_was_wide_and_ahead_of_its_clocks() {
    // The epoch was an hour ahead when the backup was taken. Then timestamps became compact, and
    // used up every millisecond for ten minutes. The clock of the backup was ahead by the bound.
    let (hour, minutes) = (3600 * S, 600 * S);
    let taken = backup(&state(TAKEN + hour), LogIndex(40), around(TAKEN));
    let now = TAKEN - 500 * MS + minutes;
    let floor = floor(Some(&taken), &grounds(now, &[now, now])).expect("a proof");
    assert!(floor.0 > TAKEN + hour + minutes, "{floor}");
}

#[test]
fn a_floor_is_above_all_that_was_given_between_an_old_backup_and_now() {
    // A year has passed. The last leader's trusted time was ahead of a sample by the whole bound.
    // That sample was ahead by half a bound, because its whole round trip was the way back. The
    // leader had just reserved a window (1 s).
    let now = TAKEN + 365 * 24 * 3600 * S;
    let given = now + 500 * MS + 250 * MS + S;
    let floor = floor(Some(&taken()), &grounds(now, &[now, now])).expect("a proof");
    assert!(floor.0 > given, "{floor}");
    assert_eq!(floor.0, given + CLOCK_MARGIN_NS);
}

#[test]
fn a_floor_is_above_a_ceiling_that_was_ahead_of_the_clock_and_grew_by_the_least_step() {
    let poisoned = TAKEN + 3600 * S;
    let taken = backup(&state(poisoned), LogIndex(40), around(TAKEN));
    let now = TAKEN + 60 * S;
    let floor = floor(Some(&taken), &grounds(now, &[now, now])).expect("a proof");
    assert!(floor.0 >= poisoned + 2_000_000 * WIDTH_MIN_NS);
}

#[test]
fn the_latest_clock_and_the_wider_settings_count() {
    let now = TAKEN + 60 * S;
    let mut wide = taken();
    (wide.reservation_ms, wide.clock_offset_max_ms) = (7_000, 900);
    let got = floor(Some(&wide), &grounds(now, &[now + 300 * MS, now - 100 * MS]));
    assert_eq!(got, Ok(Epoch(now + 300 * MS + 7 * S + 1350 * MS + CLOCK_MARGIN_NS)));
    let mut here = grounds(now, &[]);
    here.reservation_ns = 9 * S;
    assert_eq!(floor(Some(&wide), &here), Ok(Epoch(now + 9 * S + 1350 * MS + CLOCK_MARGIN_NS)));
    // The answers of all nodes are combined: the newest state, and the longest of each setting.
    let mut newer = taken();
    (newer.index, newer.reservation_ms) = (LogIndex(41), 8_000);
    let both = Backup { clock_offset_max_ms: 900, ..newer.clone() };
    assert_eq!(newest(wide.clone(), newer.clone()), both);
    assert_eq!(newest(newer, wide), both);
}

#[test]
fn of_two_backups_that_are_taken_together_the_earlier_time_counts() {
    let newest_of = |one: &Backup, other: &Backup| {
        let got = newest(one.clone(), other.clone());
        assert_eq!(newest(other.clone(), one.clone()), got, "whoever is asked first");
        got
    };
    let ahead = Backup { taken_ns: TAKEN + 3600 * S, ..taken() };
    assert_eq!(newest_of(&taken(), &ahead), taken());
    // The earlier time also counts if the newer backup has the later time: both backups were taken
    // at about the same time.
    let newer = Backup { index: LogIndex(41), ..ahead.clone() };
    assert_eq!(newest_of(&taken(), &newer), Backup { taken_ns: TAKEN, ..newer });
    // From the time `earliest` on, a leader with a right clock can have reserved this ceiling, so
    // the earlier time counts. Before it, none can, so the later time counts.
    let (window, bound) = (S, 500 * MS);
    let earliest = taken().ceiling.0 - window - bound - CLOCK_MARGIN_NS;
    let at = |taken_ns| Backup { taken_ns, ..taken() };
    assert_eq!(newest_of(&at(earliest), &taken()), at(earliest));
    assert_eq!(newest_of(&at(earliest - 1), &taken()), taken());
    // This ceiling is so far ahead that neither time explains it. Then the earlier time counts.
    let far = |taken_ns| Backup { ceiling: Epoch(TAKEN + 24 * 3600 * S), ..at(taken_ns) };
    assert_eq!(newest_of(&far(TAKEN), &far(TAKEN + S)), far(TAKEN));
}

#[test]
fn a_window_or_a_bound_that_was_shortened_counts_for_a_restore_as_long_as_it_was() {
    let set = |reservation_ms, clock_offset_max_ms| {
        let settings = settings(reservation_ms, clock_offset_max_ms);
        Command::Settings { nonce: 1, is_seed: false, settings }
    };
    let mut changed = State { format: FORMAT_OF_SETTINGS, ..state(TAKEN + S) };
    for command in [set(1_000, 500), set(7_000, 900), set(1_000, 500)] {
        assert_eq!(changed.apply(Term(2), &command), Outcome::Set);
    }
    // The end of a range that was reserved with the longer settings, and assigned after they were
    // shortened.
    let asked = TAKEN + 900 * MS + 450 * MS + 7 * S;
    let longest = |backup: &Backup| (backup.reservation_ms, backup.clock_offset_max_ms);
    let of_a_running_node = backup(&changed, LogIndex(43), around(TAKEN));
    assert_eq!(longest(&of_a_running_node), (7_000, 900));
    let floor = floor(Some(&of_a_running_node), &grounds(TAKEN, &[])).expect("a proof");
    assert!(floor.0 > asked, "{floor}");
    // For a directory, the settings in its record and those in its log count in the same way.
    let mut restored = Restored {
        hard_state: HardState { term: Term(3), vote: NodeId(0), commit: LogIndex(40) },
        record: Record {
            index: LogIndex(40),
            term: Term(2),
            configuration: Configuration::default(),
            data: changed.encode(),
        },
        entries: vec![],
        positions: Positions::default(),
    };
    let got = backup_of_directory(&restored, around(TAKEN)).expect("a state");
    assert_eq!(longest(&got), (7_000, 900));
    let entries = [set(8_000, 500), set(1_000, 950), set(1_000, 500)].map(|it| it.encode());
    let entries = entries.into_iter().zip(41..);
    let entries = entries.map(|(data, index)| entry(index, EntryKind::Normal, data, vec![]));
    restored.entries = entries.collect();
    let got = backup_of_directory(&restored, around(TAKEN)).expect("a state");
    assert_eq!(longest(&got), (8_000, 950));
    // An operator who knows of longer settings can name them.
    let known = Surroundings { reservation_ms: 9_000, ..around(TAKEN) };
    let got = backup_of_directory(&restored, known).expect("a state");
    assert_eq!(longest(&got), (9_000, 950));
}

#[test]
fn an_answer_that_was_under_way_and_has_waited_is_taken_for_the_latest_that_it_can_be() {
    let now = TAKEN + 60 * S;
    let mut grounds = grounds(now, &[now - 500 * MS]);
    (grounds.others[0].took_ns, grounds.others[0].age_ns) = (100 * MS, 450 * MS);
    let late = now + 50 * MS;
    assert_eq!(latest_clock(&grounds), Ok((NodeId(2), late)));
    // The round trip of the answer may take as long as the bound, and no longer.
    grounds.others[0].took_ns = 500 * MS;
    assert_eq!(latest_clock(&grounds), Ok((NodeId(2), now + 450 * MS)));
    grounds.others[0].took_ns = 501 * MS;
    let slow = FloorError::SlowAnswer { node: NodeId(2), took_ns: 501 * MS, bound_ns: 500 * MS };
    assert_eq!(floor(Some(&taken()), &grounds), Err(slow.clone()));
    assert!(slow.is_passing());
}

#[test]
fn a_clock_before_the_backup_proves_nothing() {
    let refused = |now: u64| floor(Some(&taken()), &grounds(now, &[now, now]));
    let error = refused(TAKEN - 3600 * S).expect_err("an hour before");
    assert!(matches!(error, FloorError::BeforeBackup { behind_ns, .. } if behind_ns == 3600 * S));
    assert!(!error.is_passing());
    assert!(refused(TAKEN - 501 * MS).is_err());
    // Two right clocks may differ by the bound. Then the time of the backup counts, because it is
    // later.
    assert_eq!(refused(TAKEN - 500 * MS), refused(TAKEN));
}

#[test]
fn clocks_that_disagree_prove_nothing_whichever_is_wrong() {
    let now = TAKEN + 60 * S;
    for others in [[now, now + 501 * MS], [now - 501 * MS, now], [now - 260 * MS, now + 260 * MS]] {
        let got = floor(Some(&taken()), &grounds(now, &others));
        assert!(matches!(got, Err(FloorError::ClocksDisagree { .. })), "{got:?}");
    }
    assert!(floor(Some(&taken()), &grounds(now, &[now + 500 * MS, now])).is_ok());
}

#[test]
fn an_epoch_given_by_hand_only_raises_the_floor_and_has_a_bound() {
    let now = TAKEN + 60 * S;
    let by_hand = |epoch: u64| Grounds { by_hand: Some(Epoch(epoch)), ..grounds(now, &[now]) };
    let proved = floor(Some(&taken()), &grounds(now, &[now])).expect("a proof");
    assert_eq!(floor(Some(&taken()), &by_hand(5)), Ok(proved));
    let higher = proved.0 + 3600 * S;
    assert_eq!(floor(Some(&taken()), &by_hand(higher)), Ok(Epoch(higher)));
    // Without a backup, for example after another oracle, only the floor by hand counts.
    assert_eq!(floor(None, &by_hand(higher)), Ok(Epoch(higher)));
    assert_eq!(
        floor(None, &by_hand(now + BY_HAND_AHEAD_MAX_NS)).map(|floor| floor.0 > now),
        Ok(true)
    );
    assert_eq!(BY_HAND_AHEAD_MAX_NS, 8_784 * 3_600 * S, "366 days");
    for backup in [None, Some(&taken())] {
        let error = floor(backup, &by_hand(now + BY_HAND_AHEAD_MAX_NS + 1)).expect_err("a slip");
        assert!(matches!(error, FloorError::TooFarAhead { .. }), "{error}");
    }
}

#[test]
fn at_the_end_of_time_nothing_is_proved() {
    let last = backup(&state(u64::MAX - 5), LogIndex(40), around(TAKEN));
    assert_eq!(floor(Some(&last), &grounds(TAKEN, &[])), Err(FloorError::Exhausted));
    // With the highest possible floor, one epoch is left above it.
    // The bound of clocks, and the error of a sample.
    let pace_ns = 750 * MS;
    let below = |ns| {
        let ceiling = u64::MAX - CEILING_MARGIN_NS - pace_ns - ns;
        backup(&state(ceiling), LogIndex(40), around(TAKEN))
    };
    assert_eq!(floor(Some(&below(1)), &grounds(TAKEN, &[])), Ok(Epoch(u64::MAX - 1)));
    assert_eq!(floor(Some(&below(0)), &grounds(TAKEN, &[])), Err(FloorError::Exhausted));
}

#[test]
fn a_new_history_keeps_the_cluster_is_higher_and_admits_no_removed_id() {
    let members = vec![member(1), member(4)];
    let begin = |wall_ns, drawn| {
        genesis(&taken(), members.clone(), Epoch(8), wall_ns, drawn).expect("a beginning")
    };
    let first = begin(TAKEN + 5, 3);
    assert_eq!((first.cluster, first.floor), (ClusterId(5), Epoch(8)));
    assert_eq!(first.history, HistoryId(6 + 5 + 4));
    assert!(begin(TAKEN + S, 0).history > first.history, "the later restore of one backup");
    assert!(begin(TAKEN - S, HISTORY_STEP_MAX).history > HistoryId(6), "a clock just behind");
    // Id 9 stays removed: the state of the new history refuses it, too.
    let state = State::new(&first);
    assert_eq!((state.ceiling, state.removed.contains(&NodeId(9))), (Epoch(8), true));
    let removed = genesis(&taken(), vec![member(1), member(9)], Epoch(8), TAKEN, 0);
    assert_eq!(removed, Err(FloorError::RemovedId(NodeId(9))));
    // Both first members may be removed later, and must be remembered, too.
    let mut worn = taken();
    worn.removed = (100..100 + REMOVED_MAX as u64 - 2).map(NodeId).collect();
    assert!(genesis(&worn, members.clone(), Epoch(8), TAKEN, 0).is_ok());
    worn.removed.push(NodeId(99));
    let (removed, count) = (REMOVED_MAX - 1, members.len());
    let refused = Err(FloorError::TooManyRemoved { removed, members: count });
    assert_eq!(genesis(&worn, members.clone(), Epoch(8), TAKEN, 0), refused);
    let mut last = taken();
    last.history = HistoryId(u64::MAX);
    assert_eq!(genesis(&last, members, Epoch(8), TAKEN, 0), Err(FloorError::Exhausted));
}

fn entry(index: u64, kind: EntryKind, data: Vec<u8>, context: Vec<u8>) -> LogEntry {
    LogEntry { kind, term: Term(3), index: LogIndex(index), data, context }
}

fn of(voters: &[u64]) -> Configuration {
    let voters = voters.iter().map(|node| NodeId(*node)).collect();
    Configuration { voters, ..Configuration::default() }
}

fn removal(nodes: &[u64]) -> Vec<u8> {
    let steps = nodes.iter().map(|node| MembershipStep::Remove(NodeId(*node))).collect();
    MembershipChange { nonce: 1, steps }.encode()
}

/// Found by a seed: the removal of the only voter had been requested, committed and refused. The
/// backup then listed the voter as removed, so no history could begin with its id.
#[test]
fn a_change_that_was_committed_and_refused_is_in_no_backup() {
    let mut alone = state(TAKEN);
    alone.members.retain(|node, _| *node == NodeId(1));
    let mut restored = Restored {
        hard_state: HardState { term: Term(3), vote: NodeId(0), commit: LogIndex(42) },
        record: Record {
            index: LogIndex(40),
            term: Term(2),
            configuration: of(&[1]),
            data: alone.encode(),
        },
        entries: vec![
            entry(41, EntryKind::Membership, vec![], removal(&[1])),
            entry(42, EntryKind::Membership, vec![], removal(&[2])),
        ],
        positions: Positions::default(),
    };
    let got = backup_of_directory(&restored, around(TAKEN)).expect("a state");
    assert_eq!((got.removed, got.index), (vec![NodeId(9)], LogIndex(42)));
    assert_eq!(got.members, [member(1)]);
    // A change of several members has begun. Other nodes may have removed the voters already; the
    // learner stays.
    let mut with_learner = state(TAKEN);
    with_learner.members.insert(NodeId(4), member(4));
    let learners = vec![NodeId(4)];
    restored.record.configuration = Configuration { learners, ..of(&[1, 2, 3]) };
    restored.record.data = with_learner.encode();
    restored.entries = vec![
        entry(41, EntryKind::Membership, vec![], removal(&[2, 3])),
        // This change is refused: the configuration is still joint because of the change before.
        entry(42, EntryKind::Membership, vec![], removal(&[1])),
    ];
    let got = backup_of_directory(&restored, around(TAKEN)).expect("a state");
    assert_eq!(got.removed, [NodeId(2), NodeId(3), NodeId(9)]);
    assert_eq!(got.members, [member(1), member(4)]);
}

#[test]
fn a_stopped_nodes_log_counts_committed_or_not_and_removals_once_committed() {
    let owner = Owner { term: Term(3), node: NodeId(1), boot: BootId(1) };
    let reserve = |until| Command::Reserve { owner, until: Epoch(until), lease_ms: 0 }.encode();
    let change = |node| removal(&[node]);
    let mut restored = Restored {
        hard_state: HardState { term: Term(3), vote: NodeId(0), commit: LogIndex(42) },
        record: Record {
            index: LogIndex(40),
            term: Term(2),
            configuration: of(&[1, 2, 3]),
            data: state(TAKEN).encode(),
        },
        entries: vec![
            // This entry is at the record's index, so the record contains it.
            entry(40, EntryKind::Normal, reserve(TAKEN - S), vec![]),
            entry(41, EntryKind::Normal, reserve(TAKEN + S), vec![]),
            entry(42, EntryKind::Membership, vec![], change(2)),
            entry(43, EntryKind::Normal, reserve(TAKEN + 2 * S), vec![]),
            entry(44, EntryKind::Membership, vec![], change(3)),
            // With an empty entry, a leader begins its term.
            entry(45, EntryKind::Normal, vec![], vec![]),
        ],
        positions: Positions::default(),
    };
    let got = backup_of_directory(&restored, around(TAKEN)).expect("a state");
    assert_eq!((got.ceiling, got.index), (Epoch(TAKEN + 2 * S), LogIndex(45)));
    assert_eq!(got.removed, [NodeId(2), NodeId(9)]);
    let members: Vec<_> = got.members.iter().map(|member| member.node.0).collect();
    assert_eq!(members, [1, 3]);
    restored.entries.truncate(1);
    restored.hard_state.commit = LogIndex(40);
    let got = backup_of_directory(&restored, around(TAKEN)).expect("a state");
    assert_eq!((got.ceiling, got.index), (Epoch(TAKEN), LogIndex(40)), "nothing is taken in twice");
}

/// A backup of such a directory would describe a state that never existed, and might have a higher
/// index than the true one.
#[test]
fn a_directory_of_which_something_cannot_be_read_gives_no_backup() {
    let sound = Restored {
        hard_state: HardState { term: Term(3), vote: NodeId(0), commit: LogIndex(41) },
        record: Record {
            index: LogIndex(40),
            term: Term(2),
            configuration: of(&[1, 2, 3]),
            data: state(TAKEN).encode(),
        },
        entries: vec![entry(41, EntryKind::Membership, vec![], removal(&[3]))],
        positions: Positions::default(),
    };
    assert!(backup_of_directory(&sound, around(TAKEN)).is_ok());
    let unreadable = vec![0xee; 9];
    let mut record = sound.clone();
    record.record.data = unreadable.clone();
    let mut change = sound.clone();
    change.entries[0].context = unreadable.clone();
    let normal = |index| entry(index, EntryKind::Normal, unreadable.clone(), vec![]);
    let committed = Restored { entries: vec![normal(41)], ..sound.clone() };
    let mut asked_for = sound;
    asked_for.entries.push(normal(42));
    for restored in [record, change, committed, asked_for] {
        assert!(backup_of_directory(&restored, around(TAKEN)).is_err(), "{restored:?}");
    }
}

/// S26: while interval mode closes, the settings name quorum mode already.
#[test]
fn a_directory_whose_log_leaves_interval_mode_is_one_of_interval_mode() {
    let set = |mode| Command::Settings {
        nonce: 1,
        is_seed: false,
        settings: ClusterSettings { mode, ..settings(1_000, 500) },
    };
    let mut led = State { format: FORMAT_OF_CLOSING, ..state(TAKEN) };
    assert_eq!(led.apply(Term(2), &set(Mode::Quorum)), Outcome::Set);
    let mut closing = led.clone();
    for mode in [Mode::Interval, Mode::Quorum] {
        assert_eq!(closing.apply(Term(2), &set(mode)), Outcome::Set);
    }
    let change = closing.closing().unwrap();
    let stopped = [1, 2, 3].map(NodeId).into();
    let end = Command::EndIntervals { change, highest_ns: TAKEN, stopped };
    let mode = |state: &State, commands: &[&Command]| {
        let hard_state = HardState { term: Term(3), vote: NodeId(0), commit: LogIndex(40) };
        let configuration = of(&[1, 2, 3]);
        let data = state.encode();
        let record = Record { index: LogIndex(40), term: Term(2), configuration, data };
        let entries = (41..).zip(commands);
        let entries = entries.map(|(at, it)| entry(at, EntryKind::Normal, it.encode(), vec![]));
        let (entries, positions) = (entries.collect(), Positions::default());
        let restored = Restored { hard_state, record, entries, positions };
        backup_of_directory(&restored, around(TAKEN)).unwrap().settings.unwrap().mode
    };
    assert_eq!(mode(&led, &[]), Mode::Quorum);
    assert_eq!(mode(&led, &[&set(Mode::Interval)]), Mode::Interval);
    assert_eq!(mode(&closing, &[]), Mode::Interval);
    assert_eq!(mode(&closing, &[&end]), Mode::Interval, "it may never be committed");
    assert!(matches!(closing.apply(Term(2), &end), Outcome::IntervalsEnded(_)));
    assert_eq!(mode(&closing, &[]), Mode::Quorum);
}

proptest! {
    /// The old history may do anything after its backup that the assumptions allow. The backup
    /// combines the answers of nodes with different settings, and each of these nodes may lead.
    #[test]
    fn no_epoch_of_an_old_history_reaches_the_floor(
        lead in 0..7200 * S,
        steps in prop::collection::vec((0..600 * S, 0..2_usize, 0..=2_u64), 0..40),
        settings in prop::array::uniform2((200..5_000_u64, 1..9_000_u64)),
        quiet in prop_oneof![Just(0), 0..86_400 * S],
        offs in prop::array::uniform3(-250 * MS as i64..250 * MS as i64),
    ) {
        let mut state = state(TAKEN + lead);
        let said = settings.map(|(reservation_ms, clock_offset_max_ms)| {
            let around = Surroundings { reservation_ms, clock_offset_max_ms, ..around(TAKEN) };
            backup(&state, LogIndex(40), around)
        });
        let [one, other] = said;
        let taken = newest(one, other);
        let mut now = TAKEN;
        for (term, (passed, leader, off)) in steps.iter().enumerate() {
            now += passed;
            let (window_ms, bound_ms) = settings[*leader];
            let term = Term(term as u64 + 4);
            let owner = Owner { term, node: NodeId(1), boot: BootId(1) };
            // Trusted time is within the bound of a sample, and the sample is within half a bound
            // of a right clock. So trusted time is behind the right clock by `off_max`, exact, or
            // ahead by as much. The right clock is a second ahead (`S`): it had not applied a leap
            // second yet.
            let off_max = 3 * bound_ms * MS / 2;
            let trusted = now + S + off * off_max - off_max;
            let until = Epoch(trusted + window_ms * MS);
            state.apply(term, &Command::Reserve { owner, until, lease_ms: 0 });
        }
        now += quiet;
        // The latest clock is not behind a right one.
        let latest = offs.iter().max().expect("three");
        let walls = offs.map(|off| now.saturating_add_signed(off - latest));
        let floor = floor(Some(&taken), &grounds(walls[0], &walls[1..])).expect("a proof");
        prop_assert!(floor >= state.ceiling, "{floor} and {}", state.ceiling);
    }
}
