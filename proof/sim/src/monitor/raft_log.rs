//! The log, commits, snapshots, crashes and barriers: the rest of `raft_log.py`. A node's log is the
//! one in its memory, as its writes show it. An entry is known by its index and term, and by the
//! term of the entry before it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use epicepoch_core::durable::{Record, Restored};
use epicepoch_core::publication::{Published, Role};
use epicepoch_core::state::{Command, MembershipChange, State};
use epicepoch_wire::raft_message::{EntryKind, LogEntry, RaftMessage};
use epicepoch_wire::{LogIndex, NodeId, Term};

use super::Monitor;
use super::members::Configuration;
use crate::node_set::NodeSet;

/// A node's log after its first entry.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The entry before the first one.
    base: (LogIndex, Term),
    terms: Vec<Term>,
    /// The entries that change members.
    changes: BTreeSet<LogIndex>,
}

impl Log {
    pub(super) fn restored(durable: &Restored, line: &Line) -> Self {
        let Restored { record, entries, .. } = durable;
        let index = entries.first().map_or(record.index, |first| LogIndex(first.index.0 - 1));
        let known = line.term(index).unwrap_or(record.term);
        let mut log = Self { base: (index, known), ..Self::default() };
        for entry in entries {
            log.push(entry);
        }
        log
    }

    fn push(&mut self, entry: &LogEntry) {
        let kept = entry.index.0.saturating_sub(self.base.0.0 + 1);
        self.terms.truncate(kept as usize);
        self.changes.split_off(&entry.index);
        self.terms.push(entry.term);
        if entry.kind == EntryKind::Membership {
            self.changes.insert(entry.index);
        }
    }

    pub(super) fn last(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.terms.len() as u64)
    }

    pub(super) fn last_term(&self, line: &Line) -> Term {
        self.term(self.last(), line).unwrap_or_default()
    }

    fn term(&self, index: LogIndex, line: &Line) -> Option<Term> {
        if index < self.base.0 { line.term(index) } else { self.own_term(index) }
    }

    fn own_term(&self, index: LogIndex) -> Option<Term> {
        let after = index.0.checked_sub(self.base.0.0)?;
        if after == 0 { Some(self.base.1) } else { self.terms.get(after as usize - 1).copied() }
    }

    /// The changes of members after one index and up to another.
    pub(super) fn changes_in(
        &self,
        after: LogIndex,
        to: LogIndex,
    ) -> impl Iterator<Item = LogIndex> {
        self.changes.iter().copied().filter(move |at| after < *at && *at <= to)
    }

    /// The last entry of a term at or before an index.
    fn last_of(&self, term: Term, index: LogIndex) -> Option<LogIndex> {
        let up_to_term = self.terms.partition_point(|of| *of <= term) as u64;
        let last = index.min(LogIndex(self.base.0.0 + up_to_term));
        (last > self.base.0 && self.own_term(last) == Some(term)).then_some(last)
    }

    /// The change of members before the last one.
    fn last_but_one(&self) -> Option<LogIndex> {
        self.changes.iter().rev().nth(1).copied()
    }
}

/// What an entry does.
#[derive(Debug)]
enum Kind {
    Plain,
    Command(Command),
    /// A change of members, or the end of a joint configuration.
    Change(Option<MembershipChange>),
}

impl Kind {
    fn of(entry: &LogEntry) -> Self {
        match entry.kind {
            EntryKind::Normal => Command::decode(&entry.data).map_or(Self::Plain, Self::Command),
            EntryKind::Membership => Self::Change(MembershipChange::decode(&entry.context).ok()),
        }
    }
}

/// The entries of all logs, and the one line of those that are committed.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Every entry that was created, with the term of the entry before it.
    entries: BTreeMap<(LogIndex, Term), (Term, Kind)>,
    base: (LogIndex, Term),
    /// The terms of the committed entries after `base`.
    terms: Vec<Term>,
    /// The last entry that any node was seen to have applied.
    applied: LogIndex,
    /// The configurations, each at the index of the entry that made it.
    configurations: Vec<(LogIndex, Rc<Configuration>)>,
}

