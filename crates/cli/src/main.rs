//! The `epicepoch` binary. It runs one command, with settings from flags, environment and file.
//! Only this file reads the environment, and only once.
//!
//! - [`commands`]: the command line with all commands; [`arguments`]: arguments that several
//!   commands share.
//! - [`settings`]: the settings of a node as arguments; [`logging`]: the log on standard error.
//! - [`serve`], [`dev`]: run nodes; [`signals`] stops them; [`supervisor`] hears of it;
//!   [`check_config`] checks without starting one.
//! - [`manual`]: completions of shells, and manual pages.
//! - [`mod@bench`]: measures a cluster and the machine, with the arguments of [`load`];
//!   [`mod@compare`] judges its reports.
//! - [`probe`]: measures until it is stopped, for a monitoring system.
//! - [`get`], [`latest`], [`status`]: ask a cluster; [`addresses`] finds it, and [`expected`] is
//!   the one that the operator means.
//! - [`top`]: watches a cluster in the terminal.
//! - [`member`], [`leader`], [`clock`], [`cluster_settings`]: show and change a cluster;
//!   [`operator`] sends the orders.
//! - [`rolling`]: restarts all nodes, one after the other; [`tune`]: shows settings that suit the
//!   links.
//! - [`backup`]: writes what a restore needs; [`certs`]: issues certificates from a small
//!   authority; [`init`]: writes all files of a new cluster.
//! - [`decode`], [`encode`]: convert between timestamps and wall time; [`moment`] formats both.
//! - [`lab`]: runs a topology of regions, behind delayed links.
//! - [`sim`]: simulates whole clusters of the core under faults.
//! - [`version`]: the build of this binary.
//! - [`output`]: standard output; [`output_file`]: files that arguments name; [`failure`]: errors
//!   and exit codes.

mod addresses;
mod arguments;
mod backup;
mod bench;
mod certs;
mod check_config;
mod clock;
mod cluster_settings;
mod commands;
mod compare;
mod decode;
mod dev;
#[cfg(test)]
mod documented;
mod encode;
#[cfg(test)]
mod exit_codes;
mod expected;
mod failure;
mod get;
mod init;
mod lab;
mod latest;
mod leader;
mod load;
mod log_writer;
mod logging;
mod manual;
mod member;
mod moment;
mod operator;
mod output;
mod output_file;
mod probe;
mod resolve;
mod rolling;
#[cfg(test)]
mod scripted;
mod serve;
mod settings;
mod signals;
mod sim;
mod status;
mod supervisor;
mod top;
mod tune;
mod version;

use std::io::Write;
use std::process::ExitCode;

use clap::ArgMatches;
use epicepoch_config::Environment;

use crate::failure::Failure;

// A serving node allocates memory for each connection, on many threads. This allocator is the
// fastest for that load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // With huge pages a node would need twice the memory, and be no faster (docs/decisions/0069).
    // If the kernel refuses, the node only uses more memory.
    let _refused = rustix::thread::disable_transparent_huge_pages(true);
    let environment: Environment = std::env::vars_os().collect();
    let matches = match commands::tree().try_get_matches_from(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => {
            // If standard output or standard error is closed, the text is lost and nothing else
            // happens.
            let _unread = error.print();
            if let Some(advice) = commands::replacement(&error) {
                let _unread = writeln!(std::io::stderr(), "epicepoch: {advice}");
            }
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
        Some(("check-config", matches)) => check_config::run(matches, environment),
        Some(("dev", matches)) => dev::run(matches, environment),
        Some(("get", matches)) => get::run(matches, environment),
        Some(("latest", matches)) => latest::run(matches, environment),
        Some(("decode", matches)) => decode::run(matches),
        Some(("encode", matches)) => encode::run(matches),
        Some(("probe", matches)) => probe::run(matches, environment),
        Some(("bench", matches)) => bench::run(matches, environment),
        Some(("status", matches)) => status::run(matches, environment),
        Some(("top", matches)) => top::run(matches, environment),
        Some(("member", matches)) => member::run(matches, environment),
        Some(("clock", matches)) => clock::run(matches, environment),
        Some(("settings", matches)) => cluster_settings::run(matches, environment),
        Some(("tune", matches)) => tune::run(matches, environment),
        Some(("rolling", matches)) => rolling::run(matches, environment),
        Some(("backup", matches)) => backup::run(matches, environment),
        Some(("leader", matches)) => leader::run(matches, environment),
        Some(("certs", matches)) => certs::run(matches),
        Some(("init", matches)) => init::run(matches),
        Some(("lab", matches)) => lab::run_command(matches),
        Some(("sim", matches)) => sim::run(matches),
        Some(("completions", matches)) => manual::run_completions(matches, commands::tree()),
        Some(("man", matches)) => manual::run_man(matches, commands::tree()),
        _ => Err(Failure::usage(anyhow::anyhow!("no command given; see epicepoch --help"))),
    }
}
