//! Measures what an idle node costs, and how fast a node restarts. A release build must keep the
//! promised bounds. A test build is not optimised, so its bounds are wider.

use std::time::{Duration, Instant};

use crate::support::node::is_test_build;
use crate::support::process::{processor_time, resident_bytes, wakeups};
use crate::support::{Cluster, Node, alone, let_pass, millis, say};

/// An idle node of a release build uses at most this share of one core.
const IDLE_SHARE_MAX: f64 = 0.01;
/// The threads of an idle node are woken at most this often a second, in any build.
const WAKEUPS_MAX: f64 = 300.0;
/// An idle node uses at most this much memory, in bytes. The first value is for a release build,
/// the second for a test build.
const RESIDENT_MAX: [u64; 2] = [30 << 20, 60 << 20];
/// How long idle nodes are observed at a time.
const OBSERVED: Duration = Duration::from_secs(4);
/// The same work costs more processor time while other programs use the machine's caches. So nodes
/// are observed up to this often, and the least of each counts.
const OBSERVATIONS_MAX: usize = 3;
/// Longest time from a restart until the node is ready: a few elections.
const RESTART_MAX: Duration = Duration::from_secs(5);

/// What a node needs while it is idle.
#[derive(Clone, Copy, Debug)]
struct Idle {
    /// The share of one core.
    share: f64,
    /// How often its threads are woken, per second.
    wakeups: f64,
}

/// An idle node of a release build may use 1 % of a core and 30 MiB; of a test build, 60 MiB. In
/// both, its threads may be woken 300 times a second: that count does not depend on the
/// speed of the machine and on what else it does.
#[test]
fn an_idle_node_takes_little_of_a_core_and_of_memory() {
    let _alone = alone();
    let is_test_build = is_test_build();
    let keeps =
        |idle: Idle| idle.wakeups <= WAKEUPS_MAX && (is_test_build || idle.share <= IDLE_SHARE_MAX);
    let cluster = Cluster::start();
    let_pass(Duration::from_secs(1));
    let mut least = vec![Idle { share: f64::INFINITY, wakeups: f64::INFINITY }; 3];
    for _ in 0..OBSERVATIONS_MAX {
        for (least, idle) in least.iter_mut().zip(observe(&cluster)) {
            least.share = least.share.min(idle.share);
            least.wakeups = least.wakeups.min(idle.wakeups);
        }
        if least.iter().all(|idle| keeps(*idle)) {
            break;
        }
    }
    for (node, idle) in cluster.nodes.iter().zip(least) {
        let resident = resident_bytes(node.pid());
        say(&format!(
            "idle node {}: {:.2} % of a core, {:.0} wake-ups a second, {:.1} MB resident",
            node.id,
            idle.share * 100.0,
            idle.wakeups,
            resident as f64 / 1e6
        ));
        assert!(keeps(idle), "node {} takes {idle:?}", node.id);
        let resident_max = RESIDENT_MAX[usize::from(is_test_build)];
        assert!(resident <= resident_max, "node {} takes {resident} bytes", node.id);
    }
}

/// What each node needs while time passes.
fn observe(cluster: &Cluster) -> Vec<Idle> {
    let spent = |node: &Node| (processor_time(node.pid()), wakeups(node.pid()));
    let before: Vec<_> = cluster.nodes.iter().map(spent).collect();
    let from = Instant::now();
    let_pass(OBSERVED);
    let needed = cluster.nodes.iter().zip(before).map(|(node, (time, woken))| {
        let (time_now, woken_now) = spent(node);
        let seconds = from.elapsed().as_secs_f64();
        Idle {
            share: time_now.saturating_sub(time).as_secs_f64() / seconds,
            wakeups: woken_now.saturating_sub(woken) as f64 / seconds,
        }
    });
    needed.collect()
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
