//! Trusted time, the clock firewall: it moves by the monotonic clock and follows the wall clock
//! only where that is believable, so that one broken clock cannot poison the ceiling. It reads no
//! clock: samples are arguments.
//!
//! Peers' clocks are compared as in Cristian's algorithm (1989), corrected by half the round trip;
//! the median of three or more stands against any one liar (Marzullo, 1984, gives the bound).

use std::collections::BTreeMap;

use epicepoch_wire::NodeId;

use crate::planted::{self, Bug};

/// One reading of this node's own clocks, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Monotonic time of this process, nanoseconds.
    pub monotonic_ns: u64,
    /// The wall clock, Unix nanoseconds.
    pub wall_ns: u64,
}

/// What the firewall thinks of this node's wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockStatus {
    /// The wall clock is believed and followed.
    #[default]
    Followed,
    /// The wall clock is further than the bound from the median of the voters' clocks: the median
    /// is used, and leadership should go elsewhere.
    Outvoted,
    /// The wall clock jumped against the monotonic one, and too few other clocks are known to say
    /// which is right: the jump is not followed.
    Jumped,
}

/// Trusted time of one node.
///
/// Invariant: `trusted = monotonic + offset`, and `offset` changes only by [`TrustedClock::observe`].
#[derive(Debug)]
pub struct TrustedClock {
    bound_ns: u64,
    /// Trusted minus monotonic time, nanoseconds.
    offset_ns: i128,
    last: ClockReading,
    status: ClockStatus,
    peers: BTreeMap<NodeId, PeerClock>,
    /// Whether the wall clock was ever held against another one, or has none to be held against.
    has_history: bool,
}

/// A peer's wall clock as last sampled.
#[derive(Clone, Copy, Debug)]
struct PeerClock {
    /// Peer's wall clock minus this node's monotonic time, nanoseconds.
    offset_ns: i128,
    sampled_at_ns: u64,
}

impl TrustedClock {
    /// A sample older than this says nothing any more, nanoseconds. Long enough to outlive an
    /// election, short enough that drift (200 ppm at worst) stays below a millisecond.
    pub const SAMPLE_AGE_MAX_NS: u64 = 5_000_000_000;

    /// A clock that starts at the wall clock; `bound_ns` is `CLOCK_OFFSET_MAX_MS` in nanoseconds.
    #[must_use]
    pub fn new(bound_ns: u64, reading: ClockReading) -> Self {
        Self {
            bound_ns,
            offset_ns: i128::from(reading.wall_ns) - i128::from(reading.monotonic_ns),
            last: reading,
            status: ClockStatus::Followed,
            peers: BTreeMap::new(),
            has_history: false,
        }
    }

    /// Takes in a peer's clock: it answered `wall_ns` to a ping sent at `sent_ns` and received back
    /// at `received_ns`, both on this node's monotonic clock. A round trip longer than the bound
    /// says nothing and is dropped; returns whether the sample was taken.
    pub fn handle_sample(
        &mut self,
        peer: NodeId,
        wall_ns: u64,
        sent_ns: u64,
        received_ns: u64,
    ) -> bool {
        let Some(round_trip_ns) = received_ns.checked_sub(sent_ns) else {
            return false;
        };
        if round_trip_ns > self.bound_ns {
            return false;
        }
        let wall_now = i128::from(wall_ns) + i128::from(round_trip_ns / 2);
        let offset_ns = wall_now - i128::from(received_ns);
        self.peers.insert(peer, PeerClock { offset_ns, sampled_at_ns: received_ns });
        true
    }

