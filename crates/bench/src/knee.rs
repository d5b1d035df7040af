//! How much a service takes: the rate of an open loop is raised step by step until the service
//! falls over, the edge is narrowed down, and then the load goes and the service must come back.
//! What gave first is said from evidence that is measured beside each step; where nothing was
//! busy, that is what is said. Nothing here knows the service.

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

/// What to do.
#[derive(Clone, Debug)]
pub struct KneeConfig {
    /// One step. Its pace is an open loop, whose rate is that of the first step.
    pub step: RunConfig,
    /// From step to step, above 1.
    pub factor: f64,
    /// The service has fallen over when p99 is above this,
    pub p99_max: Duration,
    /// or more than this share of the requests fails.
    pub failures_max: f64,
    /// What the results are shown as multiples of.
    pub floor: Option<Floor>,
}

/// What a step saw.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Requests per second that were due.
    pub rate: f64,
    /// Answers per second that came.
    pub achieved: f64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Share of the requests that failed.
    pub failure_share: f64,
    /// By kind.
    pub failures: BTreeMap<String, u64>,
    /// What the checker found, in the warm-up too; none if it was not to look.
    pub verify: Option<Verify>,
    /// What was busy.
    pub evidence: Evidence,
    /// In what the service fell over, if it did.
    pub fell: Option<String>,
}

/// What was busy during a step. Shares of time; `None` where the kernel does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// Why the generator cannot be believed. A step that is held all the same is held: its latency
    /// has the generator's lateness in it.
    pub generator: Option<String>,
    /// Whether the generator had no time left, which is more than being late.
    pub generator_overrun: bool,
    /// Of the busiest generator thread.
    pub generator_busy: Option<f64>,
    /// Of the busiest thread of the server processes: it ran, or waited for a processor.
    pub server_busy: Option<f64>,
    /// Of all processors.
    pub cpu_busy: Option<f64>,
    /// Of all processors, in the kernel's soft interrupts: its network stack.
    pub softirq: Option<f64>,
}

/// What gave first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum First {
    /// The generator: the service may take more.
    Generator,
    /// The service refused, as it is meant to when its queue is full.
    Refusals,
    /// A thread of the service had no time left.
    ServerCpu,
    /// The kernel: soft interrupts, or processors that were busy with something else.
    Kernel,
    /// Nothing that was measured was busy: the service waited, for a disk, a lock or its peers.
    Waiting,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Knee {
    /// Raised when a field changes its meaning.
    pub format: u64,
    /// `knee`.
    pub kind: &'static str,
    /// The highest rate that was held; none if not even the first was.
    pub held: Option<f64>,
    /// The lowest rate that was not; none if all were.
    pub fell_at: Option<f64>,
    /// What gave first, at that rate.
    pub first: Option<First>,
    /// Steps in the order in which they were made.
    pub steps: Vec<Step>,
    /// The load that came after.
    pub recovery: Option<Recovery>,
    /// What the machine can do at all, measured just before; none if nobody did.
    pub floor: Option<FloorRecord>,
}

impl Knee {
    /// A latency as a multiple of the median bare echo.
    fn times_echo(floor: Option<&FloorRecord>, latency_ns: u64) -> String {
        let echo = floor.map(|floor| quantile(&floor.echo_sleeping_ns.0, 0.5).as_nanos());
        let times = echo.filter(|echo| *echo > 0).map(|echo| latency_ns as f64 / echo as f64);
        times.map_or("?".to_owned(), |times| format!("{times:.1}"))
    }

    /// The rate that was held, held against what the machine can do.
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

    /// What most of the refusals of the lowest rate that was not held said.
    fn refusal(&self) -> Option<ErrorCode> {
        let is_it = |step: &&Step| step.fell.is_some() && Some(step.rate) == self.fell_at;
        let step = self.steps.iter().rfind(is_it)?;
        step.refusals().max_by_key(|(_, count)| *count).map(|(code, _)| code)
    }

    /// Answers that were wrong, and answers that were checked, in all steps; none if nothing was
    /// to be checked.
    #[must_use]
    pub fn violations(&self) -> Option<(u64, u64)> {
        let steps = self.steps.iter().chain(self.recovery.as_ref().map(|it| &it.step));
        let found = steps.filter_map(|step| step.verify.as_ref());
        found.map(|it| (it.violations, it.checked)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Whether the service came back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// Whether it held this load again.
    pub recovered: bool,
    /// A part of what it had held.
    pub step: Step,
}

/// Finds the knee. `watch` is told of each step.
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

/// The search itself; `measure` makes the step of a rate.
fn search(
    lowest: f64,
    factor: f64,
    failures_max: f64,
    mut measure: impl FnMut(f64) -> Step,
) -> Knee {
    let mut steps: Vec<Step> = Vec::new();
    let mut take = |rate: f64| {
        // Any machine has a bad moment: only what falls over twice has fallen over.
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
    /// Failures by which the service said what was the matter.
    fn refusals(&self) -> impl Iterator<Item = (ErrorCode, u64)> {
        self.failures.iter().filter_map(|(name, count)| Some((ErrorCode::from_name(name)?, *count)))
    }

    fn new(config: &KneeConfig, rate: f64, measured: &Measurement, evidence: Evidence) -> Self {
        let p99 = quantile(&measured.counts.latency_ns, 0.99);
        let (achieved, failure_share) = (measured.rate(), measured.failure_share());
        // An answer may take up to p99's bound. That the last ones came so much after the end is
        // no sign that the service fell behind; in a short step it would look like one.
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

/// What gave first in a step that was not held. A generator without time says nothing of the
/// service; a refusal is the service's own word; a late generator may be all there is to a high
/// p99; then comes whoever had no time left.
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
    let stories = steps.filter_map(|step| step.verify.as_ref()).flat_map(|it| &it.stories);
    for story in stories.take(VIOLATIONS_KEPT_MAX) {
        let _infallible = writeln!(text, "  {story}");
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

/// The line of one step, with p99 as a multiple of the bare echo.
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

/// Steps upwards: with a factor of 1.5, from 1 to beyond any machine.
const RAISES_MAX: usize = 64;
/// Steps between the highest rate that was held and the lowest that was not.
const NARROWINGS_MAX: usize = 6;
/// Times that a step may be made.
const TRIES_MAX: usize = 2;
/// They are near enough then.
const NARROW_ENOUGH: f64 = 1.08;
/// Of what was held, for the load afterwards.
const RECOVERY_SHARE: f64 = 0.5;
/// Of what was due, as answers per second.
const ACHIEVED_MIN: f64 = 0.95;
/// A thread with less idle time has none.
const BUSY: f64 = 0.9;
/// Of all processors.
const CPU_BUSY: f64 = 0.97;
/// Of all processors in soft interrupts.
const SOFTIRQ: f64 = 0.4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures by kind, their share, what was busy, and what gave.
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

    /// A step that was held, or not.
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
            // A few refusals beside a flood of timeouts are not what gave.
            (&[("OVERLOADED", 10), ("timeout", 90)], 0.1, server, First::ServerCpu),
            (&[("timeout", 90)], 0.1, idle.clone(), First::Waiting),
            // Neither a wrong answer nor a status without a code is a refusal.
            (&[("broken", 90)], 0.1, idle.clone(), First::Waiting),
            (&[("status", 90)], 0.1, idle.clone(), First::Waiting),
            (&[("status", 60), ("NO_QUORUM", 50)], 0.1, idle.clone(), First::Waiting),
            // Attempts to connect are no requests, however many there are.
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
