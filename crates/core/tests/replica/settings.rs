//! Settings in the replicated state. The first leader sets them once, a command changes them, and
//! they are in force from the entry that sets them.

use std::sync::Arc;

use epicepoch_core::placement::Placement;
use epicepoch_core::replica::{
    ADVANCE_AHEAD_NS, AdvanceError, HandOver, ReplicaConfig, Report, SettingsError,
};
use epicepoch_core::state::{
    COMPACT_WIDTH_MIN_NS, Command, FORMAT_OF_CLOSING, FORMAT_OF_COMPACT, FORMAT_OF_INTERVALS,
    FORMAT_OF_SETTINGS, FORMATS, Outcome, State,
};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::peer_hello::Formats;
use epicepoch_wire::raft_message::{LogEntry, MessageKind, RaftMessage};
use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::voter_status::{VoterStatus, Zone, preference_of};
use epicepoch_wire::{Epoch, Guarantee, LogIndex, Mode, NodeId, Term, TimestampFormat};

use crate::support::bench::{Bench, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, TICK_NS};

/// The shortest window that settings allow: four election timeouts of the bench.
const SHORT_MS: u64 = *epicepoch_wire::settings::RESERVATION_MS.start();

fn zone(name: &str) -> Zone {
    Zone::new(name).expect("a name")
}

fn told(reservation_ms: u64) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms,
        clock_offset_max_ms: 500,
        max_n: 65_536,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    }
}

/// Node 1 as the leader of three nodes that all read this format and have reported so.
fn led(format: u32) -> Bench {
    led_with(2_000, format, |config| config.format_max = format)
}

fn led_with(reservation_ms: u64, format: u32, differ: impl FnOnce(&mut ReplicaConfig)) -> Bench {
    let mut bench = Bench::made(Disk::genesis(&genesis(&[1, 2, 3])), differ);
    bench.replica.seed_settings(told(reservation_ms));
    bench.elect(&[2, 3]);
    bench.persist();
    bench.report_formats(&[2, 3], format);
    for _ in 0..4 * ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
    }
    bench
}

fn change(bench: &mut Bench, nonce: u64, settings: &ClusterSettings) -> Result<(), SettingsError> {
    let asked = bench.replica.change_settings(bench.now_ns, nonce, settings);
    bench.drain();
    asked
}

fn is_told(bench: &Bench, nonce: u64, outcome: &Outcome) -> bool {
    bench.reports.contains(&Report::SettingsChanged { nonce, outcome: outcome.clone() })
}

#[test]
fn settings_are_seeded_once_the_format_has_room_for_them() {
    let bench = led(FORMAT_OF_SETTINGS - 1);
    assert_eq!((bench.replica.state().format, bench.replica.settings()), (2, None));
    assert_eq!(bench.shared.published().settings, None);
    let bench = led(FORMAT_OF_SETTINGS);
    assert_eq!(bench.replica.settings(), Some(&told(2_000)));
    assert_eq!(bench.shared.published().epoch_interval_ns, Some(100_000_000));
    let seeds = bench.durable().entries.iter();
    let seeds = seeds.filter(|entry| {
        matches!(Command::decode(&entry.data), Ok(Command::Settings { is_seed: true, .. }))
    });
    assert_eq!(seeds.count(), 1);
}

/// The settings in force are always those of the applied state.
#[test]
fn a_change_is_in_effect_when_it_is_applied_and_not_when_it_is_proposed() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    let high = |bench: &Bench| bench.shared.published().grant.expect("it serves").range.high;
    assert_eq!(change(&mut bench, 7, &told(5_000)), Ok(()));
    assert_eq!(bench.replica.settings(), Some(&told(2_000)), "nobody has acknowledged it");
    assert_eq!(change(&mut bench, 8, &told(3_000)), Err(SettingsError::Busy));
    let before = high(&bench);
    bench.ack_all(2);
    assert!(is_told(&bench, 7, &Outcome::Set));
    assert_eq!(bench.replica.settings(), Some(&told(5_000)));
    // The next range has the new width. It is requested at once, because the current range is too
    // short.
    bench.beats(2, &[2, 3]);
    bench.ack_all(2);
    assert!(high(&bench).0 > before.0 + 2_000_000_000, "{before:?} and {:?}", high(&bench));
    assert_eq!(change(&mut bench, 9, &told(3_000)), Ok(()));
}

