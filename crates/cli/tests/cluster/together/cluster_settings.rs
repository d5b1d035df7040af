//! Tests of the settings of the cluster. The first leader sets them. A command changes them. They
//! survive when all processes are killed.

use std::time::Duration;

use crate::support::operator::{list, told};
use crate::support::{Cluster, Node, WAIT_MAX, wait_until};

/// Leadership must be in a preferred zone within this time. A leader waits for five quiet seconds
/// before it hands over; the rest is for a machine under load.
const PREFERRED_MAX: Duration = Duration::from_secs(40);

/// Checks that the leader gives at most `count` timestamps in one answer. Answers that name another
/// node, or tell the client to wait, are skipped.
#[track_caller]
fn assert_gives_at_most(cluster: &Cluster, count: u64) {
    let answered = |count: u64| {
        let mut judged = None;
        wait_until("a leader answers", WAIT_MAX, || {
            let ask = |node: &Node| node.ask(&format!("/timestamp?n={count}"));
            let mut answers = cluster.nodes.iter().filter_map(ask).map(|answer| answer.status);
            judged = answers.find(|status| ![409, 503].contains(status));
            judged.is_some()
        });
        judged.expect("the wait is over")
    };
    assert_eq!([count, count + 1].map(answered), [200, 400]);
}

