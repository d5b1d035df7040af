//! The totals of `epicepoch probe` for `/metrics`: the service as clients of the cluster see it.
//! [`crate::run::monitor`] measures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::run::monitor::Snapshot;

/// Totals of all snapshots.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Number of nodes that are probed; 0 while none is known.
    pub targets: usize,
    /// Failed attempts to learn the members.
    pub searches_failed: u64,
    answers: u64,
    failures: BTreeMap<&'static str, u64>,
    latency: Buckets,
    hiccups: Buckets,
    hiccup_max: Duration,
    violations: u64,
    checked: u64,
    leader: u64,
    leader_changes: u64,
    restores: u64,
    gap_max: Duration,
    silence: Duration,
}

/// Counts of values below each of [`BOUNDS_US`], and their sum.
#[derive(Clone, Debug, Default)]
struct Buckets {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_ns: u128,
}

impl Buckets {
    fn add(&mut self, nanos: u64, count: u64) {
        self.counts[BOUNDS_US.partition_point(|bound| *bound * 1000 < nanos)] += count;
        self.sum_ns += u128::from(nanos) * u128::from(count);
    }

    fn add_all(&mut self, times: &Histogram<u64>) {
        for step in times.iter_recorded() {
            self.add(step.value_iterated_to(), step.count_at_value());
        }
    }
}

impl Account {
    /// Adds the counts of a snapshot.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.answers += snapshot.answers;
        for (name, count) in &snapshot.failures {
            *self.failures.entry(name).or_default() += count;
        }
        self.latency.add_all(&snapshot.latency_ns);
        self.violations = snapshot.violations;
        self.checked = snapshot.checked;
        self.leader = snapshot.leader;
        self.leader_changes = snapshot.leader_changes;
        self.restores = snapshot.restores;
        self.gap_max = snapshot.gap_max;
        self.silence = snapshot.silence;
    }

    /// Adds a hiccup: how much longer than planned a sleep of this process took.
    pub fn add_hiccup(&mut self, late: Duration) {
        self.hiccups.add(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX), 1);
        self.hiccup_max = self.hiccup_max.max(late);
    }

    /// Answers that were wrong.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// One line for the log.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{} answers, {} failures, {} leader changes, {} wrong answers, longest silence {}",
            self.answers,
            self.failures.values().sum::<u64>(),
            self.leader_changes,
            self.violations,
            crate::latency::shown(self.gap_max),
        )
    }

    /// The content of [`Self::summary`] as JSON, with the failures by kind.
    #[must_use]
    pub fn document(&self) -> Value {
        json!({
            "answers": self.answers,
            "failures": self.failures,
            "leaderChanges": self.leader_changes,
            "wrongAnswers": self.violations,
            "silenceMaxMs": self.gap_max.as_secs_f64() * 1e3,
        })
    }

    /// Returns the answer to a scrape, in the `OpenMetrics` text format, version 1.0.0.
    #[must_use]
    pub fn render(&self) -> String {
        let mut page = Page(String::with_capacity(TEXT_LEN_EXPECTED));
        page.gauge(
            "targets",
            "Nodes that are probed; 0 until the members are known.",
            self.targets as f64,
        );
        page.counter(
            "searches_failed",
            "Times that nobody could tell the members.",
            self.searches_failed,
        );
        page.counter("answers", "Requests that brought timestamps.", self.answers);
        page.head(
            "failures",
            "counter",
            "Requests that brought none, by kind: an error code, or lost, timeout, status, \
             cluster, broken; \
             and connections that failed: connect, protocol.",
        );
        for (kind, count) in &self.failures {
            page.line("failures_total", &format!("{{kind=\"{kind}\"}}"), count);
        }
        page.histogram(
            "latency_seconds",
            "From when a request was due until its answer, redirects and waiting included.",
            &self.latency,
        );
        page.counter(
            "answers_checked",
            "Answers that were checked for order and uniqueness.",
            self.checked,
        );
        page.counter(
            "violations",
            "Answers that were wrong: given twice, or not above an answer that was complete \
             before. Must be 0 for ever.",
            self.violations,
        );
        page.gauge(
            "leader",
            "Id of the node that answered last; 0 before the first answer.",
            self.leader as f64,
        );
        page.counter(
            "leader_changes",
            "How often another node answered than before.",
            self.leader_changes,
        );
        page.counter(
            "restores",
            "How often the cluster was restored from a backup. Only the transport \"client\" notices \
             that.",
            self.restores,
        );
        page.gauge(
            "gap_max_seconds",
            "The longest time without an answer since the probe started.",
            self.gap_max.as_secs_f64(),
        );
        page.gauge("silence_seconds", "Time since the last answer.", self.silence.as_secs_f64());
        page.histogram(
            "hiccup_seconds",
            "How much longer than asked for sleeps of the probe took: by how much its own machine \
             stalls. Latency that is no longer than this is the probe's.",
            &self.hiccups,
        );
        page.gauge(
            "hiccup_max_seconds",
            "The longest of these stalls.",
            self.hiccup_max.as_secs_f64(),
        );
        page.0.push_str("# EOF\n");
        page.0
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _infallible =
            writeln!(self.0, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}");
        if name.ends_with("_seconds") {
            let _infallible = writeln!(self.0, "# UNIT {PREFIX}{name} seconds");
        }
    }

    fn line(&mut self, name: &str, labels: &str, value: &dyn std::fmt::Display) {
        let _infallible = writeln!(self.0, "{PREFIX}{name}{labels} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.line(&format!("{name}_total"), "", &value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, "", &value);
    }

    fn histogram(&mut self, name: &str, help: &str, buckets: &Buckets) {
        self.head(name, "histogram", help);
        let mut below = 0;
        let bounds = BOUNDS_US.iter().map(|bound| (*bound as f64 / 1e6).to_string());
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(buckets.counts) {
            below += count;
            self.line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), &below);
        }
        self.line(&format!("{name}_sum"), "", &(buckets.sum_ns as f64 / 1e9));
        self.line(&format!("{name}_count"), "", &below);
    }
}