#[test]
fn settings_in_effect_are_proposed_like_any_change_and_wait_for_the_pending_one() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    assert_eq!(change(&mut bench, 7, &told(5_000)), Ok(()));
    assert_eq!(bench.replica.settings(), Some(&told(2_000)));
    assert_eq!(change(&mut bench, 8, &told(2_000)), Err(SettingsError::Busy), "it would undo it");
    bench.ack_all(2);
    assert_eq!(change(&mut bench, 9, &told(5_000)), Ok(()));
    assert!(!is_told(&bench, 9, &Outcome::Set), "nobody has acknowledged it");
    assert_eq!(change(&mut bench, 10, &told(5_000)), Err(SettingsError::Busy));
    bench.ack_all(2);
    assert!(is_told(&bench, 9, &Outcome::Set));
    assert_eq!(change(&mut bench, 11, &told(1_000)), Ok(()));
}

#[test]
fn a_ceiling_of_an_earlier_longer_window_proves_nothing_about_clocks() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    let before_ns = bench.replica.trusted_before_ns();
    assert_eq!(change(&mut bench, 7, &told(1_000)), Ok(()));
    bench.ack_all(2);
    assert_eq!(bench.replica.settings(), Some(&told(1_000)));
    assert_eq!(bench.replica.trusted_before_ns(), before_ns, "the ceiling is as far ahead as ever");
    assert_eq!(bench.replica.state().reservation_longest_ms, 2_000);
}

#[test]
fn a_ceiling_of_a_wider_bound_says_no_more_of_clocks_when_the_bound_is_narrower() {
    const WIDE_MS: u64 = 25_000;
    let mut bench = led(FORMAT_OF_SETTINGS);
    let bounded = |bound_ms| ClusterSettings { clock_offset_max_ms: bound_ms, ..told(2_000) };
    let narrow_ms = told(2_000).clock_offset_max_ms;
    assert_eq!(change(&mut bench, 7, &bounded(WIDE_MS)), Ok(()));
    bench.ack_all(2);
    let before_ns = bench.replica.trusted_before_ns();
    // With the wide bound, a leader whose clock is that far ahead was still trusted, and its
    // ceiling is as far ahead. So a right clock that is behind this ceiling must not count as
    // wrong.
    assert_eq!(change(&mut bench, 8, &bounded(narrow_ms)), Ok(()));
    bench.ack_all(2);
    let wider_ns = (WIDE_MS - narrow_ms) * 1_000_000;
    assert_eq!(bench.replica.trusted_before_ns(), before_ns - wider_ns);
}

#[test]
fn invalid_settings_are_refused_before_they_are_proposed_and_change_nothing() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    let none = ClusterSettings { max_n: 0, ..told(2_000) };
    let refused = change(&mut bench, 7, &none).expect_err("none is no answer");
    let name = SettingName::MaxN;
    assert_eq!(refused, SettingsError::NotAllowed { name, value: "0".into() });
    let words = "MAX_N would be \"0\"; allowed is a whole number from 1 to 1048576";
    assert_eq!(refused.to_string(), words);
    assert_eq!(bench.replica.settings(), Some(&told(2_000)));
    // The state checks the settings in the log once more, on every node alike.
    let mut state = State { format: FORMAT_OF_SETTINGS, ..State::new(&genesis(&[1])) };
    let command = |is_seed, settings| Command::Settings { nonce: 1, is_seed, settings };
    assert!(matches!(state.apply(Term(1), &command(false, none)), Outcome::Refused(_)));
    assert_eq!(state.settings, None);
    assert_eq!(state.apply(Term(1), &command(true, told(900))), Outcome::Set);
    assert_eq!(state.apply(Term(1), &command(true, told(800))), Outcome::Stale);
    assert_eq!(state.settings, Some(told(900)));
    assert_eq!(State::decode(&state.encode()), Ok(state));
    let mut old = State { format: FORMAT_OF_SETTINGS - 1, ..State::new(&genesis(&[1])) };
    let early = old.apply(Term(1), &command(true, told(900)));
    assert!(matches!(early, Outcome::Refused(_)), "{early:?}");
}

