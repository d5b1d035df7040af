//! What `epicepoch top` knows of a cluster: the last `/status` of each node, and the rates since
//! then. Time is an argument, in milliseconds since the start of the command. Nothing here asks a
//! node or draws.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::Value;

/// So many rates of each node are kept, and drawn: five minutes at the default interval.
pub(super) const RATES_MAX: usize = 300;
/// At most so many nodes are asked. A cluster has at most as many members.
const ASKED_MAX: usize = 64;
/// A member answers five pings a second. It counts as silent after this time.
const SILENT_MS: f64 = 1_500.0;
/// An answer is old after so many intervals, and this time at the least.
const OLD_INTERVALS: u64 = 3;
const OLD_MS_MIN: u64 = 3_000;
/// Refusals that cost a client its timestamps. `NOT_LEADER` does not: it names the leader.
const FAILED: [&str; 6] =
    ["NO_QUORUM", "NO_LEADER", "OVERLOADED", "SHUTTING_DOWN", "NOT_READY", "INTERNAL"];

/// The `/status` of a node.
#[derive(Clone, Debug)]
pub(super) struct Status(pub(super) Value);

impl Status {
    /// A number; 0 if the node does not say it.
    pub(super) fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(0.0)
    }

    /// A text; empty if the node does not say it.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    pub(super) fn node(&self) -> u64 {
        self.0["nodeID"].as_u64().unwrap_or(0)
    }

    /// The node id of the leader that the node knows.
    pub(super) fn leader(&self) -> Option<u64> {
        self.0["leader"]["nodeID"].as_u64()
    }

    pub(super) fn members(&self) -> &[Value] {
        self.0["members"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(super) fn certificates(&self) -> &[Value] {
        self.0["certificates"].as_array().map_or(&[], Vec::as_slice)
    }

    fn counter(&self, name: &str) -> f64 {
        self.0["counters"][name].as_f64().unwrap_or(0.0)
    }

    fn failed(&self) -> f64 {
        FAILED.iter().filter_map(|code| self.0["refusals"][*code].as_f64()).sum()
    }

    fn bounds(&self) -> Vec<f64> {
        numbers(&self.0["boundsMs"])
    }

    fn durations(&self, name: &str) -> Vec<f64> {
        numbers(&self.0["latencies"][name])
    }
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().map_or(Vec::new(), |list| list.iter().filter_map(Value::as_f64).collect())
}

/// What a node did between two answers. Times are milliseconds; `None` if nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) timestamps_per_s: f64,
    pub(super) answered_per_s: f64,
    pub(super) failed_per_s: f64,
    pub(super) confirm_p50_ms: Option<f64>,
    pub(super) confirm_p99_ms: Option<f64>,
    pub(super) disk_p99_ms: Option<f64>,
    /// Of one processor.
    pub(super) cpu_percent: f64,
}

impl Rates {
    /// The rates between two answers of one process. `None` for another process.
    fn between(was: &Status, now: &Status) -> Option<Self> {
        let seconds = (now.number("uptimeMs") - was.number("uptimeMs")) / 1e3;
        if seconds <= 0.0 || now.text("boot") != was.text("boot") {
            return None;
        }
        let per_s = |name| (now.counter(name) - was.counter(name)).max(0.0) / seconds;
        let bounds = now.bounds();
        let time =
            |name, share| quantile(&now.durations(name), &was.durations(name), &bounds, share);
        Some(Self {
            timestamps_per_s: per_s("timestamps"),
            answered_per_s: per_s("answered"),
            failed_per_s: (now.failed() - was.failed()).max(0.0) / seconds,
            confirm_p50_ms: time("confirm", 0.5),
            confirm_p99_ms: time("confirm", 0.99),
            disk_p99_ms: time("diskWrite", 0.99),
            cpu_percent: per_s("cpuMs") / 10.0,
        })
    }
}

