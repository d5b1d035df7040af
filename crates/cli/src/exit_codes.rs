//! Tests of the rule of exit codes ([`crate::failure`]), for every argument of every command. They
//! ask no node: a wrong name or a wrong value is noticed before anything is sent.

use std::process::ExitCode;

use clap::{Arg, Command};
use epicepoch_config::{Environment, settings};

use crate::commands;
use crate::failure::USAGE;

/// Arguments that a command needs beside the one that is tested.
const NEEDED: [(&str, &[&str]); 15] = [
    ("encode", &["1s"]),
    ("member add", &["4=n4:60001"]),
    ("member promote", &["4"]),
    ("member remove", &["4"]),
    ("clock advance-to", &["1s"]),
    ("settings set", &["MAX_N=1"]),
    ("rolling", &["--dry-run"]),
    ("bench compare", &["/dev/null"]),
    ("certs node", &["1=a"]),
    ("certs client", &["a"]),
    ("certs renew", &[NO_FILE]),
    ("certs show", &[NO_FILE]),
    ("init", &["1=a"]),
    ("completions", &["bash"]),
    ("lab", &["one-zone"]),
];

/// Arguments of which every text is a right value.
const ANY: [(&str, &str); 8] = [
    ("rolling", "restart"),
    ("bench run", "commit"),
    ("certs ca", "dir"),
    ("certs ca", "out"),
    ("certs node", "out"),
    ("certs client", "out"),
    ("certs renew", "out"),
    ("init", "out"),
];

/// A wrong value of each argument. An argument has the same meaning in every command, except those
/// in the first group.
fn wrong_values(command: &str, argument: &str) -> &'static [&'static str] {
    match (command, argument) {
        ("clock advance-to", "time") => &["soon", "1700000000"],
        ("certs node", "names") | ("init", "nodes") => &["=", "0=a"],
        ("certs client", "names") => &["a b"],
        ("man", "out") => &["/dev/null/man"],
        ("dev", "data-dir") => &[""],
        ("sim", "nodes") => &["9"],
        ("lab", "name") => &["no-such", NO_FILE],
        ("lab", "only") => &["7", "x"],
        ("lab", "links") => &["vpn"],
        ("rolling", "nodes") => &["x", "0", "1,1"],

        (_, "addr") => &["nohost", "n1:99999", ""],
        (_, "timeout" | "wait" | "settle" | "duration" | "warmup" | "interval" | "watch") => {
            &["5", "-1s"]
        }
        (_, "cluster") => &["a/b", ""],
        (
            _,
            "ca-file" | "cert-file" | "key-file" | "token-file" | "CONFIG" | "binary" | "names"
            | "check" | "dir" | "data-dir" | "out" | "report" | "hlog" | "html" | "svg" | "base"
            | "new",
        ) => &[NO_FILE],
        (_, "output") => &["xml", "Json"],
        (
            _,
            "count" | "connections" | "pipeline" | "in-flight" | "threads" | "pid" | "seeds"
            | "jobs" | "days" | "node" | "remove" | "to" | "stopped",
        ) => &["0", "x"],
        (_, "rate") => &["fast", "-1"],
        (_, "transport" | "arrivals" | "guarantee" | "verify" | "shell" | "plant") => &["no-such"],
        (_, "path") => &["x", "/a b"],
        (_, "reservation-ms" | "clock-offset-max-ms") => &["x", "0"],
        (_, "seed" | "seconds" | "tolerance") => &["x"],
        (_, "confidence") => &["0", "100"],
        (_, "timestamp") => &["xyz", "12"],
        (_, "time") => &["yesterday", "-1s"],
        (_, "member") => &["4", "0=n4:60001", "4=n4"],
        (_, "ahead-max") => &["1", "367d"],
        (_, "changes") => &[
            "MAX_N",
            "NO_SUCH=1",
            "MAX_N=0",
            "LEADER_ZONES=a,,b",
            "LEASE_MS=49",
            "GUARANTEE_DEFAULT=x",
        ],
        (_, "metrics-bind") => &["here", "localhost:1"],
        (_, "nodes") => &["0", "10"],
        (_, "http-port" | "raft-port" | "http-port-base" | "raft-port-base") => &["0", "65536"],
        _ => panic!("{command}: give a wrong value of {argument} here, or add it to ANY"),
    }
}

const NO_FILE: &str = "/nonexistent/directory/file";