#[test]
fn zones_in_effect_block_no_other_setting() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    let gone = ClusterSettings { leader_zones: vec![zone("gone")], ..told(2_000) };
    assert_eq!(change(&mut bench, 7, &gone), Ok(()));
    bench.ack_all(2);
    let other = ClusterSettings { max_n: 7, ..gone.clone() };
    assert_eq!(bench.replica.judge_zones(&other, false), Ok(None));
    let worse = ClusterSettings { leader_zones: vec![zone("typo"), zone("gone")], ..gone };
    let doubt = bench.replica.judge_zones(&worse, false).expect("nobody has said a zone");
    assert_eq!(doubt.expect("a doubt").empty, [zone("typo")], "the other one counts already");
}

/// The window was long enough when it was set. The election timeouts of the nodes may have been
/// raised since then.
#[test]
fn a_window_that_is_too_short_already_blocks_no_other_setting() {
    let mut bench = led_with(SHORT_MS, FORMAT_OF_SETTINGS, |config| {
        config.format_max = FORMAT_OF_SETTINGS;
        config.tick_ns = 2 * TICK_NS;
    });
    let short = change(&mut bench, 7, &told(SHORT_MS + 1)).expect_err("it is asked for");
    assert!(matches!(short, SettingsError::ReservationTooShort { .. }), "{short}");
    let other = ClusterSettings { max_n: 7, ..told(SHORT_MS) };
    assert_eq!(change(&mut bench, 8, &other), Ok(()));
    bench.ack_all(2);
    assert!(is_told(&bench, 8, &Outcome::Set));
    assert_eq!(bench.replica.settings(), Some(&other));
}

#[test]
fn a_window_of_four_election_timeouts_is_long_enough() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    assert_eq!(change(&mut bench, 7, &told(SHORT_MS)), Ok(()));
}

#[test]
fn a_change_that_the_format_has_no_room_for_is_refused_for_that_reason() {
    let mut bench = led(FORMAT_OF_SETTINGS - 1);
    let format = FORMAT_OF_SETTINGS - 1;
    assert_eq!(change(&mut bench, 7, &told(3_000)), Err(SettingsError::Format { format }));
}

#[test]
fn a_leader_that_owns_nothing_yet_or_hands_over_changes_no_settings() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    bench.replica.hand_over(bench.now_ns, Some(NodeId(2)), HandOver::Asked);
    assert_eq!(change(&mut bench, 7, &told(3_000)), Err(SettingsError::NotServing));
    bench.disk.crash();
    let mut bench = Bench::reading(bench.disk, FORMAT_OF_SETTINGS);
    bench.elect(&[2, 3]);
    bench.persist();
    assert_eq!((bench.replica.settings(), bench.is_leader()), (Some(&told(2_000)), true));
    assert_eq!(change(&mut bench, 8, &told(3_000)), Err(SettingsError::NotServing));
    bench.ack_all(2);
    assert_eq!(change(&mut bench, 9, &told(3_000)), Ok(()));
}

#[test]
fn settings_that_are_set_again_are_not_published_again() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    let before = bench.shared.published().settings.clone().expect("they are seeded");
    assert_eq!(change(&mut bench, 7, &told(2_000)), Ok(()));
    bench.ack_all(2);
    assert!(is_told(&bench, 7, &Outcome::Set));
    let after = bench.shared.published().settings.clone().expect("they stay");
    assert!(Arc::ptr_eq(&before, &after));
}

