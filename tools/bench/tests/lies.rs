//! The load generator and the checker against a wrong oracle: every planted bug must be found, and
//! the correct oracle must pass.

mod oracle;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use epicepoch_bench::record::{self, Program};
use epicepoch_bench::run::load::{Load, Report};
use epicepoch_bench::run::{Routing, RunConfig, Transport, run};
use epicepoch_bench::{History, Violation};
use epicepoch_wire::Guarantee;

use oracle::{Bug, Oracle};

fn everywhere(oracle: &Oracle) -> RunConfig {
    RunConfig {
        connections: 6,
        routing: Routing::EveryNode,
        ..RunConfig::new(oracle.targets.clone())
    }
}

/// Drives all nodes while the leadership moves ten times, and checks the answers.
fn provoke(bug: Bug, count: u64) -> (Report, Vec<Violation>) {
    let oracle = Oracle::start(3, bug);
    let mut history = History::new(Instant::now());
    let load = Load::start(RunConfig { count, ..everywhere(&oracle) });
    for _ in 0..10 {
        let at = Instant::now();
        oracle.move_leader();
        let enough = load.answers() + 60;
        let limit = at + Duration::from_secs(10);
        while (!load.answered_since(at) || load.answers() < enough) && Instant::now() < limit {
            std::thread::yield_now();
        }
    }
    let report = load.stop();
    history.record_all(&report.operations);
    history.count(report.refused(), report.unknown());
    let verdict = history.settle(Instant::now());
    (report, verdict.violations)
}

#[test]
fn an_honest_oracle_passes() {
    for count in [1, 5] {
        let (report, violations) = provoke(Bug::None, count);
        assert_eq!(violations, []);
        assert!(report.answers() >= 600, "{report}");
        assert!(report.refused() > 0 && report.unknown() == 0, "{report}");
        let nodes: BTreeSet<u64> = report.answered().map(|(operation, _)| operation.node).collect();
        assert_eq!(nodes.len(), 3, "{report}");
        assert!(report.answered().all(|(_, range)| range.count() == count), "{report}");
    }
}

#[test]
fn a_new_leader_that_repeats_is_found() {
    let (_, violations) = provoke(Bug::NewLeaderRepeats, 1);
    assert!(violations.iter().any(|it| matches!(it, Violation::Repeated { .. })));
}

#[test]
fn a_deposed_leader_that_answers_is_found() {
    let (_, violations) = provoke(Bug::DeposedAnswers, 1);
    assert!(violations.iter().any(|it| matches!(it, Violation::OutOfOrder { .. })));
}

#[test]
fn unique_but_unordered_blocks_per_node_are_found() {
    let (_, violations) = provoke(Bug::BlockPerNode, 1);
    assert!(violations.iter().all(|it| matches!(it, Violation::OutOfOrder { .. })));
    assert!(!violations.is_empty());
}

#[test]
fn a_hole_inside_one_answer_is_found() {
    let (_, violations) = provoke(Bug::HoleInBatch, 4);
    assert!(violations.iter().any(|it| matches!(it, Violation::Broken { .. })));
}

#[test]
fn an_answer_given_again_is_found() {
    for count in [1, 7] {
        let (_, violations) = provoke(Bug::AnswerTwice, count);
        assert!(violations.iter().any(|it| matches!(it, Violation::Repeated { .. })));
    }
}

#[test]
fn an_answer_that_a_lease_has_proved_is_a_violation_if_a_quorum_was_asked_for() {
    for guarantee in [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)] {
        let oracle = Oracle::start(1, Bug::Lease);
        let measurement = run(
            RunConfig {
                guarantee,
                connections: 2,
                warmup: Duration::ZERO,
                duration: Duration::from_millis(200),
                ..RunConfig::new(oracle.targets.clone())
            },
            |_, _| (),
        );
        let (counts, table) = (&measurement.counts, measurement.to_string());
        let is_right = guarantee != Some(Guarantee::Quorum);
        assert_eq!(counts.answers > 0, is_right, "{table}");
        assert_eq!(counts.failures.contains_key("protocol"), !is_right, "{table}");
        let said = guarantee.map(|it| format!("n 1, guarantee {it}, "));
        assert!(said.is_none_or(|said| table.contains(&said)), "{table}");
        let record = record::report(&measurement, None, &Program::default());
        let named = guarantee.map(|it| it.name().to_owned());
        assert_eq!(record["config"]["guarantee"].as_str().map(str::to_owned), named);
    }
}

#[test]
fn a_silence_is_measured_as_long_as_it_was() {
    let oracle = Oracle::start(3, Bug::None);
    let load = Load::start(everywhere(&oracle));
    let silence = Duration::from_millis(150);
    while load.answers() < 100 {
        std::thread::yield_now();
    }
    let from = Instant::now();
    oracle.stall(silence);
    std::thread::sleep(silence);
    while !load.answered_since(from + silence) {
        std::thread::yield_now();
    }
    let report = load.stop();
    let gap = report.answer_times().gap_max(from, from + silence);
    assert!(gap >= silence.mul_f64(0.8), "{gap:?}");
    assert!(gap <= silence + Duration::from_secs(1), "{gap:?}");
}

#[test]
fn a_load_that_follows_finds_the_leader_and_counts_no_failure() {
    for (range, count, pipeline) in [(false, 1, 1), (false, 3, 8), (true, 1 << 20, 1)] {
        let oracle = Oracle::start(3, Bug::None);
        oracle.move_leader();
        let measurement = run(
            RunConfig {
                connections: 4,
                threads: 2,
                range,
                count,
                transport: Transport::Http1 { pipeline },
                warmup: Duration::ZERO,
                duration: Duration::from_millis(300),
                ..RunConfig::new(oracle.targets.clone())
            },
            |_, _| (),
        );
        let counts = &measurement.counts;
        assert!(counts.answers > 0 && counts.failures.is_empty(), "{counts:?}");
        assert!(counts.redirects > 0, "{counts:?}");
        assert_eq!(counts.answers_by_node.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(counts.latency_ns.len(), counts.answers);
        assert!(measurement.checked.expect("by default").verdict.is_clean());
    }
}
