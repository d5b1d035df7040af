//! The report of a run. `bench run --report` writes it, and `bench compare` reads the part that it
//! needs. Times are nanoseconds, shares are `0.0..=1.0`. Fields may be added; a field that changes
//! its meaning needs another [`FORMAT`]. `docs/benchmarks.md` explains the fields.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use epicepoch_client::Guarantee;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::encoded::Times;
use crate::machine::Machine;
use crate::run::time_series::Interval;
use crate::run::{Arrivals, Checked, Counts, Measurement, Pace, RunConfig, Wire};

/// The format of the report. It is raised when a field changes its meaning. Format 1 had no
/// histograms, and had `seconds` instead of `intervals`.
pub const FORMAT: u64 = 2;

/// The program and its command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Version of the program that measured.
    pub version: String,
    /// The commit that was measured, as the caller named it.
    pub commit: Option<String>,
    /// The command line.
    pub command: Vec<String>,
}

/// Makes the report of a measurement. `echo` is the latency of a bare echo that was measured just
/// before.
#[must_use]
pub fn report(run: &Measurement, echo: Option<&Histogram<u64>>, program: &Program) -> Value {
    let Counts { latency_ns, lateness_ns, .. } = &run.counts;
    let counts = &run.counts;
    json!({
        "format": FORMAT,
        "kind": "run",
        "program": program,
        "started_unix_ns": nanos(run.started.duration_since(UNIX_EPOCH).unwrap_or_default()),
        "config": config(&run.config),
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
        "latency_ns": Times(latency_ns.clone()),
        "hiccup_ns": Times(run.hiccups.clone()),
        "echo_sleeping_ns": echo.cloned().map(Times),
        "generator": {
            "busy": run.generator.busy,
            "lateness_ns": Times(lateness_ns.clone()),
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
        "wire": counts.wire,
        "load_after": run.load_after,
        "machine": run.machine,
        "interval_ns": nanos(run.config.interval),
        "intervals": run.intervals.iter().map(|it| interval(run, it)).collect::<Vec<_>>(),
    })
}

fn config(config: &RunConfig) -> Value {
    let (rate, arrivals) = match config.pace {
        Pace::Closed => (None, None),
        Pace::Open { rate, arrivals: Arrivals::Constant } => (Some(rate), Some("constant")),
        Pace::Open { rate, arrivals: Arrivals::Poisson } => (Some(rate), Some("poisson")),
    };
    let targets = config.targets.iter().map(|it| json!({"nodeID": it.id, "addr": it.name}));
    json!({
        "targets": targets.collect::<Vec<_>>(),
        "transport": config.transport.name(),
        "in_flight": config.transport.in_flight(),
        "connections": config.connections,
        "threads": config.threads_used(),
        "n": config.count,
        "range": config.range,
        "guarantee": config.guarantee.map(Guarantee::name),
        "path": config.path,
        "rate": rate,
        "arrivals": arrivals,
        "warmup_ns": nanos(config.warmup),
        "duration_ns": nanos(config.duration),
        "timeout_ns": nanos(config.request_timeout),
        "spin": config.spin,
        "verify": config.verify,
    })
}

fn verify(checked: &Checked, unverified: u64) -> Value {
    let verdict = &checked.verdict;
    json!({
        "checked": verdict.totals.answered,
        "unverified": unverified,
        "violations": verdict.violation_count,
        "stories": verdict.violations.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "cpu_ns": nanos(checked.cpu),
    })
}

fn interval(run: &Measurement, interval: &Interval) -> Value {
    let length = nanos(run.config.interval);
    let start = interval.number * length;
    // The last interval may end after the measurement, so only its measured part counts.
    let measured = nanos(run.elapsed).saturating_sub(start).clamp(1, length);
    let mut value = json!(interval.latency);
    value["start_ns"] = start.into();
    value["rate"] = (interval.latency.answers as f64 / (measured as f64 / 1e9)).into();
    value["failures"] = json!(interval.failures);
    value
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of a report that is read back.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u64,
    /// The program that measured.
    pub program: Program,
    /// When the warm-up ended, nanoseconds of Unix time.
    pub started_unix_ns: u64,
    /// The settings of the run.
    pub config: Map<String, Value>,
    /// Requests that brought timestamps.
    pub answers: u64,
    /// Timestamps in those answers.
    pub timestamps: u64,
    /// Answers per second.
    pub rate: f64,
    /// Requests without timestamps, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Share of the requests that failed or were not sent.
    pub failure_share: f64,
    /// Latency of the answers.
    pub latency_ns: Times,
    /// Whether the generator could keep up.
    pub generator: Generator,
    /// Result of the check, if answers were checked.
    pub verify: Option<Verify>,
    /// Bytes on the wire.
    pub wire: Wire,
    /// The machine, and its load before the run.
    pub machine: Machine,
}

/// Whether the generator could keep up.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Generator {
    /// Why the figures show the generator and not the service, if so.
    pub bottleneck: Option<String>,
}

/// Result of the check.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Verify {
    /// Checked answers, warm-up included.
    pub checked: u64,
    /// Wrong answers.
    pub violations: u64,
}

/// Why a file is not a report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be read. Check the path and its permissions.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is truncated, or is not a report.
    #[error("it is no report of a run: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another version of the program wrote the report.
    #[error("its format is {0}, this program reads {FORMAT}: measure again with one version")]
    Format(u64),
}

impl Run {
    /// Reads a report from a file.
    ///
    /// # Errors
    /// The file is not a report, or has another format.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Parses the text of a report.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        let value: Value = serde_json::from_str(text)?;
        match value["format"].as_u64() {
            Some(format) if format != FORMAT => Err(RecordError::Format(format)),
            _ => Ok(serde_json::from_value(value)?),
        }
    }

    /// Returns the first setting in which two runs differ so that their figures cannot be compared.
    /// Addresses may differ, because hosts may reach one service at different addresses.
    #[must_use]
    pub fn unlike(&self, other: &Self) -> Option<String> {
        let value = |run: &Self, name: &str| match run.config.get(name) {
            Some(Value::Array(targets)) => targets.len().into(),
            value => value.cloned().unwrap_or_default(),
        };
        let mut names = self.config.keys().chain(other.config.keys());
        let name = names.find(|name| value(self, name) != value(other, name))?;
        Some(format!("{name} is {}, not {}", value(other, name), value(self, name)))
    }
}
