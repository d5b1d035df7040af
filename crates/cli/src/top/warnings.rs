//! What needs attention in a cluster, and what to do about it, in the words of the page for
//! operators (`/ui`). Rules of the page about events and times are missing here;
//! `docs/operations/monitoring.md` lists them.

use crate::top::figures::{lasting, ms};
use crate::top::model::{Health, Model, Row, Status};

/// Members usually lack fewer log entries.
const BEHIND_MAX: u64 = 16;
/// The consensus thread ticks every 10 ms. It is stuck after this time.
const TICK_AGE_MS_MAX: f64 = 1_000.0;
/// The ceiling is usually a reservation window ahead of the clock.
const LEAD_MS_MAX: f64 = 60_000.0;
/// A certificate is to be renewed so many days before it ends.
const DAYS_LEFT_MIN: i64 = 30;
/// A write to a disk usually takes less.
const DISK_MS_MAX: f64 = 100.0;

/// How soon something needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Clients are affected, or soon will be.
    Now,
    Soon,
}

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Warning {
    pub(super) urgency: Urgency,
    pub(super) title: String,
    pub(super) advice: &'static str,
}

fn warning(urgency: Urgency, title: impl Into<String>, advice: &'static str) -> Warning {
    Warning { urgency, title: title.into(), advice }
}

/// What needs attention; the most urgent comes first.
pub(super) fn warnings(model: &Model, now_ms: u64) -> Vec<Warning> {
    let rows = model.rows(now_ms);
    let view = model.view(now_ms).filter(|view| !model.is_old(view, now_ms));
    let mut found = Vec::new();
    if let Some(status) = view.and_then(|view| view.status.as_ref()) {
        of_cluster(status, &rows, &mut found);
    }
    for row in &rows {
        of_member(row, &rows, &mut found);
        if let Some(status) = row.own.and_then(|own| own.status.as_ref()) {
            of_node(status, &mut found);
        }
        let disk_ms = row.own.and_then(|own| own.rates.back()).and_then(|it| it.disk_p99_ms);
        if let Some(disk_ms) = disk_ms.filter(|disk_ms| *disk_ms > DISK_MS_MAX) {
            let title = format!("A write to the disk of node {} takes {}", row.node, ms(disk_ms));
            found.push(warning(Urgency::Soon, title, "Move other programs off this disk."));
        }
    }
    found.sort_by_key(|it| it.urgency);
    found
}

fn of_cluster(status: &Status, rows: &[Row<'_>], found: &mut Vec<Warning>) {
    if status.leader().is_none() {
        let title = format!("Node {} knows no leader", status.node());
        found.push(warning(
            Urgency::Now,
            title,
            "See which nodes run and reach each other: a majority has to. The logs say \"no link\" \
             and why.",
        ));
    }
    let mut versions: Vec<_> = rows.iter().map(|row| row.version).collect();
    versions.retain(|version| !version.is_empty());
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        let title = format!("Nodes run different versions: {}", versions.join(", "));
        found.push(warning(Urgency::Soon, title, "Finish the upgrade."));
    }
    let limit_ms = status.0["settings"]["CLOCK_OFFSET_MAX_MS"].as_str();
    let Some(limit_ms) = limit_ms.and_then(|text| text.parse::<f64>().ok()) else { return };
    for row in rows {
        if row.offset_ms.is_some_and(|offset_ms| offset_ms.abs() > limit_ms) {
            let offset = row.offset_ms.map_or_else(String::new, ms);
            found.push(warning(
                Urgency::Now,
                format!("The clock of node {} differs by {offset}", row.node),
                "epicepoch clock names the clock that is wrong. Set it right.",
            ));
        }
    }
}

