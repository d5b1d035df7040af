//! A short look at throughput and latency, so that a change that costs either is seen at once.
//! The figures of a test build on a shared machine are no claims; that nothing fails is one.

use std::time::Duration;

use epicepoch_bench::History;
use epicepoch_bench::load::{self, LoadConfig};

use crate::support::{Cluster, say};

#[test]
fn not_one_request_fails_under_load_that_follows_the_leader() {
    let cluster = Cluster::start_calm();
    let mut history = History::new(std::time::Instant::now());
    for connections in [1, 32, 256] {
        let report = load::run(LoadConfig {
            connections,
            duration: Some(Duration::from_secs(2)),
            keep_operations: true,
            ..LoadConfig::new(cluster.targets())
        });
        say(&format!("smoke, {connections} connections: {report}"));
        assert_eq!(report.failure_count(), 0, "{report}");
        history.record_all(&report.operations);
        history.settle(std::time::Instant::now()).assert_clean();
    }
}
