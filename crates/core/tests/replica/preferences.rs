//! When the cluster is calm, leadership moves once to a voter in a better zone, and only if that
//! voter could lead.

use epicepoch_core::placement::Placement;
use epicepoch_core::replica::{HandOver, LAG_MAX, Report, SettingsError, ZonesInDoubt};
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::{VoterStatus, Zone, preference_of};
use epicepoch_wire::{Guarantee, Mode, NodeId, StoreId, TimestampFormat};

use crate::support::bench::{Bench, message};
use crate::support::{ELECTION_TICKS, MS, TICK_NS, member};

/// How long the cluster must be calm before the first offer, ticks.
const CALM_TICKS: usize = 25 * ELECTION_TICKS;

fn zone(name: &str) -> Zone {
    Zone::new(name).expect("a name")
}

fn zones(names: &[&str]) -> Vec<Zone> {
    names.iter().map(|name| zone(name)).collect()
}

/// Node 1, in zone `own`, leads three nodes. Leaders should be in the zones `leaders`.
fn led(own: &str, leaders: &[&str]) -> Bench {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.replica.place(Placement { zone: Some(zone(own)), leaders: zones(leaders) });
    bench.replica.handle_sound_clocks(vec![NodeId(2), NodeId(3)]);
    bench
}

fn fit(zone_name: &str, leaders: &[&str]) -> VoterStatus {
    let (preference, zone) = (preference_of(&zones(leaders)), Some(zone(zone_name)));
    VoterStatus {
        is_fit: true,
        preference,
        zone,
        slowest_write_ms: Some(0),
        waits_for_leases: false,
        closed: None,
    }
}

/// A tick in which the other voters acknowledge everything and report their status.
fn beat(bench: &mut Bench, voter_statuses: &[(u64, &VoterStatus)]) {
    bench.tick();
    bench.persist();
    if !bench.is_leader() {
        return;
    }
    let (term, last) = (bench.status().term.0, bench.status().last);
    for (node, status) in voter_statuses {
        let context = status.encode();
        let said = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
        bench.take(*node, &said).expect("an answer is taken");
        bench.ack(*node, last);
    }
    bench.persist();
}

/// The offers of leadership because of a zone within `ticks` ticks. Each is the number of the tick,
/// and the voter.
fn offered(
    bench: &mut Bench,
    ticks: usize,
    voter_statuses: &[(u64, &VoterStatus)],
) -> Vec<(usize, u64)> {
    let mut offers = vec![];
    for tick in 0..ticks {
        bench.reports.clear();
        beat(bench, voter_statuses);
        offers.extend(bench.reports.iter().filter_map(|report| match report {
            Report::HandingOver { to, why: HandOver::Preferred } => Some((tick, to.0)),
            _ => None,
        }));
    }
    offers
}

#[test]
fn leadership_goes_to_the_best_zone_after_a_long_calm() {
    let mut bench = led("c", &["a", "b"]);
    let (near, best) = (fit("b", &["a", "b"]), fit("a", &["a", "b"]));
    let both = [(2, &near), (3, &best)];
    let offers = offered(&mut bench, CALM_TICKS + 2, &both);
    // In the first beat the voters report their zones.
    assert_eq!(offers, [(CALM_TICKS, 3)]);
}

/// If two voters are equally good, the leader does not alternate between them.
#[test]
fn of_two_in_equal_zones_the_first_candidate_stays_preferred() {
    let leaders = &["a"][..];
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    let mut bench = led("c", leaders);
    let offers = offered(&mut bench, CALM_TICKS + 2, &[(2, &good), (3, &good)]);
    assert_eq!(offers, [(CALM_TICKS, 2)]);
    let mut bench = led("c", leaders);
    assert_eq!(offered(&mut bench, CALM_TICKS / 2, &[(2, &other), (3, &good)]), []);
    let offers = offered(&mut bench, CALM_TICKS, &[(2, &good), (3, &good)]);
    assert_eq!(offers, [(CALM_TICKS - CALM_TICKS / 2, 3)]);
}

/// The status of each voter.
type Said<'a> = [(u64, &'a VoterStatus)];

/// Makes the leader record a new address of node 2, and so write an entry. The write takes the disk
/// `ticks` ticks.
fn write_slowly(bench: &mut Bench, ticks: usize, said: &Said) {
    let client_addr = "new:1".to_owned();
    bench.replica.handle_peer_addresses(Member { client_addr, ..member(NodeId(2), StoreId(102)) });
    // The entry is proposed in the first tick. In each later tick its write waits for the disk.
    for _ in 0..=ticks {
        bench.tick();
        for (node, status) in said {
            let context = status.encode();
            let term = bench.status().term.0;
            let said = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
            bench.take(*node, &said).expect("an answer is taken");
        }
    }
    bench.persist();
}