/// What the node that is asked about the others says of a member.
fn of_member(row: &Row<'_>, rows: &[Row<'_>], found: &mut Vec<Warning>) {
    let is_voter = |row: &Row<'_>| matches!(row.role, "voter" | "leader");
    let is_there = |row: &Row<'_>| !matches!(row.health, Health::Silent(_));
    let voters = rows.iter().filter(|row| is_voter(row)).count();
    let there = rows.iter().filter(|row| is_voter(row) && is_there(row)).count();
    let node = row.node;
    match row.health {
        Health::Silent(age_ms) => {
            let is_urgent = is_voter(row) && there <= voters / 2 + 1;
            let urgency = if is_urgent { Urgency::Now } else { Urgency::Soon };
            let advice = match (is_urgent, there > voters / 2) {
                (true, true) => {
                    "Start it, or repair the network to it. If its disk is gone, replace it. The \
                     loss of one more stops the service."
                }
                (true, false) => {
                    "Start it, or repair the network to it. If its disk is gone, replace it. Too \
                     few nodes answer."
                }
                (false, _) => {
                    "Start it, or repair the network to it. If its disk is gone, replace it."
                }
            };
            let since = age_ms.map_or_else(String::new, |age| format!(" for {}", lasting(age)));
            found.push(warning(urgency, format!("Node {node} has not answered{since}"), advice));
        }
        Health::AnswersNodes => found.push(warning(
            Urgency::Soon,
            format!("Node {node} answers the other nodes, but not this command"),
            "Name its address in --addr: that of OPS_ADDR, if it has one. OPS_PLAIN_FROM must allow \
             this machine, or give --ca-file and --token-file.",
        )),
        Health::Ready | Health::NotReady => {}
    }
    let advice = "Look at its disk, its log, and the network to it.";
    if is_there(row) && row.heard == Some(false) {
        let title = format!("The leader does not hear node {node}");
        found.push(warning(Urgency::Soon, title, advice));
    } else if is_there(row)
        && let Some(behind) = row.behind.filter(|behind| *behind > BEHIND_MAX)
    {
        let title = format!("Node {node} is {behind} log entries behind");
        found.push(warning(Urgency::Soon, title, advice));
    }
}

