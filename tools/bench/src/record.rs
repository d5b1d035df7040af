//! The report of a run. `bench run --json` writes it; `bench compare` reads it with the same
//! definition. Times are nanoseconds, shares are `0.0..=1.0`. Fields may be added; a field
//! that changes its meaning needs another [`FORMAT`]. `docs/benchmarks.md` explains the fields.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::encoded::Times;
use crate::machine::Machine;
use crate::run::time_series::{Interval, Packed};
use crate::run::{Arrivals, Checked, Measurement, Pace, Wire};

/// Raised when a field changes its meaning. Format 1 had no histograms, and `seconds` instead of
/// `intervals`.
pub const FORMAT: u64 = 2;

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u64,
    /// Always `run`.
    pub kind: String,
    /// The program that measured.
    pub program: Program,
    /// When the warm-up ended, nanoseconds of Unix time.
    pub started_unix_ns: u64,
    /// The settings of the run.
    pub config: Config,
    /// Time from the end of the warm-up to the last answer.
    pub elapsed_ns: u64,
    /// Requests that brought timestamps.
    pub answers: u64,
    /// Timestamps in those answers.
    pub timestamps: u64,
    /// Answers per second.
    pub rate: f64,
    /// Answers by node id.
    pub answers_by_node: BTreeMap<u64, u64>,
    /// Requests without timestamps, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Requests that were due and could not be sent.
    pub unsent: u64,
    /// Share of the requests that failed or were not sent.
    pub failure_share: f64,
    /// How often a request was sent again to the leader.
    pub redirects: u64,
    /// The longest time without an answer.
    pub gap_max_ns: u64,
    /// Latency of the answers.
    pub latency_ns: Times,
    /// Hiccups: how much longer than 1 ms each sleep of 1 ms took.
    pub hiccup_ns: Times,
    /// Latency of a bare echo over loopback, measured just before.
    pub echo_sleeping_ns: Option<Times>,
    /// Whether the generator could keep up.
    pub generator: Generator,
    /// Result of the check, if answers were checked.
    pub verify: Option<Verify>,
    /// CPU time of local server processes.
    pub server_cpu: Vec<ServerCpu>,
    /// Share of the machine's processor time that was busy.
    pub cpu_busy: Option<f64>,
    /// Share that the host of a virtual machine took for other guests.
    pub cpu_steal: Option<f64>,
    /// Bytes on the wire.
    #[serde(default)]
    pub wire: Wire,
    /// Load averages after the run.
    pub load_after: Option<[f64; 3]>,
    /// The machine, and its load before.
    pub machine: Machine,
    /// Length of an interval.
    pub interval_ns: u64,
    /// The intervals of the run. Answers that came after its end are in further intervals.
    pub intervals: Vec<IntervalRecord>,
}

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

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The nodes; the first is asked first.
    pub targets: Vec<TargetRecord>,
    /// The transport, as on the command line.
    pub transport: String,
    /// Requests that may be open on one connection.
    pub in_flight: u64,
    /// Connections in all.
    pub connections: u64,
    /// Threads that send.
    pub threads: u64,
    /// Timestamps per request.
    pub n: u64,
    /// Whether `format=range` was asked for.
    #[serde(default)]
    pub range: bool,
    /// Requests per second in an open loop; `None` in a closed loop.
    pub rate: Option<f64>,
    /// Distribution of the times between them: `constant` or `poisson`.
    pub arrivals: Option<String>,
    /// Time of the load before the measurement.
    pub warmup_ns: u64,
    /// How long requests were sent and counted.
    pub duration_ns: u64,
    /// Timeout of a request.
    pub timeout_ns: u64,
    /// Whether generator threads spun instead of sleeping.
    #[serde(default)]
    pub spin: bool,
    /// Whether answers were checked.
    #[serde(default)]
    pub verify: bool,
}

/// A node that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Its id.
    #[serde(rename = "nodeID")]
    pub id: u64,
    /// Its client address.
    pub addr: String,
}

/// How busy and how late the generator was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Share of the time in which its busiest thread ran or waited for a processor.
    pub busy: Option<f64>,
    /// How late requests were sent although a connection was free.
    pub lateness_ns: Times,
    /// Requests that were due while no connection was free.
    pub backlogged: u64,
    /// Why the figures show the generator and not the service, if so.
    pub bottleneck: Option<String>,
}

/// Result of the check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verify {
    /// Checked answers, warm-up included.
    pub checked: u64,
    /// Unchecked answers.
    pub unverified: u64,
    /// Wrong answers.
    pub violations: u64,
    /// Descriptions of the first wrong answers.
    #[serde(rename = "stories")]
    pub descriptions: Vec<String>,
    /// CPU time of the check.
    pub cpu_ns: u64,
}

/// CPU time of a server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCpu {
    /// Its process id.
    pub pid: u32,
    /// CPU time during the measurement; `None` if unknown.
    pub cpu_ns: Option<u64>,
    /// CPU time per answer; `None` if unknown.
    pub cpu_per_answer_ns: Option<u64>,
}

/// An interval of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// Start of the interval, counted from the end of the warm-up.
    pub start_ns: u64,
    /// Answers per second, over the measured part of the interval.
    pub rate: f64,
    /// Requests without timestamps, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Answers that came in it, and their latency.
    #[serde(flatten)]
    pub latency: Packed,
}

/// Why a file is not a report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be read. Check the path and its permissions.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is truncated, or is no report.
    #[error("it is no report of a run: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Another version of the program wrote the report.
    #[error("its format is {0}, this program reads {FORMAT}: measure again with one version")]
    Format(u64),
}

