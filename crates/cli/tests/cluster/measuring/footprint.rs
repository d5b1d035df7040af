//! Measures what an idle node costs, and how fast a node restarts. A release build has to keep the
//! promised bounds. A test build, which is not optimised, has wider ones.

use std::time::{Duration, Instant};

use crate::support::node::is_test_build;
use crate::support::process::{processor_time, resident_bytes};
use crate::support::{Cluster, Node, alone, let_pass, millis, say};

/// Largest share of one core for an idle node: of a release build, of a test build.
const IDLE_SHARE_MAX: [f64; 2] = [0.01, 0.03];
/// An idle node uses at most this much memory, bytes: as a release build, as a test build.
const RESIDENT_MAX: [u64; 2] = [30 << 20, 60 << 20];
/// How long idle nodes are observed.
const OBSERVED: Duration = Duration::from_secs(4);
/// Longest time from a restart until the node is ready: a few elections.
const RESTART_MAX: Duration = Duration::from_secs(5);

/// A release build may use 1 % of a core and 30 MiB, a test build 3 % and 60 MiB.
#[test]
fn an_idle_node_takes_little_of_a_core_and_of_memory() {
    let _alone = alone();
    let build = usize::from(is_test_build());
    let cluster = Cluster::start();
    let_pass(Duration::from_secs(1));
    let spent = |node: &Node| processor_time(node.pid());
    let before: Vec<Duration> = cluster.nodes.iter().map(spent).collect();
    let from = Instant::now();
    let_pass(OBSERVED);
    for (node, before) in cluster.nodes.iter().zip(before) {
        let busy = spent(node).saturating_sub(before);
        let share = busy.as_secs_f64() / from.elapsed().as_secs_f64();
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

/// Each restart takes at most 5 s.
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
