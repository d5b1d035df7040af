//! `epicepoch tune`: shows the round trips that the nodes measure between each other, and the
//! settings that these require. It changes nothing.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use epicepoch_config::Environment;
use epicepoch_config::tune::Report;

use crate::arguments::{EVERY_NODE_IS_ASKED, client_arguments, output};
use crate::clock;
use crate::failure::Failure;
use crate::operator;

pub(crate) fn command() -> Command {
    Command::new("tune")
        .about("Show the round trips between nodes, and the settings that these need")
        .long_about(
            "Show the round trips between nodes, as the nodes measure them, and the settings that \
             these need.\n\n  \
             USUAL    nine of ten of the last 64 round trips (13 seconds) were no longer\n  \
             LONGEST  the longest of the last 64\n\n\
             An election takes two round trips and must fit into one voter's turn, a quarter of \
             ELECTION_TIMEOUT_MS. So ELECTION_TIMEOUT_MS must be at least eight times the longest \
             usual round trip. The command advises ten times, and never less than the default.\n\n\
             RESERVATION_MS and CLOCK_OFFSET_MAX_MS are settings of the cluster: the report shows the \
             command that changes them. Give it before you restart the nodes with the other settings.",
        )
        .after_help(format!(
            "Example:\n  epicepoch tune --addr n1:8080,n2:8080,n3:8080\n\n\
             {EVERY_NODE_IS_ASKED}\n\n\
             Exit codes: 0 the settings suit the links; 1 they are too tight, RESERVATION_MS is \
             too short for them, a node does not answer, a link was not measured lately, or the \
             members are not known; 2 wrong usage.",
        ))
        .args(client_arguments())
        .arg(output())
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
