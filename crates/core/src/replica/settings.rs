//! Settings in the replicated state: a leader seeds them once from its node's configuration, and
//! operators change them. A change takes effect on each node when it applies the entry, not before.
//! Settings need a format of their own (S15).

use std::sync::Arc;

use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{Guarantee, Mode, NodeId, Term, TimestampFormat};
use raft::StateRole;
use thiserror::Error;

use super::{Replica, Report, ZonesInDoubt};
use crate::state::{
    Command, FORMAT_OF_CLOSING, FORMAT_OF_COMPACT, FORMAT_OF_INTERVALS, FORMAT_OF_LEASES,
    FORMAT_OF_SETTINGS, Outcome,
};

/// The first settings that this node would propose, and the change that is under way.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// The settings of this node's configuration.
    seed: Option<ClusterSettings>,
    /// Ticks until the settings may be proposed again.
    pause: usize,
    /// The term and nonce of a change that was proposed and is not applied yet.
    pending: Option<(Term, u64)>,
    /// The settings of the state, as published.
    published: Option<Arc<ClusterSettings>>,
}

/// Why settings are not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// Ask again in a moment.
    #[error("the leader has no range yet, or hands leadership over; ask again")]
    NotServing,
    /// The leader has not proposed the first settings yet. Ask again in a moment, or see to the
    /// named members.
    #[error("the cluster has no settings yet: {}", waiting_for(not_reading))]
    NotSeeded {
        /// The members that are not known to read the format of the first settings.
        not_reading: Vec<NodeId>,
    },
    /// Ask again in a moment.
    #[error("settings are being changed already; ask again")]
    Busy,
    /// Update all members first.
    #[error(
        "the replicated state is of format {format}, and settings are in it from format \
         {FORMAT_OF_SETTINGS} on: update the nodes that epicepoch member list names; if it names none, \
         ask again in a moment"
    )]
    Format {
        /// The format of the state.
        format: u32,
    },
    /// Update all members first.
    #[error(
        "the replicated state is of format {format}, and leases are in it from format \
         {FORMAT_OF_LEASES} on: update the nodes that epicepoch member list names; if it names none, \
         ask again in a moment"
    )]
    FormatOfLeases {
        /// The format of the state.
        format: u32,
    },
    /// Update all members first.
    #[error(
        "the replicated state is of format {format}, and compact timestamps are in it from format \
         {FORMAT_OF_COMPACT} on: update the nodes that epicepoch member list names; if it names none, \
         ask again in a moment"
    )]
    FormatOfCompact {
        /// The format of the state.
        format: u32,
    },
    /// Leave the setting as it is. A wide timestamp has no compact spelling, and users of this cluster
    /// may have keys of 64 bits.
    #[error(
        "TIMESTAMP_FORMAT is compact, and cannot become wide again: wide timestamps do not fit into the \
         64 bits that users of this cluster may rely on; found a new cluster for wide timestamps"
    )]
    BackToWide,
    /// Update all members first.
    #[error(
        "the replicated state is of format {format}, and interval mode is in it from format \
         {FORMAT_OF_INTERVALS} on: update the nodes that epicepoch member list names; if it names none, \
         ask again in a moment"
    )]
    FormatOfIntervals {
        /// The format of the state.
        format: u32,
    },
    /// Replace the member by one with a lower id first.
    #[error(
        "interval timestamps have node ids up to 32767, and node {node} is a member: replace it by a \
         member with a lower NODE_ID first"
    )]
    NodeBeyondIntervals {
        /// The member.
        node: NodeId,
    },
    /// Update all members first.
    #[error(
        "the replicated state is of format {format}, and interval mode can end from format \
         {FORMAT_OF_CLOSING} on: update the nodes that epicepoch member list names; if it names none, \
         ask again in a moment"
    )]
    FormatOfClosing {
        /// The format of the state.
        format: u32,
    },
    /// State that nodes have stopped only together with the change back to quorum mode.
    #[error(
        "--stopped says that nodes run no more, for the change from interval mode to quorum mode: \
         repeat it with MODE=quorum"
    )]
    StoppedWithoutChange,
    /// Name only nodes that were removed in interval mode. Others confirm by themselves.
    #[error(
        "node {node} was not removed in interval mode, so --stopped must not name it: a member confirms \
         by itself that it has stopped; remove it first if it is gone for good"
    )]
    NotRemoved {
        /// The node.
        node: NodeId,
    },
    /// Correct the value.
    #[error("{name} would be {value:?}; allowed is {}", .name.allowed())]
    NotAllowed {
        /// The setting.
        name: SettingName,
        /// The requested value.
        value: String,
    },
    /// The requested window is too short: ask for a longer one. Only a change of `RESERVATION_MS`
    /// is refused for this reason. A window that became too short because an election timeout has
    /// grown blocks no other setting.
    #[error(
        "RESERVATION_MS would be {reservation_ms} with ELECTION_TIMEOUT_MS {election_ms}; allowed is at \
         least {}", 4 * election_ms
    )]
    ReservationTooShort {
        /// The requested value, milliseconds.
        reservation_ms: u64,
        /// The election timeout of the leader, milliseconds.
        election_ms: u64,
    },
    /// The requested lease is too long: ask for a shorter one. Only a change of `LEASE_MS` is refused
    /// for this reason.
    #[error(
        "LEASE_MS would be {lease_ms} with ELECTION_TIMEOUT_MS {election_ms}; allowed is at most the \
         election timeout"
    )]
    LeaseTooLong {
        /// The requested value, milliseconds.
        lease_ms: u64,
        /// The election timeout of the leader, milliseconds.
        election_ms: u64,
    },
    /// This leader may not take leases: its clock may stand still ([`Replica::allow_leases`]). Ask
    /// for 0, or see what the node says of its clock.
    #[error(
        "LEASE_MS must be 0, because this leader may take no lease; leaseClock in its /status says why; \
         LEASE_CLOCK=trusted allows leases"
    )]
    LeaseClock,
    /// No voter is in a named zone. Correct the name, add a voter in that zone before this change,
    /// or force the change.
    #[error(
        "LEADER_ZONES would name {:?}, and no voter is in that zone; {}: correct the name; for a zone \
         to come, add and promote a member there first, or set it with --force",
        joined(unknown),
        said_of(known)
    )]
    UnknownZones {
        /// The zones that no voter is in.
        unknown: Vec<Zone>,
        /// The zones that voters are in.
        known: Vec<Zone>,
    },
}

