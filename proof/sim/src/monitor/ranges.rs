//! Reservations, ranges, grants, and what is given back: the actions of `rounds.py` from `propose`
//! to `pass_back`. Ranges are computed here from the entries alone.

use std::collections::BTreeMap;

use epicepoch_core::publication::{Grant, Published, Role};
use epicepoch_core::state::{Command, FORMAT_OF_GIVING_BACK, FORMATS, Owner, State, WIDTH_MIN_NS};
use epicepoch_wire::{Epoch, LogIndex, NodeId, Term};

use super::Monitor;

/// An entry of the log.
type Key = (LogIndex, Term);

/// The ranges of a history.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Reservations that are not applied, and whether their owner gives nothing of them any more.
    proposed: BTreeMap<Key, (Owner, bool)>,
    assigned: Vec<Assigned>,
    /// What was proposed to be given back, and is not applied: all above this epoch.
    offered: BTreeMap<Key, (Owner, Epoch)>,
    /// The end of the last range.
    ceiling: Epoch,
    /// The low end of all ranges in a row that the last owner has, and of the range that the state
    /// of this format has.
    base: Epoch,
    low: Epoch,
    last: Option<Owner>,
    format: u32,
    /// End and low end of the last range, at the indexes from which they hold.
    at: Vec<(LogIndex, Epoch, Epoch)>,
    /// The last entry that gives back and changes nothing, what it would have given back, and the
    /// rule that forbids it.
    passed: Option<(LogIndex, Epoch, &'static str)>,
}

#[derive(Debug)]
struct Assigned {
    owner: Owner,
    low: Epoch,
    high: Epoch,
    is_stopped: bool,
}

impl Ranges {
    pub(super) const fn new(floor: Epoch) -> Self {
        Self {
            proposed: BTreeMap::new(),
            assigned: Vec::new(),
            offered: BTreeMap::new(),
            ceiling: floor,
            base: floor,
            low: floor,
            last: None,
            format: FORMATS.oldest,
            at: Vec::new(),
            passed: None,
        }
    }
}

impl Monitor {
    /// Actions `propose` and `give_back`: a leader appends an entry. A leader that was deposed since
    /// has `won` the term of the entry.
    pub(super) fn proposes(&mut self, id: NodeId, key: Key, command: &Command, won: Option<Term>) {
        match command {
            Command::Reserve { owner, .. } => self.reserves(id, key, *owner, won),
            Command::GiveBack { owner, range } => self.gives_back(id, key, *owner, range.low, won),
            Command::Readdress(_)
            | Command::Raise(_)
            | Command::Settings { .. }
            | Command::Release { .. }
            | Command::EndIntervals { .. } => {}
        }
    }

    fn reserves(&mut self, id: NodeId, key: Key, owner: Owner, won: Option<Term>) {
        if !self.is_live("rounds/propose/is-live", id) {
            return;
        }
        let run = self.at(id).running();
        let me = Owner { term: key.1, node: id, boot: run.me.boot };
        let leads = [run.leads, run.led, run.believed(), won];
        let is_leading = owner == me && leads.contains(&Some(owner.term));
        self.rule("rounds/propose/proposes-while-leading", is_leading, || {
            format!("node {id} reserves for {owner:?} in {key:?}, and leads {leads:?}")
        });
        let is_new = self.ranges.proposed.insert(key, (owner, false)).is_none();
        self.rule("rounds/propose/is-new", is_new, || format!("{key:?} was proposed before"));
    }

    /// Nobody has won this term, and what was proposed in it is gone.
    pub(super) fn forgets_proposals(&mut self, term: Term) {
        self.ranges.proposed.retain(|(_, of), _| *of != term);
    }

    /// A reservation was found on a disk, although nobody has won its term.
    pub(super) fn finds_proposal(&mut self, key: Key, command: &Command) {
        if let Command::Reserve { owner, .. } = command {
            self.ranges.proposed.insert(key, (*owner, false));
        }
    }

