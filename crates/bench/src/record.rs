//! The report of a run as it is kept: what `bench run --json` writes, and what merging, comparing
//! and drawing read. One definition for both directions, so that what was written is what is read.
//! Times are nanoseconds, shares are `0.0..=1.0`. Fields may be added; none changes its meaning
//! without another [`FORMAT`]. The fields are explained in `docs/benchmarks.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::encoded::{self, Times};
use crate::json::FloorRecord;
use crate::machine::Machine;
use crate::run::course::{Interval, Packed};
use crate::run::{Arrivals, Checked, Measurement, Pace};
use crate::slo::Judged;
use crate::surroundings::{NodeRecord, WireRecord};

/// Raised when a field changes its meaning. 1 had no histograms and `seconds` for `intervals`.
pub const FORMAT: u64 = 2;

/// The report of one run, or of several that were merged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u64,
    /// `run`: what kind of report this is.
    pub kind: String,
    /// What ran.
    pub program: Program,
    /// When the warm-up ended, nanoseconds of Unix time.
    pub started_unix_ns: u64,
    /// What was asked for.
    pub config: Config,
    /// From the end of the warm-up to the last answer.
    pub elapsed_ns: u64,
    /// Requests that brought timestamps.
    pub answers: u64,
    /// Timestamps in them.
    pub timestamps: u64,
    /// Answers per second.
    pub rate: f64,
    /// Answers by node id.
    pub answers_by_node: BTreeMap<u64, u64>,
    /// Requests that brought none, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Requests that were due and could not be sent.
    pub unsent: u64,
    /// Share of the requests that failed or were not sent.
    pub failure_share: f64,
    /// Times that a request was sent on to the leader.
    pub redirects: u64,
    /// The longest time without an answer.
    pub gap_max_ns: u64,
    /// Latency of the answers.
    pub latency_ns: Times,
    /// How much longer than asked for sleeps of 1 ms took meanwhile.
    pub hiccup_ns: Times,
    /// A bare echo over loopback, measured just before.
    pub echo_sleeping_ns: Option<Times>,
    /// All that the machine can do, measured just before, if that was asked for.
    #[serde(default)]
    pub floor: Option<FloorRecord>,
    /// What the generator knows about itself.
    pub generator: Generator,
    /// What the checker found, if it was to look.
    pub verify: Option<Verify>,
    /// CPU time of local server processes.
    pub server_cpu: Vec<ServerCpu>,
    /// Share of the machine's processor time that was busy.
    pub cpu_busy: Option<f64>,
    /// Share that the host of a virtual machine took for others.
    pub cpu_steal: Option<f64>,
    /// Context switches of the whole machine per second.
    #[serde(default)]
    pub switches_per_second: Option<f64>,
    /// What went over the wire.
    #[serde(default)]
    pub wire: WireRecord,
    /// What the measured nodes told about themselves.
    #[serde(default)]
    pub nodes: Vec<NodeRecord>,
    /// Load averages after the run.
    pub load_after: Option<[f64; 3]>,
    /// The machine, and its load before.
    pub machine: MachineFacts,
    /// Length of an interval.
    pub interval_ns: u64,
    /// The course of the run. What came after its end has intervals of its own.
    pub intervals: Vec<IntervalRecord>,
    /// Promises and whether they were kept.
    pub slo: Vec<Promise>,
    /// The runs that were merged into this one; none if it is a run itself.
    #[serde(default)]
    pub sources: Vec<Source>,
}

/// A run that was merged into another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// What ran.
    pub program: Program,
    /// Where.
    pub machine: MachineFacts,
    /// When its warm-up ended.
    pub started_unix_ns: u64,
    /// What it brought.
    pub answers: u64,
    /// Answers per second.
    pub rate: f64,
}

