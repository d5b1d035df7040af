//! `epicepoch check-config`: reads the settings as `serve` does, and checks what can be checked
//! without starting a node. It uses the code of `serve`, reports every problem at once, and changes
//! nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use epicepoch_config::{Effective, Environment, Scope};
use epicepoch_server::StartError;
use epicepoch_server::node::{Preflight, preflight};
use serde_json::{Value, json};

use crate::arguments::{is_json, output as output_argument};
use crate::failure::{RUNTIME, USAGE};
use crate::output;
use crate::serve;
use crate::settings;

pub(crate) fn command() -> Command {
    Command::new("check-config")
        .about("Check the settings of a node, its files and its ports, without starting it")
        .long_about(
            "Check the settings of a node, its files and its ports, without starting it. The command \
             takes the flags, variables and file of \"epicepoch serve\", reads them with the same code, \
             and reports every problem at once. It prints the settings that take effect. It creates \
             and changes nothing. Once the cluster has begun, \"epicepoch settings list\" shows the \
             settings that all nodes share.\n\n\
             It checks: each value, and whether the values agree; the data directory; the certificates, \
             keys and tokens, and who may read them; the backup of RESTORE; the names of the other \
             nodes; the ports, unless the node runs. Settings hold no secrets: they name the files that \
             do, and no content of a key or a token is printed.",
        )
        .after_help(
            "Examples:\n  \
             sudo -u epicepoch epicepoch check-config --config /etc/epicepoch/epicepoch.toml\n  \
             NODE_ID=1 RAFT_ADDR=n1:60001 PEERS=1=n1:60001,2=n2:60001,3=n3:60001 epicepoch check-config\n\n\
             Run it as the user of the service and in its working directory, so that it sees the files \
             as the service does.\n\n\
             Exit codes: 0 the node can start, perhaps with warnings; 1 only a port is in use or cannot \
             be opened now; 2 a setting or a file is wrong.",
        )
        .args(settings::arguments(Scope::Node))
        .arg(serve::config_file())
        .arg(output_argument())
}

/// The result of the check.
struct Report {
    settings: Vec<Effective>,
    problems: Vec<String>,
    warnings: Vec<String>,
    code: u8,
}

pub(crate) fn run(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<ExitCode, crate::failure::Failure> {
    let report = report(matches, environment);
    let mut out = output::account();
    if is_json(matches) {
        writeln!(out, "{}", report.document())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    Ok(ExitCode::from(report.code))
}

fn report(matches: &ArgMatches, environment: &Environment) -> Report {
    let (given, mut errors) = settings::given_all(Scope::Node, matches, environment);
    let (config, others) = given.node_all(serve::cores());
    errors.extend(others);
    // With a wrong setting it is not known which files and ports are meant.
    let Preflight { problems, warnings } =
        if errors.is_empty() { preflight(&config) } else { Preflight::default() };
    let is_port =
        |it: &StartError| matches!(it, StartError::Bind { .. } | StartError::BindUdp { .. });
    let code = match () {
        () if errors.is_empty() && problems.is_empty() => 0,
        () if errors.is_empty() && problems.iter().all(is_port) => RUNTIME,
        () => USAGE,
    };
    let text = |error: StartError| format!("{:#}", anyhow::Error::from(error));
    let problems = errors.iter().map(ToString::to_string).chain(problems.into_iter().map(text));
    let problems = problems.collect();
    Report { settings: given.effective(&config), problems, warnings, code }
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        for Effective { name, value, from } in &self.settings {
            let Some(value) = value else { continue };
            let from = from.as_ref().map_or_else(|| "default".to_owned(), ToString::to_string);
            let _infallible = writeln!(text, "{:<50} {from}", format!("{name}={value}"));
        }
        text.push('\n');
        for warning in &self.warnings {
            let _infallible = writeln!(text, "warning: {warning}");
        }
        for problem in &self.problems {
            let _infallible = writeln!(text, "problem: {problem}");
        }
        let _infallible = match self.problems.len() {
            0 => writeln!(text, "no problem: the node can start"),
            1 => writeln!(text, "1 problem: the node cannot start"),
            count => writeln!(text, "{count} problems: the node cannot start"),
        };
        text
    }

    fn document(&self) -> Value {
        let settings = &self.settings;
        let values: BTreeMap<_, _> = settings.iter().map(|it| (it.name, &it.value)).collect();
        let source = |it: &Effective| Some((it.name, it.from.as_ref()?.to_string()));
        let sources: BTreeMap<_, _> = settings.iter().filter_map(source).collect();
        json!({
            "settings": values,
            "sources": sources,
            "problems": self.problems,
            "warnings": self.warnings,
        })
    }
}

/// Returns a document with every field.
#[cfg(test)]
pub(crate) fn example() -> Value {
    let matches = crate::commands::tree().get_matches_from(["epicepoch", "check-config"]);
    let matches = matches.subcommand_matches("check-config").expect("it");
    report(matches, &Environment::new()).document()
}
