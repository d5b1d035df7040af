//! Leadership goes to the zone where it is wanted, and nobody's call fails for it.

use std::time::{Duration, Instant};

use crate::clients::Calling;
use crate::support::{Cluster, PATIENCE, Watch, holds_for, wait_until};

/// Five seconds of calm, a handover, and a machine under load.
const PREFERRED_MAX: Duration = Duration::from_secs(40);
/// For how long leadership has to stay: longer than the time after which it is handed over.
const STAYS: Duration = Duration::from_secs(7);

/// Three nodes, each in its zone, of which these should lead.
fn placed(zones: [&str; 3], leaders: &str) -> Cluster {
    let mut cluster = Cluster::down(&[("LEADER_ZONES", leaders)]);
    for (node, zone) in cluster.nodes.iter_mut().zip(zones) {
        node.set("ZONE", zone);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    cluster
}

#[test]
fn leadership_goes_to_its_zone_comes_back_after_a_crash_and_stays() {
    let mut cluster = placed(["far", "middle", "near"], "near,middle");
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let leads = |cluster: &Cluster, index: usize| cluster.nodes[index].is_leader();
    wait_until("the near one leads", PREFERRED_MAX, || leads(&cluster, 2));
    cluster.nodes[2].kill();
    watch.wait_for_service_since(Instant::now());
    wait_until("the next best leads", PREFERRED_MAX, || leads(&cluster, 1));
    cluster.nodes[2].start();
    wait_until("the near one leads again", PREFERRED_MAX, || leads(&cluster, 2));
    cluster.wait_until_ready();
    let term = cluster.nodes[2].metric("epicepoch_term");
    holds_for("leadership stays", STAYS, || {
        leads(&cluster, 2) && cluster.nodes[2].metric("epicepoch_term") == term
    });
    let listed = cluster.order(&["member", "list"]);
    assert!(["far", "middle", "near"].iter().all(|zone| listed.contains(zone)), "{listed}");
    assert!(cluster.nodes[1].log().contains("Preferred"), "it says why it hands over");
    cluster.assert_well();
    let operations = calling.finish();
    watch.finish_with(&operations);
}

#[test]
fn a_zone_that_nobody_is_in_is_an_error_in_words() {
    let mut cluster = placed(["a", "a", "b"], "b,neverland");
    wait_until("the leader says so", PREFERRED_MAX, || {
        let said = |node: &crate::support::Node| node.log().contains("\"unknown\":\"neverland\"");
        cluster.nodes.iter().any(said)
    });
    wait_until("operators are told", PATIENCE, || {
        let words = "LEADER_ZONES names \"neverland\", and no voter is in that zone";
        cluster.order(&["member", "list"]).contains(words)
    });
    cluster.assert_well();
}
