//! `epicepoch bench`: measures a cluster from outside, and what the machine can do at all. It
//! says what was measured and nothing else; the measuring itself is in `epicepoch-bench`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Arg, ArgMatches};
use epicepoch_bench::floor::{self, Floor, Wait};
use epicepoch_bench::json::FloorRecord;
use epicepoch_bench::latency::{quantile, shown};
use epicepoch_bench::record::{self, Program};
use epicepoch_bench::run::config::{
    DURATION_MAX, INTERVAL_MIN, INTERVALS_MAX, PIDS_MAX, RATE_MAX, RATE_MIN,
};
use epicepoch_bench::run::{self, Arrivals, Live, Pace, RunConfig, Target, Transport};
use epicepoch_bench::slo::Slo;
use epicepoch_bench::{hlog, json, text};
use indicatif::{ProgressBar, ProgressStyle};

use crate::addresses;
use crate::commands::text as text_argument;
use crate::failure::Failure;
use crate::output;
use crate::sources::Environment;
use crate::{knee, page, reports};

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    match matches.subcommand() {
        Some(("floor", matches)) => run_floor(matches),
        Some(("run", matches)) => run_load(matches, environment),
        Some(("knee", matches)) => knee::run(matches, environment),
        Some(("merge", matches)) => reports::merge(matches),
        Some(("compare", matches)) => reports::compare(matches),
        Some(("history", matches)) => reports::history(matches),
        Some(("html", matches)) => page::run(matches),
        _ => Err(Failure::usage(anyhow!("no measurement given; see epicepoch bench --help"))),
    }
}

