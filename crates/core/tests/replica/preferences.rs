//! Leadership goes to better places, once, when all is calm, and to nobody who could not lead there.

use epicepoch_core::placement::Placement;
use epicepoch_core::replica::{HandOver, LAG_MAX, Report, SettingsError, ZonesInDoubt};
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::standing::{Standing, Zone, preference_of};
use epicepoch_wire::{NodeId, StoreId};

use crate::support::bench::{Bench, message};
use crate::support::{ELECTION_TICKS, MS, TICK_NS, member};

/// For how long all has to be calm before the first offer, ticks.
const CALM_TICKS: usize = 25 * ELECTION_TICKS;

fn zone(name: &str) -> Zone {
    Zone::new(name).expect("a name")
}

fn zones(names: &[&str]) -> Vec<Zone> {
    names.iter().map(|name| zone(name)).collect()
}

/// Node 1 in zone `own` leads three, and leaders should be in `leaders`.
fn led(own: &str, leaders: &[&str]) -> Bench {
    let mut bench = Bench::led(&[1, 2, 3]);
    bench.replica.place(Placement { zone: Some(zone(own)), leaders: zones(leaders) });
    bench.replica.handle_sound_clocks(vec![NodeId(2), NodeId(3)]);
    bench
}

fn fit(zone_name: &str, leaders: &[&str]) -> Standing {
    Standing { is_fit: true, preference: preference_of(&zones(leaders)), zone: zone(zone_name) }
}

/// A tick in which the others acknowledge everything and say what they are.
fn beat(bench: &mut Bench, standings: &[(u64, &Standing)]) {
    bench.tick();
    bench.persist();
    if !bench.is_leader() {
        return;
    }
    let (term, last) = (bench.status().term.0, bench.status().last);
    for (node, standing) in standings {
        let context = standing.encode();
        let said = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
        bench.take(*node, &said).expect("an answer is taken");
        bench.ack(*node, last);
    }
    bench.persist();
}

/// To whom leadership was offered because of a place, within so many ticks, and after how many.
fn offered(bench: &mut Bench, ticks: usize, standings: &[(u64, &Standing)]) -> Vec<(usize, u64)> {
    let mut offers = vec![];
    for tick in 0..ticks {
        bench.reports.clear();
        beat(bench, standings);
        offers.extend(bench.reports.iter().filter_map(|report| match report {
            Report::HandingOver { to, why: HandOver::Preferred } => Some((tick, to.0)),
            _ => None,
        }));
    }
    offers
}

#[test]
fn leadership_goes_to_the_best_place_when_all_has_been_calm_for_long() {
    let mut bench = led("c", &["a", "b"]);
    let (near, best) = (fit("b", &["a", "b"]), fit("a", &["a", "b"]));
    let both = [(2, &near), (3, &best)];
    let offers = offered(&mut bench, CALM_TICKS + 2, &both);
    // The first beat is the one in which they say where they are.
    assert_eq!(offers, [(CALM_TICKS, 3)]);
}

/// Two that are as good: to one of them, and not by turns to none.
#[test]
fn of_two_in_a_place_as_good_the_one_that_was_there_first_is_preferred() {
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

/// What the voters say of themselves.
type Said<'a> = [(u64, &'a Standing)];

/// Node 2 has moved: an entry is written, which takes the disk so many ticks.
fn write_slowly(bench: &mut Bench, ticks: usize, said: &Said) {
    let client_addr = "new:1".to_owned();
    bench.replica.handle_introduction(Member { client_addr, ..member(NodeId(2), StoreId(102)) });
    // It is proposed in the first tick, and waits for a tick in each that comes after.
    for _ in 0..=ticks {
        bench.tick();
        for (node, standing) in said {
            let context = standing.encode();
            let term = bench.status().term.0;
            let said = RaftMessage { context, ..message(MessageKind::HeartbeatResponse, term) };
            bench.take(*node, &said).expect("an answer is taken");
        }
    }
    bench.persist();
}

