//! Votes, Promises, disks and leadership: the first half of `rounds.py`, and the elections of
//! `raft_log.py`. A voter decides when the write with its vote leaves the core. A vote of a node for
//! itself leaves when it is durable.

use epicepoch_core::durable::{Restored, Write};
use epicepoch_core::publication::{Identity, Published};
use epicepoch_core::replica::Outgoing;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{Epoch, LogIndex, NodeId, StoreId, Term};

use super::raft_log::Log;
use super::{Monitor, Pending, Run, Vote, Won};
use crate::node_set::NodeSet;

impl Monitor {
    /// Action `start`: a process starts from what is durable, and its Promise is `promise`.
    pub(crate) fn starts(
        &mut self,
        me: Identity,
        promise: Term,
        durable: &Restored,
        is_rolled_back: bool,
    ) {
        if !self.is_on {
            return;
        }
        let id = me.node;
        self.node(id).is_ignored = is_rolled_back;
        if is_rolled_back {
            return;
        }
        let hard = durable.hard_state;
        let node = self.at(id);
        let is_new = node.run.as_ref().is_none_or(|run| run.me.boot != me.boot);
        let is_one = node.run.is_none();
        let kept = node.votes.iter().rfind(|(_, vote)| vote.is_kept);
        let is_kept = kept.is_none_or(|(term, vote)| {
            *term < hard.term || *term == hard.term && vote.to == hard.vote
        });
        self.rule("rounds/start/is-new", is_new, || format!("{me:?} starts twice"));
        self.rule("rounds/start/one-run", is_one, || format!("{me:?} is not the only process"));
        self.rule("rounds/start/restart-promise", promise >= hard.term, || {
            format!("node {id} starts with {hard:?} and promises {promise}")
        });
        self.rule("rounds/start/forgotten-vote", is_kept, || {
            format!("node {id} starts with {hard:?}, and another vote was durable")
        });
        let is_first = self.at(id).store != me.store;
        self.begins_with(id, durable, is_first);
        let log = Log::restored(durable, &self.line);
        let applied = durable.record.index;
        let node = self.node(id);
        node.store = me.store;
        node.promised = hard.term;
        node.durable = hard.term;
        node.knows = hard.commit;
        node.log = log;
        node.votes.retain(|_, vote| vote.is_kept);
        if hard.vote != NodeId(0) {
            let vote = Vote { to: hard.vote, by: me.boot, is_kept: true };
            node.votes.entry(hard.term).or_insert(vote).is_kept = true;
        }
        node.run = Some(Run::new(me, (hard.term, hard.vote), applied));
    }

    /// Action `crash` of both specifications.
    pub(crate) fn crashes(&mut self, id: NodeId, durable: &Restored) {
        if self.is_live("rounds/crash/is-live", id) {
            self.loses(id, durable);
            let run = self.node(id).run.take();
            // A single voter may have appended entries before its own vote was durable. It has not
            // won the term then. If the entries are on its disk, its next start shows it.
            if let Some((term, _)) = run.and_then(|run| run.believes) {
                self.forgets(term);
            }
        }
    }

    /// Action `raise_promise`: the workers see a higher Promise.
    pub(crate) fn raises(&mut self, id: NodeId, promise: Term) {
        if self.is_live("rounds/raise_promise/is-live", id) {
            let promised = &mut self.node(id).promised;
            *promised = promise.max(*promised);
        }
    }

    /// A write leaves the core. It shows what the node has decided in memory.
    pub(crate) fn writes(&mut self, id: NodeId, write: &Write) {
        if !self.watches(id) {
            return;
        }
        if let Some(hard) = write.hard_state {
            self.decides(id, (hard.term, hard.vote));
        }
        if let Some(record) = &write.snapshot {
            self.installs(id, record);
        }
        if let Some(record) = &write.record {
            self.check_record(id, record);
        }
        let has_entries = !write.entries.is_empty();
        if has_entries {
            self.takes_entries(id, &write.entries);
        }
        if let Some(hard) = write.hard_state {
            if !has_entries && write.snapshot.is_none() {
                self.learns_alone(id, hard.commit);
            }
            self.learns(id, hard.commit);
        }
        if has_entries {
            self.knows_changes(id);
        }
        let run = self.run(id);
        run.writes.push_back(Pending { number: write.number, hard: run.hard });
    }

