//! Tests `epicepoch lab`: it runs real nodes behind delayed links, and says what distance costs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use epicepoch_bench::record::Program;
use epicepoch_lab::outcome::{Cell, Outcome};
use epicepoch_lab::plan::Step;
use epicepoch_lab::topology::Mode;
use epicepoch_lab::{Plan, Running, Setup, file, report, run, text as lab_text};
use rustix::process::{Pid, Signal, getpgid, kill_process_group, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::alone;
use crate::support::node::{binary, command};

/// The published experiment with a tenth of its delay, in a second for each measurement.
const TWO_DC: &str = r#"
name = "two-dc-5ms"
[regions]
names = ["dc1", "dc2"]
one_way_ms = [[0, 5], [0, 0]]
[nodes]
1 = "dc1"
2 = "dc2"
3 = "dc2"
[clients]
dc1 = { weight = 1 }
[measure]
leader = "dc1"
"#;

fn lab(dir: &TempDir, file: &str, args: &[&str]) -> Output {
    let path = dir.path().join("topology.toml");
    fs::write(&path, file).expect("a temporary file");
    let mut command = command(&BTreeMap::new(), dir.path());
    command.arg("lab").arg(path).args(args).output().expect("the binary can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A round from the leader costs a round trip to the other data centre. The loss of the data centre
/// with the majority stops the service, and no answer comes from the rest.
#[test]
fn a_lab_measures_what_is_expected_and_refuses_without_a_majority() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let page = dir.path().join("lab.html");
    let page_argument = format!("--html={}", page.display());
    let args = ["--seconds=1", "--only=2,3", "--output=json", &page_argument];
    let output = lab(&dir, TWO_DC, &args);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(error.contains("verifying the links"), "{error}");
    let report = judged(&output, &[true, false]);
    let lab = &report["lab"];
    let cells = lab["cells"].as_array().expect("cells");
    assert!(!cells.is_empty(), "{out}");
    let silence = |outage: usize| &lab["outages"][outage]["silences"];
    assert_eq!(silence(0), &Value::Array(Vec::new()), "no clients are outside of dc1: {out}");
    assert_eq!(silence(1)[0]["ms"], Value::Null, "no answer without a majority: {out}");
    for cell in cells {
        // Wherever the leader is, an answer for dc1 waits for dc2.
        assert!(cell["p50_ms"].as_f64().is_some_and(|ms| ms >= 5.0), "{cell}");
        assert_eq!(cell["below"], false, "{cell}");
    }
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"), "{page}");
}

/// Returns the report of a lab that was run with `--output=json`. On a busy machine a figure may be
/// above what is expected, or a leader may be replaced. Then the report says so, and the exit code is
/// 1. Everything else is as it should be: which outages were `survived`, and the answers.
#[track_caller]
fn judged(output: &Output, survived: &[bool]) -> Value {
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    let report: Value = serde_json::from_str(&out).expect(&error);
    let list = |name: &str| report["lab"][name].as_array().expect(name);
    let problems: Vec<_> = list("problems").iter().map(|it| it.as_str().expect("words")).collect();
    let has_moved = problems.iter().any(|it| it.contains("by itself"));
    assert!(has_moved || problems.iter().all(|it| it.contains("expected")), "{problems:?}");
    let code = i32::from(!problems.is_empty());
    assert_eq!(output.status.code(), Some(code), "{out} {error}");
    let outages = list("outages");
    assert_eq!(outages.iter().map(|it| &it["survivable"]).collect::<Vec<_>>(), survived, "{out}");
    for outage in outages {
        let mut silences = outage["silences"].as_array().expect("silences").iter();
        let is_answered = outage["survivable"] == false || silences.all(|it| it["ms"].is_number());
        assert!(is_answered && outage["forbidden_answers"] == 0, "{outage}");
    }
    assert_eq!(report["verify"]["violations"], 0, "{out}");
    report
}

/// A wrong file is refused before a node is started, with the name of what is wrong.
#[test]
fn a_wrong_topology_is_refused_by_name() {
    let dir = TempDir::new().expect("a temporary directory");
    for (from, to, said) in [
        ("2 = \"dc2\"", "2 = \"dc9\"", "dc9"),
        ("[[0, 5], [0, 0]]", "[[0, 5]]", "one_way_ms"),
        ("leader = \"dc1\"", "leader = \"dc9\"", "dc9"),
        ("[measure]", "[mesure]", "mesure"),
    ] {
        let output = lab(&dir, &TWO_DC.replace(from, to), &["--dry"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {error}");
        assert!(error.contains(said), "{to}: {error}");
    }
    let output = lab(&dir, TWO_DC, &["--dry", "--only=2"]);
    assert_eq!(output.status.code(), Some(2), "a run that is not made has no steps");
    let setting = format!("{TWO_DC}[settings]\nELECTION_TIMEOUT_MS = 1\n");
    let output = lab(&dir, &setting, &[]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("settings: ELECTION_TIMEOUT_MS is \"1\""), "{error}");
    let output = lab(&dir, TWO_DC, &["--dry"]);
    assert!(text(&output.stdout).contains("5.0"), "{}", text(&output.stderr));
}

/// A wrong expectation is planted: half of what the links cost, or twice that, as if no quorum was
/// asked. Every figure is marked.
#[test]
fn a_planted_wrong_expectation_is_marked() {
    let _alone = alone();
    for (factor, mark) in [(0.5, "ABOVE"), (2.5, "BELOW")] {
        marked(factor, mark);
    }
}

/// A node that lets one request wait refuses the others of 16 callers. The rest is as fast as
/// expected, so only the failures say that something is wrong.
#[test]
fn requests_that_are_refused_at_rest_are_a_problem() {
    let _alone = alone();
    let crowded = "callers = [16]\n[settings]\nTIMESTAMP_REQUEST_BUFFER = 1\n";
    let outcome = run_step(&format!("{TWO_DC}{crowded}"), "1", 1.0);
    let text = lab_text::outcome(&outcome);
    assert!(outcome.cells.iter().all(|cell| !cell.latency_ns.is_empty()), "{text}");
    assert!(text.contains("NOT AS EXPECTED: step 1") && text.contains("OVERLOADED"), "{text}");
    let report = report::report(&outcome, &Program::default());
    assert!(report["failures"]["OVERLOADED"].as_u64() > Some(0), "{report}");
    assert!(report["failure_share"].as_f64() > Some(0.0), "{report}");
}

/// The leader asks a quorum in one mode, and holds a lease in the other.
#[test]
fn a_lease_answers_without_the_way_to_the_quorum() {
    let _alone = alone();
    let modes = r#"modes = ["quorum", "lease"]"#;
    let outcome = run_step(&format!("{TWO_DC}{modes}\n"), "6", 1.0);
    let of = |mode| {
        let mut cells = outcome.cells.iter().filter(|cell| cell.mode == mode);
        cells.next().expect("a cell of each mode").p50_ms()
    };
    assert!(of(Mode::Quorum) >= 5.0, "{}", lab_text::outcome(&outcome));
    assert!(of(Mode::Lease) < 5.0, "{}", lab_text::outcome(&outcome));
    assert_eq!(outcome.violations, 0);
}

/// Clients ask the nearest node, which sends their requests on to the leader, over the same links as
/// the nodes' other connections.
#[test]
fn a_request_that_is_sent_on_takes_the_way_from_the_nearest_node_to_the_leader() {
    let _alone = alone();
    let modes = r#"modes = ["quorum", "forwarded"]"#;
    // The leader has its quorum at hand, and clients only a follower.
    let far = TWO_DC.replace("leader = \"dc1\"", "leader = \"dc2\"");
    let outcome = run_step(&format!("{far}{modes}\n"), "6", 1.0);
    let text = lab_text::outcome(&outcome);
    for mode in [Mode::Quorum, Mode::Forwarded] {
        let mut cells = outcome.cells.iter().filter(|cell| cell.mode == mode);
        let cell = cells.next().expect("a cell of each mode");
        assert!(!cell.latency_ns.is_empty() && cell.p50_ms() >= 5.0, "{mode:?}: {text}");
        assert!(!cell.is_below(), "{mode:?}: {text}");
    }
    assert_eq!(outcome.violations, 0);
}

/// The nearest node answers alone, however far the leader is. That is the last mode, because the way
/// back takes long.
#[test]
fn an_interval_is_given_by_the_nearest_node() {
    let _alone = alone();
    let modes = r#"modes = ["interval", "quorum"]"#;
    let outcome = run_step(&format!("{TWO_DC}{modes}\n"), "6", 1.0);
    let text = lab_text::outcome(&outcome);
    let modes: Vec<Mode> = outcome.of(Step::Modes).map(|cell| cell.mode).collect();
    assert_eq!(modes, [Mode::Quorum, Mode::Interval], "{text}");
    let [quorum, interval] = [0, 1].map(|at| &outcome.cells[at]);
    assert!(quorum.p50_ms() >= 5.0, "{text}");
    assert!(!interval.latency_ns.is_empty() && interval.p50_ms() < 5.0, "{text}");
}

/// Runs one step of a topology with the program that is tested.
#[track_caller]
fn run_step(file: &str, step: &str, expected_factor: f64) -> Outcome {
    let topology = file::parse(file).expect("a topology");
    let setup = Setup {
        program: binary(),
        plan: Plan::new(Duration::from_secs(1)).only(step).expect("a step"),
        seed: 1,
        stop: Arc::default(),
        running: Running::default(),
        expected_factor,
    };
    run::run(&topology, &setup, &mut |_| ()).expect("an outcome")
}

#[track_caller]
fn marked(expected_factor: f64, mark: &str) {
    let outcome = run_step(TWO_DC, "1", expected_factor);
    let judged: Vec<_> = outcome.cells.iter().filter(|cell| cell.callers == 1).collect();
    assert!(!judged.is_empty() && judged.into_iter().all(Cell::is_marked));
    assert!(!outcome.problems().is_empty());
    let text = lab_text::outcome(&outcome);
    assert!(text.contains(mark) && text.contains("NOT AS EXPECTED: step 1"), "{text}");
}

/// An interrupt from the terminal, which reaches the whole process group, ends the lab with exit code
/// 1, and all its nodes.
#[test]
fn an_interrupted_lab_leaves_no_process_behind() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let mut lab = Interrupted::start(&dir, TWO_DC, "step 0");
    let nodes = children(lab.child.id());
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    lab.interrupt();
    for node in nodes {
        assert!(test_kill_process(node).is_err(), "node {node:?} still runs");
    }
    let left: Vec<_> = fs::read_dir(dir.path()).expect("it is there").flatten().collect();
    assert_eq!(left.len(), 1, "only the file of the topology is left: {left:?}");
}

/// A look at links of nearly a second takes many seconds. An interrupt does not wait for it.
#[test]
fn a_lab_that_verifies_its_links_stops_at_once() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let far = TWO_DC.replace("[[0, 5], [0, 0]]", "[[0, 450], [450, 0]]");
    // The lab has no delays until then, so an election can be short.
    let far = format!("{far}[settings]\nELECTION_TIMEOUT_MS = 1000\n");
    let mut lab = Interrupted::start(&dir, &far, "verifying the links");
    let from = Instant::now();
    lab.interrupt();
    // A question that was asked is answered first.
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
}

/// A lab that runs, and is interrupted.
struct Interrupted {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Interrupted {
    /// Starts a lab, and waits until it says this.
    fn start(dir: &TempDir, file: &str, said: &str) -> Self {
        let path = dir.path().join("topology.toml");
        fs::write(&path, file).expect("a temporary file");
        let mut command = command(&BTreeMap::new(), dir.path());
        command.arg("lab").arg(path).env("TMPDIR", dir.path());
        Self::spawn(command, said).expect("it ended early")
    }

    /// Starts a lab in a process group of its own, as a shell does. Returns it when it has said this;
    /// `None` if it ends without that.
    fn spawn(mut command: Command, said: &str) -> Option<Self> {
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary");
        let mut lines = BufReader::new(child.stderr.take().expect("it is a pipe")).lines();
        let mut earlier = Vec::new();
        for line in lines.by_ref().map_while(Result::ok) {
            if line.contains(said) {
                return Some(Self { child, lines });
            }
            earlier.push(line);
        }
        child.wait().expect("it has ended");
        let forbidden = |line: &String| line.contains("no network namespace can be made");
        assert!(earlier.iter().any(forbidden), "it ended early: {earlier:?}");
        None
    }

    /// Interrupts its process group. Fails unless it says that it has stopped.
    fn interrupt(&mut self) {
        kill_process_group(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(1), "{rest:?}");
        assert!(rest.iter().any(|line| line.contains("stopped")), "{rest:?}");
    }
}

/// The processes that another one has started.
fn children(parent: u32) -> Vec<Pid> {
    let all = fs::read_dir("/proc").expect("the processes").flatten();
    let numbers = all.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.strip_prefix("PPid:").map(str::trim) == Some(&parent.to_string()))
    };
    numbers.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// With `--links netns` the kernel delays the links. Where it cannot, one line says why.
#[test]
fn the_kernel_delays_the_links_or_a_line_says_why_not() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let output = lab(&dir, TWO_DC, &["--seconds=1", "--only=2,3", "--links=netns"]);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    if error.contains("--links netns cannot be used on this machine: ") {
        assert_eq!(output.status.code(), Some(1), "{out} {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    } else {
        // On a busy machine a figure may be above what is expected. The outcome says so.
        assert!(out.contains("links (netns) verified"), "{out} {error}");
        assert_eq!(output.status.success(), !out.contains("NOT AS EXPECTED"), "{out} {error}");
    }
}

/// Without `tc`, the line names `tc`, and no module of the kernel.
#[test]
fn a_missing_tool_of_the_links_is_named() {
    let dir = TempDir::new().expect("a temporary directory");
    let tools = dir.path().join("tools");
    fs::create_dir(&tools).expect("a directory");
    for tool in ["unshare", "nsenter", "ip"] {
        let script = tools.join(tool);
        fs::write(&script, "#!/bin/sh\n").expect("a script");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let mut command = command(&BTreeMap::new(), dir.path());
    command.env("PATH", &tools).args(["lab", "one-zone", "--links=netns"]);
    let output = command.output().expect("the binary can be started");
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("a tool cannot be started: tc: "), "{error}");
    assert!(!error.contains("sch_netem"), "{error}");
}

/// A run that fails leaves an older page as it was.
#[test]
fn a_failed_lab_keeps_an_older_page() {
    let dir = TempDir::new().expect("a temporary directory");
    let page = dir.path().join("lab.html");
    fs::write(&page, "an older page").expect("a temporary file");
    let setting = format!("{TWO_DC}[settings]\nELECTION_TIMEOUT_MS = 1\n");
    let output = lab(&dir, &setting, &[&format!("--html={}", page.display())]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&page).expect("the page"), "an older page");
    let svg = dir.path().join("lab.svg");
    fs::write(&svg, "x".repeat(1 << 20)).expect("a temporary file");
    let output = lab(&dir, TWO_DC, &["--dry", &format!("--svg={}", svg.display())]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let drawn = fs::read_to_string(&svg).expect("the picture");
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "nothing else is left");
}

/// Everything of `--links netns` but the delays: nodes in namespaces, regions that are lost and
/// healed. A script takes the place of `tc`, and makes a plain queue of each `netem`, which many
/// kernels lack.
#[test]
fn regions_in_namespaces_are_lost_and_healed() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let topology = dir.path().join("topology.toml");
    fs::write(&topology, TWO_DC.replace("[0, 5]", "[0, 0]")).expect("a temporary file");
    let mut command = command(&BTreeMap::new(), dir.path());
    command.env("PATH", without_netem(&dir)).arg("lab").arg(topology);
    command.args(["--links=netns", "--seconds=1", "--only=3,4,5", "--output=json"]);
    let output = command.output().expect("the binary can be started");
    let error = text(&output.stderr);
    if error.contains("no network namespace can be made") {
        // A container may forbid namespaces. Then the command has said so.
        assert_eq!(output.status.code(), Some(1), "{error}");
        return;
    }
    let report = judged(&output, &[true, false, true, true]);
    assert_eq!(report["config"]["links"], "netns");
}

