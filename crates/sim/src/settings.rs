//! Settings of simulated clusters: seeded by their first leader, changed by operators at any moment,
//! also where they may not be, or the format has no room for them. The checkers of equal states see
//! them; those of the clocks hold for the longest that there may be, which nodes are told at first.

use epicepoch_core::placement::Placement;
use epicepoch_core::replica::SettingsError;
use epicepoch_core::state::FORMAT_OF_SETTINGS;
use epicepoch_wire::settings::ClusterSettings;

use crate::history::Invariant;
use crate::node::{CLOCK_OFFSET_MAX_NS, ELECTION_TICKS, RESERVATION_NS, TICK_NS};
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

impl World {
    /// Somebody changes settings: mostly to something that they may be.
    pub(crate) fn change_settings(&mut self) {
        let node = self.any_leading();
        let Some(running) = &self.at(node).running else { return };
        let replica = &running.replica;
        let (format, before) = (replica.state().format, replica.settings().cloned());
        let mut settings = before.unwrap_or_else(|| told(&Placement::default()));
        let is_wrong = match self.random.u32(0..10) {
            0 => {
                settings.max_n = 0;
                true
            }
            1 => {
                settings.reservation_ms = ELECTIONS_MS - 1;
                true
            }
            2..5 => {
                settings.reservation_ms = self.random.u64(ELECTIONS_MS..=RESERVATION_NS / MS);
                false
            }
            5..7 => {
                settings.epoch_interval_ms = self.random.u64(50..=EPOCH_INTERVAL_NS / MS);
                false
            }
            7 => {
                settings.clock_offset_max_ms = self.random.u64(400..=CLOCK_OFFSET_MAX_NS / MS);
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
        let taken = self.with(node, |replica, now| replica.change_settings(now, nonce, &settings));
        match taken {
            Ok(()) if is_wrong || format < FORMAT_OF_SETTINGS => {
                let what = || format!("{node} takes {settings:?} at format {format}");
                self.history.violate(Invariant::Possible, what);
            }
            Ok(()) => {
                self.count("settings changed");
                self.provoke(node);
            }
            Err(SettingsError::Format { .. }) => self.count("settings refused: old format"),
            Err(_) => {}
        }
    }
}

/// The shortest reservation that election timeouts leave room for, milliseconds.
const ELECTIONS_MS: u64 = 4 * ELECTION_TICKS as u64 * TICK_NS / MS;