impl Run {
    /// Makes the report of a measurement. `floor` is a bare echo measured just before.
    #[must_use]
    pub fn new(run: &Measurement, floor: Option<&Histogram<u64>>, program: Program) -> Self {
        let counts = &run.counts;
        Self {
            format: FORMAT,
            kind: KIND.to_owned(),
            program,
            started_unix_ns: unix_ns(run.started),
            config: Config::new(run),
            elapsed_ns: nanos(run.elapsed),
            answers: counts.answers,
            timestamps: counts.timestamps,
            rate: run.rate(),
            answers_by_node: counts.answers_by_node.clone(),
            failures: owned(&counts.failures),
            unsent: counts.unsent,
            failure_share: run.failure_share(),
            redirects: counts.redirects,
            gap_max_ns: nanos(run.gap_max),
            latency_ns: Times(counts.latency_ns.clone()),
            hiccup_ns: Times(run.hiccups.clone()),
            echo_sleeping_ns: floor.cloned().map(Times),
            generator: Generator {
                busy: run.generator.busy,
                lateness_ns: Times(counts.lateness_ns.clone()),
                backlogged: counts.backlogged,
                bottleneck: run.generator.bottleneck.map(|it| it.to_string()),
            },
            verify: run.checked.as_ref().map(|checked| Verify::new(checked, counts.unverified)),
            server_cpu: run.server_cpu.iter().map(|it| ServerCpu::new(run, it)).collect(),
            cpu_busy: run.cpu_shares.map(|(busy, _)| busy),
            cpu_steal: run.cpu_shares.map(|(_, steal)| steal),
            wire: counts.wire,
            load_after: run.load_after,
            machine: run.machine.clone(),
            interval_ns: nanos(run.config.interval),
            intervals: run.intervals.iter().map(|it| IntervalRecord::new(run, it)).collect(),
        }
    }

    /// Reads a report from a file.
    ///
    /// # Errors
    /// The file is no report, or has another format.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Parses the text of a report.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        /// The part that every format has.
        #[derive(Deserialize)]
        struct Head {
            format: u64,
        }
        let Head { format } = serde_json::from_str(text)?;
        if format != FORMAT {
            return Err(RecordError::Format(format));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The text of the report.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every field has a place in JSON")
    }
}

impl Config {
    fn new(run: &Measurement) -> Self {
        let config = &run.config;
        let (rate, arrivals) = match config.pace {
            Pace::Closed => (None, None),
            Pace::Open { rate, arrivals: Arrivals::Constant } => (Some(rate), Some("constant")),
            Pace::Open { rate, arrivals: Arrivals::Poisson } => (Some(rate), Some("poisson")),
        };
        let target = |id, name: &String| TargetRecord { id, addr: name.clone() };
        Self {
            targets: config.targets.iter().map(|it| target(it.id, &it.name)).collect(),
            transport: config.transport.name().to_owned(),
            in_flight: config.transport.in_flight() as u64,
            connections: config.connections as u64,
            threads: config.threads.min(config.connections) as u64,
            n: config.count,
            range: config.range,
            rate,
            arrivals: arrivals.map(str::to_owned),
            warmup_ns: nanos(config.warmup),
            duration_ns: nanos(config.duration),
            timeout_ns: nanos(config.request_timeout),
            spin: config.spin,
            verify: config.verify,
        }
    }

    /// Returns the first setting that makes the figures of two runs incomparable. Addresses may
    /// differ, because hosts may reach one service at different addresses.
    #[must_use]
    pub fn unlike(&self, other: &Self) -> Option<String> {
        let settings = |config: &Self| {
            let mut settings = serde_json::to_value(config).expect("every field has a place");
            settings["targets"] = config.targets.len().into();
            settings
        };
        let (ours, theirs) = (settings(self), settings(other));
        let ours = ours.as_object().expect("a structure is an object");
        let differs = ours.iter().find(|(name, value)| theirs[name.as_str()] != **value);
        differs.map(|(name, value)| format!("{name} is {}, not {value}", theirs[name]))
    }
}

impl Verify {
    pub(crate) fn new(checked: &Checked, unverified: u64) -> Self {
        Self {
            checked: checked.verdict.totals.answered,
            unverified,
            violations: checked.verdict.violation_count,
            descriptions: checked.verdict.violations.iter().map(ToString::to_string).collect(),
            cpu_ns: nanos(checked.cpu),
        }
    }
}

impl ServerCpu {
    fn new(run: &Measurement, (pid, cpu): &(u32, Option<Duration>)) -> Self {
        Self {
            pid: *pid,
            cpu_ns: cpu.map(nanos),
            cpu_per_answer_ns: cpu.map(|cpu| nanos(run.cpu_per_request(cpu))),
        }
    }
}

impl IntervalRecord {
    fn new(run: &Measurement, interval: &Interval) -> Self {
        let length = nanos(run.config.interval);
        let start_ns = interval.number * length;
        // The interval may end after the measurement.
        let measured = nanos(run.elapsed).saturating_sub(start_ns).clamp(1, length.max(1));
        Self {
            start_ns,
            rate: interval.latency.answers as f64 / (measured as f64 / 1e9),
            failures: owned(&interval.failures),
            latency: interval.latency.clone(),
        }
    }
}

fn owned(failures: &BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    failures.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn unix_ns(time: SystemTime) -> u64 {
    nanos(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

const KIND: &str = "run";
