//! `epicepoch rolling` replaces the program of all nodes under load, one node after the other. No
//! call fails. The command stops at the first trouble. The program that is replaced is
//! [`old_program`].

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::node::{binary, old_program};
use crate::support::operator::list;
use crate::support::{
    Calling, Campaigns, Cluster, Disturbed, Node, WAIT_MAX, Watch, let_pass, undisturbed,
    wait_until,
};

/// Time limit of a command that restarts three nodes, on a machine under load.
const ROLLING_MAX: Duration = Duration::from_mins(2);
/// A node stays unreachable for this long after the command has begun. The command would wait two
/// seconds for it.
const MOMENT: Duration = Duration::from_millis(500);
/// A restart command for `epicepoch rolling`. It writes the id of the node to the file `wanted`,
/// and waits until the file is gone. The test restarts the node and removes the file, in place of a
/// process supervisor on another machine.
const RESTART: &str = "echo $EPICEPOCH_NODE_ID > wanted.new && mv wanted.new wanted && while test -e wanted; do \
     sleep 0.02; done; test ! -e failed";

/// Runs `epicepoch rolling`, and calls `restart` for each node that it names. Returns the command's
/// output and the ids of these nodes.
fn rolled(
    cluster: &mut Cluster,
    mut command: Command,
    restart: impl FnMut(&mut Cluster, usize),
) -> (Output, Vec<u64>) {
    command.stdout(Stdio::piped());
    rolled_into(cluster, command, restart)
}

/// Does what [`rolled`] does, but does not capture the standard output: `command` writes it where
/// the caller has directed it.
fn rolled_into(
    cluster: &mut Cluster,
    mut command: Command,
    mut restart: impl FnMut(&mut Cluster, usize),
) -> (Output, Vec<u64>) {
    command.stderr(Stdio::piped());
    let child = command.spawn().expect("the binary can be started");
    let ended = thread::spawn(move || child.wait_with_output().expect("it ends"));
    let wanted = cluster.dir.path().join("wanted");
    let mut restarted = vec![];
    wait_until("the command ends", ROLLING_MAX, || {
        if let Ok(text) = fs::read_to_string(&wanted) {
            let id: u64 = text.trim().parse().expect("the id of a node");
            let index = cluster.nodes.iter().position(|node| node.id == id).expect("a member");
            restart(cluster, index);
            restarted.push(id);
            fs::remove_file(&wanted).expect("the file was there");
        }
        ended.is_finished()
    });
    (ended.join().expect("no panic"), restarted)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_rolling_restart_with_another_program_under_load_fails_no_call() {
    undisturbed(roll_under_load);
}

fn roll_under_load() -> Result<(), Disturbed> {
    let mut cluster = Cluster::down(&[]);
    let old = old_program(cluster.dir.path());
    for node in &mut cluster.nodes {
        node.install(old.clone());
    }
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start(&cluster);
    let calling = Calling::start(&cluster);
    let campaigns = Campaigns::so_far(&cluster);
    let leader = cluster.wait_for_leader();
    let last = cluster.nodes[leader].id;
    let looked = cluster.order(&["rolling", "--dry-run"]);
    assert!(looked.contains("all nodes are well"), "{looked}");
    let is_last = looked.trim_end().ends_with(&last.to_string());
    let looked = campaigns.judge(&cluster, 0, is_last, "the leader is the last one");
    let mut led = Vec::new();
    let command = cluster.operator(&["rolling", "--settle", "500ms", "--restart", RESTART]);
    let (output, restarted) = rolled(&mut cluster, command, |cluster, index| {
        let node = &mut cluster.nodes[index];
        led.push(node.is_leader());
        assert_eq!(node.terminate().code(), Some(0));
        node.install(binary());
        node.start();
    });
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{error}");
    assert_eq!(restarted.len(), 3, "{said}");
    let handed_over = said.matches("has handed leadership to node").count();
    let is_in_order = restarted[2] == last && led == [false; 3] && handed_over > 0;
    let what = format!("node {last} comes last and has handed over; led {led:?}: {said}");
    let told = looked.and(campaigns.judge(&cluster, handed_over, is_in_order, &what));
    cluster.assert_well();
    watch.wait_for_service_since(Instant::now());
    let operations = calling.finish();
    assert!(operations.len() > 200, "{} calls", operations.len());
    watch.finish_with(&operations);
    told
}

#[test]
fn a_rolling_restart_stops_at_the_first_trouble_and_reports_where() {
    let mut cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let others: Vec<u64> = cluster.others(leader).iter().map(|at| cluster.nodes[*at].id).collect();
    let all = format!("--nodes {},{},{}", others[0], others[1], cluster.nodes[leader].id);
    let first = format!("stopped at node {}", others[0]);
    let roll = |cluster: &Cluster| {
        cluster.operator(&["rolling", "--wait", "3s", "--settle", "100ms", "--restart", RESTART])
    };
    // The restart command succeeds, but the node still runs in the same process.
    let command = roll(&cluster);
    let (output, restarted) = rolled(&mut cluster, command, |_, _| {});
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), &restarted[..]), (Some(1), &others[..1]), "{error}");
    for words in [&first, &all, "the same process as before"] {
        assert!(error.contains(words), "{words:?} in {error}");
    }
    // The restart command fails.
    fs::write(cluster.dir.path().join("failed"), "").expect("a file");
    let command = roll(&cluster);
    let (output, _) = rolled(&mut cluster, command, |_, _| {});
    let error = text(&output.stderr);
    for words in [&first, &all, "its command ended with"] {
        assert!(error.contains(words), "{words:?} in {error}");
    }
    // The node does not come back.
    fs::remove_file(cluster.dir.path().join("failed")).expect("the file");
    let command = roll(&cluster);
    let (output, restarted) = rolled(&mut cluster, command, |cluster, index| {
        cluster.nodes[index].kill();
    });
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), restarted.len()), (Some(1), 1), "{error}");
    assert!(error.contains("3 s after its command") && error.contains(&all), "{error}");
    // One node is down. The exit codes of these commands are the same whether their output is read
    // or not.
    for (args, code) in [(&["clock"], 1), (&["tune"], 1), (&["status"], 0)] {
        let ended = cluster.operator(args).stdout(unread()).output().expect("it can be started");
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {}", text(&ended.stderr));
    }
    // One node is still down. So `rolling` restarts no node.
    let words = ["nothing was restarted"];
    cluster.assert_refused(&["rolling", "--restart", "true"], &words);
    // Whether node 9 is a member depends on the cluster, so the exit code is 1, in every command.
    let (unknown, other) =
        (["rolling", "--nodes", "9", "--restart", "true"], ["leader", "transfer", "--to", "9"]);
    cluster.assert_refused(&unknown, &["--nodes names node 9, which is not a member"]);
    cluster.assert_refused(&other, &["9"]);
    let index = cluster.nodes.iter().position(|node| node.id == others[0]).expect("a member");
    cluster.nodes[index].start();
    wait_until("it is back", WAIT_MAX, || cluster.nodes.iter().all(Node::is_ready));
    cluster.assert_well();
    // One node is paused for a moment while the command begins. This does not stop the command.
    let missed = cluster.others(cluster.wait_for_leader())[1];
    cluster.nodes[missed].pause();
    wait_until("it is missed", WAIT_MAX, || {
        let listed = list(&cluster);
        let members = listed["members"].as_array().expect("members");
        members.iter().any(|member| member["heard"] == false)
    });
    let mut command = cluster.operator(&["rolling", "--dry-run"]);
    let looking = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let looking = looking.expect("the binary can be started");
    let_pass(MOMENT);
    cluster.nodes[missed].resume();
    let output = looking.wait_with_output().expect("it ends");
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && said.contains("all nodes are well"), "{said}{error}");
    cluster.assert_well();
}