impl Line {
    /// Whether an entry is that of the first record, was created since, or is none at all.
    pub(super) fn has_entry(&self, (index, term): (LogIndex, Term)) -> bool {
        index == LogIndex(0)
            || self.entries.contains_key(&(index, term))
            || self.term(index) == Some(term)
    }

    fn last(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.terms.len() as u64)
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        let after = index.0.checked_sub(self.base.0.0)?;
        if after == 0 { Some(self.base.1) } else { self.terms.get(after as usize - 1).copied() }
    }

    /// The configuration of a node that has applied the entries up to `index`.
    pub(super) fn configuration_at(&self, index: LogIndex) -> Option<&Rc<Configuration>> {
        self.configurations.iter().rev().find(|(at, _)| *at <= index).map(|(_, it)| it)
    }

    /// The newest configuration up to `index` that a publication has.
    pub(super) fn published_at(
        &self,
        index: LogIndex,
        published: &Published,
    ) -> Option<Rc<Configuration>> {
        let known = self.configurations.iter().rev().filter(|(at, _)| *at <= index);
        known.map(|(_, it)| it).find(|it| it.is_published(published)).cloned()
    }
}

impl Monitor {
    /// A node starts with what is durable. The first record of all begins the line. At its first
    /// start, a node may have entries that all nodes count as committed.
    pub(super) fn begins_with(&mut self, id: NodeId, durable: &Restored, is_first: bool) {
        let Restored { hard_state, record, entries, .. } = durable;
        if self.line.configurations.is_empty() && record.index > LogIndex(0) {
            let state = State::decode(&record.data).expect("a sound record");
            let bound = state.members.values().map(|member| (member.node, member.store)).collect();
            let first = Configuration::recorded(&record.configuration, bound, state.removed);
            self.line.base = (record.index, record.term);
            self.line.applied = record.index;
            self.line.configurations = vec![(record.index, Rc::new(first))];
        } else if is_first && record.index > LogIndex(0) {
            self.check_record(id, record);
        }
        let mut before = record.term;
        for entry in entries {
            let key = (entry.index, entry.term);
            let is_unknown = is_first || !self.terms.contains_key(&entry.term);
            if is_unknown && !self.line.entries.contains_key(&key) {
                let kind = Kind::of(entry);
                if let Kind::Command(command) = &kind {
                    self.finds_proposal(key, command);
                }
                self.line.entries.insert(key, (before, kind));
            }
            before = entry.term;
            if is_first
                && entry.index <= hard_state.commit
                && entry.index.0 == self.line.last().0 + 1
            {
                self.line.terms.push(entry.term);
            }
        }
    }

    /// Nobody has won this term, and the entries of its candidate are gone.
    pub(super) fn forgets(&mut self, term: Term) {
        self.line.entries.retain(|(_, of), _| *of != term);
        self.forgets_proposals(term);
    }

    /// Actions `append` and `replicate`: entries are put into a node's log.
    pub(super) fn takes_entries(&mut self, id: NodeId, entries: &[LogEntry]) {
        let run = self.at(id).running();
        let (term, applied) = (run.hard.0, run.applied);
        let led = [run.leads, run.led, run.believed()];
        let leads = led.contains(&Some(term));
        let committed = self.at(id).knows;
        for entry in entries {
            let key = (entry.index, entry.term);
            let end = self.at(id).log.last();
            let before = LogIndex(entry.index.0 - 1);
            let behind = self.at(id).log.term(before, &self.line).unwrap_or_default();
            let known = self.line.entries.get(&key).map(|(before, _)| *before);
            let is_same = known == Some(behind);
            // A leader may have stepped down in the step in which it appended: the write of both has
            // the later term.
            if led.contains(&Some(entry.term)) && known.is_none() {
                self.appends(id, entry, (end, behind), applied);
            } else {
                let is_leaders = self.is_leaders(id, term, key);
                let what =
                    || format!("node {id} in {term} takes {key:?} behind {behind}; {known:?}");
                self.rule("raft_log/replicate/is-other", !leads, what);
                let has_it = self.at(id).log.own_term(entry.index) == Some(entry.term);
                self.rule("raft_log/replicate/cuts-always", !has_it, what);
                self.rule("raft_log/replicate/ack-in-old-term", is_leaders.is_some(), what);
                self.rule("raft_log/replicate/is-sent", is_same && is_leaders != Some(false), what);
                let line = self.line.term(entry.index).filter(|_| entry.index <= committed);
                let cuts = line.is_some_and(|line| line != entry.term);
                self.rule("raft_log/replicate/cuts-committed", !cuts, what);
            }
            self.node(id).log.push(entry);
        }
    }

