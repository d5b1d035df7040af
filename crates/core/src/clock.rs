//! Trusted time, the clock firewall. Trusted time moves with the monotonic clock, and follows the
//! wall clock only while the wall clock is believable. So one broken clock cannot push the ceiling
//! ahead. This module reads no clock: samples are arguments.
//!
//! Peers' clocks are compared as in Cristian's algorithm (1989), corrected by half the round trip.
//! The median of three or more clocks is safe against any single wrong one (Marzullo, 1984, gives
//! the bound).

use std::collections::BTreeMap;

use epicepoch_wire::NodeId;

/// One reading of this node's own clocks, taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Monotonic time of this process, nanoseconds.
    pub monotonic_ns: u64,
    /// The wall clock, Unix nanoseconds.
    pub wall_ns: u64,
}

impl ClockReading {
    /// Wall minus monotonic time, nanoseconds.
    fn offset_ns(self) -> i128 {
        i128::from(self.wall_ns) - i128::from(self.monotonic_ns)
    }
}

/// The firewall's verdict on this node's wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockStatus {
    /// Trusted time follows the wall clock or the median. It follows the median in this case: the
    /// wall clock is within the bound of the median, but too few other clocks are near the wall
    /// clock itself.
    #[default]
    Followed,
    /// The wall clock is further than the bound from the median of the voters' clocks. Trusted time
    /// follows the median, and another node should lead.
    Outvoted,
    /// The wall clock is further than the bound from the clocks that agreed last. It went there in
    /// one jump or slowly. Too few other clocks are known to say which is right, so trusted time
    /// does not follow the wall clock.
    Jumped,
}

/// Trusted time of one node.
///
/// Invariant: `trusted = monotonic + offset`; only [`TrustedClock::observe`] changes `offset`.
#[derive(Debug)]
pub struct TrustedClock {
    bound_ns: u64,
    /// Trusted minus monotonic time, nanoseconds.
    offset_ns: i128,
    last: ClockReading,
    status: ClockStatus,
    peers: BTreeMap<NodeId, PeerClock>,
    /// Whether the wall clock was ever compared with that of another node. `true` if there is no
    /// other node.
    has_history: bool,
    /// Whether a majority of the voters' clocks ever agreed.
    is_proved: bool,
    /// Whether a clock was ignored at the start because it is behind, no majority has agreed since,
    /// and not all clocks have been known.
    is_ignoring: bool,
    anchor: Anchor,
}

/// The earliest and the latest of the clocks that agreed when a majority of the voters last agreed.
/// Before the first agreement, both are the clock that was believed at the start. Offsets are as in
/// [`TrustedClock`].
///
/// At least one of these two clocks was right then. So a clock that is within the bound of both is
/// within the bound of a right one. It does not matter whether that clock moved in one jump or
/// slowly.
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
    /// Round trip of the answer: the offset may be wrong by half of it.
    round_trip_ns: u64,
}

impl TrustedClock {
    /// Samples older than this are ignored, nanoseconds. A sample outlives an election, and drift
    /// during this time (200 ppm at worst) stays below a millisecond.
    pub const SAMPLE_AGE_MAX_NS: u64 = 5_000_000_000;

    /// A clock that starts at the wall clock; `bound_ns` is `CLOCK_OFFSET_MAX_MS` in nanoseconds.
    #[must_use]
    pub fn new(bound_ns: u64, reading: ClockReading) -> Self {
        let offset_ns = reading.offset_ns();
        Self {
            bound_ns,
            offset_ns,
            last: reading,
            status: ClockStatus::Followed,
            peers: BTreeMap::new(),
            has_history: false,
            is_proved: false,
            is_ignoring: false,
            anchor: Anchor::at(offset_ns),
        }
    }

    /// Sets another bound: `CLOCK_OFFSET_MAX_MS` in nanoseconds. Clocks outside it are no longer
    /// believed, and samples with a longer round trip are ignored.
    pub fn set_bound_ns(&mut self, bound_ns: u64) {
        self.bound_ns = bound_ns;
        self.peers.retain(|_, peer| peer.round_trip_ns <= bound_ns);
    }

    /// Records a peer's clock: the peer answered `wall_ns` to a ping. The ping left at `sent_ns`
    /// and its answer came at `received_ns`, both on this node's monotonic clock. A sample with a
    /// round trip above the bound is dropped. Returns whether the sample was kept.
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

