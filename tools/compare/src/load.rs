//! The closed loop. Each caller sends the next request when it has its answer; after a failed
//! request it pauses first. The latencies are those of requests that were sent in the measured
//! time. The rate counts the answers that came in the measured time. A failed request is counted,
//! but has no latency. Only the order of each caller's own answers is checked.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::task::LocalSet;

use crate::systems::{Callers, System};

/// Timeout of a request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);

/// Pause after a failure, so that a system that refuses at once is not asked in a tight loop.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(1);

/// The longest latency that the histogram records, nanoseconds: a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Settings of a load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Callers at the same time.
    pub callers: u32,
    /// Timestamps in each request.
    pub n: u32,
    /// Time before the measured time.
    pub warmup: Duration,
    /// The measured time.
    pub measured: Duration,
}

/// The result of a load.
#[derive(Debug)]
pub struct Report {
    latency_ns: Histogram<u64>,
    /// Answers that came in the measured time.
    came: u64,
    /// Answers that are not above the caller's last one.
    pub violations: u64,
    failed: u64,
    /// The last error.
    pub last_error: String,
}

impl Report {
    /// Requests that were answered.
    pub fn answers(&self) -> u64 {
        self.latency_ns.len()
    }

    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            latency_ns: Histogram::new_with_bounds(100, LATENCY_NS_MAX, 3)?,
            came: 0,
            violations: 0,
            failed: 0,
            last_error: String::new(),
        })
    }

    fn take_answer(&mut self, rises: bool, asked: Instant, answered: Instant, window: Window) {
        self.violations += u64::from(!rises);
        self.came += u64::from(window.from <= answered && answered < window.until);
        if window.from <= asked {
            let took = u64::try_from((answered - asked).as_nanos()).unwrap_or(LATENCY_NS_MAX);
            self.latency_ns.saturating_record(took);
        }
    }

    fn take_failure(&mut self, error: &anyhow::Error, counts: bool) {
        self.last_error = format!("{error:#}");
        self.failed += u64::from(counts);
    }

    /// Returns the report as one line of JSON. Latencies are in microseconds, rates per second.
    pub fn to_json(&self, system: System, plan: &Plan) -> String {
        let rate = self.came as f64 / plan.measured.as_secs_f64();
        let us = |quantile| self.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        json!({
            "system": system.name(),
            "callers": plan.callers,
            "n": plan.n,
            "seconds": plan.measured.as_secs_f64(),
            "answers": self.answers(),
            "rate": rate,
            "timestamps_rate": rate * f64::from(plan.n),
            "p50_us": us(0.5),
            "p99_us": us(0.99),
            "p999_us": us(0.999),
            "max_us": self.latency_ns.max() as f64 / 1e3,
            "failed": self.failed,
            "violations": self.violations,
            "last_error": self.last_error,
        })
        .to_string()
    }
}

/// Connects all callers, lets them send requests until the time is over, and adds up the results.
///
/// # Errors
/// A caller cannot connect.
pub async fn run(system: System, addr: &str, plan: &Plan) -> anyhow::Result<Report> {
    let callers = Callers::connect(system, addr, plan.callers)
        .await
        .with_context(|| format!("cannot connect to {} at {addr}", system.name()))?;
    let report = Rc::new(RefCell::new(Report::new()?));
    let from = Instant::now() + plan.warmup;
    let window = Window { from, until: from + plan.measured };
    let tasks = LocalSet::new();
    for caller in callers.into_each() {
        tasks.spawn_local(ask_until(caller, plan.n, window, Rc::clone(&report)));
    }
    tasks.await;
    Ok(Rc::into_inner(report).context("a caller did not end")?.into_inner())
}

/// The measured time.
#[derive(Clone, Copy)]
struct Window {
    from: Instant,
    until: Instant,
}

async fn ask_until(
    mut caller: crate::systems::Caller,
    n: u32,
    window: Window,
    report: Rc<RefCell<Report>>,
) {
    let mut last = None;
    loop {
        let asked = Instant::now();
        if asked >= window.until {
            return;
        }
        let outcome = match tokio::time::timeout(REQUEST_TIME_MAX, caller.ask(n)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(anyhow::anyhow!("no answer within {REQUEST_TIME_MAX:?}")),
        };
        let answered = Instant::now();
        match outcome {
            Ok(first) => {
                let rises = last.is_none_or(|last| first > last);
                last = Some(first);
                report.borrow_mut().take_answer(rises, asked, answered, window);
            }
            Err(error) => {
                report.borrow_mut().take_failure(&error, asked >= window.from);
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_that_is_waited_for_at_the_end_does_not_lower_the_rate() {
        let measured = Duration::from_secs(5);
        let from = Instant::now();
        let window = Window { from, until: from + measured };
        let mut report = Report::new().unwrap();
        let ms = Duration::from_millis;
        for number in 0..5000 {
            report.take_answer(true, from + ms(number), from + ms(number) + ms(1) / 2, window);
        }
        report.take_answer(true, from + ms(4999), from + ms(9998), window);
        let plan = Plan { callers: 2, n: 1, warmup: ms(0), measured };
        let line = report.to_json(System::Redis, &plan);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((line["rate"].as_f64(), line["answers"].as_u64()), (Some(1000.0), Some(5001)));
        assert!(line["max_us"].as_f64() > Some(4.9e6), "and its latency is there: {line}");
    }
}
