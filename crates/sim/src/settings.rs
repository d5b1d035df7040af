//! Settings of simulated clusters: seeded by their first leader, raised and lowered by operators at any
//! moment, also where they may not be, or the format has no room for them. The checkers of equal states
//! see them; those of the clocks hold for the longest that anybody has gone by in the history ([`Longest`]).

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use epicepoch_core::placement::Placement;
use epicepoch_core::replica::SettingsError;
use epicepoch_core::state::FORMAT_OF_SETTINGS;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::standing::Zone;
use epicepoch_wire::{LogIndex, NodeId};

use crate::event::Event;
use crate::faults::End;
use crate::features::Feature;
use crate::history::Invariant;
use crate::node::{CLOCK_OFFSET_MAX_NS, ELECTION_TICKS, RESERVATION_NS, TICK_NS};
use crate::operators::{ZONES_KNOWN, zone};
use crate::stamper::EPOCH_INTERVAL_NS;
use crate::world::{MS, World};

/// What a node is told, and what seeds the settings of its cluster.
pub(crate) fn told(placement: &Placement) -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: EPOCH_INTERVAL_NS / MS,
        reservation_ms: RESERVATION_NS / MS,
        clock_offset_max_ms: CLOCK_OFFSET_MAX_NS / MS,
        max_n: 65_536,
        leader_zones: placement.leaders.clone(),
    }
}

/// The longest settings that anybody has gone by in a history of a cluster, nanoseconds, and the lowest
/// index at which each was seen: 0 for what nodes are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    window: (u64, LogIndex),
    bound: (u64, LogIndex),
    interval: (u64, LogIndex),
}

impl Default for Longest {
    fn default() -> Self {
        let told = |ns| (ns, LogIndex(0));
        Self {
            window: told(RESERVATION_NS),
            bound: told(CLOCK_OFFSET_MAX_NS),
            interval: told(EPOCH_INTERVAL_NS),
        }
    }
}

impl Longest {
    /// A node has applied everything up to `index`, and goes by these now.
    pub(crate) fn take_in(&mut self, index: LogIndex, settings: &ClusterSettings) {
        for (longest, ms) in [
            (&mut self.window, settings.reservation_ms),
            (&mut self.bound, settings.clock_offset_max_ms),
            (&mut self.interval, settings.epoch_interval_ms),
        ] {
            let ns = ms * MS;
            if ns > longest.0 || ns == longest.0 && index < longest.1 {
                *longest = (ns, index);
            }
        }
    }

    pub(crate) const fn window_ns(&self) -> u64 {
        self.window.0
    }

    pub(crate) const fn bound_ns(&self) -> u64 {
        self.bound.0
    }

    pub(crate) const fn interval_ns(&self) -> u64 {
        self.interval.0
    }

    /// From which index on a state knows of the longest window and the widest bound.
    pub(crate) fn known_from(&self) -> LogIndex {
        self.window.1.max(self.bound.1)
    }
}