/// The name of a disturbance, and how the test makes it.
type Disturbance = (&'static str, fn(&mut Bench, &Said));

/// The wait before a handover begins again whenever the leader is disturbed, for example by a slow
/// disk or a change of members.
#[test]
fn any_disturbance_of_a_leader_restarts_the_wait() {
    let leaders = &["a"][..];
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    let both = [(2, &good), (3, &other)];
    let disturbances: [Disturbance; 4] = [
        ("its clock is off, and nobody's is better", |bench, said| {
            bench.replica.handle_clock(Some(vec![]));
            assert_eq!(offered(bench, 1, said), []);
            bench.replica.handle_clock(None);
        }),
        ("its disk is slow", |bench, said| write_slowly(bench, ELECTION_TICKS / 2 + 1, said)),
        ("its members change", |bench, said| {
            let learner = MembershipStep::AddLearner(member(NodeId(4), StoreId(104)));
            let change = MembershipChange { nonce: 1, steps: vec![learner] };
            assert_eq!(bench.replica.propose_change(bench.now_ns, &change), Ok(()));
            assert_eq!(offered(bench, 1, said), []);
        }),
        ("leadership is handed over", |bench, said| {
            let asked = bench.replica.hand_over(bench.now_ns, Some(NodeId(3)), HandOver::Asked);
            assert_eq!(asked, Some(NodeId(3)));
            // No voter takes over.
            assert_eq!(offered(bench, ELECTION_TICKS, said), []);
        }),
    ];
    for (what, disturb) in disturbances {
        let mut bench = led("c", leaders);
        assert_eq!(offered(&mut bench, CALM_TICKS - 5, &both), [], "{what}");
        disturb(&mut bench, &both);
        assert!(bench.is_leader(), "{what}");
        assert_eq!(offered(&mut bench, CALM_TICKS / 2, &both), [], "{what}");
        assert_eq!(offered(&mut bench, CALM_TICKS, &both).len(), 1, "{what}");
    }
    // A write of at most half an election timeout is not a disturbance.
    let mut bench = led("c", leaders);
    assert_eq!(offered(&mut bench, CALM_TICKS / 2, &both), []);
    write_slowly(&mut bench, ELECTION_TICKS / 2, &both);
    let waited = CALM_TICKS / 2 + ELECTION_TICKS / 2 + 1;
    assert_eq!(offered(&mut bench, CALM_TICKS, &both), [(CALM_TICKS - waited, 2)]);
}

/// If leadership does not stay with the voter it was offered to, the next offer waits longer. The
/// offer is forgotten after exactly eight times that wait. Then the next offer counts as the first.
#[test]
fn an_offer_that_did_not_hold_is_forgotten_at_last() {
    let leaders = &["a"][..];
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    let forgotten = 8 * 2 * CALM_TICKS;
    // The ticks from one offer to the next. The voter is unfit for the first `unfit` of them.
    let next = |unfit: usize| {
        let mut bench = led("c", leaders);
        assert_eq!(offered(&mut bench, CALM_TICKS + 1, &[(2, &good), (3, &other)]).len(), 1);
        assert_eq!(offered(&mut bench, unfit, &[(2, &other), (3, &other)]), []);
        unfit + offered(&mut bench, 3 * CALM_TICKS, &[(2, &good), (3, &other)])[0].0
    };
    let twice = |unfit: usize| unfit + 2 * CALM_TICKS;
    assert_eq!(next(forgotten - 2 * CALM_TICKS - 5), twice(forgotten - 2 * CALM_TICKS - 5));
    assert_eq!(next(forgotten - 2 * CALM_TICKS + 5), forgotten - 1);
    assert_eq!(next(forgotten), forgotten + CALM_TICKS);
}

#[test]
fn a_leader_in_an_equal_zone_keeps_leadership() {
    for (own, leaders) in [("a", &["a", "b"][..]), ("c", &[]), ("c", &["x"])] {
        let mut bench = led(own, leaders);
        let (same, other) = (fit("a", leaders), fit("b", leaders));
        let offers = offered(&mut bench, 3 * CALM_TICKS, &[(2, &same), (3, &other)]);
        assert_eq!(offers, [], "{own} {leaders:?}");
    }
}

/// Why a voter is not preferred: the reason, the status that it reports, and other preparations.
type Case = (&'static str, VoterStatus, fn(&mut Bench));

/// Tests every condition that would make the handover fail.
#[test]
fn a_voter_that_could_not_lead_gets_no_preference() {
    let leaders = &["a"][..];
    let good = fit("a", leaders);
    let cases: [Case; 4] = [
        ("says that it could not", VoterStatus { is_fit: false, ..good.clone() }, |_| {}),
        ("prefers another place", fit("a", &["c"]), |_| {}),
        ("its clock is off", good.clone(), |bench| {
            bench.replica.handle_sound_clocks(vec![NodeId(3)]);
        }),
        ("gone", good.clone(), |bench| bench.ticks(2)),
    ];
    for (what, status, prepare) in cases {
        let mut bench = led("c", leaders);
        prepare(&mut bench);
        let other = fit("c", leaders);
        let voter_statuses = [(3, &other), (2, &status)];
        let said = if what == "gone" { &voter_statuses[..1] } else { &voter_statuses[..] };
        let offers = offered(&mut bench, 2 * CALM_TICKS, said);
        assert_eq!(offers, [], "{what}");
    }
}

#[test]
fn a_voter_that_lacks_entries_is_not_preferred_until_it_has_them() {
    let leaders = &["a"][..];
    let mut bench = led("c", leaders);
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    let say = |bench: &mut Bench| {
        beat(bench, &[(3, &other)]);
        let term = bench.status().term.0;
        let context = good.encode();
        let said = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
        bench.take(2, &said).expect("an answer is taken");
    };
    let lag = |bench: &Bench| bench.replica.entries_behind(NodeId(2));
    // Node 2 is silent until it lacks too many entries. Then it is present for longer than a voter
    // must be fit, and still gets no leadership.
    for _ in 0..40 * CALM_TICKS {
        beat(&mut bench, &[(3, &other)]);
        if lag(&bench) > LAG_MAX {
            break;
        }
    }
    assert!(lag(&bench) > LAG_MAX, "it lacks {}", lag(&bench));
    bench.reports.clear();
    (0..2 * CALM_TICKS).for_each(|_| say(&mut bench));
    let why = HandOver::Preferred;
    assert!(!bench.reports.contains(&Report::HandingOver { to: NodeId(2), why }));
    let offers = offered(&mut bench, CALM_TICKS + 2, &[(2, &good), (3, &other)]);
    assert_eq!(offers.iter().map(|it| it.1).collect::<Vec<_>>(), [2]);
    assert!(offers[0].0 + 2 >= CALM_TICKS, "{offers:?}");
}

/// A voter never takes over. The waits between offers to it grow to 2, 4, 8 and 16 times the first
/// wait, and no further.
#[test]
fn an_offer_that_does_not_hold_is_repeated_after_twice_as_long_up_to_a_limit() {
    let leaders = &["a"][..];
    let mut bench = led("c", leaders);
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    let offers = offered(&mut bench, 60 * CALM_TICKS, &[(2, &good), (3, &other)]);
    let at: Vec<usize> = offers.iter().map(|it| it.0).collect();
    let waits: Vec<usize> = at.windows(2).map(|two| (two[1] - two[0]) / CALM_TICKS).collect();
    assert!(waits.starts_with(&[2, 4, 8, 16]), "{waits:?} of {at:?}");
    assert!(waits.iter().all(|wait| *wait <= 16), "{waits:?}");
}

/// If the preferred voter is silent for a moment, its wait begins again.
#[test]
fn a_voter_that_comes_and_goes_is_not_preferred() {
    let leaders = &["a"][..];
    let mut bench = led("c", leaders);
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    for _ in 0..20 {
        let both = [(2, &good), (3, &other)];
        assert_eq!(offered(&mut bench, CALM_TICKS / 2, &both), []);
        assert_eq!(offered(&mut bench, ELECTION_TICKS + 2, &both[1..]), []);
    }
}

/// A follower reports its zone. It reports that it could lead only while it reaches a majority.
#[test]
fn a_follower_says_whether_it_reaches_a_majority() {
    let mut bench = Bench::new(&[1, 2, 3]);
    let said = |bench: &mut Bench| {
        bench.sent();
        let beat = message(MessageKind::Heartbeat, 1);
        bench.take(2, &beat).expect("a heartbeat is taken");
        bench.persist();
        let mut sent = bench.sent().into_iter().map(|out| out.message);
        let answer = sent.rfind(|it| it.kind == MessageKind::HeartbeatResponse);
        answer.expect("an answer").context
    };
    assert_eq!(VoterStatus::decode(&said(&mut bench)).expect("a status").zone, None);
    bench.replica.place(Placement { zone: Some(zone("a")), leaders: zones(&["a"]) });
    let status = |bench: &mut Bench| VoterStatus::decode(&said(bench)).expect("a status");
    assert_eq!(status(&mut bench), VoterStatus { is_fit: false, ..fit("a", &["a"]) });
    bench.replica.handle_reached(bench.now_ns, NodeId(3));
    assert_eq!(status(&mut bench), fit("a", &["a"]));
    bench.now_ns += 1_100 * MS;
    bench.now_ns -= bench.now_ns % TICK_NS;
    assert!(!status(&mut bench).is_fit, "that was long ago");
}

/// The zone of a lost voter may well exist. But a voter that is heard and reports no zone is in no
/// zone.
#[test]
fn no_zone_is_reported_empty_while_a_voter_is_silent() {
    let leaders = &["b", "a"][..];
    let mut bench = led("a", leaders);
    let near = fit("a", leaders);
    offered(&mut bench, 2 * CALM_TICKS, &[(2, &near)]);
    assert!(bench.is_leader());
    assert_eq!(bench.replica.empty_zones(), []);
    bench.ack(3, bench.status().last);
    assert_eq!(bench.replica.empty_zones(), zones(&["b"]));
    // Node 3 has reported its zone once, and is then lost.
    let far = fit("b", leaders);
    offered(&mut bench, 2, &[(2, &near), (3, &far)]);
    offered(&mut bench, CALM_TICKS, &[(2, &near)]);
    assert_eq!(bench.replica.empty_zones(), []);
}

#[test]
fn empty_zones_are_reported_once_all_voters_had_time_to_name_theirs() {
    let leaders = &["a", "zone-1"][..];
    let mut bench = led("b", leaders);
    let (one, other) = (fit("a", leaders), fit("b", leaders));
    let both = [(2, &one), (3, &other)];
    offered(&mut bench, CALM_TICKS / 2, &both);
    assert_eq!(bench.replica.empty_zones(), [], "too early");
    let mut bench = led("a", leaders);
    offered(&mut bench, CALM_TICKS + 2, &both);
    assert_eq!(bench.replica.empty_zones(), zones(&["zone-1"]));
    let placed: Vec<_> =
        bench.replica.placed().into_iter().map(|it| it.zone.map(|it| it.to_string())).collect();
    assert_eq!(placed, ["a", "a", "b"].map(|name| Some(name.to_owned())));
    let agree = |bench: &Bench| bench.replica.placed().iter().all(|it| it.agrees);
    assert!(agree(&bench));
    offered(&mut bench, 1, &[(3, &fit("b", &["b"]))]);
    assert!(!agree(&bench), "node 3 would have leaders elsewhere");
}

/// The settings of the cluster have leader zones, but the nodes have no zone.
#[test]
fn a_leader_without_a_zone_hands_over_and_reports_voters_without_one() {
    let leaders = &["a"][..];
    let mut bench = led("b", leaders);
    bench.replica.place(Placement { zone: None, leaders: zones(leaders) });
    let near = fit("a", leaders);
    offered(&mut bench, CALM_TICKS - 2, &[(2, &near)]);
    assert_eq!(bench.replica.voters_without_zone(), [], "too early");
    bench.ack(3, bench.status().last);
    let offers = offered(&mut bench, 4, &[(2, &near)]);
    assert!(matches!(offers[..], [(_, 2)]), "{offers:?}");
    let mut bench = led("b", leaders);
    bench.replica.place(Placement { zone: None, leaders: zones(leaders) });
    let far = fit("b", leaders);
    offered(&mut bench, CALM_TICKS, &[(2, &far)]);
    assert_eq!(bench.replica.voters_without_zone(), [NodeId(1)], "node 3 is not heard");
    bench.ack(3, bench.status().last);
    assert_eq!(bench.replica.voters_without_zone(), [NodeId(1), NodeId(3)]);
    bench.replica.place(Placement::default());
    assert_eq!(bench.replica.voters_without_zone(), [], "no place is better than another");
}

/// The report comes exactly 25 election timeouts after the election. A follower never makes it.
#[test]
fn empty_zones_are_reported_by_the_leader_after_a_number_of_ticks() {
    let leaders = &["a"][..];
    let mut bench = led("b", leaders);
    let other = fit("b", leaders);
    let both = [(2, &other), (3, &other)];
    offered(&mut bench, CALM_TICKS - 1, &both);
    assert_eq!(bench.replica.empty_zones(), []);
    offered(&mut bench, 1, &both);
    assert_eq!(bench.replica.empty_zones(), zones(leaders));
    // Node 2 is silent, but has reported its zone before.
    offered(&mut bench, 2 * ELECTION_TICKS, &both[1..]);
    assert_eq!(bench.replica.empty_zones(), zones(leaders));
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    assert_eq!(bench.replica.empty_zones(), []);
    // A leader without a range does not report empty zones.
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.place(Placement { zone: Some(zone("b")), leaders: zones(leaders) });
    bench.elect(&[2, 3]);
    for _ in 0..=CALM_TICKS {
        write_slowly(&mut bench, 0, &both);
    }
    assert!(bench.is_leader() && bench.shared.published().grant.is_none());
    assert_eq!(bench.replica.empty_zones(), []);
}

type Judged = Result<Option<ZonesInDoubt>, SettingsError>;

fn judged(bench: &Bench, leaders: &[&str], is_forced: bool) -> Judged {
    let settings = ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        max_n: 1,
        leader_zones: zones(leaders),
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    };
    bench.replica.judge_zones(&settings, is_forced)
}

/// An operator is about to set leader zones for the first time.
#[test]
fn an_unknown_zone_is_refused_as_soon_as_every_voter_has_said_where_it_is() {
    let mut bench = led("a", &[]);
    assert_eq!(judged(&bench, &[], false), Ok(None));
    assert_eq!(judged(&bench, &["a"], false), Ok(None), "this node is there");
    let unplaced = |nodes: &[u64]| nodes.iter().copied().map(NodeId).collect::<Vec<_>>();
    let doubt = judged(&bench, &["b", "a"], false).expect("nobody has said anything");
    let known =
        ZonesInDoubt { empty: zones(&["b"]), known: zones(&["a"]), unplaced: unplaced(&[2, 3]) };
    assert_eq!(doubt, Some(known.clone()));
    let (near, far) = (fit("b", &[]), fit("c", &[]));
    offered(&mut bench, 1, &[(2, &near)]);
    let doubt = judged(&bench, &["a", "b", "c"], false).expect("node 3 may be there");
    let known = ZonesInDoubt { empty: zones(&["c"]), known: zones(&["a", "b"]), ..known };
    assert_eq!(doubt, Some(ZonesInDoubt { unplaced: unplaced(&[3]), ..known.clone() }));
    // All voters have reported their zones, so the long wait for silent voters is not needed.
    offered(&mut bench, 1, &[(3, &far)]);
    assert_eq!(judged(&bench, &["c", "a", "b"], false), Ok(None));
    let refused = judged(&bench, &["c", "typo"], false).expect_err("nobody is there");
    let known = zones(&["a", "b", "c"]);
    let unknown = zones(&["typo"]);
    assert_eq!(refused, SettingsError::UnknownZones { unknown, known: known.clone() });
    let words = "LEADER_ZONES would name \"typo\", and no voter is in that zone; the voters are in a,b,c: \
                 correct the name; for a zone to come, add and promote a member there first, or set it \
                 with --force";
    assert_eq!(refused.to_string(), words);
    let forced = judged(&bench, &["c", "typo"], true).expect("it is to come");
    assert_eq!(forced, Some(ZonesInDoubt { empty: zones(&["typo"]), known, unplaced: vec![] }));
}

/// A voter that is heard but reports no zone counts as without one after enough time.
#[test]
fn a_voter_counts_as_without_a_zone_once_it_had_time_to_name_one() {
    let mut bench = led("a", &[]);
    let near = fit("b", &[]);
    offered(&mut bench, CALM_TICKS - 1, &[(2, &near)]);
    bench.ack(3, bench.status().last);
    assert!(judged(&bench, &["c"], false).is_ok(), "too early");
    offered(&mut bench, 1, &[(2, &near)]);
    bench.ack(3, bench.status().last);
    assert!(judged(&bench, &["c"], false).is_err());
    assert_eq!(judged(&bench, &["b"], false), Ok(None));
    // The silent voter may have been given a zone in the meantime.
    offered(&mut bench, 2 * ELECTION_TICKS, &[(2, &near)]);
    assert!(judged(&bench, &["c"], false).is_ok());
}
