//! The binary as a shell uses it, without a running cluster: its exit codes, and its output on each
//! stream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

/// Returns a command that runs the binary with only `variables` in its environment.
fn epicepoch(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epicepoch"));
    command.args(arguments).env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    epicepoch(arguments, variables).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[test]
fn wrong_usage_and_wrong_settings_exit_with_2_and_say_why_on_standard_error() {
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str);
    let cases: [Case; 20] = [
        (&[], &[], "Usage"),
        (&["serve", "--no-such-flag"], &[], "--no-such-flag"),
        (&["serve"], &[], "NODE_ID is required"),
        (&["serve"], &[("NODE_ID", "0")], "NODE_ID is \"0\""),
        (&["serve"], &[("HTTP_PORT", "")], "unset it to use the default"),
        (&["serve", "--config", "/nonexistent"], &[], "/nonexistent"),
        (&["dev", "--nodes", "10"], &[], "1..=9"),
        (&["decode", "xyz"], &[], "xyz"),
        (&["encode", "-1s"], &[], "allowed is 1970"),
        (&["get", "--timeout", "5"], &[], "--timeout"),
        (&["bench"], &[], "Usage"),
        (&["bench", "run", "--rate", "fast"], &[], "--rate is \"fast\""),
        (&["bench", "run", "--in-flight", "4"], &[], "--pipeline"),
        (&["bench", "run", "--duration", "0s"], &[], "--duration"),
        (&["bench", "run", "--interval", "1ms"], &[], "--interval"),
        (&["bench", "run", "-n", "65537"], &[], "--range"),
        (&["bench", "run", "--path", "a b", "--verify", "off"], &[], "begin with /"),
        (&["bench", "run", "--path", "/a"], &[], "--verify off"),
        (&["bench", "compare", "/dev/null", "--", "--tolerance"], &[], "before --"),
        (&["bench", "floor", "--dir", "/nonexistent"], &[], "/nonexistent"),
    ];
    for (arguments, variables, says) in cases {
        let output = output(arguments, variables);
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {variables:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}: standard output is for data");
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

#[test]
fn help_and_version_are_data() {
    for arguments in [["--help"].as_slice(), &["--version"], &["serve", "--help"], &["dev", "-h"]] {
        let output = output(arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stdout.contains(&0x1b), "{arguments:?}: colours only on a terminal");
    }
}

#[test]
fn encode_and_decode_fit_together_in_a_pipe() {
    let lowest = output(&["encode", "--lowest", "1700000000s"], &[]).stdout;
    assert_eq!(text(&lowest), "17979cfe362a00000000000000000000\n");
    let mut decode = epicepoch(&["decode"], &[]);
    let mut decode =
        decode.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    decode.stdin.take().expect("piped").write_all(&lowest).expect("written");
    let output = decode.wait_with_output().expect("ended");
    assert!(text(&output.stdout).contains("time=2023-11-14T22:13:20.000000000Z"));
}

/// Returns whether a program accepts `input` as its standard input; `None` if the machine lacks it.
fn is_accepted(program: &str, arguments: &[&str], input: &[u8]) -> Option<bool> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().ok()?;
    child.stdin.take().expect("piped").write_all(input).expect("written");
    Some(child.wait().expect("ended").success())
}

#[test]
fn completions_are_valid_and_complete_commands_and_flags() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = output(&["completions", shell], &[]).stdout;
        assert_ne!(is_accepted(shell, &[check], &script), Some(false), "{shell}");
        let script = text(&script);
        for word in ["check-config", "advance-to", "metrics-bind", "raft-addr", "token-file"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    // In bash, which every machine of ours has, the script completes what a user types.
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("completions");
    std::fs::write(&path, output(&["completions", "bash"], &[]).stdout).expect("written");
    let completed = |words: &[&str]| {
        let last = words.len() - 1;
        let script = format!(
            ". {path}; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _epicepoch epicepoch '{now}' '{before}'; echo \"${{COMPREPLY[@]}}\"",
            path = path.display(),
            words = words.join(" "),
            now = words[last],
            before = words[last - 1],
        );
        let told = Command::new("bash").args(["--norc", "-c", &script]).output().expect("bash");
        text(&told.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["epicepoch", "sta"]), ["status"]);
    assert_eq!(completed(&["epicepoch", "member", "pro"]), ["promote"]);
    assert_eq!(completed(&["epicepoch", "get", "--ra"]), ["--raw", "--range"]);
    assert_eq!(completed(&["epicepoch", "status", "--output", ""]), ["text", "json"]);
}

#[test]
fn manual_pages_are_valid_and_one_for_each_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("man1");
    let path = out.to_str().expect("text");
    let written = output(&["man", "--out", path], &[]);
    assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
    let pages: Vec<_> = text(&written.stdout).lines().collect();
    for name in
        ["epicepoch", "epicepoch-get", "epicepoch-member-list", "epicepoch-clock-advance-to"]
    {
        assert!(pages.contains(&format!("{path}/{name}.1").as_str()), "{name} in {pages:?}");
    }
    for page in pages {
        let content = std::fs::read(page).expect("read");
        // Warnings of groff are on standard error, and its exit code is 0.
        let checked = Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8", page]).output();
        if let Ok(checked) = checked {
            assert!(checked.stderr.is_empty(), "{page}: {}", text(&checked.stderr));
        }
        assert_ne!(is_accepted("mandoc", &["-Tlint", "-Werror"], &content), Some(false), "{page}");
        assert!(text(&content).contains(".SH NAME\nepicepoch"), "{page}");
    }
    let page = std::fs::read_to_string(format!("{path}/epicepoch-get.1")).expect("read");
    assert!(page.contains("\\-\\-raw") && page.contains("Examples"), "{page}");
}

