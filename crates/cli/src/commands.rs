//! The command line with all commands. The arguments and help of each command are in its own file.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::{
    backup, bench, certs, check_config, clock, cluster_settings, decode, dev, encode, get, init,
    lab, latest, leader, manual, member, probe, rolling, serve, sim, status, top, tune, version,
};

/// Builds the command line with all commands.
pub(crate) fn tree() -> Command {
    Command::new("epicepoch")
        .version(env!("CARGO_PKG_VERSION"))
        .long_version(version::text())
        .about("A timestamp oracle: unique, strictly increasing timestamps from a small cluster.")
        .long_about(ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(100)
        .disable_help_subcommand(true)
        .subcommands([
            serve::command(),
            check_config::command(),
            dev::command(),
            get::command(),
            latest::command(),
            decode::command(),
            encode::command(),
            status::command(),
            top::command(),
        ])
        .subcommands([
            member::command(),
            leader::command(),
            clock::command(),
            cluster_settings::command(),
            tune::command(),
            rolling::command(),
            backup::command(),
            init::command(),
            certs::command(),
            probe::command(),
            bench::command(),
            lab::command(),
            sim::command(),
            manual::completions(),
            manual::man(),
        ])
}

/// Returns what replaces a flag of an earlier build, if the error is about one.
pub(crate) fn replacement(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    let replaced = REPLACED.iter().find(|(old, _)| is_unknown && old == flag);
    replaced.map(|(_, advice)| *advice)
}

/// Flags of earlier builds, and what to give instead.
const REPLACED: [(&str, &str); 2] = [
    (
        "--json",
        "--json is now --output json; the file of bench run --json FILE is now --report FILE",
    ),
    (
        "--format",
        "get --format is now --output text for hex, --output json, --raw for binary, --range for range",
    ),
];

const ABOUT: &str = "\
A timestamp oracle: unique, strictly increasing timestamps from a small cluster.

A timestamp is 16 bytes: Unix time in nanoseconds (the epoch), then an index inside it, both
big-endian, so that byte order is time order. The cluster is replicated with Raft and survives the
loss of any minority of its nodes.";

const EXAMPLES: &str = "\
Try it:
  epicepoch check-config                       whether a node could start with its settings
  epicepoch dev                                a cluster of three on this machine
  curl -fsS localhost:8881/timestamp | xxd     a timestamp
  epicepoch get -n 3 | epicepoch decode        three, with their wall time
  epicepoch status                             who leads
  epicepoch top                                how the nodes do, again and again
  epicepoch member list                        its members, and how far behind each is
  epicepoch leader transfer                    let another node lead
  epicepoch settings list                      the settings of the cluster
  epicepoch backup --out epicepoch.backup      what a restore needs, as a small file
  epicepoch init 1=n1 2=n2 3=n3                all files of a new cluster with TLS
  epicepoch certs --help                       certificates, for TLS
  epicepoch bench run --rate 1000              how fast it answers
  epicepoch probe                              what clients see, for a monitoring system
  epicepoch completions bash                   commands and flags for your shell

Exit codes: 0 done; 1 the command could not do it, or something is not well; 2 a name or a value
that you gave is wrong: nothing was done, and the same command fails again. Some commands have more.";

#[cfg(test)]
mod tests {
    use epicepoch_config::Scope;

    use super::*;

    fn help_of(command: &str) -> String {
        let mut tree = tree();
        let found = tree.find_subcommand_mut(command).expect("a command");
        found.render_long_help().to_string()
    }

    #[test]
    fn the_command_line_is_consistent() {
        tree().debug_assert();
    }

    #[test]
    fn the_help_of_serve_teaches_every_setting() {
        let help = help_of("serve");
        for setting in epicepoch_config::settings() {
            let flag = format!("--{}", setting.flag());
            for part in [flag.as_str(), &format!("[env: {}]", setting.name)] {
                assert!(help.contains(part), "{part} in\n{help}");
            }
        }
        for group in Scope::Node.groups() {
            assert!(help.contains(group.heading), "{}", group.heading);
        }
    }

    #[test]
    fn dev_offers_no_setting_that_each_node_has_for_itself() {
        let help = help_of("dev");
        assert!(help.contains("--epoch-interval-ms"));
        assert!(!help.contains("--node-id") && !help.contains("--peers"), "{help}");
    }

    #[test]
    fn the_first_help_shows_every_command_and_examples() {
        let help = tree().render_long_help().to_string();
        for word in [
            "serve",
            "dev",
            "get",
            "latest",
            "decode",
            "encode",
            "status",
            "member",
            "leader",
            "clock",
            "backup",
            "init",
            "certs",
            "probe",
            "bench",
            "lab",
            "sim",
            "curl",
            "Exit codes",
        ] {
            assert!(help.contains(word), "{word} in\n{help}");
        }
    }
}