/// The duration that a share of those counted since `was` did not exceed, by linear interpolation
/// in its bucket. The last bucket has no upper bound: its durations count as the last bound.
fn quantile(now: &[f64], was: &[f64], bounds: &[f64], share: f64) -> Option<f64> {
    let fresh = now.iter().zip(was).map(|(now, was)| (now - was).max(0.0));
    let mut rank = share * fresh.clone().sum::<f64>();
    if rank <= 0.0 {
        return None;
    }
    let mut low = 0.0;
    for (count, bound) in fresh.zip(bounds) {
        if rank <= count {
            return Some(low + (bound - low) * rank / count);
        }
        rank -= count;
        low = *bound;
    }
    Some(low)
}

/// A node that is asked.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) addr: String,
    pub(super) status: Option<Status>,
    /// When the status came.
    pub(super) at_ms: u64,
    /// Why the last question was not answered.
    pub(super) error: Option<String>,
    pub(super) rates: VecDeque<Rates>,
    /// Whether an answer is waited for.
    is_waiting: bool,
}

impl Asked {
    fn new(addr: String) -> Self {
        let (status, error, rates) = (None, None, VecDeque::new());
        Self { addr, status, at_ms: 0, error, rates, is_waiting: false }
    }
}

/// How a member is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Health {
    Ready,
    /// It answers this command, and is not ready.
    NotReady,
    /// It answers the other nodes. This command gets no answer, or has not asked it.
    AnswersNodes,
    /// It has answered neither this command nor the node that is asked about it. For so many
    /// milliseconds; `None` since that node has started.
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
        let asked = addrs.into_iter().map(Asked::new).collect();
        Self { asked, interval, chosen: None }
    }

    /// The nodes to ask now: all that do not owe an answer. Members that nobody has answered for
    /// are asked from now on.
    pub(super) fn poll_asks(&mut self, now_ms: u64) -> Vec<(usize, String)> {
        let found = self.view(now_ms).and_then(|it| it.status.as_ref()).map(|view| {
            let is_known = |member: &&Value| {
                let is_same = |it: &Asked| {
                    let node = it.status.as_ref().map(Status::node);
                    node == member["nodeID"].as_u64() || it.addr == member["addr"]
                };
                !self.asked.iter().any(is_same)
            };
            let addrs = view.members().iter().filter(is_known);
            addrs.filter_map(|it| it["addr"].as_str()).map(str::to_owned).collect::<Vec<_>>()
        });
        for addr in found.unwrap_or_default() {
            if self.asked.len() < ASKED_MAX {
                self.asked.push(Asked::new(addr));
            }
        }
        let mut due = Vec::new();
        for (at, it) in self.asked.iter_mut().enumerate().filter(|(_, it)| !it.is_waiting) {
            it.is_waiting = true;
            due.push((at, it.addr.clone()));
        }
        due
    }

    /// Records the answer of a node, or why there is none.
    pub(super) fn record(&mut self, at: usize, answer: Result<Value, String>, now_ms: u64) {
        let Some(asked) = self.asked.get_mut(at) else { return };
        asked.is_waiting = false;
        match answer {
            Err(error) => asked.error = Some(error),
            Ok(document) => {
                let now = Status(document);
                let was = asked.status.as_ref();
                match was.and_then(|was| Rates::between(was, &now)) {
                    Some(rates) => asked.rates.push_back(rates),
                    None => asked.rates.clear(),
                }
                while asked.rates.len() > RATES_MAX {
                    asked.rates.pop_front();
                }
                (asked.status, asked.at_ms, asked.error) = (Some(now), now_ms, None);
            }
        }
    }

    /// Whether the last answer of a node is old.
    pub(super) fn is_old(&self, asked: &Asked, now_ms: u64) -> bool {
        let interval_ms = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let limit_ms = interval_ms.saturating_mul(OLD_INTERVALS).max(OLD_MS_MIN);
        asked.status.is_none() || now_ms.saturating_sub(asked.at_ms) > limit_ms
    }

    /// The node that is asked about the others: the leader if it answers, because only it knows
    /// who is behind; otherwise the node that answered last.
    pub(super) fn view(&self, now_ms: u64) -> Option<&Asked> {
        let leads = |it: &Asked| it.status.as_ref().is_some_and(|status| status.is("leads"));
        let term = |it: &Asked| it.status.as_ref().map_or(0.0, |status| status.number("term"));
        let fresh = || self.asked.iter().filter(|it| !self.is_old(it, now_ms));
        let leader = fresh().filter(|it| leads(it)).max_by(|a, b| term(a).total_cmp(&term(b)));
        let answered = self.asked.iter().filter(|it| it.status.is_some());
        leader.or_else(|| answered.max_by_key(|it| it.at_ms))
    }

    /// The members, by node id.
    pub(super) fn rows(&self, now_ms: u64) -> Vec<Row<'_>> {
        let Some(view) = self.view(now_ms) else { return Vec::new() };
        let Some(status) = &view.status else { return Vec::new() };
        let row = |member| self.row(status, self.is_old(view, now_ms), member, now_ms);
        let mut rows: Vec<_> = status.members().iter().map(row).collect();
        rows.sort_by_key(|row| row.node);
        rows
    }

    fn row<'a>(
        &'a self,
        view: &'a Status,
        is_view_old: bool,
        member: &'a Value,
        now_ms: u64,
    ) -> Row<'a> {
        let node = member["nodeID"].as_u64().unwrap_or(0);
        let is_own = |it: &&Asked| it.status.as_ref().map(Status::node) == Some(node);
        let answers = self.asked.iter().filter(is_own);
        let own = answers.max_by_key(|it| it.at_ms).filter(|it| !self.is_old(it, now_ms));
        let text = |name: &str| member[name].as_str().unwrap_or_default();
        let age_ms = member["answerAgeMs"].as_f64();
        let health = match own.and_then(|it| it.status.as_ref()) {
            Some(status) if status.is("ready") => Health::Ready,
            Some(_) => Health::NotReady,
            None if node == view.node() || is_view_old => Health::Silent(None),
            None if age_ms.is_some_and(|age_ms| age_ms <= SILENT_MS) => Health::AnswersNodes,
            None => Health::Silent(age_ms),
        };
        let is_heard = !matches!(health, Health::Silent(_)) && node != view.node();
        Row {
            node,
            addr: text("addr"),
            role: text("role"),
            health,
            behind: member["behind"].as_u64().filter(|_| node != view.node()),
            trip_ms: member["usualMs"].as_f64().filter(|_| is_heard),
            offset_ms: member["offsetMs"].as_f64().filter(|_| is_heard),
            heard: member["heard"].as_bool(),
            version: if node == view.node() { view.text("version") } else { text("version") },
            own,
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

    pub(in crate::top) const INTERVAL: Duration = Duration::from_secs(1);

    /// The status of a node of three, whose leader is node 1. Every node has given `timestamps`.
    pub(in crate::top) fn status(node: u64, uptime_ms: u64, timestamps: u64) -> Value {
        let member = |id: u64| {
            json!({
                "nodeID": id, "addr": format!("n{id}:8080"), "raftAddr": format!("n{id}:60001"),
                "role": if id == 1 { "leader" } else { "voter" },
                "heard": (node == 1).then_some(true),
                "behind": (node == 1 && id != 1).then_some(0),
                "answerAgeMs": if id == node { None } else { Some(120.0) },
                "usualMs": (id != node).then_some(0.25), "offsetMs": (id != node).then_some(-1.5),
                "version": "0.2.0",
            })
        };
        json!({
            "nodeID": node, "addr": format!("n{node}:8080"), "clusterName": "prod",
            "version": "0.2.0", "boot": format!("{node:016x}"), "uptimeMs": uptime_ms,
            "role": if node == 1 { "leader" } else { "follower" }, "term": 5, "leads": node == 1,
            "hasGrant": node == 1, "leader": {"nodeID": 1, "addr": "n1:8080"},
            "leaderForMs": 65_000.0, "ready": true, "leaving": "no", "quorumReached": true,
            "impaired": false, "tickAgeMs": 4.0, "status": "followed", "offsetMs": 0.0,
            "leadMs": 800.0, "members": [member(1), member(2), member(3)],
            "confirmLinks": 2, "confirmLinksMax": 2, "settings": {"CLOCK_OFFSET_MAX_MS": "500"},
            "certificates": [], "boundsMs": [1.0, 2.0, 4.0],
            "counters": {"timestamps": timestamps, "answered": timestamps, "cpuMs": uptime_ms / 10},
            "refusals": {"NO_QUORUM": timestamps / 10, "NOT_LEADER": timestamps},
            "latencies": {
                "confirm": [timestamps, timestamps, 0, 0], "diskWrite": [0, 0, timestamps, 0],
            },
        })
    }

    /// The model after two answers of each of these nodes, a second apart.
    pub(in crate::top) fn after(nodes: &[u64]) -> Model {
        let addrs = nodes.iter().map(|node| format!("n{node}:8080")).collect();
        let mut model = Model::new(addrs, INTERVAL);
        for (at, node) in nodes.iter().enumerate() {
            model.record(at, Ok(status(*node, 10_000, 100)), 1_000);
            model.record(at, Ok(status(*node, 11_000, 300)), 2_000);
        }
        model
    }

    #[test]
    fn rates_are_those_between_two_answers_of_one_process() {
        let model = after(&[1]);
        let rates = *model.asked[0].rates.back().expect("two answers");
        assert_eq!((rates.timestamps_per_s, rates.failed_per_s), (200.0, 20.0));
        assert_eq!((rates.confirm_p50_ms, rates.confirm_p99_ms), (Some(1.0), Some(1.98)));
        assert_eq!((rates.disk_p99_ms, rates.cpu_percent), (Some(3.98), 10.0));
        let mut model = after(&[1]);
        let mut restarted = status(1, 12_000, 900);
        restarted["boot"] = json!("another");
        model.record(0, Ok(restarted), 3_000);
        assert!(model.asked[0].rates.is_empty(), "its counters have begun again");
    }

    #[test]
    fn a_quantile_needs_durations_and_ends_at_the_last_bound() {
        let of = |now: &[f64], share| quantile(now, &[0.0; 3], &[1.0, 2.0], share);
        assert_eq!(of(&[0.0; 3], 0.5), None);
        assert_eq!(of(&[4.0, 0.0, 0.0], 0.5), Some(0.5));
        assert_eq!(of(&[1.0, 1.0, 8.0], 0.99), Some(2.0));
    }

    #[test]
    fn members_that_were_not_named_are_asked_and_nobody_twice_at_a_time() {
        let mut model = after(&[2]);
        let addrs = |due: Vec<(usize, String)>| due.into_iter().map(|it| it.1).collect::<Vec<_>>();
        assert_eq!(addrs(model.poll_asks(2_000)), ["n2:8080", "n1:8080", "n3:8080"]);
        assert_eq!(addrs(model.poll_asks(2_000)), Vec::<String>::new(), "answers are waited for");
        model.record(2, Err("n3:8080: refused".to_owned()), 2_500);
        assert_eq!(addrs(model.poll_asks(2_500)), ["n3:8080"]);
    }

    #[test]
    fn a_node_is_judged_by_its_own_answer_and_otherwise_by_what_the_others_hear() {
        let mut model = after(&[1, 2]);
        let health = |model: &Model, now_ms| {
            model.rows(now_ms).into_iter().map(|row| row.health).collect::<Vec<_>>()
        };
        assert_eq!(health(&model, 2_000), [Health::Ready, Health::Ready, Health::AnswersNodes]);
        let mut gone = status(1, 12_000, 300);
        gone["members"][2]["answerAgeMs"] = json!(9_000.0);
        gone["ready"] = json!(false);
        model.record(0, Ok(gone), 3_000);
        let silent = Health::Silent(Some(9_000.0));
        assert_eq!(health(&model, 3_000), [Health::NotReady, Health::Ready, silent]);
        // Nobody answers any more: what the nodes said of each other is old, too.
        assert_eq!(health(&model, 60_000), [const { Health::Silent(None) }; 3]);
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