#[test]
fn check_config_reports_every_problem_at_once_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data").display().to_string();
    let token = dir.path().join("tokens");
    std::fs::write(&token, "a-secret-token-of-32-characters!\n").expect("written");
    let token = token.display().to_string();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    let free = free.expect("a port").to_string();
    let good = [
        ("NODE_ID", "1"),
        ("RAFT_ADDR", &free),
        ("SINGLE", "1"),
        ("BOOTSTRAP", "1"),
        ("HTTP_PORT", "0"),
        ("HTTP3", "0"),
        ("DATA_DIR", &data),
        ("OPS_TOKEN_FILE", &token),
    ];
    let checked = output(&["check-config", "--max-n", "77"], &good);
    let said = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(0), "{said}");
    for line in ["MAX_N=77 ", "the flag --max-n", "HEARTBEAT_MS=40 ", "no problem"] {
        assert!(said.contains(line), "{line} in {said}");
    }
    assert!(!said.contains("a-secret"), "{said}");
    assert!(!std::fs::exists(&data).expect("looked"), "it was created");
    let bad = [&good[..], &[("HTTP_PORT", "no"), ("MAX_N", "0"), ("CLUSTER", "a b")]].concat();
    let checked = output(&["check-config", "--output", "json"], &bad);
    let document: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    let problems = document["problems"].as_array().expect("problems").clone();
    assert_eq!((checked.status.code(), problems.len()), (Some(2), 3), "{problems:?}");
    // `serve` refuses the same settings with the first of these problems.
    let served = output(&["serve"], &bad);
    assert_eq!(served.status.code(), Some(2));
    let first = problems[0].as_str().expect("a text");
    assert_eq!(text(&served.stderr).trim(), format!("epicepoch: {first}"));
    // A missing setting has no value.
    let said = output(&["check-config"], &[]).stdout;
    assert!(!text(&said).contains("NODE_ID=") && text(&said).contains("NODE_ID is required"));
    // With good settings, it looks at the files.
    let bad = [&good[..], &[("OPS_TOKEN_FILE", "/nonexistent"), ("BOOTSTRAP", "0")]].concat();
    let checked = output(&["check-config"], &bad);
    let said = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(2), "{said}");
    assert!(said.contains("2 problems") && said.contains("BOOTSTRAP is off"), "{said}");
}