    /// Actions `campaign` and `vote` of both specifications.
    fn decides(&mut self, id: NodeId, (term, to): (Term, NodeId)) {
        let node = self.at(id);
        let run = node.running();
        let (before, by) = (run.hard, run.me.boot);
        if before == (term, to) {
            return;
        }
        let (durable, known) = (node.durable, node.votes.get(&term).copied());
        let end = (node.log.last(), node.log.last_term(&self.line));
        self.run(id).hard = (term, to);
        if to == NodeId(0) {
            return;
        }
        let is_one = known.is_none_or(|vote| vote.to == to);
        let is_forgotten = known.is_some_and(|vote| vote.to != to && vote.by != by);
        let what = || format!("node {id} votes in {term} for {to}, and has voted for {known:?}");
        self.rule("rounds/start/forgotten-vote", !is_forgotten, what);
        self.rule("rounds/vote/two-votes", is_one || is_forgotten, what);
        self.rule("raft_log/vote/two-votes", is_one || is_forgotten, what);
        let vote = Vote { to, by, is_kept: false };
        self.node(id).votes.entry(term).or_insert(vote);
        if to == id {
            self.campaigns(id, term, durable, before.0, end);
            return;
        }
        self.is_live("rounds/vote/is-live", id);
        let head = self.at(to).heads.get(&term).copied();
        let is_asked = self.at(to).asked.contains(&term);
        let what = || format!("node {id} votes in {term} for {to}, which has not asked");
        self.rule("rounds/vote/is-asked", is_asked, what);
        self.rule("raft_log/vote/is-asked", head.is_some(), what);
        let is_end = self.line.has_entry(end);
        self.rule("raft_log/vote/is-end", is_end, || {
            format!("the log of node {id} ends at {end:?}")
        });
        self.rule("raft_log/vote/vote-in-old-term", term >= before.0, || {
            format!("node {id} votes in {term}, and has reached {}", before.0)
        });
        let is_behind = head.is_some_and(|(index, of)| (of, index) < (end.1, end.0));
        self.rule("raft_log/vote/vote-for-log-behind", !is_behind, || {
            format!("node {id} votes in {term} for {to}: logs end at {end:?} and {head:?}")
        });
    }

    fn campaigns(
        &mut self,
        id: NodeId,
        term: Term,
        durable: Term,
        reached: Term,
        end: (LogIndex, Term),
    ) {
        if !self.is_live("rounds/campaign/is-live", id) {
            return;
        }
        self.rule("rounds/campaign/new-term", term > durable, || {
            format!("node {id} campaigns in {term}, and {durable} is durable")
        });
        self.rule("raft_log/campaign/new-term", term > reached, || {
            format!("node {id} campaigns in {term}, and has reached {reached}")
        });
        let node = self.at(id);
        let (applied, knows) = (node.running().applied, node.knows);
        let unapplied = node.log.changes_in(applied, knows).next();
        let has_configuration = self.line.configuration_at(applied).is_some();
        self.rule("raft_log/campaign/is-configuration", has_configuration, || {
            format!("node {id} campaigns at {applied}, without a configuration")
        });
        self.rule("raft_log/campaign/unapplied-change", unapplied.is_none(), || {
            format!("node {id} campaigns at {applied}, and knows that {unapplied:?} is committed")
        });
        self.node(id).heads.insert(term, end);
        let run = self.run(id);
        (run.campaigns, run.counted) = (Some(term), NodeSet::default());
    }

    /// Action `persist`: the writes up to `number` are durable.
    pub(crate) fn persists(&mut self, id: NodeId, number: u64, durable: &Restored) {
        if !self.is_live("rounds/persist/is-live", id) {
            return;
        }
        let mut done = Vec::new();
        let run = self.run(id);
        while let Some(pending) = run.writes.pop_front_if(|pending| pending.number <= number) {
            done.push(pending);
        }
        let Some(last) = done.last().copied() else { return };
        let hard = durable.hard_state;
        let newest = durable.entries.last().map_or(durable.record.term, |entry| entry.term);
        let is_whole = (hard.term, hard.vote) == last.hard && newest <= hard.term;
        self.rule("rounds/persist/hard-state", is_whole, || {
            format!(
                "node {id} has stored {hard:?} and entries of {newest}, and has decided {last:?}"
            )
        });
        self.node(id).durable = hard.term;
        for Pending { hard: (term, to), .. } in done {
            let vote = self.node(id).votes.get_mut(&term).filter(|vote| vote.to == to);
            let Some(vote) = vote else { continue };
            let is_first = !std::mem::replace(&mut vote.is_kept, true);
            if is_first && to == id && self.at(id).running().campaigns == Some(term) {
                self.asks_votes(id, term);
                self.sends_vote(id, term, id);
                self.counts_vote(id, id, term, self.at(id).store);
            }
        }
        self.acknowledges_own(id, durable);
        self.wins_if_elected(id, false);
    }