    /// After a write with entries and perhaps a higher commit index: if it does not lead, the node
    /// knows that every change of members in its log before the last one is committed.
    pub(super) fn knows_changes(&mut self, id: NodeId) {
        let node = self.at(id);
        let (run, knows, open) = (node.running(), node.knows, node.log.last_but_one());
        if [run.leads, run.led, run.believed()].contains(&Some(run.hard.0)) {
            return;
        }
        let is_known = open.is_none_or(|open| open <= knows);
        self.rule("raft_log/replicate/append-without-commit", is_known, || {
            format!("node {id} takes a change of members behind {open:?}, and knows {knows}")
        });
    }

    /// A write has a commit index and no entries. If the node does not lead, the index came with a
    /// heartbeat, or with a message of an election: action `learn`.
    pub(super) fn learns_alone(&mut self, id: NodeId, commit: LogIndex) {
        let node = self.at(id);
        let Some(found) = self.line.term(commit).filter(|_| commit > node.knows) else { return };
        let (run, last) = (node.running(), node.log.last());
        let (term, own) = (run.hard.0, node.log.term(commit, &self.line));
        // The leader of a later term may have committed what this leader commits now.
        let is_its_own = own == Some(term) && self.is_quorum_elsewhere(self.acked(term, commit));
        let leads = run.leads == Some(term) && !is_its_own;
        let what = || format!("node {id} in {term} learns {commit}: {own:?} of {last}, {found}");
        self.rule("raft_log/learn/learns-while-leading", !leads, what);
        self.rule("raft_log/learn/is-in-log", commit <= last, what);
        self.rule("raft_log/learn/learns-uncommitted", own == Some(found), what);
    }

    /// Whether the leader of a term has an entry in its log. `None` if nobody has won the term.
    fn is_leaders(&self, id: NodeId, term: Term, (index, of): (LogIndex, Term)) -> Option<bool> {
        let by = self.terms.get(&term)?.by;
        let leader = self.at(by);
        let is_there = leader.run.as_ref().is_some_and(|run| run.leads == Some(term)) && by != id;
        // The log of a leader that leads no more may have changed since.
        let found = leader.log.term(index, &self.line);
        Some(!is_there || found == Some(of))
    }

    fn appends(
        &mut self,
        id: NodeId,
        entry: &LogEntry,
        (end, behind): (LogIndex, Term),
        applied: LogIndex,
    ) {
        let key = (entry.index, entry.term);
        let kind = Kind::of(entry);
        let unapplied = self.at(id).log.changes_in(applied, end).next();
        let is_change = matches!(kind, Kind::Change(_));
        let has_configuration = self.line.configuration_at(applied).is_some();
        let run = self.at(id).running();
        let leads = run.leads.or(run.led).or(run.believed());
        let term = if run.led == Some(entry.term) { entry.term } else { run.hard.0 };
        let what = || format!("node {id} leads {leads:?}: {key:?} behind {end} of {behind}");
        self.rule("raft_log/append/is-leader", leads == Some(term), what);
        self.rule("raft_log/append/is-configuration", has_configuration, what);
        self.rule("raft_log/append/is-end", entry.index.0 == end.0 + 1, what);
        self.rule("raft_log/append/is-after", entry.index > end, what);
        self.rule("raft_log/append/is-of-its-term", entry.term == term, what);
        self.rule("raft_log/append/two-changes", !is_change || unapplied.is_none(), || {
            format!(
                "node {id} appends a change of members {key:?}, and has not applied {unapplied:?}"
            )
        });
        if let Kind::Command(command) = &kind {
            self.proposes(id, key, command, None);
        }
        let is_new = self.line.entries.insert(key, (behind, kind)).is_none();
        self.rule("raft_log/append/is-new", is_new, || format!("node {id} appends {key:?} again"));
    }

