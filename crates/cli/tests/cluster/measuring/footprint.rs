//! Measures what an idle node costs, and how fast a node restarts. A release build must keep the
//! promised bounds. A test build is not optimised, so its bounds are wider.

use std::time::{Duration, Instant};

use crate::support::node::is_test_build;
use crate::support::process::{processor_time, resident_bytes};
use crate::support::{Cluster, Node, alone, let_pass, millis, say};

/// An idle node uses at most this share of one core. The first value is for a release build, the
/// second for a test build.
const IDLE_SHARE_MAX: [f64; 2] = [0.01, 0.03];
/// An idle node uses at most this much memory, in bytes. The first value is for a release build,
/// the second for a test build.
const RESIDENT_MAX: [u64; 2] = [30 << 20, 60 << 20];
/// How long idle nodes are observed at a time.
const OBSERVED: Duration = Duration::from_secs(4);
/// The same work costs more processor time while other programs use the machine's caches. So nodes
/// are observed up to this often, and the least share of each counts.
const OBSERVATIONS_MAX: usize = 3;
/// Longest time from a restart until the node is ready: a few elections.
const RESTART_MAX: Duration = Duration::from_secs(5);

/// An idle node of a release build may use 1 % of a core and 30 MiB; of a test build, 3 % and 60
/// MiB.
#[test]
fn an_idle_node_takes_little_of_a_core_and_of_memory() {
    let _alone = alone();
    let build = usize::from(is_test_build());
    let cluster = Cluster::start();
    let_pass(Duration::from_secs(1));
    let mut least = vec![f64::INFINITY; cluster.nodes.len()];
    for _ in 0..OBSERVATIONS_MAX {
        for (least, share) in least.iter_mut().zip(shares(&cluster)) {
            *least = least.min(share);
        }
        if least.iter().all(|share| *share <= IDLE_SHARE_MAX[build]) {
            break;
        }
    }
    for (node, share) in cluster.nodes.iter().zip(least) {
        let resident = resident_bytes(node.pid());
        say(&format!(
            "idle node {}: {:.2} % of a core, {:.1} MB resident",
            node.id,
            share * 100.0,
            resident as f64 / 1e6
        ));
        assert!(share <= IDLE_SHARE_MAX[build], "node {} takes {share} of a core", node.id);
        assert!(resident <= RESIDENT_MAX[build], "node {} takes {resident} bytes", node.id);
    }
}

/// The share of a core that each node uses while time passes.
fn shares(cluster: &Cluster) -> Vec<f64> {
    let spent = |node: &Node| processor_time(node.pid());
    let before: Vec<Duration> = cluster.nodes.iter().map(spent).collect();
    let from = Instant::now();
    let_pass(OBSERVED);
    let busy =
        cluster.nodes.iter().zip(before).map(|(node, before)| spent(node).saturating_sub(before));
    busy.map(|busy| busy.as_secs_f64() / from.elapsed().as_secs_f64()).collect()
}

/// A restarted node is ready within 5 s, and so is a cluster whose nodes are all restarted.
#[test]
fn a_restarted_node_and_a_restarted_cluster_are_ready_soon() {
    let _alone = alone();
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let follower = cluster.others(leader)[0];
    let mut restarts = Vec::new();
    for (what, index) in [("a follower", follower), ("the leader", leader)] {
        cluster.nodes[index].kill();
        cluster.nodes[index].start();
        restarts.push((what, cluster.time_until_ready()));
    }
    cluster.kill_all();
    cluster.start_all();
    restarts.push(("the whole cluster", cluster.time_until_ready()));
    for (what, time) in restarts {
        say(&format!("restart to ready, {what}: {:.0} ms", millis(time)));
        assert!(time <= RESTART_MAX, "{what} took {time:?}");
    }
}