#[test]
fn an_unacknowledged_seed_is_proposed_again_after_an_election_timeout() {
    let mut bench = Bench::reading(Disk::genesis(&genesis(&[1, 2])), FORMAT_OF_SETTINGS);
    bench.elect(&[2]);
    bench.persist();
    bench.ack_all(2);
    let formats = Formats { oldest: FORMATS.oldest, newest: FORMAT_OF_SETTINGS };
    bench.replica.handle_formats(NodeId(2), formats);
    for _ in 0..4 * ELECTION_TICKS {
        bench.beats(1, &[2]);
        bench.ack_all(2);
    }
    assert_eq!(bench.replica.state().format, FORMAT_OF_SETTINGS);
    bench.replica.seed_settings(told(2_000));
    let is_seed = |entry: &&LogEntry| {
        matches!(Command::decode(&entry.data), Ok(Command::Settings { is_seed: true, .. }))
    };
    let seeds: Vec<usize> = (0..ELECTION_TICKS + 2)
        .map(|_| {
            bench.beats(1, &[2]);
            bench.persist();
            bench.durable().entries.iter().filter(is_seed).count()
        })
        .collect();
    let (once, again) = seeds.split_at(ELECTION_TICKS + 1);
    assert_eq!((once, again), ([1; ELECTION_TICKS + 1].as_slice(), [2].as_slice()));
}

#[test]
fn settings_survive_a_restart_and_come_with_the_state() {
    let mut bench = led(FORMAT_OF_SETTINGS);
    change(&mut bench, 7, &told(5_000)).expect("it is proposed");
    bench.ack_all(2);
    bench.beats(1, &[2, 3]);
    bench.persist();
    let record = bench.replica.record();
    assert_eq!(State::decode(&record.data).expect("a state").settings, Some(told(5_000)));
    bench.disk.crash();
    let restarted = Bench::reading(bench.disk, FORMAT_OF_SETTINGS);
    assert!(restarted.status().applied > LogIndex(2));
    assert_eq!(restarted.replica.settings(), Some(&told(5_000)));
    let published = restarted.shared.published();
    assert_eq!(published.settings.as_deref(), Some(&told(5_000)));
}

/// Whether node 2, which prefers these leader zones, agrees with the leader.
fn agrees(bench: &mut Bench, leaders: &[Zone]) -> bool {
    let (preference, zone) = (preference_of(leaders), Some(zone("a")));
    let said = VoterStatus {
        is_fit: true,
        preference,
        zone,
        slowest_write_ms: Some(0),
        waits_for_leases: false,
        closed: None,
    };
    let answer = message(MessageKind::HeartbeatResponse, bench.status().term.0);
    let answer = RaftMessage { context: said.encode(), ..answer };
    bench.take(2, &answer).expect("an answer is taken");
    let placed = bench.replica.placed();
    placed.iter().find(|it| it.node == NodeId(2)).expect("a member").agrees
}

/// A node's own configuration is in effect only while the state has no settings.
#[test]
fn leader_zones_come_from_the_settings_and_not_from_a_nodes_configuration() {
    let told_b = || Placement { zone: Some(zone("c")), leaders: vec![zone("b")] };
    let mut bench = led(FORMAT_OF_SETTINGS - 1);
    bench.replica.place(told_b());
    assert!(agrees(&mut bench, &[zone("b")]));
    let mut bench = led(FORMAT_OF_SETTINGS);
    bench.replica.place(told_b());
    assert!(agrees(&mut bench, &[]) && !agrees(&mut bench, &[zone("b")]));
    let settings = ClusterSettings { leader_zones: vec![zone("a")], ..told(2_000) };
    assert_eq!(change(&mut bench, 7, &settings), Ok(()));
    assert!(!agrees(&mut bench, &[zone("a")]), "nobody has acknowledged it");
    bench.ack_all(2);
    assert!(agrees(&mut bench, &[zone("a")]) && !agrees(&mut bench, &[]));
}