    fn gives_back(&mut self, id: NodeId, key: Key, owner: Owner, low: Epoch, won: Option<Term>) {
        if !self.is_live("rounds/give_back/is-live", id) {
            return;
        }
        let run = self.at(id).running();
        let (grant, last, leads) = (run.grant, run.last, [run.leads, run.led, won]);
        let me = Owner { term: key.1, node: id, boot: run.me.boot };
        let is_leader = owner == me && leads.contains(&Some(owner.term));
        self.rule("rounds/give_back/is-leader", is_leader, || {
            format!("node {id} gives back for {owner:?} in {key:?}, and leads {leads:?}")
        });
        self.rule("rounds/give_back/offered-before-stop", grant.is_none(), || {
            format!("node {id} gives back what is above {low}, and its workers see {grant:?}")
        });
        let is_above = last.is_none_or(|last| last.epoch <= low);
        self.rule("rounds/give_back/offered-below-last", is_above, || {
            format!("node {id} gives back what is above {low}, and its allocator is at {last:?}")
        });
        self.ranges.offered.insert(key, (owner, low));
        for (of, is_stopped) in self.ranges.proposed.values_mut() {
            *is_stopped |= of.boot == owner.boot;
        }
        for range in self.ranges.assigned.iter_mut().filter(|it| it.owner.boot == owner.boot) {
            range.is_stopped = true;
        }
    }

    /// A committed entry is applied, for the first time by any node: actions `assign`, `take_back`
    /// and `pass_back`.
    pub(super) fn applies_command(&mut self, key: Key, command: &Command) {
        match command {
            Command::Reserve { owner, until, .. } => self.assigns(key, *owner, *until),
            Command::GiveBack { owner, range } => {
                self.takes_back(key, *owner, (range.low, range.high));
            }
            Command::Raise(to) if *to == self.ranges.format + 1 => self.ranges.format = *to,
            Command::Raise(_)
            | Command::Readdress(_)
            | Command::Settings { .. }
            | Command::Release { .. }
            | Command::EndIntervals { .. } => {}
        }
    }

    fn assigns(&mut self, key: Key, owner: Owner, until: Epoch) {
        let proposed = self.ranges.proposed.remove(&key);
        self.rule("rounds/assign/is-proposed", proposed.is_some(), || {
            format!("nobody has proposed the reservation {key:?} of {owner:?}")
        });
        let is_new = self.ranges.at.last().is_none_or(|(at, ..)| *at < key.0);
        self.rule("rounds/assign/is-new", is_new, || format!("{key:?} is assigned again"));
        let Some((_, is_stopped)) = proposed.filter(|_| owner.term == key.1) else { return };
        let Ranges { ceiling, last, .. } = self.ranges;
        let high = until.max(Epoch(ceiling.0.saturating_add(WIDTH_MIN_NS)));
        self.rule("rounds/assign/is-range", ceiling < high, || format!("{key:?} is empty"));
        let falls = last.is_some_and(|last| last.term > owner.term);
        self.rule("rounds/assign/terms-fall", !falls, || {
            format!("a range of {owner:?} follows one of {last:?}")
        });
        let is_offered = |(by, _): &(Owner, Epoch)| *by == owner;
        let is_behind = is_stopped || !self.ranges.offered.values().any(is_offered);
        self.rule("rounds/assign/log-order", is_behind, || {
            format!("{owner:?} gets a range before what it gives back is applied")
        });
        let ranges = &mut self.ranges;
        if last != Some(owner) {
            ranges.base = ceiling;
        }
        if last != Some(owner) || ranges.format < FORMAT_OF_GIVING_BACK {
            ranges.low = ceiling;
        }
        ranges.assigned.push(Assigned { owner, low: ceiling, high, is_stopped });
        (ranges.ceiling, ranges.last) = (high, Some(owner));
        ranges.at.push((key.0, high, ranges.low));
    }

    fn takes_back(&mut self, key: Key, owner: Owner, (low, high): (Epoch, Epoch)) {
        let offered = self.ranges.offered.remove(&key).is_some();
        let what = || format!("nobody has proposed what {key:?} gives back for {owner:?}");
        self.rule("rounds/take_back/is-offered", offered, what);
        self.rule("rounds/pass_back/is-offered", offered, what);
        let ranges = &mut self.ranges;
        let forbids = if ranges.last != Some(owner) || owner.term != key.1 {
            Some("rounds/take_back/back-of-another")
        } else if low < ranges.base {
            Some("rounds/take_back/back-below-range")
        } else if low > ranges.ceiling {
            Some("rounds/take_back/is-lower")
        } else {
            None
        };
        // The state also ignores an entry that names another end: that is a second safeguard, which
        // the specification does not need.
        let is_taken = forbids.is_none()
            && ranges.format >= FORMAT_OF_GIVING_BACK
            && (ranges.low <= low && low < high && high == ranges.ceiling);
        if is_taken {
            ranges.ceiling = low;
            ranges.at.push((key.0, low, ranges.low));
        } else if let Some(forbids) = forbids {
            ranges.passed = Some((key.0, low, forbids));
        }
    }

