//! The replicated state: named cases, and its arithmetic near the last epoch.

use epicepoch_wire::{BootId, Guarantee, Mode, TimestampFormat};
use proptest::prelude::*;

use super::*;

fn member(node: u64, store: u128) -> Member {
    let addr = format!("n{node}:1");
    Member { node: NodeId(node), store: StoreId(store), raft_addr: addr.clone(), client_addr: addr }
}

fn state() -> State {
    let members = vec![member(1, 11), member(2, 12), member(3, 13)];
    State::new(&Genesis {
        cluster: ClusterId(5),
        history: HistoryId(6),
        members,
        floor: Epoch(0),
        removed: vec![],
    })
}

fn reserve(term: u64, node: u64, until: u64) -> Command {
    let owner = Owner { term: Term(term), node: NodeId(node), boot: BootId(node) };
    Command::Reserve { owner, until: Epoch(until), lease_ms: 0 }
}

fn assigned(outcome: &Outcome) -> (u64, u64) {
    match outcome {
        Outcome::Assigned(_, range) => (range.low.0, range.high.0),
        other => panic!("{other:?}"),
    }
}

/// The next range begins at the end of the last one (S5, S18), so a state with a wrong end is not
/// read.
fn settings() -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        max_n: 100,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    }
}

#[test]
fn a_state_whose_last_range_ends_before_it_begins_or_above_the_ceiling_is_refused() {
    let mut state = state();
    assigned(&state.apply(Term(1), &reserve(1, 1, 5_000)));
    let with = |low: u64, high: u64| {
        let owner = state.owner.map(|(owner, _)| owner).unwrap();
        let range = EpochRange { low: Epoch(low), high: Epoch(high) };
        State::decode(&State { owner: Some((owner, range)), ..state.clone() }.encode())
    };
    let ceiling = state.ceiling.0;
    for (low, high) in [(0, ceiling), (0, 1), (ceiling, ceiling)] {
        assert!(with(low, high).is_ok(), "{low} to {high}");
    }
    for (low, high) in [(2, 1), (0, ceiling + 1), (ceiling + 1, ceiling + 1)] {
        assert!(with(low, high).is_err(), "{low} to {high}");
    }
}

/// Applies commands that no leader proposes. The state must refuse or ignore them.
#[test]
fn a_format_rises_by_one_and_settings_need_room_and_sense() {
    let mut state = state();
    let format = state.format;
    for to in [0, format, format + 2] {
        assert_eq!(state.apply(Term(1), &Command::Raise(to)), Outcome::Stale);
    }
    let set = |max_n: u64| Command::Settings {
        is_seed: false,
        nonce: 1,
        settings: ClusterSettings {
            epoch_interval_ms: 100,
            reservation_ms: 1_000,
            clock_offset_max_ms: 500,
            max_n,
            leader_zones: vec![],
            lease_ms: 0,
            guarantee_default: Guarantee::Quorum,
            timestamp_format: TimestampFormat::Wide,
            mode: Mode::Quorum,
        },
    };
    assert!(matches!(state.apply(Term(1), &set(10)), Outcome::Refused(_)), "no room yet");
    while state.format < FORMAT_OF_SETTINGS {
        let to = state.format + 1;
        assert_eq!(state.apply(Term(1), &Command::Raise(to)), Outcome::Raised(to));
    }
    assert!(matches!(state.apply(Term(1), &set(0)), Outcome::Refused(_)), "not what it may be");
    assert_eq!(state.settings, None);
    assert_eq!(state.apply(Term(1), &set(10)), Outcome::Set);
}

#[test]
fn two_equal_proposals_never_own_the_same_range() {
    let mut state = state();
    let (a, b) = (reserve(1, 1, 5000), reserve(1, 1, 5000));
    assert_eq!(assigned(&state.apply(Term(1), &a)), (0, 5000));
    assert_eq!(assigned(&state.apply(Term(1), &b)), (5000, 5000 + WIDTH_MIN_NS));
}

#[test]
fn a_proposal_of_another_term_owns_nothing() {
    let mut state = state();
    let before = state.clone();
    assert_eq!(state.apply(Term(2), &reserve(1, 1, 5000)), Outcome::Stale);
    assert_eq!(state, before);
}