fn compact() -> ClusterSettings {
    ClusterSettings { timestamp_format: TimestampFormat::Compact, ..told(2_000) }
}

/// A leader whose state has the format of compact timestamps.
fn led_to_compact() -> Bench {
    let mut bench = led(FORMAT_OF_COMPACT);
    for _ in 0..4 * ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
    }
    assert_eq!(bench.replica.state().format, FORMAT_OF_COMPACT);
    bench
}

/// S21: users may have keys of 64 bits by then.
#[test]
fn timestamps_that_are_compact_stay_compact() {
    let mut bench = led(FORMAT_OF_COMPACT - 1);
    let format = FORMAT_OF_COMPACT - 1;
    assert_eq!(change(&mut bench, 7, &compact()), Err(SettingsError::FormatOfCompact { format }));
    let mut bench = led_to_compact();
    assert!(!bench.shared.published().is_compact());
    assert_eq!(change(&mut bench, 7, &compact()), Ok(()));
    assert!(!bench.shared.published().is_compact(), "nobody has acknowledged it");
    bench.ack_all(2);
    let published = bench.shared.published();
    assert!(published.is_compact() && published.grant.is_some(), "both at once");
    assert_eq!(change(&mut bench, 8, &told(2_000)), Err(SettingsError::BackToWide));
    let other = ClusterSettings { max_n: 7, ..compact() };
    assert_eq!(change(&mut bench, 9, &other), Ok(()));
    bench.ack_all(2);
    assert!(bench.shared.published().is_compact());
}

#[test]
fn first_settings_that_are_compact_wait_for_their_format() {
    let seeded = |format_max| {
        let mut bench = Bench::made(Disk::genesis(&genesis(&[1, 2, 3])), |config| {
            config.format_max = format_max;
        });
        bench.replica.seed_settings(compact());
        bench.elect(&[2, 3]);
        bench.persist();
        bench.report_formats(&[2, 3], FORMAT_OF_COMPACT);
        for _ in 0..8 * ELECTION_TICKS {
            bench.beats(1, &[2, 3]);
            bench.ack_all(2);
            let state = bench.replica.state();
            let is_waiting = state.settings.is_none() || state.format >= FORMAT_OF_COMPACT;
            assert!(is_waiting || format_max < FORMAT_OF_COMPACT, "{state:?}");
        }
        bench.replica.settings().cloned()
    };
    assert_eq!(seeded(FORMAT_OF_COMPACT), Some(compact()));
    assert_eq!(seeded(FORMAT_OF_COMPACT - 1), Some(told(2_000)), "a node that may not read it");
}

/// A range that was assigned before has too few milliseconds, so the leader reserves at once.
#[test]
fn a_leader_with_a_narrow_range_reserves_when_timestamps_become_compact_and_when_it_is_used() {
    let mut bench = led_to_compact();
    let range = |bench: &Bench| bench.shared.published().grant.expect("it serves").range;
    // An operator moves the epoch far ahead, so the next range has the least width.
    let to = Epoch(range(&bench).high.0 + 3_600_000_000_000);
    bench.replica.advance(bench.now_ns, to, u64::MAX).expect("it leads");
    bench.drain();
    bench.beats(2, &[2, 3]);
    bench.ack_all(2);
    let narrow = range(&bench);
    assert!(narrow.low == to && narrow.high.0 < to.0 + COMPACT_WIDTH_MIN_NS, "{narrow:?}");
    bench.beats(20, &[2, 3]);
    bench.ack_all(2);
    assert_eq!(range(&bench), narrow, "the clock is behind");
    assert_eq!(change(&mut bench, 7, &compact()), Ok(()));
    bench.ack_all(2);
    bench.beats(2, &[2, 3]);
    bench.ack_all(2);
    let wide = range(&bench);
    assert!(wide.high.0 >= narrow.high.0 + COMPACT_WIDTH_MIN_NS, "{wide:?}");
    bench.beats(20, &[2, 3]);
    bench.ack_all(2);
    assert_eq!(range(&bench), wide, "nothing of it is used");
    let used = |left_ns| Epoch(wide.high.0 - left_ns);
    for (left_ns, is_enough) in
        [(COMPACT_WIDTH_MIN_NS / 5 * 3 + 1, true), (COMPACT_WIDTH_MIN_NS / 5 * 3, false)]
    {
        bench.shared.record_stamped(used(left_ns));
        bench.beats(2, &[2, 3]);
        bench.ack_all(2);
        assert_eq!(range(&bench) == wide, is_enough, "{left_ns} ns are left");
    }
    assert!(range(&bench).high.0 >= wide.high.0 + COMPACT_WIDTH_MIN_NS, "{:?}", range(&bench));
}

