//! Tests of the checkers themselves: each accepts what is allowed and catches the smallest
//! violation.

use epicepoch_core::admin::{Answer, Denied, Done, Unsettled};
use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::publication::{EpochRange, Grant};
use epicepoch_core::replica::{ChangeError, Outgoing};
use epicepoch_core::sequencer::LATEST;
use epicepoch_core::state::{FORMAT_OF_GIVING_BACK, MembershipChange, MembershipStep, Outcome};
use epicepoch_wire::bootstrap::Genesis;
use epicepoch_wire::raft_message::{Configuration, EntryKind, LogEntry, MessageKind, RaftMessage};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{
    ClusterId, EpochIndex, Guarantee, HistoryId, Round, TimestampFormat, WorkerId,
};

use super::asking::Asked;
use super::handovers::Offer;
use super::orders::Teller;
use super::prudence::Deciding;
use super::*;
use crate::node::member;
use crate::node_set::NodeSet;
use crate::parameters::{MS, SECOND, initial_settings};

mod ranges;

const ME: Identity = Identity { node: NodeId(1), store: StoreId(101), boot: BootId(1) };
const OTHER: Identity = Identity { node: NodeId(2), store: StoreId(102), boot: BootId(2) };
const ASKER: Asker = Asker { client: 0, attempt: 1 };
const TERM: Term = Term(5);
/// Unix time at which the tests happen, nanoseconds.
const NOW_NS: u64 = 1_000 * SECOND;
/// Longer than any window or interval, nanoseconds.
const LONG_NS: u64 = 60 * SECOND;

fn broken(history: &History) -> Option<Invariant> {
    history.violation.as_ref().map(|violation| violation.invariant)
}

/// Returns the violation, if any, that the observations of `seen` cause in a fresh history.
fn of(seen: impl FnOnce(&mut History)) -> Option<Invariant> {
    let mut history = History::default();
    seen(&mut history);
    broken(&history)
}

fn range(epoch: u64, index: u64, count: u64) -> TimestampRange {
    let first = Timestamp::new(Epoch(epoch), EpochIndex(index));
    TimestampRange::new(first, count).expect("it fits")
}

/// Gives the timestamps of `range` to a request that arrived before any timestamp was given.
fn give(history: &mut History, request: Request, range: TimestampRange) {
    history.arrived(ME, request.asker, 0);
    history.answered(Given { who: ME, request, range });
}

const fn request(count: u64) -> Request {
    let (floor, shown) = (None, None);
    let guarantee = Guarantee::Quorum;
    Request {
        asker: ASKER,
        worker: 0,
        count,
        guarantee,
        floor,
        shown,
        above: Epoch(0),
        arrived_ns: 0,
    }
}

fn state() -> State {
    let genesis = Genesis {
        cluster: ClusterId(9),
        history: HistoryId(1),
        members: vec![member(NodeId(1)), member(NodeId(2))],
        floor: Epoch(0),
        removed: vec![],
    };
    State::new(&genesis)
}

fn published() -> Published {
    let voters =
        Voters::new(&[NodeId(1), NodeId(2)], &[], |node| StoreId(100 + u128::from(node.0)));
    Published { voters, ..Published::nothing(ME) }
}

/// Makes a history in which `who` owns the epochs `low..=high`, and `NOW_NS` is the latest trusted
/// time.
fn owned(who: Identity, low: u64, high: u64) -> History {
    let mut history = History { trusted_max_ns: NOW_NS, ..History::default() };
    history.check_ranges(LogIndex(1), &holding(1, who, low, high));
    history
}

/// A state of this format, in which `who` owns the last range.
fn holding(format: u32, who: Identity, low: u64, high: u64) -> State {
    State { format, owner: Some((owner(who), span(low, high))), ..state() }
}

const fn owner(who: Identity) -> Owner {
    Owner { term: TERM, node: who.node, boot: who.boot }
}

const fn span(low: u64, high: u64) -> EpochRange {
    EpochRange { low: Epoch(low), high: Epoch(high) }
}

/// Records that `ME` takes the timestamps `at`, while its trusted time is `trusted_ns` and its
/// monotonic clock shows `monotonic_ns`.
fn stamp(history: &mut History, at: TimestampRange, trusted_ns: u64, monotonic_ns: u64) {
    history.stamped(ME, TERM, at, Trusted { ns: trusted_ns, is_proved: true, monotonic_ns });
}

