//! Tests `epicepoch probe` with a real cluster: its metrics show operators what clients see.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::node::binary;
use crate::support::wire::Wire;
use crate::support::{Cluster, WAIT_MAX, unused_port, wait_until};

struct Probe {
    child: Child,
    metrics: SocketAddr,
}

impl Probe {
    fn start(of: SocketAddr) -> Self {
        Self::start_over(of, "http1")
    }

    fn start_over(of: SocketAddr, transport: &str) -> Self {
        let metrics = SocketAddr::from(([127, 0, 0, 1], unused_port()));
        let child = Command::new(binary())
            .args(["probe", "--rate", "100", "--timeout", "2s", "--transport", transport])
            .arg(format!("--addr={of}"))
            .arg(format!("--metrics-bind={metrics}"))
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary can be started");
        Self { child, metrics }
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let answer = Wire::open(self.metrics, Duration::from_secs(2)).ok()?.get("/metrics").ok()?;
        let text = answer.text();
        let line = text.lines().find_map(|line| {
            line.strip_prefix("epicepoch_probe_")?.strip_prefix(name)?.strip_prefix(' ')
        });
        line?.parse().ok()
    }

    fn wait(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        wait_until(name, WAIT_MAX, || self.metric(name).is_some_and(&wanted));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // The process may have ended already, so an error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Rust client refuses the new history for ever. The probe must measure it, and must notice if
/// it were not above the old one.
#[test]
fn a_probe_over_the_rust_client_follows_a_restored_cluster_by_itself() {
    let mut cluster = Cluster::start_calm();
    let probe = Probe::start_over(cluster.nodes[0].http(), "client");
    probe.wait("answers_total", |it| it >= 50.0);
    let path = cluster.dir.path().join("a.backup").display().to_string();
    cluster.order(&["backup", "--out", &path]);
    cluster.kill_all();
    for node in &mut cluster.nodes {
        node.wipe();
        node.set("RESTORE", &path);
        node.set("RESTORE_LEASE_MS", 0);
    }
    cluster.start_all();
    cluster.wait_until_ready();
    probe.wait("restores_total", |it| it >= 1.0);
    let answers = probe.metric("answers_total").expect("a metric");
    probe.wait("answers_total", |it| it >= answers + 50.0);
    probe.wait("silence_seconds", |it| it < 0.5);
    assert_eq!(probe.metric("violations_total"), Some(0.0));
    assert_eq!(probe.metric("restores_total"), Some(1.0));
}

#[test]
fn a_probe_sees_what_clients_see_and_ends_on_sigterm() {
    let mut cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let follower = cluster.others(leader)[0];
    let mut probe = Probe::start(cluster.nodes[follower].http());
    probe.wait("answers_total", |it| it >= 50.0);
    probe.wait("targets", |it| it >= 3.0);
    let before = probe.metric("answers_total");
    wait_until("the probe goes on", WAIT_MAX, || probe.metric("answers_total") > before);
    assert_eq!(probe.metric("leader"), Some(cluster.nodes[leader].id as f64));

    cluster.nodes[leader].pause();
    cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
    cluster.nodes[leader].resume();
    // The leader was killed. The next election takes about one election timeout, which is a second
    // here. The probe gets no answer for so long; the test is content with half of it.
    probe.wait("gap_max_seconds", |it| it >= 0.5);
    probe.wait("silence_seconds", |it| it < 0.1);
    assert_eq!(probe.metric("violations_total"), Some(0.0));

    let pid = Pid::from_raw(probe.child.id() as i32).expect("a process id is not 0");
    kill_process(pid, Signal::TERM).expect("our own child can be signalled");
    let mut status = None;
    wait_until("the probe ends", WAIT_MAX, || {
        status = probe.child.try_wait().expect("our own child can be waited for");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}