    /// Forgets every sample of a node that is no voter any more.
    pub fn retain_peers(&mut self, is_voter: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_voter(*node));
    }

    /// Takes in a reading of this node's clocks and decides what to follow. `voters` is how many
    /// voters the configuration has, `before_ns` a time that somebody has trusted: the replicated
    /// ceiling without the reservation, which runs ahead of every right clock.
    ///
    /// A clock is right when a majority of the voters is near it, for only a minority is broken: the
    /// unheard count as disagreeing. Short of that, what was trusted before goes on.
    pub fn observe(&mut self, reading: ClockReading, voters: usize, before_ns: u64) -> ClockStatus {
        let own = i128::from(reading.wall_ns) - i128::from(reading.monotonic_ns);
        let mut clocks = self.known_peers(reading.monotonic_ns);
        clocks.push(own);
        clocks.sort_unstable();
        // The lower median: of an even number, the earlier of the two, which is the safe one.
        let median = clocks[(clocks.len() - 1) / 2];
        let is_near = |a: i128, b: i128| (a - b).abs() <= i128::from(self.bound_ns);
        let is_majority = |of: i128| {
            let near = clocks.iter().filter(|clock| is_near(**clock, of)).count();
            near > voters / 2 || planted::is(Bug::MedianOfKnown) && clocks.len() > 2
        };
        // A single voter is its own majority, and cannot tell a jump.
        let is_proved = voters > 1 && is_majority(median);
        let is_as_before = self.has_history && clocks.len() > 2 && is_near(median, self.offset_ns);
        let (status, offset) = if planted::is(Bug::JumpFollowed) {
            self.has_history |= clocks.len() > voters / 2;
            (ClockStatus::Followed, own)
        } else if is_proved || is_as_before {
            self.has_history = true;
            if is_near(own, median) {
                (ClockStatus::Followed, own)
            } else {
                (ClockStatus::Outvoted, median)
            }
        } else if !self.has_history {
            self.started(own, &clocks, reading, voters, before_ns)
        } else if is_near(own, self.offset_ns) || voters > 1 && is_majority(own) {
            // Slow changes are the clock being disciplined; only a jump is suspicious.
            (ClockStatus::Followed, own)
        } else {
            (ClockStatus::Jumped, self.offset_ns)
        };
        self.offset_ns = offset;
        self.status = status;
        self.last = reading;
        status
    }

    /// At a start there is no history to hold the wall clock against. Clocks that disagree cannot say
    /// who is right, so the earliest is believed that is not below what others trusted before: being
    /// behind is safe and heals, being ahead poisons the ceiling. Of a majority of the voters' clocks
    /// one at least is right, so from then on there is a history. A single voter has only the
    /// ceiling: a clock that is not below that starts the history.
    fn started(
        &mut self,
        own: i128,
        clocks: &[i128],
        reading: ClockReading,
        voters: usize,
        before_ns: u64,
    ) -> (ClockStatus, i128) {
        if planted::is(Bug::RestartTrustsWall) {
            self.has_history = true;
            return (ClockStatus::Followed, own);
        }
        let bound = i128::from(self.bound_ns);
        let is_behind = |offset: i128| {
            let wall = offset + i128::from(reading.monotonic_ns);
            wall + bound < i128::from(before_ns)
        };
        self.has_history =
            if voters <= 1 { reading.wall_ns >= before_ns } else { clocks.len() > voters / 2 };
        let earliest = clocks.iter().copied().find(|clock| !is_behind(*clock)).unwrap_or(clocks[0]);
        if (own - earliest).abs() <= bound {
            (ClockStatus::Followed, own)
        } else if is_behind(own) {
            (ClockStatus::Outvoted, earliest)
        } else {
            (ClockStatus::Jumped, earliest)
        }
    }

    /// Whether trusted time rests on more than this node's own word since its start: the clocks of a
    /// majority of the voters are known, or have been. Until then a leader waits before it reserves: a
    /// node that starts an hour ahead must not carry the ceiling there.
    #[must_use]
    pub fn is_compared(&self, voters: usize) -> bool {
        self.has_history || voters <= 1
    }

    fn known_peers(&self, now_ns: u64) -> Vec<i128> {
        let is_fresh = |peer: &&PeerClock| {
            now_ns.saturating_sub(peer.sampled_at_ns) <= Self::SAMPLE_AGE_MAX_NS
        };
        self.peers.values().filter(is_fresh).map(|peer| peer.offset_ns).collect()
    }

    /// Trusted minus monotonic time, nanoseconds; what the workers add to their own reading.
    #[must_use]
    pub fn offset_ns(&self) -> i64 {
        i64::try_from(self.offset_ns).unwrap_or(if self.offset_ns < 0 {
            i64::MIN
        } else {
            i64::MAX
        })
    }

    /// Trusted time at a monotonic time, Unix nanoseconds; never below 0.
    #[must_use]
    pub fn trusted_ns(&self, monotonic_ns: u64) -> u64 {
        trusted_ns(monotonic_ns, self.offset_ns())
    }

    /// What the firewall thinks of the wall clock.
    #[must_use]
    pub const fn status(&self) -> ClockStatus {
        self.status
    }

    /// How far a peer's wall clock was ahead of this node's, nanoseconds, when both were last
    /// read; for people and metrics, and to choose whom to hand leadership to.
    #[must_use]
    pub fn peer_offsets(&self) -> Vec<(NodeId, i64)> {
        let own = i128::from(self.last.wall_ns) - i128::from(self.last.monotonic_ns);
        let ahead = |peer: &PeerClock| {
            i64::try_from(peer.offset_ns - own).unwrap_or(if peer.offset_ns < own {
                i64::MIN
            } else {
                i64::MAX
            })
        };
        self.peers.iter().map(|(node, peer)| (*node, ahead(peer))).collect()
    }

    /// Whether a peer's clock was within the bound of trusted time when it was last sampled.
    #[must_use]
    pub fn is_peer_trusted(&self, node: NodeId) -> bool {
        let near =
            |peer: &PeerClock| (peer.offset_ns - self.offset_ns).abs() <= i128::from(self.bound_ns);
        let is_fresh = |peer: &PeerClock| {
            let age_ns = self.last.monotonic_ns.saturating_sub(peer.sampled_at_ns);
            age_ns <= Self::SAMPLE_AGE_MAX_NS
        };
        self.peers.get(&node).is_some_and(|peer| is_fresh(peer) && near(peer))
    }
}

