//! Makes the charts of a report: percentile curves, and figures over time. A figure that a report
//! lacks is left out.

use hdrhistogram::Histogram;

use super::chart::{Axis, PENS, Pen, Series};
use crate::record::{IntervalRecord, Run};

/// A report and its name.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Its name in legends.
    pub name: &'a str,
    /// The report.
    pub run: &'a Run,
}

/// A chart, ready to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plot {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

impl Plot {
    /// Makes a plot, or returns `None` if no line has two points.
    pub(super) fn new(x: Axis, y: Axis, series: Vec<Series>) -> Option<Self> {
        let series: Vec<Series> =
            series.into_iter().filter(|line| line.points.len() >= 2).collect();
        (!series.is_empty()).then_some(Self { x, y, series })
    }
}

/// Latency and hiccups by quantile, and the bare echo as a horizontal line. Each further nine of
/// the quantile takes the same width of the axis.
pub(super) fn percentiles(runs: &[Named<'_>]) -> Option<Plot> {
    let mut series = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let (solid, dashed) = pens(at);
        let name = |what: &str| named(runs, run, what);
        let of = |times: &Histogram<u64>| curve(times);
        let (latency, hiccups) = (of(&run.run.latency_ns.0), of(&run.run.hiccup_ns.0));
        series.push(Series { name: name("latency"), pen: solid, points: latency });
        series.push(Series {
            name: name("hiccups of the generator"),
            pen: dashed,
            points: hiccups,
        });
    }
    series.retain(|line| line.points.len() >= 2);
    let right = series.iter().filter_map(|line| line.points.last()).map(|it| it.0);
    let right = right.fold(2.0, f64::max);
    let echo = runs.iter().find_map(|run| run.run.echo_sleeping_ns.as_ref());
    if let Some(echo) = echo.filter(|echo| !echo.0.is_empty() && !series.is_empty()) {
        let level = log(echo.0.value_at_quantile(0.5));
        let points = vec![(0.0, level), (right, level)];
        series.push(Series { name: "bare echo, median".to_owned(), pen: PENS[5], points });
    }
    let nines = (0..=right.floor() as i32).map(|nines| (f64::from(nines), share_name(nines)));
    let mut marks: Vec<(f64, String)> = nines.collect();
    marks.insert(1, (2_f64.log10(), "50 %".to_owned()));
    let x = Axis { from: 0.0, to: right * 1.01, marks };
    Plot::new(x, time_axis(&series), series)
}

/// Answers per second over time.
pub(super) fn rate(runs: &[Named<'_>]) -> Option<Plot> {
    let mut series = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let (solid, dashed) = pens(at);
        let points = time_series(run.run, |interval| Some(interval.rate));
        let name = named(runs, run, "answers per second");
        series.push(Series { name, pen: solid, points });
        let span = run.run.interval_ns as f64 / 1e9;
        let failures =
            time_series(run.run, |it| Some(it.failures.values().sum::<u64>() as f64 / span));
        if failures.iter().any(|(_, rate)| *rate > 0.0) {
            let name = named(runs, run, "failures per second");
            series.push(Series { name, pen: dashed, points: failures });
        }
    }
    let y = Axis::linear(highest(&series, |it| it.1), count_name);
    Plot::new(seconds_axis(&series), y, series)
}

