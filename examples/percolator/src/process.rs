//! Processes of stores and clients. Each ends when its handle is dropped. Each also ends when this
//! process ends, because its input is then closed.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// A child process that ends when this handle is dropped.
#[derive(Debug)]
pub struct Process {
    what: String,
    child: Child,
    /// Path of its log, for error messages.
    log: Option<PathBuf>,
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

    /// Kills the process with SIGKILL, and waits until it has ended. Returns an error if the
    /// process had ended before.
    pub fn kill(mut self) -> Result<()> {
        self.ensure_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Closes the input of the process, and waits until the process ends.
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

    /// Returns the last lines of the process's log.
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

/// How long to wait for a process before the run fails.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How many lines of a log an error message shows.
const SAID_LINES: usize = 10;
const POLL_PAUSE: Duration = Duration::from_millis(10);
