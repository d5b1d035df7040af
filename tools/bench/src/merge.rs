//! Merges the reports of several generators, on one host or several, that loaded the same service
//! at the same time. All histograms have the same bounds, so adding them up loses nothing.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use thiserror::Error;

use crate::latency;
use crate::record::{IntervalRecord, Run, Source, rate_between};
use crate::run::failure;
use crate::run::time_series::Packed;

/// Why runs cannot be merged.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MergeError {
    /// Only one run was given. Name at least two.
    #[error("at least two runs are needed")]
    TooFew,
    /// A run was made with other settings; only equal loads add up.
    #[error("run {run} was made with other settings than the first: {what}")]
    OtherSettings {
        /// Position of the run, from 1.
        run: usize,
        /// The setting that differs.
        what: String,
    },
    /// The runs were not made at the same time. Runs one after the other are repetitions: compare
    /// them instead.
    #[error(
        "run {run} began {apart_ms} ms apart from the earliest, which is not the same time: what \
         did not run together does not add up"
    )]
    OtherTime {
        /// Position of the run, from 1.
        run: usize,
        /// Time between the starts, in ms.
        apart_ms: u64,
    },
    /// The same run was given twice.
    #[error("run {run} is in the list twice")]
    Twice {
        /// Position of the run, from 1.
        run: usize,
    },
    /// A histogram is damaged.
    #[error("run {run}: {why}")]
    Damaged {
        /// Position of the run, from 1.
        run: usize,
        /// What is wrong.
        why: String,
    },
}

/// Adds up runs that were made at the same time.
///
/// # Errors
/// The runs do not belong together.
pub fn merge(runs: &[Run]) -> Result<Run, MergeError> {
    let [first, others @ ..] = runs else { return Err(MergeError::TooFew) };
    if others.is_empty() {
        return Err(MergeError::TooFew);
    }
    check(first, runs)?;
    let began = runs.iter().map(|run| run.started_unix_ns).min().unwrap_or(0);
    let ended = runs.iter().map(|run| run.started_unix_ns + run.elapsed_ns).max().unwrap_or(0);
    let mut merged = first.clone();
    merged.started_unix_ns = began;
    merged.elapsed_ns = ended - began;
    merged.sources = first.sources_or_self();
    merged.slo.clear();
    for run in others {
        add(&mut merged, run);
    }
    merged.rate = merged.answers as f64 / (merged.elapsed_ns as f64 / 1e9);
    let failures = merged.failures.iter().filter(|(name, _)| failure::is_of_a_request(name));
    let failed = failures.map(|(_, count)| count).sum::<u64>() + merged.unsent;
    merged.failure_share = failure::share(failed, merged.answers);
    // The whole service was silent for at most as long as the generator with the shortest gap saw.
    merged.gap_max_ns = runs.iter().map(|run| run.gap_max_ns).min().unwrap_or(0);
    merged.intervals = intervals(runs, began, merged.elapsed_ns)?;
    Ok(merged)
}

fn check(first: &Run, runs: &[Run]) -> Result<(), MergeError> {
    let earliest = runs.iter().map(|run| run.started_unix_ns).min().unwrap_or(0);
    let allowed = (first.config.duration_ns / APART_SHARE).max(APART_NS);
    for (at, run) in runs.iter().enumerate() {
        let number = at + 1;
        // Each run has its own part of the load, so these settings may differ.
        let mut like = run.config.clone();
        like.connections = first.config.connections;
        like.threads = first.config.threads;
        if like.rate.is_some() == first.config.rate.is_some() {
            like.rate = first.config.rate;
        }
        if let Some(what) = first.config.unlike(&like) {
            return Err(MergeError::OtherSettings { run: number, what });
        }
        if run.interval_ns != first.interval_ns {
            let what = "the length of its intervals".to_owned();
            return Err(MergeError::OtherSettings { run: number, what });
        }
        let apart = run.started_unix_ns - earliest;
        if apart > allowed {
            return Err(MergeError::OtherTime { run: number, apart_ms: apart / 1_000_000 });
        }
        if runs[..at].contains(run) {
            return Err(MergeError::Twice { run: number });
        }
    }
    Ok(())
}

