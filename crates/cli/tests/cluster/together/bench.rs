//! Runs the commands of `epicepoch bench` against real nodes, as a shell would. Checks the files
//! that the commands write, and their exit codes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use epicepoch_bench::record::Run;

use crate::support::Cluster;
use crate::support::node::binary;

/// Runs commands in `directory`, for the cluster at `addr`.
struct Shell<'a> {
    directory: &'a Path,
    addr: String,
}

impl Shell<'_> {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(binary());
        command.arg("bench").args(arguments.split_whitespace()).current_dir(self.directory);
        command.env_clear().env("EPICEPOCH_ADDRS", &self.addr).stdin(Stdio::null());
        command
    }

    /// Runs a command, which must end with one of `codes`. Returns its output.
    fn run(&self, arguments: &str, codes: &[i32]) -> String {
        Self::told(arguments, &self.command(arguments).output().expect("it runs"), codes)
    }

    fn told(arguments: &str, output: &Output, codes: &[i32]) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (told, complaint) = (text(&output.stdout), text(&output.stderr));
        let code = output.status.code().expect("it ends by itself");
        assert!(codes.contains(&code), "{arguments}: {code}\n{told}\n{complaint}");
        told
    }

    fn report(&self, name: &str) -> Run {
        Run::read(&self.directory.join(name)).expect("a report")
    }
}

/// Checks that a run over every transport gets correct answers. If the transport counts bytes on
/// the wire, the report has them.
fn transports(shell: &Shell<'_>) {
    for via in ["http1", "h2c", "native", "client"] {
        let load = "--duration 1s --warmup 0 --connections 2";
        let told = shell.run(&format!("run --via {via} {load} --report {via}.json"), &[0]);
        let report = shell.report(&format!("{via}.json"));
        assert!(report.answers > 0 && report.failures.is_empty(), "{told}");
        assert_eq!(report.verify.expect("on by default").violations, 0, "{told}");
        assert_eq!(report.wire.per_request().is_some(), via != "client", "{told}");
        assert_eq!(told.contains("\nwire "), via != "client", "{told}");
        assert!(!told.contains("node 0"), "{told}");
    }
}

/// Each request gets a million timestamps as one range. These answers are checked for order and
/// uniqueness like all others.
fn ranges(shell: &Shell<'_>) {
    for via in ["http1 --range", "h2c --range", "native"] {
        let load = "-n 1000000 --duration 1s --warmup 0 --connections 2 --report ranges.json";
        let told = shell.run(&format!("run --via {via} {load}"), &[0]);
        let report = shell.report("ranges.json");
        assert_eq!(report.timestamps, 1_000_000 * report.answers);
        assert!(report.failures.is_empty(), "{told}");
        assert_eq!(report.verify.expect("on by default").violations, 0, "{told}");
    }
    shell.run("run -n 65537", &[2]);
}

/// Checks the log that a run writes, and the command that compares the reports of two runs.
fn files(shell: &Shell<'_>) {
    let run = "run --rate 200 --duration 500ms --warmup 200ms";
    for (name, more) in [("left", "--hlog all.hlog"), ("right", "--commit abc")] {
        shell.run(&format!("{run} --report {name}.json {more}"), &[0]);
    }
    let log = std::fs::read_to_string(shell.directory.join("all.hlog")).expect("it was written");
    assert!(log.contains("HISTFAAA"), "{log}");
    assert_eq!(shell.report("right.json").program.commit.as_deref(), Some("abc"));
    let told = shell.run("compare left.json -- right.json", &[4]);
    assert!(told.contains("no verdict"), "{told}");
    shell.run("compare left.json -- right.json --tolerance", &[2]);
    shell.run("compare left.json http1.json", &[1]);
    let told = shell.run("floor --duration 50ms", &[0]);
    assert!(told.contains("both ends sleep"), "{told}");
}

#[test]
fn every_bench_command_works_against_real_nodes() {
    let cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let follower = cluster.others(leader)[0];
    let directory = tempfile::tempdir().expect("a directory");
    let addr = cluster.nodes[follower].http().to_string();
    let shell = Shell { directory: directory.path(), addr };
    transports(&shell);
    ranges(&shell);
    files(&shell);
}