    /// A deposed leader may send entries that it has appended and never written: in the turn in which
    /// it appended them, it heard of a later leader, whose entries replaced them. The receiver may
    /// still take them.
    pub(super) fn sends_entries(&mut self, id: NodeId, message: &RaftMessage) {
        let run = self.at(id).running();
        let won = run.won.filter(|won| *won == message.term && run.hard.0 > message.term);
        if won.is_none() {
            return;
        }
        let mut before = (message.index, message.log_term);
        for entry in &message.entries {
            let key = (entry.index, entry.term);
            if entry.term == message.term && !self.line.entries.contains_key(&key) {
                let is_after = entry.index.0 == before.0.0 + 1 && self.line.has_entry(before);
                self.rule("raft_log/append/is-after", is_after, || {
                    format!("node {id} has led {won:?}, and sends {key:?} behind {before:?}")
                });
                let kind = Kind::of(entry);
                if let Kind::Command(command) = &kind {
                    self.proposes(id, key, command, won);
                }
                self.line.entries.insert(key, (before.1, kind));
            }
            before = key;
        }
    }

    /// Action `own_ack`: the leader's own entries are durable.
    pub(super) fn acknowledges_own(&mut self, id: NodeId, durable: &Restored) {
        let node = self.at(id);
        let run = node.running();
        let Some(term) = run.leads.or(run.believed()) else { return };
        let last = durable
            .entries
            .last()
            .map_or((durable.record.index, durable.record.term), |last| (last.index, last.term));
        let found = node.log.term(last.0, &self.line);
        let is_leader = run.hard.0 == term;
        self.rule("raft_log/own_ack/is-leader", is_leader, || format!("node {id} leads {term}"));
        self.rule("raft_log/own_ack/is-in-log", found == Some(last.1), || {
            format!("node {id} leads {term} and has stored {last:?}, and has {found:?} in memory")
        });
        self.acks(id, term, last.0);
    }

    /// A node acknowledges entries of the leader of a term. If it crashed now, it would keep them.
    pub(super) fn acknowledges(
        &mut self,
        id: NodeId,
        term: Term,
        index: LogIndex,
        durable: &Restored,
    ) {
        let node = self.at(id);
        let found = node.log.term(index, &self.line);
        let stored = term_on_disk(durable, index);
        // In a later term the entry may have been replaced since. What the record covers is kept.
        let is_recorded = index <= durable.record.index;
        let is_later = node.running().hard.0 > term;
        let is_kept = is_recorded || is_later || stored.is_some() && stored == found;
        self.rule("raft_log/crash/early-ack", is_kept, || {
            format!("node {id} acknowledges {index} in {term}: memory {found:?}, disk {stored:?}")
        });
        self.acks(id, term, index);
    }

    fn acks(&mut self, id: NodeId, term: Term, index: LogIndex) {
        let acked = self.node(id).acked.entry(term).or_default();
        *acked = index.max(*acked);
    }

    /// A node knows a higher commit index: action `commit` if it leads. Others learn it from the
    /// leader, or from messages of elections.
    pub(super) fn learns(&mut self, id: NodeId, commit: LogIndex) {
        if commit <= self.at(id).knows {
            return;
        }
        let believes = self.at(id).running().believes.is_some();
        if believes {
            self.wins_if_elected(id, true);
        }
        let (run, log) = (self.at(id).running(), &self.at(id).log);
        let (leads, found) = (run.leads.or(run.led), log.term(commit, &self.line));
        let line = self.line.term(commit);
        let is_committed = line.is_some() && found.is_none_or(|found| Some(found) == line);
        // A leader may have stepped down in this step, and learned from the next one.
        match leads.filter(|_| !is_committed) {
            Some(term) => self.commits(id, term, commit),
            None => self.rule("raft_log/replicate/is-sent", is_committed, || {
                format!("node {id} takes {commit} for committed: {found:?}, {line:?}")
            }),
        }
        self.node(id).knows = commit;
    }

