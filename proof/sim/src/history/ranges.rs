//! Who owns which epochs. A range has one owner, and a later range begins where the last one ended
//! (S5). It ends earlier if its owner has given its end back, and then the owner gives nothing of
//! that end, neither before nor after (S18).

use std::collections::{BTreeMap, BTreeSet};

use epicepoch_core::publication::{EpochRange, Identity};
use epicepoch_core::state::{FORMAT_OF_GIVING_BACK, Owner, State};
use epicepoch_wire::{Epoch, LogIndex, Term};

use super::{History, Invariant};

/// The ranges that nodes were seen to have applied.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The last owner and its range, at the indexes from which they were seen to hold.
    at: BTreeMap<LogIndex, (Owner, EpochRange)>,
    /// The newest state that was seen. `at` has it at an earlier index if it is the same there. It
    /// may have differed in between: a range was given back, and then assigned again.
    newest: Option<(LogIndex, (Owner, EpochRange))>,
    /// The last epochs of all ranges, also those of earlier histories of the cluster.
    ends: BTreeSet<Epoch>,
    /// No range of this history may begin below.
    floor: Epoch,
}

impl Ranges {
    /// The ranges of a new history of the same cluster.
    pub(super) fn restored(self) -> Self {
        let floor = self.highest();
        Self { ends: self.ends, floor, ..Self::default() }
    }

    /// The last epoch of any range.
    pub(super) fn highest(&self) -> Epoch {
        self.ends.last().copied().unwrap_or(Epoch(0))
    }

    /// How many ranges were assigned.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether a range ends with one of these epochs.
    pub(super) fn has_end(&self, first: Epoch, last: Epoch) -> bool {
        self.ends.range(first..=last).next().is_some()
    }

    /// The owner of an epoch, as far as a node has applied it.
    pub(super) fn owner(&self, epoch: Epoch) -> Option<Owner> {
        let mut known = self.at.values().rev();
        known.find(|(_, range)| range.contains(epoch)).map(|(owner, _)| *owner)
    }

    /// The low end of the last range of an owner.
    pub(super) fn low_of(&self, owner: Owner) -> Option<Epoch> {
        let own = self.at.values().filter(|(of, _)| *of == owner);
        own.map(|(_, range)| range.low).max()
    }

    /// Whether `me` may stamp `epoch`: a range of its own has it, and nothing that was applied
    /// later says that `me` has given it back.
    fn is_own(&self, me: Owner, epoch: Epoch) -> bool {
        for (owner, range) in self.at.values().rev() {
            if *owner == me && range.contains(epoch) {
                return true;
            }
            let is_gone = if *owner == me { range.high < epoch } else { range.low < epoch };
            if is_gone {
                return false;
            }
        }
        false
    }
}

impl History {
    /// A node has applied the log up to `index`. Compares the last range with those before and
    /// after it.
    pub(super) fn check_ranges(&mut self, index: LogIndex, state: &State) {
        let Some((owner, range)) = state.owner else { return };
        match self.ranges.newest {
            Some((newest, it)) if newest > index => {
                if it != (owner, range) {
                    self.ranges.at.entry(newest).or_insert(it);
                }
            }
            _ => self.ranges.newest = Some((index, (owner, range))),
        }
        let known = &self.ranges.at;
        let before = known.range(..=index).next_back().map(|(at, it)| (*at, *it));
        let after = known.range(index..).next().map(|(_, it)| *it);
        if before.is_some_and(|(at, it)| it == (owner, range) || at == index) {
            return;
        }
        let is_back_allowed = state.format >= FORMAT_OF_GIVING_BACK;
        let before = before.map(|(_, it)| it);
        let low_min = before.map_or(self.ranges.floor, |(_, it)| it.low);
        let is_above = range.low >= low_min
            && after.is_none_or(|(_, after)| range.low <= after.low)
            && before.is_none_or(|(last, it)| {
                is_back_allowed
                    || if last == owner { it.low <= range.low } else { it.high <= range.low }
            });
        if !is_above {
            self.violate(Invariant::Ranges, || {
                format!("{range:?} belongs to {owner:?}, after {before:?} and before {after:?}")
            });
        }
        if after.is_none()
            && let Some((last, it)) = before
        {
            let end = if last == owner { range.high } else { range.low };
            if end < it.high {
                self.check_given_back(last, end);
            }
        }
        self.ranges.at.insert(index, (owner, range));
        self.ranges.ends.insert(range.high);
    }

    /// A leader offers leadership, and may withdraw its grant to give its range back.
    pub(crate) fn offers_leadership(&mut self, who: Identity) {
        self.moves_freely.insert(who.boot);
    }

    /// S18: `owner` has given back everything above `end`, so it has stamped nothing there. S19: it
    /// has shown nothing there as the latest timestamp, which the next leader goes on above. S14: no
    /// operator was told that the epoch has moved beyond `end`.
    fn check_given_back(&mut self, owner: Owner, end: Epoch) {
        let advanced = self.above();
        if end < advanced {
            self.violate(Invariant::Advanced, || {
                format!("{owner:?} has given back all above {end}, and the epoch is {advanced}")
            });
        }
        let used = self.used_epoch(owner.boot);
        if used > end {
            self.violate(Invariant::GivenBack, || {
                format!("{owner:?} stamped or showed {used} and has given back all above {end}")
            });
        }
    }

    /// A node has applied that `owner` gives back all above `end`. It keeps nothing: `end` is the last
    /// epoch that it stamped or showed, or the low end of its range, or what an operator has moved to.
    pub(crate) fn gives_back(&mut self, owner: Owner, end: Epoch) {
        let low = self.ranges.low_of(owner).unwrap_or(Epoch(0));
        let lowest = self.used_epoch(owner.boot).max(low).max(self.advance_asked_max);
        if end > lowest {
            self.violate(Invariant::GivenBack, || {
                format!("{owner:?} has given back what is above {end}, and not above {lowest}")
            });
        }
    }

    /// S3: a process stamps only in a range of its own.
    pub(super) fn check_inside_owned_range(&mut self, who: Identity, term: Term, epoch: Epoch) {
        let me = Owner { term, node: who.node, boot: who.boot };
        if !self.ranges.is_own(me, epoch) {
            let owner = self.ranges.owner(epoch);
            self.violate(Invariant::InsideOwnedRange, || {
                format!("{me:?} stamped {epoch} of {owner:?}")
            });
        }
    }
}
