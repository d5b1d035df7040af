//! What a plane says of itself: what the replica reports, clocks that are not followed, zones that nobody is
//! in, as lines of the log and as metrics.

use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::clock::ClockStatus;
use epicepoch_core::positions::SetBack;
use epicepoch_core::publication::Role;
use epicepoch_core::replica::Report;
use epicepoch_wire::NodeId;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::standing::Zone;

use super::Plane;
use crate::config::{RESERVATION_ELECTIONS_MIN, default_reservation};

impl Plane {
    pub(super) fn tell_clock(&self, status: ClockStatus) {
        let offsets = self.clock.peer_offsets();
        match status {
            ClockStatus::Followed => tracing::info!(?offsets, "the wall clock is followed"),
            ClockStatus::Outvoted => tracing::error!(
                ?offsets,
                "the wall clock is off: the median of the voters' clocks is used; set the clock \
                 of this machine right"
            ),
            ClockStatus::Jumped => tracing::error!(
                ?offsets,
                "the wall clock jumped, or has crept off from the others', and too few other \
                 clocks are known to say that it is right: it is not followed; set it right, or \
                 restart this node to accept it"
            ),
        }
    }

    /// Says which zones of `LEADER_ZONES` no voter is in, whenever that changes.
    pub(super) fn tell_empty_zones(&mut self) {
        let empty = self.replica.empty_zones();
        if empty == self.told.empty_zones {
            return;
        }
        if !empty.is_empty() {
            let mut known: Vec<_> =
                self.replica.placed().into_iter().filter_map(|it| it.zone).collect();
            known.sort_unstable();
            known.dedup();
            let names = |zones: &[Zone]| {
                zones.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            };
            tracing::error!(
                unknown = names(&empty),
                known = names(&known),
                "LEADER_ZONES names a zone that no voter is in: correct it, or ZONE of the nodes \
                 that are there"
            );
        }
        self.told.empty_zones = empty;
    }

    /// Says it once of each voter and leadership: one that is not heard for a while is no news later.
    pub(super) fn tell_without_zone(&mut self) {
        if self.shared.core.published().role != Role::Leader {
            return self.told.without_zone.clear();
        }
        let without = self.replica.voters_without_zone();
        let is_said = |node: &NodeId| self.told.without_zone.contains(node);
        if without.iter().all(is_said) {
            return;
        }
        let nodes: Vec<_> = without.iter().map(ToString::to_string).collect();
        tracing::warn!(
            nodes = nodes.join(","),
            "LEADER_ZONES is set and these voters have no ZONE: leadership is never handed to them \
             because of their place; set ZONE there, and start them again"
        );
        self.told.without_zone.extend(without);
    }

    pub(super) fn tell(&mut self, report: Report) {
        let metrics = &self.metrics.consensus;
        match report {
            Report::Leadership { term, role, leader } => {
                let leader = leader.map(|leader| leader.0);
                if leader.is_some() {
                    metrics.leader_changes.add(1);
                }
                match role {
                    Role::Leader => tracing::info!(term = term.0, "this node leads"),
                    Role::Follower => tracing::info!(term = term.0, leader, "this node follows"),
                    Role::Candidate => tracing::info!(term = term.0, "this node campaigns"),
                }
            }
            Report::Granted { term, range, took_ns } => {
                metrics.reservations.add(1);
                metrics.reservation_ns.observe(took_ns);
                tracing::debug!(term = term.0, high = range.high.0, took_ns, "granted");
                let trusted_ns = self.clock.trusted_ns(self.shared.clock.monotonic_ns());
                let window_ms = self.shared.settings().reservation_ms;
                self.told.ahead.note(term, range.low, trusted_ns, window_ms);
            }
            Report::ReservationLate { missed } => {
                metrics.reservation_deadlines_missed.add(1);
                tracing::warn!(missed, "a reservation has missed its deadline");
            }
            Report::Exhausted => tracing::error!("no epoch is left below 2^64 nanoseconds"),
            Report::Installed { index } => tracing::info!(index = index.0, "snapshot installed"),
            Report::Compacted { to } => tracing::debug!(to = to.0, "log compacted"),
            Report::Changed { nonce, outcome } => {
                tracing::info!(nonce, ?outcome, "membership change");
            }
            Report::Advanced { to } => {
                let trusted_ns = self.clock.trusted_ns(self.shared.clock.monotonic_ns());
                if to.0 > trusted_ns {
                    tracing::warn!(
                        to = to.0,
                        "an operator has moved the epoch: answers are above it"
                    );
                } else {
                    tracing::info!(to = to.0, "answers are above a time that has passed");
                }
            }
            // What changes is said where it is taken in.
            Report::SettingsChanged { nonce, outcome } => {
                tracing::debug!(nonce, ?outcome, "settings");
            }
            Report::FormatRaised { to } => tracing::warn!(
                to,
                "the replicated state is of another format from now on: a version that does not read \
                 it cannot come back"
            ),
            Report::Removed => {
                self.shared.health.is_removed.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "this node was removed from the cluster: it stops when most others say so"
                );
            }
            Report::HandingOver { to, why } => {
                tracing::info!(to = to.0, ?why, "handing leadership over");
            }
            Report::SteppedDown { why } => tracing::warn!(?why, "leadership given up"),
        }
    }
}

pub(super) fn warn_of_short_window(settings: &ClusterSettings, election_timeout: Duration) {
    let election_timeout_ms = election_timeout.as_millis() as u64;
    let least_ms = RESERVATION_ELECTIONS_MIN * election_timeout_ms;
    if settings.reservation_ms < least_ms {
        let enough_ms = default_reservation(election_timeout).as_millis() as u64;
        tracing::warn!(
            reservation_ms = settings.reservation_ms,
            election_timeout_ms,
            least_ms,
            "RESERVATION_MS of the cluster is below four ELECTION_TIMEOUT_MS of this node; give it: \
             epicepoch settings set RESERVATION_MS={enough_ms}"
        );
    }
}

pub(super) fn tell_set_back(node: NodeId, heard: Result<(), SetBack>) {
    if let Err(SetBack { named, remembered }) = heard {
        tracing::error!(
            peer = node.0,
            named = named.0,
            remembered = remembered.0,
            "a peer's data directory was set back to an older state: it is refused"
        );
    }
}