    /// Compares the ranges of a node that has applied the log up to `index` with those that the
    /// entries give.
    pub(super) fn compares_ranges(&mut self, id: NodeId, index: LogIndex, state: &State) {
        let known = self.ranges.at.iter().rev().find(|(at, ..)| *at <= index).copied();
        let Some((_, end, low)) = known else { return };
        let found_low = state.owner.map_or(low, |(_, range)| range.low);
        let found = state.range_end();
        let is_same = (found, found_low) == (end, low);
        let passed = self.ranges.passed.filter(|it| !is_same && it.0 <= index && it.1 == found);
        let broken = passed.map(|it| it.2);
        let what = || {
            format!(
                "at {index} the last range of node {id} is from {found_low} to {found}, and by the \
                 entries it is from {low} to {end}"
            )
        };
        for name in [
            "rounds/take_back/back-of-another",
            "rounds/take_back/back-below-range",
            "rounds/take_back/is-lower",
        ] {
            self.rule(name, broken != Some(name), what);
        }
        let overlaps = broken.is_none() && found_low < low;
        self.rule("rounds/assign/ranges-overlap", !overlaps, what);
        self.rule("rounds/assign/ceiling-falls", is_same || overlaps || broken.is_some(), what);
    }

    /// Actions `win`, `step_down`, `withdraw` and `publish`: the workers see a new publication.
    pub(crate) fn publishes(&mut self, id: NodeId, published: &Published) {
        if !self.watches(id) {
            return;
        }
        let Published { term, role, grant, .. } = *published;
        let leads = (role == Role::Leader).then_some(term);
        let run = self.at(id).running();
        let (before, held) = (run.leads, run.grant);
        let believed = run.believed();
        if believed.is_some_and(|believed| leads != Some(believed)) {
            self.run(id).believes = None;
        }
        if before.is_some() && before != leads {
            self.steps_down(id, published);
        }
        if let Some(leads) = leads.filter(|leads| before != Some(*leads)) {
            if believed != Some(leads) {
                self.believes(id, leads, published);
            }
            self.wins_if_elected(id, grant.is_some());
        }
        match grant {
            None if held.is_some() && before.is_some() && before == leads => {
                self.is_live("rounds/withdraw/is-live", id);
            }
            Some(grant) if held != Some(grant) => self.grants(id, grant),
            Some(_) | None => {}
        }
        let run = self.run(id);
        run.grant = grant;
        run.granted = grant.or(run.granted);
        self.asks_voters(id, published);
    }

    /// A process stops leading: the workers must see no grant of the old term from now on.
    fn steps_down(&mut self, id: NodeId, published: &Published) {
        self.is_live("rounds/step_down/is-live", id);
        let run = self.run(id);
        let before = run.leads.take();
        let (grant, role) = (published.grant, published.role);
        let is_kept = grant.is_some_and(|grant| role != Role::Leader || Some(grant.term) == before);
        self.rule("rounds/step_down/kept-grant", !is_kept, || {
            format!(
                "node {id} led {before:?}, is {role:?} in {} and keeps {grant:?}",
                published.term
            )
        });
    }

    fn grants(&mut self, id: NodeId, grant: Grant) {
        if !self.is_live("rounds/publish/is-live", id) {
            return;
        }
        let run = self.at(id).running();
        let (me, leads) = (run.me, run.leads);
        let owner = Owner { term: grant.term, node: me.node, boot: grant.boot };
        let is_covered = |is_own: bool| {
            let ranges = self.ranges.assigned.iter().rev();
            let ranges = ranges.filter(|range| !is_own || range.owner == owner);
            let (mut high, mut is_stopped) = (grant.range.high, false);
            for range in ranges {
                if range.low < high && high <= range.high {
                    high = range.low;
                    is_stopped |= range.is_stopped;
                }
                if high <= grant.range.low {
                    break;
                }
            }
            (high <= grant.range.low, is_stopped)
        };
        let ((is_own, is_stopped), (is_any, _)) = (is_covered(true), is_covered(false));
        let what = || format!("node {id} publishes {grant:?}, and leads {leads:?}");
        self.rule("rounds/publish/early-grant", is_any, what);
        self.rule("rounds/publish/grant-without-leading", leads == Some(grant.term), what);
        self.rule("rounds/publish/foreign-grant", is_own && grant.boot == me.boot, what);
        self.rule("rounds/publish/late-grant", !is_own || !is_stopped, what);
    }
}