fn waiting_for(not_reading: &[NodeId]) -> String {
    if not_reading.is_empty() {
        return "ask again in a moment".to_owned();
    }
    let nodes: Vec<_> = not_reading.iter().map(ToString::to_string).collect();
    format!(
        "the first ones have leases, or compact timestamps, and these members are silent, or do not \
         read the format of that: {}; start or update them. Leases are left out after a while, compact \
         timestamps are not",
        nodes.join(", ")
    )
}

/// The lowest format that has all of these settings.
fn format_of(settings: &ClusterSettings) -> u32 {
    Command::Settings { nonce: 0, is_seed: true, settings: settings.clone() }.format()
}

fn joined(zones: &[Zone]) -> String {
    zones.iter().map(Zone::name).collect::<Vec<_>>().join(",")
}

fn said_of(known: &[Zone]) -> String {
    if known.is_empty() {
        return "none has a ZONE".to_owned();
    }
    format!("the voters are in {}", joined(known))
}

impl Replica {
    /// Gives the replica the settings of this node's configuration. As leader, the replica proposes
    /// them if the cluster has none yet.
    pub fn seed_settings(&mut self, settings: ClusterSettings) {
        self.settings.seed = Some(settings);
    }

    /// The settings of the cluster; `None` before they are seeded.
    #[must_use]
    pub const fn settings(&self) -> Option<&ClusterSettings> {
        self.state.settings.as_ref()
    }

    /// Checks that voters are in the zones that these settings name, as far as this leader knows.
    /// Call it before [`Replica::change_settings`], in the same turn. Zones that are already in
    /// effect are not checked; otherwise they would block changes of other settings. `is_forced`
    /// allows unknown zones.
    ///
    /// Returns the zones in which no voter is known to be.
    ///
    /// # Errors
    /// [`SettingsError::UnknownZones`] when no voter can be in one of them.
    pub fn judge_zones(
        &self,
        settings: &ClusterSettings,
        is_forced: bool,
    ) -> Result<Option<ZonesInDoubt>, SettingsError> {
        let before = self.state.settings.as_ref().map_or(&[][..], |before| &before.leader_zones);
        let new = settings.leader_zones.iter().filter(|zone| !before.contains(zone));
        let doubt = self.doubt_of(&new.cloned().collect::<Vec<_>>());
        if doubt.empty.is_empty() {
            return Ok(None);
        }
        if doubt.unplaced.is_empty() && !is_forced {
            let ZonesInDoubt { empty, known, .. } = doubt;
            return Err(SettingsError::UnknownZones { unknown: empty, known });
        }
        Ok(Some(doubt))
    }