#[test]
fn a_clock_set_back_still_gets_a_range_above_the_ceiling() {
    let mut state = state();
    state.apply(Term(1), &reserve(1, 1, 1_000_000));
    let (low, high) = assigned(&state.apply(Term(2), &reserve(2, 2, 10)));
    assert_eq!((low, high), (1_000_000, 1_000_000 + WIDTH_MIN_NS));
}

#[test]
fn at_the_end_of_time_nothing_is_assigned() {
    let mut state = state();
    state.apply(Term(1), &reserve(1, 1, u64::MAX));
    assert_eq!(state.apply(Term(1), &reserve(1, 1, u64::MAX)), Outcome::Exhausted);
}

#[test]
fn a_removed_id_and_a_known_store_are_never_admitted_again() {
    let mut state = state();
    let change = |step| MembershipChange { nonce: 1, steps: vec![step] };
    let voters = |ids: &[u64]| Configuration {
        voters: ids.iter().map(|id| NodeId(*id)).collect(),
        ..Configuration::default()
    };
    let remove = change(MembershipStep::Remove(NodeId(3)));
    assert_eq!(state.check_change(&remove), Ok(()));
    state.apply_change(&remove, &voters(&[1, 2]));
    assert!(state.check_change(&remove).is_err());
    for refused in [member(3, 99), member(2, 99), member(4, 11), member(0, 99)] {
        let add = change(MembershipStep::AddLearner(refused));
        assert!(state.check_change(&add).is_err());
    }
    let add = change(MembershipStep::AddLearner(member(4, 14)));
    assert_eq!(state.check_change(&add), Ok(()));
    let learning = Configuration { learners: vec![NodeId(4)], ..voters(&[1, 2]) };
    state.apply_change(&add, &learning);
    assert_eq!(state.store_of(NodeId(4)), StoreId(14));
    assert_eq!(State::decode(&state.encode()), Ok(state));
}

#[test]
fn an_outgoing_voter_stays_bound_until_the_joint_configuration_is_left() {
    let mut state = state();
    let joint = Configuration {
        voters: vec![NodeId(1), NodeId(2)],
        voters_outgoing: vec![NodeId(1), NodeId(2), NodeId(3)],
        ..Configuration::default()
    };
    let remove = MembershipChange { nonce: 1, steps: vec![MembershipStep::Remove(NodeId(3))] };
    state.apply_change(&remove, &joint);
    assert_eq!(state.store_of(NodeId(3)), StoreId(13));
    state.reconcile(&Configuration { voters_outgoing: vec![], ..joint });
    assert_eq!(state.store_of(NodeId(3)), StoreId(0));
    assert!(state.removed.contains(&NodeId(3)));
}

#[test]
fn an_address_changes_only_for_the_bound_data_directory() {
    let mut state = state();
    let moved = Member { client_addr: "new:2".into(), ..member(2, 12) };
    let outcome = state.apply(Term(1), &Command::Readdress(moved.clone()));
    assert_eq!(outcome, Outcome::Readdressed(NodeId(2)));
    assert_eq!(state.members[&NodeId(2)], moved);
    let stranger = Command::Readdress(Member { store: StoreId(99), ..moved });
    assert!(matches!(state.apply(Term(1), &stranger), Outcome::Refused(_)));
}

proptest! {
    #[test]
    fn ranges_are_disjoint_and_rise(
        steps in prop::collection::vec((1_u64..4, 1_u64..4, 0_u64..u64::MAX, any::<bool>()), 1..50),
    ) {
        let mut state = state();
        let mut last_high = 0;
        for (term, node, until, is_stale) in steps {
            let committed = Term(if is_stale { term + 1 } else { term });
            match state.apply(committed, &reserve(term, node, until)) {
                Outcome::Assigned(owner, range) => {
                    prop_assert!(!is_stale);
                    prop_assert_eq!(range.low.0, last_high);
                    prop_assert!(range.high > range.low);
                    prop_assert_eq!(state.owner, Some((owner, range)));
                    last_high = range.high.0;
                }
                Outcome::Stale => prop_assert!(is_stale),
                other => prop_assert_eq!(other, Outcome::Exhausted),
            }
            prop_assert_eq!(state.ceiling.0, last_high);
        }
        prop_assert_eq!(State::decode(&state.encode()), Ok(state));
    }

    #[test]
    fn commands_round_trip_and_garbage_never_panics(
        term: u64, node: u64, until: u64, bytes: Vec<u8>,
    ) {
        let change = MembershipChange {
            nonce: until,
            steps: vec![
                MembershipStep::AddLearner(member(node, 7)),
                MembershipStep::Promote(NodeId(term)),
                MembershipStep::Remove(NodeId(until)),
            ],
        };
        for command in [reserve(term, node, until), Command::Readdress(member(node, 3))] {
            prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
        }
        prop_assert_eq!(MembershipChange::decode(&change.encode()), Ok(change));
        let _ = (State::decode(&bytes), Command::decode(&bytes));
        let _ = MembershipChange::decode(&bytes);
    }
}

