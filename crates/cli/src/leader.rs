//! `epicepoch leader`: who leads is changed by hand.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_wire::http::PATH_ADMIN_TRANSFER;
use serde_json::Value;

use crate::commands::{client_arguments, json};
use crate::failure::Failure;
use crate::operator::{self, Order};
use crate::sources::Environment;

pub(crate) fn command() -> Command {
    let transfer = Command::new("transfer")
        .about("Hand leadership to another voter; clients wait for a few milliseconds")
        .long_about(
            "Hand leadership to another voter: before work on the leader's machine, for instance. \
             Without --to the most up-to-date voter gets it. Returns once the new leader is known. \
             Where LEADER_ZONES prefers another voter, leadership goes there again when all has been \
             calm for 25 ELECTION_TIMEOUT_MS (5 s): it is said, and so is what keeps it.",
        )
        .after_help(
            "Examples:\n  epicepoch leader transfer --addr n1:8080\n  \
             epicepoch leader transfer --to 2 --addr n1:8080,n2:8080,n3:8080\n\n\
             The order is taken on the leader's own machine with --addr localhost:PORT, or from where \
             ADMIN_FROM of the nodes allows it: in plain text if OPS_PLAIN_FROM does, too, else \
             over TLS with a token.\n\n\
             Exit codes: 0 done, or the node leads already; 1 refused, with the reason; 2 wrong usage.",
        )
        .arg(node("to", "The node that shall lead").long("to"))
        .args(client_arguments())
        .arg(json());
    Command::new("leader")
        .about("Change who leads")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(transfer)
}

/// A node id.
pub(crate) fn node(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name("ID").value_parser(value_parser!(u64).range(1..)).help(help)
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let Some(("transfer", matches)) = matches.subcommand() else {
        return Err(Failure::usage(anyhow::anyhow!(
            "no command given; see epicepoch leader --help"
        )));
    };
    let to = matches.get_one::<u64>("to").map(u64::to_string);
    let order = Order::change(PATH_ADMIN_TRANSFER, &[("to", to)]);
    let document = order.give(matches, environment)?;
    operator::print(matches, &document, |document| {
        let number = |name: &str| document[name].as_u64();
        let (leader, before, term) = (number("leader")?, number("before")?, number("term")?);
        if document["already"] == true {
            return Some(format!("node {leader} leads already\n"));
        }
        let took_ms = document["tookMs"].as_f64()?;
        Some(format!(
            "node {leader} leads in term {term}, {took_ms:.1} ms after node {before} was told\n"
        ))
    })?;
    if let Some(warning) = undoing(&document) {
        // The order was given and carried out, whether or not somebody reads this.
        let _unread = writeln!(io::stderr(), "warning: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be said where the new leader will hand over by itself.
fn undoing(document: &Value) -> Option<String> {
    let preferred: Vec<_> =
        document["preferred"].as_array()?.iter().map(Value::to_string).collect();
    let leader = document["leader"].as_u64()?;
    (!preferred.is_empty()).then(|| {
        format!(
            "LEADER_ZONES prefers node {} to node {leader}: leadership goes back there by itself when \
             all has been calm for 25 ELECTION_TIMEOUT_MS, 5 s by default. To keep it here, set zones \
             that do not (epicepoch settings set LEADER_ZONES=..., empty for none), and then give this \
             order again",
            preferred.join(", ")
        )
    })
}