/// What happens to a leader, and how.
type Disturbance = (&'static str, fn(&mut Bench, &Said));

/// What a leader has to see to meanwhile is no calm.
#[test]
fn whatever_disturbs_a_leader_begins_the_time_anew() {
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
            // Nobody takes over.
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
    // A write that takes no longer than half an election timeout is nothing.
    let mut bench = led("c", leaders);
    assert_eq!(offered(&mut bench, CALM_TICKS / 2, &both), []);
    write_slowly(&mut bench, ELECTION_TICKS / 2, &both);
    let waited = CALM_TICKS / 2 + ELECTION_TICKS / 2 + 1;
    assert_eq!(offered(&mut bench, CALM_TICKS, &both), [(CALM_TICKS - waited, 2)]);
}

/// After eight times what the next offer would have to wait, it is a first one again: not a tick
/// sooner.
#[test]
fn an_offer_that_did_not_hold_is_forgotten_in_the_end() {
    let leaders = &["a"][..];
    let (good, other) = (fit("a", leaders), fit("c", leaders));
    let forgotten = 8 * 2 * CALM_TICKS;
    // Ticks from the offer to the next one, when the voter is unfit for `unfit` of them.
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
fn a_leader_in_a_place_as_good_keeps_leadership() {
    for (own, leaders) in [("a", &["a", "b"][..]), ("c", &[]), ("c", &["x"])] {
        let mut bench = led(own, leaders);
        let (same, other) = (fit("a", leaders), fit("b", leaders));
        let offers = offered(&mut bench, 3 * CALM_TICKS, &[(2, &same), (3, &other)]);
        assert_eq!(offers, [], "{own} {leaders:?}");
    }
}

/// Why a voter is not preferred: what it says of itself, and what else there is.
type Case = (&'static str, Standing, fn(&mut Bench));

/// Everything that would make the handover a loss.
#[test]
fn nobody_is_preferred_who_could_not_lead() {
    let leaders = &["a"][..];
    let good = fit("a", leaders);
    let cases: [Case; 4] = [
        ("says that it could not", Standing { is_fit: false, ..good.clone() }, |_| {}),
        ("prefers another place", fit("a", &["c"]), |_| {}),
        ("its clock is off", good.clone(), |bench| {
            bench.replica.handle_sound_clocks(vec![NodeId(3)]);
        }),
        ("gone", good.clone(), |bench| bench.ticks(2)),
    ];
    for (what, standing, prepare) in cases {
        let mut bench = led("c", leaders);
        prepare(&mut bench);
        let other = fit("c", leaders);
        let standings = [(3, &other), (2, &standing)];
        let said = if what == "gone" { &standings[..1] } else { &standings[..] };
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
    // Silent for long enough to lack more than it may; then there for long enough to be offered
    // leadership, did it not.
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

/// A voter that never takes over: it is asked after 1, 2, 4, … of the first wait, and not more
/// seldom than after 16.
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

/// A hiccup of the one that would be preferred begins its time anew.
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

/// A follower says where it is, and that it is fit only while it reaches a majority.
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
    assert_eq!(said(&mut bench), b"", "nothing without a zone");
    bench.replica.place(Placement { zone: Some(zone("a")), leaders: zones(&["a"]) });
    let standing = |bench: &mut Bench| Standing::decode(&said(bench)).expect("a standing");
    assert_eq!(standing(&mut bench), Standing { is_fit: false, ..fit("a", &["a"]) });
    bench.replica.handle_reached(bench.now_ns, NodeId(3));
    assert_eq!(standing(&mut bench), fit("a", &["a"]));
    bench.now_ns += 1_100 * MS;
    bench.now_ns -= bench.now_ns % TICK_NS;
    assert!(!standing(&mut bench).is_fit, "that was long ago");
}

/// The voter of a preferred zone is lost: that is no slip in a name. One that is heard and says no
/// zone is in none.
#[test]
fn no_zone_is_told_while_a_voter_that_may_be_there_is_silent() {
    let leaders = &["b", "a"][..];
    let mut bench = led("a", leaders);
    let near = fit("a", leaders);
    offered(&mut bench, 2 * CALM_TICKS, &[(2, &near)]);
    assert!(bench.is_leader());
    assert_eq!(bench.replica.empty_zones(), []);
    bench.ack(3, bench.status().last);
    assert_eq!(bench.replica.empty_zones(), zones(&["b"]));
    // It has said once where it is, and is lost.
    let far = fit("b", leaders);
    offered(&mut bench, 2, &[(2, &near), (3, &far)]);
    offered(&mut bench, CALM_TICKS, &[(2, &near)]);
    assert_eq!(bench.replica.empty_zones(), []);
}

#[test]
fn zones_that_no_voter_is_in_are_told_once_there_was_time_to_hear_of_them() {
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

/// Leaders are wanted somewhere by the settings of the cluster, and nodes were told no zone of their own.
#[test]
fn a_leader_without_a_zone_hands_over_and_says_who_has_none() {
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

/// 25 election timeouts after the election, to the tick; and no follower says it.
#[test]
fn empty_zones_are_told_after_so_many_ticks_by_the_leader() {
    let leaders = &["a"][..];
    let mut bench = led("b", leaders);
    let other = fit("b", leaders);
    let both = [(2, &other), (3, &other)];
    offered(&mut bench, CALM_TICKS - 1, &both);
    assert_eq!(bench.replica.empty_zones(), []);
    offered(&mut bench, 1, &both);
    assert_eq!(bench.replica.empty_zones(), zones(leaders));
    // Node 2 is silent: it has said where it is.
    offered(&mut bench, 2 * ELECTION_TICKS, &both[1..]);
    assert_eq!(bench.replica.empty_zones(), zones(leaders));
    let term = bench.status().term.0 + 1;
    bench.take(2, &message(MessageKind::Heartbeat, term)).expect("a heartbeat is taken");
    assert_eq!(bench.replica.empty_zones(), []);
    // Whoever leads and owns nothing has other troubles.
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
    };
    bench.replica.judge_zones(&settings, is_forced)
}

/// Where leaders are wanted nowhere yet: an operator is about to say so for the first time.
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
    // It need not be calm for as long as a leader waits who has to believe in silence.
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

/// It is heard and says no zone: once there was time to say one it is in none.
#[test]
fn a_voter_without_a_zone_is_in_none_once_there_was_time_to_say_one() {
    let mut bench = led("a", &[]);
    let near = fit("b", &[]);
    offered(&mut bench, CALM_TICKS - 1, &[(2, &near)]);
    bench.ack(3, bench.status().last);
    assert!(judged(&bench, &["c"], false).is_ok(), "too early");
    offered(&mut bench, 1, &[(2, &near)]);
    bench.ack(3, bench.status().last);
    assert!(judged(&bench, &["c"], false).is_err());
    assert_eq!(judged(&bench, &["b"], false), Ok(None));
    // Silent, it may have begun to be somewhere.
    offered(&mut bench, 2 * ELECTION_TICKS, &[(2, &near)]);
    assert!(judged(&bench, &["c"], false).is_ok());
}