#[test]
fn an_address_that_is_recorded_is_neither_empty_nor_over_the_limit() {
    assert!(!is_recordable(""));
    assert!(is_recordable(&"a".repeat(ADDR_LEN_MAX)));
    assert!(!is_recordable(&"a".repeat(ADDR_LEN_MAX + 1)));
}

#[test]
fn either_limit_of_members_refuses_another_one() {
    let add = |node| MembershipChange {
        nonce: 1,
        steps: vec![MembershipStep::AddLearner(member(node, 9_999))],
    };
    let mut full = state();
    full.members = (1..=MEMBERS_MAX as u64).map(|id| (NodeId(id), member(id, 5))).collect();
    assert!(full.check_change(&add(1_000)).is_err());
    full.members.pop_last();
    assert_eq!(full.check_change(&add(1_000)), Ok(()));
    // Ids are never used again. So there must be room to remember the members' ids after their
    // removal, too.
    let mut worn = state();
    let room = REMOVED_MAX - worn.members.len();
    worn.removed = (10..10 + room as u64).map(NodeId).collect();
    assert!(worn.check_change(&add(9)).is_err());
    worn.removed.pop_last();
    assert_eq!(worn.check_change(&add(9)), Ok(()));
}

#[test]
fn every_admitted_member_can_be_removed_and_the_state_is_still_read() {
    let mut state = state();
    let nobody = Configuration::default();
    let mut id = 10;
    loop {
        let steps = vec![MembershipStep::AddLearner(member(id, u128::from(id) + 100))];
        let change = MembershipChange { nonce: 1, steps };
        if state.check_change(&change).is_err() {
            break;
        }
        let learners = state.members.keys().copied().chain([NodeId(id)]).collect();
        state.apply_change(&change, &Configuration { learners, ..nobody.clone() });
        // Removals come in batches of this size, so that the last additions come while there is
        // room.
        if state.members.len() == MEMBERS_MAX - 1 {
            state.reconcile(&nobody);
        }
        id += 1;
    }
    state.reconcile(&nobody);
    assert_eq!(state.removed.len(), REMOVED_MAX);
    assert_eq!(State::decode(&state.encode()), Ok(state));
}

proptest! {
    /// The arithmetic of the ceiling, also near the last epoch. A range has the requested width, or
    /// the least width, or the epochs that are left. When the ceiling is the last epoch, nothing is
    /// assigned.
    #[test]
    fn a_range_is_as_wide_as_asked_or_the_least_and_ends_with_time(
        ceiling in prop_oneof![0..u64::MAX, u64::MAX - 3 * WIDTH_MIN_NS..=u64::MAX],
        until in prop_oneof![0..u64::MAX, u64::MAX - 3 * WIDTH_MIN_NS..=u64::MAX],
    ) {
        let mut state = state();
        state.ceiling = Epoch(ceiling);
        let outcome = state.apply(Term(1), &reserve(1, 1, until));
        if ceiling == u64::MAX {
            prop_assert_eq!(outcome, Outcome::Exhausted);
            prop_assert_eq!((state.ceiling, state.owner), (Epoch(ceiling), None));
            return Ok(());
        }
        let (low, high) = assigned(&outcome);
        let wanted = u128::from(until).max(u128::from(ceiling) + u128::from(WIDTH_MIN_NS));
        prop_assert_eq!((low, u128::from(high)), (ceiling, wanted.min(u128::from(u64::MAX))));
        prop_assert_eq!(state.ceiling, Epoch(high));
    }

    /// Damaged bytes never cause a panic. If they decode, encoding and decoding that state again
    /// changes nothing, and the encoding is no longer than the damaged bytes.
    #[test]
    fn damaged_records_are_refused_or_read_the_same_twice(
        at: prop::sample::Index, flip in 1_u8.., cut: prop::sample::Index, removed: [u64; 4],
    ) {
        let mut state = state();
        state.apply(Term(1), &reserve(1, 1, 5_000));
        state.removed = removed.map(NodeId).into();
        let whole = state.encode();
        let mut damaged = whole.clone();
        damaged[at.index(whole.len())] ^= flip;
        if let Ok(read) = State::decode(&damaged) {
            let again = read.encode();
            prop_assert!(again.len() <= damaged.len());
            prop_assert_eq!(State::decode(&again), Ok(read));
        }
        prop_assert!(State::decode(&whole[..cut.index(whole.len())]).is_err());
    }
}