    /// Proposes other settings. They are in effect once [`Report::SettingsChanged`] has the nonce.
    ///
    /// # Errors
    /// Why they were not proposed.
    pub fn change_settings(
        &mut self,
        now_ns: u64,
        nonce: u64,
        settings: &ClusterSettings,
    ) -> Result<(), SettingsError> {
        self.now_ns = now_ns;
        let term = Term(self.raw.raft.term);
        if self.raw.raft.state != StateRole::Leader {
            return Err(SettingsError::NotLeader);
        }
        settings.check().map_err(|name| {
            let value = settings.text(name);
            SettingsError::NotAllowed { name, value }
        })?;
        let election_ms = self.election_ns() / 1_000_000;
        let reservation_ms = settings.reservation_ms;
        let before = self.state.settings.as_ref().map(|before| before.reservation_ms);
        if before != Some(reservation_ms) && reservation_ms < ELECTIONS_MIN * election_ms {
            return Err(SettingsError::ReservationTooShort { reservation_ms, election_ms });
        }
        let lease_before = self.state.settings.as_ref().map(|before| before.lease_ms);
        let lease_ms = settings.lease_ms;
        // The length in effect may stay, also under a leader that takes no lease itself.
        let is_lease_new = lease_before != Some(lease_ms);
        if is_lease_new && lease_ms > 0 && !self.is_lease_clock_fit {
            return Err(SettingsError::LeaseClock);
        }
        if is_lease_new && lease_ms > election_ms {
            return Err(SettingsError::LeaseTooLong { lease_ms, election_ms });
        }
        if self.state.format < FORMAT_OF_SETTINGS {
            return Err(SettingsError::Format { format: self.state.format });
        }
        if self.state.format < FORMAT_OF_LEASES && !settings.is_without_leases() {
            return Err(SettingsError::FormatOfLeases { format: self.state.format });
        }
        self.check_timestamp_format(settings.timestamp_format)?;
        self.check_mode(settings.mode)?;
        if !self.may_settle() {
            return Err(SettingsError::NotServing);
        }
        if self.state.settings.is_none() {
            return Err(self.not_seeded());
        }
        if self.settings.pending.is_some_and(|(of, _)| of == term) {
            return Err(SettingsError::Busy);
        }
        let command = Command::Settings { nonce, is_seed: false, settings: settings.clone() };
        // Set before the step, because the step may apply the change. The nonce alone shows that it
        // is applied: the same values may have been in effect before.
        self.settings.pending = Some((term, nonce));
        if self.step(|raw| raw.propose(Vec::new(), command.encode())).is_err() {
            self.settings.pending = None;
            return Err(SettingsError::Busy);
        }
        Ok(())
    }

    /// S21: timestamps may become compact, and stay so.
    fn check_timestamp_format(&self, format: TimestampFormat) -> Result<(), SettingsError> {
        match (self.state.timestamp_format(), format) {
            (TimestampFormat::Compact, TimestampFormat::Wide) => Err(SettingsError::BackToWide),
            (TimestampFormat::Wide, TimestampFormat::Compact)
                if self.state.format < FORMAT_OF_COMPACT =>
            {
                Err(SettingsError::FormatOfCompact { format: self.state.format })
            }
            (TimestampFormat::Wide, _) | (TimestampFormat::Compact, TimestampFormat::Compact) => {
                Ok(())
            }
        }
    }

    /// S24, S26: the mode may change in both directions.
    fn check_mode(&self, mode: Mode) -> Result<(), SettingsError> {
        match (self.state.mode(), mode) {
            (Mode::Interval, Mode::Quorum) if self.state.format < FORMAT_OF_CLOSING => {
                Err(SettingsError::FormatOfClosing { format: self.state.format })
            }
            (Mode::Quorum, Mode::Interval) if self.state.format < FORMAT_OF_INTERVALS => {
                Err(SettingsError::FormatOfIntervals { format: self.state.format })
            }
            (Mode::Quorum, Mode::Interval) => {
                let node = self.state.node_beyond_intervals();
                node.map_or(Ok(()), |node| Err(SettingsError::NodeBeyondIntervals { node }))
            }
            (Mode::Interval, Mode::Quorum | Mode::Interval) | (Mode::Quorum, Mode::Quorum) => {
                Ok(())
            }
        }
    }

    /// Why the cluster has no settings, although its format has them.
    pub(crate) fn not_seeded(&self) -> SettingsError {
        let needed = self.settings.seed.as_ref().map_or(FORMAT_OF_SETTINGS, format_of);
        let is_waiting = self.state.format < needed;
        let not_reading = if is_waiting { self.not_reading(needed) } else { Vec::new() };
        SettingsError::NotSeeded { not_reading }
    }

