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
    /// The wall clock is believed and followed, or it is within the bound of the median, which is
    /// used because too few clocks are near the wall clock itself.
    #[default]
    Followed,
    /// The wall clock is further than the bound from the median of the voters' clocks: the median
    /// is used, and leadership should go elsewhere.
    Outvoted,
    /// The wall clock went further than the bound from where the voters' clocks last agreed, by a
    /// jump or little by little, and too few other clocks are known to say which is right: it is not
    /// followed.
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
    /// Whether a majority of the voters' clocks ever agreed.
    is_proved: bool,
    anchor: Anchor,
}

/// The clocks that agreed when a majority of the voters' clocks last did, by the first and the last
/// of them; before that, what was believed at the start. Offsets as [`TrustedClock`]'s.
///
/// One of them at least was right then. What stays within the bound of each of them is that near to
/// the right one, whichever it is, and however it got there: in one jump or little by little.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    first_ns: i128,
    last_ns: i128,
}

impl Anchor {
    const fn at(offset_ns: i128) -> Self {
        Self { first_ns: offset_ns, last_ns: offset_ns }
    }

    fn of(clocks: impl Iterator<Item = i128>) -> Option<Self> {
        clocks.fold(None, |all: Option<Self>, clock| {
            let all = all.unwrap_or(Self::at(clock));
            Some(Self { first_ns: all.first_ns.min(clock), last_ns: all.last_ns.max(clock) })
        })
    }

    const fn is_within(self, bound_ns: i128, clock: i128) -> bool {
        clock - self.first_ns <= bound_ns && self.last_ns - clock <= bound_ns
    }
}

/// A peer's wall clock as last sampled.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "all are times, and the unit is a part of the name")]
struct PeerClock {
    /// Peer's wall clock minus this node's monotonic time, nanoseconds.
    offset_ns: i128,
    sampled_at_ns: u64,
    /// How long the answer took: by half of that the offset may be wrong.
    round_trip_ns: u64,
}

impl TrustedClock {
    /// A sample older than this says nothing any more, nanoseconds. Long enough to outlive an
    /// election, short enough that drift (200 ppm at worst) stays below a millisecond.
    pub const SAMPLE_AGE_MAX_NS: u64 = 5_000_000_000;

    /// A clock that starts at the wall clock; `bound_ns` is `CLOCK_OFFSET_MAX_MS` in nanoseconds.
    #[must_use]
    pub fn new(bound_ns: u64, reading: ClockReading) -> Self {
        let offset_ns = i128::from(reading.wall_ns) - i128::from(reading.monotonic_ns);
        Self {
            bound_ns,
            offset_ns,
            last: reading,
            status: ClockStatus::Followed,
            peers: BTreeMap::new(),
            has_history: false,
            is_proved: false,
            anchor: Anchor::at(offset_ns),
        }
    }

    /// Another bound counts from now on: `CLOCK_OFFSET_MAX_MS` in nanoseconds. What was believed before
    /// is believed no longer where it is not within it, and samples whose round trip is longer say
    /// nothing any more.
    pub fn set_bound_ns(&mut self, bound_ns: u64) {
        self.bound_ns = bound_ns;
        self.peers.retain(|_, peer| peer.round_trip_ns <= bound_ns);
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
        let sampled = PeerClock { offset_ns, sampled_at_ns: received_ns, round_trip_ns };
        self.peers.insert(peer, sampled);
        true
    }

