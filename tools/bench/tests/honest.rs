//! The generator against servers that stall, give wrong answers, or are slower than the generator.

mod oracle;

use std::net::TcpListener;
use std::time::Duration;

use epicepoch_bench::encoded::decode;
use epicepoch_bench::hlog::hlog;
use epicepoch_bench::latency::{self, quantile};
use epicepoch_bench::record::{self, Program, Run};
use epicepoch_bench::run::{self, Arrivals, Bottleneck, Measurement, Pace, RunConfig, Target};
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use oracle::{Bug, Oracle, undisturbed};

fn config(target: &Target) -> RunConfig {
    RunConfig {
        connections: 4,
        warmup: Duration::from_millis(100),
        duration: Duration::from_secs(2),
        interval: Duration::from_millis(250),
        ..RunConfig::new(vec![target.clone()])
    }
}

fn open(rate: f64) -> Pace {
    Pace::Open { rate, arrivals: Arrivals::Constant }
}

/// A run during which the server stalls for 200 ms in the middle.
fn with_a_stall(pace: Pace) -> Measurement {
    let oracle = Oracle::start(1, Bug::None);
    let target = oracle.targets[0].clone();
    let stall = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        oracle.stall(Duration::from_millis(200));
    });
    let measured = run::run(RunConfig { pace, ..config(&target) }, |_, _| {});
    stall.join().unwrap();
    measured
}

#[test]
fn a_stall_of_200_ms_shows_in_the_open_loop_and_hides_in_the_closed_one() {
    let stall = Duration::from_millis(200);
    let open = undisturbed(|| with_a_stall(open(1000.0)));
    let p999 = quantile(&open.counts.latency_ns, 0.999);
    assert!(p999 > stall.mul_f64(0.9), "{}", open.to_string());
    // 200 of 2000 requests were due during the stall. They are the slowest 10 %, so p95 is the
    // middle one of them.
    let p95 = quantile(&open.counts.latency_ns, 0.95);
    assert!(p95 > stall.mul_f64(0.3), "{}", open.to_string());
    assert!(open.gap_max > stall.mul_f64(0.9), "{:?}", open.gap_max);
    assert_eq!(open.counts.answers, 2000);
    // During the stall every connection was in use, so the generator was not to blame for late
    // requests.
    let bottleneck = open.generator.bottleneck;
    assert!(!matches!(bottleneck, Some(Bottleneck::Late { .. })), "{bottleneck:?}");
    // All delayed answers came when the stall ended. So one interval has the worst latency and more
    // answers than the others.
    let worst = open.intervals.iter().max_by_key(|it| it.latency.max_ns).unwrap();
    assert_eq!(worst.latency.max_ns, open.counts.latency_ns.max());
    let others = open.intervals.iter().filter(|it| it.number != worst.number);
    let others = others.map(|it| it.latency.answers).min();
    assert!(others < Some(worst.latency.answers), "{:?}", open.intervals);

    let closed = undisturbed(|| with_a_stall(Pace::Closed));
    let table = closed.to_string();
    // In the closed loop only four of many thousand requests were open during the stall, so p99.9
    // does not show it.
    assert!(quantile(&closed.counts.latency_ns, 0.999) < stall / 2, "{table}");
    assert!(Duration::from_nanos(closed.counts.latency_ns.max()) > stall.mul_f64(0.9), "{table}");
}

#[test]
fn a_generator_that_is_too_slow_is_reported_and_gives_no_verdict() {
    let target = Oracle::start(1, Bug::None).targets.remove(0);
    let slow = RunConfig {
        pace: open(2000.0),
        planted_delay: Duration::from_millis(2),
        request_timeout: Duration::from_millis(500),
        duration: Duration::from_secs(1),
        ..config(&target)
    };
    let measured = run::run(slow, |_, _| {});
    assert!(matches!(measured.generator.bottleneck, Some(Bottleneck::Overrun { .. })));
    assert!(measured.counts.unsent > 0);
    let table = measured.to_string();
    assert!(table.contains("THE GENERATOR WAS THE BOTTLENECK"), "{table}");
    let json = record::report(&measured, None, &Program::default());
    assert!(json["generator"]["bottleneck"].is_string(), "{json}");
}