/// What ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Version of the program that measured.
    pub version: String,
    /// The commit of what was measured, as the caller named it.
    pub commit: Option<String>,
    /// The command line.
    pub command: Vec<String>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The nodes, the one that is asked first in front.
    pub targets: Vec<TargetRecord>,
    /// `http1` or `h2c`.
    pub transport: String,
    /// Requests that may be open on one connection.
    pub in_flight: u64,
    /// Connections in all.
    pub connections: u64,
    /// Threads that send.
    pub threads: u64,
    /// Timestamps per request.
    pub n: u64,
    /// Whether they were asked for as `format=range`.
    #[serde(default)]
    pub range: bool,
    /// Requests per second of an open loop; none in a closed one.
    pub rate: Option<f64>,
    /// How they are spread: `constant` or `poisson`.
    pub arrivals: Option<String>,
    /// Load before the measurement.
    pub warmup_ns: u64,
    /// How long requests were sent and counted.
    pub duration_ns: u64,
    /// How long a request might take.
    pub timeout_ns: u64,
    /// Whether generator threads spun instead of sleeping.
    #[serde(default)]
    pub spin: bool,
    /// Whether what came was checked.
    #[serde(default)]
    pub verify: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Its id.
    #[serde(rename = "nodeID")]
    pub id: u64,
    /// Its client address.
    pub addr: String,
}

/// What the generator knows about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Share of the time in which its busiest thread ran, or waited for a processor.
    pub busy: Option<f64>,
    /// How late it sent what a free connection waited to send.
    pub lateness_ns: Times,
    /// Requests that were due while every connection was in use.
    pub backlogged: u64,
    /// Why the figures are the generator's own, if they are.
    pub bottleneck: Option<String>,
}

/// What the checker found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verify {
    /// Answers that were checked, those of the warm-up too.
    pub checked: u64,
    /// Answers that could not be checked.
    pub unverified: u64,
    /// Answers that were wrong.
    pub violations: u64,
    /// The first of them, told.
    pub stories: Vec<String>,
    /// CPU time that checking took.
    pub cpu_ns: u64,
}

/// CPU time of a server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCpu {
    /// Its process id.
    pub pid: u32,
    /// During the measurement; none if the kernel does not tell.
    pub cpu_ns: Option<u64>,
    /// The same for each answer.
    pub cpu_per_answer_ns: Option<u64>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Kernel release.
    pub kernel: String,
    /// Model of its processor.
    pub cpu: String,
    /// Processors that the generator might use.
    pub cpus: u64,
    /// Load averages over 1, 5 and 15 minutes before the run.
    pub load_before: Option<[f64; 3]>,
}

/// An interval of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntervalRecord {
    /// Its begin, from the end of the warm-up.
    pub start_ns: u64,
    /// Requests that brought timestamps; each counts where its answer came.
    pub answers: u64,
    /// Answers per second; in the last interval, over the part of it that was measured.
    pub rate: f64,
    /// Requests that brought none, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Median latency; 0, as the others, without an answer.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The highest.
    pub max_ns: u64,
    /// All latencies: HdrHistogram V2, compressed, base64.
    pub histogram: String,
    /// The longest hiccup of the machine.
    pub hiccup_max_ns: u64,
    /// All hiccups, encoded in the same way.
    pub hiccups: String,
}

/// A promise of `--slo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// As it was given.
    pub promise: String,
    /// What was measured.
    pub measured: String,
    /// Whether it was kept; no verdict when the generator was the bottleneck.
    pub kept: Option<bool>,
}

/// Why a file is no report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Look at the path and its permissions.
    #[error("it cannot be read: {0}")]
    Io(io::Error),
    /// It is cut, or something else.
    #[error("it is no report of a run: {0}")]
    Malformed(serde_json::Error),
    /// Another version of the program wrote it.
    #[error("its format is {0}, this program reads {FORMAT}: measure again with one version")]
    Format(u64),
    /// It contradicts itself: do not use it.
    #[error("it contradicts itself: {0}")]
    Contradiction(String),
    /// It is larger than any report.
    #[error("it is larger than {FILE_LEN_MAX} bytes, which no report is")]
    TooLong,
}

