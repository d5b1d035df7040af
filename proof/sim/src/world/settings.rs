//! The settings of simulated clusters. The first leader takes them from its own configuration.
//! Operators change them at any moment, also to invalid values or before the format supports
//! settings. The checks of equal states include the settings. The checks of clocks use the longest
//! settings ever in effect ([`crate::history`]).

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use epicepoch_core::admin::{Command, Denied};
use epicepoch_core::replica::SettingsError;
use epicepoch_core::state::FORMAT_OF_SETTINGS;
use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{NodeId, TimestampFormat};

use crate::event::{End, Event};
use crate::history::Invariant;
use crate::parameters::{
    CLOCK_OFFSET_MAX_NS, ELECTION_TICKS, EPOCH_INTERVAL_NS, MS, RESERVATION_NS, TICK_NS,
    initial_settings,
};
use crate::world::World;
use crate::world::features::Feature;
use crate::world::operators::{ZONES_KNOWN, zone};

impl World {
    /// An operator changes settings, mostly to valid values.
    pub(crate) fn change_settings(&mut self, node: NodeId) {
        let replica = self.at(node).running().replica();
        let (format, before) = (replica.state().format, replica.settings().cloned());
        let leaders = || self.placement(node).unwrap_or_default().leaders;
        let (lease_ms, first) = (self.initial_lease_ms(), self.initial_timestamp_format());
        let before = before.unwrap_or_else(|| initial_settings(leaders(), lease_ms, first));
        let mut settings = before.clone();
        let is_wrong = match self.random.u32(0..12) {
            // Timestamps that are compact stay compact (S21).
            _ if self.changes_timestamp_format() => {
                settings.timestamp_format = other(before.timestamp_format);
                settings.timestamp_format == TimestampFormat::Wide
            }
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
                // A restore must know the longest window.
                let middle_ms = if self.has(Feature::Restores) { LONG_MS } else { told_ms..=4_000 };
                let drawn_ms = [ELECTIONS_MS..=told_ms, middle_ms, LONG_MS];
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
            _ if self.has(Feature::Leases) && self.random.bool() => {
                settings.lease_ms = self.one_of(&[0..=0, 50..=ELECTION_MS, 50..=ELECTION_MS]);
                false
            }
            _ => {
                settings.max_n = self.random.u64(1..=1 << 20);
                false
            }
        };
        let is_forced = self.random.bool();
        let change = |name: SettingName| (name, settings.text(name));
        let changes = before.differing(&settings).map(change).collect();
        let taken = self.command(node, Command::Set { changes, is_forced, gone: vec![] });
        match taken {
            Some(Err(Denied::Settings(error @ SettingsError::UnknownZones { .. }))) => {
                self.zones_refused(node, &error);
            }
            Some(Err(Denied::Settings(
                SettingsError::Format { .. }
                | SettingsError::FormatOfLeases { .. }
                | SettingsError::FormatOfCompact { .. },
            ))) => {
                self.count("settings refused: old format");
            }
            Some(Err(_)) => {}
            Some(Ok(_)) | None if is_wrong || format < FORMAT_OF_SETTINGS => {
                let what = || format!("{node} takes {settings:?} at format {format}");
                self.history.violate(Invariant::Possible, what);
            }
            Some(Ok(_)) | None => {
                self.count("settings changed");
                self.count_changes(&before, &settings);
                self.provoke(node);
                // The documents tell operators to take a backup after they have raised a window or
                // a bound.
                if self.has(Feature::Restores) && self.random.bool() {
                    let after_ns = self.random.u64(0..500 * MS);
                    self.schedule_world(after_ns, Event::End { end: End::BackUp });
                }
            }
        }
    }

    fn count_changes(&mut self, before: &ClusterSettings, now: &ClusterSettings) {
        let raised = |ms: fn(&ClusterSettings) -> u64| ms(now).cmp(&ms(before));
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
        for (what, is_changed) in [
            ("lease changed", now.lease_ms != before.lease_ms),
            ("timestamps become compact", now.timestamp_format != before.timestamp_format),
            ("leader zones changed", now.leader_zones != before.leader_zones),
        ] {
            if is_changed {
                self.count(what);
            }
        }
    }

    /// A leader has refused a zone as unknown. Checks that it may: all voters have reported their
    /// zones, and no voter is in that zone.
    fn zones_refused(&mut self, leader: NodeId, error: &SettingsError) {
        self.count("settings refused: unknown zone");
        self.record(|| format!("{leader} refuses: {error}"));
        let published = self.at(leader).running().shared.published();
        // A voter that a joint configuration removes does not count.
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

/// The other format of timestamps.
const fn other(format: TimestampFormat) -> TimestampFormat {
    match format {
        TimestampFormat::Wide => TimestampFormat::Compact,
        TimestampFormat::Compact => TimestampFormat::Wide,
    }
}

/// Long windows and clock bounds, milliseconds: longer than any other margin in the floor of a
/// restore.
const LONG_MS: RangeInclusive<u64> = 10_000..=30_000;
/// The shortest reservation window that election timeouts allow, milliseconds.
const ELECTIONS_MS: u64 = 4 * ELECTION_MS;
/// The election timeout, milliseconds.
const ELECTION_MS: u64 = ELECTION_TICKS as u64 * TICK_NS / MS;
