//! The `epicepoch` binary: flags, environment and file become one of the commands below. The
//! environment is read here, once, and nowhere else.
//!
//! - [`commands`]: the command line and its help.
//! - [`settings`]: the table of settings; [`sources`] and [`config_file`] fill it in.
//! - [`logging`]: the log on standard error.
//! - [`serve`], [`dev`]: run nodes; [`signals`] stops them.
//! - [`mod@bench`], [`knee`]: measure one, and the machine; [`reports`]: merges, compares and keeps reports.
//! - [`page`]: shows reports.
//! - [`probe`]: goes on measuring, for a monitoring system.
//! - [`get`], [`status`]: ask a cluster; [`addresses`] says which.
//! - [`member`], [`leader`], [`clock`], [`cluster_settings`]: what operators change and look at;
//!   [`operator`] asks.
//! - [`rolling`]: restarts all nodes, one after the other; [`tune`]: what the links call for.
//! - [`backup`]: what a restore needs, as a file.
//! - [`certs`]: an authority, and certificates.
//! - [`decode`], [`encode`]: timestamps and wall time; [`moment`] is how both are shown.
//! - [`sim`]: whole clusters of the core under simulated faults.
//! - [`output`]: standard output, and a reader that leaves; [`failure`]: errors and exit codes.

mod addresses;
mod backup;
mod bench;
mod certs;
mod clock;
mod cluster_settings;
mod commands;
mod config_file;
mod decode;
mod dev;
#[cfg(test)]
mod documented;
mod encode;
mod failure;
mod get;
mod knee;
mod leader;
mod logging;
mod member;
mod moment;
mod operator;
mod output;
mod page;
mod probe;
mod reports;
mod rolling;
mod serve;
mod settings;
mod signals;
mod sim;
mod sources;
mod status;
mod tune;

use std::io::Write;
use std::process::ExitCode;

use clap::ArgMatches;

use crate::failure::Failure;
use crate::sources::Environment;

// Serving allocates per connection from many threads, which this allocator does best.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let environment: Environment = std::env::vars_os().collect();
    let matches = match commands::tree().try_get_matches_from(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => {
            // A closed standard output or error leaves nobody to tell.
            let _unread = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
        }
    };
    match run(&matches, &environment) {
        Ok(code) => code,
        Err(failure) if failure.is_of_reader() => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_logged {
                let _unread = writeln!(std::io::stderr(), "epicepoch: {:#}", failure.error);
            }
            ExitCode::from(failure.code)
        }
    }
}

fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    match matches.subcommand() {
        Some(("serve", matches)) => serve::run(matches, environment),
        Some(("dev", matches)) => dev::run(matches, environment),
        Some(("get", matches)) => get::run(matches, environment),
        Some(("decode", matches)) => decode::run(matches),
        Some(("encode", matches)) => encode::run(matches),
        Some(("probe", matches)) => probe::run(matches, environment),
        Some(("bench", matches)) => bench::run(matches, environment),
        Some(("status", matches)) => status::run(matches, environment),
        Some(("member", matches)) => member::run(matches, environment),
        Some(("clock", matches)) => clock::run(matches, environment),
        Some(("settings", matches)) => cluster_settings::run(matches, environment),
        Some(("tune", matches)) => tune::run(matches, environment),
        Some(("rolling", matches)) => rolling::run(matches, environment),
        Some(("backup", matches)) => backup::run(matches, environment),
        Some(("leader", matches)) => leader::run(matches, environment),
        Some(("certs", matches)) => certs::run(matches),
        Some(("sim", matches)) => sim::run(matches),
        _ => Err(Failure::usage(anyhow::anyhow!("no command given; see epicepoch --help"))),
    }
}