fn intervals() -> ClusterSettings {
    ClusterSettings { mode: Mode::Interval, ..told(2_000) }
}

/// S24: the leader ceases in the step that applies the mode.
#[test]
fn interval_mode_withdraws_the_grant_and_names_the_ceiling() {
    let risen = |newest: u32| {
        let mut bench = led(newest);
        for _ in 0..8 * ELECTION_TICKS {
            bench.beats(1, &[2, 3]);
            bench.ack_all(2);
        }
        assert_eq!(bench.replica.state().format, newest);
        bench
    };
    let format = FORMAT_OF_INTERVALS - 1;
    let mut bench = risen(format);
    let refused = Err(SettingsError::FormatOfIntervals { format });
    assert_eq!(change(&mut bench, 7, &intervals()), refused);
    let mut bench = risen(FORMAT_OF_CLOSING);
    let before = bench.shared.published();
    assert_eq!((before.mode, before.opening), (Mode::Quorum, None));
    assert_eq!(change(&mut bench, 7, &intervals()), Ok(()));
    assert!(bench.shared.published().grant.is_some(), "no other voter has the change yet");
    bench.ack_all(2);
    let published = bench.shared.published();
    let ceiling = published.opening.expect("no lease runs").ceiling;
    assert_eq!((published.mode, published.grant), (Mode::Interval, None));
    assert!(ceiling >= before.grant.expect("it served").range.high);
    assert_eq!(published.refusal(), ErrorCode::OtherMode);
    // The leader goes on to lead and to reserve. Workers get nothing of that, and the ceiling of
    // quorum mode stays.
    for _ in 0..20 * ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
        let published = bench.shared.published();
        assert_eq!(
            (published.grant, published.opening.map(|it| it.ceiling)),
            (None, Some(ceiling))
        );
    }
    let other = ClusterSettings { max_n: 7, ..intervals() };
    assert_eq!(change(&mut bench, 9, &other), Ok(()));
    bench.ack_all(2);
    assert_eq!(bench.shared.published().opening.map(|it| it.ceiling), Some(ceiling));
    let advance = bench.replica.plan_advance(Epoch(u64::MAX / 2), u64::MAX);
    assert_eq!(advance, Err(AdvanceError::Intervals));
}

/// S14: interval timestamps may be below an epoch to which an operator has begun to move.
#[test]
fn an_advance_that_interval_mode_overtakes_is_not_reported_as_done() {
    let mut bench = led(FORMAT_OF_CLOSING);
    for _ in 0..8 * ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
    }
    assert_eq!(change(&mut bench, 7, &intervals()), Ok(()));
    let to = Epoch(bench.replica.ceiling().0 + 1_000_000_000);
    let advance = bench.replica.advance(bench.now_ns, to, ADVANCE_AHEAD_NS);
    assert!(advance.is_ok_and(|it| !it.is_done), "the mode is not applied yet");
    for _ in 0..20 * ELECTION_TICKS {
        bench.beats(1, &[2, 3]);
        bench.ack_all(2);
    }
    let published = bench.shared.published();
    assert!(
        published.mode == Mode::Interval && published.opening.is_some_and(|it| it.ceiling < to)
    );
    assert!(!bench.reports.contains(&Report::Advanced { to }));
}