#[test]
fn a_timestamp_is_given_once_and_in_the_order_of_the_requests() {
    let given = |second: TimestampRange, floor: Option<Timestamp>| {
        of(|history| {
            give(history, request(10), range(7, 0, 10));
            give(history, Request { floor, ..request(10) }, second);
        })
    };
    assert_eq!(given(range(7, 10, 10), None), None);
    assert_eq!(given(range(7, 9, 10), None), Some(Invariant::Unique));
    assert_eq!(given(range(6, u64::MAX - 20, 10), None), None);
    let complete = Some(range(7, 0, 10).last());
    assert_eq!(given(range(7, 10, 10), complete), None);
    assert_eq!(given(range(6, 0, 10), complete), Some(Invariant::Order));
}

#[test]
fn a_latest_timestamp_is_between_the_answers_of_before_and_those_of_later_requests() {
    let bounds = |floor: u64, shown: u64| {
        let at = |index| Some(range(7, index, 1).first());
        Request { floor: at(floor), shown: at(shown), ..request(LATEST) }
    };
    let told = |request, index| of(|history| give(history, request, range(7, index, 1)));
    assert_eq!([5, 6].map(|index| told(bounds(5, 4), index)), [None; 2]);
    assert_eq!(told(bounds(5, 4), 4), Some(Invariant::Latest), "below a complete answer");
    assert_eq!(told(bounds(4, 5), 4), Some(Invariant::Latest), "below what was the latest");
    let later = |index| told(Request { count: 1, floor: None, ..bounds(0, 5) }, index);
    assert_eq!((later(6), later(5)), (None, Some(Invariant::Latest)));
    assert_eq!(
        of(|history| give(history, request(LATEST), range(7, 0, 2))),
        Some(Invariant::ToldOnce)
    );
    let (mut history, latest) = (History::default(), range(7, 9, 1));
    give(&mut history, request(LATEST), latest);
    assert_eq!((history.floor(), history.shown()), (None, Some(latest.first())), "it is not given");
    history.restored(Epoch(6), &[]);
    assert_eq!(history.violation.map(|it| it.invariant), Some(Invariant::Restored));
}

#[test]
fn a_request_gets_one_answer_of_the_right_size() {
    assert_eq!(of(|history| give(history, request(3), range(7, 0, 3))), None);
    assert_eq!(
        of(|history| give(history, request(3), range(7, 0, 2))),
        Some(Invariant::ToldOnce),
        "one too few"
    );
    let twice = of(|history| {
        history.arrived(ME, ASKER, 0);
        history.refused(ME, ASKER);
        history.refused(ME, ASKER);
    });
    assert_eq!(twice, Some(Invariant::ToldOnce));
    assert_eq!(of(|history| history.refused(ME, ASKER)), Some(Invariant::ToldOnce), "unasked");
    let mut waits = History::default();
    waits.arrived(ME, ASKER, 5);
    assert_eq!((waits.untold(4), waits.untold(5)), (None, Some(ASKER)));
    waits.ended(ME.boot);
    assert_eq!(waits.untold(5), None, "its run has ended");
}

#[test]
fn timestamps_after_an_advance_are_above_it_and_an_advance_has_a_bound() {
    let given = |epoch| {
        of(|history| {
            give(history, Request { above: Epoch(7), ..request(1) }, range(epoch, 0, 1));
        })
    };
    assert_eq!((given(8), given(7)), (None, Some(Invariant::Advanced)));
    let taken = |to| of(|history| history.advance_taken(NodeId(1), Epoch(to), 100));
    assert_eq!((taken(100), taken(101)), (None, Some(Invariant::Bound)));
}

#[test]
fn a_process_stamps_upwards_and_inside_its_range() {
    let mut history = owned(ME, NOW_NS, NOW_NS + 10);
    stamp(&mut history, range(NOW_NS + 1, 0, 5), NOW_NS, 1);
    stamp(&mut history, range(NOW_NS + 1, 5, 5), NOW_NS, 2);
    assert_eq!(broken(&history), None);
    stamp(&mut history, range(NOW_NS + 1, 9, 5), NOW_NS, 3);
    assert_eq!(broken(&history), Some(Invariant::AllocatorRises));
    let outside = |who, epoch| {
        let mut history = owned(who, NOW_NS, NOW_NS + 10);
        stamp(&mut history, range(epoch, 0, 1), NOW_NS, 1);
        broken(&history)
    };
    assert_eq!(outside(ME, NOW_NS + 10), None);
    assert_eq!(outside(ME, NOW_NS), Some(Invariant::InsideOwnedRange));
    assert_eq!(outside(ME, NOW_NS + 11), Some(Invariant::InsideOwnedRange));
    assert_eq!(outside(OTHER, NOW_NS + 10), Some(Invariant::InsideOwnedRange));
}

