//! `epicepoch tune`: how far the nodes are from each other, as they measure it themselves, and which
//! settings that calls for: of the nodes, and of the cluster. It changes nothing.

use std::process::ExitCode;

use clap::{ArgMatches, Command};

use self::report::Report;
use crate::clock;
use crate::commands::{client_arguments, json as json_switch};
use crate::failure::Failure;
use crate::operator;
use crate::sources::Environment;

mod report;

pub(crate) fn command() -> Command {
    Command::new("tune")
        .about("Show the round trips between nodes, and the settings that they call for")
        .long_about(
            "Show the round trips between nodes, as they measure them themselves, and the settings \
             that they call for.\n\n  \
             USUAL    nine of ten of the last 64 questions, of 13 seconds, took no longer\n  \
             LONGEST  the longest of them\n\n\
             An election is two round trips, and has to fit into a quarter of ELECTION_TIMEOUT_MS, \
             which is one voter's turn: ten of the longest usual round trip are advised, and never \
             less than the default; eight are the least.\n\n\
             RESERVATION_MS and CLOCK_OFFSET_MAX_MS are settings of the cluster: what it calls for of \
             them is a command, to be given before the nodes are restarted with the others.",
        )
        .after_help(
            "Example:\n  epicepoch tune --addr n1:8080,n2:8080,n3:8080\n\n\
             Every node is asked: OPS_PLAIN_FROM of all has to allow it, or give --ca-file and \
             --token-file where they speak TLS. With OPS_ADDR give that of every node.\n\n\
             Exit codes: 0 the settings suit the links; 1 they are too tight, RESERVATION_MS is \
             too short for them, a node does not answer, a way was not measured lately, or nobody says \
             who the members are; 2 wrong usage.",
        )
        .args(client_arguments())
        .arg(json_switch())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let looked = clock::look(matches, environment)?;
    let said = |row: &clock::Row| (row.member.node_id.0, row.clock.clone());
    let report = Report::of(looked.rows.iter().map(said));
    clock::warn(&looked);
    operator::print(matches, &report.document(), |_| Some(report.text()))?;
    Ok(if report.is_well() && looked.doubt.is_none() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
