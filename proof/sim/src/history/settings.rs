//! S16: a leader uses the settings in effect at the index that it has applied. Its reservation
//! window and epoch interval come neither from its own configuration nor from earlier or later
//! settings.

use epicepoch_core::publication::Identity;
use epicepoch_core::restore::COMPACT_STEP_MAX_NS;
use epicepoch_core::state::{COMPACT_WIDTH_MIN_NS, State, WIDTH_MIN_NS};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{BootId, Epoch, LogIndex, Timestamp, TimestampFormat, TimestampRange};

use super::History;
use super::invariant::Invariant;
use crate::parameters::MS;

/// The settings of the cluster that a leader must use, nanoseconds. A leader that has not applied
/// any settings is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    window_ns: u64,
    interval_ns: u64,
    is_compact: bool,
}

impl Counting {
    const fn of(settings: &ClusterSettings) -> Self {
        Self {
            window_ns: settings.reservation_ms * 1_000_000,
            interval_ns: settings.epoch_interval_ms * 1_000_000,
            is_compact: matches!(settings.timestamp_format, TimestampFormat::Compact),
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

impl GoesBy {
    /// Whether compact timestamps may be in effect, and whether they must be.
    fn compact(self) -> (bool, bool) {
        let [before, now] = [self.before, self.now].map(|it| it.is_some_and(|it| it.is_compact));
        (before || now, before && now)
    }
}

impl History {
    /// Whether compact timestamps may be in effect for a process, and whether they must be.
    fn compact(&self, boot: BootId) -> (bool, bool) {
        self.goes_by.get(&boot).map_or((false, false), |goes_by| goes_by.compact())
    }

    /// S21: while compact timestamps are in effect, each has a compact spelling, and both spellings
    /// rise. The spelling is computed here, too.
    pub(super) fn check_compact(&mut self, who: Identity, range: TimestampRange) {
        if !self.compact(who.boot).1 {
            return;
        }
        let spelled = |timestamp: Timestamp| {
            let (epoch, index) = (timestamp.epoch.0, timestamp.index.0);
            (epoch % MS == 0 && index < 1 << 18).then_some(epoch / MS * (1 << 18) + index)
        };
        let (first, last) = (spelled(range.first()), spelled(range.last()));
        let before = self.spelled_max.insert(who.boot, last.unwrap_or_default());
        let is_range =
            first.zip(last).is_some_and(|(first, last)| last - first + 1 == range.count());
        if !is_range || first <= before {
            self.violate(Invariant::Compact, || {
                format!(
                    "node {} stamps {range:?}: {first:?} to {last:?} after {before:?}",
                    who.node
                )
            });
        }
    }

    /// How much more than wide timestamps compact ones may be behind the clock, nanoseconds: they
    /// have whole milliseconds, and a range ends in one.
    pub(super) fn behind_more_ns(&self, boot: BootId) -> u64 {
        if self.compact(boot).0 { MS } else { 0 }
    }

    /// Whether `epoch` is the last one of a range. Compact timestamps have whole milliseconds.
    pub(super) fn is_last(&self, boot: BootId, epoch: Epoch) -> bool {
        let more_ns = self.behind_more_ns(boot);
        self.ranges.has_end(epoch, Epoch(epoch.0.saturating_add(more_ns)))
    }

    /// How much all reservations of a run together may add to the ceiling because a range has a least
    /// width, nanoseconds. With compact timestamps, each leader may add one, and some of them more.
    pub(super) fn widths_ns(&self) -> u64 {
        let leaders = (self.leaders.len() + self.led_before) as u64;
        if self.compact_at.is_some() {
            leaders * COMPACT_STEP_MAX_NS + COMPACT_WIDTHS_NS
        } else {
            WIDTHS_NS.max(self.ranges() as u64 * WIDTH_MIN_NS)
        }
    }

    /// A process starts at an applied index.
    pub(crate) fn began(&mut self, boot: BootId, index: LogIndex, state: &State) {
        let now = self.counting(index, state);
        if now.is_some_and(|now| now.is_compact) {
            self.compact_at = Some(index);
        }
        self.goes_by.insert(boot, GoesBy { before: now, now });
    }

    /// A process has applied entries up to `index`.
    pub(super) fn apply_settings(&mut self, boot: BootId, index: LogIndex, state: &State) {
        let now = self.counting(index, state);
        if now.is_some_and(|now| now.is_compact) {
            self.compact_at = Some(index);
        }
        let before = self.goes_by.get(&boot).and_then(|goes_by| goes_by.now);
        self.goes_by.insert(boot, GoesBy { before, now });
    }

    /// The settings in effect at an index, as first seen there. Another check finds a node whose
    /// settings differ, because its whole state differs.
    fn counting(&mut self, index: LogIndex, state: &State) -> Option<Counting> {
        let own = || state.settings.as_ref().map(Counting::of);
        *self.settings.entry(index).or_insert_with(own)
    }

    /// A leader reserves a range up to `until`. That must be one window ahead of the time that it
    /// trusted when it decided this, which is between the two of `trusted_ns`, or just beyond the
    /// epoch to which an operator moves.
    pub(crate) fn reserves(&mut self, who: Identity, until: Epoch, trusted_ns: [u64; 2]) {
        let goes_by = self.goes_by.get(&who.boot).copied();
        let Some((least, most)) = goes_by.and_then(|it| it.both(|it| it.window_ns)) else { return };
        // Compact timestamps need some milliseconds above the end of the last range, also ahead of
        // the clock. The same call may have applied another such range.
        let (width_ns, end) = if self.compact_at.is_some() {
            let seen = self.ceilings.values().max().copied().unwrap_or_default();
            (2 * COMPACT_WIDTH_MIN_NS, seen.max(self.ranges.highest()))
        } else {
            (WIDTH_MIN_NS, Epoch(0))
        };
        let asked_ns = self.advance_asked_max.max(end).0.saturating_add(width_ns);
        let [low_ns, high_ns] =
            [trusted_ns[0].min(trusted_ns[1]), trusted_ns[0].max(trusted_ns[1])];
        let is_more = until.0 > asked_ns.max(high_ns.saturating_add(most));
        if is_more || until.0 < low_ns.saturating_add(least) {
            self.violate(Invariant::Settings, || {
                format!(
                    "node {} trusts {trusted_ns:?} and reserves up to {until} by {goes_by:?}",
                    who.node
                )
            });
        }
    }

    /// During one leadership the epoch moves only after an interval has passed, unless an operator
    /// moves it, or a handover has failed: the leader then has a new range. Compact timestamps also
    /// move when a millisecond is used up.
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
        if self.compact(who.boot).0 {
            return;
        }
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
        let limit_ns = most + BEHIND_NS + self.behind_more_ns(who.boot);
        let is_late = behind_ns > limit_ns && !self.is_last(who.boot, epoch);
        if is_late && self.is_healthy {
            self.violate(Invariant::Settings, || {
                format!("node {} stays at {epoch} for {behind_ns} ns by {goes_by:?}", who.node)
            });
        }
    }
}

/// A reservation takes at least the least width, even if the ceiling is already far enough. A run
/// usually has fewer than a thousand, which add this much, nanoseconds. More come from renewals of
/// short leases.
const WIDTHS_NS: u64 = 1_000_000;
/// The same for compact timestamps, beyond one for each leader: ten of the least width.
const COMPACT_WIDTHS_NS: u64 = 10 * COMPACT_WIDTH_MIN_NS;
/// How much too soon an epoch may come, nanoseconds. The planted bug `clock-read-twice` makes
/// epochs come two milliseconds too soon. Another checker finds that bug.
const SOONER_NS: u64 = 2_000_000;
/// More than a clock whose rate is off by 200 ppm adds to any interval, nanoseconds.
pub(super) const BEHIND_NS: u64 = 1_000_000;