#[test]
fn encode_prints_as_json_only_the_bound_that_was_asked_for() {
    for (only, other) in [("lowest", "highest"), ("highest", "lowest")] {
        let printed = output(&["encode", "1s", &format!("--{only}"), "--output", "json"], &[]);
        let document: serde_json::Value = serde_json::from_slice(&printed.stdout).expect("JSON");
        assert!(document[only].is_string() && document["epoch"].is_string(), "{document}");
        assert!(document[other].is_null(), "{document}");
    }
}

#[test]
fn a_new_authority_has_one_directory() {
    let refused = output(&["certs", "ca", "--dir", "a", "--out", "b"], &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("cannot be used with"), "{}", text(&refused.stderr));
    assert!(!std::fs::exists("b").expect("looked"));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut decode = epicepoch(&["decode"], &[]);
    let decode = decode.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut decode = decode.spawn().expect("the binary runs");
    drop(decode.stdout.take());
    let mut stdin = decode.stdin.take().expect("piped");
    // The test writes to standard input until the write fails. That shows that the binary has
    // ended.
    while stdin.write_all(b"17979cfe362a00000000000000000000\n").is_ok() {}
    drop(stdin);
    let mut complaint = String::new();
    decode.stderr.take().expect("piped").read_to_string(&mut complaint).expect("text");
    assert_eq!(complaint, "");
    assert_eq!(decode.wait().expect("ended").code(), Some(0));
}

/// Returns the writing end of a pipe whose reading end is closed. Every write to it fails.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn results_do_not_depend_on_whether_the_output_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().to_str().expect("text");
    let made = epicepoch(&["certs", "ca", "--dir", dir], &[]).stdout(unread()).output();
    let made = made.expect("the binary runs");
    assert_eq!((made.status.code(), text(&made.stderr)), (Some(0), ""));
    assert!(std::fs::exists(format!("{dir}/ca.key")).expect("looked"));
    // A full device is not a reader that has left. So this error of standard output is reported.
    let full = std::fs::File::create("/dev/full").expect("the device");
    let ended = epicepoch(&["encode", "1s"], &[]).stdout(full).output().expect("the binary runs");
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
#[cfg(debug_assertions)]
fn a_violation_counts_when_the_output_is_not_read() {
    let arguments = ["sim", "--seed", "0", "--seeds", "20", "--plant", "checked-at-arrival"];
    let failed = epicepoch(&arguments, &[]).stdout(unread()).output().expect("the binary runs");
    assert_eq!((failed.status.code(), text(&failed.stderr).lines().count()), (Some(3), 1));
    assert!(text(&failed.stderr).starts_with("begins with seed 0, "), "{}", text(&failed.stderr));
}

#[test]
fn a_command_without_a_node_to_ask_fails_at_run_time() {
    for command in [["get"].as_slice(), &["status"], &["bench", "run"]] {
        // The only given address is port 1 of localhost. No process listens at that reserved port.
        let output =
            output(&[command, &["--timeout", "50ms"]].concat(), &[("EPICEPOCH_ADDRS", "1")]);
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(output.stdout.is_empty());
        assert!(text(&output.stderr).contains("before the deadline"), "{}", text(&output.stderr));
    }
}

#[test]
fn the_simulator_reports_what_it_exercised_and_the_same_seed_gives_the_same_trace() {
    let arguments = ["sim", "--seed", "3", "--seconds", "5", "--trace"];
    let (first, again) = (output(&arguments, &[]), output(&arguments, &[]));
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let printed = timeless(&first);
    assert_eq!(printed, timeless(&again));
    for says in ["requests: ", " refused", "leaders: ", "faults: ", "trace hash "] {
        assert!(printed.iter().any(|line| line.contains(says)), "{says}");
    }
}

/// Returns the lines of the simulator's output, except the one that says how long the run took.
fn timeless(output: &Output) -> Vec<String> {
    let lines = text(&output.stdout).lines().map(str::to_owned);
    lines.filter(|line| !line.contains("seeds/s")).collect()
}