#[test]
fn a_state_with_settings_that_may_not_be_is_no_state() {
    let settings = settings();
    let with = |settings: ClusterSettings, reservation_longest_ms, clock_offset_widest_ms| {
        let (format, settings) = (FORMAT_OF_SETTINGS, Some(settings));
        let state =
            State { format, settings, reservation_longest_ms, clock_offset_widest_ms, ..state() };
        (State::decode(&state.encode()), state)
    };
    for (longest_ms, widest_ms) in [(1_000, 500), (60_000, 60_000)] {
        let (decoded, state) = with(settings.clone(), longest_ms, widest_ms);
        assert_eq!(decoded, Ok(state));
    }
    let bad =
        |decoded: &Result<State, DecodeError>| matches!(decoded, Err(DecodeError::BadValue { .. }));
    for (longest_ms, widest_ms) in [(999, 500), (60_001, 500), (u64::MAX, 500), (1_000, 499)] {
        let (decoded, _) = with(settings.clone(), longest_ms, widest_ms);
        assert!(bad(&decoded), "{longest_ms} {widest_ms}: {decoded:?}");
    }
    for reservation_ms in [0, 199, 60_001, u64::MAX / 1_000] {
        let wrong = ClusterSettings { reservation_ms, ..settings.clone() };
        let (decoded, _) = with(wrong, 60_000, 500);
        assert!(bad(&decoded), "{decoded:?}");
    }
    let none = State { format: FORMAT_OF_SETTINGS, reservation_longest_ms: u64::MAX, ..state() };
    assert!(bad(&State::decode(&none.encode())));
}

fn owner(term: u64, node: u64) -> Owner {
    Owner { term: Term(term), node: NodeId(node), boot: BootId(node) }
}

fn give_back(term: u64, node: u64, low: u64, high: u64) -> Command {
    let range = EpochRange { low: Epoch(low), high: Epoch(high) };
    Command::GiveBack { owner: owner(term, node), range }
}

/// Node 1 owns `(0, 9000]` in term 1, by two reservations.
fn reserved_twice() -> State {
    let mut state = State { format: FORMAT_OF_GIVING_BACK, ..state() };
    state.apply(Term(1), &reserve(1, 1, 5_000));
    state.apply(Term(1), &reserve(1, 1, 9_000));
    assert_eq!(state.owner, Some((owner(1, 1), span(0, 9_000))));
    state
}

fn span(low: u64, high: u64) -> EpochRange {
    EpochRange { low: Epoch(low), high: Epoch(high) }
}

#[test]
fn the_next_range_begins_where_the_last_owner_gave_its_range_back_and_the_ceiling_stays() {
    let mut state = reserved_twice();
    let back = state.apply(Term(1), &give_back(1, 1, 4_000, 9_000));
    assert_eq!(back, Outcome::GivenBack(owner(1, 1), span(4_000, 9_000)));
    assert_eq!((state.range_end(), state.ceiling), (Epoch(4_000), Epoch(9_000)));
    let again = State::decode(&state.encode());
    assert_eq!(again, Ok(state.clone()), "a snapshot knows it");
    assert_eq!(assigned(&state.apply(Term(2), &reserve(2, 2, 7_000))), (4_000, 7_000));
    assert_eq!(state.ceiling, Epoch(9_000), "S5: the ceiling never goes back");
    assert_eq!(assigned(&state.apply(Term(2), &reserve(2, 2, 9_500))), (7_000, 9_500));
    assert_eq!(
        (state.ceiling, state.owner),
        (Epoch(9_500), Some((owner(2, 2), span(4_000, 9_500))))
    );
}

