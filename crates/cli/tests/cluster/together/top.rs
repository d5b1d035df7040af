//! Tests of the commands that show a cluster again and again: `epicepoch top` in a real
//! pseudo-terminal, and `epicepoch status --watch`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::support::{Cluster, WAIT_MAX, wait_until};

/// What every frame begins with.
const HOME: &str = "\x1b[H";

/// A command in a pseudo-terminal of 110 columns and 30 lines, which `script` of util-linux makes.
struct Terminal {
    child: Child,
    keys: Option<ChildStdin>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn run(command: &Command) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let quoted = words.map(|word| format!("'{}'", word.to_str().expect("UTF-8")));
        let line = format!(
            "stty rows 30 cols 110; {}; code=$?; stty -a | grep -q ' echo ' && echo restored; exit $code",
            quoted.collect::<Vec<_>>().join(" ")
        );
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script of util-linux");
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut out, read) = (child.stdout.take().expect("piped"), Arc::clone(&written));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                read.lock().expect("no panic").extend(&bytes[..count]);
            }
        });
        Self { keys: child.stdin.take(), child, written }
    }

    fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("no panic")).into_owned()
    }

    /// The last whole frame: its lines without escape sequences.
    fn lines(&self) -> Vec<String> {
        let written = self.written();
        let mut frames = written.rsplit(HOME);
        frames.next();
        frames.next().unwrap_or_default().lines().map(without_escapes).collect()
    }

    /// Waits until a line of the screen has all these words.
    fn wait_for(&self, words: &[&str]) {
        wait_until(&format!("{words:?} on the screen"), WAIT_MAX, || {
            let has = |line: &String| words.iter().all(|word| line.contains(word));
            self.lines().iter().any(has)
        });
    }

    /// Waits until a line of the screen that begins like this has all these words.
    fn wait_for_row(&self, begin: &str, words: &[&str]) {
        wait_until(&format!("{begin:?} with {words:?} on the screen"), WAIT_MAX, || {
            let has = |line: &&String| words.iter().all(|word| line.contains(word));
            self.lines().iter().filter(|line| line.starts_with(begin)).any(|line| has(&line))
        });
    }

    /// Waits until the first line judges the cluster. Returns whether all is well.
    fn is_well(&self) -> bool {
        let mut head = None;
        wait_until("a judgement on the screen", WAIT_MAX, || {
            let is_judged = |line: &String| line.contains(['✓', '▲', '✕']);
            head = self.lines().into_iter().next().filter(is_judged);
            head.is_some()
        });
        head.is_some_and(|head| head.contains("✓ All is well"))
    }

    fn press(&mut self, keys: &[u8]) {
        let pipe = self.keys.as_mut().expect("open");
        pipe.write_all(keys).and_then(|()| pipe.flush()).expect("the terminal is there");
    }

    fn wait_for_exit(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the command ends", WAIT_MAX, || {
            ended = self.child.try_wait().expect("a child");
            ended.is_some()
        });
        ended.expect("it has ended")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn without_escapes(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once(|it: char| it.is_ascii_alphabetic()));
    first + &rest.map(|part| part.map_or("", |(_, text)| text)).collect::<String>()
}

#[test]
fn top_shows_the_leader_each_node_and_a_lost_one_and_puts_the_terminal_back() {
    let mut cluster = Cluster::start_calm();
    let leader = cluster.wait_for_leader();
    let top = cluster.operator(&["top", "--interval", "200ms"]);
    let mut terminal = Terminal::run(&top);
    // A stall of the machine is shown for minutes, but not by a command that starts after it.
    wait_until("all is well", WAIT_MAX, || {
        let is_well = terminal.is_well();
        if !is_well {
            terminal = Terminal::run(&top);
        }
        is_well
    });
    terminal
        .wait_for(&[&format!("Node {} leads", cluster.nodes[leader].id), "3 of 3 nodes answer"]);
    // The charts are those of the leader until another node is chosen.
    let row = |id: u64, is_charted: bool| format!("{} {id} ", if is_charted { '›' } else { ' ' });
    for node in &cluster.nodes {
        let begin = row(node.id, node.id == cluster.nodes[leader].id);
        terminal.wait_for_row(&begin, &["● ready", env!("CARGO_PKG_VERSION")]);
    }
    // The first key goes to the first row, the second to the next.
    terminal.press(b"\x1b[A\x1b[A");
    terminal.wait_for_row(&row(1, true), &["● ready"]);
    terminal.press(b"\x1b");
    terminal.press(b"[B");
    terminal.wait_for_row(&row(2, true), &["● ready"]);
    let follower = cluster.others(leader)[0];
    let id = cluster.nodes[follower].id;
    cluster.nodes[follower].kill();
    terminal.wait_for_row("EpicEpoch ", &["✕ Act now"]);
    terminal.wait_for_row("✕ Now ", &[&format!("Node {id} has not answered for")]);
    terminal.wait_for_row(&row(id, id == 2), &["✕ silent"]);
    terminal.press(b"q");
    let code = terminal.wait_for_exit().code();
    let written = terminal.written();
    assert_eq!(code, Some(0), "{written}");
    wait_until("the terminal is put back", WAIT_MAX, || terminal.written().contains("restored"));
    let left = terminal.written().rfind("\x1b[?1049l").expect("it leaves its screen");
    assert!(terminal.written()[left..].contains("restored"), "{written}");
}

#[test]
fn top_without_a_terminal_says_what_to_use() {
    let cluster = Cluster::start();
    let output = cluster.operate(&["top"]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("use epicepoch status --watch"), "{error}");
}

/// The command goes on while no node answers, and shows the cluster again afterwards.
#[test]
fn a_watched_status_is_a_line_for_each_look_and_outlives_a_restart_of_all_nodes() {
    let mut cluster = Cluster::start();
    let leader = cluster.wait_for_leader();
    let words = ["status", "--watch=100ms", "--output", "json", "--timeout", "500ms"];
    let mut command = cluster.operator(&words);
    let (out, error) = (Stdio::piped(), Stdio::piped());
    let mut child = command.stdout(out).stderr(error).spawn().expect("it can be started");
    let mut looks = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut next = || {
        let line = looks.next().expect("it goes on").expect("UTF-8");
        let look: Value = serde_json::from_str(&line).expect("a document in each line");
        // Times of one clock in one form are in order as texts, too.
        let time = look["time"].as_str().expect("a time").to_owned();
        (time, look["leader"]["nodeID"].as_u64())
    };
    let id = Some(cluster.nodes[leader].id);
    let (first, second) = (next(), next());
    assert_eq!((first.1, second.1), (id, id));
    assert!(first.0 < second.0, "{first:?} {second:?}");
    cluster.kill_all();
    let error = errors.next().expect("it goes on").expect("UTF-8");
    let failed_at = error.strip_prefix("epicepoch: ").and_then(|it| it.split_once(": "));
    let (failed_at, _) = failed_at.expect("the time of the failure");
    cluster.start_all();
    let id = Some(cluster.nodes[cluster.wait_for_leader()].id);
    // Looks from before may still be in the pipe, and after the restart some have no leader.
    let is_seen = (0..1_000).any(|_| {
        let (time, leader) = next();
        time.as_str() > failed_at && leader == id
    });
    assert!(is_seen, "the leader is seen again");
    child.kill().and_then(|()| child.wait()).expect("it ends");
}
