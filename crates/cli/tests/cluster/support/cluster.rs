//! A cluster of three nodes in a temporary directory, which is deleted after the test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use epicepoch_bench::run::Target;
use tempfile::TempDir;

use super::node::{binary, command, command_of};
use super::{Node, Turn, WAIT_MAX, wait_until};

/// Members of a cluster under test.
pub(crate) const MEMBERS: usize = 3;
/// Election timeout of a [calm](Cluster::start_calm) cluster, ms: longer than a stall of a shared
/// machine.
const CALM_ELECTION_TIMEOUT_MS: &str = "1000";
/// Where Linux keeps files in memory.
const MEMORY_DIR: &str = "/dev/shm";
/// First part of the name of a cluster's directory.
const PREFIX: &str = "epicepoch-test-";

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    // Rust drops fields in order. So the nodes end first, then the directory is deleted, then the
    // next test gets its turn.
    pub(crate) dir: TempDir,
    _turn: Turn,
}

impl Cluster {
    /// Starts three nodes with the defaults, and waits until they are ready.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts three nodes with these settings and the required ones, and waits until they are
    /// ready.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut cluster = Self::down(settings);
        cluster.start_all();
        cluster.wait_until_ready();
        cluster
    }

    /// Starts three nodes with a long election timeout, and waits until they are ready. Their
    /// leader stays as long as it lives. This is for tests that are not about elections or disks
    /// and need the same leader all the time. With the defaults, a stall of 200 ms rightly moves
    /// leadership. Then such a test would fail because of the machine or its disk.
    ///
    /// `RESERVATION_MS` follows from the election timeout, so it is 5000.
    pub(crate) fn start_calm() -> Self {
        let mut cluster = Self::down_calm(&[]);
        cluster.start_all();
        cluster.wait_until_ready();
        cluster
    }

    /// Returns a calm cluster with these settings. Its nodes are not started yet.
    pub(crate) fn down_calm(settings: &[(&str, &str)]) -> Self {
        let turn = Turn::side_by_side();
        let in_memory = TempDir::with_prefix_in(PREFIX, MEMORY_DIR);
        let dir = in_memory.or_else(|_| TempDir::with_prefix(PREFIX));
        let mut cluster = Self::down_in(dir.expect("a temporary directory"), turn, settings);
        for node in &mut cluster.nodes {
            node.set("ELECTION_TIMEOUT_MS", CALM_ELECTION_TIMEOUT_MS);
        }
        cluster
    }

    /// Returns three nodes that will found a cluster. They are not started yet.
    pub(crate) fn down(settings: &[(&str, &str)]) -> Self {
        let turn = Turn::side_by_side();
        Self::down_in(TempDir::with_prefix(PREFIX).expect("a temporary directory"), turn, settings)
    }

    fn down_in(dir: TempDir, turn: Turn, settings: &[(&str, &str)]) -> Self {
        let new = |id: u64| Node::new(id, dir.path(), &format!("node-{id}"));
        let mut nodes: Vec<Node> = (1..=MEMBERS as u64).map(new).collect();
        let peers = peers(&nodes);
        for node in &mut nodes {
            node.set("PEERS", &peers);
            node.set("BOOTSTRAP", 1);
            for (name, value) in settings {
                node.set(name, value);
            }
        }
        Self { nodes, dir, _turn: turn }
    }

    pub(crate) fn start_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::start);
    }

    pub(crate) fn kill_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
    }

    /// Waits until every node is ready and one of them leads.
    #[track_caller]
    pub(crate) fn wait_until_ready(&mut self) {
        wait_until("every node is ready", WAIT_MAX, || {
            for node in &mut self.nodes {
                let status = node.exit_status();
                assert!(status.is_none(), "node {} exited: {status:?}", node.id);
            }
            self.nodes.iter().all(Node::is_ready)
        });
        self.wait_for_leader();
    }

    /// Waits for a node that leads and holds a grant, and returns its index.
    #[track_caller]
    pub(crate) fn wait_for_leader(&self) -> usize {
        self.wait_for_leader_other_than(None, WAIT_MAX)
    }

    #[track_caller]
    pub(crate) fn wait_for_leader_other_than(
        &self,
        other: Option<usize>,
        limit: Duration,
    ) -> usize {
        let mut leader = None;
        wait_until("there is a leader", limit, || {
            leader = (0..self.nodes.len())
                .find(|index| Some(*index) != other && self.nodes[*index].is_leader());
            leader.is_some()
        });
        leader.expect("the wait is over")
    }

    /// Returns the indexes of all nodes except this one.
    pub(crate) fn others(&self, index: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|other| *other != index).collect()
    }

    /// Waits until every node runs and is ready, and the cluster serves.
    #[track_caller]
    pub(crate) fn assert_well(&mut self) {
        self.wait_until_ready();
        wait_until("the leader serves", WAIT_MAX, || self.nodes.iter().any(Node::serves));
    }

    /// Adds a node that will join the cluster and knows only the address of the first node. The new
    /// node is not started.
    pub(crate) fn add_joining(&mut self, id: u64, name: &str) -> usize {
        let mut node = Node::new(id, self.dir.path(), name);
        node.set("JOIN", self.nodes[0].raft_addr());
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Runs an operator's command with the addresses of all nodes.
    pub(crate) fn operate(&self, args: &[&str]) -> Output {
        self.operator(args).output().expect("the binary can be started")
    }

    /// Returns an operator's command with the addresses of all nodes. It is not started yet.
    pub(crate) fn operator(&self, args: &[&str]) -> Command {
        self.operator_with(binary(), args)
    }

    /// Returns an operator's command of the program `program`, with the addresses of all nodes. It
    /// is not started yet.
    pub(crate) fn operator_with(&self, program: PathBuf, args: &[&str]) -> Command {
        let addrs: Vec<_> = self.nodes.iter().map(|node| node.http().to_string()).collect();
        let mut command = command_of(program, &BTreeMap::new(), self.dir.path());
        command.args(args).args(["--addr", &addrs.join(",")]);
        command
    }

    /// Runs a command that needs no node.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let output = command(&BTreeMap::new(), self.dir.path()).args(args).output();
        output.expect("the binary can be started")
    }

    /// Runs a command that needs no node, with this standard input.
    pub(crate) fn piped(&self, input: Stdio, args: &[&str]) -> Output {
        let mut command = command(&BTreeMap::new(), self.dir.path());
        command.args(args).stdin(input).output().expect("the binary can be started")
    }

    /// Runs an operator's command that must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn order(&self, args: &[&str]) -> String {
        let output = self.operate(args);
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{args:?}: {:?} {out} {error}", output.status);
        out
    }

    /// Runs an operator's command that must fail with exit code 1. The error must contain all of
    /// `words`.
    #[track_caller]
    pub(crate) fn assert_refused(&self, args: &[&str], words: &[&str]) {
        let output = self.operate(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{word:?} in {error}");
        }
    }

    /// Returns the nodes as targets of the load generator.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |node: &Node| Target::new(node.id, node.http());
        self.nodes.iter().map(target).collect()
    }

    /// Waits until every node is ready. Returns how long that took.
    pub(crate) fn time_until_ready(&mut self) -> Duration {
        let from = Instant::now();
        self.wait_until_ready();
        from.elapsed()
    }
}

/// Returns the value of the setting `PEERS` for these first members.
pub(crate) fn peers(nodes: &[Node]) -> String {
    let peer = |node: &Node| format!("{}={}", node.id, node.raft_addr());
    nodes.iter().map(peer).collect::<Vec<_>>().join(",")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