const PREFIX: &str = "epicepoch_probe_";
/// Upper bounds of the buckets, three per decade, from the latency of a spinning echo to the
/// longest sensible timeout.
const BOUNDS_US: [u64; 20] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000,
];
/// Approximate length of a scrape.
const TEXT_LEN_EXPECTED: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency;

    #[test]
    fn snapshots_add_up_and_totals_since_the_start_are_replaced() {
        let mut times = latency::histogram();
        latency::record(&mut times, Duration::from_micros(150));
        latency::record(&mut times, Duration::from_millis(300));
        let snapshot = Snapshot {
            answers: 2,
            failures: [("timeout", 1)].into(),
            latency_ns: times,
            descriptions: Vec::new(),
            violations: 3,
            checked: 40,
            leader: 2,
            leader_changes: 1,
            restores: 1,
            gap_max: Duration::from_millis(250),
            silence: Duration::ZERO,
        };
        let mut account = Account { targets: 3, ..Account::default() };
        account.add(&snapshot);
        account.add(&snapshot);
        account.add_hiccup(Duration::from_millis(4));
        let text = account.render();
        for line in [
            "epicepoch_probe_targets 3",
            "epicepoch_probe_answers_total 4",
            "epicepoch_probe_failures_total{kind=\"timeout\"} 2",
            "epicepoch_probe_latency_seconds_bucket{le=\"0.0001\"} 0",
            "epicepoch_probe_latency_seconds_bucket{le=\"0.0002\"} 2",
            "epicepoch_probe_latency_seconds_bucket{le=\"0.5\"} 4",
            "epicepoch_probe_latency_seconds_bucket{le=\"+Inf\"} 4",
            "epicepoch_probe_latency_seconds_count 4",
            "epicepoch_probe_violations_total 3",
            "epicepoch_probe_answers_checked_total 40",
            "epicepoch_probe_leader 2",
            "epicepoch_probe_leader_changes_total 1",
            "epicepoch_probe_restores_total 1",
            "epicepoch_probe_gap_max_seconds 0.25",
            "epicepoch_probe_hiccup_max_seconds 0.004",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