impl Run {
    /// The report of a measurement. `floor` is a bare echo measured just before.
    #[must_use]
    pub fn new(
        run: &Measurement,
        floor: Option<&Histogram<u64>>,
        slo: &[Judged],
        program: Program,
    ) -> Self {
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
            floor: None,
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
            switches_per_second: run.switches.map(f64::round),
            wire: WireRecord::new(&counts.wire),
            nodes: run.nodes.iter().map(|it| NodeRecord::new(run, it)).collect(),
            load_after: run.load_after,
            machine: MachineFacts::new(&run.machine),
            interval_ns: nanos(run.config.interval),
            intervals: run.intervals.iter().map(|it| IntervalRecord::new(run, it)).collect(),
            slo: slo
                .iter()
                .map(|it| Promise {
                    promise: it.promise.clone(),
                    measured: it.measured.clone(),
                    kept: run.generator.bottleneck.is_none().then_some(it.kept),
                })
                .collect(),
            sources: Vec::new(),
        }
    }

    /// Reads a report from a file.
    ///
    /// # Errors
    /// It is none, of another format, or contradicts itself.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let mut text = String::new();
        let file = File::open(path).map_err(RecordError::Io)?;
        let read = file.take(FILE_LEN_MAX + 1).read_to_string(&mut text);
        let len = read.map_err(RecordError::Io)?;
        if len as u64 > FILE_LEN_MAX {
            return Err(RecordError::TooLong);
        }
        Self::parse(&text)
    }

    /// Reads a report.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        /// What every format has.
        #[derive(Deserialize)]
        struct Head {
            format: u64,
        }
        let Head { format } = serde_json::from_str(text).map_err(RecordError::Malformed)?;
        if format != FORMAT {
            return Err(RecordError::Format(format));
        }
        let mut run: Self = serde_json::from_str(text).map_err(RecordError::Malformed)?;
        run.check()?;
        // Older reports do not have it among their settings.
        run.config.verify |= run.verify.is_some();
        Ok(run)
    }

    /// The text of the report.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every field has a place in JSON")
    }

    fn check(&self) -> Result<(), RecordError> {
        let wrong = |what: String| Err(RecordError::Contradiction(what));
        if self.kind != KIND {
            return wrong(format!("kind is {:?}, not {KIND:?}", self.kind));
        }
        if self.latency_ns.0.len() != self.answers {
            return wrong(format!(
                "{} answers, {} latencies",
                self.answers,
                self.latency_ns.0.len()
            ));
        }
        if self.interval_ns == 0 || self.elapsed_ns == 0 {
            return wrong("a time of 0 that cannot be".to_owned());
        }
        let mut answers = self.intervals.iter().map(|it| it.answers);
        let answers = answers.try_fold(0_u64, u64::checked_add).unwrap_or(u64::MAX);
        if answers != self.answers {
            return wrong(format!("{} answers, {answers} in its intervals", self.answers));
        }
        for (number, interval) in self.intervals.iter().enumerate() {
            let latencies = interval.latency()?;
            interval.hiccups()?;
            if latencies.len() != interval.answers {
                let (answers, latencies) = (interval.answers, latencies.len());
                return wrong(format!(
                    "interval {number}: {answers} answers, {latencies} latencies"
                ));
            }
            if self.interval_ns.checked_mul(number as u64) != Some(interval.start_ns) {
                return wrong(format!("interval {number} begins at {} ns", interval.start_ns));
            }
        }
        Ok(())
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
}

