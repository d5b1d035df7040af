//! What `epicepoch top` knows of a cluster: the last `/status` of each node, and what each node did
//! in the last minutes. Time is an argument, in milliseconds since the start of the command. Nothing
//! here asks a node or draws.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;

use crate::top::rates::{Rates, Sample};
use crate::top::status::{SILENT_MS, Status, answer_age_ms, is_voter};

/// Samples of a node are kept for so long, as on the page. At the shortest interval these are 3,000.
const WINDOW_MS: u64 = 600_000;
/// At most so many nodes are asked. A cluster has at most as many members.
const ASKED_MAX: usize = 64;
/// An answer is old after so many intervals, and this time at the least.
const OLD_INTERVALS: u64 = 3;
const OLD_MS_MIN: u64 = 3_000;

/// A node that is asked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) addr: String,
    pub(super) status: Option<Status>,
    /// When the status came.
    pub(super) at_ms: u64,
    /// Why the last question was not answered.
    pub(super) error: Option<String>,
    /// The samples of the last [`WINDOW_MS`], the newest last.
    pub(super) samples: VecDeque<Sample>,
    /// Whether the command line names this address. Others are those of members.
    is_given: bool,
    /// Whether an answer is waited for.
    is_waiting: bool,
    /// Whether the node has said that the right is missing. It is not asked again, because it
    /// counts such questions, and the page warns of them.
    is_denied: bool,
}

impl Asked {
    fn new(addr: String, is_given: bool) -> Self {
        Self {
            addr,
            status: None,
            at_ms: 0,
            error: None,
            samples: VecDeque::new(),
            is_given,
            is_waiting: false,
            is_denied: false,
        }
    }

    /// The rates up to the newest answer; `None` if the last question was not answered.
    pub(super) fn last_rates(&self) -> Option<&Rates> {
        self.samples.back().and_then(|it| it.rates.as_ref())
    }

    /// The rates of the last so many milliseconds, the newest first.
    pub(super) fn lately(&self, within_ms: u64, now_ms: u64) -> impl Iterator<Item = &Rates> {
        let from_ms = now_ms.saturating_sub(within_ms);
        let recent = self.samples.iter().rev().take_while(move |it| it.at_ms >= from_ms);
        recent.filter_map(|it| it.rates.as_ref())
    }

    /// The last bound of the node's buckets, in milliseconds.
    pub(super) fn last_bound_ms(&self) -> f64 {
        self.status.as_ref().and_then(|it| it.bounds().pop()).unwrap_or(0.0)
    }

    fn keep(&mut self, at_ms: u64, rates: Option<Rates>) {
        self.samples.push_back(Sample { at_ms, rates });
        while self.samples.front().is_some_and(|it| at_ms.saturating_sub(it.at_ms) > WINDOW_MS) {
            self.samples.pop_front();
        }
    }
}

/// Why a node gave no status.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) text: String,
    /// Whether the right to see it is missing.
    pub(super) is_denied: bool,
}

/// How a member is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Health {
    Ready,
    /// It answers this command, and is not ready.
    NotReady,
    /// It answers the other nodes. This command gets no answer, or has not asked it.
    AnswersNodes,
    /// It does not answer the node that is asked about the others, whether or not it answers this
    /// command. For so many milliseconds; `None` since that node has started.
    Silent(Option<f64>),
}

/// What is known of a member.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) node: u64,
    pub(super) addr: &'a str,
    pub(super) role: &'a str,
    pub(super) health: Health,
    /// What the node that is asked about the others says of this one.
    pub(super) behind: Option<u64>,
    pub(super) trip_ms: Option<f64>,
    pub(super) offset_ms: Option<f64>,
    pub(super) heard: Option<bool>,
    pub(super) version: &'a str,
    /// The node's own answer, if it is not old.
    pub(super) own: Option<&'a Asked>,
    /// Why this command has no answer of it.
    pub(super) error: Option<&'a str>,
}

impl Row<'_> {
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.health, Health::Silent(_))
    }

    pub(super) fn is_voter(&self) -> bool {
        is_voter(self.role)
    }
}

/// What is known of the cluster.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) asked: Vec<Asked>,
    pub(super) interval: Duration,
    /// The node whose charts are shown; `None` for the node that [`Model::view`] takes.
    chosen: Option<u64>,
}

