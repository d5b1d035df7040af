//! Which voters a round asks. A quorum of answers proves as much as all of them, and each question
//! costs both ends a message. So a round of a busy worker first asks the quorum that has answered
//! fastest, and the other voters only when an answer is late. From time to time a round asks all,
//! so that the times of each voter stay known. A round that comes alone also asks all: to look for
//! its late answers would cost more than the messages.
//!
//! Any choice is safe: only [`super::Rounds`] decides whether the answers are a quorum. An answer
//! is late after the smoothed round trip plus four times its variation, as in RFC 6298, within
//! limits. On a network with round trips above the upper limit, all voters are asked.

use epicepoch_wire::{NodeId, Round};

use crate::quorum::{VoterSet, Voters};

/// A round asks all voters if none has for this time, nanoseconds.
const ALL_EVERY_NS: u64 = 50_000_000;
/// An answer is never late before this time, nanoseconds. A thread that has to wait for a processor
/// needs as long.
const LATE_NS_MIN: u64 = 1_000_000;
/// An answer is always late after this time, nanoseconds. Longer round trips count as so long.
const LATE_NS_MAX: u64 = 20_000_000;

/// The times of the voters that one worker asks, and whom it has asked.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// A round comes alone if the one before began so long ago, nanoseconds.
    alone_ns: u64,
    /// When the newest round began, monotonic nanoseconds.
    begun_ns: u64,
    times: Vec<Times>,
    /// When a round last asked all voters, monotonic nanoseconds.
    all_ns: Option<u64>,
    /// The newest round, and the voters that it has asked.
    newest: (Round, VoterSet),
    /// The time after which an answer to the newest round is late, nanoseconds. An older round in
    /// flight is judged by it, too.
    late_ns: u64,
    /// Whether voters are left that the newest round can ask.
    is_part: bool,
}

/// How fast a voter answers.
#[derive(Clone, Copy, Debug)]
struct Times {
    node: NodeId,
    /// `None` until the first answer.
    round_trip: Option<RoundTrip>,
    /// The first round that was asked over this link and got no yes, and when, monotonic
    /// nanoseconds.
    open: Option<(Round, u64)>,
}

/// A smoothed round trip and its variation, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
}

impl RoundTrip {
    const fn first(ns: u64) -> Self {
        Self { smoothed_ns: ns, variation_ns: ns / 2 }
    }

    const fn with(self, ns: u64) -> Self {
        let off_ns = self.smoothed_ns.abs_diff(ns);
        Self {
            smoothed_ns: self.smoothed_ns - self.smoothed_ns / 8 + ns / 8,
            variation_ns: self.variation_ns - self.variation_ns / 4 + off_ns / 4,
        }
    }
}

impl Times {
    fn late_ns(&self) -> u64 {
        let late_ns =
            self.round_trip.map_or(0, |it| it.smoothed_ns.saturating_add(4 * it.variation_ns));
        late_ns.clamp(LATE_NS_MIN, LATE_NS_MAX)
    }

    /// The lower, the sooner the voter is asked: those that are late come last, and before them
    /// those that have never answered.
    fn rank(&self, now_ns: u64) -> (bool, u64) {
        let is_late = self.open.is_some_and(|(_, at)| now_ns.saturating_sub(at) > self.late_ns());
        (is_late, self.round_trip.map_or(u64::MAX, |it| it.smoothed_ns))
    }
}

impl Asking {
    pub(super) const fn new(alone_ns: u64) -> Self {
        Self {
            alone_ns,
            begun_ns: 0,
            times: Vec::new(),
            all_ns: None,
            newest: (Round(0), VoterSet::NONE),
            late_ns: 0,
            is_part: false,
        }
    }

    /// Chooses the voters that a new round asks: the fastest of those that are `up` and in time, so
    /// that they are a quorum together with `own`, this node's own answer. Chooses all that are up
    /// if there is no such quorum, if the round comes alone, and from time to time.
    pub(super) fn choose(
        &mut self,
        voters: &Voters,
        round: Round,
        (own, up): (VoterSet, VoterSet),
        now_ns: u64,
    ) -> VoterSet {
        let is_due = |at| now_ns.saturating_sub(at) >= ALL_EVERY_NS;
        let is_alone = now_ns.saturating_sub(self.begun_ns) >= self.alone_ns;
        self.begun_ns = now_ns;
        let asked = if is_alone || self.all_ns.is_none_or(is_due) {
            self.all_ns = Some(now_ns);
            self.times.retain(|it| voters.iter().any(|(node, _)| node == it.node));
            up
        } else {
            self.fastest(voters, own, up, now_ns)
        };
        self.newest = (round, asked);
        self.is_part = up.without(asked) != VoterSet::NONE;
        self.late_ns = 0;
        for (position, (node, _)) in voters.iter().enumerate() {
            if !up.contains(position) {
                self.forget_open(node);
            } else if asked.contains(position) {
                let late_ns = self.record_asked(node, round, now_ns);
                self.late_ns = self.late_ns.max(late_ns);
            }
        }
        asked
    }