#[test]
fn a_closed_loop_whose_generator_never_waits_is_reported() {
    let target = Oracle::start(1, Bug::None).targets.remove(0);
    let planted_delay = Duration::from_millis(2);
    let duration = Duration::from_secs(1);
    let slow = RunConfig { planted_delay, duration, ..config(&target) };
    let measured = run::run(slow, |_, _| {});
    let bottleneck = measured.generator.bottleneck;
    assert!(matches!(bottleneck, Some(Bottleneck::Saturated { .. })), "{bottleneck:?}");
}

#[test]
fn every_request_that_was_due_is_accounted_for() {
    for (arrivals, threads) in [(Arrivals::Constant, 2), (Arrivals::Poisson, 1)] {
        let oracle = Oracle::start(1, Bug::None);
        let target = oracle.targets[0].clone();
        let measured = run::run(
            RunConfig {
                pace: Pace::Open { rate: 2000.0, arrivals },
                threads,
                duration: Duration::from_secs(1),
                ..config(&target)
            },
            |_, _| {},
        );
        let counts = &measured.counts;
        let due = counts.lateness_ns.len() + counts.backlogged + counts.unsent;
        assert_eq!(due, counts.answers + counts.failed());
        assert_eq!(counts.latency_ns.len(), counts.answers);
        let mut time_series = latency::histogram();
        measured.intervals.iter().for_each(|it| time_series.add(it.latency.unpack()).unwrap());
        assert_eq!(time_series, counts.latency_ns);
        assert!(measured.intervals.len() >= 4);
        assert!((1800..=2200).contains(&due), "{due}");
        let checked = measured.checked.as_ref().expect("on by default");
        checked.verdict.assert_clean();
        // The checker also checks the answers of the warm-up.
        let given = oracle.answers();
        assert_eq!(checked.verdict.totals.answered + counts.unverified, given);
    }
}

#[test]
fn a_server_that_is_not_there_costs_failures_and_no_verdict_in_its_favour() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let target = Target::new(1, unused);
    let measured = run::run(
        RunConfig {
            pace: open(100.0),
            duration: Duration::from_millis(300),
            request_timeout: Duration::from_millis(200),
            ..config(&target)
        },
        |_, _| {},
    );
    assert_eq!((measured.counts.answers, measured.counts.unsent), (0, 30));
    assert!(measured.counts.failures["connect"] > 0);
    assert!(measured.gap_max >= Duration::from_millis(300), "{:?}", measured.gap_max);
}

#[test]
fn the_report_parses_and_agrees_with_the_histogram() {
    let target = Oracle::start(1, Bug::None).targets.remove(0);
    let config = RunConfig {
        pids: vec![std::process::id()],
        duration: Duration::from_millis(500),
        ..config(&target)
    };
    let measured = run::run(config, |_, _| {});
    let latencies = &measured.counts.latency_ns;
    let json = record::report(&measured, Some(latencies), &Program::default());
    let read = Run::parse(&json.to_string()).unwrap();
    assert_eq!((&read.latency_ns.0, read.answers), (latencies, latencies.len()));
    assert!(read.unlike(&read).is_none() && read.verify.is_some_and(|it| it.checked > 0));
    assert_eq!(json["answers"], measured.counts.answers);
    assert_eq!(json["latency_ns"]["p99.9"], latencies.value_at_quantile(0.999));
    assert_eq!(json["verify"]["violations"], 0);
    assert!(json["server_cpu"][0]["cpu_ns"].is_u64());
    // The HdrHistogram library reads the log and finds every latency in it.
    let log = hlog(&measured, &Program::default());
    let mut whole = latency::histogram();
    for entry in IntervalLogIterator::new(log.as_bytes()) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            whole.add(decode(interval.encoded_histogram()).unwrap()).unwrap();
        }
    }
    assert_eq!(&whole, latencies);
}