#[test]
fn a_rolling_restart_that_gets_a_signal_lets_its_command_end_and_reports_where_it_stopped() {
    let mut cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let others: Vec<u64> = cluster.others(leader).iter().map(|at| cluster.nodes[*at].id).collect();
    // The parent of the shell is `epicepoch rolling`.
    let restart = format!("kill -TERM $PPID && {RESTART}");
    let command = cluster.operator(&["rolling", "--restart", &restart]);
    let (output, restarted) = rolled(&mut cluster, command, |cluster, index| {
        let node = &mut cluster.nodes[index];
        assert_eq!(node.terminate().code(), Some(0));
        node.start();
        wait_until("it is back", WAIT_MAX, || node.is_ready());
    });
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), &restarted[..]), (Some(1), &others[..1]), "{error}");
    let stopped = format!("stopped at node {}; restarted were {}", others[0], others[0]);
    let left = format!("--nodes {},{}", others[1], cluster.nodes[leader].id);
    for words in [&*stopped, &left, "a signal has stopped"] {
        assert!(error.contains(words), "{words:?} in {error}");
    }
    cluster.assert_well();
}

/// Returns the writing end of a pipe whose reading end is closed. Every write to it fails.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn a_rolling_restart_continues_when_its_output_is_not_read() {
    let mut cluster = Cluster::start_calm();
    cluster.wait_for_leader();
    // The restart command itself prints a line. The command must succeed although the pipe for that
    // line is closed.
    let restart = format!("echo restarting && {RESTART}");
    // The reader reads no line or two lines, then closes the pipe. So it closes the pipe at once,
    // or while the first node restarts.
    for lines in [0, 2] {
        let mut command =
            cluster.operator(&["rolling", "--settle", "100ms", "--restart", &restart]);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer);
        let reading = thread::spawn(move || {
            BufReader::new(reader).lines().take(lines).map_while(Result::ok).count()
        });
        let (output, restarted) = rolled_into(&mut cluster, command, |cluster, index| {
            let node = &mut cluster.nodes[index];
            assert_eq!(node.terminate().code(), Some(0));
            node.start();
        });
        let error = text(&output.stderr);
        assert_eq!(reading.join().expect("it reads"), lines, "{error}");
        assert_eq!((output.status.code(), restarted.len()), (Some(0), 3), "{error}");
        assert_eq!(error.matches("standard output failed").count(), 1, "{error}");
        let said = error.lines().filter(|line| *line == "restarting").count();
        assert_eq!(said, 3, "{error}");
        assert!(error.contains("all nodes were restarted"), "{error}");
        cluster.assert_well();
    }
}