impl World {
    /// Somebody changes settings: mostly to something that they may be.
    pub(crate) fn change_settings(&mut self, node: NodeId) {
        let replica = &self.at(node).running().replica;
        let (format, before) = (replica.state().format, replica.settings().cloned());
        let before = before.unwrap_or_else(|| told(&self.placement(node).unwrap_or_default()));
        let mut settings = before.clone();
        let is_wrong = match self.random.u32(0..12) {
            0 => {
                settings.max_n = 0;
                true
            }
            1 => {
                settings.reservation_ms = ELECTIONS_MS - 1;
                true
            }
            2..5 => {
                let told_ms = RESERVATION_NS / MS;
                let drawn_ms = [ELECTIONS_MS..=told_ms, told_ms..=4_000, LONG_MS];
                settings.reservation_ms = self.one_of(&drawn_ms);
                false
            }
            5..7 => {
                let told_ms = EPOCH_INTERVAL_NS / MS;
                settings.epoch_interval_ms =
                    self.one_of(&[50..=told_ms, 50..=told_ms, told_ms..=300]);
                false
            }
            7..9 => {
                let told_ms = CLOCK_OFFSET_MAX_NS / MS;
                settings.clock_offset_max_ms =
                    self.one_of(&[400..=told_ms, told_ms..=2_000, LONG_MS]);
                false
            }
            9..11 if self.has(Feature::Zones) => {
                let mut zones: Vec<Zone> = (0..ZONES_KNOWN).map(zone).collect();
                self.random.shuffle(&mut zones);
                zones.truncate(self.random.usize(0..=zones.len()));
                settings.leader_zones = zones;
                false
            }
            _ => {
                settings.max_n = self.random.u64(1..=1 << 20);
                false
            }
        };
        self.note(|| format!("{node} is asked to set {settings:?}"));
        self.nemesis.nonce += 1;
        let nonce = self.nemesis.nonce;
        let is_forced = self.random.bool();
        let judged = self.at(node).running().replica.judge_zones(&settings, is_forced);
        if let Err(error) = judged {
            return self.zones_refused(node, &error);
        }
        let taken = self.with(node, |replica, now| replica.change_settings(now, nonce, &settings));
        match taken {
            Ok(()) if is_wrong || format < FORMAT_OF_SETTINGS => {
                let what = || format!("{node} takes {settings:?} at format {format}");
                self.history.violate(Invariant::Possible, what);
            }
            Ok(()) => {
                self.count("settings changed");
                let raised = |ms: fn(&ClusterSettings) -> u64| ms(&settings).cmp(&ms(&before));
                for (what, raised_what, how) in [
                    ("window shortened", "window raised", raised(|it| it.reservation_ms)),
                    ("bound lowered", "bound raised", raised(|it| it.clock_offset_max_ms)),
                    ("interval shortened", "interval raised", raised(|it| it.epoch_interval_ms)),
                ] {
                    match how {
                        Ordering::Less => self.count(what),
                        Ordering::Greater => self.count(raised_what),
                        Ordering::Equal => {}
                    }
                }
                if settings.leader_zones != before.leader_zones {
                    self.count("leader zones changed");
                }
                self.provoke(node);
                // As operators are told to, who have raised a window or a bound.
                if self.has(Feature::Restores) && self.random.bool() {
                    let after_ns = self.random.u64(0..500 * MS);
                    self.schedule_world(after_ns, Event::End { end: End::BackUp });
                }
            }
            Err(SettingsError::Format { .. }) => self.count("settings refused: old format"),
            Err(_) => {}
        }
    }

    /// Zones are unknown only where all voters have said where they are, and none is there.
    fn zones_refused(&mut self, leader: NodeId, error: &SettingsError) {
        self.count("settings refused: unknown zone");
        self.note(|| format!("{leader} refuses: {error}"));
        let published = self.at(leader).running().shared.published();
        // Who is on its way out of a joint configuration is no voter to come.
        let voters = published.voters.incoming().map(|(voter, _)| voter);
        let zones: Vec<Zone> =
            voters.filter_map(|voter| self.placement(voter).and_then(|it| it.zone)).collect();
        let SettingsError::UnknownZones { unknown, .. } = error else { return };
        if let Some(zone) = unknown.iter().find(|zone| zones.contains(zone)) {
            let what = || format!("{leader} knows of no voter in {zone:?}, and one is there");
            self.history.violate(Invariant::Possible, what);
        }
    }

    fn one_of(&mut self, ranges: &[RangeInclusive<u64>; 3]) -> u64 {
        let range = ranges[self.random.usize(0..3)].clone();
        self.random.u64(range)
    }
}

/// Windows and bounds that are long, milliseconds: longer than a restore's margins beside them.
const LONG_MS: RangeInclusive<u64> = 10_000..=30_000;
/// The shortest reservation that election timeouts leave room for, milliseconds.
const ELECTIONS_MS: u64 = 4 * ELECTION_TICKS as u64 * TICK_NS / MS;
