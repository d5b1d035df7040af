//! Measurements as tables for people, and as the percentile file of HdrHistogram's tools.

use std::fmt::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::encoded::Times;
use crate::floor::Floor;
use crate::json::{self, Beside};
use crate::latency::{QUANTILES, quantile, shown};
use crate::record::{Config, Program, Promise, Run, ServerCpu};
use crate::run::Measurement;
use crate::surroundings::NodeRecord;

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

/// Shows a run as multiples of the machine's floor. Empty without a floor.
#[must_use]
pub fn beside_floor(run: &Run) -> String {
    let beside = json::beside(run);
    let mut text = String::new();
    if !beside.is_empty() {
        let (floor, times) = ("floor", "x floor");
        let what = "the floor, just before";
        let _infallible = writeln!(text, "\n{what:<32} {floor:>10} {:>14} {times:>8}", "this run");
    }
    for Beside { what, floor, of, run, times } in beside {
        let run = format!("{of} {run}");
        let times = multiple(times);
        let _infallible = writeln!(text, "{what:<32} {floor:>10} {run:>14} {times:>8}");
    }
    text
}

/// A multiple with sensible digits.
#[must_use]
pub fn multiple(times: f64) -> String {
    if times < 1.0 { format!("{times:.3}") } else { format!("{times:.1}") }
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
    for Promise { promise, measured, kept } in &run.slo {
        let word = match kept {
            None => "no verdict",
            Some(true) => "kept",
            Some(false) => "MISSED",
        };
        line(&mut text, promise, &format!("{measured}  {word}"));
    }
    text
}

/// The table of a measurement without promises.
impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&run_table(&Run::new(self, None, &[], Program::default())))
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
    for node in &run.nodes {
        nodes(text, node);
    }
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
    let switches = run.switches_per_second;
    let switches = switches.map_or_else(String::new, |it| format!("; {it:.0} switches/s"));
    let load = |load: Option<[f64; 3]>| load.map_or_else(|| "?".to_owned(), |it| it[0].to_string());
    let machine = &run.machine;
    let (before, after) = (load(machine.load_before), load(run.load_after));
    line(text, "processors", &format!("{shares}; load {before} before, {after} after{switches}"));
    let what = format!("{} x {}, Linux {}", machine.cpus, machine.cpu, machine.kernel);
    line(text, "machine", &what);
}

/// The report of a node's process.
fn nodes(text: &mut String, node: &NodeRecord) {
    let ids: Vec<String> = node.ids.iter().map(ToString::to_string).collect();
    let name = if ids.len() == 1 { "node" } else { "nodes" };
    let value = format!(
        "{:.2} cores, {} of CPU per answer; hiccups at most p50 {}, p99 {}, max {}",
        node.cores,
        time(node.cpu_per_answer_ns),
        time(node.hiccup_p50_ns),
        time(node.hiccup_p99_ns),
        time(node.hiccup_max_ns),
    );
    line(text, &format!("{name} {}", ids.join(", ")), &value);
}

fn time(nanos: u64) -> String {
    shown(Duration::from_nanos(nanos))
}

fn line(text: &mut String, name: &str, value: &str) {
    let _infallible = writeln!(text, "{name:<20} {value}");
}

/// The percentile distribution that HdrHistogram's tools read (`.hgrm`), in milliseconds.
#[must_use]
pub fn hgrm(times: &Histogram<u64>) -> String {
    let millis = |nanos: f64| nanos / 1e6;
    let mut text = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut row = |value: u64, share: f64, total: u64| {
        let value = millis(value as f64);
        let _infallible = if share < 1.0 {
            writeln!(text, "{value:>12.6} {share:>2.12} {total:>10} {:>14.2}", 1.0 / (1.0 - share))
        } else {
            writeln!(text, "{value:>12.6} {share:>2.12} {total:>10}")
        };
    };
    // The same rows as in other implementations: a value is repeated for every step that it
    // reaches, and the last one has two rows.
    let (mut share, mut total) = (0.0, 0);
    for step in times.iter_recorded() {
        total += step.count_at_value();
        while total as f64 / times.len() as f64 >= share {
            row(step.value_iterated_to(), share, total);
            if total == times.len() {
                row(step.value_iterated_to(), 1.0, total);
                break;
            }
            let halvings = (1.0 / (1.0 - share)).log2().floor() + 1.0;
            share += 1.0 / (TICKS_PER_HALF_DISTANCE * halvings.exp2());
        }
    }
    let (mean, deviation) = (millis(times.mean()), millis(times.stdev()));
    let (max, count) = (millis(times.max() as f64), times.len());
    let _infallible = write!(
        text,
        "#[Mean    = {mean:>12.6}, StdDeviation   = {deviation:>12.6}]\n\
         #[Max     = {max:>12.6}, Total count    = {count:>12}]\n\
         #[Buckets = {:>12}, SubBuckets     = {:>12}]\n",
        times.buckets(),
        SUB_BUCKETS,
    );
    text
}

/// The value that HdrHistogram's own tools use.
const TICKS_PER_HALF_DISTANCE: f64 = 5.0;
/// Sub-buckets for three significant digits: the power of two above 2 * 10^3.
const SUB_BUCKETS: u32 = 2048;
