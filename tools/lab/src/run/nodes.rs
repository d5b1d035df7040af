//! The nodes as processes of their own, in a temporary directory that is deleted at the end.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epicepoch_link::unused_port;
use epicepoch_wire::http::{
    PATH_ADMIN_CLOCK, PATH_ADMIN_SET, PATH_ADMIN_TRANSFER, PATH_INTERVAL, PATH_LEADER, PATH_READY,
    PATH_UP,
};
use serde_json::Value;
use tempfile::TempDir;

use super::error::LabError;
use super::http::{self, ask};
use super::namespaces::Namespaces;
use crate::topology::Topology;

/// How long a node may take to answer a question.
const ASK_MAX: Duration = Duration::from_secs(1);
/// How long a node may take to hand over.
const ORDER_MAX: Duration = Duration::from_secs(6);
/// How `check-config` begins a line about a setting that is refused.
const PROBLEM: &str = "problem: ";
/// An error shows this many lines from the end of a log.
const TAIL_LINES: usize = 3;

/// One node.
pub(super) struct Node {
    /// Where clients of the lab's own questions reach it, without a proxy.
    pub(super) http: SocketAddr,
    /// The address that it names to clients, and that other nodes dial to send requests on. If they do
    /// so, it is that of a proxy, or behind the links between nodes.
    pub(super) advertised: SocketAddr,
    /// The address that other nodes dial: a proxy's.
    pub(super) front: SocketAddr,
    /// Where it listens for other nodes.
    pub(super) bind: SocketAddr,
    /// The address that it listens on for clients.
    http_bind: IpAddr,
    /// The file of the network namespace in which it runs, if it is not that of the lab.
    namespace: Option<PathBuf>,
    home: PathBuf,
    settings: BTreeMap<String, String>,
}

/// The processes of nodes that run. They are shared, so that a program which has to end at once can
/// kill them.
#[derive(Clone, Debug, Default)]
pub struct Running(Arc<Mutex<BTreeMap<u64, Child>>>);

