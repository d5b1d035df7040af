//! Measurements as JSON, for scripts. Times are nanoseconds, shares are `0.0..=1.0`; fields may be
//! added, and none changes its meaning without another `format`.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::floor::Floor;
use crate::latency::QUANTILES;
use crate::machine::Machine;
use crate::run::{Arrivals, Checked, Measurement, Pace, Second};
use crate::slo::Judged;

/// What `epicepoch bench floor --json` prints.
#[must_use]
pub fn floor(floor: &Floor) -> Value {
    json!({
        "format": FORMAT,
        "echo_sleeping_ns": times(&floor.echo_sleeping_ns),
        "echo_spinning_ns": times(&floor.echo_spinning_ns),
        "echo_rate_plain": floor.rate_plain,
        "echo_rate_pipelined": floor.rate_pipelined,
        "fsync_ns": times(&floor.fsync_ns),
        "clock_read_ns": nanos(floor.clock),
        "wake_ns": times(&floor.wake_ns),
        "machine": machine(&Machine::read()),
    })
}

/// What `epicepoch bench run --json` writes.
#[must_use]
pub fn run(run: &Measurement, floor: Option<&Histogram<u64>>, slo: &[Judged]) -> Value {
    let counts = &run.counts;
    json!({
        "format": FORMAT,
        "config": config(run),
        "elapsed_ns": nanos(run.elapsed),
        "answers": counts.answers,
        "timestamps": counts.timestamps,
        "rate": run.rate(),
        "answers_by_node": counts.answers_by_node,
        "failures": counts.failures,
        "unsent": counts.unsent,
        "failure_share": run.failure_share(),
        "redirects": counts.redirects,
        "gap_max_ns": nanos(run.gap_max),
        "latency_ns": times(&counts.latency_ns),
        "hiccup_ns": times(&run.hiccups),
        "echo_sleeping_ns": floor.map(times),
        "generator": {
            "busy": run.generator.busy,
            "lateness_ns": times(&counts.lateness_ns),
            "backlogged": counts.backlogged,
            "bottleneck": run.generator.bottleneck.map(|it| it.to_string()),
        },
        "verify": run.checked.as_ref().map(|checked| verify(checked, counts.unverified)),
        "server_cpu": run.server_cpu.iter().map(|(pid, cpu)| json!({
            "pid": pid,
            "cpu_ns": cpu.map(nanos),
            "cpu_per_answer_ns": cpu.map(|cpu| nanos(run.cpu_per_request(cpu))),
        })).collect::<Vec<_>>(),
        "cpu_busy": run.cpu_shares.map(|(busy, _)| busy),
        "cpu_steal": run.cpu_shares.map(|(_, steal)| steal),
        "load_after": run.load_after,
        "machine": machine(&run.machine),
        "seconds": run.seconds.iter().map(second).collect::<Vec<_>>(),
        "slo": slo.iter().map(|it| json!({
            "promise": it.promise,
            "measured": it.measured,
            // No verdict when the generator was the bottleneck.
            "kept": run.generator.bottleneck.is_none().then_some(it.kept),
        })).collect::<Vec<_>>(),
    })
}

fn config(run: &Measurement) -> Value {
    let config = &run.config;
    let (rate, arrivals) = match config.pace {
        Pace::Closed => (None, None),
        Pace::Open { rate, arrivals: Arrivals::Constant } => (Some(rate), Some("constant")),
        Pace::Open { rate, arrivals: Arrivals::Poisson } => (Some(rate), Some("poisson")),
    };
    json!({
        "targets": config.targets.iter().map(|it| json!({
            "nodeID": it.id,
            "addr": it.name,
        })).collect::<Vec<_>>(),
        "transport": config.transport.name(),
        "in_flight": config.transport.in_flight(),
        "connections": config.connections,
        "threads": config.threads.min(config.connections),
        "n": config.count,
        "rate": rate,
        "arrivals": arrivals,
        "warmup_ns": nanos(config.warmup),
        "duration_ns": nanos(config.duration),
        "timeout_ns": nanos(config.request_timeout),
    })
}

fn verify(checked: &Checked, unverified: u64) -> Value {
    let stories: Vec<String> = checked.verdict.violations.iter().map(ToString::to_string).collect();
    json!({
        "checked": checked.verdict.totals.answered,
        "unverified": unverified,
        "violations": checked.verdict.violation_count,
        "stories": stories,
        "cpu_ns": nanos(checked.cpu),
    })
}

fn second(second: &Second) -> Value {
    json!({
        "at_ns": nanos(second.at),
        "answers": second.answers,
        "failures": second.failures,
        "p50_ns": nanos(second.p50),
        "p99_ns": nanos(second.p99),
        "max_ns": nanos(second.max),
    })
}

fn machine(machine: &Machine) -> Value {
    json!({
        "kernel": machine.kernel,
        "cpu": machine.cpu,
        "cpus": machine.cpus,
        "load_before": machine.load,
    })
}

/// Percentiles, extremes and mean of a histogram; no percentiles if it is empty.
fn times(times: &Histogram<u64>) -> Value {
    let mut object = Map::new();
    object.insert("count".to_owned(), times.len().into());
    if !times.is_empty() {
        for (name, share) in QUANTILES {
            object.insert(name.to_owned(), times.value_at_quantile(share).into());
        }
        object.insert("min".to_owned(), times.min().into());
        object.insert("max".to_owned(), times.max().into());
        object.insert("mean".to_owned(), times.mean().into());
    }
    object.into()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Raised when a field changes its meaning.
const FORMAT: u64 = 1;