impl Model {
    pub(super) fn new(addrs: Vec<String>, interval: Duration) -> Self {
        let mut asked: Vec<Asked> = Vec::new();
        for addr in addrs {
            if !asked.iter().any(|it| it.addr == addr) {
                asked.push(Asked::new(addr, true));
            }
        }
        Self { asked, interval, chosen: None }
    }

    /// Returns the nodes to ask now: all that do not owe an answer. Members whose address was not
    /// given join them once every given address has answered or failed. A removed member is
    /// forgotten.
    pub(super) fn poll_asks(&mut self, now_ms: u64) -> Vec<String> {
        let view = self.view(now_ms).filter(|it| self.is_current(it, now_ms));
        let members = view.and_then(|it| it.status.as_ref()).map(|it| it.members().to_vec());
        let is_tried = |it: &Asked| !it.is_given || it.status.is_some() || it.error.is_some();
        if let Some(members) = members.filter(|_| self.asked.iter().all(is_tried)) {
            self.ask_only(&members);
        }
        let mut due = Vec::new();
        for it in self.asked.iter_mut().filter(|it| !it.is_waiting && !it.is_denied) {
            it.is_waiting = true;
            due.push(it.addr.clone());
        }
        due
    }

    /// Asks each of these members at one address: the given one, if it answers there.
    fn ask_only(&mut self, members: &[Value]) {
        let is_node = |it: &Asked, member: &Value| {
            let node = it.status.as_ref().map(Status::node);
            node.is_some() && node == member["nodeID"].as_u64()
        };
        let (given, mut found): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.asked).into_iter().partition(|it| it.is_given);
        let is_new = |member: &&Value| {
            !given.iter().any(|it| is_node(it, member) || it.addr == member["addr"])
        };
        let mut missing: Vec<_> = members.iter().filter(is_new).collect();
        found.retain(|it| {
            let of = missing.iter().position(|member| it.addr == member["addr"]);
            of.map(|at| missing.remove(at)).is_some()
        });
        let room = ASKED_MAX.saturating_sub(given.len() + found.len());
        let addrs = missing.iter().filter_map(|it| it["addr"].as_str()).take(room);
        let fresh: Vec<_> = addrs.map(|addr| Asked::new(addr.to_owned(), false)).collect();
        self.asked = given.into_iter().chain(found).chain(fresh).collect();
    }

    /// Records the answer of the node at `addr`, or why it gave none.
    pub(super) fn record(&mut self, addr: &str, answer: Result<Value, Unanswered>, now_ms: u64) {
        let answer =
            answer.map(Status).and_then(|status| match self.stranger(addr, &status, now_ms) {
                Some(text) => Err(Unanswered { text, is_denied: false }),
                None => Ok(status),
            });
        // A node that is no member any more was forgotten.
        let Some(asked) = self.asked.iter_mut().find(|it| it.addr == addr) else { return };
        asked.is_waiting = false;
        match answer {
            Err(Unanswered { text, is_denied }) => {
                asked.error = Some(text);
                asked.is_denied = is_denied;
                asked.keep(now_ms, None);
            }
            Ok(now) => {
                let rates = asked.status.as_ref().and_then(|was| Rates::between(was, &now));
                asked.keep(now_ms, rates);
                (asked.status, asked.at_ms, asked.error) = (Some(now), now_ms, None);
            }
        }
    }

    /// Why this answer is not one of the cluster that is watched: another address answers for
    /// another cluster, or for another history of it.
    fn stranger(&self, addr: &str, status: &Status, now_ms: u64) -> Option<String> {
        let others = self.asked.iter().filter(|it| it.addr != addr && self.is_current(it, now_ms));
        let other = others
            .filter_map(|it| Some((&it.addr, it.status.as_ref()?)))
            .find(|(_, other)| other.ids() != status.ids())?;
        let what = if other.1.ids().0 == status.ids().0 { "history" } else { "cluster" };
        Some(format!(
            "{addr} is a node of another {what} than {}: name nodes of one cluster in --addr",
            other.0
        ))
    }

    /// Whether the last question to a node was answered, not too long ago.
    pub(super) fn is_current(&self, asked: &Asked, now_ms: u64) -> bool {
        let interval_ms = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let limit_ms = interval_ms.saturating_mul(OLD_INTERVALS).max(OLD_MS_MIN);
        let is_recent = now_ms.saturating_sub(asked.at_ms) <= limit_ms;
        asked.status.is_some() && asked.error.is_none() && is_recent
    }

    /// The node that is asked about the others: the leader if it answers, because only it knows
    /// who is behind; otherwise a node that knows a leader. If no node answers, the one that
    /// answered last.
    pub(super) fn view(&self, now_ms: u64) -> Option<&Asked> {
        let rank = |it: &Asked| {
            let status = it.status.as_ref()?;
            let (leads, knows) = (status.is("leads"), status.leader().is_some());
            // A term is a whole number, and the lowest node id wins.
            Some((leads, knows, status.number("term") as u64, Reverse(status.node())))
        };
        let current = self.asked.iter().filter(|it| self.is_current(it, now_ms));
        let answered = || self.asked.iter().filter(|it| it.status.is_some());
        current.max_by_key(|it| rank(it)).or_else(|| answered().max_by_key(|it| it.at_ms))
    }

    /// The members, by node id.
    pub(super) fn rows(&self, now_ms: u64) -> Vec<Row<'_>> {
        let Some(view) = self.view(now_ms) else { return Vec::new() };
        let Some(status) = &view.status else { return Vec::new() };
        let mut rows: Vec<_> =
            status.members().iter().map(|member| self.row(view, status, member, now_ms)).collect();
        rows.sort_by_key(|row| row.node);
        rows
    }

    fn row<'a>(
        &'a self,
        view: &'a Asked,
        seen: &'a Status,
        member: &'a Value,
        now_ms: u64,
    ) -> Row<'a> {
        let node = member["nodeID"].as_u64().unwrap_or(0);
        let text = |name: &str| member[name].as_str().unwrap_or_default();
        let is_own = |it: &&Asked| it.status.as_ref().map(Status::node) == Some(node);
        let answers = || self.asked.iter().filter(is_own);
        let own = answers().filter(|it| self.is_current(it, now_ms)).max_by_key(|it| it.at_ms);
        let at_addr = || self.asked.iter().find(|it| it.addr == text("addr"));
        let error = answers().max_by_key(|it| it.at_ms).or_else(at_addr);
        let is_self = node == seen.node();
        let age_ms = answer_age_ms(seen, member);
        let is_silent = !is_self && age_ms.is_none_or(|age_ms| age_ms > SILENT_MS);
        let since_ms = now_ms.saturating_sub(view.at_ms) as f64;
        let health = match own.and_then(|it| it.status.as_ref()) {
            // The answer of `view` about the other nodes is old.
            _ if !self.is_current(view, now_ms) => Health::Silent(None),
            _ if is_silent => Health::Silent(age_ms.map(|age_ms| age_ms + since_ms)),
            Some(status) if status.is("ready") => Health::Ready,
            Some(_) => Health::NotReady,
            None => Health::AnswersNodes,
        };
        let is_heard = !matches!(health, Health::Silent(_)) && !is_self;
        Row {
            node,
            addr: text("addr"),
            role: text("role"),
            health,
            behind: member["behind"].as_u64().filter(|_| !is_self),
            trip_ms: member["usualMs"].as_f64().filter(|_| is_heard),
            offset_ms: member["offsetMs"].as_f64().filter(|_| is_heard),
            heard: member["heard"].as_bool(),
            version: if is_self { seen.text("version") } else { text("version") },
            own,
            error: error.and_then(|it| it.error.as_deref()),
        }
    }

    /// The node whose charts are shown.
    pub(super) fn charted(&self, now_ms: u64) -> Option<&Asked> {
        let is_chosen = |it: &&Asked| it.status.as_ref().map(Status::node) == self.chosen;
        let chosen = self.chosen.and_then(|_| self.asked.iter().find(is_chosen));
        chosen.or_else(|| self.view(now_ms))
    }

    /// Chooses the node whose charts are shown: `by` rows further down.
    pub(super) fn choose(&mut self, by: isize, now_ms: u64) {
        let answered = self.rows(now_ms).into_iter().filter(|row| row.own.is_some());
        let nodes: Vec<_> = answered.map(|row| row.node).collect();
        let node = self.charted(now_ms).and_then(|it| it.status.as_ref()).map(Status::node);
        let at = node.and_then(|node| nodes.iter().position(|it| *it == node)).unwrap_or(0);
        let last = nodes.len().saturating_sub(1);
        self.chosen = nodes.get(at.saturating_add_signed(by).min(last)).copied();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::top::status::tests::{addr, status};

    pub(in crate::top) const INTERVAL: Duration = Duration::from_secs(1);

    pub(in crate::top) fn lost(text: &str) -> Result<Value, Unanswered> {
        Err(Unanswered { text: text.to_owned(), is_denied: false })
    }

    /// The model after two answers of each of these nodes, a second apart.
    pub(in crate::top) fn after(nodes: &[u64]) -> Model {
        let addrs = nodes.iter().map(|node| addr(*node)).collect();
        let mut model = Model::new(addrs, INTERVAL);
        for node in nodes {
            model.record(&addr(*node), Ok(status(*node, 10_000, 100)), 1_000);
            model.record(&addr(*node), Ok(status(*node, 11_000, 300)), 2_000);
        }
        model
    }

    #[test]
    fn samples_are_kept_for_ten_minutes() {
        let mut model = Model::new(vec![addr(1)], INTERVAL);
        for second in 0..700 {
            model.record("n1:8080", Ok(status(1, second * 1_000, second)), second * 1_000);
        }
        let asked = &model.asked[0];
        assert_eq!((asked.samples.len(), asked.samples[0].at_ms), (601, 99_000));
        assert_eq!(asked.lately(5_000, 699_500).count(), 5);
    }

    #[test]
    fn members_that_were_not_named_are_asked_and_nobody_twice_at_a_time() {
        let mut model = after(&[2]);
        assert_eq!(model.poll_asks(2_000), ["n2:8080", "n1:8080", "n3:8080"]);
        assert_eq!(model.poll_asks(2_000), Vec::<String>::new(), "answers are waited for");
        model.record("n3:8080", lost("n3:8080: refused"), 2_500);
        assert_eq!(model.poll_asks(2_500), ["n3:8080"]);
    }

    #[test]
    fn members_are_asked_where_they_answer_and_only_while_they_are_members() {
        let mut model = Model::new(vec!["n1:9090".into(), "n2:9090".into()], INTERVAL);
        assert_eq!(model.poll_asks(0), ["n1:9090", "n2:9090"]);
        model.record("n1:9090", Ok(status(1, 10_000, 100)), 10);
        // Node 2 may answer at its OPS_ADDR, which was given, and not at its client address.
        assert_eq!(model.poll_asks(20), ["n1:9090"]);
        model.record("n1:9090", Ok(status(1, 11_000, 100)), 1_000);
        model.record("n2:9090", Ok(status(2, 11_000, 100)), 1_000);
        assert_eq!(model.poll_asks(1_010), ["n1:9090", "n2:9090", "n3:8080"]);
        let mut smaller = status(1, 12_000, 100);
        smaller["members"].as_array_mut().expect("members").truncate(2);
        model.record("n1:9090", Ok(smaller), 2_000);
        assert_eq!(model.poll_asks(2_010), ["n1:9090"]);
        // The last answer of a node that is no member any more changes nothing.
        model.record("n3:8080", Ok(status(3, 12_000, 100)), 2_020);
        assert_eq!(model.asked.len(), 2);
    }

    #[test]
    fn a_node_that_denies_the_right_is_not_asked_again() {
        let mut model = after(&[1]);
        assert_eq!(model.poll_asks(2_000), ["n1:8080", "n2:8080", "n3:8080"]);
        let denied = Unanswered { text: "n2:8080: missing token".into(), is_denied: true };
        model.record("n2:8080", Err(denied), 2_100);
        model.record("n3:8080", lost("n3:8080: refused"), 2_100);
        assert_eq!(model.poll_asks(3_000), ["n3:8080"]);
        let rows = model.rows(3_000);
        assert_eq!(
            (&rows[1].health, rows[1].error),
            (&Health::AnswersNodes, Some("n2:8080: missing token"))
        );
    }

    #[test]
    fn answers_of_another_cluster_or_history_are_not_taken() {
        let mut model = after(&[1, 2]);
        let foreign = |name: &str| {
            let mut foreign = status(2, 12_000, 300);
            foreign[name] = json!("0f");
            foreign
        };
        for (name, what) in [("cluster", "cluster"), ("history", "history")] {
            model.record("n2:8080", Ok(foreign(name)), 3_000);
            let error = model.asked[1].error.clone().expect("an error");
            assert!(error.contains(&format!("another {what} than n1:8080")), "{error}");
        }
        // After a restore, all nodes have another history, and the old ones are gone.
        model.record("n1:8080", lost("n1:8080: refused"), 4_000);
        model.record("n2:8080", Ok(foreign("history")), 4_000);
        assert_eq!(model.asked[1].error, None);
    }

    #[test]
    fn a_node_is_judged_by_what_the_others_hear_and_otherwise_by_its_own_answer() {
        let mut model = after(&[1, 2]);
        let health = |model: &Model, now_ms| {
            model.rows(now_ms).into_iter().map(|row| row.health).collect::<Vec<_>>()
        };
        assert_eq!(health(&model, 2_000), [Health::Ready, Health::Ready, Health::AnswersNodes]);
        let mut gone = status(1, 12_000, 300);
        gone["members"][2]["answerAgeMs"] = json!(9_000.0);
        gone["ready"] = json!(false);
        model.record("n1:8080", Ok(gone.clone()), 3_000);
        let silent = |age_ms| Health::Silent(Some(age_ms));
        assert_eq!(health(&model, 3_000), [Health::NotReady, Health::Ready, silent(9_000.0)]);
        assert_eq!(health(&model, 4_000)[2], silent(10_000.0), "it grows older");
        // A node that is cut off from the others answers this command.
        gone["members"][1]["answerAgeMs"] = json!(5_000.0);
        model.record("n1:8080", Ok(gone.clone()), 3_000);
        assert_eq!(health(&model, 3_000)[1], silent(5_000.0));
        // While the consensus thread is stuck, it receives no answers of the others.
        gone["tickAgeMs"] = json!(8_900.0);
        model.record("n1:8080", Ok(gone), 3_000);
        assert_eq!(health(&model, 3_000)[1..], [Health::Ready, Health::AnswersNodes]);
        // Nobody answers any more: what the nodes said of each other is old, too.
        assert_eq!(health(&model, 60_000), [const { Health::Silent(None) }; 3]);
    }

    #[test]
    fn a_failure_is_newer_than_an_answer() {
        let mut model = after(&[1, 2, 3]);
        model.record("n1:8080", lost("n1:8080: refused"), 2_500);
        let view = model.view(2_500).and_then(|it| it.status.as_ref()).expect("an answer");
        assert_eq!(view.node(), 2);
        assert_eq!(model.rows(2_500)[0].health, Health::AnswersNodes);
        assert!(model.asked[0].last_rates().is_none(), "the charts have a gap");
    }

    #[test]
    fn the_others_are_seen_by_the_leader_and_without_one_by_who_knows_most() {
        let mut model = after(&[1, 2, 3]);
        let mut say = |node: u64, change: fn(&mut Value)| {
            let mut said = status(node, 12_000, 300);
            change(&mut said);
            model.record(&addr(node), Ok(said), 3_000);
            model.view(3_000).and_then(|it| it.status.as_ref()).expect("an answer").node()
        };
        assert_eq!(say(3, |it| it["leads"] = json!(true)), 1, "the same term: the lowest id");
        assert_eq!(say(3, |it| (it["leads"], it["term"]) = (json!(true), json!(6))), 3);
        let lost = |it: &mut Value| (it["leads"], it["leader"]) = (json!(false), Value::Null);
        assert_eq!((say(3, lost), say(1, lost)), (1, 2), "node 2 knows a leader");
    }

    #[test]
    fn charts_are_those_of_the_leader_until_another_node_is_chosen() {
        let mut model = after(&[1, 2, 3]);
        let charted = |model: &Model| model.charted(2_000).unwrap().status.as_ref().unwrap().node();
        assert_eq!(charted(&model), 1);
        let mut chosen = Vec::new();
        for by in [1, 1, 1, -1] {
            model.choose(by, 2_000);
            chosen.push(charted(&model));
        }
        assert_eq!(chosen, [2, 3, 3, 2]);
    }
}