    /// Checks an operator's statement, together with a change to these settings, that nodes run no
    /// more (S26). Call it before [`Replica::change_settings`], and [`Replica::record_gone`] after
    /// that, in the same turn.
    ///
    /// # Errors
    /// When one of them was not removed in interval mode, or the change is not one to quorum mode.
    pub fn check_gone(
        &self,
        gone: &[NodeId],
        settings: &ClusterSettings,
    ) -> Result<(), SettingsError> {
        if !gone.is_empty() && settings.mode != Mode::Quorum {
            return Err(SettingsError::StoppedWithoutChange);
        }
        let removed = |node: &&NodeId| {
            self.state.intervals.as_ref().is_some_and(|it| it.removed.contains(node))
        };
        if let Some(node) = gone.iter().find(|node| !removed(node)) {
            return Err(SettingsError::NotRemoved { node: *node });
        }
        Ok(())
    }

    /// Whether this leader has applied the whole log that it had when it became leader.
    pub(super) fn may_settle(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && !self.is_handing_over()
            && self.grant.is_some_and(|grant| grant.term == Term(raft.term))
    }

    /// Proposes the first settings, once the format includes settings.
    pub(super) fn seed_settings_if_due(&mut self) {
        if self.settings.pause > 0 {
            self.settings.pause -= 1;
            return;
        }
        let is_due = self.state.format >= FORMAT_OF_SETTINGS && self.state.settings.is_none();
        let Some(seed) = self.settings.seed.as_ref().filter(|_| is_due) else { return };
        let mut settings = seed.clone();
        let is_compact = settings.timestamp_format == TimestampFormat::Compact;
        if is_compact && self.state.format < FORMAT_OF_COMPACT {
            if self.config.format_max >= FORMAT_OF_COMPACT {
                // Compact timestamps wait for their format, however long that takes: keys of 64 bits
                // may depend on them, as after a restore. `not_seeded` says whom to wait for.
                return;
            }
            settings.timestamp_format = TimestampFormat::Wide;
        }
        let needed = format_of(&settings);
        let is_coming = self.config.format_max >= needed
            && (!self.has_listened_long_enough() || self.not_reading(needed).is_empty());
        if self.state.format < needed && is_coming {
            // The first settings have leases. So they wait for the format that has these.
            return;
        }
        if self.state.format < FORMAT_OF_LEASES {
            // Some member does not read that format, or is silent. The cluster gets all other
            // settings, so that operators can change them. Leases are off until they say otherwise.
            (settings.lease_ms, settings.guarantee_default) = (0, Guarantee::Quorum);
        }
        if self.may_settle() {
            self.settings.pause = self.config.election_ticks;
            let command = Command::Settings { nonce: 0, is_seed: true, settings };
            // If the proposal is dropped, it is made again after the pause.
            let _again = self.step(|raw| raw.propose(Vec::new(), command.encode()));
        }
    }

    /// Records that an entry of settings was applied.
    pub(super) fn record_settings(&mut self, nonce: u64, outcome: Outcome) {
        if self.settings.pending.is_some_and(|(_, of)| of == nonce) {
            self.settings.pending = None;
        }
        self.apply_settings();
        self.reports.push_back(Report::SettingsChanged { nonce, outcome });
    }

    /// Puts the settings of the state into effect.
    pub(super) fn apply_settings(&mut self) {
        let Some(settings) = &self.state.settings else { return };
        if self.settings.published.as_deref() == Some(settings) {
            return;
        }
        let settings = Arc::new(settings.clone());
        self.reservation.set_window(settings.reservation_ms * 1_000_000, self.config.tick_ns);
        self.preference.prefer(settings.leader_zones.clone());
        let is_lease_off = settings.lease_ms == 0;
        self.settings.published = Some(settings);
        if self.state.mode() == Mode::Interval {
            // S14: an advance that is under way stays without an answer. Interval timestamps begin
            // above the ceiling of now, and not above a later one.
            self.reservation.advance = None;
        }
        self.publish();
        if is_lease_off {
            self.release_lease();
        }
    }

    pub(super) fn published_settings(&self) -> Option<Arc<ClusterSettings>> {
        self.settings.published.clone()
    }
}

/// A reservation window is at least this many election timeouts long. The check of a node's own
/// settings has the same limit.
const ELECTIONS_MIN: u64 = 4;