#[test]
fn an_epoch_is_bound_to_the_clocks_on_both_sides() {
    let stamped = |epoch, trusted_ns, heal: fn(&mut History)| {
        let mut history = owned(ME, 0, NOW_NS + 2 * LONG_NS);
        heal(&mut history);
        stamp(&mut history, range(epoch, 0, 1), trusted_ns, 1);
        broken(&history)
    };
    assert_eq!(stamped(NOW_NS, NOW_NS, |_| ()), None);
    assert_eq!(stamped(NOW_NS + LONG_NS, NOW_NS, |_| ()), Some(Invariant::Bound), "ahead");
    let asked = |history: &mut History| {
        history.advance_asked(Epoch(NOW_NS + LONG_NS));
    };
    assert_eq!(stamped(NOW_NS + LONG_NS, NOW_NS, asked), None, "an operator has moved it");
    assert_eq!(stamped(NOW_NS - LONG_NS, NOW_NS, |_| ()), None, "clocks may be wrong");
    let healthy = |history: &mut History| history.is_healthy = true;
    assert_eq!(stamped(NOW_NS - LONG_NS, NOW_NS, healthy), Some(Invariant::Bound), "behind");
    let believable =
        |history: &mut History| history.believable = Some((NOW_NS - SECOND, NOW_NS + SECOND));
    let late = stamped(NOW_NS - LONG_NS, NOW_NS - LONG_NS, believable);
    assert_eq!(late, Some(Invariant::Bound), "behind true time, and its clock with it");
    let used_up = |end| {
        let mut history = owned(ME, 0, end);
        history.is_healthy = true;
        stamp(&mut history, range(NOW_NS - LONG_NS, 0, 1), NOW_NS, 1);
        broken(&history)
    };
    assert_eq!(used_up(NOW_NS - LONG_NS), None, "it stands at the end of its range");
    assert_eq!(used_up(NOW_NS - LONG_NS + 1), Some(Invariant::Bound));
}

#[test]
fn a_round_asks_a_quorum_that_it_reaches_and_everybody_once_an_answer_is_late() {
    let asks = |incoming: &[u64], outgoing: &[u64], reached: u16, asked: u16| {
        let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        let stores = |node: NodeId| StoreId(node.0.into());
        let voters = Voters::new(&ids(incoming), &ids(outgoing), stores);
        let published = Published { voters, ..Published::nothing(ME) };
        let mut history = History::default();
        let (reached, asked) = (NodeSet::from_bits(reached), NodeSet::from_bits(asked));
        history.check_asked(NodeId(1), &published, reached, asked);
        broken(&history)
    };
    let five = [1, 2, 3, 4, 5];
    assert_eq!(asks(&five, &[], 0b11110, 0b00110), None);
    assert_eq!(asks(&five, &[], 0b11110, 0b00010), Some(Invariant::Asked));
    assert_eq!(asks(&five, &[], 0b10000, 0), None, "no quorum can be reached");
    assert_eq!(asks(&[2, 3, 4], &[], 0b1110, 0b0010), Some(Invariant::Asked), "it has no vote");
    assert_eq!(asks(&[1, 4, 5], &[1, 2, 3], 0b11110, 0b01010), None);
    assert_eq!(asks(&[1, 4, 5], &[1, 2, 3], 0b11110, 0b11000), Some(Invariant::Asked));
    let mut asked = Asked::begun(Round(1), NodeSet::default());
    assert_eq!([true, false, true, true].map(|it| asked.tick(it)), [false, false, false, true]);
    let mut history = History::default();
    history.asks_too_few(ME.node, WorkerId(0), asked);
    assert_eq!(broken(&history), Some(Invariant::Asked));
}

