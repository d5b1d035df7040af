//! Processes on loopback: the oracle's three nodes, stores and clients. Each ends when its handle
//! is dropped. Stores and clients also end with this process, because they end when their input is
//! closed.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use epicepoch_client::{Client, Options};
use tokio::runtime::Runtime;

/// A child process that ends when this handle is dropped.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    /// Path of its log, for error messages.
    log: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Oracle {
    binary: PathBuf,
    dir: PathBuf,
    raft: Vec<SocketAddr>,
    http: Vec<String>,
    nodes: Vec<Option<Process>>,
    client: Client,
    runtime: Runtime,
}

impl Process {
    /// Starts a process. Error messages name it as `what`.
    pub fn start(what: &str, command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("{what}: {command:?}"))?;
        Ok(Self { what: what.to_owned(), child, log: None })
    }

    /// [`Process::start`] with its error output in a log in `dir`.
    pub fn start_logged(what: &str, command: &mut Command, dir: &Path) -> Result<Self> {
        let path = dir.join(format!("{what}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        command.stderr(file.with_context(|| format!("{}", path.display()))?);
        let mut process = Self::start(what, command)?;
        process.log = Some(path);
        Ok(process)
    }

    /// Kills the process with SIGKILL and waits. Returns an error if it had ended before.
    pub fn kill(mut self) -> Result<()> {
        self.ensure_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Closes the input of the process, which then ends, and waits.
    pub fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + WAIT_MAX;
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "{} does not end{}", self.what, self.said());
            thread::sleep(POLL_PAUSE);
        };
        ensure!(status.success(), "{} ended with {status}{}", self.what, self.said());
        Ok(())
    }

    fn ensure_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} has ended by itself: {status}{}", self.what, self.said());
        }
        Ok(())
    }

    /// The last lines of its log.
    fn said(&self) -> String {
        let log = self.log.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.len().saturating_sub(SAID_LINES);
        lines[last..].iter().fold(String::new(), |said, line| said + "\n  " + line)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error is ignored, because the process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Oracle {
    /// Starts a cluster with its files below `dir`, and waits until it serves.
    pub fn start(binary: &Path, dir: &Path) -> Result<Self> {
        let raft = (0..NODES).map(|_| unused_addr()).collect::<Result<Vec<_>>>()?;
        let http = (0..NODES).map(|_| unused_addr()).collect::<Result<Vec<_>>>()?;
        let http: Vec<String> = http.iter().map(ToString::to_string).collect();
        let client = Client::new(http.clone(), Options::default())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut oracle = Self {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            raft,
            http,
            nodes: (0..NODES).map(|_| None).collect(),
            client,
            runtime,
        };
        for at in 0..NODES {
            oracle.start_node(at)?;
        }
        for at in 0..NODES {
            oracle.await_ready(at)?;
        }
        oracle.leader()?;
        Ok(oracle)
    }

    pub fn addrs(&self) -> &[String] {
        &self.http
    }

    /// Kills the leader. Returns when another node leads, with the killed node and how long that
    /// took.
    pub fn kill_leader(&mut self) -> Result<(usize, Duration)> {
        let at = self.leader()?;
        let node = self.nodes[at].take().context("a node leads that does not run")?;
        let from = Instant::now();
        node.kill()?;
        self.leader()?;
        Ok((at, from.elapsed()))
    }

    /// Starts a node again. Returns when it is ready.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.start_node(at)?;
        self.await_ready(at)
    }

    fn start_node(&mut self, at: usize) -> Result<()> {
        let peers: Vec<String> =
            self.raft.iter().enumerate().map(|(at, addr)| format!("{}={addr}", at + 1)).collect();
        let (_, port) = self.http[at].rsplit_once(':').context("an address has a port")?;
        let id = (at + 1).to_string();
        let mut command = Command::new(&self.binary);
        // The settings in this process's environment must not apply to the nodes.
        command.env_clear();
        command.args(["serve", "--bootstrap", "--node-id", &id, "--http-port", port]);
        command.args(["--raft-addr", &self.raft[at].to_string(), "--peers", &peers.join(",")]);
        command.arg("--data-dir").arg(self.dir.join(format!("node-{id}")));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let node = Process::start_logged(&format!("node-{id}"), &mut command, &self.dir)?;
        self.nodes[at] = Some(node);
        Ok(())
    }

    fn await_ready(&mut self, at: usize) -> Result<()> {
        self.wait_until(&format!("node {} is ready", at + 1), |oracle| {
            let ready = oracle.client.ready(&oracle.http[at], Instant::now() + ASK_TIMEOUT);
            oracle.runtime.block_on(ready).is_ok_and(|node| node.ready).then_some(())
        })
    }

    fn leader(&mut self) -> Result<usize> {
        self.wait_until("somebody leads", |oracle| {
            (0..NODES).filter(|at| oracle.nodes[*at].is_some()).find(|at| {
                let leads = oracle.client.leads(&oracle.http[*at], Instant::now() + ASK_TIMEOUT);
                oracle.runtime.block_on(leads).unwrap_or(false)
            })
        })
    }

    fn wait_until<T>(&mut self, what: &str, look: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            for node in self.nodes.iter_mut().flatten() {
                node.ensure_alive()?;
            }
            if let Some(found) = look(self) {
                return Ok(found);
            }
            ensure!(Instant::now() < deadline, "{what}: not in time, see {}", self.dir.display());
            thread::sleep(POLL_PAUSE);
        }
    }
}

/// Starts a store with this command. Returns the address that the store prints.
pub fn start_store(command: &mut Command) -> Result<(Process, String)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut store = Process::start("store", command)?;
    let mut addr = String::new();
    let output = store.child.stdout.take().context("a store's output is piped")?;
    BufReader::new(output).read_line(&mut addr)?;
    ensure!(!addr.trim().is_empty(), "a store told no address");
    Ok((store, addr.trim().to_owned()))
}

/// An unused address, below the range of the kernel's client ports.
fn unused_addr() -> Result<SocketAddr> {
    for _ in 0..PORT_ATTEMPTS_MAX {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(PORTS)));
        if TcpListener::bind(addr).is_ok() {
            return Ok(addr);
        }
    }
    bail!("no unused port among {PORTS:?}")
}

const NODES: usize = 3;
const PORTS: std::ops::Range<u16> = 12_000..32_000;
const PORT_ATTEMPTS_MAX: usize = 1000;
/// Longest wait before a run fails.
const WAIT_MAX: Duration = Duration::from_secs(30);
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Lines of a log that an error shows.
const SAID_LINES: usize = 10;
const POLL_PAUSE: Duration = Duration::from_millis(10);