/// Returns every command without subcommands, with its name.
fn leaves(name: &str, command: &Command) -> Vec<(String, Command)> {
    let below = command.get_subcommands().filter(|it| it.get_name() != "help");
    let below: Vec<_> =
        below.flat_map(|it| leaves(format!("{name} {}", it.get_name()).trim(), it)).collect();
    let runs = !command.is_subcommand_required_set();
    let own = runs.then(|| (name.to_owned(), command.clone()));
    own.into_iter().chain(below).collect()
}

/// Runs a command line. Returns its exit code, and the error.
fn run(words: &[&str]) -> (ExitCode, String) {
    let arguments = ["epicepoch"].iter().chain(words);
    match commands::tree().try_get_matches_from(arguments) {
        Err(error) => (ExitCode::from(error.exit_code() as u8), error.to_string()),
        Ok(matches) => match crate::run(&matches, &Environment::new()) {
            Ok(code) => (code, "no error".to_owned()),
            Err(failure) => (ExitCode::from(failure.code), format!("{:#}", failure.error)),
        },
    }
}

#[track_caller]
fn assert_usage(words: &[&str]) {
    let (code, error) = run(words);
    // An exit code cannot be compared in another way.
    let is_usage = format!("{code:?}") == format!("{:?}", ExitCode::from(USAGE));
    assert!(is_usage, "{words:?}: {code:?}, {error}");
}

fn takes_value(argument: &Arg) -> bool {
    let is_setting = settings().any(|setting| setting.name == argument.get_id());
    argument.get_action().takes_values() && !is_setting
}

#[test]
fn a_wrong_value_of_any_argument_of_any_command_exits_with_2() {
    let mut count = 0;
    let mut tree = commands::tree();
    tree.build();
    for (name, command) in leaves("", &tree) {
        let needed = NEEDED.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, it)| it);
        for argument in command.get_arguments().filter(|it| takes_value(it)) {
            let id = argument.get_id().as_str();
            if ANY.contains(&(name.as_str(), id)) {
                continue;
            }
            for value in wrong_values(&name, id) {
                let mut words: Vec<&str> = name.split(' ').collect();
                let flag = argument.get_long().map(|flag| format!("--{flag}={value}"));
                match (&flag, id) {
                    (Some(flag), _) => words.extend(needed.iter().copied().chain([flag.as_str()])),
                    (None, "new") => words.extend(["/dev/null", "--", value]),
                    (None, _) => words.push(value),
                }
                assert_usage(&words);
                count += 1;
            }
        }
    }
    assert!(count > 150, "only {count} values were tested");
}

#[test]
fn a_wrong_name_exits_with_2() {
    let mut tree = commands::tree();
    tree.build();
    for (name, _) in leaves("", &tree) {
        let words: Vec<&str> = name.split(' ').collect();
        assert_usage(&[&words[..], &["--no-such-flag"]].concat());
        assert_usage(&[&words[..words.len() - 1], &["no-such-command"]].concat());
    }
}

/// Flags of earlier builds are refused, and the error names what replaces them.
#[test]
fn an_old_flag_is_refused_with_the_new_one() {
    for (words, new) in [
        (&["status", "--json"][..], "--output json"),
        (&["member", "list", "--json"], "--output json"),
        (&["bench", "run", "--json", "f"], "--report FILE"),
        (&["bench", "run", "--json=f"], "--report FILE"),
        (&["get", "--format", "binary"], "--raw"),
        (&["get", "--format=range"], "--range"),
    ] {
        assert_usage(words);
        let arguments = ["epicepoch"].iter().chain(words);
        let error = commands::tree().try_get_matches_from(arguments).expect_err("refused");
        let advice = commands::replacement(&error).unwrap_or_else(|| panic!("{words:?}: {error}"));
        assert!(advice.contains(new), "{words:?}: {advice}");
    }
    let other = commands::tree().try_get_matches_from(["epicepoch", "get", "--no-such-flag"]);
    assert_eq!(commands::replacement(&other.expect_err("refused")), None);
}

/// Commands that print no data. All others have `--output`.
const WITHOUT_DATA: [&str; 12] = [
    "top",
    "serve",
    "dev",
    "rolling",
    "certs ca",
    "certs node",
    "certs client",
    "certs renew",
    "init",
    "sim",
    "completions",
    "man",
];

#[test]
fn every_command_that_prints_data_takes_output() {
    let mut tree = commands::tree();
    tree.build();
    for (name, command) in leaves("", &tree) {
        let has_output = command.get_arguments().any(|it| it.get_long() == Some("output"));
        assert_eq!(has_output, !WITHOUT_DATA.contains(&name.as_str()), "{name}");
        let is_old = |it: &Arg| ["json", "format"].contains(&it.get_long().unwrap_or_default());
        assert!(!command.get_arguments().any(is_old), "{name}");
    }
}