    fn commits(&mut self, id: NodeId, term: Term, index: LogIndex) {
        let node = self.at(id);
        let (found, applied) = (node.log.term(index, &self.line), node.running().applied);
        let is_led = self.terms.get(&term).is_some_and(|won| won.by == id);
        let what = || format!("node {id} commits {index} of {found:?} in {term}");
        self.rule("raft_log/commit/is-leader", is_led, what);
        self.rule("raft_log/commit/is-in-log", found.is_some(), what);
        self.rule("raft_log/commit/counts-old-terms", found == Some(term), what);
        for at in self.line.last().0 + 1..=index.0 {
            let next = self.at(id).log.term(LogIndex(at), &self.line).unwrap_or_default();
            self.line.terms.push(next);
        }
        // A change that is committed and applied in this step counts for what is committed behind
        // it.
        let mut counted = self.line.configuration_at(applied).cloned().unwrap_or_default();
        let mut is_quorum = counted.is_quorum(self.acked(term, index));
        let changes: Vec<LogIndex> = self.at(id).log.changes_in(applied, index).collect();
        for change in changes.into_iter().filter(|change| *change < index) {
            if is_quorum || !counted.is_quorum(self.acked(term, change)) {
                break;
            }
            self.applies_up_to(change);
            counted = self.line.configuration_at(change).cloned().unwrap_or_default();
            is_quorum = counted.is_quorum(self.acked(term, index));
        }
        let acked = self.acked(term, index);
        let what =
            || format!("node {id} commits {index} in {term}, which {acked:?} have: {counted:?}");
        let has_any = counted.is_quorum(NodeSet::ALL);
        self.rule("raft_log/commit/is-quorum", has_any, what);
        let is_another = !is_quorum && self.is_quorum_elsewhere(acked);
        self.rule("raft_log/commit/counted-in-another-configuration", !is_another, what);
        self.rule("raft_log/commit/committed-without-quorum", is_quorum || is_another, what);
    }

    /// The nodes that have acknowledged an entry to the leader of a term.
    fn acked(&self, term: Term, index: LogIndex) -> NodeSet {
        let mut acked = NodeSet::default();
        for (node, at) in (1..).map(NodeId).zip(&self.nodes) {
            if at.acked.get(&term).is_some_and(|acked| *acked >= index) {
                acked.add(NodeSet::of(node));
            }
        }
        acked
    }

    fn is_quorum_elsewhere(&self, nodes: NodeSet) -> bool {
        self.line.configurations.iter().any(|(_, it)| it.is_quorum(nodes))
    }

