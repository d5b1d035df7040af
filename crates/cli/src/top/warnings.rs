//! What needs attention in a cluster, and what to do about it: the rules of the page for operators
//! (`/ui`), in its words. A test compares both.
//!
//! The page judges one node, and the others as that node sees them. Here each node that answers is
//! judged by its own answer. The members are judged once, as the node that is asked about the others
//! sees them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::top::events::{CHANGES, EVENTS, LINKS, Urgency};
use crate::top::figures::{count, lasting, ms, ms_up_to, signed};
use crate::top::model::{Asked, Health, Model, Row};
use crate::top::rates::Events;
use crate::top::status::{SILENT_MS, Status, answer_age_ms};

/// Members usually lack fewer log entries.
const BEHIND_MAX: u64 = 16;
/// The consensus thread ticks every 10 ms. It is stuck after this time.
const TICK_AGE_MS_MAX: f64 = 1_000.0;
/// The ceiling is usually a reservation window ahead of the clock.
const LEAD_MS_MAX: f64 = 60_000.0;
/// Timestamps of a leader under load are usually younger.
const LAG_MS_MAX: f64 = 1_000.0;
/// A certificate is to be renewed so many days before it ends.
const DAYS_LEFT_MIN: i64 = 30;
/// A write to a disk usually takes less.
const DISK_MS_MAX: f64 = 100.0;
/// Writes to the disk are judged by the slowest of this time: at a short interval, most samples have
/// no write.
const DISK_WITHIN_MS: u64 = 5_000;
/// An election timeout is to be at least so many usual round trips.
const ELECTION_TRIPS: f64 = 8.0;
/// Requests may be refused for so long within a minute, as in a change of leader.
const HEADLESS_MS_MAX: f64 = 30_000.0;
const MINUTE_MS: u64 = 60_000;
/// A warning is urgent after this time, because an ordinary change of the leader is shorter.
const STEADY_MS: u64 = 5_000;

const MAJORITY: &str =
    "See which nodes run and reach each other: a majority has to. The logs say “no link” and why.";
const INTERVALS: &str = "Look at its clock source (chronyc tracking) if that is why.";
const MEMBER: &str = "Look at its disk, its log, and the network to it.";
const START: &str = "Start it, or repair the network to it. If its disk is gone, replace it.";

/// The name that the page has for a rule, and the node that it is about; 0 for the cluster.
type Id = (Cow<'static, str>, u64);

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Warning {
    id: Id,
    pub(super) urgency: Urgency,
    pub(super) title: String,
    pub(super) advice: String,
}

fn warning(
    (rule, node): (impl Into<Cow<'static, str>>, u64),
    urgency: Urgency,
    title: impl Into<String>,
    advice: impl Into<String>,
) -> Warning {
    Warning { id: (rule.into(), node), urgency, title: title.into(), advice: advice.into() }
}

/// What is shown of what needs attention.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The most urgent comes first.
    pub(super) found: Vec<Warning>,
    /// Since when each warning is shown; `None` for those that were there at the first answers.
    since_ms: BTreeMap<Id, Option<u64>>,
}

impl Attention {
    /// Judges the cluster. A warning is not urgent before it was there for [`STEADY_MS`], unless it
    /// was there from the first answers on.
    pub(super) fn judge(&mut self, model: &Model, now_ms: u64) {
        let is_first = model.asked.iter().all(|it| it.samples.len() < 2);
        let mut since_ms = BTreeMap::new();
        self.found = warnings(model, now_ms);
        for it in &mut self.found {
            let fresh = (!is_first).then_some(now_ms);
            let since = self.since_ms.get(&it.id).copied().unwrap_or(fresh);
            if since.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) < STEADY_MS) {
                it.urgency = Urgency::Soon;
            }
            since_ms.insert(it.id.clone(), since);
        }
        self.since_ms = since_ms;
        self.found.sort_by_key(|it| it.urgency);
    }
}

/// What needs attention now; the most urgent comes first.
pub(super) fn warnings(model: &Model, now_ms: u64) -> Vec<Warning> {
    let rows = model.rows(now_ms);
    let mut found = Vec::new();
    let view = model.view(now_ms).filter(|view| model.is_current(view, now_ms));
    if let Some(status) = view.and_then(|view| view.status.as_ref()) {
        of_cluster(status, &rows, now_ms, &mut found);
    }
    for row in &rows {
        of_member(row, &rows, &mut found);
        if let Some((own, status)) = row.own.and_then(|own| Some((own, own.status.as_ref()?))) {
            let is_view = view.is_some_and(|view| std::ptr::eq(view, own));
            of_node(own, status, is_view, now_ms, &mut found);
        }
    }
    found.sort_by_key(|it| it.urgency);
    found
}

