//! `epicepoch probe`: asks a cluster for timestamps at a low rate until it is stopped. At
//! `/metrics` it reports what a client sees: latency, failures, moves of the leader, wrong answers.
//! It never gives up, even if no node has answered yet.

use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{ArgMatches, Command};
use epicepoch_bench::exporter::Exporter;
use epicepoch_bench::probe::Account;
use epicepoch_bench::run::config::COUNT_MAX;
use epicepoch_bench::run::monitor::Monitor;
use epicepoch_bench::run::{Arrivals, Pace, RunConfig, Transport};
use epicepoch_config::{Environment, Logging};

use crate::addresses::TokenFor;
use crate::arguments::{
    client_arguments, is_json, number, output as output_argument, switch, text,
};
use crate::failure::Failure;
use crate::logging;
use crate::serve::colours;
use crate::{addresses, load, output, signals, version};

pub(crate) fn command() -> Command {
    Command::new("probe")
        .about("Ask a cluster at a low rate, for ever, and export at /metrics what clients see")
        .long_about(
            "Ask a cluster for timestamps at a low rate until SIGTERM, and export at /metrics what \
             clients see: latency, failures by kind, changes of leader, the longest time without an \
             answer, and wrong answers. When the probe is stopped, it prints their totals.",
        )
        .after_help(
            "Examples:\n  epicepoch probe --addr n1:8080,n2:8080,n3:8080\n  \
             curl -fsS localhost:9464/metrics\n\n\
             Exit codes: 0 it was stopped; 1 it could not start, or an answer was wrong; 2 wrong \
             usage.",
        )
        .args(client_arguments())
        .mut_arg("timeout", |timeout| {
            timeout.help("How long a request may take, such as 5s or 500ms; the probe never gives up")
        })
        .arg(text("rate", "R", "Requests per second, 0.1 to 1000").default_value("10"))
        .arg(number("count", 1..=COUNT_MAX, "Timestamps per request [default: 1]").short('n'))
        .arg(
            text("transport", "NAME", "How requests travel")
                .value_parser(["http1", "h2c", "http3", "native", "client"])
                .visible_alias("via")
                .default_value("http1"),
        )
        .arg(
            text("metrics-bind", "IP:PORT", "Address that serves /metrics")
                .default_value("127.0.0.1:9464"),
        )
        .arg(switch("pretty", "Log lines for people instead of JSON"))
        .arg(output_argument())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let config = config(matches)?;
    let bind = matches.get_one::<String>("metrics-bind").map_or("", String::as_str);
    let bind = SocketAddr::from_str(bind)
        .map_err(|_| Failure::usage(anyhow!("--metrics-bind is {bind:?}; allowed is IP:PORT")))?;
    // The client is made only to reject bad arguments before anything starts.
    addresses::client(matches, environment)?;
    let log = Logging { pretty: matches.get_flag("pretty"), ..Logging::default() };
    logging::start(log, colours(environment));
    version::log();
    let (stop, stopped) = channel();
    signals::watch(move || {
        // Sending fails only if the probe has ended already.
        let _unheard = stop.send(());
    })?;
    let mut account = Account::default();
    let exporter =
        Exporter::bind(bind, account.render()).with_context(|| format!("--metrics-bind {bind}"))?;
    tracing::info!(metrics = %exporter.addr(), "started");

    let mut searches = 0;
    let targets = loop {
        searches += 1;
        let is_whole = Cell::new(true);
        let found = load::members(matches, environment, |text| {
            is_whole.set(false);
            tracing::warn!("left out: {text}");
        });
        match found {
            Ok(targets) if is_whole.get() || searches > SEARCHES_FOR_ALL => break targets,
            Ok(_) => {}
            Err(failure) => {
                account.searches_failed += 1;
                exporter.set(account.render());
                tracing::warn!("no members yet: {:#}", failure.error);
            }
        }
        if stopped.recv_timeout(SEARCH_PAUSE) != Err(RecvTimeoutError::Timeout) {
            return Ok(ExitCode::SUCCESS);
        }
    };
    account.targets = targets.len();
    let addrs: Vec<&str> = targets.iter().map(|it| it.name.as_str()).collect();
    tracing::info!(nodes = addrs.join(","), "probing");
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment, TokenFor::Clients)?;
    let monitor = Monitor::start(RunConfig { targets, tls, token, ..config });
    watch(&monitor, &mut account, &exporter, &stopped);
    account.add(&monitor.stop());
    exporter.set(account.render());
    tracing::info!("stopped");
    let summary = account.summary();
    let summary = if is_json(matches) { account.document().to_string() } else { summary };
    writeln!(output::account(), "{summary}")?;
    Ok(if account.violations() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Publishes what the probe has measured every [`LOOK`], until the probe is stopped.
fn watch(monitor: &Monitor, account: &mut Account, exporter: &Exporter, stopped: &Receiver<()>) {
    let mut leader = 0;
    let (mut violations, mut restores) = (0, 0);
    loop {
        let before = Instant::now();
        match stopped.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {
                account.add_hiccup(before.elapsed().saturating_sub(LOOK));
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        let snapshot = monitor.snapshot();
        account.add(&snapshot);
        exporter.set(account.render());
        if snapshot.leader != leader {
            leader = snapshot.leader;
            tracing::info!(node = leader, "another node answers");
        }
        if snapshot.restores > restores {
            restores = snapshot.restores;
            tracing::warn!(
                restores,
                "the cluster was restored from a backup; the probe follows its new history"
            );
        }
        for description in &snapshot.descriptions {
            tracing::error!("a wrong answer: {description}");
        }
        if snapshot.violations > violations {
            violations = snapshot.violations;
            tracing::error!(violations, "answers were wrong");
        }
    }
}

fn config(matches: &ArgMatches) -> Result<RunConfig, Failure> {
    let rate = matches.get_one::<String>("rate").map_or("", String::as_str);
    let allowed = RATE_MIN..=RATE_MAX;
    let parsed = rate.parse().ok().filter(|rate| allowed.contains(rate)).ok_or_else(|| {
        Failure::usage(anyhow!(
            "--rate is {rate:?}; allowed are {RATE_MIN} to {RATE_MAX} requests per second"
        ))
    })?;
    let transport = match matches.get_one::<String>("transport").map(String::as_str) {
        Some("h2c") => Transport::H2c { streams: 1 },
        Some("http3") => Transport::Http3 { streams: 1 },
        Some("native") => Transport::Native { in_flight: 1 },
        Some("client") => Transport::Client { callers: 1 },
        _ => Transport::Http1 { pipeline: 1 },
    };
    let timeout = matches.get_one::<String>("timeout").map_or("", String::as_str);
    let request_timeout =
        addresses::duration(timeout, addresses::TIMEOUT_MAX).ok_or_else(|| {
            Failure::usage(anyhow!("--timeout is {timeout:?}; allowed is such as 5s or 500ms"))
        })?;
    Ok(RunConfig {
        transport,
        pace: Pace::Open { rate: parsed, arrivals: Arrivals::Poisson },
        connections: CONNECTIONS,
        count: matches.get_one("count").copied().unwrap_or(1),
        request_timeout,
        retry_pause: RETRY_PAUSE,
        ..RunConfig::new(Vec::new())
    })
}

/// A probe sends from `RATE_MIN` to `RATE_MAX` requests per second. `bench run` is for higher
/// rates.
const RATE_MIN: f64 = 0.1;
const RATE_MAX: f64 = 1000.0;
/// Two connections, so that a slow answer on one does not hide fast answers on the other.
const CONNECTIONS: usize = 2;
/// Pause between two attempts while no node answers.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two attempts to learn the members.
const SEARCH_PAUSE: Duration = Duration::from_secs(1);
/// After so many attempts, the probe begins without members whose names have no address.
const SEARCHES_FOR_ALL: u32 = 60;
/// Time between two snapshots.
const LOOK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tree;

    #[test]
    fn the_timeout_of_load_is_that_of_a_request() {
        let tree = tree();
        let probe = tree.find_subcommand("probe").expect("a command");
        let run = tree.find_subcommand("bench").and_then(|it| it.find_subcommand("run"));
        let help = [probe, run.expect("a command")].map(|command| {
            let timeout = command.get_arguments().find(|it| it.get_id() == "timeout");
            timeout.and_then(|it| it.get_help()).expect("a help").to_string()
        });
        assert!(help.iter().all(|help| help.contains("a request")), "{help:?}");
    }

    #[test]
    fn every_way_in_which_programs_ask_can_be_probed() {
        for (name, expected) in [
            ("http1", Transport::Http1 { pipeline: 1 }),
            ("h2c", Transport::H2c { streams: 1 }),
            ("http3", Transport::Http3 { streams: 1 }),
            ("native", Transport::Native { in_flight: 1 }),
            ("client", Transport::Client { callers: 1 }),
        ] {
            let parsed = tree().try_get_matches_from(["epicepoch", "probe", "--transport", name]);
            let parsed = parsed.expect("a command line");
            let (_, matches) = parsed.subcommand().expect("a command");
            assert_eq!(config(matches).expect("a configuration").transport, expected);
        }
    }
}
