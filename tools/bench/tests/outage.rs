//! Three causes of missing or late answers: a server is gone for a while; a server delays an
//! answer; the generator itself stalls. The report must name the right cause.

mod oracle;

use std::net::TcpListener;
use std::time::Duration;

use epicepoch_bench::latency::quantile;
use epicepoch_bench::run::{self, Arrivals, Bottleneck, Measurement, Pace};
use epicepoch_bench::run::{RunConfig, Target, Transport};

use oracle::{Bug, Oracle, undisturbed};

fn config(target: &Target, rate: f64) -> RunConfig {
    RunConfig {
        pace: Pace::Open { rate, arrivals: Arrivals::Constant },
        warmup: Duration::from_millis(100),
        duration: Duration::from_secs(1),
        interval: Duration::from_millis(250),
        ..RunConfig::new(vec![target.clone()])
    }
}

/// A run with an outage of [`OUTAGE`] in the middle.
fn with_an_outage(connections: usize) -> Measurement {
    let oracle = Oracle::start(1, Bug::None);
    let target = oracle.targets[0].clone();
    let outage = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        oracle.set_down(true);
        std::thread::sleep(OUTAGE);
        oracle.set_down(false);
    });
    let measured = run::run(RunConfig { connections, ..config(&target, 1000.0) }, |_, _| {});
    outage.join().unwrap();
    assert!(measured.gap_max > OUTAGE.mul_f64(0.9), "{:?}", measured.gap_max);
    measured
}

#[test]
fn attempts_to_connect_are_counted_and_are_no_requests_that_failed() {
    let measured = with_an_outage(4);
    let (counts, table) = (&measured.counts, measured.to_string());
    assert!(counts.failures["connect"] > 50, "{table}");
    // Only the requests that were open when the four connections broke may fail.
    assert!(counts.failed() <= 4 && measured.failure_share() <= 0.004, "{table}");
    assert_eq!(counts.answers + counts.failed(), 1000, "{table}");
    let totals = measured.checked.expect("on by default").verdict.totals;
    assert_eq!(totals.refused, 0, "{totals:?}");
}

#[test]
fn an_outage_does_not_count_as_lateness_of_the_generator() {
    let measured = undisturbed(|| with_an_outage(256));
    let (counts, table) = (&measured.counts, measured.to_string());
    // When the outage began, the 256 connections had claimed about a quarter of all 1000 requests.
    // These requests must not count as sent late by the generator.
    assert!(quantile(&counts.lateness_ns, 0.99) < OUTAGE / 3, "{table}");
    assert!(counts.backlogged > 200, "{table}");
    let bottleneck = measured.generator.bottleneck;
    assert!(!matches!(bottleneck, Some(Bottleneck::Late { .. })), "{bottleneck:?}");
}

#[test]
fn a_generator_that_stood_still_was_late_for_all_that_was_due_meanwhile() {
    let target = Oracle::start(1, Bug::None).targets.remove(0);
    let standstill = Duration::from_millis(100);
    let config = RunConfig { connections: 64, ..config(&target, 2000.0) };
    let stalled = RunConfig { planted_standstill: standstill, ..config };
    let measured = run::run(stalled, |_, _| {});
    let (counts, table) = (&measured.counts, measured.to_string());
    let bottleneck = measured.generator.bottleneck;
    // On a machine with too little processor time the generator is also overrun, and then the
    // report names only that.
    let is_named = matches!(bottleneck, Some(Bottleneck::Late { .. } | Bottleneck::Overrun { .. }));
    assert!(is_named, "{bottleneck:?} {table}");
    assert!(quantile(&counts.lateness_ns, 0.95) > standstill / 4, "{table}");
    assert!(table.contains("THE GENERATOR WAS THE BOTTLENECK"), "{table}");
}

#[test]
fn only_what_is_past_its_time_has_timed_out() {
    // If the machine stalls, the generator sends several requests at once, and they time out
    // together. So the run is repeated if there was a stall.
    let measured = undisturbed(|| {
        // After 20 answers the connection falls silent: neither the next request nor any later one
        // gets an answer.
        let oracle = Oracle::start(1, Bug::None);
        oracle.mute_at(20);
        let config = RunConfig {
            transport: Transport::Http1 { pipeline: 64 },
            connections: 1,
            warmup: Duration::ZERO,
            request_timeout: Duration::from_millis(200),
            ..config(&oracle.targets[0], 100.0)
        };
        run::run(config, |_, _| {})
    });
    let table = measured.to_string();
    let failures = &measured.counts.failures;
    let count = |name| failures.get(name).copied().unwrap_or(0);
    assert!((1..=5).contains(&count("timeout")), "{table}");
    assert!((10..=25).contains(&count("lost")), "{table}");
    assert_eq!(measured.counts.answers, 100 - count("timeout") - count("lost"), "{table}");
}

#[test]
fn nothing_is_waited_for_longer_than_one_timeout_after_the_end() {
    // This server accepts connections but never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap();
    let config = RunConfig {
        connections: 1,
        warmup: Duration::ZERO,
        duration: Duration::from_millis(500),
        request_timeout: Duration::from_secs(2),
        ..config(&Target::new(1, addr), 10.0)
    };
    let measured = run::run(config, |_, _| {});
    // One request is open at a time. The first times out after 2 s. The second is sent then, and is
    // given up at 2.5 s: one timeout after the end of the run at 0.5 s.
    let table = measured.to_string();
    assert!(measured.gap_max < Duration::from_millis(3300), "{:?} {table}", measured.gap_max);
    assert_eq!(measured.counts.failed(), 5, "{table}");
}

/// Length of the outage.
const OUTAGE: Duration = Duration::from_millis(300);
