//! S16: a leader uses the settings in effect at the index that it has applied. Its reservation
//! window and epoch interval come neither from its own configuration nor from earlier or later
//! settings.

use epicepoch_core::publication::Identity;
use epicepoch_core::state::{State, WIDTH_MIN_NS};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{BootId, Epoch, LogIndex, TimestampRange};

use super::History;
use super::invariant::Invariant;

/// The settings of the cluster that a leader must use, nanoseconds. A leader that has not applied
/// any settings is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    window_ns: u64,
    interval_ns: u64,
}

impl Counting {
    const fn of(settings: &ClusterSettings) -> Self {
        Self {
            window_ns: settings.reservation_ms * 1_000_000,
            interval_ns: settings.epoch_interval_ms * 1_000_000,
        }
    }
}

/// The settings in effect for a process before and after the entry that it applied last. Its
/// workers may still use the settings from before that entry. A proposal that the same call makes
/// may use either.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoesBy {
    before: Option<Counting>,
    now: Option<Counting>,
}

impl GoesBy {
    /// The least and the greatest value that may be in effect, if known.
    fn both(self, value: fn(Counting) -> u64) -> Option<(u64, u64)> {
        let (before, now) = (value(self.before?), value(self.now?));
        Some((before.min(now), before.max(now)))
    }
}

impl History {
    /// A process starts at an applied index.
    pub(crate) fn began(&mut self, boot: BootId, index: LogIndex, state: &State) {
        let now = self.counting(index, state);
        self.goes_by.insert(boot, GoesBy { before: now, now });
    }

    /// A process has applied entries up to `index`.
    pub(super) fn apply_settings(&mut self, boot: BootId, index: LogIndex, state: &State) {
        let now = self.counting(index, state);
        let before = self.goes_by.get(&boot).and_then(|goes_by| goes_by.now);
        self.goes_by.insert(boot, GoesBy { before, now });
    }

    /// The settings in effect at an index, as first seen there. Another check finds a node whose
    /// settings differ, because its whole state differs.
    fn counting(&mut self, index: LogIndex, state: &State) -> Option<Counting> {
        let own = || state.settings.as_ref().map(Counting::of);
        *self.settings.entry(index).or_insert_with(own)
    }

    /// A leader that last trusted time `trusted_ns` reserves a range up to `until`. That must be
    /// one window ahead of `trusted_ns`, or just beyond the epoch to which an operator moves.
    pub(crate) fn reserves(&mut self, who: Identity, until: Epoch, trusted_ns: u64) {
        let goes_by = self.goes_by.get(&who.boot).copied();
        let Some((least, most)) = goes_by.and_then(|it| it.both(|it| it.window_ns)) else { return };
        let asked_ns = self.advance_asked_max.0.saturating_add(WIDTH_MIN_NS);
        let is_more = until.0 > asked_ns.max(trusted_ns.saturating_add(most));
        if is_more || until.0 < trusted_ns.saturating_add(least) {
            self.violate(Invariant::Settings, || {
                format!(
                    "node {} trusts {trusted_ns} and reserves up to {until} by {goes_by:?}",
                    who.node
                )
            });
        }
    }

    /// During one leadership the epoch moves only after an interval has passed, unless an operator
    /// moves it, or a handover has failed: the leader then has a new range.
    pub(super) fn check_interval(
        &mut self,
        who: Identity,
        range: TimestampRange,
        monotonic_ns: u64,
    ) {
        let epoch = range.first().epoch;
        let (before, moved_ns) = *self.moved.entry(who.boot).or_insert((epoch, monotonic_ns));
        if epoch <= before {
            return;
        }
        self.moved.insert(who.boot, (epoch, monotonic_ns));
        let goes_by = self.goes_by.get(&who.boot).copied();
        let Some((least, _)) = goes_by.and_then(|it| it.both(|it| it.interval_ns)) else { return };
        let is_one = self.ranges.owner(before) == self.ranges.owner(epoch)
            && before > self.advance_asked_max;
        let after_ns = monotonic_ns.saturating_sub(moved_ns);
        let is_early = is_one && after_ns.saturating_add(SOONER_NS) < least;
        if is_early && !self.moves_freely.remove(&who.boot) {
            self.violate(Invariant::Settings, || {
                format!("node {} moves to {epoch} after {after_ns} ns by {goes_by:?}", who.node)
            });
        }
    }

    /// While clocks are healthy and the range has epochs left, the epoch is behind the leader's
    /// trusted time by at most the interval in effect.
    pub(super) fn check_late(&mut self, who: Identity, range: TimestampRange, trusted_ns: u64) {
        let epoch = range.first().epoch;
        let goes_by = self.goes_by.get(&who.boot).copied();
        let Some((_, most)) = goes_by.and_then(|it| it.both(|it| it.interval_ns)) else { return };
        let behind_ns = trusted_ns.saturating_sub(epoch.0);
        let is_late = behind_ns > most + BEHIND_NS && !self.ranges.is_end(epoch);
        if is_late && self.is_healthy {
            self.violate(Invariant::Settings, || {
                format!("node {} stays at {epoch} for {behind_ns} ns by {goes_by:?}", who.node)
            });
        }
    }
}

/// How much too soon an epoch may come, nanoseconds. The planted bug `clock-read-twice` makes
/// epochs come two milliseconds too soon. Another checker finds that bug.
const SOONER_NS: u64 = 2_000_000;
/// More than a clock whose rate is off by 200 ppm adds to any interval, nanoseconds.
pub(super) const BEHIND_NS: u64 = 1_000_000;