    /// Action `apply_change`, and those of `ranges`: a node has applied the log up to `index`.
    pub(crate) fn applies(
        &mut self,
        id: NodeId,
        index: LogIndex,
        committed: LogIndex,
        state: &State,
        published: &Published,
    ) {
        if !self.watches(id) {
            return;
        }
        let before = self.at(id).running().applied;
        self.rule("raft_log/install/snapshot-goes-back", index >= before, || {
            format!("node {id} has applied {before}, and then {index}")
        });
        let run = self.at(id).running();
        let has_led = run.leads.or(run.led).is_some() || run.believes.is_some();
        if has_led && self.is_replaced(id, (index, committed), published) {
            self.run(id).owed = Some(committed);
        } else if has_led {
            self.learns(id, committed);
        }
        let last = self.line.last();
        let is_committed = index <= last;
        self.rule("raft_log/apply_change/applies-uncommitted", is_committed, || {
            format!("node {id} applies {index}, and {last} is committed")
        });
        if !is_committed {
            return;
        }
        // The write with the entries or the snapshot of a follower comes later. Until then, the log here
        // may have an entry that they replace.
        let knows = &mut self.node(id).knows;
        *knows = index.max(*knows);
        self.applies_up_to(index);
        self.run(id).applied = index;
        let line = &self.line;
        let found = line.configurations.iter().rposition(|(at, _)| *at <= index);
        let Some(found) = found else { return };
        let (at, now) = line.configurations[found].clone();
        self.rule("raft_log/apply_change/is-configuration", at <= index, || format!("{at}"));
        let is_next = line_order(&self.line.configurations);
        self.rule("raft_log/apply_change/is-next", is_next, || format!("{at} is not the next"));
        if at > before && found > 0 {
            let (_, was) = self.line.configurations[found - 1].clone();
            let halves = |half: &mut dyn Iterator<Item = NodeId>| half.collect::<BTreeSet<_>>();
            let incoming = halves(&mut published.voters.incoming().map(|it| it.0));
            let outgoing = halves(&mut published.voters.outgoing().map(|it| it.0));
            let is_safe =
                Configuration::is_next_to([&was.incoming, &incoming], [&was.outgoing, &outgoing]);
            self.rule("raft_log/append/unsafe-change", is_safe, || {
                format!("node {id} changes {was:?} to {:?}", published.voters)
            });
        }
        self.rule("raft_log/apply_change/late-voters", now.is_published(published), || {
            format!("node {id} has applied {at} and publishes {:?}: {now:?}", published.voters)
        });
        self.compares_ranges(id, index, state);
    }

    /// Whether a later leader has deposed this one in this step, and has committed another entry
    /// than the one in the log here. This entry was written, and the other one is not yet. Its
    /// write comes later, and must show the commit index: `acted` checks it. A node applies only
    /// what it has written.
    fn is_replaced(
        &self,
        id: NodeId,
        (applied, commit): (LogIndex, LogIndex),
        now: &Published,
    ) -> bool {
        let node = self.at(id);
        let (run, found) = (node.running(), node.log.term(commit, &self.line));
        let (led, line) = (run.leads.or(run.led), self.line.term(commit));
        let is_deposed = (now.role, Some(now.term)) != (Role::Leader, led);
        led.is_some()
            && is_deposed
            && applied < commit
            && led < line
            && found.is_some()
            && found != line
    }

    /// Applies committed entries that no node has applied before.
    fn applies_up_to(&mut self, index: LogIndex) {
        while self.line.applied < index {
            let at = LogIndex(self.line.applied.0 + 1);
            self.line.applied = at;
            let term = self.line.term(at).unwrap_or_default();
            let Some((before, kind)) = self.line.entries.remove(&(at, term)) else { continue };
            match &kind {
                Kind::Plain => {}
                Kind::Command(command) => self.applies_command((at, term), command),
                Kind::Change(change) => {
                    let now = self.line.configurations.last();
                    let next = now.and_then(|(_, now)| now.after(change.as_ref()));
                    if let Some(next) = next {
                        self.line.configurations.push((at, Rc::new(next)));
                    }
                }
            }
            self.line.entries.insert((at, term), (before, kind));
        }
    }

    /// Action `install`: a node takes a snapshot.
    pub(super) fn installs(&mut self, id: NodeId, record: &Record) {
        self.check_record(id, record);
        let run = self.at(id).running();
        let (term, leads) = (run.hard.0, run.leads);
        let is_led = self.terms.contains_key(&term);
        let what = || format!("node {id} leads {leads:?}, and takes a snapshot in {term}");
        self.rule("raft_log/install/is-other", leads != Some(term), what);
        self.rule("raft_log/install/ack-in-old-term", is_led, what);
        let node = self.node(id);
        node.log = Log { base: (record.index, record.term), ..Log::default() };
        node.knows = record.index.max(node.knows);
    }

