//! Three real nodes as processes on loopback, in a temporary directory. Dropping the cluster ends
//! the nodes. The directory is in memory if possible: a busy disk would delay votes after the loss
//! of a leader, and these tests are not about disks.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use epicepoch_link::unused_port;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Verdict, WAIT_MAX, wait_until};

/// A cluster under test.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Member>,
    // Declared after the nodes. So the directory is deleted after the nodes have ended.
    _dir: TempDir,
}

/// A node's process. Dropping it kills the process.
#[derive(Debug)]
struct Member {
    id: usize,
    http: SocketAddr,
    settings: Vec<(&'static str, String)>,
    binary: PathBuf,
    home: PathBuf,
    child: Option<Child>,
}

impl Cluster {
    /// Starts three nodes of this binary with the default settings. If `is_compact`, the cluster gives
    /// compact timestamps.
    ///
    /// # Errors
    /// The nodes do not become ready. The message has the end of their logs.
    pub fn start(binary: &Path, is_compact: bool) -> Result<Self, String> {
        let format = if is_compact { "compact" } else { "wide" };
        let cluster = Self::start_with(binary, |_| vec![("TIMESTAMP_FORMAT", format.to_owned())])?;
        if is_compact {
            cluster.wait_for("timestamps are compact", |cluster| {
                let mut nodes = cluster.nodes.iter();
                nodes.position(|node| node.says_yes("/timestamp?format=u64"))
            })?;
        }
        Ok(cluster)
    }

    /// Starts three nodes with these values of `INTERVAL_SOURCE`, and changes their cluster to
    /// interval mode. Returns when all nodes give intervals.
    ///
    /// # Errors
    /// The nodes do not become ready, or the mode cannot be changed. The message has the end of
    /// their logs.
    pub fn start_intervals(binary: &Path, sources: [&str; MEMBERS]) -> Result<Self, String> {
        let source = |index: usize| vec![("INTERVAL_SOURCE", sources[index].to_owned())];
        let cluster = Self::start_with(binary, source)?;
        let addrs: Vec<_> = cluster.addrs().iter().map(ToString::to_string).collect();
        // A new cluster raises the format of its state in steps, and refuses until then.
        cluster.wait_for("the mode is changed", |_| {
            let mut command = Command::new(binary);
            command.args(["settings", "set", "MODE=interval", "--addr", &addrs.join(",")]);
            command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success()).then_some(0)
        })?;
        cluster.wait_until_all_stamp()?;
        Ok(cluster)
    }

    /// Starts three nodes, with the settings that `own` adds for each.
    fn start_with(
        binary: &Path,
        own: impl Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Result<Self, String> {
        let dir =
            TempDir::with_prefix_in(PREFIX, MEMORY_DIR).or_else(|_| TempDir::with_prefix(PREFIX));
        let dir = dir.map_err(|error| format!("no temporary directory: {error}"))?;
        let ports = || [(); MEMBERS].map(|()| unused_port());
        let (raft, http) = (ports(), ports());
        let raft_addr = |index: usize| format!("127.0.0.1:{}", raft[index]);
        let peers = (0..MEMBERS).map(|index| format!("{}={}", index + 1, raft_addr(index)));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = |index: usize| {
            let home = dir.path().join(format!("node-{}", index + 1));
            let mut settings = vec![
                ("NODE_ID", (index + 1).to_string()),
                ("RAFT_ADDR", raft_addr(index)),
                ("HTTP_PORT", http[index].to_string()),
                ("ADVERTISE_ADDR", format!("127.0.0.1:{}", http[index])),
                ("PEERS", peers.clone()),
                ("BOOTSTRAP", "1".to_owned()),
                ("DATA_DIR", home.join("data").display().to_string()),
            ];
            settings.extend(own(index));
            let http = (Ipv4Addr::LOCALHOST, http[index]).into();
            let binary = binary.to_owned();
            Member { id: index + 1, http, settings, binary, home, child: None }
        };
        let mut cluster = Self { nodes: (0..MEMBERS).map(member).collect(), _dir: dir };
        for node in &mut cluster.nodes {
            fs::create_dir(&node.home).map_err(|error| error.to_string())?;
            node.start()?;
        }
        cluster.wait_until_ready()?;
        Ok(cluster)
    }

    /// Waits until every node gives intervals. No node needs a leader for that.
    ///
    /// # Errors
    /// A node gives none in time. The message has the end of the logs.
    pub fn wait_until_all_stamp(&self) -> Verdict {
        self.wait_for("every node gives intervals", |cluster| {
            cluster.nodes.iter().all(|node| node.says_yes("/interval")).then_some(0)
        })
        .map(drop)
    }

    /// Waits until every node but one gives intervals.
    ///
    /// # Errors
    /// One of them gives none in time. The message has the end of the logs.
    pub fn wait_until_others_stamp(&self, but: usize) -> Verdict {
        self.wait_for("the other nodes give intervals", |cluster| {
            let mut others = cluster.nodes.iter().enumerate().filter(|(index, _)| *index != but);
            others.all(|(_, node)| node.says_yes("/interval")).then_some(0)
        })
        .map(drop)
    }

    /// The client addresses of all nodes.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.http).collect()
    }

