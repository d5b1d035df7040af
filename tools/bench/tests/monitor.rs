//! The loop of `epicepoch probe` against servers that stall, give wrong answers and hand over
//! leadership.

mod oracle;

use std::time::{Duration, Instant};

use epicepoch_bench::probe::Account;
use epicepoch_bench::run::monitor::Monitor;
use epicepoch_bench::run::{Arrivals, Pace, RunConfig};

use oracle::{Bug, Oracle};

/// Starts a monitor of an oracle.
fn watch(oracle: &Oracle, request_timeout: Duration) -> Monitor {
    Monitor::start(RunConfig {
        pace: Pace::Open { rate: 200.0, arrivals: Arrivals::Poisson },
        connections: 2,
        request_timeout,
        ..RunConfig::new(oracle.targets.clone())
    })
}

const TIMEOUT: Duration = Duration::from_millis(400);

/// Takes snapshots until a metric fulfils `wanted`.
fn until(monitor: &Monitor, account: &mut Account, name: &str, wanted: impl Fn(f64) -> bool) {
    until_text(monitor, account, name, |text| value(text, name).is_some_and(&wanted));
}

/// Takes snapshots until `wanted` holds for the metrics.
fn until_text(monitor: &Monitor, account: &mut Account, what: &str, wanted: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        account.add(&monitor.snapshot());
        let text = account.render();
        if wanted(&text) {
            return;
        }
        assert!(Instant::now() < deadline, "{what} in\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[test]
fn a_probe_counts_on_and_ends_when_it_is_told_to() {
    let oracle = Oracle::start(1, Bug::None);
    // The timeout is so long that no request fails, not even on a machine that stalls.
    let monitor = watch(&oracle, Duration::from_secs(5));
    let mut account = Account::default();
    until(&monitor, &mut account, "epicepoch_probe_answers_total", |it| it >= 50.0);
    until(&monitor, &mut account, "epicepoch_probe_answers_checked_total", |it| it >= 40.0);
    until(&monitor, &mut account, "epicepoch_probe_answers_total", |it| it >= 100.0);
    until(&monitor, &mut account, "epicepoch_probe_leader", |it| (it - 1.0).abs() < 0.1);
    let before = Instant::now();
    account.add(&monitor.stop());
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert_eq!(account.violations(), 0, "{}", account.summary());
    let text = account.render();
    assert!(!text.contains("failures_total{"), "{text}");
    // When the monitor has stopped, every received answer is checked.
    let value = |name: &str| value(&text, name).unwrap();
    let answers = value("epicepoch_probe_answers_total");
    assert!((value("epicepoch_probe_answers_checked_total") - answers).abs() < 0.5, "{text}");
}

#[test]
fn a_stall_shows_as_latency_and_as_silence_and_a_long_one_as_failures() {
    let oracle = Oracle::start(1, Bug::None);
    let (monitor, mut account) = (watch(&oracle, TIMEOUT), Account::default());
    until(&monitor, &mut account, "epicepoch_probe_answers_total", |it| it >= 20.0);
    oracle.stall(Duration::from_millis(300));
    until(&monitor, &mut account, "epicepoch_probe_gap_max_seconds", |it| it >= 0.25);
    // The stall lasts 0.3 s. When it is over, some answers have taken more than 0.2 s, so the
    // bucket lacks them.
    let bucket = "epicepoch_probe_latency_seconds_bucket{le=\"0.2\"}";
    until_text(&monitor, &mut account, bucket, |text| {
        value(text, bucket).unwrap() < value(text, "epicepoch_probe_latency_seconds_count").unwrap()
    });

    oracle.stall(Duration::from_secs(1));
    let timeouts = "epicepoch_probe_failures_total{kind=\"timeout\"}";
    until(&monitor, &mut account, timeouts, |it| it >= 1.0);
    // After the long stall the monitor gets answers again.
    until(&monitor, &mut account, "epicepoch_probe_silence_seconds", |it| it < 0.1);
    drop(monitor.stop());
}

#[test]
fn a_move_of_the_leader_is_followed_and_counted() {
    let oracle = Oracle::start(3, Bug::None);
    let (monitor, mut account) = (watch(&oracle, TIMEOUT), Account::default());
    until(&monitor, &mut account, "epicepoch_probe_leader", |it| (it - 1.0).abs() < 0.1);
    oracle.move_leader();
    until(&monitor, &mut account, "epicepoch_probe_leader", |it| (it - 2.0).abs() < 0.1);
    until(&monitor, &mut account, "epicepoch_probe_leader_changes_total", |it| it >= 1.0);
    account.add(&monitor.stop());
    assert_eq!(account.violations(), 0, "{}", account.summary());
}

#[test]
fn a_server_that_lies_is_found_while_the_probe_goes_on() {
    let oracle = Oracle::start(1, Bug::None);
    let (monitor, mut account) = (watch(&oracle, TIMEOUT), Account::default());
    until(&monitor, &mut account, "epicepoch_probe_answers_checked_total", |it| it >= 20.0);
    assert_eq!(account.violations(), 0, "{}", account.summary());
    oracle.plant(Bug::AnswerTwice);
    until(&monitor, &mut account, "epicepoch_probe_violations_total", |it| it >= 1.0);
    drop(monitor.stop());
}
