//! Keeps runs in a folder, and shows how their figures change from commit to commit. Runs with
//! different settings belong to different trends.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::latency::{quantile, shown};
use crate::rank::median;
use crate::record::{RecordError, Run};

/// Why a folder cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrendError {
    /// The folder cannot be used. Check the folder and its permissions.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path that was used.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A file is no report. Remove it from the folder.
    #[error("{}: {error}", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: RecordError,
    },
    /// The folder is full. Use another one.
    #[error("there are more than {RUNS_MAX} runs in the folder")]
    TooMany,
}

/// Stores a run in a folder, and makes the folder if needed. Returns the path. Storing the same run
/// again changes nothing.
///
/// # Errors
/// The folder cannot be written.
pub fn keep(folder: &Path, run: &Run) -> Result<PathBuf, TrendError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| TrendError::Io { path, error }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let path = folder.join(format!("{}-{}.json", run.started_unix_ns, file_part(&commit_of(run))));
    // The rename makes the file appear complete or not at all.
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, run.to_json()).map_err(failed(&unfinished))?;
    fs::rename(&unfinished, &path).map_err(failed(&path))?;
    Ok(path)
}

/// Reads all runs of a folder, oldest first.
///
/// # Errors
/// The folder or a report in it cannot be read.
pub fn load(folder: &Path) -> Result<Vec<Run>, TrendError> {
    let failed = |error| TrendError::Io { path: folder.to_owned(), error };
    let mut runs = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|it| it != "json") {
            continue;
        }
        if runs.len() == RUNS_MAX {
            return Err(TrendError::TooMany);
        }
        let run = Run::read(&path).map_err(|error| TrendError::Report { path, error })?;
        runs.push(run);
    }
    runs.sort_by_key(|run| run.started_unix_ns);
    Ok(runs)
}

/// Figures of runs with equal settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trend {
    /// The settings, as text for people.
    pub settings: String,
    /// The commits, in the order of their first runs.
    pub points: Vec<Point>,
}

/// One commit, with the medians of its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The commit, or `unknown`.
    pub commit: String,
    /// When its first run began, nanoseconds of Unix time.
    pub started_unix_ns: u64,
    /// Number of runs.
    pub runs: usize,
    /// Number of runs whose bottleneck was the generator.
    pub generator_bound: usize,
    /// Answers per second.
    pub rate: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// Share of the requests that failed.
    pub failure_share: f64,
}

/// Groups runs into trends. `runs` must be in order of time.
#[must_use]
pub fn trends(runs: &[Run]) -> Vec<Trend> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        let alike = |group: &&mut Vec<&Run>| group[0].config.unlike(&run.config).is_none();
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
        .iter()
        .map(|group| Trend { settings: settings(group[0]), points: points(group) })
        .collect()
}

fn points(runs: &[&Run]) -> Vec<Point> {
    let mut commits: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        match commits.iter_mut().find(|commit| commit_of(commit[0]) == commit_of(run)) {
            Some(commit) => commit.push(run),
            None => commits.push(vec![run]),
        }
    }
    let of = |runs: &[&Run], read: &dyn Fn(&Run) -> f64| {
        median(runs.iter().map(|run| read(run)).collect())
    };
    let at = |share| move |run: &Run| quantile(&run.latency_ns.0, share).as_nanos() as f64;
    commits
        .iter()
        .map(|runs| Point {
            commit: commit_of(runs[0]),
            started_unix_ns: runs[0].started_unix_ns,
            runs: runs.len(),
            generator_bound: runs.iter().filter(|it| it.generator.bottleneck.is_some()).count(),
            rate: of(runs, &|run| run.rate),
            p50_ns: of(runs, &at(0.5)),
            p99_ns: of(runs, &at(0.99)),
            p999_ns: of(runs, &at(0.999)),
            failure_share: of(runs, &|run| run.failure_share),
        })
        .collect()
}

fn commit_of(run: &Run) -> String {
    run.program.commit.clone().unwrap_or_else(|| "unknown".to_owned())
}

/// Makes a commit of any text usable in a file name.
fn file_part(commit: &str) -> String {
    let plain = |it: char| if it.is_ascii_alphanumeric() { it } else { '_' };
    commit.chars().take(COMMIT_LEN).map(plain).collect()
}

fn settings(run: &Run) -> String {
    let config = &run.config;
    let pace = config.rate.map_or("closed loop".to_owned(), |rate| {
        format!("{rate} req/s {}", config.arrivals.as_deref().unwrap_or_default())
    });
    format!(
        "{} nodes, {} connections over {}, in flight {}, n {}, {pace}, {}",
        config.targets.len(),
        config.connections,
        config.transport,
        config.in_flight,
        config.n,
        shown(std::time::Duration::from_nanos(config.duration_ns)),
    )
}

/// Tables and sparklines for the terminal.
#[must_use]
pub fn table(trends: &[Trend]) -> String {
    let mut text = String::new();
    for trend in trends {
        let _infallible = writeln!(
            text,
            "{}\n{:<14} {:>4} {:>10} {:>10} {:>10} {:>10} {:>9}",
            trend.settings, "commit", "runs", "req/s", "p50", "p99", "p99.9", "failed"
        );
        let time = |nanos: f64| shown(std::time::Duration::from_nanos(nanos as u64));
        for point in &trend.points {
            let commit: String = point.commit.chars().take(COMMIT_LEN).collect();
            let bound = if point.generator_bound > 0 { "  generator-bound" } else { "" };
            let _infallible = writeln!(
                text,
                "{commit:<14} {:>4} {:>10.0} {:>10} {:>10} {:>10} {:>7.3} %{bound}",
                point.runs,
                point.rate,
                time(point.p50_ns),
                time(point.p99_ns),
                time(point.p999_ns),
                point.failure_share * 100.0,
            );
        }
        let line = |read: fn(&Point) -> f64| sparkline(trend.points.iter().map(read));
        let _infallible = writeln!(
            text,
            "trend: rate {}  p50 {}  p99 {}  p99.9 {}\n",
            line(|it| it.rate),
            line(|it| it.p50_ns),
            line(|it| it.p99_ns),
            line(|it| it.p999_ns),
        );
    }
    text
}

/// Draws one block per figure, from 0 to the highest, so that a small change looks small.
#[must_use]
pub fn sparkline(figures: impl Iterator<Item = f64> + Clone) -> String {
    let highest = figures.clone().fold(f64::MIN_POSITIVE, f64::max);
    let steps = BLOCKS.len() as f64 - 1.0;
    figures.map(|it| BLOCKS[(it / highest * steps).round().clamp(0.0, steps) as usize]).collect()
}

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters of a commit that are shown.
const COMMIT_LEN: usize = 12;
/// Most runs that one folder may hold; more is an error.
const RUNS_MAX: usize = 1000;