/// A leader of term 5, whose log ends at index 9, has offered leadership, and the other node has
/// campaigned. Its first epoch is so far ahead of the clocks.
#[test]
fn a_leader_begins_close_to_the_clocks_after_a_planned_handover() {
    let begins_as = |leader: Identity, ahead_ns: u64, last: u64, seen: fn(&mut History)| {
        let mut history = owned(ME, NOW_NS, NOW_NS + LONG_NS);
        let offer = Offer { owner: owner(ME), to: OTHER.node, last: LogIndex(9) };
        history.offers(offer);
        seen(&mut history);
        let message = RaftMessage {
            index: LogIndex(last),
            log_term: TERM,
            context: b"CampaignTransfer".to_vec(),
            ..RaftMessage::plain(MessageKind::RequestVote, ME.node, Term(6))
        };
        history.record_campaign(OTHER, &Outgoing { to: ME.node, message });
        let next = Owner { term: Term(6), ..owner(leader) };
        history.check_lead(next, Epoch(NOW_NS + ahead_ns), NOW_NS);
        broken(&history)
    };
    let begins = |ahead_ns, last, seen| begins_as(OTHER, ahead_ns, last, seen);
    let third = Identity { node: NodeId(3), ..OTHER };
    assert_eq!(begins_as(third, SECOND, 9, |_| ()), None, "another node was elected");
    assert_eq!(begins(150 * MS, 9, |_| ()), None);
    assert_eq!(begins(150 * MS + 1, 9, |_| ()), Some(Invariant::Bound));
    assert_eq!(begins(SECOND, 8, |_| ()), None, "it lacks what was given back");
    assert_eq!(begins(SECOND, 9, |history| history.owns_again(ME)), None, "the old one answers");
    let ahead = |history: &mut History| {
        stamp(history, range(NOW_NS + SECOND, 0, 1), NOW_NS + SECOND, 1);
    };
    assert_eq!(begins(SECOND + 150 * MS, 9, ahead), None, "the old one was ahead, too");
    assert_eq!(begins(SECOND + 150 * MS + 1, 9, ahead), Some(Invariant::Bound));
}

/// One node applies both entries at once, and stamps. Another one applies the first of them later.
#[test]
fn applied_state_is_the_same_everywhere_and_no_id_comes_back() {
    let applied = |index: u64, state: &State, now: &Published| {
        let mut history = History::default();
        let first = State { removed: [NodeId(3)].into(), ..self::state() };
        history.applied(ME, LogIndex(4), &first, &published());
        history.applied(OTHER, LogIndex(index), state, now);
        broken(&history)
    };
    let same = State { removed: [NodeId(3)].into(), ..state() };
    assert_eq!(applied(4, &same, &published()), None);
    assert_eq!(applied(4, &state(), &published()), Some(Invariant::Ranges));
    assert_eq!(applied(4, &same, &Published::nothing(OTHER)), Some(Invariant::Voters));
    let mut back = same;
    back.members.insert(NodeId(3), member(NodeId(3)));
    assert_eq!(applied(5, &back, &published()), Some(Invariant::Ids));
}

#[test]
fn a_grant_is_published_by_the_leader_of_its_term() {
    let grant = Some(Grant { term: TERM, boot: ME.boot, range: span(1, 9) });
    let leads = Published { role: Role::Leader, term: TERM, grant, ..published() };
    let with = |now: Published| of(|history| history.check_published(&now, now.term));
    assert_eq!(with(leads.clone()), None);
    let follows = Published { role: Role::Follower, ..leads.clone() };
    assert_eq!(with(follows), Some(Invariant::Publication));
    let later = Published { term: Term(6), ..leads.clone() };
    assert_eq!(with(later), Some(Invariant::Publication));
    let both = of(|history| {
        history.check_published(&leads, leads.term);
        let grant = Some(Grant { term: TERM, boot: OTHER.boot, range: span(1, 9) });
        history.check_published(&Published { identity: OTHER, grant, ..leads.clone() }, leads.term);
    });
    assert_eq!(both, Some(Invariant::Publication));
}

/// Makes the content of a disk: an entry of `entry_term` at index 3, and a vote for `vote` in
/// `term`.
fn disk(term: Term, vote: NodeId, entry_term: Term) -> Restored {
    let entry = |index, term| LogEntry {
        kind: EntryKind::Normal,
        term,
        index: LogIndex(index),
        data: vec![],
        context: vec![],
    };
    Restored {
        hard_state: HardState { term, vote, commit: LogIndex(1) },
        record: Record {
            index: LogIndex(1),
            term: Term(1),
            configuration: Configuration::default(),
            data: vec![],
        },
        entries: vec![entry(2, Term(1)), entry(3, entry_term)],
        positions: Positions::default(),
    }
}

