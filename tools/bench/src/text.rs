//! Measurements as tables for people.

use std::fmt::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::encoded::Times;
use crate::floor::Floor;
use crate::latency::{QUANTILES, quantile, shown};
use crate::record::{Config, Program, Run, ServerCpu};
use crate::run::Measurement;

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
    let mut one = |name: &str, value: String| {
        let _infallible = writeln!(text, "{name:<42} {value:>12}");
    };
    one("one clock read, mean", shown(floor.clock));
    one("echoes per second, one per call", format!("{:.0}", floor.rate_plain));
    one("echoes per second, pipelined", format!("{:.0}", floor.rate_pipelined));
    one("native frames per second, pipelined", format!("{:.0}", floor.rate_frames));
    text
}

/// The final table of `epicepoch bench run`.
#[must_use]
pub fn run_table(run: &Run) -> String {
    let mut text = headline(&run.config);
    percentiles(&mut text, run);
    rates(&mut text, run);
    surroundings(&mut text, run);
    if let Some(bottleneck) = &run.generator.bottleneck {
        line(&mut text, "THE GENERATOR WAS THE BOTTLENECK", bottleneck);
    }
    text
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&run_table(&Run::new(self, None, Program::default())))
    }
}

fn headline(config: &Config) -> String {
    let pace = match (config.rate, &config.arrivals) {
        (Some(rate), Some(arrivals)) => format!("open loop, {rate} req/s {arrivals}"),
        _ => "closed loop".to_owned(),
    };
    format!(
        "connections {} over {}, in flight {}, threads {}, n {}{}, {pace}, {} after {} of warm-up\n",
        config.connections,
        config.transport,
        config.in_flight,
        config.threads,
        config.n,
        if config.range { " as a range" } else { "" },
        time(config.duration_ns),
        time(config.warmup_ns),
    )
}

fn percentiles(text: &mut String, run: &Run) {
    let of = |times: &Times, share| shown(quantile(&times.0, share));
    let _infallible =
        writeln!(text, "\n{:<10} {:>10} {:>10} {:>12}", "", "latency", "hiccups", "x bare echo");
    let floor = run.echo_sleeping_ns.as_ref();
    let echo = floor.map(|floor| quantile(&floor.0, 0.5).as_secs_f64().max(1e-9));
    let rows = QUANTILES.iter().copied().chain([("max", 1.0)]);
    for (name, share) in rows {
        let latency = quantile(&run.latency_ns.0, share);
        let times = echo.map(|echo| format!("{:.1}", latency.as_secs_f64() / echo));
        let times = times.unwrap_or_default();
        let hiccup = of(&run.hiccup_ns, share);
        let latency = shown(latency);
        let _infallible = writeln!(text, "{name:<10} {latency:>10} {hiccup:>10} {times:>12}");
    }
    let mean = |times: &Times| time(times.0.mean() as u64);
    let (latency, hiccup) = (mean(&run.latency_ns), mean(&run.hiccup_ns));
    let _infallible = writeln!(text, "{:<10} {latency:>10} {hiccup:>10}\n", "mean");
    if let Some(floor) = floor {
        let echo = format!("p50 {}, p99 {}", of(floor, 0.5), of(floor, 0.99));
        line(text, "bare echo", &echo);
    }
}

fn rates(text: &mut String, run: &Run) {
    line(text, "rate", &format!("{:.1} req/s, {} answers", run.rate, run.answers));
    let timestamps = run.timestamps as f64 / Duration::from_nanos(run.elapsed_ns).as_secs_f64();
    line(text, "timestamps", &format!("{timestamps:.1} per second"));
    let nodes: Vec<String> = run
        .answers_by_node
        .iter()
        .map(|(node, count)| match node {
            0 => format!("nodes that were not among the targets: {count}"),
            node => format!("node {node}: {count}"),
        })
        .collect();
    let nodes = if nodes.is_empty() { "nobody".to_owned() } else { nodes.join(", ") };
    line(text, "answered by", &nodes);
    let mut failures: Vec<String> =
        run.failures.iter().map(|(name, count)| format!("{count} {name}")).collect();
    if run.unsent > 0 {
        failures.push(format!("{} never sent", run.unsent));
    }
    let share = run.failure_share * 100.0;
    let failures = if failures.is_empty() { "none".to_owned() } else { failures.join(", ") };
    line(text, "failed", &format!("{share:.4} %: {failures}"));
    if let Some((sent, received)) = run.wire.per_request() {
        let wire = format!("{sent:.1} bytes sent and {received:.1} received per request");
        line(text, "wire", &wire);
    }
    line(text, "redirects", &run.redirects.to_string());
    line(text, "longest silence", &time(run.gap_max_ns));
    let checked = run.verify.as_ref().map(|verify| {
        format!(
            "{} answers checked, {} not, {} violations; the check took {} of CPU",
            verify.checked,
            verify.unverified,
            verify.violations,
            time(verify.cpu_ns),
        )
    });
    line(text, "unique and ordered", checked.as_deref().unwrap_or("not checked"));
    for violation in run.verify.iter().flat_map(|verify| &verify.descriptions) {
        let _infallible = writeln!(text, "  {violation}");
    }
}

fn surroundings(text: &mut String, run: &Run) {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let busy = run.generator.busy.map_or_else(|| "unknown".to_owned(), percent);
    let mut generator = format!("busiest thread {busy}");
    if run.config.rate.is_some() {
        let late = |share| shown(quantile(&run.generator.lateness_ns.0, share));
        let _infallible = write!(
            generator,
            "; sent late by p50 {}, p99 {}, max {}; {} waited for a connection",
            late(0.5),
            late(0.99),
            late(1.0),
            run.generator.backlogged,
        );
    }
    line(text, "generator", &generator);
    for ServerCpu { pid, cpu_ns, cpu_per_answer_ns } in &run.server_cpu {
        let cpu = match (cpu_ns, cpu_per_answer_ns) {
            (Some(cpu), Some(each)) => format!("{} of CPU, {} per answer", time(*cpu), time(*each)),
            _ => "CPU time unknown".to_owned(),
        };
        line(text, &format!("process {pid}"), &cpu);
    }
    let shares = run.cpu_busy.zip(run.cpu_steal).map_or_else(
        || "unknown".to_owned(),
        |(busy, stolen)| format!("{} busy, {} stolen", percent(busy), percent(stolen)),
    );
    let load = |load: Option<[f64; 3]>| load.map_or_else(|| "?".to_owned(), |it| it[0].to_string());
    let machine = &run.machine;
    let (before, after) = (load(machine.load), load(run.load_after));
    line(text, "processors", &format!("{shares}; load {before} before, {after} after"));
    let what = format!("{} x {}, Linux {}", machine.cpus, machine.cpu, machine.kernel);
    line(text, "machine", &what);
}

fn time(nanos: u64) -> String {
    shown(Duration::from_nanos(nanos))
}

fn line(text: &mut String, name: &str, value: &str) {
    let _infallible = writeln!(text, "{name:<20} {value}");
}
