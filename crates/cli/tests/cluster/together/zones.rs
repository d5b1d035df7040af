//! Leadership moves to the zone that `LEADER_ZONES` prefers, and no call fails because of the move.

use crate::support::operator::list;
use crate::support::{
    Calling, Campaigns, Cluster, Node, WAIT_MAX, Watch, has_held_for, undisturbed, wait_until,
};
use std::time::{Duration, Instant};

/// Longest time until leadership is in a preferred zone. A leader waits for five quiet seconds
/// before it hands over; the rest is for a machine under load.
const PREFERRED_MAX: Duration = Duration::from_secs(40);
/// Leadership must stay where it is for this long. That is longer than the five quiet seconds after
/// which a leader hands over to a better zone.
const STAYS: Duration = Duration::from_secs(7);

/// Starts three nodes in these zones. `leaders` is the value of `LEADER_ZONES`, the zones in which
/// leaders should be.
fn placed(zones: [&str; 3], leaders: &str) -> Cluster {
    let wanted = [("LEADER_ZONES", leaders)];
    let mut cluster = Cluster::down(if leaders.is_empty() { &[] } else { &wanted });
    for (node, zone) in cluster.nodes.iter_mut().zip(zones) {
        node.set("ZONE", zone);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    cluster
}

/// A leader that hands leadership to a better zone logs this word as the reason.
const PREFERRED: &str = "Preferred";

/// Returns how often a node has handed leadership to a better zone.
fn preferences(node: &Node) -> usize {
    node.log().matches(PREFERRED).count()
}

#[test]
fn leadership_returns_to_its_preferred_zone_after_a_crash_and_stays() {
    let mut cluster = placed(["far", "middle", "near"], "near,middle,neverland");
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let leads = |cluster: &Cluster, index: usize| cluster.nodes[index].is_leader();
    wait_until("the near one leads", PREFERRED_MAX, || leads(&cluster, 2));
    undisturbed(|| {
        cluster.nodes[2].kill();
        watch.wait_for_service_since(Instant::now());
        wait_until("the next best leads", PREFERRED_MAX, || leads(&cluster, 1));
        let campaigns = Campaigns::so_far(&cluster);
        let before = preferences(&cluster.nodes[1]);
        cluster.nodes[2].start();
        wait_until("the near one leads again", PREFERRED_MAX, || leads(&cluster, 2));
        let asked = preferences(&cluster.nodes[1]) - before;
        campaigns.judge(&cluster, asked, asked > 0, "it says why it hands over")
    });
    undisturbed(|| {
        wait_until("the near one leads again", PREFERRED_MAX, || leads(&cluster, 2));
        cluster.wait_until_ready();
        let campaigns = Campaigns::so_far(&cluster);
        let term = cluster.nodes[2].metric("epicepoch_term");
        let stays = has_held_for(STAYS, || {
            leads(&cluster, 2) && cluster.nodes[2].metric("epicepoch_term") == term
        });
        campaigns.judge(&cluster, 0, stays, "leadership stays")
    });
    // `LEADER_ZONES` names a zone in which there is no voter. The leader logs an error, and
    // operators get a warning.
    wait_until("a leader reports the empty zone", PREFERRED_MAX, || {
        let words = "\"unknown\":\"neverland\"";
        cluster.nodes.iter().any(|node| node.log().contains(words))
    });
    wait_until("operators are told", WAIT_MAX, || {
        let listed = cluster.order(&["member", "list"]);
        let words = "LEADER_ZONES names \"neverland\", and no voter is in that zone";
        ["far", "middle", "near", words].iter().all(|part| listed.contains(part))
    });
    cluster.assert_well();
    let operations = calling.finish();
    watch.finish_with(&operations);
}

#[test]
fn a_handover_that_will_be_undone_for_a_better_zone_warns_and_names_the_setting() {
    let mut cluster = placed(["far", "middle", "near"], "near,middle");
    wait_until("the far one does not lead", PREFERRED_MAX, || !cluster.nodes[0].is_leader());
    // A leader learns the zones of the other nodes from their answers, so this takes a moment.
    wait_until("it knows all zones", WAIT_MAX, || {
        let listed = cluster.order(&["member", "list"]);
        ["far", "middle", "near"].iter().all(|zone| listed.contains(zone))
    });
    let said = |cluster: &Cluster, to: &str| {
        let mut said = None;
        wait_until("the node takes over", WAIT_MAX, || {
            let output = cluster.operate(&["leader", "transfer", "--to", to]);
            said = Some(String::from_utf8_lossy(&output.stderr).into_owned());
            output.status.success()
        });
        said.expect("an order")
    };
    let warning = said(&cluster, "1");
    let words = "warning: LEADER_ZONES prefers node 2, 3 to node 1: ";
    assert!(warning.starts_with(words) && warning.contains("settings set"), "{warning}");
    wait_until("there are settings", WAIT_MAX, || {
        cluster.order(&["settings", "list"]).contains("LEADER_ZONES=near,middle\n")
    });
    cluster.order(&["settings", "set", "LEADER_ZONES="]);
    let another = if cluster.nodes[0].is_leader() { "2" } else { "1" };
    assert_eq!(said(&cluster, another), "", "no zone is preferred any more");
    cluster.assert_well();
}

#[test]
fn a_zone_without_a_voter_is_refused_by_command_unless_it_is_forced_or_unknown() {
    let mut cluster = placed(["a", "b", "c"], "");
    let set = |zones: &'static str| ["settings", "set", zones];
    let are_known = |cluster: &Cluster, count: usize| {
        let listed = list(cluster);
        (0..count).all(|at| listed["members"][at]["zone"] == ["a", "b", "c"][at])
    };
    wait_until("all zones are known", WAIT_MAX, || are_known(&cluster, 3));
    wait_until("there are settings", WAIT_MAX, || {
        cluster.order(&["settings", "list"]).contains("LEADER_ZONES=\n")
    });
    cluster.assert_refused(
        &set("LEADER_ZONES=a,typo"),
        &["would name \"typo\", and no voter is in that zone", "voters are in a,b,c:", "--force"],
    );
    assert_eq!(cluster.order(&["settings", "list"]).matches("LEADER_ZONES=\n").count(), 1);
    let warned = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.operate(args);
        let (out, said) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
        assert!(said.starts_with("warning: LEADER_ZONES names"), "{args:?}: {said}");
        (String::from_utf8(out).expect("UTF-8"), said)
    };
    // With `--force`, the command sets a zone in which there is no node, and prints a warning.
    let (out, said) = warned(&cluster, &["settings", "set", "LEADER_ZONES=a,new", "--force"]);
    assert!(out.contains("LEADER_ZONES=a,new\n") && said.contains("\"new\""), "{out} {said}");
    assert!(!said.contains("not known"), "{said}");
    // Other settings can still be changed.
    let output = cluster.operate(&["settings", "set", "MAX_N=300"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    cluster.order(&set("LEADER_ZONES="));
    // Node 3 is down, so its zone is not known. It may be in zone c. So the command sets zone c
    // without `--force`, and prints a warning.
    cluster.kill_all();
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    wait_until("the other two serve", WAIT_MAX, || cluster.nodes[..2].iter().any(Node::serves));
    wait_until("both zones are known", WAIT_MAX, || are_known(&cluster, 2));
    let (out, said) = warned(&cluster, &set("LEADER_ZONES=c,b"));
    assert!(out.contains("LEADER_ZONES=c,b\n"), "{out}");
    assert!(said.contains("\"c\"") && said.contains("just been met: 3;"), "{said}");
    cluster.nodes[2].start();
    cluster.wait_until_ready();
    // The leader does not check a value that is already set. So each attempt sets another value
    // than the last one.
    let mut orders = ["LEADER_ZONES=b,c", "LEADER_ZONES=c,b"].into_iter().cycle();
    wait_until("the zone of node 3 is known", WAIT_MAX, || {
        let output = cluster.operate(&set(orders.next().expect("another")));
        output.status.success() && output.stderr.is_empty()
    });
    cluster.assert_well();
}
