//! Whoever leads goes by the settings that count where it has applied the log (S16): the window that it
//! reserves and the interval of its epochs are not those that it was told, nor those before, nor those to
//! come.

use epicepoch_core::publication::Identity;
use epicepoch_core::state::{State, WIDTH_MIN_NS};
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{BootId, Epoch, LogIndex, TimestampRange};

use super::{BEHIND_NS, History, Invariant};

/// Settings that leaders go by, nanoseconds; nothing is asked of one that has applied none.
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

/// What counts for a run: where it stood before it last applied something, and since. Its workers may
/// still see the one, and what was proposed in the same call may be of either.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoesBy {
    before: Option<Counting>,
    now: Option<Counting>,
}

impl GoesBy {
    /// The least and the greatest of what may count, if anything certainly does.
    fn both(self, value: fn(Counting) -> u64) -> Option<(u64, u64)> {
        let (before, now) = (value(self.before?), value(self.now?));
        Some((before.min(now), before.max(now)))
    }
}

impl History {
    /// A run begins at an applied index.
    pub(crate) fn began(&mut self, boot: BootId, index: LogIndex, state: &State) {
        let now = self.counting(index, state);
        self.goes_by.insert(boot, GoesBy { before: now, now });
    }

    /// A run has applied entries up to `index`.
    pub(super) fn take_in_settings(&mut self, boot: BootId, index: LogIndex, state: &State) {
        let now = self.counting(index, state);
        let before = self.goes_by.get(&boot).and_then(|goes_by| goes_by.now);
        self.goes_by.insert(boot, GoesBy { before, now });
    }

    /// What counts at an index: as whoever came there first has it. Another one that has something else is
    /// found by its state.
    fn counting(&mut self, index: LogIndex, state: &State) -> Option<Counting> {
        let own = || state.settings.as_ref().map(Counting::of);
        *self.settings.entry(index).or_insert_with(own)
    }

    /// A leader asks for a range up to `until`, and has last trusted `trusted_ns`: a window ahead of that,
    /// or just beyond what an operator moves the epoch to.
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

    /// Within what one leadership owns the epoch moves once an interval has passed, and not before, but
    /// where an operator moves it.
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
        let owner = |epoch: Epoch| self.owned.range(epoch..).next().map(|(_, owned)| owned.1);
        let is_one = owner(before) == owner(epoch) && before > self.advance_asked_max;
        let after_ns = monotonic_ns.saturating_sub(moved_ns);
        if is_one && after_ns.saturating_add(SOONER_NS) < least {
            self.violate(Invariant::Settings, || {
                format!("node {} moves to {epoch} after {after_ns} ns by {goes_by:?}", who.node)
            });
        }
    }

    /// Behind the leader's trusted time by no more than the interval that counts, where nothing else is
    /// asked: clocks are healthy, and the range goes on.
    pub(super) fn check_late(&mut self, who: Identity, range: TimestampRange, trusted_ns: u64) {
        let epoch = range.first().epoch;
        let goes_by = self.goes_by.get(&who.boot).copied();
        let Some((_, most)) = goes_by.and_then(|it| it.both(|it| it.interval_ns)) else { return };
        let behind_ns = trusted_ns.saturating_sub(epoch.0);
        let is_late = behind_ns > most + BEHIND_NS && !self.owned.contains_key(&epoch);
        if is_late && self.is_healthy {
            self.violate(Invariant::Settings, || {
                format!("node {} stays at {epoch} for {behind_ns} ns by {goes_by:?}", who.node)
            });
        }
    }
}

/// By how much an epoch may come sooner: two milliseconds, which is what `clock-read-twice` does, and S1 has
/// to find.
const SOONER_NS: u64 = 2_000_000;
