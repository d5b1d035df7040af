//! Reports with given latencies.

use epicepoch_bench::encoded::Times;
use epicepoch_bench::latency;
use epicepoch_bench::machine::Machine;
use epicepoch_bench::record::{Config, FORMAT, Generator, IntervalRecord, Program, Run};
use epicepoch_bench::run::Wire;
use epicepoch_bench::run::time_series::Packed;
use hdrhistogram::Histogram;

/// A report with these latencies in its intervals.
pub(crate) fn run(time_series: &[Histogram<u64>]) -> Run {
    let mut latency_ns = latency::histogram();
    let mut intervals = Vec::new();
    for (number, part) in time_series.iter().enumerate() {
        latency_ns.add(part).unwrap();
        intervals.push(interval(number as u64, part));
    }
    let elapsed_ns = INTERVAL_NS * intervals.len() as u64;
    Run {
        format: FORMAT,
        kind: "run".to_owned(),
        program: Program { command: vec!["bench, 1,2,3,run".to_owned()], ..Program::default() },
        started_unix_ns: STARTED_UNIX_NS,
        config: config(elapsed_ns),
        elapsed_ns,
        answers: latency_ns.len(),
        timestamps: latency_ns.len(),
        rate: 1.0,
        answers_by_node: [(1, latency_ns.len())].into(),
        failures: [("lost".to_owned(), (0..time_series.len() as u64).sum())].into(),
        unsent: 0,
        failure_share: 0.0,
        redirects: 0,
        gap_max_ns: 0,
        latency_ns: Times(latency_ns),
        hiccup_ns: Times::default(),
        echo_sleeping_ns: None,
        generator: Generator {
            busy: None,
            lateness_ns: Times::default(),
            backlogged: 0,
            bottleneck: None,
        },
        verify: None,
        server_cpu: Vec::new(),
        cpu_busy: None,
        cpu_steal: None,
        wire: Wire::default(),
        load_after: None,
        machine: Machine::default(),
        interval_ns: INTERVAL_NS,
        intervals,
    }
}

fn interval(number: u64, part: &Histogram<u64>) -> IntervalRecord {
    IntervalRecord {
        start_ns: number * INTERVAL_NS,
        rate: part.len() as f64 / (INTERVAL_NS as f64 / 1e9),
        failures: [("lost".to_owned(), number)].into(),
        latency: Packed::new(part),
    }
}

fn config(elapsed_ns: u64) -> Config {
    Config {
        targets: Vec::new(),
        transport: "http1".to_owned(),
        in_flight: 1,
        connections: 8,
        threads: 1,
        n: 1,
        range: false,
        rate: None,
        arrivals: None,
        warmup_ns: 0,
        duration_ns: elapsed_ns,
        timeout_ns: 1,
        spin: false,
        verify: false,
    }
}

/// Length of their intervals.
pub(crate) const INTERVAL_NS: u64 = 250_000_000;
/// Start of the reports.
pub(crate) const STARTED_UNIX_NS: u64 = 1_700_000_000_500_000_000;