/// Trusted time from a monotonic reading and a published offset, Unix nanoseconds; never below 0.
#[must_use]
pub fn trusted_ns(monotonic_ns: u64, offset_ns: i64) -> u64 {
    monotonic_ns.saturating_add_signed(offset_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const HOUR: u64 = 3_600 * S;
    const BOUND: u64 = S / 2;
    /// Wall time at monotonic time 0.
    const START: u64 = 1_700_000_000 * S;

    fn at(monotonic_ns: u64, wall_ns: u64) -> ClockReading {
        ClockReading { monotonic_ns, wall_ns }
    }

    fn healthy(monotonic_ns: u64) -> ClockReading {
        at(monotonic_ns, START + monotonic_ns)
    }

    fn sample(clock: &mut TrustedClock, peer: u64, now: u64, wall: u64) {
        assert!(clock.handle_sample(NodeId(peer), wall, now, now));
    }

    /// A clock of three voters that has run well for a second.
    fn trio() -> TrustedClock {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        sample(&mut clock, 2, S, START + S);
        sample(&mut clock, 3, S, START + S);
        assert_eq!(clock.observe(healthy(S), 3, START), ClockStatus::Followed);
        clock
    }

    #[test]
    fn a_clock_set_an_hour_ahead_or_back_is_outvoted_and_followed_again_when_it_is_right() {
        for wrong in [START + 2 * S + HOUR, START + 2 * S - HOUR] {
            let mut clock = trio();
            assert_eq!(clock.observe(at(2 * S, wrong), 3, START), ClockStatus::Outvoted);
            assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
            assert_eq!(clock.observe(healthy(3 * S), 3, START), ClockStatus::Followed);
            assert_eq!(clock.trusted_ns(3 * S), START + 3 * S);
        }
    }

    #[test]
    fn one_lying_peer_changes_nothing() {
        let mut clock = trio();
        sample(&mut clock, 3, 2 * S, START + HOUR);
        assert_eq!(clock.observe(healthy(2 * S), 3, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
        assert!(clock.is_peer_trusted(NodeId(2)));
        assert!(!clock.is_peer_trusted(NodeId(3)));
    }

    #[test]
    fn with_fewer_clocks_a_jump_is_not_followed_until_a_majority_agrees() {
        let mut clock = trio();
        let late = S + TrustedClock::SAMPLE_AGE_MAX_NS + 1;
        let jumped = |t| at(t, START + t + HOUR);
        assert_eq!(clock.observe(jumped(late), 3, START), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(late), START + late);
        sample(&mut clock, 2, late, START + late);
        assert_eq!(clock.observe(jumped(late), 3, START), ClockStatus::Jumped);
        sample(&mut clock, 2, late, START + late + HOUR);
        assert_eq!(clock.observe(jumped(late), 3, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(late), START + late + HOUR);
    }

    #[test]
    fn one_of_five_agreeing_is_no_majority() {
        let mut clock = trio();
        let late = S + TrustedClock::SAMPLE_AGE_MAX_NS + 1;
        sample(&mut clock, 2, late, START + late + HOUR);
        let jumped = at(late, START + late + HOUR);
        assert_eq!(clock.observe(jumped, 5, START), ClockStatus::Jumped);
    }

    #[test]
    fn a_single_voter_does_not_follow_a_jump_but_follows_discipline() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        assert_eq!(clock.observe(healthy(S), 1, START), ClockStatus::Followed);
        let slewed = at(2 * S, START + 2 * S + BOUND / 2);
        assert_eq!(clock.observe(slewed, 1, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(2 * S), START + 2 * S + BOUND / 2);
        let back = at(3 * S, START - HOUR);
        assert_eq!(clock.observe(back, 1, START), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(3 * S), START + 3 * S + BOUND / 2);
    }

    #[test]
    fn at_a_restart_the_earlier_of_two_clocks_is_believed_until_a_third_is_known() {
        let mut clock = TrustedClock::new(BOUND, at(0, START + HOUR));
        sample(&mut clock, 2, S, START + S);
        let ahead = at(S, START + S + HOUR);
        assert_eq!(clock.observe(ahead, 3, START), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(S), START + S);
        sample(&mut clock, 3, S, START + S + HOUR);
        assert_eq!(clock.observe(ahead, 3, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(S), START + S + HOUR);
    }

    #[test]
    fn at_a_restart_the_ceiling_says_which_of_two_clocks_is_behind() {
        let ceiling = START + S;
        let mut clock = TrustedClock::new(BOUND, at(0, START - HOUR));
        sample(&mut clock, 2, S, START + S);
        let behind = at(S, START + S - HOUR);
        assert_eq!(clock.observe(behind, 3, ceiling), ClockStatus::Outvoted);
        assert_eq!(clock.trusted_ns(S), START + S);
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        sample(&mut clock, 2, S, START + S - HOUR);
        assert_eq!(clock.observe(healthy(S), 3, ceiling), ClockStatus::Followed);
    }

    /// A leader that restarts with a clock ahead reserves by the other, right one; the ceiling is then
    /// ahead of the right clock by the reservation, which must not speak against it.
    #[test]
    fn a_right_clock_is_not_behind_because_of_a_reservation() {
        const RESERVATION: u64 = S;
        let ahead = |t| at(t, START + t + 10 * S);
        let mut clock = TrustedClock::new(BOUND, ahead(0));
        sample(&mut clock, 2, S, START + S);
        assert_eq!(clock.observe(ahead(S), 3, START), ClockStatus::Jumped);
        let ceiling = clock.trusted_ns(S) + RESERVATION;
        assert_eq!(clock.observe(ahead(S), 3, ceiling - RESERVATION), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(S), START + S, "the earlier one, still");
    }

    /// Two broken clocks of five are a minority, also where they are two of the three that are heard.
    #[test]
    fn two_wrong_clocks_of_five_move_nothing_while_two_right_ones_are_unheard() {
        let wrong = |t| START + t + 10 * S;
        // With a history, and as a node that has just started.
        for has_history in [true, false] {
            let mut clock = TrustedClock::new(BOUND, healthy(0));
            if has_history {
                sample(&mut clock, 4, S, START + S);
                sample(&mut clock, 5, S, START + S);
                assert_eq!(clock.observe(healthy(S), 5, START), ClockStatus::Followed);
            }
            let late = 2 * S + TrustedClock::SAMPLE_AGE_MAX_NS;
            sample(&mut clock, 2, late, wrong(late));
            assert_eq!(clock.is_compared(5), has_history);
            sample(&mut clock, 3, late, wrong(late));
            assert_eq!(clock.observe(healthy(late), 5, START), ClockStatus::Followed);
            assert_eq!(clock.trusted_ns(late), START + late);
            assert!(clock.is_compared(5));
        }
        // The own one is wrong, with another, and a right one is heard.
        let mut clock = TrustedClock::new(BOUND, at(0, wrong(0)));
        sample(&mut clock, 2, S, wrong(S));
        sample(&mut clock, 3, S, START + S);
        assert_eq!(clock.observe(at(S, wrong(S)), 5, START), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(S), START + S);
    }

    #[test]
    fn one_other_clock_of_five_does_not_start_a_history() {
        let mut clock = TrustedClock::new(BOUND, at(0, START + HOUR));
        sample(&mut clock, 2, S, START + S + HOUR);
        assert_eq!(clock.observe(at(S, START + S + HOUR), 5, START), ClockStatus::Followed);
        assert!(!clock.is_compared(5), "two of five may both be wrong");
        sample(&mut clock, 3, S, START + S);
        assert_eq!(clock.observe(at(S, START + S + HOUR), 5, START), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(S), START + S);
    }

    /// With too few to be a majority, a median that goes on as before still outvotes the own clock.
    #[test]
    fn three_of_five_outvote_a_jump_where_the_other_two_go_on_as_before() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        sample(&mut clock, 2, S, START + S);
        sample(&mut clock, 3, S, START + S);
        assert_eq!(clock.observe(healthy(S), 5, START), ClockStatus::Followed);
        let jumped = at(2 * S, START + 2 * S + HOUR);
        assert_eq!(clock.observe(jumped, 5, START), ClockStatus::Outvoted);
        assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
    }

    #[test]
    fn a_clock_that_was_never_compared_says_so_and_has_nothing_to_defend() {
        let ahead = |t| at(t, START + t + HOUR);
        let mut clock = TrustedClock::new(BOUND, ahead(0));
        assert_eq!(clock.observe(ahead(S), 3, START), ClockStatus::Followed);
        assert!(!clock.is_compared(3));
        assert!(clock.is_compared(1));
        sample(&mut clock, 2, 2 * S, START + 2 * S);
        assert_eq!(clock.observe(ahead(2 * S), 3, START), ClockStatus::Jumped);
        assert_eq!(clock.trusted_ns(2 * S), START + 2 * S);
        assert!(clock.is_compared(3));
    }

    #[test]
    fn at_a_restart_a_clock_below_the_ceiling_has_no_history_to_defend() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        assert_eq!(clock.observe(healthy(S), 1, START + HOUR), ClockStatus::Followed);
        let right = at(2 * S, START + 2 * S + HOUR);
        assert_eq!(clock.observe(right, 1, START + HOUR), ClockStatus::Followed);
        assert_eq!(clock.observe(healthy(3 * S), 1, START + HOUR), ClockStatus::Jumped);
    }

    #[test]
    fn a_slow_round_trip_or_one_backwards_says_nothing() {
        let mut clock = trio();
        assert!(!clock.handle_sample(NodeId(2), START, S, 2 * S));
        assert!(!clock.handle_sample(NodeId(2), START, 2 * S, S));
        assert!(clock.handle_sample(NodeId(2), START + S, S, S + 2000));
    }

    #[test]
    fn a_median_of_an_even_number_is_the_earlier_one() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        for (peer, ahead) in [(2, HOUR), (3, HOUR), (4, 0)] {
            sample(&mut clock, peer, S, START + S + ahead);
        }
        clock.observe(healthy(S), 4, START);
        assert_eq!(clock.trusted_ns(S), START + S);
    }

    #[test]
    fn half_of_the_round_trip_is_added_to_a_peers_clock() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        // It read its clock half way, and is 700 ns ahead.
        assert!(clock.handle_sample(NodeId(2), START + 5_000 + 700, 4_000, 6_000));
        clock.observe(healthy(6_000), 3, START);
        assert_eq!(clock.peer_offsets(), [(NodeId(2), 700)]);
        // A round trip of exactly the bound still says something, one beyond it nothing.
        assert!(clock.handle_sample(NodeId(3), START + S, S, S + BOUND));
        assert!(!clock.handle_sample(NodeId(4), START + S, S, S + BOUND + 1));
    }

    #[test]
    fn offsets_for_people_are_relative_to_the_wall_clock_and_never_wrap() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        sample(&mut clock, 2, S, START + S + 40);
        sample(&mut clock, 3, S, START + S - 50);
        clock.observe(at(S, START + S + 10), 3, START);
        assert_eq!(clock.peer_offsets(), [(NodeId(2), 30), (NodeId(3), -60)]);
        let mut clock = TrustedClock::new(BOUND, at(u64::MAX, 0));
        sample(&mut clock, 2, 0, u64::MAX);
        assert_eq!(clock.peer_offsets(), [(NodeId(2), i64::MAX)]);
        assert_eq!(clock.offset_ns(), i64::MIN);
        let mut clock = TrustedClock::new(BOUND, at(0, u64::MAX));
        sample(&mut clock, 2, u64::MAX, 0);
        assert_eq!(clock.peer_offsets(), [(NodeId(2), i64::MIN)]);
        assert_eq!(clock.offset_ns(), i64::MAX);
        assert_eq!(TrustedClock::new(BOUND, at(9, 9)).offset_ns(), 0);
    }

    #[test]
    fn the_clocks_of_nodes_that_are_no_voters_any_more_are_forgotten() {
        let mut clock = trio();
        clock.retain_peers(|node| node == NodeId(3));
        let left: Vec<_> = clock.peer_offsets().into_iter().map(|(node, _)| node).collect();
        assert_eq!(left, [NodeId(3)]);
    }

    #[test]
    fn at_a_restart_a_peer_within_the_bound_confirms_the_own_clock() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        sample(&mut clock, 2, S, START + S + BOUND);
        assert_eq!(clock.observe(healthy(S), 3, START), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(S), START + S);
        // From here on there is a history: a jump is not followed.
        let late = S + TrustedClock::SAMPLE_AGE_MAX_NS + 1;
        let jumped = at(late, START + late + HOUR);
        assert_eq!(clock.observe(jumped, 3, START), ClockStatus::Jumped);
    }

    #[test]
    fn at_a_restart_a_clock_exactly_the_bound_below_the_ceiling_is_not_behind_it() {
        let mut clock = TrustedClock::new(BOUND, healthy(0));
        sample(&mut clock, 2, S, START + S - HOUR);
        let ceiling = START + S + BOUND;
        assert_eq!(clock.observe(healthy(S), 3, ceiling), ClockStatus::Followed);
        assert_eq!(clock.trusted_ns(S), START + S);
    }
}
