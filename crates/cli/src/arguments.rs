//! Arguments that several commands share.

use std::ops::RangeInclusive;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use epicepoch_wire::Guarantee;

use crate::expected;

/// The argument of [`output()`], and its values.
pub(crate) const OUTPUT: &str = "output";
const TEXT: &str = "text";
const JSON: &str = "json";

/// Help text of the commands that send an order to the leader.
pub(crate) const WHERE_ORDERS_ARE_ACCEPTED: &str = "\
Orders are accepted on the leader's own machine (--addr localhost:PORT), and from the addresses in \
ADMIN_FROM: in plain text if OPS_PLAIN_FROM allows that, too, otherwise over TLS with a token.";

/// Help text of the commands that ask every node.
pub(crate) const EVERY_NODE_IS_ASKED: &str = "\
The command asks every node: OPS_PLAIN_FROM of each must allow it, or give --ca-file and \
--token-file if the nodes use TLS. If the nodes have an OPS_ADDR, name that of every node in --addr.";

/// Builds a command that only groups other commands.
pub(crate) fn group(name: &'static str, subcommands: impl IntoIterator<Item = Command>) -> Command {
    Command::new(name)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands(subcommands)
}

pub(crate) fn text(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

pub(crate) fn number(name: &'static str, allowed: RangeInclusive<u64>, help: &'static str) -> Arg {
    text(name, "K", help).value_parser(value_parser!(u64).range(allowed))
}

pub(crate) fn client_arguments() -> [Arg; 7] {
    [
        Arg::new("addr")
            .long("addr")
            .value_name("HOST:PORT,...")
            .help("Client addresses of some members [env: EPICEPOCH_ADDRS]")
            .long_help(
                "Client addresses of some members; the command finds the leader from there. A \
                 port alone means localhost.\n[env: EPICEPOCH_ADDRS]\n\
                 [default: localhost:8881,8882,8883,8080]",
            ),
        Arg::new("timeout")
            .long("timeout")
            .value_name("TIME")
            .default_value("5s")
            .help("How long to try, such as 5s or 500ms"),
        Arg::new(expected::FLAG)
            .long(expected::FLAG)
            .value_name("NAME|ID")
            .help("Do nothing to any other cluster than this one [env: EPICEPOCH_CLUSTER]")
            .long_help(
                "Name (CLUSTER of its nodes) or id of the cluster that you mean. With it, the command \
                 refuses to act on any other cluster, before it changes anything. Set the variable in \
                 the shells of each environment.\n[env: EPICEPOCH_CLUSTER]",
            ),
        tls_file("ca-file", "Authorities of the nodes, as PEM; turns TLS on", "EPICEPOCH_CA_FILE"),
        tls_file("cert-file", "Client certificate, as PEM", "EPICEPOCH_CERT_FILE"),
        tls_file("key-file", "Private key of the client certificate, as PEM", "EPICEPOCH_KEY_FILE"),
        Arg::new("token-file")
            .long("token-file")
            .value_name("FILE")
            .help("File whose first token is sent to nodes [env: EPICEPOCH_TOKEN_FILE]")
            .long_help(
                "File whose first token is sent to nodes. A token of OPS_TOKEN_FILE serves every \
                 command; one of CLIENT_TOKEN_FILE serves get, latest, status, probe and bench. With \
                 both variables set, each command sends the token that it needs. With only the second, \
                 these five send its token over TLS or if every address is a loopback address.\n[env: \
                 EPICEPOCH_TOKEN_FILE]\n[env: EPICEPOCH_OPS_TOKEN_FILE, which operators' commands \
                 prefer]",
            ),
    ]
}

/// The argument that names a guarantee for requests.
pub(crate) fn guarantee() -> Arg {
    Arg::new(GUARANTEE)
        .long(GUARANTEE)
        .value_name("WORD")
        .value_parser(|word: &str| word.parse::<Guarantee>())
        .help("Guarantee that requests ask for: quorum or lease")
        .long_help(
            "Guarantee that requests ask for. With lease, the leader may answer without asking a \
             quorum; if a clock then runs at a wrong rate, a timestamp may lie below an earlier one. \
             Use one guarantee for all that share a keyspace. By default requests name none, and \
             get that of the cluster (GUARANTEE_DEFAULT): a quorum, unless it was changed.",
        )
}

/// The guarantee that [`guarantee`] was given; `None` also for commands without it.
pub(crate) fn guarantee_of(matches: &ArgMatches) -> Option<Guarantee> {
    matches.try_get_one(GUARANTEE).ok().flatten().copied()
}

/// The name of the argument [`guarantee`].
const GUARANTEE: &str = "guarantee";

fn tls_file(name: &'static str, help: &'static str, variable: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("FILE")
        .help(format!("{help} [env: {variable}]"))
        .help_heading("TLS")
}

/// Builds the argument with which every command that prints data takes its format.
pub(crate) fn output() -> Arg {
    Arg::new(OUTPUT)
        .long(OUTPUT)
        .value_name("FORMAT")
        .value_parser([TEXT, JSON])
        .default_value(TEXT)
        .hide_possible_values(true)
        .help("text for people, or json: fields as over HTTP")
        .long_help(
            "Format of the output: text for people, or json for programs. The fields of JSON have \
             the same names as over HTTP (docs/http.md lists them). 64-bit numbers are strings, \
             because many readers round them.",
        )
}

/// Whether the command prints JSON.
pub(crate) fn is_json(matches: &ArgMatches) -> bool {
    matches.get_one::<String>(OUTPUT).is_some_and(|format| format == JSON)
}

/// The name of [`compact`].
pub(crate) const COMPACT: &str = "compact";

/// The switch for compact timestamps.
pub(crate) fn compact() -> Arg {
    switch(COMPACT, "Print compact timestamps, of 64 bits; an error if the cluster gives wide ones")
}

pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}
