//! A node reports in its metrics how long its machine stalled. So a measurement from outside can
//! tell a slow machine from a slow service.

use std::time::{Duration, Instant};

use crate::support::stalls::StallMeter;
use crate::support::{Cluster, WAIT_MAX, alone, let_pass, wait_until};

/// One node is paused. It reports a stall as long as the pause, and another node reports none.
#[test]
fn a_stall_of_the_machine_shows_in_the_metrics_of_the_node_that_it_hit() {
    const STALL: Duration = Duration::from_millis(700);
    let _alone = alone();
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let (hit, spared) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    let seen = |cluster: &Cluster, node: usize, name| cluster.nodes[node].metric(name);
    let looks = "epicepoch_hiccup_seconds_count";
    let before = seen(&cluster, hit, looks).expect("a node has a meter");
    wait_until("the meter looks again", WAIT_MAX, || seen(&cluster, hit, looks) > Some(before));

    let longest = "epicepoch_hiccup_max_seconds";
    let before = seen(&cluster, spared, longest).expect("a node has a meter");
    let (from, meter) = (Instant::now(), StallMeter::start());
    cluster.nodes[hit].pause();
    let_pass(STALL);
    cluster.nodes[hit].resume();
    // The node measures in periods. The last one may have ended just before the pause, so 0.1 s may
    // be missing.
    let expected = Some(STALL.as_secs_f64() - 0.1);
    wait_until("the stall shows", WAIT_MAX, || seen(&cluster, hit, longest) >= expected);
    let after = seen(&cluster, spared, longest).expect("a node has a meter");
    // If the machine itself stalls, both nodes report it. So the stalls that this test has measured
    // are allowed for.
    let machine = meter.stop().allowance(from, Instant::now()).as_secs_f64();
    let is_spared = after <= before || Some(after) < expected.map(|it| it + machine);
    assert!(
        is_spared,
        "node {spared} stalled for {after} s, before {before} s, machine {machine} s"
    );

    let pid = f64::from(cluster.nodes[hit].pid());
    assert_eq!(seen(&cluster, hit, "epicepoch_process_id"), Some(pid));
    let cost = "process_cpu_seconds_total";
    let before = seen(&cluster, hit, cost).expect("a node knows what it cost");
    wait_until("the node costs something", WAIT_MAX, || seen(&cluster, hit, cost) > Some(before));
}