/// What the node that is asked about the others says of the cluster.
fn of_cluster(status: &Status, rows: &[Row<'_>], now_ms: u64, found: &mut Vec<Warning>) {
    if status.leader().is_none() {
        found.push(warning(("leader", 0), Urgency::Now, "No node knows a leader", MAJORITY));
    }
    // Every node counts the changes of the leader. One that has just started has counted few.
    let most = |of: fn(&Events) -> f64, minutes: u16| {
        let own = rows.iter().filter_map(|row| row.own);
        own.map(|own| counted(own, of, minutes, now_ms)).fold(0.0, f64::max)
    };
    if most(|it| it.headless_ms, 1) > HEADLESS_MS_MAX {
        let title = "Requests are refused, because there is no leader or no quorum";
        found.push(warning(("headless", 0), Urgency::Now, title, MAJORITY));
    }
    for rule in EVENTS.iter().filter(|rule| rule.name == CHANGES) {
        let times = most(rule.of, rule.minutes);
        if times > rule.above {
            let title = format!("{}: {} in {} min", rule.title, count(times), rule.minutes);
            found.push(warning((rule.name, 0), rule.urgency, title, rule.advice));
        }
    }
    let lead_ms = status.number("leadMs");
    if lead_ms > LEAD_MS_MAX {
        found.push(warning(
            ("ceiling", 0),
            Urgency::Soon,
            format!("The ceiling is {} ahead of the clock", lasting(lead_ms)),
            "The service continues, but epochs stand still until the clock has caught up.",
        ));
    }
    let mut versions: Vec<_> = rows.iter().map(|row| row.version).collect();
    versions.retain(|version| !version.is_empty());
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let title = format!("Nodes run different versions: {}", versions.join(", "));
        found.push(warning(("versions", 0), Urgency::Soon, title, "Finish the upgrade."));
    }
    let offset_ms_max = status.setting("settings", "CLOCK_OFFSET_MAX_MS");
    let election_ms = status.setting("nodeSettings", "ELECTION_TIMEOUT_MS");
    for row in rows {
        if let Some((offset_ms, max_ms)) = row.offset_ms.zip(offset_ms_max)
            && offset_ms.abs() > max_ms
        {
            found.push(warning(
                ("apart", row.node),
                Urgency::Now,
                format!("The clock of node {} differs by {}", row.node, signed(offset_ms)),
                "epicepoch clock names the clock that is wrong. Set it right.",
            ));
        }
        if let Some((trip_ms, election_ms)) = row.trip_ms.zip(election_ms)
            && trip_ms * ELECTION_TRIPS > election_ms
        {
            let title = format!(
                "The round trip to node {}, {}, is too long for ELECTION_TIMEOUT_MS={election_ms}",
                row.node,
                ms(trip_ms)
            );
            let advice = "Run epicepoch tune, and set what it advises.";
            found.push(warning(("trip", row.node), Urgency::Soon, title, advice));
        }
    }
}

/// What the node that is asked about the others says of a member.
fn of_member(row: &Row<'_>, rows: &[Row<'_>], found: &mut Vec<Warning>) {
    let voters = rows.iter().filter(|row| row.is_voter()).count();
    let there = rows.iter().filter(|row| row.is_voter() && !row.is_silent()).count();
    let node = row.node;
    match row.health {
        Health::Silent(age_ms) => {
            let is_urgent = row.is_voter() && there <= voters / 2 + 1;
            let urgency = if is_urgent { Urgency::Now } else { Urgency::Soon };
            let left = match (is_urgent, there > voters / 2) {
                (true, true) => " The loss of one more stops the service.",
                (true, false) => " Too few nodes answer.",
                (false, _) => "",
            };
            let since = age_ms.map_or_else(String::new, |age| format!(" for {}", lasting(age)));
            // Who is cut off from the others may still answer this command.
            let whom = if row.own.is_some() { " the other nodes" } else { "" };
            let title = format!("Node {node} has not answered{whom}{since}");
            found.push(warning(("silent", node), urgency, title, format!("{START}{left}")));
        }
        Health::AnswersNodes => {
            // Without an error, its answer is waited for.
            let Some(error) = row.error else { return };
            found.push(warning(
                ("unasked", node),
                Urgency::Soon,
                format!("Node {node} answers the other nodes, but not this command"),
                format!(
                    "Name its address in --addr: that of OPS_ADDR, if it has one. OPS_PLAIN_FROM \
                     must allow this machine, or give --ca-file and --token-file. {error}"
                ),
            ));
        }
        Health::Ready | Health::NotReady => {}
    }
    let behind = row.behind.filter(|behind| *behind > BEHIND_MAX);
    let title = match (row.heard, behind) {
        _ if row.is_silent() => return,
        (Some(false), _) => format!("The leader does not hear node {node}"),
        (_, Some(behind)) => format!("Node {node} is {} log entries behind", count(behind as f64)),
        _ => return,
    };
    found.push(warning(("behind", node), Urgency::Soon, title, MEMBER));
}