/// What a node says of itself.
fn of_node(status: &Status, found: &mut Vec<Warning>) {
    let node = status.node();
    let mut add = |is_so: bool, urgency: Urgency, title: String, advice: &'static str| {
        if is_so {
            found.push(warning(urgency, title, advice));
        }
    };
    add(
        status.is("leads") && !status.is("hasGrant"),
        Urgency::Now,
        "The leader may not answer yet".to_owned(),
        "It needs a range of epochs on a majority of disks. Look at the disks and links of the nodes.",
    );
    add(
        status.leader().is_some() && !status.is("quorumReached") && status.text("leaving") == "no",
        Urgency::Now,
        format!("Node {node} does not reach a majority, or does not hear its leader"),
        "Check the network between the nodes, at the port of RAFT_ADDR.",
    );
    add(
        status.number("tickAgeMs") > TICK_AGE_MS_MAX,
        Urgency::Now,
        format!(
            "The consensus thread of node {node} has been stuck for {}",
            lasting(status.number("tickAgeMs"))
        ),
        "Look at the processors and the disk of its machine.",
    );
    add(
        status.is("impaired"),
        Urgency::Now,
        format!("The disk or the confirm rounds of node {node} are stuck"),
        "Look at the disk of its machine, and at the end of its log.",
    );
    add(
        status.text("status") == "outvoted",
        Urgency::Now,
        format!("The clock of node {node} is wrong, and the clocks of the others are used"),
        "Set the clock of its machine right (chronyc tracking). Order is not in danger.",
    );
    add(
        status.text("status") == "jumped",
        Urgency::Now,
        format!("The clock of node {node} jumped, and too few nodes answer to confirm it"),
        "Compare it with other clocks. If it is wrong, set it right; if it is right, restart this node.",
    );
    add(
        status.text("leaving") == "stopping",
        Urgency::Soon,
        format!("Node {node} is stopping"),
        "The others serve on.",
    );
    add(
        status.text("leaving") == "removed",
        Urgency::Soon,
        format!("Node {node} was removed from the cluster"),
        "It ends by itself. Its data directory is not needed any more.",
    );
    add(
        status.number("leadMs") > LEAD_MS_MAX && status.is("leads"),
        Urgency::Soon,
        format!("The ceiling is {} ahead of the clock", lasting(status.number("leadMs"))),
        "The service continues, but epochs stand still until the clock has caught up.",
    );
    for certificate in status.certificates() {
        let days = certificate["daysLeft"].as_i64().unwrap_or(i64::MAX);
        let setting = certificate["setting"].as_str().unwrap_or_default();
        let (urgency, how) = match days {
            ..0 => (Urgency::Now, "has expired".to_owned()),
            _ => (Urgency::Soon, format!("expires in {days} days")),
        };
        add(
            days < DAYS_LEFT_MIN,
            urgency,
            format!("The certificate of {setting} of node {node} {how}"),
            "Put a new pair in its place.",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::top::model::tests::{after, status};

    /// The warnings after node 1 has said something else than a healthy leader says.
    fn of(change: impl FnOnce(&mut Value)) -> Vec<(Urgency, String)> {
        let mut model = after(&[1, 2, 3]);
        let mut changed = status(1, 12_000, 400);
        change(&mut changed);
        model.record(0, Ok(changed), 3_000);
        let found = warnings(&model, 3_000);
        found.into_iter().map(|it| (it.urgency, it.title)).collect()
    }

    #[test]
    fn a_healthy_cluster_has_no_warning() {
        assert_eq!(of(|_| ()), []);
    }

    #[test]
    fn each_fault_is_named_with_its_node() {
        let one = |urgency: Urgency, title: &str| vec![(urgency, title.to_owned())];
        let disk = "The disk or the confirm rounds of node 1 are stuck";
        assert_eq!(of(|it| it["impaired"] = json!(true)), one(Urgency::Now, disk));
        let clock = "The clock of node 1 is wrong, and the clocks of the others are used";
        assert_eq!(of(|it| it["status"] = json!("outvoted")), one(Urgency::Now, clock));
        let stuck = "The consensus thread of node 1 has been stuck for 4 s";
        assert_eq!(of(|it| it["tickAgeMs"] = json!(4_000.0)), one(Urgency::Now, stuck));
        let grant = "The leader may not answer yet";
        assert_eq!(of(|it| it["hasGrant"] = json!(false)), one(Urgency::Now, grant));
        let behind = "Node 3 is 17 log entries behind";
        assert_eq!(of(|it| it["members"][2]["behind"] = json!(17)), one(Urgency::Soon, behind));
        assert_eq!(of(|it| it["members"][2]["behind"] = json!(16)), []);
        let apart = "The clock of node 2 differs by -501 ms";
        let offset = json!(-501.0);
        assert_eq!(of(|it| it["members"][1]["offsetMs"] = offset), one(Urgency::Now, apart));
        let expired = json!([{"setting": "CLIENT_CERT_FILE", "daysLeft": -1}]);
        let title = "The certificate of CLIENT_CERT_FILE of node 1 has expired";
        assert_eq!(of(|it| it["certificates"] = expired), one(Urgency::Now, title));
        let versions = "Nodes run different versions: 0.2.0, 0.3.0";
        assert_eq!(of(|it| it["version"] = json!("0.3.0")), one(Urgency::Soon, versions));
    }

    #[test]
    fn a_silent_voter_is_urgent_once_no_other_may_be_lost() {
        let mut model = after(&[1, 2]);
        let mut seen = status(1, 12_000, 400);
        seen["members"][2]["answerAgeMs"] = json!(61_000.0);
        model.record(0, Ok(seen), 3_000);
        let found = warnings(&model, 3_000);
        assert_eq!(found[0].title, "Node 3 has not answered for 1 min 1 s");
        assert_eq!(found[0].urgency, Urgency::Now, "two of three are a bare majority");
        assert!(found[0].advice.ends_with("The loss of one more stops the service."));
    }

    #[test]
    fn a_cluster_without_a_leader_is_named_first() {
        let found = of(|it| {
            it["leader"] = Value::Null;
            it["leads"] = json!(false);
            it["version"] = json!("0.3.0");
        });
        // Node 2 answered earlier, and still names a leader.
        assert_eq!(found[0], (Urgency::Now, "Node 1 knows no leader".to_owned()));
    }
}