fn out(kind: MessageKind) -> Outgoing {
    let message = RaftMessage::plain(kind, NodeId(2), TERM);
    Outgoing { to: NodeId(2), message: RaftMessage { index: LogIndex(3), ..message } }
}

#[test]
fn a_sent_message_was_promised_and_is_durable() {
    let vote = out(MessageKind::RequestVoteResponse);
    let released = |out: &Outgoing, promise, disk: &Restored| {
        of(|history| {
            history.record_sent(&RaftMessage { log_term: TERM, ..out.message.clone() });
            history.released(ME, out, promise, Some(disk));
        })
    };
    let voted = disk(TERM, NodeId(2), TERM);
    assert_eq!(released(&vote, TERM, &voted), None);
    assert_eq!(released(&vote, Term(4), &voted), Some(Invariant::PromiseFirst));
    let forgotten = [disk(TERM, NodeId(0), TERM), disk(Term(4), NodeId(2), TERM)];
    for disk in forgotten {
        assert_eq!(released(&vote, TERM, &disk), Some(Invariant::DurableFirst));
    }
    let ack = out(MessageKind::AppendResponse);
    assert_eq!(released(&ack, TERM, &voted), None);
    let older = disk(TERM, NodeId(2), Term(4));
    assert_eq!(released(&ack, TERM, &older), Some(Invariant::DurableFirst), "another entry");
    let mut shorter = voted;
    shorter.entries.truncate(1);
    assert_eq!(released(&ack, TERM, &shorter), Some(Invariant::DurableFirst));
}

#[test]
fn a_term_has_one_leader_and_a_voter_one_vote_in_it() {
    let leads = of(|history| {
        history.released(ME, &out(MessageKind::Heartbeat), TERM, None);
        history.released(OTHER, &out(MessageKind::Heartbeat), TERM, None);
    });
    assert_eq!(leads, Some(Invariant::OneLeader));
    let votes = |second| {
        of(|history| {
            history.promised(ME, &out(MessageKind::RequestVoteResponse));
            history.promised(ME, &out(second));
        })
    };
    assert_eq!(votes(MessageKind::RequestVoteResponse), None, "said again");
    assert_eq!(votes(MessageKind::RequestVote), Some(Invariant::DurableFirst));
}

#[test]
fn a_message_is_accepted_by_its_receiver_and_of_no_forgotten_term() {
    let taken = |boot, to, term| {
        of(|history| {
            let kind = MessageKind::HeartbeatResponse;
            let message = RaftMessage::plain(kind, NodeId(1), TERM);
            history.taken(NodeId(1), (NodeId(2), BootId(2)), &message);
            let message = RaftMessage::plain(kind, to, term);
            history.taken(NodeId(1), (NodeId(2), boot), &message);
        })
    };
    assert_eq!(taken(BootId(3), NodeId(1), TERM), None);
    assert_eq!(taken(BootId(2), NodeId(1), Term(4)), None, "it was late");
    assert_eq!(taken(BootId(3), NodeId(1), Term(4)), Some(Invariant::DurableFirst));
    assert_eq!(taken(BootId(3), NodeId(3), TERM), Some(Invariant::Possible));
}

#[test]
fn a_restored_history_begins_above_owned_ranges_and_given_timestamps() {
    let restored = |floor| {
        let mut history = owned(ME, 10, 20);
        history.restored(Epoch(floor), &[]);
        broken(&history)
    };
    assert_eq!((restored(20), restored(19)), (None, Some(Invariant::Restored)));
    let given = |floor| {
        of(|history| {
            give(history, request(1), range(30, 0, 1));
            history.restored(Epoch(floor), &[]);
        })
    };
    assert_eq!((given(30), given(29)), (None, Some(Invariant::Restored)));
}

fn deciding() -> Deciding {
    let voters = vec![NodeId(1), NodeId(2), NodeId(3)];
    Deciding { who: ME, monotonic_ns: NOW_NS, committed: LogIndex(100), voters }
}