    /// The voters that are `up` and that the round has not asked yet. They count as asked from now
    /// on.
    pub(super) fn rest(
        &mut self,
        voters: &Voters,
        round: Round,
        up: VoterSet,
        now_ns: u64,
    ) -> VoterSet {
        let (newest, asked) = self.newest;
        let asked = if newest == round { asked } else { VoterSet::NONE };
        let rest = up.without(asked);
        self.newest = (round, asked.with(rest));
        self.is_part = false;
        for (position, (node, _)) in voters.iter().enumerate() {
            if rest.contains(position) {
                self.record_asked(node, round, now_ns);
            }
        }
        rest
    }

    /// Whether an answer to a round that began at `begun_ns` is late.
    pub(super) const fn is_late(&self, begun_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(begun_ns) >= self.late_ns
    }

    /// Whether voters are left that the newest round can ask.
    pub(super) const fn is_part(&self) -> bool {
        self.is_part
    }

    /// Takes the time of a yes. A voter that says no is late until it says yes.
    pub(super) fn handle_yes(&mut self, node: NodeId, round: Round, now_ns: u64) {
        let Some(times) = self.times.iter_mut().find(|it| it.node == node) else { return };
        // The answer to an earlier round says nothing about the time since the first open one.
        if let Some((_, asked_ns)) = times.open.take_if(|(first, _)| *first <= round) {
            let ns = now_ns.saturating_sub(asked_ns).min(LATE_NS_MAX);
            let first = || RoundTrip::first(ns);
            times.round_trip = Some(times.round_trip.map_or_else(first, |it| it.with(ns)));
        }
    }

    fn fastest(&self, voters: &Voters, own: VoterSet, up: VoterSet, now_ns: u64) -> VoterSet {
        let mut asked = VoterSet::NONE;
        loop {
            let missing = voters.missing(asked.with(own));
            if missing == VoterSet::NONE {
                return asked;
            }
            let useful = up.without(asked);
            let candidates = voters
                .iter()
                .enumerate()
                .filter(|(position, _)| useful.contains(*position) && missing.contains(*position));
            let ranked = candidates.map(|(at, (node, _))| (self.rank(node, now_ns), at));
            match ranked.min() {
                Some(((false, _), position)) => asked.insert(position),
                // Without those that are late there is no quorum, so the first answers decide.
                Some(((true, _), _)) | None => return up,
            }
        }
    }

    /// The link to a voter has ended. No answer comes to what was asked over it.
    fn forget_open(&mut self, node: NodeId) {
        if let Some(times) = self.times.iter_mut().find(|it| it.node == node) {
            times.open = None;
        }
    }

    fn rank(&self, node: NodeId, now_ns: u64) -> (bool, u64) {
        let times = self.times.iter().find(|it| it.node == node);
        times.map_or((false, u64::MAX), |it| it.rank(now_ns))
    }

