//! Finds how much load a service takes. It raises the rate of an open loop step by step until the
//! service fails, narrows the limit down, and checks that the service recovers at a lower load.
//! From measurements during each step it names the first bottleneck, or says that nothing was busy.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use serde::Serialize;

use crate::floor::Floor;
use crate::json::FloorRecord;
use crate::latency::{quantile, shown};
use crate::record::{FORMAT, Verify};
use crate::run::{self, Bottleneck, Measurement, Pace, RunConfig, failure};
use crate::verdict::VIOLATIONS_KEPT_MAX;

/// Settings of a search for the knee.
#[derive(Clone, Debug)]
pub struct KneeConfig {
    /// One step: an open loop at the first rate.
    pub step: RunConfig,
    /// Factor between the rates of two steps, above 1.
    pub factor: f64,
    /// A step fails if its p99 latency is above this.
    pub p99_max: Duration,
    /// A step fails if more than this share of its requests fails.
    pub failures_max: f64,
    /// What the machine itself can do; results are shown as multiples of it.
    pub floor: Option<Floor>,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Rate at which requests were due, per second.
    pub rate: f64,
    /// Answers per second.
    pub achieved: f64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile of the latency.
    pub p99_ns: u64,
    /// Share of the requests that failed.
    pub failure_share: f64,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Result of the check, warm-up included; `None` without a check.
    pub verify: Option<Verify>,
    /// Load of the machine meanwhile.
    pub evidence: Evidence,
    /// Why the step failed, if it did.
    pub fell: Option<String>,
}

/// Load during a step, as shares of time; `None` if unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Why the generator cannot be trusted. A step may still hold: its latency includes the
    /// generator's lateness.
    pub generator: Option<String>,
    /// Whether the generator had no time left, which is worse than being late.
    pub generator_overrun: bool,
    /// Share of time that the busiest generator thread was busy.
    pub generator_busy: Option<f64>,
    /// Share of time that the busiest server thread ran or waited for a processor.
    pub server_busy: Option<f64>,
    /// Share of time that all processors were busy.
    pub cpu_busy: Option<f64>,
    /// Share of the time of all processors in soft interrupts, which is the network stack.
    pub softirq: Option<f64>,
}

/// The first bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum First {
    /// The generator was too slow. The service may take more load.
    Generator,
    /// The service refused requests, as it should when its queue is full.
    Refusals,
    /// A thread of the service had no time left.
    ServerCpu,
    /// The kernel: soft interrupts, or processors busy with something else.
    Kernel,
    /// Nothing was busy: the service waited for a disk, a lock or its peers.
    Waiting,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Knee {
    /// Raised when a field changes its meaning.
    pub format: u64,
    /// Always `knee`.
    pub kind: &'static str,
    /// The highest rate that held; `None` if the first rate already failed.
    pub held: Option<f64>,
    /// The lowest rate that failed; `None` if all held.
    pub fell_at: Option<f64>,
    /// The bottleneck at the lowest rate that failed.
    pub first: Option<First>,
    /// All steps in order.
    pub steps: Vec<Step>,
    /// The result at a lower load after the search.
    pub recovery: Option<Recovery>,
    /// What the machine itself can do, if it was measured just before.
    pub floor: Option<FloorRecord>,
}

impl Knee {
    /// Shows a latency as a multiple of the median bare echo.
    fn times_echo(floor: Option<&FloorRecord>, latency_ns: u64) -> String {
        let echo = floor.map(|floor| quantile(&floor.echo_sleeping_ns.0, 0.5).as_nanos());
        let times = echo.filter(|echo| *echo > 0).map(|echo| latency_ns as f64 / echo as f64);
        times.map_or("?".to_owned(), |times| format!("{times:.1}"))
    }

    /// Shows the rate that held as a share of what the machine can do.
    fn beside_floor(&self) -> Vec<String> {
        let (Some(floor), Some(held)) = (&self.floor, self.held) else { return Vec::new() };
        let rates = [
            ("echoes, one per call", floor.echo_rate_plain),
            ("echoes, pipelined", floor.echo_rate_pipelined),
            ("native frames, pipelined", floor.frame_rate_pipelined),
        ];
        let times = |rate: f64| held / rate.max(f64::MIN_POSITIVE);
        let line = |(what, rate)| format!("{:.3} of the {rate:.0} {what}, per second", times(rate));
        let fsync = Duration::from_nanos(quantile(&floor.fsync_ns.0, 0.5).as_nanos() as u64);
        let echo = quantile(&floor.echo_sleeping_ns.0, 0.5);
        let first = format!("bare echo p50 {}, fsync p50 {}", shown(echo), shown(fsync));
        std::iter::once(first).chain(rates.map(line)).collect()
    }

