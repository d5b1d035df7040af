//! The commands of `epicepoch bench`, run as in a shell against real nodes. Checks the files that
//! they write, and their exit codes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use epicepoch_bench::record::Run;

use crate::support::Cluster;
use crate::support::node::binary;

/// A shell in `directory` for the cluster at `addr`.
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

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.join(name)).expect("it was written")
    }
}

/// Every transport gets verified answers, and reports bytes on the wire if it counts them.
fn transports(shell: &Shell<'_>) {
    for via in ["http1", "h2c", "native", "client"] {
        let load = "--duration 300ms --warmup 0 --connections 2";
        let told = shell.run(&format!("run --via {via} {load} --json {via}.json"), &[0]);
        let report = shell.report(&format!("{via}.json"));
        assert!(report.answers > 0 && report.failures.is_empty(), "{told}");
        assert_eq!(report.verify.expect("on by default").violations, 0, "{told}");
        assert_eq!(report.wire.per_request().is_some(), via != "client", "{told}");
        assert_eq!(told.contains("\nwire "), via != "client", "{told}");
        assert!(!told.contains("node 0"), "{told}");
    }
}

/// Each request gets a million timestamps as a range. The answers are checked like any others.
fn ranges(shell: &Shell<'_>) {
    for via in ["http1 --range", "h2c --range", "native"] {
        let load = "-n 1000000 --duration 300ms --warmup 0 --connections 2 --json ranges.json";
        let told = shell.run(&format!("run --via {via} {load}"), &[0]);
        let report = shell.report("ranges.json");
        assert_eq!((report.config.n, report.timestamps / report.answers), (1_000_000, 1_000_000));
        assert!(report.failures.is_empty(), "{told}");
        assert_eq!(report.verify.expect("on by default").violations, 0, "{told}");
    }
    shell.run("run -n 65537", &[2]);
}

/// Checks all files that a run writes.
fn files(shell: &Shell<'_>) {
    let files = "--json all.json --html all.html --hlog all.hlog --hgrm all.hgrm";
    let told = shell.run(&format!("run --rate 200 --duration 500ms --floor {files}"), &[0]);
    assert!(told.contains("two echoes, both ends sleep"), "{told}");
    assert!(shell.report("all.json").floor.is_some_and(|it| it.echo_rate_plain > 0.0));
    let page = shell.text("all.html");
    assert!(page.contains("<h2>The floor</h2>") && page.contains("<polyline"), "{page}");
    assert!(shell.text("all.hlog").contains("HISTFAAA"));
    assert!(shell.text("all.hgrm").contains("Total count"));
    shell.run("html all.json http1.json --out both.html", &[0]);
    assert!(shell.text("both.html").contains("http1"));
}

/// Checks the commands that read several reports.
fn sets(shell: &Shell<'_>) {
    let run = "run --rate 100 --duration 1s --warmup 200ms --json";
    let mut pair = ["left.json", "right.json"].map(|name| {
        let mut command = shell.command(&format!("{run} {name} --commit {name}"));
        command.stdout(Stdio::null()).spawn().expect("it runs")
    });
    for run in &mut pair {
        assert!(run.wait().expect("our own child").success());
    }
    let merged = Run::parse(&shell.run("merge left.json right.json", &[0])).expect("a report");
    let (left, right) = (shell.report("left.json"), shell.report("right.json"));
    assert_eq!(merged.answers, left.answers + right.answers);
    assert_eq!(merged.sources.len(), 2);
    shell.run("merge left.json all.json", &[1]);

    let told = shell.run("compare --html two.html left.json -- right.json", &[4]);
    assert!(told.contains("no verdict"), "{told}");
    assert!(shell.text("two.html").contains("<polyline"));
    shell.run("compare left.json -- right.json --json", &[2]);
    shell.run("compare left.json http1.json", &[1]);

    let told = shell.run("history kept --add left.json right.json", &[0]);
    assert!(told.contains("left.json") && told.contains("trend:"), "{told}");
    assert_eq!(shell.run("history kept", &[0]), told);
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
    sets(&shell);
    // On a busy machine any result is accepted, but there must be one.
    let told = shell.run(
        "knee --rate 200 --factor 10 --duration 200ms --warmup 100ms --connections 16 --json k.json",
        &[0, 1, 3, 4],
    );
    assert!(told.contains("knee ") && told.contains("what gave "), "{told}");
    assert!(shell.text("k.json").contains("\"kind\": \"knee\""));
}