#[test]
fn seeds_on_several_threads_print_the_same_as_on_one() {
    let arguments = ["sim", "--seed", "40", "--seeds", "7", "--seconds", "2"];
    let [one, three] =
        ["1", "3"].map(|jobs| output(&[&arguments[..], &["--jobs", jobs]].concat(), &[]));
    assert_eq!(one.status.code(), Some(0), "{}", text(&one.stderr));
    assert_eq!(three.status.code(), Some(0), "{}", text(&three.stderr));
    assert!(text(&one.stdout).contains("seeds 40 to 46, trace hash "));
    // The simulator prints the range of seeds before it runs the first one.
    assert!(text(&one.stderr).starts_with("begins with seed 40, ends with 46 ("));
    assert_eq!(timeless(&one), timeless(&three));
}

#[test]
#[cfg(debug_assertions)]
fn seeds_on_several_threads_stop_at_the_first_that_fails() {
    let arguments = ["sim", "--seed", "0", "--seeds", "20", "--plant", "checked-at-arrival"];
    let [one, three] =
        ["1", "3"].map(|jobs| output(&[&arguments[..], &["--jobs", jobs]].concat(), &[]));
    assert_eq!(one.status.code(), Some(3), "{}", text(&one.stderr));
    assert_eq!(timeless(&one), timeless(&three));
}

#[test]
#[cfg(debug_assertions)]
fn a_failure_names_seed_and_rule_and_its_replay_command_reproduces_it() {
    let failed =
        output(&["sim", "--seed", "0", "--seeds", "20", "--plant", "checked-at-arrival"], &[]);
    assert_eq!(failed.status.code(), Some(3), "safety");
    let printed = text(&failed.stdout);
    let find = |text: &str, what: &str| -> String {
        let line = text.lines().find(|line| line.starts_with(what));
        line.unwrap_or_else(|| panic!("{what} in {text}")).to_owned()
    };
    let (seed, hash) = (find(printed, "seed "), find(printed, "trace hash "));
    let rule = "SAFETY Specification(\"rounds/allocate/unconfirmed\"): the rule `unconfirmed` of";
    assert!(seed.contains(rule), "{seed}");
    assert!(
        printed.lines().filter(|line| line.contains(" ms  ")).count() >= 100,
        "a counterexample"
    );
    let replay = find(printed, "replay (debug build): epicepoch sim ");
    let (_, arguments) = replay.split_once(": epicepoch ").expect("find matched it");
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let replayed = output(&arguments, &[]);
    assert_eq!(replayed.status.code(), Some(3));
    assert_eq!(find(text(&replayed.stdout), "seed "), seed);
    assert_eq!(find(text(&replayed.stdout), "trace hash "), hash);
}

#[test]
#[cfg(debug_assertions)]
fn a_healed_cluster_that_does_not_answer_has_an_exit_code_of_its_own() {
    let failed = output(&["sim", "--seed", "0", "--seeds", "20", "--plant", "lost-turn"], &[]);
    assert_eq!(failed.status.code(), Some(4), "liveness");
    assert!(text(&failed.stdout).contains(": LIVENESS "), "{}", text(&failed.stdout));
}

/// Answers `GET /stamp?x=1` with status 200, and other paths with status 404, until the client
/// leaves.
fn serve_stamps(stream: TcpStream) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let status = if request == "GET /stamp?x=1 HTTP/1.1" { "200 OK" } else { "404 Not Found" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\nhello");
        out.write_all(answer.as_bytes())?;
    }
    Ok(())
}

#[test]
fn the_bench_measures_another_service_and_another_status_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    // The thread waits for connections until the process ends.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _the_client_has_left = serve_stamps(stream.unwrap());
        }
    });
    let mut arguments =
        vec!["bench", "run", "--addr", &addr, "--verify", "off", "--output", "json"];
    arguments.extend(["--connections", "1", "--warmup", "0", "--duration", "2s"]);
    for (path, code) in [("/stamp?x=1", 0), ("/stamp", 1)] {
        let output = output(&[&arguments[..], &["--path", path]].concat(), &[]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["config"]["path"], path);
        assert_eq!(report["answers"].as_u64().unwrap() > 0, code == 0, "{report}");
        assert_eq!(report["failures"]["status"].as_u64().is_some(), code == 1, "{report}");
    }
}