    /// The most frequent refusal at the lowest rate that failed.
    fn refusal(&self) -> Option<ErrorCode> {
        let is_it = |step: &&Step| step.fell.is_some() && Some(step.rate) == self.fell_at;
        let step = self.steps.iter().rfind(is_it)?;
        step.refusals().max_by_key(|(_, count)| *count).map(|(code, _)| code)
    }

    /// Wrong answers and checked answers of all steps; `None` without a check.
    #[must_use]
    pub fn violations(&self) -> Option<(u64, u64)> {
        let steps = self.steps.iter().chain(self.recovery.as_ref().map(|it| &it.step));
        let found = steps.filter_map(|step| step.verify.as_ref());
        found.map(|it| (it.violations, it.checked)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Whether the service recovered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// Whether this load held again.
    pub recovered: bool,
    /// The step at the lower load, a part of the rate that held.
    pub step: Step,
}

/// Finds the knee. Calls `watch` for each step.
///
/// # Panics
/// If the pace of the step is a closed loop, or the factor is not above 1.
pub fn find(config: &KneeConfig, mut watch: impl FnMut(&Step)) -> Knee {
    let Pace::Open { rate: lowest, .. } = config.step.pace else {
        panic!("the rate of a closed loop cannot be raised")
    };
    assert!(config.factor > 1.0, "a factor that raises");
    let knee = search(lowest, config.factor, config.failures_max, |rate| {
        let step = step(config, rate);
        watch(&step);
        step
    });
    Knee { floor: config.floor.as_ref().map(FloorRecord::new), ..knee }
}

/// The search itself. `measure` runs one step at a given rate.
fn search(
    lowest: f64,
    factor: f64,
    failures_max: f64,
    mut measure: impl FnMut(f64) -> Step,
) -> Knee {
    let mut steps: Vec<Step> = Vec::new();
    let mut take = |rate: f64| {
        // A machine may be slow for a moment, so a rate has failed only if it fails twice.
        for _ in 0..TRIES_MAX {
            steps.push(measure(rate));
            if steps[steps.len() - 1].fell.is_none() {
                break;
            }
        }
        steps[steps.len() - 1].clone()
    };
    let (mut held, mut fell): (Option<f64>, Option<Step>) = (None, None);
    let mut rate = lowest;
    for _ in 0..RAISES_MAX {
        let step = take(rate);
        if step.fell.is_some() {
            fell = Some(step);
            break;
        }
        held = Some(rate);
        rate *= factor;
        if rate > run::config::RATE_MAX {
            break;
        }
    }
    for _ in 0..NARROWINGS_MAX {
        let (Some(low), Some(high)) = (held, fell.as_ref().map(|it| it.rate)) else { break };
        if high / low <= NARROW_ENOUGH {
            break;
        }
        let step = take((low * high).sqrt());
        if step.fell.is_some() {
            fell = Some(step);
        } else {
            held = Some(step.rate);
        }
    }
    let recovery = fell.as_ref().map(|_| {
        let step = measure(held.unwrap_or(lowest) * RECOVERY_SHARE);
        Recovery { recovered: step.fell.is_none(), step }
    });
    Knee {
        format: FORMAT,
        kind: "knee",
        held,
        fell_at: fell.as_ref().map(|it| it.rate),
        first: fell.as_ref().map(|it| first(it, failures_max)),
        steps,
        recovery,
        floor: None,
    }
}

fn step(config: &KneeConfig, rate: f64) -> Step {
    let mut step = config.step.clone();
    let Pace::Open { arrivals, .. } = step.pace else { unreachable!("asked before") };
    step.pace = Pace::Open { rate, arrivals };
    let measured = run::run(step, |_, _| {});
    let evidence = Evidence {
        generator: measured.generator.bottleneck.map(|it| it.to_string()),
        generator_overrun: matches!(
            measured.generator.bottleneck,
            Some(Bottleneck::Overrun { .. })
        ),
        generator_busy: measured.generator.busy,
        server_busy: measured.server_busy,
        cpu_busy: measured.cpu_shares.map(|(busy, _)| busy),
        softirq: measured.softirq,
    };
    Step::new(config, rate, &measured, evidence)
}

impl Step {
    /// Failures for which the service gave a reason.
    fn refusals(&self) -> impl Iterator<Item = (ErrorCode, u64)> {
        self.failures.iter().filter_map(|(name, count)| Some((ErrorCode::from_name(name)?, *count)))
    }

    fn new(config: &KneeConfig, rate: f64, measured: &Measurement, evidence: Evidence) -> Self {
        let p99 = quantile(&measured.counts.latency_ns, 0.99);
        let (achieved, failure_share) = (measured.rate(), measured.failure_share());
        // The last answers may take up to `p99_max` longer. Without this correction, a short step
        // would look as if the service could not keep up.
        let time = measured.elapsed.saturating_sub(config.p99_max).max(config.step.duration);
        let kept_up = measured.counts.answers as f64 / time.as_secs_f64();
        let fell = if failure_share > config.failures_max {
            Some(format!("{:.2} % of the requests failed", failure_share * 100.0))
        } else if p99 > config.p99_max {
            Some(format!("p99 was {}", shown(p99)))
        } else if kept_up < rate * ACHIEVED_MIN {
            Some(format!("only {achieved:.0} answers per second came"))
        } else {
            None
        };
        let failures = &measured.counts.failures;
        Self {
            rate,
            achieved,
            p50_ns: quantile(&measured.counts.latency_ns, 0.5).as_nanos() as u64,
            p99_ns: p99.as_nanos() as u64,
            failure_share,
            failures: failures.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            verify: measured
                .checked
                .as_ref()
                .map(|checked| Verify::new(checked, measured.counts.unverified)),
            evidence,
            fell,
        }
    }
}

/// Returns the bottleneck of a failed step. It checks in this order:
///
/// - The generator had no time left: the step says nothing about the service.
/// - The service refused requests: that is its own explanation.
/// - The generator was late: that may explain a high p99.
/// - A thread or the kernel had no time left.
fn first(step: &Step, failures_max: f64) -> First {
    let evidence = &step.evidence;
    let above = |share: Option<f64>, limit: f64| share.is_some_and(|share| share >= limit);
    if evidence.generator_overrun {
        return First::Generator;
    }
    let failures = step.failures.iter().filter(|(name, _)| failure::is_of_a_request(name));
    let failed = failures.map(|(_, count)| *count).sum::<u64>();
    let refused = step.refusals().map(|(_, count)| count).sum::<u64>();
    if step.failure_share > failures_max && refused * 2 >= failed && refused > 0 {
        return First::Refusals;
    }
    if evidence.generator.is_some() {
        return First::Generator;
    }
    if above(evidence.server_busy, BUSY) {
        return First::ServerCpu;
    }
    if above(evidence.softirq, SOFTIRQ) || above(evidence.cpu_busy, CPU_BUSY) {
        return First::Kernel;
    }
    First::Waiting
}

/// The table for people.
#[must_use]
pub fn table(knee: &Knee) -> String {
    let mut text = heading();
    for step in &knee.steps {
        text.push_str(&row(step, knee.floor.as_ref()));
    }
    let first = match knee.first {
        None => "nothing: every rate was held".to_owned(),
        Some(First::Generator) => {
            "the generator: the service may take more; use more --threads or another host"
                .to_owned()
        }
        Some(First::Refusals) => match knee.refusal() {
            Some(ErrorCode::Overloaded) => {
                "the service refused, as it does when its queue is full".to_owned()
            }
            Some(code) => format!("the service refused, mostly with {}", code.name()),
            None => "the service refused".to_owned(),
        },
        Some(First::ServerCpu) => "processor time of a server thread".to_owned(),
        Some(First::Kernel) => {
            "the kernel: soft interrupts, or processors busy with something else".to_owned()
        }
        Some(First::Waiting) => {
            "nothing that was measured was busy: the service waited (disk, lock, peers), or --pid \
             names not all of its processes"
                .to_owned()
        }
    };
    let rate = |rate: Option<f64>| rate.map_or("none".to_owned(), |rate| format!("{rate:.0}"));
    let (held, fell) = (rate(knee.held), rate(knee.fell_at));
    let _infallible =
        writeln!(text, "\nknee           {held} req/s held, {fell} not\nwhat gave      {first}");
    if let Some(Recovery { recovered, step }) = &knee.recovery {
        let word = if *recovered { "recovered" } else { "NOT RECOVERED" };
        let _infallible = writeln!(
            text,
            "afterwards     {word} at {:.0} req/s: p99 {}, {:.2} % failed",
            step.rate,
            shown(Duration::from_nanos(step.p99_ns)),
            step.failure_share * 100.0
        );
    }
    for (at, line) in knee.beside_floor().iter().enumerate() {
        let name = if at == 0 { "floor" } else { "held" };
        let _infallible = writeln!(text, "{name:<14} {line}");
    }
    let checked = knee.violations().map_or("not checked".to_owned(), |(violations, checked)| {
        format!("{checked} answers checked, {violations} violations")
    });
    let _infallible = writeln!(text, "order          {checked}");
    let steps = knee.steps.iter().chain(knee.recovery.as_ref().map(|it| &it.step));
    let descriptions =
        steps.filter_map(|step| step.verify.as_ref()).flat_map(|it| &it.descriptions);
    for description in descriptions.take(VIOLATIONS_KEPT_MAX) {
        let _infallible = writeln!(text, "  {description}");
    }
    text
}

/// The first line of the table.
#[must_use]
pub fn heading() -> String {
    format!(
        "{:>10} {:>10} {:>10} {:>10} {:>7} {:>8} {:>9} {:>7} {:>7} {:>8}\n",
        "due/s",
        "came/s",
        "p50",
        "p99",
        "x echo",
        "failed",
        "generator",
        "server",
        "cpus",
        "softirq"
    )
}

/// One step, with p99 as a multiple of the bare echo.
#[must_use]
pub fn row(step: &Step, floor: Option<&FloorRecord>) -> String {
    let percent = |share: Option<f64>| {
        share.map_or("?".to_owned(), |share| format!("{:.0} %", share * 100.0))
    };
    let time = |nanos| shown(Duration::from_nanos(nanos));
    let wrong = step.verify.as_ref().map_or(0, |it| it.violations);
    let wrong = if wrong > 0 { format!(", {wrong} ANSWERS WRONG") } else { String::new() };
    format!(
        "{:>10.0} {:>10.0} {:>10} {:>10} {:>7} {:>6.2} % {:>9} {:>7} {:>7} {:>8}  {}{wrong}\n",
        step.rate,
        step.achieved,
        time(step.p50_ns),
        time(step.p99_ns),
        Knee::times_echo(floor, step.p99_ns),
        step.failure_share * 100.0,
        percent(step.evidence.generator_busy),
        percent(step.evidence.server_busy),
        percent(step.evidence.cpu_busy),
        percent(step.evidence.softirq),
        step.fell.as_deref().unwrap_or("held"),
    )
}

/// Most steps upwards. With a factor of 1.5 this goes from 1 per second to beyond any machine.
const RAISES_MAX: usize = 64;
/// Most steps between the highest rate that held and the lowest that failed.
const NARROWINGS_MAX: usize = 6;
/// Attempts at a step.
const TRIES_MAX: usize = 2;
/// The search ends when the lowest failed rate is at most this multiple of the highest that held.
const NARROW_ENOUGH: f64 = 1.08;
/// Load of the recovery step, as a share of the rate that held.
const RECOVERY_SHARE: f64 = 0.5;
/// Fewest answers per second, as a share of the rate due; a step with fewer fails.
const ACHIEVED_MIN: f64 = 0.95;
/// A thread that is busy for more than this share of time has no time left.
const BUSY: f64 = 0.9;
/// All processors together have no time left above this share.
const CPU_BUSY: f64 = 0.97;
/// Soft interrupts are the bottleneck above this share of all processors' time.
const SOFTIRQ: f64 = 0.4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures by kind, their share, the load of the machine, and the expected bottleneck.
    type Case = (&'static [(&'static str, u64)], f64, Evidence, First);

    fn fallen(failures: &[(&str, u64)], share: f64, evidence: Evidence) -> Step {
        Step {
            rate: 1000.0,
            achieved: 900.0,
            p50_ns: 1,
            p99_ns: 2,
            failure_share: share,
            failures: failures.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            verify: None,
            evidence,
            fell: Some("p99".to_owned()),
        }
    }

    /// A step that held or failed.
    fn modelled(rate: f64, holds: bool) -> Step {
        let mut step = fallen(&[], 0.0, Evidence::default());
        step.rate = rate;
        step.fell = step.fell.filter(|_| !holds);
        step
    }

    #[test]
    fn the_knee_lies_between_what_was_held_and_what_was_not_and_is_narrow() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let capacity = 1000.0 * 10_f64.powf(random.f64() * 4.0);
            let factor = 1.2 + random.f64() * 2.0;
            let knee = search(1000.0, factor, 0.0, |rate| modelled(rate, rate <= capacity));
            let (held, fell) = (knee.held.unwrap(), knee.fell_at.unwrap());
            assert!(held <= capacity && capacity < fell, "{held} {capacity} {fell}");
            assert!(fell / held <= NARROW_ENOUGH, "{held} {fell} {factor}");
            assert!(knee.recovery.unwrap().recovered);
        }
    }

    #[test]
    fn one_bad_moment_is_not_the_knee_and_two_at_the_same_rate_are() {
        let (mut calls, capacity) = (0, 10_000.0);
        let knee = search(1000.0, 2.0, 0.0, |rate| {
            calls += 1;
            modelled(rate, rate <= capacity && calls % 2 == 0)
        });
        assert!(knee.held.unwrap() > 0.9 * capacity, "{:?}", knee.held);
        let bad =
            search(1000.0, 2.0, 0.0, |rate| modelled(rate, !(1500.0..=2500.0).contains(&rate)));
        assert_eq!(
            bad.steps.iter().filter(|it| it.rate.to_bits() == 2000_f64.to_bits()).count(),
            TRIES_MAX
        );
        assert!(bad.fell_at.unwrap() <= 2000.0);
    }

    #[test]
    fn a_service_that_never_held_never_fell_or_never_came_back_is_said_to() {
        let never = search(1000.0, 2.0, 0.0, |rate| modelled(rate, false));
        assert_eq!((never.held, never.fell_at), (None, Some(1000.0)));
        assert!(!never.recovery.unwrap().recovered);
        let always = search(1000.0, 2.0, 0.0, |rate| modelled(rate, true));
        assert!(always.held.unwrap() > run::config::RATE_MAX / 2.0);
        assert_eq!((always.fell_at, always.first, always.recovery), (None, None, None));
        let mut fell = false;
        let gone = search(1000.0, 2.0, 0.0, |rate| {
            fell |= rate > 5000.0;
            modelled(rate, !fell)
        });
        let recovery = gone.recovery.unwrap();
        assert!(!recovery.recovered && recovery.step.rate < gone.held.unwrap());
    }

    #[test]
    fn what_gave_first_is_what_the_evidence_says() {
        let idle = Evidence { cpu_busy: Some(0.5), ..Evidence::default() };
        let server = Evidence { server_busy: Some(0.95), cpu_busy: Some(1.0), ..idle.clone() };
        let kernel = Evidence { softirq: Some(0.5), server_busy: Some(0.2), ..idle.clone() };
        let crowded = Evidence { cpu_busy: Some(1.0), server_busy: Some(0.4), ..idle.clone() };
        let late = Evidence { generator: Some("late".to_owned()), ..idle.clone() };
        let overrun = Evidence { generator_overrun: true, ..late.clone() };
        let cases: [Case; 14] = [
            (&[], 0.0, idle.clone(), First::Waiting),
            (&[], 0.0, server.clone(), First::ServerCpu),
            (&[], 0.0, kernel, First::Kernel),
            (&[], 0.0, crowded, First::Kernel),
            (&[("OVERLOADED", 90)], 0.1, overrun, First::Generator),
            (&[("OVERLOADED", 90)], 0.1, late.clone(), First::Refusals),
            (&[], 0.0, late, First::Generator),
            (&[("OVERLOADED", 90), ("timeout", 10)], 0.1, server.clone(), First::Refusals),
            // A few refusals among many timeouts are not the bottleneck.
            (&[("OVERLOADED", 10), ("timeout", 90)], 0.1, server, First::ServerCpu),
            (&[("timeout", 90)], 0.1, idle.clone(), First::Waiting),
            // Neither a wrong answer nor a status without a code is a refusal.
            (&[("broken", 90)], 0.1, idle.clone(), First::Waiting),
            (&[("status", 90)], 0.1, idle.clone(), First::Waiting),
            (&[("status", 60), ("NO_QUORUM", 50)], 0.1, idle.clone(), First::Waiting),
            // Attempts to connect are not requests, however many.
            (&[("NO_QUORUM", 50), ("connect", 9000)], 0.1, idle, First::Refusals),
        ];
        for (failures, share, evidence, expected) in cases {
            let step = fallen(failures, share, evidence);
            assert_eq!(first(&step, 0.001), expected, "{step:?}");
        }
    }

    #[test]
    fn a_refusal_is_named_by_what_most_of_them_said() {
        let said = |failures: &'static [(&'static str, u64)]| {
            let evidence = Evidence::default();
            let knee = search(1000.0, 2.0, 0.001, |_| fallen(failures, 0.1, evidence.clone()));
            assert_eq!(knee.first, Some(First::Refusals));
            table(&knee)
        };
        assert!(said(&[("OVERLOADED", 90), ("NO_QUORUM", 10)]).contains("its queue is full"));
        let without = said(&[("OVERLOADED", 10), ("NO_QUORUM", 90), ("broken", 95)]);
        assert!(without.contains("refused, mostly with NO_QUORUM"), "{without}");
    }
}