    /// A message leaves.
    pub(crate) fn sends(&mut self, id: NodeId, out: &Outgoing, durable: &Restored) {
        if !self.watches(id) {
            return;
        }
        let message = &out.message;
        let RaftMessage { kind, term, reject, index, log_term, .. } = *message;
        match kind {
            MessageKind::RequestVote => {
                self.asks_votes(id, term);
                let head = self.at(id).heads.get(&term).copied();
                let is_end = head == Some((index, log_term));
                self.rule("raft_log/campaign/is-end", is_end, || {
                    format!("node {id} campaigned in {term} with {head:?}, and sends {out:?}")
                });
            }
            MessageKind::RequestVoteResponse if !reject => self.sends_vote(id, term, out.to),
            // An answer to the leader of an older term names no entry.
            MessageKind::AppendResponse if !reject && index > LogIndex(0) => {
                self.acknowledges(id, term, index, durable);
            }
            MessageKind::Append
            | MessageKind::Snapshot
            | MessageKind::Heartbeat
            | MessageKind::TimeoutNow => {
                if self.at(id).running().believed() == Some(term) {
                    self.wins_if_elected(id, true);
                }
                self.sends_entries(id, message);
            }
            MessageKind::AppendResponse
            | MessageKind::RequestVoteResponse
            | MessageKind::HeartbeatResponse
            | MessageKind::RequestPreVote
            | MessageKind::RequestPreVoteResponse => {}
        }
    }

    /// Action `ask_votes`.
    fn asks_votes(&mut self, id: NodeId, term: Term) {
        if !self.is_live("rounds/ask_votes/is-live", id) {
            return;
        }
        let node = self.at(id);
        let (durable, campaigned) = (node.durable, node.heads.contains_key(&term));
        self.rule("rounds/ask_votes/is-candidate", campaigned, || {
            format!("node {id} asks for votes in {term}, and does not campaign")
        });
        self.rule("rounds/ask_votes/early-campaign", durable >= term, || {
            format!("node {id} asks for votes in {term}, and only {durable} is durable")
        });
        self.node(id).asked.insert(term);
    }

    /// Action `send_vote`.
    fn sends_vote(&mut self, id: NodeId, term: Term, to: NodeId) {
        if !self.is_live("rounds/send_vote/is-live", id) {
            return;
        }
        let node = self.at(id);
        let (vote, promised) = (node.votes.get(&term).copied(), node.promised);
        let candidate = self.at(to);
        let is_asked = candidate.asked.contains(&term);
        let of = candidate.store;
        let applied = node.running().applied;
        let bound = self.line.configuration_at(applied).and_then(|it| it.bound.get(&to).copied());
        let what = || format!("node {id} votes in {term} for {to}: {vote:?}, Promise {promised}");
        self.rule("rounds/send_vote/is-asked", is_asked, what);
        let is_decided = vote.is_some_and(|vote| vote.to == to);
        self.rule("rounds/send_vote/is-decided", is_decided, what);
        // A voter that has not applied the candidate's admission knows no data directory of it.
        let is_bound = bound.is_none_or(|bound| bound == of);
        self.rule("rounds/send_vote/asked-by-another-store", is_bound, what);
        self.rule("rounds/send_vote/early-vote", vote.is_some_and(|vote| vote.is_kept), what);
        self.rule("rounds/send_vote/late-promise", promised >= term, what);
        self.node(id).sent.insert(term, to);
    }

    /// A node has accepted a message of the peer `from`, whose data directory is `store`.
    pub(crate) fn receives(
        &mut self,
        id: NodeId,
        from: NodeId,
        store: StoreId,
        message: &RaftMessage,
    ) {
        if !self.watches(id) {
            return;
        }
        let RaftMessage { kind, term, reject, .. } = *message;
        let run = self.at(id).running();
        let is_vote = kind == MessageKind::RequestVoteResponse && !reject;
        if is_vote && run.campaigns == Some(term) && run.leads != Some(term) {
            self.counts_vote(id, from, term, store);
        }
    }

    /// Action `count_vote`.
    fn counts_vote(&mut self, id: NodeId, from: NodeId, term: Term, store: StoreId) {
        if !self.is_live("rounds/count_vote/is-live", id) {
            return;
        }
        let (sent, known) = (self.at(from).sent.get(&term).copied(), self.at(from).store);
        let configuration = self.line.configuration_at(self.at(id).running().applied);
        let bound = configuration.and_then(|it| it.bound.get(&from).copied());
        let what =
            || format!("node {id} counts a vote of {from} in {term}, which voted for {sent:?}");
        self.rule("rounds/count_vote/is-sent", sent == Some(id), what);
        self.rule("rounds/count_vote/is-named", known == store, what);
        self.rule("rounds/count_vote/vote-of-another-store", bound == Some(store), what);
        self.run(id).counted.add(NodeSet::of(from));
    }