#[test]
fn what_is_given_back_by_another_owner_term_or_range_changes_nothing() {
    let mut other_boot = give_back(1, 1, 4_000, 9_000);
    if let Command::GiveBack { owner, .. } = &mut other_boot {
        owner.boot = BootId(77);
    }
    let ignored = [
        (1, give_back(1, 2, 4_000, 9_000), "another node"),
        (1, other_boot, "another boot"),
        (2, give_back(1, 1, 4_000, 9_000), "the entry is of another term"),
        (2, give_back(2, 1, 4_000, 9_000), "the range is of another term"),
        (1, give_back(1, 1, 4_000, 5_000), "the owner has more by now"),
        (1, give_back(1, 1, 4_000, 9_001), "the owner never had it"),
        (1, give_back(1, 1, 9_000, 9_000), "nothing"),
        (1, give_back(1, 1, 9_500, 9_000), "less than nothing"),
    ];
    for (term, command, why) in ignored {
        let mut state = reserved_twice();
        assert_eq!(state.apply(Term(term), &command), Outcome::Stale, "{why}");
        assert_eq!(state, reserved_twice(), "{why}");
    }
    let mut second = reserved_twice();
    second.apply(Term(2), &reserve(2, 2, 12_000));
    let below = second.apply(Term(2), &give_back(2, 2, 8_999, 12_000));
    assert_eq!(below, Outcome::Stale, "it reaches into the range of the owner before");
    let older = second.apply(Term(2), &give_back(1, 1, 4_000, 9_000));
    assert_eq!(older, Outcome::Stale, "another owner has come");
    let mut old = State { format: FORMAT_OF_GIVING_BACK - 1, ..reserved_twice() };
    assert_eq!(old.apply(Term(1), &give_back(1, 1, 4_000, 9_000)), Outcome::Stale);
    old.apply(Term(1), &reserve(1, 1, 12_000));
    assert_eq!(old.owner, Some((owner(1, 1), span(9_000, 12_000))), "as older versions have it");
}

#[test]
fn leases_are_in_the_state_from_their_format_on_and_the_longest_is_kept() {
    let marked = |lease_ms| Command::Reserve { owner: owner(1, 1), until: Epoch(9_000), lease_ms };
    let set = |lease_ms, guarantee_default| {
        let settings = ClusterSettings { lease_ms, guarantee_default, ..settings() };
        Command::Settings { nonce: 7, is_seed: false, settings }
    };
    let plain = set(0, Guarantee::Quorum);
    let default = set(0, Guarantee::Lease);
    let longer = set(60_001, Guarantee::Quorum);
    let set = set(200, Guarantee::Lease);
    let release = Command::Release { owner: owner(1, 1) };
    let since = FORMAT_OF_LEASES;
    for (command, format) in [
        (marked(0), 1),
        (marked(200), since),
        (release.clone(), since),
        (plain.clone(), FORMAT_OF_SETTINGS),
        (default.clone(), since),
        (set.clone(), since),
    ] {
        assert_eq!(command.format(), format);
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    // Settings without leases have one encoding only, and those of a lease that is too long none.
    let mut twice = plain.encode();
    twice[0] = default.encode()[0];
    twice.extend([0; 9]);
    assert!(Command::decode(&twice).is_err() && Command::decode(&longer.encode()).is_err());
    let mut too_long = marked(60_000).encode();
    *too_long.last_mut().unwrap() += 1;
    assert!(Command::decode(&too_long).is_err());
    let mut old = State { format: FORMAT_OF_LEASES - 1, ..state() };
    for early in [&set, &default] {
        assert!(matches!(old.apply(Term(1), early), Outcome::Refused(_)));
    }
    assert_eq!(old.apply(Term(1), &plain), Outcome::Set);
    let mut state = State { format: FORMAT_OF_LEASES, ..state() };
    for (lease_ms, longest_ms) in [(0, 0), (200, 200), (100, 200), (400, 400)] {
        state.apply(Term(1), &marked(lease_ms));
        assert_eq!(state.lease_longest_ms, longest_ms);
    }
    assert_eq!(state.apply(Term(1), &release), Outcome::Nothing);
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()), "without settings");
    for command in [&plain, &default, &set] {
        assert_eq!(state.apply(Term(1), command), Outcome::Set);
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        // Builds before the first release of this format wrote settings without the guarantee.
        let mut of_earlier_build = state.encode();
        of_earlier_build.pop();
        assert!(State::decode(&of_earlier_build).is_err());
    }
}