#[test]
fn a_node_given_a_vote_or_leadership_was_heard_and_lacks_little() {
    let trusted = |heard_ns, last: Option<u64>| {
        of(|history| {
            history.heard(ME.boot, NodeId(2), heard_ns);
            history.trusts_with(&deciding(), "a vote", NodeId(2), last.map(LogIndex));
        })
    };
    assert_eq!(trusted(NOW_NS - 200_000_000, Some(84)), None);
    assert_eq!(trusted(NOW_NS - 200_000_001, Some(84)), Some(Invariant::CaughtUp), "silent");
    assert_eq!(trusted(NOW_NS, Some(83)), Some(Invariant::CaughtUp), "behind");
    assert_eq!(trusted(NOW_NS, None), None);
    let handed = |to| {
        of(|history| {
            history.heard(ME.boot, to, NOW_NS);
            history.hands_over(&deciding(), to, None);
        })
    };
    assert_eq!((handed(NodeId(3)), handed(NodeId(4))), (None, Some(Invariant::CaughtUp)));
}

#[test]
fn a_change_leaves_a_heard_majority_and_its_leader() {
    let changed = |steps: &[MembershipStep]| {
        of(|history| {
            history.heard(ME.boot, NodeId(2), NOW_NS);
            let change = MembershipChange { nonce: 1, steps: steps.to_vec() };
            history.changes(&deciding(), &change);
        })
    };
    let (remove, promote) = (MembershipStep::Remove, MembershipStep::Promote);
    assert_eq!(changed(&[remove(NodeId(3))]), None);
    assert_eq!(changed(&[remove(NodeId(2))]), Some(Invariant::CaughtUp), "one of two is silent");
    assert_eq!(changed(&[promote(NodeId(4))]), Some(Invariant::CaughtUp), "two of four are");
    assert_eq!(changed(&[promote(NodeId(4)), remove(NodeId(3))]), None);
    assert_eq!(changed(&[remove(NodeId(1))]), Some(Invariant::CaughtUp), "it leads");
}

/// Makes a history with a leader that used a window of 2 s and an interval of 80 ms until it
/// applied its last entry. Since then `window_ms` and `interval_ms` are in effect.
fn going_by(window_ms: u64, interval_ms: u64) -> History {
    let mut history = owned(ME, 0, NOW_NS + LONG_NS);
    for (index, reservation_ms, epoch_interval_ms) in [(4, 2_000, 80), (5, window_ms, interval_ms)]
    {
        let settings = ClusterSettings {
            reservation_ms,
            epoch_interval_ms,
            ..initial_settings(vec![], 0, TimestampFormat::Wide)
        };
        let state = State { settings: Some(settings), ..state() };
        if index == 4 {
            history.began(ME.boot, LogIndex(index), &state);
        } else {
            history.apply_settings(ME.boot, LogIndex(index), &state);
        }
    }
    history
}

#[test]
fn a_leader_reserves_by_the_window_that_counts() {
    let reserved = |window_ms, ahead_ns| {
        let mut history = going_by(window_ms, 80);
        history.reserves(ME, Epoch(NOW_NS + ahead_ns), [NOW_NS; 2]);
        broken(&history)
    };
    assert_eq!(reserved(2_000, 2 * SECOND), None);
    assert_eq!(reserved(2_000, 2 * SECOND + 1), Some(Invariant::Settings));
    assert_eq!(reserved(2_000, 2 * SECOND - 1), Some(Invariant::Settings));
    assert_eq!((reserved(1_000, 2 * SECOND), reserved(1_000, SECOND)), (None, None));
    assert_eq!(reserved(1_000, SECOND - 1), Some(Invariant::Settings));
    let mut later = going_by(1_000, 80);
    later.apply_settings(ME.boot, LogIndex(5), &state());
    later.reserves(ME, Epoch(NOW_NS + 2 * SECOND), [NOW_NS; 2]);
    assert_eq!(broken(&later), Some(Invariant::Settings), "it has applied more since");
}

#[test]
fn epochs_come_at_the_interval_that_counts() {
    const MS: u64 = 1_000_000;
    let moved = |after_ms: u64| {
        let mut history = going_by(2_000, 80);
        stamp(&mut history, range(NOW_NS, 0, 1), NOW_NS, LONG_NS);
        stamp(&mut history, range(NOW_NS, 1, 1), NOW_NS, LONG_NS + 10 * MS);
        let at = range(NOW_NS + after_ms * MS, 0, 1);
        stamp(&mut history, at, NOW_NS + after_ms * MS, LONG_NS + after_ms * MS);
        broken(&history)
    };
    assert_eq!((moved(80), moved(70)), (None, Some(Invariant::Settings)));
    let stood = |ms: u64| {
        let mut history = going_by(2_000, 80);
        history.is_healthy = true;
        stamp(&mut history, range(NOW_NS, 0, 1), NOW_NS, LONG_NS);
        stamp(&mut history, range(NOW_NS, 1, 1), NOW_NS + ms * MS, LONG_NS + ms * MS);
        broken(&history)
    };
    assert_eq!((stood(80), stood(90)), (None, Some(Invariant::Settings)));
}