    /// Records a question to a voter. Returns the time after which its answer is late, nanoseconds.
    fn record_asked(&mut self, node: NodeId, round: Round, now_ns: u64) -> u64 {
        let known = self.times.iter().position(|it| it.node == node);
        let at = known.unwrap_or_else(|| {
            self.times.push(Times { node, round_trip: None, open: None });
            self.times.len() - 1
        });
        let times = &mut self.times[at];
        times.open.get_or_insert((round, now_ns));
        times.late_ns()
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::StoreId;
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const ALL: VoterSet = VoterSet::of(&[0, 1, 2, 3, 4, 5, 6]);

    fn voters(incoming: &[u64], outgoing: &[u64]) -> Voters {
        let ids = |list: &[u64]| list.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        Voters::new(&ids(incoming), &ids(outgoing), |id| StoreId(u128::from(id.0)))
    }

    /// A worker of node 1, at position 0, that has just asked all voters. Voter N has answered
    /// after N milliseconds.
    fn asking(voters: &Voters) -> Asking {
        let mut asking = Asking::new(u64::MAX);
        let up = ALL.without(VoterSet::of(&[0]));
        assert_eq!(asking.choose(voters, Round(1), (VoterSet::of(&[0]), up), 0), up, "all");
        for (node, _) in voters.iter() {
            asking.handle_yes(node, Round(1), node.0 * MS);
        }
        asking
    }

    fn ask(asking: &mut Asking, voters: &Voters, round: u64, up: &[usize], ns: u64) -> VoterSet {
        let (own, up) = (VoterSet::of(&[0]), VoterSet::of(up));
        asking.choose(voters, Round(round), (own, up), ns)
    }

    #[test]
    fn the_fastest_quorum_is_asked_and_all_from_time_to_time() {
        let five = voters(&[1, 2, 3, 4, 5], &[]);
        let mut asking = asking(&five);
        let all = [1, 2, 3, 4];
        assert_eq!(ask(&mut asking, &five, 2, &all, 10 * MS), VoterSet::of(&[1, 2]));
        assert_eq!(ask(&mut asking, &five, 3, &[2, 3, 4], 10 * MS), VoterSet::of(&[2, 3]));
        // The link to node 2 had ended, so no answer of it is missing. Nodes 3 and 4 are late.
        assert_eq!(ask(&mut asking, &five, 4, &all, 48 * MS), VoterSet::of(&[1, 4]));
        let late = VoterSet::of(&[2, 3]);
        assert_eq!(ask(&mut asking, &five, 5, &[2, 3], 49 * MS), late, "no other link");
        assert_eq!(ask(&mut asking, &five, 6, &all, 50 * MS), VoterSet::of(&all));
    }

    #[test]
    fn a_leader_that_is_no_voter_asks_a_quorum_of_the_others() {
        let three = voters(&[2, 3, 4], &[]);
        let mut asking = Asking::new(u64::MAX);
        let up = VoterSet::of(&[0, 1, 2]);
        asking.choose(&three, Round(1), (VoterSet::NONE, up), 0);
        [2, 4, 3].iter().zip(1..).for_each(|(node, at)| {
            asking.handle_yes(NodeId(*node), Round(1), at * MS);
        });
        let asked = asking.choose(&three, Round(2), (VoterSet::NONE, up), 9 * MS);
        assert_eq!(asked, VoterSet::of(&[0, 2]));
    }

    #[test]
    fn each_half_of_a_joint_configuration_gets_its_quorum() {
        // Positions: 1, 2, 3 | 4, 5. Node 2 is the fastest, and a quorum of the first half with 1.
        let joint = voters(&[1, 4, 5], &[1, 2, 3]);
        let mut asking = asking(&joint);
        let asked = ask(&mut asking, &joint, 2, &[1, 2, 3, 4], 10 * MS);
        assert_eq!(asked, VoterSet::of(&[1, 3]));
    }

    #[test]
    fn a_voter_that_does_not_answer_is_asked_last_until_it_answers() {
        let three = voters(&[1, 2, 3], &[]);
        let mut asking = asking(&three);
        let (second, third) = (VoterSet::of(&[1]), VoterSet::of(&[2]));
        assert_eq!(ask(&mut asking, &three, 2, &[1, 2], 10 * MS), second);
        assert_eq!(ask(&mut asking, &three, 3, &[1, 2], 11 * MS), second);
        // Its first round trip took 2 ms, with a variation of 1 ms.
        assert!(!asking.is_late(10 * MS, 16 * MS - 1) && asking.is_late(10 * MS, 16 * MS));
        assert_eq!(ask(&mut asking, &three, 4, &[1, 2], 16 * MS + 1), third);
        assert_eq!(ask(&mut asking, &three, 5, &[1], 17 * MS), second, "no other link");
        // An answer to a round before the first open one is no sign of life.
        asking.handle_yes(NodeId(2), Round(1), 18 * MS);
        asking.handle_yes(NodeId(3), Round(4), 18 * MS);
        assert_eq!(ask(&mut asking, &three, 6, &[1, 2], 18 * MS), third);
        asking.handle_yes(NodeId(2), Round(5), 19 * MS);
        assert_eq!(ask(&mut asking, &three, 7, &[1, 2], 19 * MS), second, "it is faster again");
    }

    #[test]
    fn the_rest_of_the_newest_round_is_asked_once() {
        let five = voters(&[1, 2, 3, 4, 5], &[]);
        let mut asking = asking(&five);
        let all = VoterSet::of(&[1, 2, 3, 4]);
        assert_eq!(ask(&mut asking, &five, 2, &[1, 2, 3, 4], 10 * MS), VoterSet::of(&[1, 2]));
        let mut rest = |round, ns| asking.rest(&five, Round(round), all, ns);
        assert_eq!(rest(2, 15 * MS), VoterSet::of(&[3, 4]));
        assert_eq!(rest(2, 16 * MS), VoterSet::NONE);
        // A link has connected again after the round began.
        assert_eq!(rest(3, 16 * MS), all);
    }

    #[test]
    fn nothing_is_late_within_a_millisecond() {
        let three = voters(&[1, 2, 3], &[]);
        let mut asking = Asking::new(u64::MAX);
        ask(&mut asking, &three, 1, &[1, 2], 0);
        asking.handle_yes(NodeId(2), Round(1), 50_000);
        ask(&mut asking, &three, 2, &[1, 2], 100_000);
        assert!(
            !asking.is_late(100_000, 100_000 + MS - 1) && asking.is_late(100_000, 100_000 + MS)
        );
    }

    #[test]
    fn a_round_that_comes_alone_asks_all() {
        let three = voters(&[1, 2, 3], &[]);
        let mut asking = asking(&three);
        asking.alone_ns = MS;
        let (second, both) = (VoterSet::of(&[1]), VoterSet::of(&[1, 2]));
        for (round, micros, asked) in [(2, 10_000, both), (3, 10_999, second), (4, 11_999, both)] {
            let at_ns = micros * 1_000;
            assert_eq!(ask(&mut asking, &three, round, &[1, 2], at_ns), asked, "{round}");
            asking.handle_yes(NodeId(2), Round(round), at_ns + 1);
            asking.handle_yes(NodeId(3), Round(round), at_ns + MS);
        }
    }

    /// The voter was away, and answers as fast as ever when it is back. It is not waited for longer.
    #[test]
    fn a_voter_that_was_away_for_an_hour_is_not_waited_for_longer_than_the_limit() {
        const HOUR: u64 = 3_600_000 * MS;
        let three = voters(&[1, 2, 3], &[]);
        for is_link_noticed in [true, false] {
            let mut asking = asking(&three);
            ask(&mut asking, &three, 2, &[1, 2], HOUR);
            asking.handle_yes(NodeId(2), Round(2), HOUR + MS);
            let up: &[usize] = if is_link_noticed { &[1] } else { &[1, 2] };
            ask(&mut asking, &three, 3, up, HOUR + 60 * MS);
            ask(&mut asking, &three, 4, &[1, 2], 2 * HOUR);
            asking.handle_yes(NodeId(2), Round(4), 2 * HOUR + MS);
            asking.handle_yes(NodeId(3), Round(4), 2 * HOUR + MS);
            for round in 5..8 {
                ask(&mut asking, &three, round, &[2], 2 * HOUR + round * MS);
                assert!(asking.is_late(2 * HOUR, 2 * HOUR + LATE_NS_MAX), "{round}");
            }
        }
    }

    #[test]
    fn a_voter_that_says_no_is_asked_last() {
        let three = voters(&[1, 2, 3], &[]);
        let mut asking = asking(&three);
        let second = VoterSet::of(&[1]);
        assert_eq!(ask(&mut asking, &three, 2, &[1, 2], 10 * MS), second);
        // Its no does not count as an answer.
        assert_eq!(ask(&mut asking, &three, 3, &[1, 2], 17 * MS), VoterSet::of(&[2]));
        assert!(asking.is_part());
        asking.handle_yes(NodeId(2), Round(3), 18 * MS);
        assert_eq!(asking.rest(&three, Round(3), VoterSet::of(&[1, 2]), 18 * MS), second);
        assert!(!asking.is_part());
    }

    proptest! {
        /// Whatever has been answered: a choice is a quorum if those that can be asked are one, and
        /// no voter is asked over a link that is down.
        #[test]
        fn a_choice_is_a_quorum_wherever_there_is_one(
            incoming in prop::collection::btree_set(1_u64..8, 1..7),
            outgoing in prop::collection::btree_set(1_u64..8, 0..7),
            up in 0_u8..128,
            replies in prop::collection::vec((1_u64..8, 0_u64..99), 0..40),
        ) {
            let list = |set: std::collections::BTreeSet<u64>| set.into_iter().collect::<Vec<_>>();
            let voters = voters(&list(incoming), &list(outgoing));
            let own = voters.position(NodeId(1), StoreId(1));
            let own = own.map_or(VoterSet::NONE, |at| VoterSet::of(&[at]));
            let up: Vec<usize> = (0..voters.len()).filter(|at| up >> at & 1 == 1).collect();
            let up = VoterSet::of(&up).without(own);
            let (mut asking, mut now_ns) = (Asking::new(u64::MAX), 0);
            for (round, (node, ms)) in (1..).zip(replies) {
                now_ns += ms * MS / 9;
                let asked = asking.choose(&voters, Round(round), (own, up), now_ns);
                prop_assert_eq!(asked.without(up), VoterSet::NONE);
                let is_quorum = |set: VoterSet| voters.is_quorum(set.with(own));
                prop_assert_eq!(is_quorum(asked), is_quorum(up));
                asking.handle_yes(NodeId(node), Round(round), now_ns + ms * MS);
            }
        }
    }
}
