//! One node as a process: its settings, its directory, its log, and the signals sent to it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use epicepoch_server::faults;
use rustix::process::{Pid, Signal, kill_process};

use super::wire::{Answer, Wire, request};
use super::{WAIT_MAX, let_pass, unused_port, wait_until};

/// Timeout of a request to a node. After this time the request counts as not answered.
const ASK_LIMIT: Duration = Duration::from_millis(1500);
/// A failed test prints this many lines from the end of a node's log.
const LOG_TAIL_LINES: usize = 60;

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    let other = std::env::var_os("EPICEPOCH_BIN");
    other.map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_epicepoch")), PathBuf::from)
}

/// Returns the program to upgrade from: the one that the variable `EPICEPOCH_OLD_BIN` names. If it
/// is not set, this is a copy of the program under test in the directory `dir`. Such a copy is
/// another file, but not another version.
pub(crate) fn old_program(dir: &Path) -> PathBuf {
    let Some(given) = std::env::var_os("EPICEPOCH_OLD_BIN") else {
        let path = dir.join("epicepoch-old");
        fs::copy(binary(), &path).expect("a copy of the program");
        return path;
    };
    let read = |path: &Path| fs::read(path).expect("a program that can be read");
    let old = fs::canonicalize(given).expect("EPICEPOCH_OLD_BIN is a program");
    assert!(read(&old) != read(&binary()), "EPICEPOCH_OLD_BIN is the program under test");
    old
}

/// Whether the binary under test can break its clock and its disk. A release build cannot.
pub(crate) fn is_test_build() -> bool {
    !binary().components().any(|part| part.as_os_str() == "release")
}

/// Returns a command that runs the binary with only these settings in its environment.
pub(crate) fn command<'a>(
    settings: impl IntoIterator<Item = (&'a String, &'a String)>,
    home: &Path,
) -> Command {
    command_of(binary(), settings, home)
}

/// Returns a command that runs `program` with only these settings in its environment.
pub(crate) fn command_of<'a>(
    program: PathBuf,
    settings: impl IntoIterator<Item = (&'a String, &'a String)>,
    home: &Path,
) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("RUST_BACKTRACE", "1");
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command.envs(settings).current_dir(home).stdin(Stdio::null());
    command
}

/// A node whose process runs, is paused, or is down.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) raft_port: u16,
    pub(crate) http_port: u16,
    /// Working directory. It contains the data directory and the log.
    pub(crate) home: PathBuf,
    settings: BTreeMap<String, String>,
    /// The program to run instead of the binary under test.
    program: Option<PathBuf>,
    child: Option<Child>,
    paused: bool,
}

impl Node {
    /// Creates a node with its own directory below `parent` and with unused ports. The node is not
    /// started.
    pub(crate) fn new(id: u64, parent: &Path, name: &str) -> Self {
        let home = parent.join(name);
        fs::create_dir(&home).expect("a directory for the node");
        let (raft_port, http_port) = (unused_port(), unused_port());
        let mut node = Self {
            id,
            raft_port,
            http_port,
            home,
            settings: BTreeMap::new(),
            program: None,
            child: None,
            paused: false,
        };
        node.set("NODE_ID", id);
        node.set("RAFT_ADDR", node.raft_addr());
        node.set("HTTP_PORT", http_port);
        node.set("ADVERTISE_ADDR", node.http());
        node.set("DATA_DIR", node.data_dir().display());
        if is_test_build() {
            node.set("TEST_FAULTS_FILE", node.faults_file().display());
        }
        node
    }

    pub(crate) fn set(&mut self, name: &str, value: impl fmt::Display) {
        self.settings.insert(name.into(), value.to_string());
    }

    /// Makes the node run this program from its next start on.
    pub(crate) fn install(&mut self, program: PathBuf) {
        self.program = Some(program);
    }

    /// Returns the program that the node's process runs, as the kernel reports it.
    pub(crate) fn runs(&self) -> PathBuf {
        fs::read_link(format!("/proc/{}/exe", self.pid())).expect("our own child can be looked at")
    }

    pub(crate) fn unset(&mut self, name: &str) {
        self.settings.remove(name);
    }