#[test]
fn an_operator_is_told_only_what_is_so() {
    let by = |term| Teller { node: NodeId(1), term: Term(term), applied: LogIndex(1) };
    let changed = |is_already| -> Answer { Ok(Done::Changed { steps: vec![], is_already }) };
    let told = |outcome: Option<Outcome>, term, answer: &Answer| {
        of(|history| {
            history.leaders.insert(TERM, (OTHER.node, OTHER.boot));
            let asked = history.ordered(7);
            history.leaders.insert(Term(TERM.0 + 1), (ME.node, ME.boot));
            if let Some(outcome) = outcome {
                history.check_outcome(NodeId(2), 7, &outcome);
            }
            history.check_told(by(term), asked, answer);
        })
    };
    let (is_done, refused) = (Some(Outcome::Changed), Some(Outcome::Refused("no")));
    // An operator is told that a change is done only if its entry was applied with that outcome.
    assert_eq!(told(is_done.clone(), TERM.0, &changed(false)), None);
    assert_eq!(told(None, TERM.0, &changed(false)), Some(Invariant::Told));
    assert_eq!(told(refused.clone(), TERM.0, &changed(false)), Some(Invariant::Told));
    assert_eq!(told(refused, TERM.0, &Err(Denied::Refused("no"))), None);
    assert_eq!(told(is_done.clone(), TERM.0, &Err(Denied::Refused("no"))), Some(Invariant::Told));
    let set = Ok(Done::Set { doubt: None });
    assert_eq!(told(Some(Outcome::Set), TERM.0, &set), None);
    assert_eq!(told(None, TERM.0, &set), Some(Invariant::Told));
    // A denied change must not happen; an unsettled one may.
    let busy = Err(ChangeError::Busy.into());
    assert_eq!(told(None, TERM.0, &busy), None);
    assert_eq!(told(is_done.clone(), TERM.0, &busy), Some(Invariant::Told));
    assert_eq!(told(is_done, TERM.0, &Err(Denied::Unsettled(Unsettled::Members))), None);
    // A leader must not answer "already" if another leader had acted in a higher term before the
    // command came.
    assert_eq!(told(None, TERM.0, &changed(true)), None);
    assert_eq!(told(None, TERM.0 - 1, &changed(true)), Some(Invariant::Told));
    // "Transferred" is true only if the successor has acted as leader in the named term.
    let transferred =
        |to| Ok(Done::Transferred { to, before: ME.node, term: TERM, is_already: false });
    assert_eq!(told(None, TERM.0, &transferred(OTHER.node)), None);
    assert_eq!(told(None, TERM.0, &transferred(NodeId(3))), Some(Invariant::Told));
}

#[test]
fn a_denied_change_that_happens_later_and_one_with_two_outcomes_are_found() {
    let late = of(|history| {
        let asked = history.ordered(7);
        let by = Teller { node: NodeId(1), term: TERM, applied: LogIndex(1) };
        history.check_told(by, asked, &Err(ChangeError::Busy.into()));
        history.check_outcome(NodeId(2), 7, &Outcome::Changed);
    });
    assert_eq!(late, Some(Invariant::Told));
    let outcomes = |second: &Outcome| {
        of(|history| {
            history.check_outcome(NodeId(1), 7, &Outcome::Changed);
            history.check_outcome(NodeId(2), 7, second);
        })
    };
    assert_eq!(outcomes(&Outcome::Changed), None);
    assert_eq!(outcomes(&Outcome::Refused("no")), Some(Invariant::Ranges));
}

#[test]
fn a_lease_that_is_used_after_a_later_leader_has_answered_is_found() {
    let mut history = History { stamped_in: Term(6), ..History::default() };
    let who = published().identity;
    history.proved_by_lease(who, Term(6));
    assert_eq!(history.violation, None);
    history.proved_by_lease(who, Term(5));
    let violation = history.violation.map(|violation| violation.invariant);
    assert_eq!(violation, Some(Invariant::Lease));
}