    /// Forgets every sample of a node that is no voter any more.
    pub fn retain_peers(&mut self, is_voter: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_voter(*node));
    }

    /// Takes in a reading of this node's clocks and decides what to follow. `voters` is how many
    /// clocks there are ([`clocks_of`]), `before_ns` a time that somebody has trusted: the replicated
    /// ceiling without the reservation, which runs ahead of every right clock.
    ///
    /// A clock is within the bound of a right one when a majority of the voters is near it, for only a
    /// minority is broken: the unheard count as disagreeing. That is a proof, of the wall clock or
    /// else of the median; what is near the median alone may be twice the bound off, so then the
    /// median itself is used. Short of a proof, the wall clock is followed while it stays within the
    /// bound of all clocks that agreed at the last proof, and not only of what was trusted a tick
    /// ago, with which a clock that runs wrong always agrees.
    pub fn observe(&mut self, reading: ClockReading, voters: usize, before_ns: u64) -> ClockStatus {
        let own = i128::from(reading.wall_ns) - i128::from(reading.monotonic_ns);
        let mut clocks = self.known_peers(reading.monotonic_ns);
        clocks.push(own);
        clocks.sort_unstable();
        // The lower median: of an even number, the earlier of the two, which is the safe one.
        let median = clocks[(clocks.len() - 1) / 2];
        let bound = i128::from(self.bound_ns);
        let is_near = |a: i128, b: i128| (a - b).abs() <= bound;
        let near = |of: i128| clocks.iter().copied().filter(move |clock| is_near(*clock, of));
        // A single voter is its own majority, and cannot tell a jump.
        let is_proof = |of: i128| voters > 1 && near(of).count() > voters / 2;
        let is_taken = planted::is(Bug::MedianOfKnown) && clocks.len() > 2;
        let is_median_proved = || (is_proof(median) || is_taken).then_some(median);
        let proof = is_proof(own).then_some(own).or_else(is_median_proved);
        if let Some(anchor) = proof.and_then(|of| Anchor::of(near(of))) {
            (self.anchor, self.has_history, self.is_proved) = (anchor, true, true);
        }
        let (status, offset) = if let Some(believed) = self.planted(own, &clocks, voters) {
            believed
        } else if planted::is(Bug::NeverBelievesAgain) && self.status != ClockStatus::Followed {
            (self.status, self.offset_ns)
        } else if let Some(proved) = proof {
            let is_followed = is_near(own, proved);
            (if is_followed { ClockStatus::Followed } else { ClockStatus::Outvoted }, proved)
        } else if !self.has_history {
            let believed = self.started(own, &clocks, reading, voters, before_ns);
            self.anchor = Anchor::at(believed.1);
            believed
        } else if self.anchor.is_within(bound, own) {
            // Slow changes are the clock being disciplined, as far as others may tell.
            (ClockStatus::Followed, own)
        } else if clocks.len() > 2 && self.anchor.is_within(bound, median) {
            (ClockStatus::Outvoted, median)
        } else {
            (ClockStatus::Jumped, self.offset_ns)
        };
        // A single voter has nobody who could tell how far it has crept.
        if voters <= 1 || planted::is(Bug::CreepFollowed) {
            self.anchor = Anchor::at(offset);
        }
        self.offset_ns = offset;
        self.status = status;
        self.last = reading;
        status
    }

    /// What a planted bug believes.
    fn planted(
        &mut self,
        own: i128,
        clocks: &[i128],
        voters: usize,
    ) -> Option<(ClockStatus, i128)> {
        let believed = if planted::is(Bug::JumpFollowed) {
            own
        } else if planted::is(Bug::EarliestBelieved) {
            clocks[0]
        } else {
            return None;
        };
        self.has_history |= clocks.len() > voters / 2;
        Some((ClockStatus::Followed, believed))
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

    /// Whether a majority of the voters' clocks has agreed since the start. Until then trusted time is
    /// the best guess of those that are known, and may be behind.
    #[must_use]
    pub const fn is_proved(&self) -> bool {
        self.is_proved
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

/// How many clocks a node compares: those of the voters, and its own where it is none of them. Who is
/// no voter never is a majority by itself.
pub fn clocks_of(voters: impl Iterator<Item = NodeId>, me: NodeId) -> usize {
    let (count, is_voter) =
        voters.fold((0, false), |(count, is_voter), voter| (count + 1, is_voter || voter == me));
    if is_voter { count } else { (count + 1).max(2) }
}

/// Trusted time from a monotonic reading and a published offset, Unix nanoseconds; never below 0.
#[must_use]
pub fn trusted_ns(monotonic_ns: u64, offset_ns: i64) -> u64 {
    monotonic_ns.saturating_add_signed(offset_ns)
}

#[cfg(test)]
mod tests;
