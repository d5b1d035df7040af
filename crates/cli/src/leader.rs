//! `epicepoch leader`: moves leadership by hand.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_config::Environment;
use epicepoch_wire::http::PATH_ADMIN_TRANSFER;
use serde_json::Value;

use crate::arguments::{WHERE_ORDERS_ARE_ACCEPTED, client_arguments, group, output};
use crate::failure::Failure;
use crate::operator::{self, Order};

pub(crate) fn command() -> Command {
    let transfer = Command::new("transfer")
        .about("Hand leadership to another voter; clients wait for a few milliseconds")
        .long_about(
            "Hand leadership to another voter, for instance before work on the leader's machine. \
             Without --to the most up-to-date voter gets it. The command returns once the new leader \
             is known. If LEADER_ZONES prefers another voter, leadership goes there once the cluster \
             has been stable for 25 ELECTION_TIMEOUT_MS (5 s by default); the command then says so, \
             and how to prevent it.",
        )
        .after_help(format!(
            "Examples:\n  epicepoch leader transfer --addr n1:8080\n  \
             epicepoch leader transfer --to 2 --addr n1:8080,n2:8080,n3:8080\n\n\
             {WHERE_ORDERS_ARE_ACCEPTED}\n\n\
             Exit codes: 0 done, or the node leads already; 1 refused, with the reason; 2 wrong usage.",
        ))
        .arg(node("to", "Node to hand leadership to").long("to"))
        .args(client_arguments())
        .arg(output());
    group("leader", [transfer]).about("Change who leads")
}

/// Builds an argument that takes a node id.
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
    operator::print(matches, &document, report)?;
    if let Some(warning) = undoing(&document) {
        // The order was carried out. So it does not matter if the warning cannot be printed.
        let _unread = writeln!(io::stderr(), "warning: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}

fn report(document: &Value) -> Option<String> {
    let (leader, term) = (leader(document)?, document["term"].as_u64()?);
    if document["already"] == true {
        return Some(format!("node {leader} leads already\n"));
    }
    let before = id(&document["previousLeader"]).or_else(|| id(&document["before"]))?;
    let took_ms = document["tookMs"].as_f64()?;
    Some(format!(
        "node {leader} leads in term {term}, {took_ms:.1} ms after node {before} was told\n"
    ))
}

/// Returns the leader in the answer of a node.
pub(crate) fn leader(document: &Value) -> Option<u64> {
    id(&document["leader"])
}

/// Returns the id of a node. During an upgrade, nodes of 0.1 give only the number.
fn id(node: &Value) -> Option<u64> {
    node["nodeID"].as_u64().or_else(|| node.as_u64())
}

/// Returns a warning if the new leader will soon hand leadership over by itself, because
/// `LEADER_ZONES` prefers another node.
fn undoing(document: &Value) -> Option<String> {
    let preferred: Vec<_> =
        document["preferred"].as_array()?.iter().map(Value::to_string).collect();
    let leader = leader(document)?;
    (!preferred.is_empty()).then(|| {
        format!(
            "LEADER_ZONES prefers node {} to node {leader}: leadership goes back there by itself once \
             the cluster has been stable for 25 ELECTION_TIMEOUT_MS, 5 s by default. To keep it here, \
             change the zones (epicepoch settings set LEADER_ZONES=..., empty for none), then repeat \
             this order",
            preferred.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_handover_is_reported_alike_by_nodes_of_this_version_and_of_the_one_before() {
        let expected = "node 2 leads in term 3, 2.8 ms after node 1 was told\n";
        let now = json!({"leader": {"nodeID": 2, "addr": "n2:8080"}, "already": false, "term": 3,
                         "previousLeader": {"nodeID": 1, "addr": "n1:8080"}, "tookMs": 2.81});
        let old = json!({"leader": 2, "before": 1, "term": 3, "tookMs": 2.81});
        for document in [now, old] {
            assert_eq!(report(&document).as_deref(), Some(expected), "{document}");
        }
    }
}