/// How often an event happened at a node in the last minutes.
fn counted(own: &Asked, of: fn(&Events) -> f64, minutes: u16, now_ms: u64) -> f64 {
    own.lately(u64::from(minutes) * MINUTE_MS, now_ms).map(|it| of(&it.events)).sum()
}

/// Warnings about one node.
struct OfNode<'a> {
    node: u64,
    found: &'a mut Vec<Warning>,
}

impl OfNode<'_> {
    fn add(
        &mut self,
        is_so: bool,
        rule: &'static str,
        urgency: Urgency,
        title: String,
        advice: &'static str,
    ) {
        if is_so {
            self.found.push(warning((rule, self.node), urgency, title, advice));
        }
    }
}

/// What a node says of itself.
fn of_node(own: &Asked, status: &Status, is_view: bool, now_ms: u64, found: &mut Vec<Warning>) {
    let before = found.len();
    let node = status.node();
    let mut of = OfNode { node, found };
    of_state(status, is_view, &mut of);
    of_work(own, status, now_ms, &mut of);
    for certificate in status.certificates() {
        let days = certificate["daysLeft"].as_i64().unwrap_or(i64::MAX);
        let setting = certificate["setting"].as_str().unwrap_or_default().to_owned();
        let (urgency, how) = match days {
            ..0 => (Urgency::Now, "has expired".to_owned()),
            _ => (Urgency::Soon, format!("expires in {days} days")),
        };
        let title = format!("The certificate of {setting} of node {node} {how}");
        if days < DAYS_LEFT_MIN {
            found.push(warning((setting, node), urgency, title, "Put a new pair in its place."));
        }
    }
    if !status.is("ready") && found.len() == before {
        let title = format!("Node {node} is not ready");
        found.push(warning(("ready", node), Urgency::Soon, title, "Look at the end of its log."));
    }
}

/// The state that a node is in.
fn of_state(status: &Status, is_view: bool, of: &mut OfNode<'_>) {
    let node = of.node;
    let (leads, leaving) = (status.is("leads"), status.text("leaving"));
    let knows_leader = status.leader().is_some();
    of.add(
        leaving == "stopping",
        "leaving",
        Urgency::Soon,
        format!("Node {node} is stopping"),
        "The others serve on.",
    );
    of.add(
        leaving == "removed",
        "leaving",
        Urgency::Soon,
        format!("Node {node} was removed from the cluster"),
        "It ends by itself. Its data directory is not needed any more.",
    );
    // Where no node knows a leader, one warning says so.
    let title = format!("Node {node} knows no leader");
    of.add(!knows_leader && !is_view, "leader", Urgency::Now, title, MAJORITY);
    of.add(
        leads && knows_leader && !status.is("hasGrant") && !status.is_in_interval_mode(),
        "grant",
        Urgency::Now,
        "The leader may not answer yet".to_owned(),
        "It needs a range of epochs on a majority of disks. Look at the disks and links of the nodes.",
    );
    let refusal = status.interval_refusal();
    of.add(
        refusal.is_some(),
        "intervals",
        Urgency::Soon,
        format!("Node {node} gives no intervals: {}", refusal.unwrap_or_default()),
        INTERVALS,
    );
    let tick_age_ms = status.number("tickAgeMs");
    of.add(
        tick_age_ms > TICK_AGE_MS_MAX,
        "tick",
        Urgency::Now,
        format!("The consensus thread of node {node} has been stuck for {}", lasting(tick_age_ms)),
        "Look at the processors and the disk of its machine.",
    );
    of.add(
        status.is("impaired"),
        "impaired",
        Urgency::Now,
        format!("The disk or the confirm rounds of node {node} are stuck"),
        "Look at the disk of its machine, and at the end of its log.",
    );
    let how =
        if leads { ", the leader, does not reach a majority" } else { " does not hear its leader" };
    of.add(
        knows_leader && !status.is("quorumReached") && leaving == "no",
        "quorum",
        Urgency::Now,
        format!("Node {node}{how}"),
        "Check the network between the nodes, at the port of RAFT_ADDR.",
    );
    of.add(
        status.text("status") == "outvoted",
        "clock",
        Urgency::Now,
        format!("The clock of node {node} is wrong, and the clocks of the others are used"),
        "Set the clock of its machine right (chronyc tracking).",
    );
    of.add(
        status.text("status") == "jumped",
        "clock",
        Urgency::Now,
        format!("The clock of node {node} jumped, and too few nodes answer to confirm it"),
        "Compare it with other clocks. If it is wrong, set it right; if it is right, restart this node.",
    );
    let has_leases = status.setting("settings", "LEASE_MS").is_some_and(|lease_ms| lease_ms > 0.0);
    let clock = status.text("leaseClock");
    of.add(
        leads && has_leases && !["", "allowed"].contains(&clock),
        "lease",
        Urgency::Soon,
        format!("The leader, node {node}, takes no lease: {clock}"),
        "It asks a quorum. Its log says why.",
    );
}