impl Config {
    /// In what another run's settings differ so that figures cannot be held against each other.
    /// Addresses may differ: hosts see the same service at other ones.
    #[must_use]
    pub fn unlike(&self, other: &Self) -> Option<String> {
        let shown = |value: &dyn std::fmt::Debug| format!("{value:?}");
        let pairs = [
            ("transport", shown(&self.transport), shown(&other.transport)),
            ("in_flight", shown(&self.in_flight), shown(&other.in_flight)),
            ("connections", shown(&self.connections), shown(&other.connections)),
            ("n", shown(&self.n), shown(&other.n)),
            ("range", shown(&self.range), shown(&other.range)),
            ("rate", shown(&self.rate), shown(&other.rate)),
            ("arrivals", shown(&self.arrivals), shown(&other.arrivals)),
            ("threads", shown(&self.threads), shown(&other.threads)),
            ("warmup_ns", shown(&self.warmup_ns), shown(&other.warmup_ns)),
            ("duration_ns", shown(&self.duration_ns), shown(&other.duration_ns)),
            ("timeout_ns", shown(&self.timeout_ns), shown(&other.timeout_ns)),
            ("spin", shown(&self.spin), shown(&other.spin)),
            ("verify", shown(&self.verify), shown(&other.verify)),
            ("nodes", shown(&self.targets.len()), shown(&other.targets.len())),
        ];
        let differs = pairs.into_iter().find(|(_, ours, theirs)| ours != theirs);
        differs.map(|(name, ours, theirs)| format!("{name} is {theirs}, not {ours}"))
    }
}

impl Source {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            program: run.program.clone(),
            machine: run.machine.clone(),
            started_unix_ns: run.started_unix_ns,
            answers: run.answers,
            rate: run.rate,
        }
    }
}

impl Verify {
    pub(crate) fn new(checked: &Checked, unverified: u64) -> Self {
        Self {
            checked: checked.verdict.totals.answered,
            unverified,
            violations: checked.verdict.violation_count,
            stories: checked.verdict.violations.iter().map(ToString::to_string).collect(),
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

impl MachineFacts {
    pub(crate) fn new(machine: &Machine) -> Self {
        Self {
            kernel: machine.kernel.clone(),
            cpu: machine.cpu.clone(),
            cpus: machine.cpus as u64,
            load_before: machine.load,
        }
    }
}

impl IntervalRecord {
    fn new(run: &Measurement, interval: &Interval) -> Self {
        let length = nanos(run.config.interval);
        let (start_ns, answers) = (interval.number * length, interval.answers);
        let rate = rate_between(start_ns, length, nanos(run.elapsed), answers);
        let failures = owned(&interval.failures);
        Self::of(start_ns, answers, rate, failures, &interval.latency, &interval.hiccups)
    }

    pub(crate) fn of(
        start_ns: u64,
        answers: u64,
        rate: f64,
        failures: BTreeMap<String, u64>,
        latency: &Packed,
        hiccups: &Packed,
    ) -> Self {
        Self {
            start_ns,
            answers,
            rate,
            failures,
            p50_ns: nanos(latency.p50),
            p99_ns: nanos(latency.p99),
            p999_ns: nanos(latency.p999),
            max_ns: nanos(latency.max),
            histogram: latency.encoded.clone(),
            hiccup_max_ns: nanos(hiccups.max),
            hiccups: hiccups.encoded.clone(),
        }
    }

    /// All latencies of the interval.
    ///
    /// # Errors
    /// The histogram is damaged.
    pub fn latency(&self) -> Result<Histogram<u64>, RecordError> {
        decoded(&self.histogram)
    }

    /// All hiccups of the interval.
    ///
    /// # Errors
    /// The histogram is damaged.
    pub fn hiccups(&self) -> Result<Histogram<u64>, RecordError> {
        decoded(&self.hiccups)
    }
}

fn decoded(text: &str) -> Result<Histogram<u64>, RecordError> {
    encoded::decode(text).map_err(|error| RecordError::Contradiction(error.to_string()))
}

/// Answers per second of an interval, of which only the part before `elapsed` was measured.
pub(crate) fn rate_between(start_ns: u64, length_ns: u64, elapsed_ns: u64, answers: u64) -> f64 {
    let measured = elapsed_ns.saturating_sub(start_ns).clamp(1, length_ns.max(1));
    answers as f64 / (measured as f64 / 1e9)
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
/// Longer than the report of the most intervals with every bucket in use.
const FILE_LEN_MAX: u64 = 256 << 20;