fn shows(cluster: &Cluster, line: &str) -> bool {
    let output = cluster.operate(&["settings", "list"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().any(|shown| shown == line)
}

/// The first leader sets the settings of the cluster once, from its own settings. Later only a
/// command changes them.
#[test]
fn settings_of_the_cluster_are_stronger_than_those_of_a_node() {
    let mut cluster = Cluster::start_with(&[("MAX_N", "100")]);
    wait_until("they are seeded", WAIT_MAX, || shows(&cluster, "MAX_N=100"));
    assert_gives_at_most(&cluster, 100);
    let set = ["settings", "set", "MAX_N=300", "RESERVATION_MS=2000", "EPOCH_INTERVAL_MS=20"];
    let said = cluster.order(&set);
    for line in
        ["MAX_N=300", "RESERVATION_MS=2000", "EPOCH_INTERVAL_MS=20", "CLOCK_OFFSET_MAX_MS=500"]
    {
        assert!(said.lines().any(|shown| shown == line), "{line} in {said}");
    }
    // The command has returned, so the new value is in effect. No restart is needed.
    assert_gives_at_most(&cluster, 300);
    // Invalid values are rejected; nothing changes.
    let usage = cluster.operate(&["settings", "set", "MAX_N=0"]);
    let said = String::from_utf8_lossy(&usage.stderr);
    assert!(said.contains("MAX_N is \"0\"") && said.contains("from 1 to"), "{said}");
    assert_eq!(usage.status.code(), Some(2), "as for a wrong name");
    cluster.assert_refused(
        &["settings", "set", "RESERVATION_MS=300"],
        &["RESERVATION_MS would be 300 with ELECTION_TIMEOUT_MS 200", "at least 800"],
    );
    let usage = cluster.operate(&["settings", "set", "ELECTION_TIMEOUT_MS=100"]);
    assert_eq!(usage.status.code(), Some(2));
    // After a power failure all nodes use the changed settings, whatever their own settings are.
    // Each node reports where its own differ, and that RESERVATION_MS is below four of its longer
    // election timeouts.
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.set("MAX_N", 50);
        node.set("ELECTION_TIMEOUT_MS", 600);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    assert!(shows(&cluster, "MAX_N=300"));
    assert_gives_at_most(&cluster, 300);
    // A node may apply the change again only after its start. Then it first compares its own value
    // with the cluster's old one.
    wait_until("all nodes log that MAX_N differs", WAIT_MAX, || {
        let differs = |log: &str| {
            let (_, after) = log.split_once("\"setting\":\"MAX_N\",\"here\":\"50\"")?;
            Some(["\"cluster\":\"300\"", "\"after\":\"300\""].iter().any(|it| after.contains(it)))
        };
        cluster.nodes.iter().all(|node| differs(&node.log()) == Some(true))
    });
    for words in [
        "a setting of this node differs from the cluster's",
        "is below four ELECTION_TIMEOUT_MS of this node",
        "epicepoch settings set RESERVATION_MS=3000",
    ] {
        // A node that is ready may apply the log entry later.
        wait_until(&format!("all nodes log {words:?}"), WAIT_MAX, || {
            cluster.nodes.iter().all(|node| node.log().contains(words))
        });
    }
    let said = String::from_utf8(cluster.operate(&["tune"]).stdout).expect("UTF-8");
    assert!(said.contains("epicepoch settings set RESERVATION_MS=3000"), "{said}");
    cluster.order(&["settings", "set", "RESERVATION_MS=3000"]);
    cluster.assert_well();
}

/// Commands refuse, or warn of, values of `LEADER_ZONES` that do not have the effect that the
/// operator expects. `--force` sets a zone in which there is no node yet.
#[test]
fn leadership_moves_to_a_preferred_zone_and_operators_are_told_what_contradicts_it() {
    let mut cluster = Cluster::down(&[("LEADER_ZONES", "c,b,neverland")]);
    for (node, zone) in cluster.nodes.iter_mut().zip(["a", "b", "c"]) {
        node.set("ZONE", zone);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    wait_until("the preferred one leads", PREFERRED_MAX, || cluster.nodes[2].is_leader());
    wait_until("a leader reports the empty zone", PREFERRED_MAX, || {
        let words = "\"unknown\":\"neverland\"";
        cluster.nodes.iter().any(|node| node.log().contains(words))
    });
    wait_until("operators are told", WAIT_MAX, || {
        let listed = told(&cluster, &["member", "list"]);
        listed.contains("LEADER_ZONES names \"neverland\", and no voter is in that zone")
    });
    wait_until("the zone of each node is listed", WAIT_MAX, || {
        let listed = list(&cluster);
        (0..3).all(|at| listed["members"][at]["zone"] == ["a", "b", "c"][at])
    });
    // A handover that will be undone for a better zone is done, with a warning.
    let mut warning = String::new();
    wait_until("the node takes over", WAIT_MAX, || {
        let output = cluster.operate(&["leader", "transfer", "--to", "1"]);
        warning = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success()
    });
    let words = "warning: LEADER_ZONES prefers node 2, 3 to node 1: ";
    assert!(warning.starts_with(words) && warning.contains("settings set"), "{warning}");
    // A new leader does not know all zones at once. Until then it accepts the value, and the
    // command prints a warning. The leader does not check a zone that is already set, so each
    // attempt names another zone.
    let mut attempt = 0;
    wait_until("a leader that knows all zones refuses", WAIT_MAX, || {
        attempt += 1;
        let set = format!("LEADER_ZONES=a,typo{attempt}");
        let output = cluster.operate(&["settings", "set", &set]);
        let said = String::from_utf8_lossy(&output.stderr);
        let unknown = format!("would name \"typo{attempt}\", and no voter is in that zone");
        if output.status.success() {
            let words = format!("warning: LEADER_ZONES names \"typo{attempt}\"");
            assert!(said.starts_with(&words), "{said}");
        }
        let refusal = [&unknown, "a,b,c:", "--force"];
        output.status.code() == Some(1) && refusal.iter().all(|words| said.contains(words))
    });
    let forced = cluster.operate(&["settings", "set", "LEADER_ZONES=a,new", "--force"]);
    let [said, warning] = [forced.stdout, forced.stderr].map(String::from_utf8);
    assert_eq!(forced.status.code(), Some(0), "{warning:?}");
    assert!(said.expect("UTF-8").contains("LEADER_ZONES=a,new\n"));
    assert!(warning.expect("UTF-8").starts_with("warning: LEADER_ZONES names \"new\""));
    cluster.assert_well();
}