    /// A process says that it leads a term.
    pub(super) fn believes(&mut self, id: NodeId, term: Term, published: &Published) {
        let applied = self.at(id).running().applied;
        let configuration = self.line.configuration_at(applied).cloned();
        let is_its_own = configuration.as_ref().is_some_and(|it| it.is_published(published));
        self.rule("raft_log/win/elected-under-another-configuration", is_its_own, || {
            format!("node {id} leads {term} by {:?}, and has applied {applied}", published.voters)
        });
        self.run(id).believes = Some((term, configuration.unwrap_or_default()));
    }

    /// Action `win` of both specifications, if a quorum has voted. If `must`, a quorum must have.
    pub(super) fn wins_if_elected(&mut self, id: NodeId, must: bool) {
        let Some(run) = &self.at(id).run else { return };
        let Some((term, configuration)) = run.believes.clone() else { return };
        let is_candidate = run.campaigns == Some(term);
        let counted = if is_candidate { run.counted } else { NodeSet::default() };
        let is_quorum = configuration.is_quorum(counted);
        if !is_quorum && !must {
            return;
        }
        self.is_live("rounds/win/is-live", id);
        let node = self.at(id);
        let is_asked = node.asked.contains(&term);
        let has_head = node.heads.contains_key(&term);
        let won = self.terms.get(&term);
        let (is_first, election) =
            (won.is_none_or(|won| won.by != id), won.map(|won| won.election));
        let has_voted = |voter: NodeId| {
            self.at(voter).votes.get(&term).is_some_and(|vote| vote.to == id && vote.is_kept)
        };
        let did_all_vote = counted.iter().all(has_voted);
        let what = || format!("node {id} leads {term} by the votes of {counted:?}, {election:?}");
        self.rule("rounds/win/is-asked", is_asked, what);
        self.rule("rounds/win/is-first", is_first, what);
        self.rule("rounds/win/no-quorum", is_quorum, what);
        let meets = election.is_none_or(|election| election.meets(counted));
        self.rule("rounds/win/quorums-meet", meets, what);
        self.rule("raft_log/win/is-candidate", is_candidate && has_head, what);
        self.rule("raft_log/win/is-quorum", is_quorum, what);
        self.rule("raft_log/win/elected-without-quorum", did_all_vote, what);
        let node = self.at(id);
        let unapplied = node.log.changes_in(node.running().applied, node.knows).next();
        self.rule("raft_log/learn/campaigns-on", unapplied.is_none(), || {
            format!("node {id} leads {term}, and learned that {unapplied:?} is committed")
        });
        self.terms.insert(term, Won { by: id, election: counted, asks: configuration });
        let run = self.run(id);
        run.believes = None;
        (run.leads, run.led, run.won) = (Some(term), Some(term), Some(term));
    }

    /// The leader's workers see the voters of a publication from now on.
    pub(super) fn asks_voters(&mut self, id: NodeId, published: &Published) {
        let Some(term) = self.at(id).running().leads else { return };
        let Some(won) = self.terms.get(&term) else { return };
        if won.asks.is_published(published) {
            return;
        }
        let applied = self.at(id).running().applied;
        let found = self.line.published_at(applied, published);
        self.rule("raft_log/apply_change/late-voters", found.is_some(), || {
            format!("node {id} publishes {:?} at {applied}", published.voters)
        });
        if let (Some(found), Some(won)) = (found, self.terms.get_mut(&term)) {
            won.asks = found;
        }
    }

    /// The consensus plane of a node has taken all its actions.
    pub(crate) fn acted(&mut self, id: NodeId) {
        if !self.watches(id) {
            return;
        }
        let knows = self.at(id).knows;
        let Some(run) = &mut self.node(id).run else { return };
        (run.led, run.granted) = (run.leads, run.grant);
        let owed = run.owed.take();
        self.rule("raft_log/learn/is-in-log", owed.is_none_or(|owed| owed <= knows), || {
            format!("node {id} has learned {owed:?}, and its writes show {knows}")
        });
    }
}

impl Run {
    fn new(me: Identity, hard: (Term, NodeId), applied: LogIndex) -> Self {
        Self {
            me,
            hard,
            writes: std::collections::VecDeque::new(),
            campaigns: None,
            counted: NodeSet::default(),
            believes: None,
            leads: None,
            led: None,
            won: None,
            grant: None,
            granted: None,
            last: None,
            advanced: Epoch(0),
            shown: None,
            applied,
            owed: None,
            workers: Default::default(),
        }
    }
}