/// Latency over time, and the longest stall of the generator's machine.
pub(super) fn latency(runs: &[Named<'_>]) -> Option<Plot> {
    type Line = (&'static str, Pen, fn(&IntervalRecord) -> u64);
    let mut series = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let alone: [Line; 4] = [
            ("p50", PENS[2], |it| it.p50_ns),
            ("p99", PENS[0], |it| it.p99_ns),
            ("max", PENS[1], |it| it.max_ns),
            ("longest hiccup of the generator", PENS[3], |it| it.hiccup_max_ns),
        ];
        let together: [Line; 2] =
            [("p99", pens(at).0, |it| it.p99_ns), ("max", pens(at).1, |it| it.max_ns)];
        let lines = if runs.len() > 1 { &together[..] } else { &alone[..] };
        for (what, pen, of) in lines {
            let points =
                time_series(run.run, |it| Some(of(it)).filter(|nanos| *nanos > 0).map(log));
            series.push(Series { name: named(runs, run, what), pen: *pen, points });
        }
    }
    Plot::new(seconds_axis(&series), time_axis(&series), series)
}

fn named(runs: &[Named<'_>], run: &Named<'_>, what: &str) -> String {
    if runs.len() > 1 { format!("{}: {what}", run.name) } else { what.to_owned() }
}

/// The solid and the dashed pen of a run.
fn pens(run: usize) -> (Pen, Pen) {
    (PENS[run % RUNS_MAX], PENS[3 + run % RUNS_MAX])
}

/// The points of a histogram. Each step halves the remaining share, as HdrHistogram's tools do.
fn curve(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    if times.is_empty() {
        return Vec::new();
    }
    // The highest of N values stands at 1 - 1/N.
    let least = (times.len() as f64).recip();
    let place = |share: f64| (1.0 - share).max(least).recip().log10();
    let mut points = vec![(0.0, log(times.min()))];
    let steps = times.iter_quantiles(STEPS_PER_HALF);
    points.extend(steps.map(|it| (place(it.quantile()), log(it.value_iterated_to()))));
    points.dedup();
    points
}

/// A figure of each interval, as points. The time is the middle of the interval, counted from the
/// end of the warm-up.
fn time_series(run: &Run, of: impl Fn(&IntervalRecord) -> Option<f64>) -> Vec<(f64, f64)> {
    let until = run.config.duration_ns;
    let inside = run.intervals.iter().filter(|it| it.start_ns < until);
    inside
        .filter_map(|it| {
            let end = (it.start_ns + run.interval_ns).min(until);
            Some(((it.start_ns + end) as f64 / 2e9, of(it)?))
        })
        .collect()
}

/// Decimal logarithm of nanoseconds. 0 counts as 1 ns.
pub(super) fn log(nanos: u64) -> f64 {
    (nanos.max(1) as f64).log10()
}

pub(super) fn highest(series: &[Series], of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    series.iter().flat_map(|line| &line.points).map(of).fold(0.0, f64::max)
}

fn seconds_axis(series: &[Series]) -> Axis {
    Axis::linear(highest(series, |it| it.0), |at| format!("{} s", round(at)))
}

/// An axis of nanoseconds for points that are logarithms.
pub(super) fn time_axis(series: &[Series]) -> Axis {
    let all = || series.iter().flat_map(|line| &line.points).map(|it| it.1);
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(f64::NEG_INFINITY, f64::max);
    Axis::logarithmic(10_f64.powf(low), 10_f64.powf(high), time_name)
}

fn time_name(nanos: f64) -> String {
    let (value, unit) = match nanos {
        ..999.5 => (nanos, "ns"),
        ..999.5e3 => (nanos / 1e3, "us"),
        ..999.5e6 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    format!("{} {unit}", round(value))
}

pub(super) fn count_name(value: f64) -> String {
    match value {
        ..1e3 => round(value),
        ..1e6 => format!("{} k", round(value / 1e3)),
        _ => format!("{} M", round(value / 1e6)),
    }
}

/// The number as text, without rounding errors.
fn round(value: f64) -> String {
    ((value * 1e3).round() / 1e3).to_string()
}

/// 0 %, 90 %, 99 %, 99.9 % and so on.
fn share_name(nines: i32) -> String {
    match nines {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        _ => format!("99.{} %", "9".repeat(nines as usize - 2)),
    }
}

/// Most runs with different pens. Further runs use the same pens again.
pub(super) const RUNS_MAX: usize = 2;
/// Points for each halving of the remaining share.
const STEPS_PER_HALF: u32 = 6;