    pub(crate) fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    pub(crate) fn raft_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.raft_port).into()
    }

    /// The address for clients.
    pub(crate) fn http(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.http_port).into()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.home.join("data")
    }

    fn faults_file(&self) -> PathBuf {
        self.home.join("faults")
    }

    fn log_file(&self) -> PathBuf {
        self.home.join("log")
    }

    /// Starts the node's process. Does not wait until the node has started; the process may still
    /// exit.
    pub(crate) fn start(&mut self) {
        let log = || {
            let file = OpenOptions::new().create(true).append(true).open(self.log_file());
            Stdio::from(file.expect("a log file"))
        };
        self.start_with(log(), log());
    }

    /// Does what [`Node::start`] does, with this standard error.
    pub(crate) fn start_logging_to(&mut self, log: impl Into<Stdio>) {
        self.start_with(Stdio::null(), log.into());
    }

    fn start_with(&mut self, out: Stdio, log: Stdio) {
        assert!(self.child.is_none(), "node {} runs already", self.id);
        let program = self.program.clone().unwrap_or_else(binary);
        let mut command = command_of(program, &self.settings, &self.home);
        command.arg("serve").stdout(out).stderr(log);
        self.child = Some(command.spawn().expect("the binary can be started"));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node runs").id()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process id is not 0");
        kill_process(pid, signal).expect("our own child can be signalled");
    }

    /// Kills the process with SIGKILL. Returns when it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            self.paused = false;
            child.kill().expect("our own child can be killed");
            child.wait().expect("our own child can be waited for");
        }
    }

    /// Sends SIGSTOP.
    pub(crate) fn pause(&mut self) {
        self.signal(Signal::STOP);
        self.paused = true;
    }

    /// Sends SIGCONT.
    pub(crate) fn resume(&mut self) {
        self.signal(Signal::CONT);
        self.paused = false;
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.request_stop();
        self.wait_for_exit(WAIT_MAX)
    }

    /// Sends SIGTERM.
    pub(crate) fn request_stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends two signals one right after the other, as a supervisor does that signals the process
    /// and then its group. Waits for the exit.
    pub(crate) fn signal_twice(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.signal(signal);
        self.wait_for_exit(WAIT_MAX)
    }

    /// Waits until the process exits.
    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        wait_until(&format!("node {} exits", self.id), limit, || {
            status = self.exit_status();
            status.is_some()
        });
        self.child = None;
        status.expect("the wait is over")
    }

    /// Returns how the process ended; `None` if it still runs.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        child.try_wait().expect("our own child can be waited for")
    }

    /// Whether the process exists, paused or not.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.is_some() && self.exit_status().is_none()
    }

    /// Sends one `GET` on a new connection. Returns `None` if there is no answer. A paused node is
    /// not asked, because the request would only time out.
    pub(crate) fn ask(&self, target: &str) -> Option<Answer> {
        if self.child.is_none() || self.paused {
            return None;
        }
        Wire::open(self.http(), ASK_LIMIT).ok()?.get(target).ok()
    }

    /// Sends one request with a method and headers on a new connection.
    pub(crate) fn ask_with(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Option<Answer> {
        let mut wire = Wire::open(self.http(), ASK_LIMIT).ok()?;
        wire.send(&request(method, target, headers, b"")).ok()?;
        wire.receive().ok()
    }

    /// Returns the sum of a metric over all its labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.ask("/metrics")?.text();
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            // If the name goes on after this prefix, the line belongs to another metric.
            let value = match rest.strip_prefix('{') {
                Some(labelled) => labelled.rsplit_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.split_whitespace().next()?.parse::<f64>().ok()
        });
        values.reduce(|a, b| a + b)
    }

    /// Waits until the node tells this metric. Returns its sum over all its labels.
    #[track_caller]
    pub(crate) fn wait_for_metric(&self, name: &str) -> f64 {
        let mut value = None;
        wait_until(&format!("node {} tells {name}", self.id), WAIT_MAX, || {
            value = self.metric(name);
            value.is_some()
        });
        value.expect("the wait is over")
    }

    fn says_yes(&self, target: &str) -> bool {
        self.ask(target).is_some_and(|answer| answer.status == 200)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.says_yes("/ready")
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.says_yes("/leader")
    }

    pub(crate) fn serves(&self) -> bool {
        self.says_yes("/timestamp")
    }

    /// Breaks the clock or the disk of a node, which must be a test build. When this function
    /// returns, a running node has read the faults.
    pub(crate) fn break_with(&self, faults: Faults) {
        assert!(is_test_build(), "a release build cannot break its clock or its disk");
        // The file is written under another name and renamed, so that the node never reads half of
        // it.
        let aside = self.home.join("faults.new");
        fs::write(&aside, faults.to_string()).expect("the faults can be written");
        fs::rename(&aside, self.faults_file()).expect("the faults can be moved");
        if self.child.is_some() {
            let_pass(faults::READ_INTERVAL);
        }
    }

    /// Deletes the data directory. The node must be down.
    pub(crate) fn wipe(&self) {
        assert!(self.child.is_none(), "the disk of a running node is not wiped");
        fs::remove_dir_all(self.data_dir()).expect("the data directory can be removed");
    }

    /// Returns everything that the node has logged since its first start.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_TAIL_LINES);
        let mut tail = format!("--- node {} ({from} lines above)\n", self.id);
        for line in &lines[from..] {
            let _ = writeln!(tail, "{line}");
        }
        tail
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
        if let Some(child) = &mut self.child {
            // An error is ignored, because the process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The faults of a node, which a test sets. Only a test build has such faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Milliseconds that are added to the wall clock.
    pub(crate) wall_offset_ms: i64,
    /// By how much the rate of the clocks of the leases is wrong, parts in a million.
    pub(crate) lease_rate_ppm: i64,
    /// Every fsync fails.
    pub(crate) fsync_fail: bool,
    /// While this is set, every fsync waits.
    pub(crate) fsync_hang: bool,
    /// No client is accepted.
    pub(crate) accept_fail: bool,
}

impl Faults {
    pub(crate) const NONE: Self = Self {
        wall_offset_ms: 0,
        lease_rate_ppm: 0,
        fsync_fail: false,
        fsync_hang: false,
        accept_fail: false,
    };

    pub(crate) fn wall_offset_hours(hours: i64) -> Self {
        Self { wall_offset_ms: hours * 3_600_000, ..Self::NONE }
    }

    pub(crate) fn lease_rate_ppm(lease_rate_ppm: i64) -> Self {
        Self { lease_rate_ppm, ..Self::NONE }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "wall_offset_ms={}", self.wall_offset_ms)?;
        writeln!(f, "lease_rate_ppm={}", self.lease_rate_ppm)?;
        writeln!(f, "fsync_fail={}", u8::from(self.fsync_fail))?;
        writeln!(f, "fsync_hang={}", u8::from(self.fsync_hang))?;
        writeln!(f, "accept_fail={}", u8::from(self.accept_fail))
    }
}
