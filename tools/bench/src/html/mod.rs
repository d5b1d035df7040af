//! One self-contained page for one or more runs: percentile curves, figures over time, hiccups, and
//! facts. It opens from a file and loads nothing: no script, no font, no picture. All text of a
//! report is escaped, because reports come from other machines.
//!
//! - `chart`: one chart as SVG.
//! - `curves`: the charts of a report.
//! - `sheet`: the page around them.

mod chart;
mod curves;
mod sheet;

use std::collections::BTreeMap;
use std::time::Duration;

pub use curves::Named;
use curves::Plot;
use sheet::Sheet;

use crate::json::{self, Beside};
use crate::latency::{QUANTILES, shown};
use crate::record::Run;
use crate::surroundings::NodeRecord;
use crate::text::multiple;

/// Returns the page of these runs, at least one. `verdict` is the table of a comparison, or empty.
#[must_use]
pub fn page(title: &str, runs: &[Named<'_>], verdict: &str) -> String {
    let mut sheet = Sheet::new(title);
    if !verdict.is_empty() {
        sheet.verbatim(verdict);
    }
    for run in runs {
        warn(&mut sheet, runs, run);
    }
    figures(&mut sheet, runs);
    plot(
        &mut sheet,
        "Latency by percentile",
        "percentiles",
        "How many requests were at least this fast. Each further nine has the same room.",
        curves::percentiles(runs),
    );
    plot(
        &mut sheet,
        "Latency over time",
        "latency",
        "By when answers came, since the end of the warm-up.",
        curves::latency(runs),
    );
    plot(
        &mut sheet,
        "Rate over time",
        "rate",
        "Answers per second, since the end of the warm-up.",
        curves::rate(runs),
    );
    percentile_table(&mut sheet, runs);
    floor_table(&mut sheet, runs);
    nodes_table(&mut sheet, runs);
    facts(&mut sheet, runs);
    sheet.finish()
}

fn plot(sheet: &mut Sheet, title: &str, id: &str, says: &str, plot: Option<Plot>) {
    if let Some(Plot { x, y, series }) = plot {
        sheet.chart(title, id, says, &chart::svg(&x, &y, &series), &series);
    }
}

/// Writes warnings about a run.
fn warn(sheet: &mut Sheet, runs: &[Named<'_>], run: &Named<'_>) {
    let who = if runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
    if let Some(bottleneck) = &run.run.generator.bottleneck {
        sheet.warning(&format!("{who}the generator was the bottleneck: {bottleneck}"));
    }
    if let Some(verify) = run.run.verify.as_ref().filter(|it| it.violations > 0) {
        sheet.warning(&format!("{who}{} answers were wrong", verify.violations));
        for description in &verify.descriptions {
            sheet.warning(description);
        }
    }
}

/// Writes the main figures.
fn figures(sheet: &mut Sheet, runs: &[Named<'_>]) {
    sheet.tiles(runs.iter().map(|Named { name, run }| {
        let at = |share| nanos(run.latency_ns.0.value_at_quantile(share));
        let tiles = vec![
            ("answers/s", format!("{:.0}", run.rate)),
            ("p50", at(0.5)),
            ("p99", at(0.99)),
            ("p99.9", at(0.999)),
            ("max", nanos(run.latency_ns.0.max())),
            ("failed", format!("{:.4} %", run.failure_share * 100.0)),
            ("longest silence", nanos(run.gap_max_ns)),
        ];
        ((runs.len() > 1).then_some(*name), tiles)
    }));
}

fn percentile_table(sheet: &mut Sheet, runs: &[Named<'_>]) {
    let mut head = vec![String::new()];
    for Named { name, .. } in runs {
        let of =
            |what: &str| if runs.len() > 1 { format!("{name}: {what}") } else { what.to_owned() };
        head.extend([of("latency"), of("x bare echo"), of("hiccups")]);
    }
    let shares = QUANTILES.iter().copied().chain([("max", 1.0)]);
    let mut rows: Vec<Vec<String>> = shares
        .map(|(name, share)| {
            let mut row = vec![name.to_owned()];
            for Named { run, .. } in runs {
                let latency = run.latency_ns.0.value_at_quantile(share);
                row.push(nanos(latency));
                row.push(times_echo(run, latency as f64));
                row.push(nanos(run.hiccup_ns.0.value_at_quantile(share)));
            }
            row
        })
        .collect();
    let mut mean = vec!["mean".to_owned()];
    for Named { run, .. } in runs {
        let latency = run.latency_ns.0.mean();
        let hiccup = nanos(run.hiccup_ns.0.mean() as u64);
        mean.extend([nanos(latency as u64), times_echo(run, latency), hiccup]);
    }
    rows.push(mean);
    sheet.table("Percentiles", &head, &rows);
}

/// Writes the runs as multiples of their machine's floor, if it was measured.
fn floor_table(sheet: &mut Sheet, runs: &[Named<'_>]) {
    let head = ["just before", "floor", "this run", "x floor"].map(str::to_owned);
    for Named { name, run } in runs.iter().filter(|it| it.run.floor.is_some()) {
        let row = |it: Beside| {
            let run = format!("{} {}", it.of, it.run);
            vec![it.what.to_owned(), it.floor, run, multiple(it.times)]
        };
        let rows: Vec<Vec<String>> = json::beside(run).into_iter().map(row).collect();
        let title =
            if runs.len() > 1 { format!("The floor, {name}") } else { "The floor".to_owned() };
        sheet.table(&title, &head, &rows);
    }
}

/// A latency as a multiple of a bare echo.
fn times_echo(run: &Run, latency: f64) -> String {
    let echo = run.echo_sleeping_ns.as_ref().map(|echo| echo.0.value_at_quantile(0.5));
    echo.filter(|echo| *echo > 0)
        .map_or_else(String::new, |echo| format!("{:.1}", latency / echo as f64))
}

fn nodes_table(sheet: &mut Sheet, runs: &[Named<'_>]) {
    let head =
        ["nodes of one process", "processors", "CPU per answer", "hiccups p50", "p99", "max"];
    for Named { name, run } in runs.iter().filter(|it| !it.run.nodes.is_empty()) {
        let row = |node: &NodeRecord| {
            let ids: Vec<String> = node.ids.iter().map(ToString::to_string).collect();
            vec![
                ids.join(", "),
                format!("{:.2}", node.cores),
                nanos(node.cpu_per_answer_ns),
                nanos(node.hiccup_p50_ns),
                nanos(node.hiccup_p99_ns),
                nanos(node.hiccup_max_ns),
            ]
        };
        let rows: Vec<Vec<String>> = run.nodes.iter().map(row).collect();
        let title = if runs.len() > 1 { format!("Nodes, {name}") } else { "Nodes".to_owned() };
        sheet.table(&title, &head.map(str::to_owned), &rows);
    }
}

/// Writes settings, machine and load of each run.
fn facts(sheet: &mut Sheet, runs: &[Named<'_>]) {
    let mut head = vec![String::new()];
    head.extend(runs.iter().map(|it| it.name.to_owned()));
    let columns: Vec<Vec<(&str, String)>> = runs.iter().map(|it| facts_of(it.run)).collect();
    let rows = (0..columns[0].len()).map(|at| {
        let mut row = vec![columns[0][at].0.to_owned()];
        row.extend(columns.iter().map(|column| column[at].1.clone()));
        row
    });
    sheet.table("Facts", &head, &rows.collect::<Vec<_>>());
}

fn facts_of(run: &Run) -> Vec<(&'static str, String)> {
    let config = &run.config;
    let pace = match config.rate {
        Some(rate) => {
            format!(
                "open loop, {rate} requests per second, {}",
                config.arrivals.as_deref().unwrap_or("?")
            )
        }
        None => "closed loop".to_owned(),
    };
    let share = |share: Option<f64>| {
        share.map_or_else(|| "unknown".to_owned(), |it| format!("{:.1} %", it * 100.0))
    };
    let load = |load: Option<[f64; 3]>| {
        load.map_or_else(|| "unknown".to_owned(), |[a, b, c]| format!("{a}, {b}, {c}"))
    };
    let listed = |counts: &BTreeMap<String, u64>| {
        let all: Vec<String> =
            counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    let targets: Vec<String> =
        config.targets.iter().map(|it| format!("{} ({})", it.id, it.addr)).collect();
    let echo = run.echo_sleeping_ns.as_ref().map_or_else(String::new, |echo| {
        let at = |share| nanos(echo.0.value_at_quantile(share));
        format!("p50 {}, p99 {}", at(0.5), at(0.99))
    });
    let checked = run.verify.as_ref().map_or_else(
        || "not checked".to_owned(),
        |it| format!("{} checked, {} not, {} wrong", it.checked, it.unverified, it.violations),
    );
    let wire = run.wire.per_request().map_or_else(
        || "not counted".to_owned(),
        |(sent, received)| format!("{sent:.1} bytes sent, {received:.1} received per request"),
    );
    vec![
        ("command", run.program.command.join(" ")),
        ("commit", run.program.commit.clone().unwrap_or_else(|| "not named".to_owned())),
        ("version", run.program.version.clone()),
        ("started", utc(run.started_unix_ns)),
        ("nodes", targets.join(", ")),
        ("pace", pace),
        (
            "connections",
            format!(
                "{} over {}, {} in flight, {} threads, n {}",
                config.connections, config.transport, config.in_flight, config.threads, config.n
            ),
        ),
        (
            "duration",
            format!("{} after {} of warm-up", nanos(config.duration_ns), nanos(config.warmup_ns)),
        ),
        ("answers", format!("{} with {} timestamps", run.answers, run.timestamps)),
        ("failures", format!("{}; {} never sent", listed(&run.failures), run.unsent)),
        ("redirects", run.redirects.to_string()),
        ("unique and ordered", checked),
        ("wire", wire),
        ("bare echo", echo),
        ("generator busy", share(run.generator.busy)),
        ("processors busy", share(run.cpu_busy)),
        ("processors stolen", share(run.cpu_steal)),
        ("load before", load(run.machine.load_before)),
        ("load after", load(run.load_after)),
        ("machine", format!("{} x {}", run.machine.cpus, run.machine.cpu)),
        ("kernel", format!("Linux {}", run.machine.kernel)),
    ]
}

fn nanos(nanos: u64) -> String {
    shown(Duration::from_nanos(nanos))
}

/// A moment as RFC 3339 writes it, to the second (after H. Hinnant, "chrono-compatible low-level
/// date algorithms", `civil_from_days`).
fn utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_as_calendars_write_them() {
        let at = |seconds: u64| utc(seconds * 1_000_000_000 + 999);
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(at(4_102_444_799), "2099-12-31T23:59:59Z");
    }
}