#[test]
fn compact_timestamps_are_in_the_state_from_their_format_on_and_stay() {
    let set = |timestamp_format, lease_ms| {
        let settings = ClusterSettings { timestamp_format, lease_ms, ..settings() };
        Command::Settings { nonce: 7, is_seed: false, settings }
    };
    let (wide, compact) = (TimestampFormat::Wide, TimestampFormat::Compact);
    for command in [set(compact, 0), set(compact, 200), set(wide, 200), set(wide, 0)] {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    let formats = [set(compact, 0), set(compact, 200), set(wide, 200)].map(|it| it.format());
    assert_eq!(formats, [FORMAT_OF_COMPACT, FORMAT_OF_COMPACT, FORMAT_OF_LEASES]);
    let mut old = State { format: FORMAT_OF_COMPACT - 1, ..state() };
    assert!(matches!(old.apply(Term(1), &set(compact, 0)), Outcome::Refused(_)));
    assert_eq!(old.apply(Term(1), &set(wide, 0)), Outcome::Set);
    let mut state = State { format: FORMAT_OF_COMPACT, ..state() };
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()), "no settings yet");
    assert_eq!(state.apply(Term(1), &set(wide, 0)), Outcome::Set);
    assert_eq!((state.timestamp_format(), state.width_min_ns()), (wide, WIDTH_MIN_NS));
    assert_eq!(state.apply(Term(1), &set(compact, 0)), Outcome::Set);
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    assert!(matches!(state.apply(Term(1), &set(wide, 0)), Outcome::Refused(_)), "S21");
    assert_eq!(state.timestamp_format(), compact);
    assert_eq!(state.apply(Term(1), &set(compact, 200)), Outcome::Set, "other settings change");
    let (low, high) = assigned(&state.apply(Term(1), &reserve(1, 1, 0)));
    assert_eq!(high - low, WIDTH_MIN_NS, "a leader asks for more if it needs more");
    // Settings are missing.
    let mut bytes = State { format: FORMAT_OF_COMPACT, ..self::state() }.encode();
    *bytes.last_mut().unwrap() = 1;
    assert!(State::decode(&bytes).is_err());
}

#[test]
fn interval_mode_is_in_the_state_from_its_format_on_with_the_ceiling() {
    let set = |mode, lease_ms| {
        let settings = ClusterSettings { mode, lease_ms, ..settings() };
        Command::Settings { nonce: 7, is_seed: false, settings }
    };
    let (quorum, interval) = (Mode::Quorum, Mode::Interval);
    for command in [set(interval, 0), set(interval, 200), set(quorum, 0)] {
        assert_eq!(Command::decode(&command.encode()), Ok(command));
    }
    assert_eq!(set(interval, 200).format(), FORMAT_OF_INTERVALS);
    let mut old = State { format: FORMAT_OF_INTERVALS - 1, ..state() };
    assert!(matches!(old.apply(Term(1), &set(interval, 0)), Outcome::Refused(_)));
    let mut state = State { format: FORMAT_OF_INTERVALS, ..state() };
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()), "no settings yet");
    let (_, high) = assigned(&state.apply(Term(1), &reserve(1, 1, 5_000)));
    assert_eq!(state.apply(Term(1), &set(interval, 0)), Outcome::Set);
    let ceiling = |state: &State| state.intervals.as_ref().map(|it| it.ceiling);
    assert_eq!((state.mode(), ceiling(&state)), (interval, Some(Epoch(high))));
    assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
    // Later reservations are above it.
    assigned(&state.apply(Term(1), &reserve(1, 1, high + 9_000)));
    assert_eq!(ceiling(&state), Some(Epoch(high)));
    assert!(matches!(state.apply(Term(1), &set(quorum, 0)), Outcome::Refused(_)), "S24");
    assert_eq!(state.apply(Term(1), &set(interval, 200)), Outcome::Set, "other settings change");
    assert_eq!(ceiling(&state), Some(Epoch(high)));
    assert_eq!(state.check_vacancy(NodeId(32_767)), Ok(()));
    assert!(state.check_vacancy(NodeId(32_768)).is_err());
    let mut far = State { format: FORMAT_OF_INTERVALS, ..self::state() };
    let mut member = far.members.values().next().unwrap().clone();
    member.node = NodeId(32_768);
    far.members.insert(member.node, member);
    assert!(matches!(far.apply(Term(1), &set(interval, 0)), Outcome::Refused(_)), "a high id");
    // Settings are missing.
    let mut bytes = State { format: FORMAT_OF_INTERVALS, ..self::state() }.encode();
    *bytes.last_mut().unwrap() = 1;
    bytes.extend([0; 8]);
    assert!(State::decode(&bytes).is_err());
}
