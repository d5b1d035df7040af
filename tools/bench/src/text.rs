//! Measurements as tables for people.

use std::fmt::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::floor::Floor;
use crate::latency::{QUANTILES, quantile, shown};
use crate::run::{Checked, Measurement, Pace, RunConfig};

/// The table of `epicepoch bench floor`.
#[must_use]
pub fn floor_table(floor: &Floor) -> String {
    let mut text = format!("{:<42} {:>12} {:>12}\n", "this machine", "p50", "p99");
    let mut both = |name: &str, times: &Histogram<u64>| {
        let (p50, p99) = (shown(quantile(times, 0.5)), shown(quantile(times, 0.99)));
        let _infallible = writeln!(text, "{name:<42} {p50:>12} {p99:>12}");
    };
    both("echo of 16 bytes, both ends sleep", &floor.echo_sleeping_ns);
    both("echo of 16 bytes, both ends spin", &floor.echo_spinning_ns);
    both("write of 4 KiB and fsync", &floor.fsync_ns);
    both("wake-up of a sleeping thread", &floor.wake_ns);
    let _infallible = writeln!(text, "{:<42} {:>12}", "one clock read, mean", shown(floor.clock));
    text
}

/// The final table of `epicepoch bench run`. `echo` is the latency of a bare echo measured just
/// before.
#[must_use]
pub fn run_table(run: &Measurement, echo: Option<&Histogram<u64>>) -> String {
    let mut text = headline(&run.config);
    percentiles(&mut text, run, echo);
    rates(&mut text, run);
    surroundings(&mut text, run);
    if let Some(bottleneck) = &run.generator.bottleneck {
        line(&mut text, "THE GENERATOR WAS THE BOTTLENECK", &bottleneck.to_string());
    }
    text
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&run_table(self, None))
    }
}

fn headline(config: &RunConfig) -> String {
    let pace = match config.pace {
        Pace::Open { rate, arrivals } => format!("open loop, {rate} req/s {arrivals:?}"),
        Pace::Closed => "closed loop".to_owned(),
    };
    let asked = if let Some(path) = &config.path {
        format!("GET {path}")
    } else {
        let guarantee = config.guarantee.map(|it| format!(", guarantee {it}"));
        let range = if config.range { " as a range" } else { "" };
        format!("n {}{range}{}", config.count, guarantee.unwrap_or_default())
    };
    format!(
        "connections {} over {}, in flight {}, threads {}, {asked}, {pace}, {} after {} of warm-up\n",
        config.connections,
        config.transport.name(),
        config.transport.in_flight(),
        config.threads_used(),
        shown(config.duration),
        shown(config.warmup),
    )
}

fn percentiles(text: &mut String, run: &Measurement, echo: Option<&Histogram<u64>>) {
    let (latencies, hiccups) = (&run.counts.latency_ns, &run.hiccups);
    let _infallible =
        writeln!(text, "\n{:<10} {:>10} {:>10} {:>12}", "", "latency", "hiccups", "x bare echo");
    let median = echo.map(|echo| quantile(echo, 0.5).as_secs_f64().max(1e-9));
    for (name, share) in QUANTILES.iter().copied().chain([("max", 1.0)]) {
        let latency = quantile(latencies, share);
        let times = median.map(|median| format!("{:.1}", latency.as_secs_f64() / median));
        let (times, latency) = (times.unwrap_or_default(), shown(latency));
        let hiccup = shown(quantile(hiccups, share));
        let _infallible = writeln!(text, "{name:<10} {latency:>10} {hiccup:>10} {times:>12}");
    }
    let mean = |times: &Histogram<u64>| shown(Duration::from_nanos(times.mean() as u64));
    let (latency, hiccup) = (mean(latencies), mean(hiccups));
    let _infallible = writeln!(text, "{:<10} {latency:>10} {hiccup:>10}\n", "mean");
    if let Some(echo) = echo {
        let of = |share| shown(quantile(echo, share));
        line(text, "bare echo", &format!("p50 {}, p99 {}", of(0.5), of(0.99)));
    }
}

fn rates(text: &mut String, run: &Measurement) {
    let counts = &run.counts;
    line(text, "rate", &format!("{:.1} req/s, {} answers", run.rate(), counts.answers));
    let timestamps = counts.timestamps as f64 / run.elapsed.as_secs_f64();
    line(text, "timestamps", &format!("{timestamps:.1} per second"));
    let nodes = counts.answers_by_node.iter().map(|(node, count)| match node {
        0 => format!("nodes that were not among the targets: {count}"),
        node => format!("node {node}: {count}"),
    });
    line(text, "answered by", &listed(nodes, "nobody"));
    let failures = counts.failures.iter().map(|(name, count)| format!("{count} {name}"));
    let unsent = (counts.unsent > 0).then(|| format!("{} never sent", counts.unsent));
    let failures = listed(failures.chain(unsent), "none");
    line(text, "failed", &format!("{:.4} %: {failures}", run.failure_share() * 100.0));
    if let Some((sent, received)) = counts.wire.per_request() {
        let wire = format!("{sent:.1} bytes sent and {received:.1} received per request");
        line(text, "wire", &wire);
    }
    line(text, "redirects", &counts.redirects.to_string());
    line(text, "longest silence", &shown(run.gap_max));
    let Some(Checked { verdict, cpu, .. }) = &run.checked else {
        return line(text, "unique and ordered", "not checked");
    };
    let checked = format!(
        "{} answers checked, {} not, {} violations; the check took {} of CPU",
        verdict.totals.answered,
        counts.unverified,
        verdict.violation_count,
        shown(*cpu),
    );
    line(text, "unique and ordered", &checked);
    for violation in &verdict.violations {
        let _infallible = writeln!(text, "  {violation}");
    }
}

fn listed(items: impl Iterator<Item = String>, nothing: &str) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { nothing.to_owned() } else { items.join(", ") }
}

fn surroundings(text: &mut String, run: &Measurement) {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let unknown = || "unknown".to_owned();
    let mut generator =
        format!("busiest thread {}", run.generator.busy.map_or_else(unknown, percent));
    if let Pace::Open { .. } = run.config.pace {
        let late = |share| shown(quantile(&run.counts.lateness_ns, share));
        let _infallible = write!(
            generator,
            "; sent late by p50 {}, p99 {}, max {}; {} waited for a connection",
            late(0.5),
            late(0.99),
            late(1.0),
            run.counts.backlogged,
        );
    }
    line(text, "generator", &generator);
    for (pid, cpu) in &run.server_cpu {
        let cpu = cpu.map_or_else(unknown, |cpu| {
            format!("{} of CPU, {} per answer", shown(cpu), shown(run.cpu_per_request(cpu)))
        });
        line(text, &format!("process {pid}"), &cpu);
    }
    let shares = run.cpu_shares.map_or_else(unknown, |(busy, stolen)| {
        format!("{} busy, {} stolen", percent(busy), percent(stolen))
    });
    let load = |load: Option<[f64; 3]>| load.map_or_else(unknown, |it| it[0].to_string());
    let machine = &run.machine;
    let (before, after) = (load(machine.load), load(run.load_after));
    line(text, "processors", &format!("{shares}; load {before} before, {after} after"));
    let what = format!("{} x {}, Linux {}", machine.cpus, machine.cpu, machine.kernel);
    line(text, "machine", &what);
}

fn line(text: &mut String, name: &str, value: &str) {
    let _infallible = writeln!(text, "{name:<20} {value}");
}
