//! The arguments that describe load on a cluster, and their conversion to a configuration of the
//! load generator.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use epicepoch_bench::floor::Floor;
use epicepoch_bench::latency::shown;
use epicepoch_bench::run::config::{
    CONNECTIONS_MAX, DURATION_MAX, IN_FLIGHT_MAX, INTERVAL_MIN, INTERVALS_MAX, PIDS_MAX, RATE_MAX,
    RATE_MIN, THREADS_MAX,
};
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Target, Transport};
use epicepoch_config::Environment;
use epicepoch_wire::http::RANGE_COUNT_MAX;

use crate::addresses;
use crate::arguments::{client_arguments, guarantee, guarantee_of, number, switch, text};
use crate::expected::{self, Expected};
use crate::failure::Failure;
use crate::resolve::resolve;

/// Adds the arguments that every load command has.
pub(crate) fn arguments(command: Command, warmup: &'static str, duration: &'static str) -> Command {
    command
        .args(client_arguments())
        .mut_arg("timeout", |timeout| {
            timeout.help(
                "How long a request may take, and how long to wait for the last answers, such as 5s \
                 or 500ms",
            )
        })
        .arg(
            text("transport", "NAME", "How requests travel")
                .value_parser(["http1", "h2c", "http3", "native", "client"])
                .visible_alias("via")
                .default_value("http1"),
        )
        .arg(number("connections", 1..=CONNECTIONS_MAX as u64, "Connections in all [default: 8]"))
        .arg(number(
            "pipeline",
            1..=IN_FLIGHT_MAX as u64,
            "http1: requests open on one connection [default: 1]",
        ))
        .arg(number(
            "in-flight",
            1..=IN_FLIGHT_MAX as u64,
            "h2c, http3, native: requests open on one connection; client: callers of one [default: 1]",
        ))
        .arg(number("threads", 1..=THREADS_MAX as u64, "Threads that send [default: 1]"))
        .arg(number("count", 1..=RANGE_COUNT_MAX, "Timestamps per request [default: 1]").short('n'))
        .arg(switch("range", "Ask for format=range over HTTP: 24 bytes for any number of timestamps"))
        .arg(guarantee())
        .arg(
            text("path", "PATH", "Another service: GET this over HTTP; needs --verify off")
                .conflicts_with_all(["count", "range", "guarantee"]),
        )
        .arg(text("rate", "R", "Requests per second: an open loop"))
        .arg(
            text("arrivals", "HOW", "How the requests of --rate are spread")
                .value_parser(["constant", "poisson"])
                .default_value("constant")
                .requires("rate"),
        )
        .arg(text("warmup", "TIME", "Load before the measurement, or 0").default_value(warmup))
        .arg(text("duration", "TIME", "How long to measure").default_value(duration))
        .arg(
            text("verify", "WHETHER", "Check that answers are unique and in real-time order")
                .value_parser(["on", "off"])
                .default_value("on"),
        )
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID,...")
                .value_delimiter(',')
                .value_parser(value_parser!(u32).range(1..))
                .action(ArgAction::Append)
                .help("Local server processes whose CPU time is measured"),
        )
}

/// Builds the argument that names the directory in which the time of an fsync is measured.
pub(crate) fn floor_dir() -> Arg {
    text("dir", "DIR", "Directory in which the floor syncs a file: on the disk of DATA_DIR")
        .default_value(".")
}

/// Measures what the machine itself can do (its floor). Each figure is measured for `each`.
pub(crate) fn floor(matches: &ArgMatches, each: Duration) -> Result<Floor, Failure> {
    let directory = PathBuf::from(text_of(matches, "dir"));
    if !directory.is_dir() {
        return Err(Failure::usage(anyhow!(
            "--dir is {}, which is not a directory",
            directory.display()
        )));
    }
    let floor = Floor::measure(&directory, each);
    Ok(floor.with_context(|| format!("measuring with files in {}", directory.display()))?)
}

/// Returns the length of the intervals into which a report divides the run. The default is one
/// second. For a long run it is longer, so that there are at most `INTERVALS_MAX` intervals.
fn interval(matches: &ArgMatches, run: Duration) -> Result<Duration, Failure> {
    let least = INTERVAL_MIN.max(run.div_f64(INTERVALS_MAX));
    if !matches.contains_id("interval") {
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

/// Returns the configuration of a run, without its targets.
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
        spin: matches.get_flag("spin"),
        range: matches.get_flag("range"),
        guarantee: guarantee_of(matches),
        path: matches.get_one::<String>("path").cloned(),
        ..defaults
    };
    if let Some(path) = &config.path {
        check_path(path, &config).map_err(Failure::usage)?;
    }
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

/// Checks that `--path` can be asked, and that nothing is expected of the answers.
fn check_path(path: &str, config: &RunConfig) -> anyhow::Result<()> {
    let is_sendable = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        is_sendable,
        "--path is {path:?}; it must begin with / and have printable ASCII only, without spaces"
    );
    ensure!(!config.verify, "the answers of another path are not checked: add --verify off");
    ensure!(
        !matches!(config.transport, Transport::Native { .. } | Transport::Client { .. }),
        "--path is for http1, h2c and http3, and --transport is {}",
        config.transport.name()
    );
    Ok(())
}

/// Returns the length of the warm-up, which may be 0.
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

/// Returns the value of an argument that is required or has a default.
fn text_of<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.get_one::<String>(name).map_or("", String::as_str)
}

/// How long the name of a node may take to be looked up. Resolvers ask the second name server after
/// 5 s.
const LOOKUP_MAX: Duration = Duration::from_secs(6);

/// Returns the node `id` at the address `name`.
pub(crate) fn target(id: u64, name: String) -> Result<Target, Failure> {
    let found = resolve(&name, LOOKUP_MAX).with_context(|| format!("the address {name}"))?;
    let addr = *found.first().ok_or_else(|| anyhow!("{name} has no address"))?;
    Ok(Target { id, name, addr })
}

/// Asks the cluster that the arguments name for its members. The leader comes first. `warn` is told
/// of each member that is left out, because nothing has an address of its name.
pub(crate) fn members(
    matches: &ArgMatches,
    environment: &Environment,
    warn: impl Fn(&str),
) -> Result<Vec<Target>, Failure> {
    let (client, deadline) = addresses::client(matches, environment)?;
    let expected = Expected::of(matches, environment)?;
    let members = addresses::block_on(async {
        expected::check(expected.as_ref(), &client, deadline).await?;
        Ok::<_, Failure>(client.members(deadline).await?)
    })??;
    targets(&members, warn)
}

/// Returns the members with their addresses, the leader first.
fn targets(
    members: &epicepoch_client::Members,
    warn: impl Fn(&str),
) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::with_capacity(members.members.len());
    let mut unresolved = None;
    let leader = members.leader.as_ref().map(|leader| leader.node_id.0);
    for member in &members.members {
        match target(member.node_id.0, member.addr.clone()) {
            Ok(target) => targets.push(target),
            // With a node its name may be gone, too. The other nodes answer.
            Err(failure) if Some(member.node_id.0) == leader => return Err(failure),
            Err(failure) => {
                warn(&format!("node {}: {:#}", member.node_id, failure.error));
                unresolved = Some(failure);
            }
        }
    }
    targets.sort_by_key(|target| (Some(target.id) != leader, target.id));
    if targets.is_empty() {
        return Err(unresolved.unwrap_or_else(|| anyhow!("the cluster has no members yet").into()));
    }
    Ok(targets)
}