/// The tools of `--links netns` are not interrupted with the lab, which ends them itself.
#[test]
fn an_interrupted_lab_in_namespaces_says_that_it_stopped() {
    let _alone = alone();
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("topology.toml");
    fs::write(&path, TWO_DC.replace("[0, 5]", "[0, 0]")).expect("a temporary file");
    let mut command = command(&BTreeMap::new(), dir.path());
    command.env("PATH", without_netem(&dir)).arg("lab").arg(path).arg("--links=netns");
    let Some(mut lab) = Interrupted::spawn(command, "step 0") else {
        // A container may forbid namespaces.
        return;
    };
    let all = children(lab.child.id());
    assert_eq!(all.len(), 6, "three nodes, and what keeps their namespaces: {all:?}");
    for child in &all {
        assert_eq!(getpgid(Some(*child)).expect("it runs"), *child, "a group of its own");
    }
    lab.interrupt();
    for child in all {
        assert!(test_kill_process(child).is_err(), "{child:?} still runs");
    }
}

/// A search path whose first `tc` is a script without netem.
fn without_netem(dir: &TempDir) -> String {
    let tools = dir.path().join("tools");
    fs::create_dir(&tools).expect("a directory");
    let script = tools.join("tc");
    fs::write(&script, WITHOUT_NETEM).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("its mode");
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.display())
}

/// Runs the real `tc`, which is behind the script in `PATH`, without `netem`. A direction that is cut
/// has a queue without a place. Unlike netem's loss, TCP notices that.
const WITHOUT_NETEM: &str = r#"#!/bin/sh
PATH=${PATH#*:}
plain='s/netem loss.*/pfifo limit 0/; s/netem.*/pfifo limit 1000/'
if [ "$1" = -batch ]; then sed "$plain" | tc "$@"; fi
"#;