fn run_floor(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let floor = floor_for(matches, duration(matches, "duration", FLOOR_TIME_MAX)?)?;
    let mut out = output::account();
    if matches.get_flag("json") {
        writeln!(out, "{}", json::floor(&floor))?;
    } else {
        write!(out, "{}", text::floor_table(&floor))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the floor's fsync is measured.
pub(crate) fn floor_dir() -> Arg {
    text_argument("dir", "DIR", "Where the floor syncs a file: the disk of DATA_DIR")
        .default_value(".")
}

/// The floor beside another measurement.
pub(crate) fn floor(matches: &ArgMatches) -> Result<Floor, Failure> {
    floor_for(matches, FLOOR_TIME)
}

fn floor_for(matches: &ArgMatches, each: Duration) -> Result<Floor, Failure> {
    let directory = PathBuf::from(text_of(matches, "dir"));
    if !directory.is_dir() {
        return Err(Failure::usage(anyhow!(
            "--dir is {}, which is no directory",
            directory.display()
        )));
    }
    let floor = Floor::measure(&directory, each);
    Ok(floor.with_context(|| format!("measuring with files in {}", directory.display()))?)
}

fn run_load(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let slo = matches.get_one::<String>("slo").map(|text| Slo::from_str(text)).transpose();
    let slo = slo.map_err(Failure::usage)?.unwrap_or_default();
    let config = config(matches)?;
    // What cannot be written is better known before the run than after it.
    let json_file = output(matches, "json")?;
    let hgrm_file = output(matches, "hgrm")?;
    let hlog_file = output(matches, "hlog")?;
    let html_file = output(matches, "html")?;
    let (client, deadline) = addresses::client(matches, environment)?;
    let members = addresses::block_on(client.members(deadline))??;
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment)?;
    let config = RunConfig { targets: targets(&members)?, tls, token, ..config };

    // Both are measured as near to the run as it goes.
    let whole = matches.get_flag("floor").then(|| floor(matches)).transpose()?;
    let floor = match &whole {
        Some(whole) => whole.echo_sleeping_ns.clone(),
        None => floor::echo(Wait::Sleeping, FLOOR_TIME)?,
    };
    let bar = progress(&config);
    let mut shown_at = Duration::ZERO;
    let measured = run::run(config, |live, at| {
        show(&bar, live, at, at.saturating_sub(shown_at));
        shown_at = at;
    });
    bar.finish_and_clear();

    let judged = slo.judge(&measured);
    let mut report = record::Run::new(&measured, Some(&floor), &judged, program(matches));
    report.floor = whole.as_ref().map(FloorRecord::new);
    let table = text::run_table(&measured, Some(&floor), &judged);
    write!(output::account(), "{table}{}", text::beside_floor(&report))?;
    if let Some((mut file, path)) = json_file {
        writeln!(file, "{}", report.to_json()).with_context(|| path.display().to_string())?;
    }
    if let Some((mut file, path)) = html_file {
        let page = page::of_run(&report);
        file.write_all(page.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if let Some((mut file, path)) = hlog_file {
        let log = hlog::hlog(&report);
        file.write_all(log.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if let Some((mut file, path)) = hgrm_file {
        let percentiles = text::hgrm(&measured.counts.latency_ns);
        file.write_all(percentiles.as_bytes()).with_context(|| path.display().to_string())?;
    }
    let wrong = measured.checked.as_ref().is_some_and(|it| !it.verdict.is_clean());
    Ok(if wrong || measured.counts.answers == 0 {
        ExitCode::FAILURE
    } else if !judged.is_empty() && measured.generator.bottleneck.is_some() {
        ExitCode::from(CODE_NO_VERDICT)
    } else if judged.iter().any(|it| !it.kept) {
        ExitCode::from(CODE_MISSED)
    } else {
        ExitCode::SUCCESS
    })
}

/// What the report says about this program.
fn program(matches: &ArgMatches) -> Program {
    let built = option_env!("EPICEPOCH_COMMIT").map(str::to_owned);
    Program {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: matches.get_one::<String>("commit").cloned().or(built),
        command: std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect(),
    }
}

/// The length of an interval: by default a second, or as long that there are not too many.
fn interval(matches: &ArgMatches, run: Duration) -> Result<Duration, Failure> {
    let least = INTERVAL_MIN.max(run.div_f64(INTERVALS_MAX));
    // Only reports have intervals.
    if !matches!(matches.try_get_one::<String>("interval"), Ok(Some(_))) {
        return Ok(Duration::from_secs(least.as_secs_f64().ceil() as u64));
    }
    let given = duration(matches, "interval", DURATION_MAX)?;
    if given < least {
        return Err(Failure::usage(anyhow!(
            "--interval is {}; it must be at least {} for this --duration",
            shown(given),
            shown(least)
        )));
    }
    Ok(given)
}

/// Everything but the targets.
pub(crate) fn config(matches: &ArgMatches) -> Result<RunConfig, Failure> {
    let count = |name| matches.get_one::<u64>(name).copied();
    let in_flight = |name| count(name).map_or(1, |count| count as usize);
    let only = |flag: &str, transport: &str| {
        Failure::usage(anyhow!("--{flag} is for --transport {transport}"))
    };
    let transport = match text_of(matches, "transport") {
        "h2c" | "http3" | "native" | "client" if count("pipeline").is_some() => {
            return Err(only("pipeline", "http1"));
        }
        "h2c" => Transport::H2c { streams: in_flight("in-flight") },
        "http3" => Transport::Http3 { streams: in_flight("in-flight") },
        "native" => Transport::Native { in_flight: in_flight("in-flight") },
        "client" => Transport::Client { callers: in_flight("in-flight") },
        _ if count("in-flight").is_some() => {
            return Err(only(
                "in-flight",
                "h2c, http3, native and client; over http1 it is --pipeline",
            ));
        }
        _ => Transport::Http1 { pipeline: in_flight("pipeline") },
    };
    let arrivals = match text_of(matches, "arrivals") {
        "poisson" => Arrivals::Poisson,
        _ => Arrivals::Constant,
    };
    let pace = match matches.get_one::<String>("rate") {
        None => Pace::Closed,
        Some(text) => {
            let rate = text.parse().ok().filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate));
            let rate = rate.ok_or_else(|| {
                Failure::usage(anyhow!(
                    "--rate is {text:?}; allowed are {RATE_MIN} to {RATE_MAX} requests per second"
                ))
            })?;
            Pace::Open { rate, arrivals }
        }
    };
    let pids: Vec<u32> = matches.get_many("pid").into_iter().flatten().copied().collect();
    if pids.len() > PIDS_MAX {
        return Err(Failure::usage(anyhow!("--pid takes at most {PIDS_MAX} processes")));
    }
    let run = duration(matches, "duration", DURATION_MAX)?;
    let defaults = RunConfig::new(Vec::new());
    let config = RunConfig {
        transport,
        pace,
        connections: count("connections").map_or(defaults.connections, |it| it as usize),
        threads: count("threads").map_or(defaults.threads, |it| it as usize),
        count: count("count").unwrap_or(defaults.count),
        warmup: warmup(matches)?,
        duration: run,
        interval: interval(matches, run)?,
        request_timeout: duration(matches, "timeout", addresses::TIMEOUT_MAX)?,
        verify: text_of(matches, "verify") == "on",
        pids,
        spin: matches.try_get_one::<bool>("spin").is_ok_and(|it| it == Some(&true)),
        range: matches.get_flag("range"),
        ..defaults
    };
    if config.count > config.count_max() {
        let max = config.count_max();
        let text = format!(
            "-n is {}; over {} at most {max}, or more with --range",
            config.count,
            config.transport.name()
        );
        return Err(Failure::usage(anyhow!(text)));
    }
    Ok(config)
}

/// A warm-up may be nothing.
fn warmup(matches: &ArgMatches) -> Result<Duration, Failure> {
    match text_of(matches, "warmup") {
        "0" | "0s" | "0ms" => Ok(Duration::ZERO),
        _ => duration(matches, "warmup", DURATION_MAX),
    }
}

pub(crate) fn duration(
    matches: &ArgMatches,
    name: &str,
    max: Duration,
) -> Result<Duration, Failure> {
    let text = text_of(matches, name);
    addresses::duration(text, max).ok_or_else(|| {
        let max = max.as_secs();
        Failure::usage(anyhow!(
            "--{name} is {text:?}; allowed is a whole number with its unit, from 1ms to {max}s, \
             such as 5s or 500ms"
        ))
    })
}

/// An argument that has a default or is required.
fn text_of<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.get_one::<String>(name).map_or("", String::as_str)
}

pub(crate) fn output(
    matches: &ArgMatches,
    name: &str,
) -> Result<Option<(fs::File, PathBuf)>, Failure> {
    let Some(path) = matches.get_one::<String>(name).map(Path::new) else { return Ok(None) };
    let file = fs::File::create(path).with_context(|| format!("--{name} {}", path.display()))?;
    Ok(Some((file, path.to_owned())))
}

/// The members with their addresses, the leader first.
pub(crate) fn targets(members: &epicepoch_client::Members) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::with_capacity(members.members.len());
    for member in &members.members {
        let addr = member.addr.to_socket_addrs();
        let addr = addr.with_context(|| format!("the address {} of a member", member.addr))?.next();
        let addr = addr.ok_or_else(|| anyhow!("{} has no address", member.addr))?;
        targets.push(Target { id: member.node_id.0, name: member.addr.clone(), addr });
    }
    let leader = members.leader.as_ref().map(|leader| leader.node_id.0);
    targets.sort_by_key(|target| (Some(target.id) != leader, target.id));
    if targets.is_empty() {
        return Err(anyhow!("the cluster has no members yet").into());
    }
    Ok(targets)
}

/// One line on standard error while it runs; nothing where nobody looks.
fn progress(config: &RunConfig) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let length = (config.warmup + config.duration).as_secs();
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} s  {msg}") {
        bar.set_style(style);
    }
    bar
}

/// What happened in the last `span`, at `at`.
fn show(bar: &ProgressBar, live: &Live, at: Duration, span: Duration) {
    bar.set_position(at.as_secs());
    let of = |share| shown(quantile(&live.latency_ns, share));
    bar.set_message(format!(
        "{:.0} req/s, p50 {}, p99 {}, p99.9 {}, max {}, {} failed",
        live.answers as f64 / span.as_secs_f64().max(f64::MIN_POSITIVE),
        of(0.5),
        of(0.99),
        of(0.999),
        of(1.0),
        live.failures,
    ));
}

/// A promise of `--slo` was not kept.
const CODE_MISSED: u8 = 3;
/// The generator was the bottleneck, so `--slo` has no verdict.
const CODE_NO_VERDICT: u8 = 4;
/// The bare echo that stands beside every run.
const FLOOR_TIME: Duration = Duration::from_millis(300);
const FLOOR_TIME_MAX: Duration = Duration::from_mins(1);