    /// Waits until every node is ready and one of them leads. Returns the index of the leader.
    ///
    /// # Errors
    /// The nodes do not become ready. The message has the end of their logs.
    pub fn wait_until_ready(&self) -> Result<usize, String> {
        let all_ready = |cluster: &Self| cluster.nodes.iter().all(|node| node.says_yes("/ready"));
        self.wait_for("every node is ready and one leads", |cluster| {
            cluster.led_by().filter(|_| all_ready(cluster))
        })
    }

    /// Waits until a running node leads. Returns its index.
    ///
    /// # Errors
    /// No node leads in time. The message has the end of their logs.
    pub fn leader(&self) -> Result<usize, String> {
        self.wait_for("a node leads", Self::led_by)
    }

    fn led_by(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.says_yes("/leader"))
    }

    fn wait_for(&self, what: &str, look: impl Fn(&Self) -> Option<usize>) -> Result<usize, String> {
        let mut found = None;
        let seen = wait_until(what, WAIT_MAX, || {
            found = look(self);
            found.is_some()
        });
        let logs = || self.nodes.iter().map(Member::log_tail).collect::<String>();
        seen.map_err(|why| format!("{why}\n{}", logs()))?;
        found.ok_or_else(|| "no node leads".to_owned())
    }

    /// Kills a node with SIGKILL.
    ///
    /// # Errors
    /// The kill failed.
    pub fn kill(&mut self, index: usize) -> Verdict {
        let Some(mut child) = self.nodes[index].child.take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map(drop).map_err(|error| error.to_string())
    }

    /// Stops a node with SIGTERM. Waits until it has ended with code 0.
    ///
    /// # Errors
    /// The node does not end, or ends with another code.
    pub fn terminate(&mut self, index: usize) -> Verdict {
        let Some(mut child) = self.nodes[index].child.take() else { return Ok(()) };
        let pid = Pid::from_raw(child.id() as i32).ok_or("a process id is not 0")?;
        kill_process(pid, Signal::TERM).map_err(|error| error.to_string())?;
        let status = child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("SIGTERM ended a node with {status}")) }
    }

    /// Starts a node that is down.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub fn restart(&mut self, index: usize) -> Verdict {
        self.nodes[index].start()
    }
}

impl Member {
    fn start(&mut self) -> Verdict {
        let log = OpenOptions::new().create(true).append(true).open(self.log_file());
        let log = log.map_err(|error| error.to_string())?;
        let also = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.binary);
        command.arg("serve").env_clear().current_dir(&self.home);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(also);
        let child = command.spawn();
        let child = child.map_err(|error| format!("{}: {error}", self.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    fn says_yes(&self, path: &str) -> bool {
        let asked = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect_timeout(&self.http, ASK_LIMIT)?;
            stream.set_read_timeout(Some(ASK_LIMIT))?;
            let request = format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer.starts_with(b"HTTP/1.1 200 "))
        };
        self.child.is_some() && asked().unwrap_or(false)
    }

    fn log_file(&self) -> PathBuf {
        self.home.join("log")
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!("--- node {}\n{}\n", self.id, tail.join("\n"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Directory in which Linux keeps files in memory.
const MEMORY_DIR: &str = "/dev/shm";
/// Prefix of the directory's name.
const PREFIX: &str = "epicepoch-conformance-";
/// Number of members.
const MEMBERS: usize = 3;
/// How long a node may take to answer.
const ASK_LIMIT: Duration = Duration::from_millis(1500);
/// At most this many log lines in an error message.
const LOG_TAIL_LINES: usize = 40;
