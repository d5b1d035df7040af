//! Leadership goes to the zone where it is wanted, and nobody's call fails for it.

use std::time::{Duration, Instant};

use crate::clients::Calling;
use crate::members::list;
use crate::support::{
    Campaigns, Cluster, Node, PATIENCE, Watch, has_held_for, undisturbed, wait_until,
};

/// Five seconds of calm, a handover, and a machine under load.
const PREFERRED_MAX: Duration = Duration::from_secs(40);
/// For how long leadership has to stay: longer than the time after which it is handed over.
const STAYS: Duration = Duration::from_secs(7);

/// Three nodes, each in its zone; leaders should be in these, if any are named.
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

/// Why a leader hands over that is not where it is wanted.
const PREFERRED: &str = "Preferred";

/// How often a node has said that it hands over for that.
fn preferences(node: &Node) -> usize {
    node.log().matches(PREFERRED).count()
}

#[test]
fn leadership_goes_to_its_zone_comes_back_after_a_crash_and_stays() {
    let mut cluster = placed(["far", "middle", "near"], "near,middle");
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
    let listed = cluster.order(&["member", "list"]);
    assert!(["far", "middle", "near"].iter().all(|zone| listed.contains(zone)), "{listed}");
    cluster.assert_well();
    let operations = calling.finish();
    watch.finish_with(&operations);
}

#[test]
fn a_handover_that_will_be_undone_for_a_better_place_says_so_and_what_keeps_it() {
    let mut cluster = placed(["far", "middle", "near"], "near,middle");
    wait_until("the near one leads", PREFERRED_MAX, || cluster.nodes[2].is_leader());
    // A leader learns where the others are from what they answer.
    wait_until("it knows all places", PATIENCE, || {
        let listed = cluster.order(&["member", "list"]);
        ["far", "middle", "near"].iter().all(|zone| listed.contains(zone))
    });
    let far = ["leader", "transfer", "--to", "1"];
    let said = |cluster: &Cluster| {
        let mut said = None;
        wait_until("node 1 takes over", PATIENCE, || {
            let output = cluster.operate(&far);
            said = Some(String::from_utf8_lossy(&output.stderr).into_owned());
            output.status.success()
        });
        said.expect("an order")
    };
    let warning = said(&cluster);
    let words = "warning: LEADER_ZONES prefers node 2, 3 to node 1: ";
    assert!(warning.starts_with(words) && warning.contains("settings set"), "{warning}");
    wait_until("node 1 leads", PATIENCE, || cluster.nodes[0].is_leader());
    wait_until("it is undone", PREFERRED_MAX, || !cluster.nodes[0].is_leader());
    cluster.order(&["settings", "set", "LEADER_ZONES="]);
    if !cluster.nodes[0].is_leader() {
        assert_eq!(said(&cluster), "", "nobody is preferred any more");
    }
    cluster.assert_well();
}

#[test]
fn a_zone_that_nobody_is_in_is_an_error_in_words() {
    let mut cluster = placed(["a", "a", "b"], "b,neverland");
    wait_until("the leader says so", PREFERRED_MAX, || {
        let said = |node: &Node| node.log().contains("\"unknown\":\"neverland\"");
        cluster.nodes.iter().any(said)
    });
    wait_until("operators are told", PATIENCE, || {
        let words = "LEADER_ZONES names \"neverland\", and no voter is in that zone";
        cluster.order(&["member", "list"]).contains(words)
    });
    cluster.assert_well();
}

#[test]
fn a_zone_that_nobody_is_in_is_not_set_by_command_unless_it_may_be_there() {
    let mut cluster = placed(["a", "b", "c"], "");
    let set = |zones: &'static str| ["settings", "set", zones];
    let have_said = |cluster: &Cluster, count: usize| {
        let listed = list(cluster);
        (0..count).all(|at| listed["members"][at]["zone"] == ["a", "b", "c"][at])
    };
    wait_until("all have said where they are", PATIENCE, || have_said(&cluster, 3));
    wait_until("there are settings", PATIENCE, || {
        cluster.order(&["settings", "list"]).contains("LEADER_ZONES=\n")
    });
    cluster.assert_refused(
        &set("LEADER_ZONES=a,typo"),
        &["would name \"typo\", and no voter is in that zone", "voters are in a,b,c:", "--force"],
    );
    assert_eq!(cluster.order(&["settings", "list"]).matches("LEADER_ZONES=\n").count(), 1);
    let doubted = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.operate(args);
        let (out, said) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
        assert!(said.starts_with("warning: LEADER_ZONES names"), "{args:?}: {said}");
        (String::from_utf8(out).expect("UTF-8"), said)
    };
    // A zone to come: whoever says so is believed, and is told.
    let (out, said) = doubted(&cluster, &["settings", "set", "LEADER_ZONES=a,new", "--force"]);
    assert!(out.contains("LEADER_ZONES=a,new\n") && said.contains("\"new\""), "{out} {said}");
    assert!(!said.contains("not known"), "{said}");
    // It keeps no other setting from being changed.
    let output = cluster.operate(&["settings", "set", "MAX_N=300"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    cluster.order(&set("LEADER_ZONES="));
    // Who may be there is not heard: it is set, with a word.
    cluster.kill_all();
    cluster.nodes[0].start();
    cluster.nodes[1].start();
    wait_until("the other two serve", PATIENCE, || cluster.nodes[..2].iter().any(Node::serves));
    wait_until("both have said where they are", PATIENCE, || have_said(&cluster, 2));
    let (out, said) = doubted(&cluster, &set("LEADER_ZONES=c,b"));
    assert!(out.contains("LEADER_ZONES=c,b\n"), "{out}");
    assert!(said.contains("\"c\"") && said.contains("just been met: 3;"), "{said}");
    cluster.nodes[2].start();
    cluster.wait_until_ready();
    // What counts already is not judged, so it is another order each time.
    let mut orders = ["LEADER_ZONES=b,c", "LEADER_ZONES=c,b"].into_iter().cycle();
    wait_until("node 3 has said where it is", PATIENCE, || {
        let output = cluster.operate(&set(orders.next().expect("another")));
        output.status.success() && output.stderr.is_empty()
    });
    cluster.assert_well();
}