    /// A record is the state at a committed entry, with the configuration there.
    pub(super) fn check_record(&mut self, id: NodeId, record: &Record) {
        let line = self.line.term(record.index);
        self.rule("raft_log/install/is-sent", record.index <= self.line.applied, || {
            format!("node {id} takes a snapshot of {}, which nobody has applied", record.index)
        });
        self.rule("raft_log/install/snapshot-of-uncommitted", line == Some(record.term), || {
            format!("node {id} takes a snapshot of {} in {}: {line:?}", record.index, record.term)
        });
        let known = self.line.configuration_at(record.index).cloned();
        let is_some = known.is_some();
        self.rule("raft_log/install/is-configuration", is_some, || format!("{}", record.index));
        let Some(known) = known else { return };
        let found = Configuration::recorded(
            &record.configuration,
            known.bound.clone(),
            known.removed.clone(),
        );
        self.rule("raft_log/install/snapshot-without-configuration", found == *known, || {
            format!("node {id} takes a snapshot with {found:?}: {known:?}")
        });
    }

    /// Action `crash`: what was not durable is lost.
    pub(super) fn loses(&mut self, id: NodeId, durable: &Restored) {
        let Restored { hard_state, record, entries, .. } = durable;
        let created = |entry: &LogEntry| self.line.entries.contains_key(&(entry.index, entry.term));
        let is_end = entries.last().is_none_or(created);
        self.rule("raft_log/crash/is-end", is_end, || {
            format!("node {id} has stored a strange entry")
        });
        let node = self.at(id);
        let lost = node.acked.iter().find_map(|(term, index)| {
            let last = node.log.last_of(*term, *index).filter(|last| *last > record.index)?;
            (term_on_disk(durable, last) != Some(*term)).then_some((*term, last))
        });
        self.rule("raft_log/crash/early-ack", lost.is_none(), || {
            format!("node {id} has acknowledged {lost:?}, which is not on its disk")
        });
        let log = Log::restored(durable, &self.line);
        let open = log.last_but_one();
        let is_known = open.is_none_or(|open| open <= hard_state.commit);
        self.rule("raft_log/crash/commit-forgotten", is_known, || {
            format!(
                "node {id} has stored a change behind {open:?}, and the commit index {hard_state:?}"
            )
        });
        let has_record = record.index <= hard_state.commit;
        self.rule("raft_log/crash/is-configuration", has_record, || {
            format!("node {id}: {hard_state:?}")
        });
    }

    /// A command of an operator arrives.
    pub(crate) fn is_asked(&mut self, id: NodeId, nonce: u64) {
        if self.watches(id) {
            let run = self.at(id).running();
            let asked = (self.at(id).log.last(), run.leads.or(run.believed()));
            self.asked_at.insert(nonce, asked);
        }
    }

    /// Action `report`: a node says that a command was carried out before it was given.
    pub(crate) fn says_already(&mut self, id: NodeId, nonce: u64) {
        let asked = self.asked_at.get(&nonce).copied();
        let Some((asked, led)) = asked.filter(|_| self.watches(id)) else { return };
        let run = self.at(id).running();
        let (leads, applied) = (run.leads, run.applied);
        let later = (asked.0 + 1..=applied.0).filter_map(|at| self.line.term(LogIndex(at)));
        let is_own = leads == led && later.clone().any(|term| Some(term) == leads);
        let what =
            || format!("node {id} leads {leads:?} at {applied}, was asked in {led:?} at {asked}");
        self.rule("raft_log/report/is-leader", leads.is_some(), what);
        self.rule("raft_log/report/barrier-uncommitted", applied > asked, what);
        self.rule("raft_log/report/barrier-of-another-term", is_own || applied <= asked, what);
    }
}

/// Whether the configurations are in the order of their entries.
fn line_order(configurations: &[(LogIndex, Rc<Configuration>)]) -> bool {
    configurations.is_sorted_by(|a, b| a.0 < b.0)
}

/// The term of an entry in the log on a disk.
fn term_on_disk(durable: &Restored, index: LogIndex) -> Option<Term> {
    let first = durable.entries.first()?.index;
    let at = index.0.checked_sub(first.0)?;
    durable.entries.get(at as usize).map(|entry| entry.term)
}
