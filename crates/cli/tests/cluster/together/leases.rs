//! Tests of leader leases. Every node is told to trust its clock, because the machine of the tests
//! is often virtual.

use std::time::{Duration, Instant};

use epicepoch_bench::Outcome;

use crate::support::late::Late;
use crate::support::operator::transferred;
use crate::support::wire::Wire;
use crate::support::{Cluster, Node, WAIT_MAX, Watch, has_held_for, let_pass, wait_until};

/// The lease of a calm cluster: as long as its election timeout.
const CALM_LEASE_MS: u64 = 1_000;
/// A leader is paused for so long: longer than its lease, and than the others wait for it.
const PAUSE: Duration = Duration::from_millis(1_500);
/// The log line of a leader that waits for the lease of another.
pub(super) const WAITS: &str = "until the lease of an earlier leader is over";

pub(super) const PATH: &str = "/timestamp?guarantee=lease";

/// Starts a calm cluster with long leases.
fn calm(settings: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::down_calm(settings);
    for node in &mut cluster.nodes {
        node.set("LEASE_CLOCK", "trusted");
        node.set("LEASE_MS", CALM_LEASE_MS);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    cluster
}

/// The proof of a node's answer (`epicepoch-proof`), or the code of its error.
fn proof(node: &Node, path: &str) -> Option<String> {
    let answer = node.ask(path)?;
    let said = if answer.status == 200 { answer.header("epicepoch-proof") } else { answer.error() };
    Some(said.unwrap_or("nothing").to_owned())
}

/// Waits until a lease proves an answer. Returns the index of the leader that gave it.
#[track_caller]
pub(super) fn wait_for_lease(cluster: &Cluster) -> usize {
    let mut leader = None;
    wait_until("a lease proves an answer", WAIT_MAX, || {
        let is_by_lease = |node: &Node| proof(node, PATH).as_deref() == Some("lease");
        leader = cluster.nodes.iter().position(is_by_lease);
        leader.is_some()
    });
    leader.expect("the wait is over")
}

/// Both followers stop. Until its lease is over, the leader answers requests that accept it.
#[test]
fn a_leader_with_a_lease_asks_nobody_and_answers_nothing_once_it_is_over() {
    let mut cluster = calm(&[]);
    let leader = wait_for_lease(&cluster);
    let said = |path: &str| proof(&cluster.nodes[leader], path).expect("an answer");
    assert_eq!(said("/timestamp?guarantee=quorum"), "round");
    assert_eq!(said("/timestamp"), "nothing", "a round has proved it, as for every plain request");
    let shown = cluster.order(&["settings", "list"]);
    for line in [format!("LEASE_MS={CALM_LEASE_MS}"), "GUARANTEE_DEFAULT=quorum".into()] {
        assert!(shown.lines().any(|it| it == line), "{line} in {shown}");
    }
    let others = cluster.others(leader);
    assert_eq!(wait_for_lease(&cluster), leader);
    for other in &others {
        cluster.nodes[*other].pause();
    }
    let paused = Instant::now();
    let mut wire = Wire::open(cluster.nodes[leader].http(), WAIT_MAX).expect("the leader runs");
    let mut by_lease = 0;
    while paused.elapsed() < 2 * PAUSE {
        let asked = paused.elapsed();
        let answer = wire.get(PATH).expect("an answer");
        match answer.header("epicepoch-proof") {
            // The last marked reservation may have been proposed just before the pause.
            Some("lease") if answer.status == 200 => {
                by_lease += 1;
                assert!(asked < Duration::from_millis(CALM_LEASE_MS), "the lease is over");
            }
            Some(other) => panic!("{other}: no quorum runs"),
            None => assert_eq!(answer.status, 503, "{answer:?}"),
        }
    }
    assert!(by_lease > 0, "the leader answered by its lease");
    for other in others {
        cluster.nodes[other].resume();
    }
    cluster.assert_well();
    wait_for_lease(&cluster);
}

/// A leader with a lease is paused for longer than the lease, while others answer. All requests of
/// the watch accept a lease, because that is the cluster's default. Each answer is checked.
#[test]
fn a_paused_leader_whose_lease_is_over_answers_nothing_out_of_order() {
    let settings =
        [("LEASE_CLOCK", "trusted"), ("LEASE_MS", "200"), ("GUARANTEE_DEFAULT", "lease")];
    let mut cluster = Cluster::start_with(&settings);
    let watch = Watch::start(&cluster);
    let (mut late_answers, mut paused_with_lease) = (Vec::new(), 0);
    for _ in 0..3 {
        let leader = wait_for_lease(&cluster);
        let addr = cluster.nodes[leader].http();
        let open = || Wire::open(addr, WAIT_MAX).expect("the kernel accepts");
        let mut known: Vec<Wire> = (0..8).map(|_| open()).collect();
        for wire in &mut known {
            let answer = wire.get(PATH).expect("the leader runs");
            paused_with_lease += u64::from(answer.header("epicepoch-proof") == Some("lease"));
        }
        cluster.nodes[leader].pause();
        let paused = Instant::now();
        // Half of the requests arrive while the lease lasts, the others while another node leads.
        let rest = known.split_off(4);
        let mut late: Vec<Late> = known.into_iter().map(|wire| Late::send(wire, 4)).collect();
        watch.wait_for_service_since(paused);
        late.extend(rest.into_iter().map(|wire| Late::send(wire, 4)));
        late.extend((0..8).map(|_| Late::send(open(), 2)));
        let_pass(PAUSE.saturating_sub(paused.elapsed()));
        cluster.nodes[leader].resume();
        let id = cluster.nodes[leader].id;
        for it in late {
            it.collect(id, &mut late_answers);
        }
        cluster.wait_until_ready();
    }
    assert!(paused_with_lease > 0);
    cluster.assert_well();
    let asked = late_answers.len();
    let wrong = late_answers.iter().filter(|it| matches!(it.outcome, Outcome::Broken(_)));
    assert_eq!((wrong.count(), asked > 0), (0, true));
    watch.finish_with(&late_answers);
    let by_lease = |node: &Node| {
        node.ask("/metrics").is_some_and(|answer| {
            let line = "epicepoch_proofs_total{by=\"lease\"} ";
            answer.text().lines().any(|it| it.strip_prefix(line).is_some_and(|it| it != "0"))
        })
    };
    assert!(cluster.nodes.iter().any(by_lease), "leases have proved answers");
}

/// After a kill, the next leader waits until the lease is over. After a handover it does not.
#[test]
fn a_killed_leaders_lease_is_waited_for_and_a_released_one_is_not() {
    let mut cluster = calm(&[("GUARANTEE_DEFAULT", "lease")]);
    let watch = Watch::start(&cluster);
    let leader = wait_for_lease(&cluster);
    let to = cluster.others(leader)[0];
    transferred(&cluster, &["leader", "transfer", "--to", &cluster.nodes[to].id.to_string()]);
    let leader = wait_for_lease(&cluster);
    assert_eq!(leader, to);
    assert!(!cluster.nodes[leader].log().contains(WAITS), "the lease was released");
    let lines = |cluster: &Cluster| {
        cluster.nodes.iter().map(|node| node.log().matches(WAITS).count()).sum::<usize>()
    };
    let before = lines(&cluster);
    cluster.nodes[leader].kill();
    let killed = Instant::now();
    let next = cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    watch.wait_for_service_since(killed);
    assert!(lines(&cluster) > before, "node {} has waited", cluster.nodes[next].id);
    cluster.nodes[leader].start();
    cluster.assert_well();
    watch.finish();
}

/// The settings ask for leases, and no node may take one.
#[test]
fn a_node_whose_clock_is_not_trusted_says_so_and_answers_by_rounds() {
    let mut cluster = Cluster::down_calm(&[("LEASE_CLOCK", "never"), ("LEASE_MS", "200")]);
    cluster.start_all();
    cluster.wait_until_ready();
    wait_until("every node says it", WAIT_MAX, || {
        let is_told = |node: &Node| node.log().contains("LEASE_CLOCK is never");
        cluster.nodes.iter().all(is_told)
    });
    let leader = cluster.wait_for_leader();
    let node = &cluster.nodes[leader];
    let is_by_round = || ["round", "NO_QUORUM"].contains(&&*proof(node, PATH).unwrap_or_default());
    assert!(has_held_for(Duration::from_millis(300), is_by_round));
    let status = node.ask("/status").expect("a status").text();
    assert!(status.contains("\"leaseClock\":\"never\""), "{status}");
    cluster.assert_refused(
        &["settings", "set", "LEASE_MS=100"],
        &["LEASE_MS must be 0", "LEASE_CLOCK=trusted"],
    );
    let said = cluster.order(&["settings", "set", "LEASE_MS=0", "GUARANTEE_DEFAULT=lease"]);
    assert!(said.contains("LEASE_MS=0\n") && said.contains("GUARANTEE_DEFAULT=lease\n"), "{said}");
    let plain = proof(&cluster.nodes[cluster.wait_for_leader()], "/timestamp");
    assert_eq!(plain.as_deref(), Some("nothing"), "a round");
    cluster.assert_well();
}
