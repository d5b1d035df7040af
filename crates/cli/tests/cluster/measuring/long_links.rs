//! The leader is lost on links with round trips of 80 ms, with the settings that `epicepoch tune`
//! advises for such links. Measures how long clients get no answer.

use std::time::{Duration, Instant};

use epicepoch_link::Fault;

use crate::support::{Cluster, LinkedCluster, Silence, WAIT_MAX, Watch, alone, outages};

/// The settings that `epicepoch tune` advises for round trips of 80 ms. The defaults of the
/// heartbeat and of the reservation follow from these settings.
const ADVISED: [(&str, &str); 2] = [("ELECTION_TIMEOUT_MS", "800"), ("REQUEST_TIMEOUT_MS", "1650")];
/// Delay in one direction, as between two coasts of a continent. A round trip takes 80 ms.
const COAST: Fault = Fault::delay(Duration::from_millis(40));
/// `(p50, p99)` of the time without an answer, ms, as `docs/topologies.md` promises it: when the
/// leader's links are cut silently, and when the leader is killed (`KILLED_MS`).
const SILENT_MS: (u64, u64) = (1700, 2800);
const KILLED_MS: (u64, u64) = (600, 800);

/// The leader is killed, or its links are cut silently. Another test shows that `epicepoch tune`
/// advises these settings: `links_that_are_too_long_for_the_settings_are_reported_with_advice`.
#[test]
fn a_leader_lost_on_links_of_80_ms_is_replaced_in_the_promised_time() {
    let _alone = alone();
    let cluster = Cluster::down(&ADVISED);
    let mut cluster = LinkedCluster::start_of(cluster, 9);
    cluster.set_all(COAST);
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    let (mut killed, mut silent) = (Vec::new(), Vec::new());
    for _ in 0..outages(3) {
        let leader = cluster.wait_for_leader();
        watch.wait_for_service_since(Instant::now());
        let from = Instant::now();
        cluster.nodes[leader].kill();
        watch.wait_for_service_since(Instant::now());
        killed.push((from, Instant::now()));
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
        let leader = cluster.wait_for_leader();
        watch.wait_for_service_since(Instant::now());
        let from = Instant::now();
        cluster.set_outgoing(leader, Fault::blackhole());
        cluster.set_incoming(leader, Fault::blackhole());
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        watch.wait_for_service_since(Instant::now());
        silent.push((from, Instant::now()));
        cluster.set_outgoing(leader, COAST);
        cluster.set_incoming(leader, COAST);
        cluster.wait_until_ready();
    }
    cluster.assert_well();
    let seen = watch.finish();
    Silence::of("leader killed, links of 80 ms", &seen, &killed).assert_promised(KILLED_MS);
    Silence::of("leader cut off silently, links of 80 ms", &seen, &silent)
        .assert_promised(SILENT_MS);
}