fn add(merged: &mut Run, run: &Run) {
    let sum = |into: &mut Histogram<u64>, from: &Histogram<u64>| {
        into.add(from).expect("only histograms with our bounds are read");
    };
    sum(&mut merged.latency_ns.0, &run.latency_ns.0);
    sum(&mut merged.hiccup_ns.0, &run.hiccup_ns.0);
    sum(&mut merged.generator.lateness_ns.0, &run.generator.lateness_ns.0);
    match (&mut merged.echo_sleeping_ns, &run.echo_sleeping_ns) {
        (Some(into), Some(from)) => sum(&mut into.0, &from.0),
        (into @ None, from) => into.clone_from(from),
        (Some(_), None) => {}
    }
    // A floor belongs to one machine at one time, so a merged run has none.
    merged.floor = None;
    merged.sources.extend(run.sources_or_self());
    merged.config.connections += run.config.connections;
    merged.config.threads += run.config.threads;
    merged.config.rate = merged.config.rate.zip(run.config.rate).map(|(a, b)| a + b);
    merged.answers += run.answers;
    merged.timestamps += run.timestamps;
    merged.unsent += run.unsent;
    merged.redirects += run.redirects;
    merged.generator.backlogged += run.generator.backlogged;
    for (node, count) in &run.answers_by_node {
        *merged.answers_by_node.entry(*node).or_default() += count;
    }
    add_failures(&mut merged.failures, &run.failures);
    let higher = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).max_by(f64::total_cmp);
    merged.generator.busy = higher(merged.generator.busy, run.generator.busy);
    merged.cpu_busy = higher(merged.cpu_busy, run.cpu_busy);
    merged.cpu_steal = higher(merged.cpu_steal, run.cpu_steal);
    if merged.generator.bottleneck.is_none() {
        merged.generator.bottleneck.clone_from(&run.generator.bottleneck);
    }
    // Two generators on one host have measured the same server processes, so each counts once.
    for server in &run.server_cpu {
        if !merged.server_cpu.iter().any(|it| it.pid == server.pid) {
            merged.server_cpu.push(server.clone());
        }
    }
    for server in &mut merged.server_cpu {
        server.cpu_per_answer_ns = server.cpu_ns.map(|cpu| cpu / merged.answers.max(1));
    }
    merged.switches_per_second = higher(merged.switches_per_second, run.switches_per_second);
    merged.wire.add(&run.wire);
    for node in &run.nodes {
        if !merged.nodes.iter().any(|it| it.ids == node.ids) {
            merged.nodes.push(node.clone());
        }
    }
    for node in &mut merged.nodes {
        let spent = node.cores * run.elapsed_ns as f64;
        node.cpu_per_answer_ns = (spent / merged.answers.max(1) as f64) as u64;
    }
    merged.verify = merged.verify.take().zip(run.verify.clone()).map(|(mut sum, next)| {
        sum.checked += next.checked;
        sum.unverified += next.unverified;
        sum.violations += next.violations;
        sum.descriptions.extend(next.descriptions);
        sum.cpu_ns += next.cpu_ns;
        sum
    });
}

fn add_failures(into: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>) {
    for (name, count) in from {
        *into.entry(name.clone()).or_default() += count;
    }
}

/// Each interval of a run is added to the merged interval whose start is nearest.
fn intervals(runs: &[Run], began: u64, elapsed: u64) -> Result<Vec<IntervalRecord>, MergeError> {
    struct Sum {
        latency: Histogram<u64>,
        hiccups: Histogram<u64>,
        failures: BTreeMap<String, u64>,
    }
    let length = runs[0].interval_ns;
    let mut sums: Vec<Sum> = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let offset = (run.started_unix_ns - began + length / 2) / length;
        for (number, interval) in run.intervals.iter().enumerate() {
            let place = number + offset as usize;
            sums.resize_with(sums.len().max(place + 1), || Sum {
                latency: latency::histogram(),
                hiccups: latency::histogram(),
                failures: BTreeMap::new(),
            });
            let damaged = |why: crate::record::RecordError| MergeError::Damaged {
                run: at + 1,
                why: why.to_string(),
            };
            let sum = &mut sums[place];
            sum.latency.add(interval.latency().map_err(damaged)?).expect("our bounds");
            sum.hiccups.add(interval.hiccups().map_err(damaged)?).expect("our bounds");
            add_failures(&mut sum.failures, &interval.failures);
        }
    }
    let records = sums.into_iter().enumerate().map(|(number, sum)| {
        let start_ns = number as u64 * length;
        let answers = sum.latency.len();
        let rate = rate_between(start_ns, length, elapsed, answers);
        let (latency, hiccups) = (Packed::new(&sum.latency), Packed::new(&sum.hiccups));
        IntervalRecord::of(start_ns, answers, rate, sum.failures, &latency, &hiccups)
    });
    Ok(records.collect())
}

impl Run {
    fn sources_or_self(&self) -> Vec<Source> {
        if self.sources.is_empty() { vec![Source::of(self)] } else { self.sources.clone() }
    }
}

/// Runs are merged if they start within this time. It allows for generators that are started by
/// hand.
const APART_NS: u64 = 1_000_000_000;
/// Runs are also merged if they start within this part of their duration: one tenth.
const APART_SHARE: u64 = 10;