impl Running {
    /// Kills all nodes, and does not wait for their end.
    pub fn kill_all(&self) {
        for child in self.all().values_mut() {
            // Errors are ignored, because the process may have ended already.
            let _ = child.kill();
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Child>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills a node with SIGKILL, and waits for its end.
    fn kill(&self, id: u64) {
        if let Some(mut child) = self.all().remove(&id) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// All nodes.
pub(super) struct Nodes {
    program: PathBuf,
    running: Running,
    pub(super) all: BTreeMap<u64, Node>,
    /// Deleted when the nodes have ended.
    _dir: TempDir,
}

fn system(what: &'static str) -> impl Fn(io::Error) -> LabError {
    move |error| LabError::System { what, error }
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, unused_port()).into()
}

impl Nodes {
    /// Chooses ports and directories. Nothing is started.
    pub(super) fn new(
        topology: &Topology,
        given: &BTreeMap<String, String>,
        program: PathBuf,
        running: Running,
        namespaces: Option<&Namespaces>,
    ) -> Result<Self, LabError> {
        let failed = system("a temporary directory cannot be made");
        let dir = TempDir::with_prefix("epicepoch-lab-").map_err(&failed)?;
        let mut all = BTreeMap::new();
        for (id, region) in &topology.nodes {
            let home = dir.path().join(format!("node-{id}"));
            fs::create_dir(&home).map_err(&failed)?;
            let mut node = match namespaces {
                None => Node::on_loopback(home, topology.forwards()),
                Some(namespaces) => Node::in_namespace(home, namespaces, *id, topology.forwards()),
            };
            let Node { http, advertised, front, bind, http_bind, home, .. } = &node;
            let own = [
                ("NODE_ID", id.to_string()),
                ("RAFT_ADDR", front.to_string()),
                ("RAFT_BIND", bind.to_string()),
                ("HTTP_BIND", http_bind.to_string()),
                ("HTTP_PORT", http.port().to_string()),
                ("ADVERTISE_ADDR", advertised.to_string()),
                ("DATA_DIR", home.join("data").display().to_string()),
                ("CLUSTER", "lab".to_owned()),
                ("BOOTSTRAP", "1".to_owned()),
                ("ZONE", topology.region(*region).to_owned()),
            ];
            let own = own.map(|(name, value)| (name.to_owned(), value));
            node.settings.extend(given.clone().into_iter().chain(own));
            all.insert(*id, node);
        }
        let peers: Vec<_> = all.iter().map(|(id, node)| format!("{id}={}", node.front)).collect();
        let peers = peers.join(",");
        for node in all.values_mut() {
            node.settings.insert("PEERS".to_owned(), peers.clone());
        }
        Ok(Self { program, running, all, _dir: dir })
    }

    fn command(&self, node: &Node) -> Command {
        let mut command = match &node.namespace {
            None => Command::new(&self.program),
            Some(file) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", file.display())).arg(&self.program);
                command
            }
        };
        // A group of its own, so that an interrupt from the terminal reaches only the lab.
        command.env_clear().envs(&node.settings).current_dir(&node.home).process_group(0);
        command.stdin(Stdio::null());
        command
    }

    /// Asks the program whether nodes could start with their settings.
    pub(super) fn check(&self) -> Result<(), LabError> {
        let node = self.all.values().next().expect("a topology has nodes");
        let checked = self.command(node).arg("check-config").output();
        let checked = checked.map_err(system("the program of the nodes cannot be started"))?;
        if checked.status.success() {
            return Ok(());
        }
        let said = [checked.stdout, checked.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        // The command prints all settings, too.
        let problems: Vec<&str> = said.lines().filter_map(|it| it.strip_prefix(PROBLEM)).collect();
        let said = if problems.is_empty() { said.trim().to_owned() } else { problems.join("; ") };
        Err(LabError::Settings(format!("a node would refuse its settings: {said}")))
    }

    /// Starts every node.
    pub(super) fn start_all(&self) -> Result<(), LabError> {
        let ids: Vec<u64> = self.all.keys().copied().collect();
        ids.into_iter().try_for_each(|id| self.start(id))
    }

    /// Starts a node. Does not wait for it.
    pub(super) fn start(&self, id: u64) -> Result<(), LabError> {
        let node = &self.all[&id];
        let log = || -> io::Result<File> {
            OpenOptions::new().create(true).append(true).open(node.home.join("log"))
        };
        let failed = system("a node cannot be started");
        let (out, error) = (log().map_err(&failed)?, log().map_err(&failed)?);
        let mut command = self.command(node);
        let child = command.arg("serve").stdout(out).stderr(error).spawn().map_err(&failed)?;
        self.running.all().insert(id, child);
        Ok(())
    }

    /// Kills a node with SIGKILL, and waits for its end.
    pub(super) fn kill(&self, id: u64) {
        self.running.kill(id);
    }

    /// Fails if a node that should run has ended.
    pub(super) fn check_running(&self) -> Result<(), LabError> {
        for (id, child) in self.running.all().iter_mut() {
            if let Some(status) = child.try_wait().ok().flatten() {
                let tail = self.all[id].tail();
                return Err(LabError::Node(format!("node {id} ended with {status}: {tail}")));
            }
        }
        Ok(())
    }

    /// Whether every node is ready.
    pub(super) fn are_ready(&self) -> bool {
        self.all.keys().all(|id| self.says_yes(*id, PATH_READY))
    }

    /// The node that leads and holds a grant.
    pub(super) fn leader(&self) -> Option<u64> {
        self.all.keys().copied().find(|id| self.leads(*id))
    }

    /// Whether this node leads.
    pub(super) fn leads(&self, id: u64) -> bool {
        self.says_yes(id, PATH_LEADER)
    }

    fn says_yes(&self, id: u64, path: &str) -> bool {
        let is_running = self.running.all().contains_key(&id);
        is_running && matches!(ask(self.all[&id].http, "GET", path, ASK_MAX), Ok((200, _)))
    }

    /// Asks the leader to hand over. The caller looks who leads.
    pub(super) fn hand_over(&self, leader: u64, to: u64) {
        let target = format!("{PATH_ADMIN_TRANSFER}?to={to}");
        // A refusal shows in who leads afterwards.
        let _answer = ask(self.all[&leader].http, "POST", &target, ORDER_MAX);
    }

    /// Asks the leader to change the cluster to interval mode. Returns whether it has.
    pub(super) fn set_interval_mode(&self, leader: u64) -> bool {
        let target = format!("{PATH_ADMIN_SET}?MODE=interval");
        matches!(ask(self.all[&leader].http, "POST", &target, ORDER_MAX), Ok((200, _)))
    }

    /// Whether every node gives interval timestamps.
    pub(super) fn give_intervals(&self) -> bool {
        self.all.keys().all(|id| self.says_yes(*id, PATH_INTERVAL))
    }

    /// The usual round trips from a node to others, as it measures them, ms.
    pub(super) fn round_trips(&self, id: u64) -> BTreeMap<u64, f64> {
        let Ok((200, said)) = ask(self.all[&id].http, "GET", PATH_ADMIN_CLOCK, ASK_MAX) else {
            return BTreeMap::new();
        };
        let trips = said["roundTrips"].as_array().map(Vec::as_slice).unwrap_or_default();
        let trip = |it: &Value| Some((it["nodeID"].as_u64()?, it["usualMs"].as_f64()?));
        trips.iter().filter_map(trip).collect()
    }

    /// The last lines of every log.
    pub(super) fn log_tail(&self) -> String {
        let tails = self.all.iter().map(|(id, node)| format!("node {id}: {}", node.tail()));
        tails.collect::<Vec<_>>().join("; ")
    }
}

/// How long a question takes over this address on an open connection, the shortest of some tries.
/// There is no further try when `may_ask` says no.
pub(super) fn question_ms(addr: SocketAddr, tries: u32, may_ask: impl Fn() -> bool) -> Option<f64> {
    let ask_once = |_| {
        let (status, took) = http::time(addr, PATH_UP, 2 * ASK_MAX).ok()?;
        (status == 200).then_some(took.as_secs_f64() * 1e3)
    };
    let asked = (0..tries).take_while(|_| may_ask());
    asked.filter_map(ask_once).min_by(f64::total_cmp)
}

impl Node {
    fn on_loopback(home: PathBuf, forwards: bool) -> Self {
        let (http, front, bind) = (loopback(), loopback(), loopback());
        let advertised = if forwards { loopback() } else { http };
        let http_bind = http.ip();
        let settings = BTreeMap::new();
        Self { http, advertised, front, bind, http_bind, namespace: None, home, settings }
    }

    fn in_namespace(home: PathBuf, namespaces: &Namespaces, id: u64, forwards: bool) -> Self {
        let (http, peer) = (namespaces.control(id), namespaces.peer(id));
        let advertised = if forwards { SocketAddr::new(peer.ip(), http.port()) } else { http };
        // It has an address for each region of clients.
        let http_bind = Ipv4Addr::UNSPECIFIED.into();
        let namespace = Some(namespaces.file(id));
        // Only the lab and its nodes are in the network of these namespaces.
        let lab = Namespaces::control_network();
        let settings = [("PEER_PLAIN", "1"), ("ADMIN_FROM", &lab), ("OPS_PLAIN_FROM", &lab)];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self { http, advertised, front: peer, bind: peer, http_bind, namespace, home, settings }
    }

    fn tail(&self) -> String {
        let log = fs::read(self.home.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join(" | ")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // All are told before the first one is waited for.
        self.running.kill_all();
        self.all.keys().for_each(|id| self.running.kill(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_are_killed_at_once() {
        let running = Running::default();
        for id in [1, 2] {
            let child = Command::new("sleep").arg("600").spawn().expect("sleep");
            running.all().insert(id, child);
        }
        running.kill_all();
        for (_, mut child) in std::mem::take(&mut *running.all()) {
            let status = child.wait().expect("it has ended");
            assert!(!status.success(), "{status}");
        }
        running.kill(1);
    }
}