/// What a node did lately, and how its links are.
fn of_work(own: &Asked, status: &Status, now_ms: u64, of: &mut OfNode<'_>) {
    let node = of.node;
    let last = own.last_rates();
    let lag_ms = status.number("lagMs");
    of.add(
        lag_ms > LAG_MS_MAX && last.is_some_and(|it| it.answered_per_s > 10.0),
        "lag",
        Urgency::Soon,
        format!("Timestamps are {} old", ms(lag_ms)),
        LINKS,
    );
    let is_silent = |it: &serde_json::Value| {
        let age_ms = answer_age_ms(status, it);
        let is_other = it["nodeID"].as_u64() != Some(node);
        is_other && age_ms.is_none_or(|age| age > SILENT_MS)
    };
    // A warning names a silent member already, with or without a vote.
    let is_lost = status.members().iter().any(is_silent);
    let (links, links_max) = (status.number("confirmLinks"), status.number("confirmLinksMax"));
    of.add(
        links < links_max && !is_lost,
        "links",
        Urgency::Soon,
        format!("{links} of {links_max} confirm links of node {node} are connected"),
        "Check the logs of the other nodes, and firewalls that cut idle connections.",
    );
    for rule in EVENTS.iter().filter(|rule| rule.name != CHANGES) {
        let times = counted(own, rule.of, rule.minutes, now_ms);
        let title =
            format!("Node {node}: {}: {} in {} min", rule.title, count(times), rule.minutes);
        of.add(times > rule.above, rule.name, rule.urgency, title, rule.advice);
    }
    let disk = own.lately(DISK_WITHIN_MS, now_ms).filter_map(|it| it.disk_p99_ms);
    let disk_ms = disk.fold(0.0, f64::max);
    of.add(
        disk_ms > DISK_MS_MAX,
        "disk",
        Urgency::Soon,
        format!(
            "A write to the disk of node {node} takes {}",
            ms_up_to(disk_ms, own.last_bound_ms())
        ),
        "Move other programs off this disk.",
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::top::events::EventRule;
    use crate::top::model::tests::{after, lost};
    use crate::top::status::tests::{addr, status};

    const PAGE: &str = include_str!("../../../server/src/front/routes/page/page.js");

    /// The model after node 1 has said something else than a healthy leader says.
    fn changed(change: impl FnOnce(&mut Value)) -> Model {
        let mut model = after(&[1, 2, 3]);
        let mut changed = status(1, 12_000, 400);
        change(&mut changed);
        model.record("n1:8080", Ok(changed), 3_000);
        model
    }

    fn of(change: impl FnOnce(&mut Value)) -> Vec<(Urgency, String)> {
        let found = warnings(&changed(change), 3_000);
        found.into_iter().map(|it| (it.urgency, it.title)).collect()
    }

    fn one(urgency: Urgency, title: &str) -> Vec<(Urgency, String)> {
        vec![(urgency, title.to_owned())]
    }

    #[test]
    fn a_healthy_cluster_has_no_warning() {
        assert_eq!(of(|_| ()), []);
    }

    #[test]
    fn each_fault_is_named_with_its_node() {
        let disk = "The disk or the confirm rounds of node 1 are stuck";
        assert_eq!(of(|it| it["impaired"] = json!(true)), one(Urgency::Now, disk));
        let clock = "The clock of node 1 is wrong, and the clocks of the others are used";
        assert_eq!(of(|it| it["status"] = json!("outvoted")), one(Urgency::Now, clock));
        let lease = "The leader, node 1, takes no lease: virtual";
        let with_leases = |clock: &'static str| {
            of(move |it| {
                it["settings"]["LEASE_MS"] = json!("200");
                it["leaseClock"] = json!(clock);
            })
        };
        assert_eq!(with_leases("virtual"), one(Urgency::Soon, lease));
        assert_eq!(with_leases("allowed"), []);
        assert_eq!(of(|it| it["leaseClock"] = json!("virtual")), [], "there are no leases");
        let stuck = "The consensus thread of node 1 has been stuck for 4 s";
        assert_eq!(of(|it| it["tickAgeMs"] = json!(4_000.0)), one(Urgency::Now, stuck));
        let grant = "The leader may not answer yet";
        assert_eq!(of(|it| it["hasGrant"] = json!(false)), one(Urgency::Now, grant));
        let in_interval_mode = |refusal: Option<&'static str>| {
            of(move |it| {
                it["hasGrant"] = json!(false);
                it["interval"] = json!({ "refusal": refusal });
            })
        };
        assert_eq!(in_interval_mode(None), [], "interval mode needs no grant");
        let intervals = "Node 1 gives no intervals: its source knows no bound";
        let refused = in_interval_mode(Some("its source knows no bound"));
        assert_eq!(refused, one(Urgency::Soon, intervals));
        let behind = "Node 3 is 17 log entries behind";
        assert_eq!(of(|it| it["members"][2]["behind"] = json!(17)), one(Urgency::Soon, behind));
        assert_eq!(of(|it| it["members"][2]["behind"] = json!(16)), []);
        let unheard = "The leader does not hear node 3";
        assert_eq!(of(|it| it["members"][2]["heard"] = json!(false)), one(Urgency::Soon, unheard));
        let apart = "The clock of node 2 differs by -501 ms";
        let offset = json!(-501.0);
        assert_eq!(of(|it| it["members"][1]["offsetMs"] = offset), one(Urgency::Now, apart));
        let far = "The round trip to node 2, 126 ms, is too long for ELECTION_TIMEOUT_MS=1000";
        assert_eq!(of(|it| it["members"][1]["usualMs"] = json!(126.0)), one(Urgency::Soon, far));
        let expired = json!([{"setting": "CLIENT_CERT_FILE", "daysLeft": -1}]);
        let title = "The certificate of CLIENT_CERT_FILE of node 1 has expired";
        assert_eq!(of(|it| it["certificates"] = expired), one(Urgency::Now, title));
        let versions = "Nodes run different versions: 0.2.0, 0.3.0";
        assert_eq!(of(|it| it["version"] = json!("0.3.0")), one(Urgency::Soon, versions));
        let ready = "Node 1 is not ready";
        assert_eq!(of(|it| it["ready"] = json!(false)), one(Urgency::Soon, ready));
        let quorum = "Node 1, the leader, does not reach a majority";
        assert_eq!(of(|it| it["quorumReached"] = json!(false)), one(Urgency::Now, quorum));
        let links = "1 of 2 confirm links of node 1 are connected";
        assert_eq!(of(|it| it["confirmLinks"] = json!(1)), one(Urgency::Soon, links));
        let lag = "Timestamps are 1.50 s old";
        assert_eq!(of(|it| it["lagMs"] = json!(1_500.0)), one(Urgency::Soon, lag));
        let disk = "A write to the disk of node 1 takes > 4.00 ms";
        let slow = json!([0, 0, 300, 9]);
        assert_eq!(of(|it| it["latencies"]["diskWrite"] = slow), one(Urgency::Soon, disk));
    }

    #[test]
    fn events_are_counted_over_their_minutes() {
        let refused = "Node 1: Requests refused, because the node has too many: 7 in 1 min";
        let change = |it: &mut Value| it["refusals"]["OVERLOADED"] = json!(7);
        assert_eq!(of(change), one(Urgency::Now, refused));
        let mut model = changed(change);
        let count = |model: &Model, now_ms| warnings(model, now_ms).len();
        assert_eq!(count(&model, 3_000), 1);
        for second in 4..65 {
            let mut said = status(1, 9_000 + second * 1_000, 400);
            said["refusals"]["OVERLOADED"] = json!(7);
            model.record("n1:8080", Ok(said), second * 1_000);
            for node in [2, 3] {
                model.record(
                    &addr(node),
                    Ok(status(node, 9_000 + second * 1_000, 400)),
                    second * 1_000,
                );
            }
        }
        assert_eq!(count(&model, 64_000), 0, "a minute later");
        let changes = |count| move |it: &mut Value| it["counters"]["leaderChanges"] = json!(count);
        assert_eq!(of(changes(3)), []);
        let often = "Changes of the leader: 4 in 10 min";
        assert_eq!(of(changes(4)), one(Urgency::Now, often));
    }

    #[test]
    fn a_silent_voter_is_urgent_once_no_other_may_be_lost() {
        let mut model = after(&[1, 2]);
        let mut seen = status(1, 12_000, 400);
        seen["members"][2]["answerAgeMs"] = json!(61_000.0);
        seen["confirmLinks"] = json!(1);
        model.record("n1:8080", Ok(seen.clone()), 3_000);
        let found = warnings(&model, 3_000);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].title, "Node 3 has not answered for 1 min 1 s");
        assert_eq!(found[0].urgency, Urgency::Now, "two of three are a bare majority");
        assert!(found[0].advice.ends_with("The loss of one more stops the service."));
        seen["members"][2]["role"] = json!("learner");
        model.record("n1:8080", Ok(seen), 3_000);
        let found = warnings(&model, 3_000);
        assert_eq!(found.len(), 1, "the links to a silent learner are lost, too: {found:?}");
        assert_eq!(found[0].urgency, Urgency::Soon, "it has no vote");
    }

    /// The network between the nodes is cut, and each still answers this command.
    #[test]
    fn a_node_that_is_cut_off_from_the_others_is_as_urgent_as_a_dead_one() {
        let mut model = changed(|it| it["members"][2]["answerAgeMs"] = json!(9_000.0));
        let mut cut = status(3, 12_000, 300);
        (cut["leader"], cut["ready"]) = (Value::Null, json!(false));
        model.record("n3:8080", Ok(cut), 3_000);
        let found = warnings(&model, 3_000);
        let titles: Vec<_> = found.iter().map(|it| (it.urgency, it.title.as_str())).collect();
        let silent = "Node 3 has not answered the other nodes for 9 s";
        assert_eq!(titles, [(Urgency::Now, silent), (Urgency::Now, "Node 3 knows no leader")]);
    }

    #[test]
    fn a_node_that_only_this_command_cannot_ask_is_named_with_the_reason() {
        let mut model = after(&[1, 2, 3]);
        model.record("n3:8080", lost("n3:8080: missing token"), 3_000);
        let found = warnings(&model, 3_000);
        assert_eq!(found[0].title, "Node 3 answers the other nodes, but not this command");
        assert!(found[0].advice.ends_with("n3:8080: missing token"), "{}", found[0].advice);
    }

    #[test]
    fn a_cluster_without_a_leader_is_named_once() {
        let mut model = after(&[1, 2, 3]);
        for node in [1, 2, 3] {
            let mut lost = status(node, 12_000, 300);
            (lost["leader"], lost["leads"]) = (Value::Null, json!(false));
            model.record(&addr(node), Ok(lost), 3_000);
        }
        let leader = |it: &Warning| it.id.0 == "leader";
        let titles: Vec<_> =
            warnings(&model, 3_000).into_iter().filter(leader).map(|it| it.title).collect();
        assert_eq!(titles[0], "No node knows a leader");
    }

    #[test]
    fn a_change_of_the_leader_is_not_urgent_before_it_lasts() {
        let urgency = |attention: &Attention| attention.found.first().map(|it| it.urgency);
        let headless = |it: &mut Value| it["impaired"] = json!(true);
        let mut attention = Attention::default();
        attention.judge(&after(&[1, 2, 3]), 2_000);
        assert_eq!(urgency(&attention), None);
        attention.judge(&changed(headless), 3_000);
        assert_eq!(urgency(&attention), Some(Urgency::Soon));
        let mut model = changed(headless);
        model.interval = std::time::Duration::from_secs(10);
        attention.judge(&model, 7_999);
        assert_eq!(urgency(&attention), Some(Urgency::Soon));
        attention.judge(&model, 8_000);
        assert_eq!(urgency(&attention), Some(Urgency::Now));
        // A fault that is there at the first look is urgent at once.
        let mut model = Model::new(vec![addr(1)], std::time::Duration::from_secs(10));
        let mut said = status(1, 10_000, 100);
        headless(&mut said);
        model.record("n1:8080", Ok(said), 5);
        let mut attention = Attention::default();
        for now_ms in [5, 500] {
            attention.judge(&model, now_ms);
            assert_eq!(urgency(&attention), Some(Urgency::Now), "at {now_ms}");
        }
    }

    /// A status of node 1 that breaks one rule after the other, so that every name is seen.
    fn names_here() -> BTreeSet<String> {
        let breaks: [fn(&mut Value); 20] = [
            |it| it["leaving"] = json!("stopping"),
            |it| it["leader"] = Value::Null,
            |it| it["hasGrant"] = json!(false),
            |it| it["interval"] = json!({ "refusal": "uncertain" }),
            |it| it["tickAgeMs"] = json!(4_000.0),
            |it| it["impaired"] = json!(true),
            |it| it["quorumReached"] = json!(false),
            |it| it["members"][2]["answerAgeMs"] = json!(9_000.0),
            |it| it["status"] = json!("jumped"),
            |it| {
                it["settings"]["LEASE_MS"] = json!("200");
                it["leaseClock"] = json!("unknown");
            },
            |it| it["members"][1]["offsetMs"] = json!(-501.0),
            |it| it["members"][2]["behind"] = json!(17),
            |it| it["members"][1]["usualMs"] = json!(126.0),
            |it| it["lagMs"] = json!(1_500.0),
            |it| it["leadMs"] = json!(61_000.0),
            |it| it["confirmLinks"] = json!(1),
            |it| {
                it["refusals"]["NO_QUORUM"] = json!(1_000);
                it["uptimeMs"] = json!(42_000);
            },
            |it| it["latencies"]["diskWrite"] = json!([0, 0, 0, 900]),
            |it| it["version"] = json!("0.3.0"),
            |it| it["ready"] = json!(false),
        ];
        let found = breaks.into_iter().flat_map(|it| warnings(&changed(it), 3_000));
        found.map(|it| it.id.0.into_owned()).collect()
    }

    #[test]
    fn the_page_has_the_same_rules() {
        // Names are literals; those of events and certificates are variables.
        let calls = PAGE.split("add(").skip(1).filter_map(|call| call.strip_prefix(['"', '`']));
        let names =
            calls.map(|call| call.split(['"', '`', '$']).next().unwrap_or_default().to_owned());
        // The page says that its own node does not answer. Here another node is asked about it.
        let names: BTreeSet<_> = names.filter(|name| name != "stale").collect();
        assert_eq!(names_here(), names);
    }

    #[test]
    fn the_page_has_the_same_bounds_and_words_for_events() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let page = words(PAGE);
        let (_, rows) = page.split_once("const EVENTS = [").expect("the events of the page");
        let (rows, _) = rows.split_once("]; ").expect("their end");
        assert_eq!(rows.matches("], ").count(), EVENTS.len(), "{rows}");
        for it in &EVENTS {
            let urgency = if it.urgency == Urgency::Now { "now" } else { "soon" };
            let advice =
                if it.advice == LINKS { "LINKS".to_owned() } else { format!("{:?}", it.advice) };
            let EventRule { name, above, minutes, title, .. } = it;
            let row =
                format!("[\"{name}\", \"{urgency}\", {above}, {minutes}, \"{title}\", {advice}]");
            assert!(rows.contains(&row), "the page does not have {row}: {rows}");
        }
        for text in [MAJORITY, LINKS, MEMBER, INTERVALS] {
            assert!(page.contains(&format!("\"{text}\"")), "the page does not say {text:?}");
        }
        let numbers = page.replace('_', "");
        for (name, value) in [
            ("STEADYMS", STEADY_MS),
            ("SILENTMS", SILENT_MS as u64),
            ("BEHINDMAX", BEHIND_MAX),
            ("WINDOWMS", 600_000),
            ("GAPMAXS", 90),
        ] {
            assert!(numbers.contains(&format!("const {name} = {value};")), "{name} is not {value}");
        }
    }
}
