//! Measures what an idle node costs, and how fast a node restarts. A test build is not optimised,
//! so its bounds are wider.

use std::time::{Duration, Instant};

use crate::support::node::is_test_build;
use crate::support::process::{processor_time, processor_time_of_thread, resident_bytes, wakeups};
use crate::support::{Cluster, Node, alone, let_pass, millis, say};

/// The threads of an idle node are woken at most this often a second.
const WAKEUPS_MAX: f64 = 300.0;
/// A wake-up of an idle node takes at most so many times the processor time of a thread that only
/// sleeps, on the same machine at the same time. The first value is for a release build, the second
/// for a test build. With 8 us for a thread that only sleeps, an idle release build then takes less
/// than 1 % of a core.
const COST_MAX: [f64; 2] = [4.0, 6.0];
/// An idle node uses at most this much memory, in bytes. The first value is for a release build,
/// the second for a test build.
const RESIDENT_MAX: [u64; 2] = [20 << 20, 30 << 20];
/// How long idle nodes are observed at a time.
const OBSERVED: Duration = Duration::from_secs(4);
/// How long the thread that only sleeps sleeps at a time: it wakes about as often as a node.
const SLEEP: Duration = Duration::from_millis(4);
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
    /// The processor time of a wake-up, divided by that of a thread that only sleeps.
    cost: f64,
}

/// An idle node is woken at most 300 times a second. A wake-up costs at most 4 times what it costs
/// a thread that only sleeps, or 6 times in a test build. The node uses at most 20 MiB, or 30 MiB
/// in a test build.
#[test]
fn an_idle_node_takes_little_of_a_core_and_of_memory() {
    let _alone = alone();
    let build = usize::from(is_test_build());
    let keeps = |idle: Idle| idle.wakeups <= WAKEUPS_MAX && idle.cost <= COST_MAX[build];
    let cluster = Cluster::start();
    let_pass(Duration::from_secs(1));
    let mut least = observe(&cluster);
    for _ in 1..OBSERVATIONS_MAX {
        if least.iter().all(|idle| keeps(*idle)) {
            break;
        }
        for (least, idle) in least.iter_mut().zip(observe(&cluster)) {
            least.share = least.share.min(idle.share);
            least.wakeups = least.wakeups.min(idle.wakeups);
            least.cost = least.cost.min(idle.cost);
        }
    }
    for (node, idle) in cluster.nodes.iter().zip(least) {
        let resident = resident_bytes(node.pid());
        say(&format!(
            "idle node {}: {:.2} % of a core, {:.0} wake-ups a second, each {:.1} times a sleep, \
             {:.1} MB resident",
            node.id,
            idle.share * 100.0,
            idle.wakeups,
            idle.cost,
            resident as f64 / 1e6
        ));
        assert!(keeps(idle), "node {} takes {idle:?}", node.id);
        assert!(resident <= RESIDENT_MAX[build], "node {} takes {resident} bytes", node.id);
    }
}

/// What each node needs while time passes.
fn observe(cluster: &Cluster) -> Vec<Idle> {
    let spent = |node: &Node| (processor_time(node.pid()), wakeups(node.pid()));
    let before: Vec<_> = cluster.nodes.iter().map(spent).collect();
    let from = Instant::now();
    let sleep = cost_of_a_sleep();
    let needed = cluster.nodes.iter().zip(before).map(|(node, (time, woken))| {
        let (time_now, woken_now) = spent(node);
        let seconds = from.elapsed().as_secs_f64();
        let (time, woken) = (time_now.saturating_sub(time), woken_now.saturating_sub(woken).max(1));
        Idle {
            share: time.as_secs_f64() / seconds,
            wakeups: woken as f64 / seconds,
            cost: time.as_secs_f64() / woken as f64 / sleep.as_secs_f64(),
        }
    });
    needed.collect()
}

/// Sleeps again and again for the time of an observation, and returns the processor time of one
/// sleep.
fn cost_of_a_sleep() -> Duration {
    let thread = std::thread::spawn(|| {
        let (before, until) = (processor_time_of_thread(), Instant::now() + OBSERVED);
        let mut sleeps = 0;
        while Instant::now() < until {
            let_pass(SLEEP);
            sleeps += 1;
        }
        processor_time_of_thread().saturating_sub(before) / sleeps
    });
    thread.join().expect("the thread sleeps")
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