    /// Forgets samples of nodes that are no longer voters.
    pub fn retain_peers(&mut self, is_voter: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_voter(*node));
    }

    /// Takes a reading of this node's clocks and decides which clock to follow. `voters` is the
    /// number of clocks ([`clocks_of`]). `before_ns` is a time that some node has trusted: the
    /// ceiling less the reservation, because a leader reserves ahead of a right clock.
    ///
    /// Only a minority of the clocks is wrong, so a clock near a majority of them is within the
    /// bound of a right one. Silent voters count as disagreeing. If a majority is near the wall
    /// clock, the wall clock is proved. Otherwise, if a majority is near the median, the median is
    /// proved. A wall clock that is near only the median may be off by twice the bound; then the
    /// median is used.
    ///
    /// Without a proof the wall clock is followed while it stays within the bound of all clocks of
    /// the last proof. Comparing it with the trusted time of the last tick would not help, because
    /// a clock that drifts slowly always agrees with that.
    pub fn observe(&mut self, reading: ClockReading, voters: usize, before_ns: u64) -> ClockStatus {
        let own = reading.offset_ns();
        let mut clocks = self.known_peers(reading.monotonic_ns);
        clocks.push(own);
        clocks.sort_unstable();
        // The lower median: of an even number of clocks, the earlier of the two middle ones. A
        // clock that is behind is safe.
        let median = clocks[(clocks.len() - 1) / 2];
        let bound = i128::from(self.bound_ns);
        let is_near = |a: i128, b: i128| (a - b).abs() <= bound;
        let near = |of: i128| clocks.iter().copied().filter(move |clock| is_near(*clock, of));
        // A single voter is its own majority, so it cannot detect a jump.
        let is_proof = |of: i128| voters > 1 && near(of).count() > voters / 2;
        let is_median_proved = || is_proof(median).then_some(median);
        let proof = is_proof(own).then_some(own).or_else(is_median_proved);
        if let Some(anchor) = proof.and_then(|of| Anchor::of(near(of))) {
            (self.anchor, self.has_history, self.is_proved) = (anchor, true, true);
        }
        let (status, offset) = if let Some(proved) = proof {
            let is_followed = is_near(own, proved);
            (if is_followed { ClockStatus::Followed } else { ClockStatus::Outvoted }, proved)
        } else if !self.has_history {
            let believed = self.started(own, &clocks, reading, voters, before_ns);
            self.anchor = Anchor::at(believed.1);
            believed
        } else if self.anchor.is_within(bound, own) {
            // Within the bound of the last proof, a change counts as a correction (by NTP, for
            // example).
            (ClockStatus::Followed, own)
        } else if clocks.len() > 2 && self.anchor.is_within(bound, median) {
            (ClockStatus::Outvoted, median)
        } else {
            (ClockStatus::Jumped, self.offset_ns)
        };
        if proof.is_some() || clocks.len() >= voters {
            self.is_ignoring = false;
        }
        // A single voter has no other clock that could show how far its own has drifted.
        if voters <= 1 {
            self.anchor = Anchor::at(offset);
        }
        self.offset_ns = offset;
        self.status = status;
        self.last = reading;
        status
    }

    /// At a start there is no earlier proof to compare the wall clock with. If a majority of the
    /// voters' clocks is known, one of them is right, and they are the first proof. If clocks
    /// disagree, a clock below the time that others trusted before is ignored. Of the rest, the
    /// earliest is believed. A clock that is behind is safe and recovers, but a clock that is ahead
    /// pushes the ceiling ahead. A single voter has only the ceiling: its first proof is a clock
    /// that is not below the ceiling.
    ///
    /// An ignored clock may be the right one, if the last leader's clock ran ahead. So then a leader
    /// waits for an agreement, or for the clocks of all voters ([`Self::is_compared`]).
    fn started(
        &mut self,
        own: i128,
        clocks: &[i128],
        reading: ClockReading,
        voters: usize,
        before_ns: u64,
    ) -> (ClockStatus, i128) {
        let bound = i128::from(self.bound_ns);
        let is_behind = |offset: i128| {
            let wall = offset + i128::from(reading.monotonic_ns);
            wall + bound < i128::from(before_ns)
        };
        self.has_history =
            if voters <= 1 { reading.wall_ns >= before_ns } else { clocks.len() > voters / 2 };
        self.is_ignoring = voters > 1 && is_behind(clocks[0]);
        let earliest = clocks.iter().copied().find(|clock| !is_behind(*clock)).unwrap_or(clocks[0]);
        if (own - earliest).abs() <= bound {
            (ClockStatus::Followed, own)
        } else if is_behind(own) {
            (ClockStatus::Outvoted, earliest)
        } else {
            (ClockStatus::Jumped, earliest)
        }
    }

    /// Whether trusted time rests on more than this node's own clock: the clocks of a majority of
    /// the voters have agreed since the start, or are known, and none of them was ignored because
    /// it is behind. Clocks of all voters are enough in any case. Until then a leader delays its
    /// reservation. Otherwise a node that starts with its clock an hour ahead would move the
    /// ceiling an hour ahead.
    #[must_use]
    pub fn is_compared(&self, voters: usize) -> bool {
        voters <= 1 || self.has_history && !self.is_ignoring
    }

    /// Whether the clocks of a majority of the voters were known at least once since the start. One
    /// of them was right, even if they did not agree, and one of them was ignored.
    #[must_use]
    pub const fn has_known_majority(&self) -> bool {
        self.has_history
    }

    /// Whether the clocks of a majority of the voters have agreed at least once since the start.
    /// Until then, trusted time is the best guess from the known clocks, and may be behind.
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

    /// Trusted minus monotonic time, nanoseconds. Workers add it to their own monotonic reading.
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

    /// The verdict on the wall clock.
    #[must_use]
    pub const fn status(&self) -> ClockStatus {
        self.status
    }

    /// How far each peer's wall clock was ahead of this node's when both were last read,
    /// nanoseconds. Used in logs and metrics, and to choose a successor.
    #[must_use]
    pub fn peer_offsets(&self) -> Vec<(NodeId, i64)> {
        let own = self.last.offset_ns();
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

/// How many clocks a node compares: those of the voters, and its own if it is not a voter. So a
/// non-voter is never a majority by itself.
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
