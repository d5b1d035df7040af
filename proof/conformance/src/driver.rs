//! A driver: a process that runs the client under test, and calls it when the suite sends a
//! command. Several threads of the suite may send commands at once.
//!
//! The driver reads its own clock. For each reading, the suite knows only an interval on the
//! suite's clock in which the reading was made. For the start of a call, the record has the
//! beginning of the interval. For the end of a call, it has the end of the interval. So in the
//! record a call starts no later, and ends no earlier, than it really did. Every violation found is
//! therefore real, for any driver with a monotonic clock.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epicepoch_wire::{Guarantee, Timestamp, TimestampRange};

use crate::protocol::{Command, Fault, Reply};
use crate::{WAIT_MAX, lock};

/// How to start a driver.
#[derive(Clone, Debug)]
pub struct DriverCommand {
    /// The driver's name in reports.
    pub name: String,
    /// The program, followed by its arguments.
    pub words: Vec<String>,
    /// [`Settings::hedge`] of clients whose settings do not have it.
    pub hedge: Option<Duration>,
    /// Whether every client needs compact timestamps, and the clusters of all scenarios give them.
    pub is_compact: bool,
}

/// Settings of the client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long one node may take to answer. Default 100 ms, because scripted nodes are on the same
    /// machine.
    pub attempt: Duration,
    /// How often the client reads the list of members again. Default a minute, which is longer than
    /// a scenario.
    pub refresh: Duration,
    /// How long the client may take to open, and the limit of a call without its own. Default 2 s.
    /// `None`: the client has its default.
    pub timeout: Option<Duration>,
    /// The cluster name that the client expects. Default `None`: any name.
    pub cluster: Option<String>,
    /// After how long without an answer the client sends a request a second time. Default `None`:
    /// never.
    pub hedge: Option<Duration>,
    /// The guarantee that the client asks for. Default `None`: it names none.
    pub guarantee: Option<Guarantee>,
    /// Whether the client needs compact timestamps. Default `false`.
    pub is_compact: bool,
    /// Whether the client asks only for timestamps of interval mode. Default `false`.
    pub is_intervals: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            attempt: Duration::from_millis(100),
            refresh: Duration::from_mins(1),
            timeout: Some(Duration::from_secs(2)),
            cluster: None,
            hedge: None,
            guarantee: None,
            is_compact: false,
            is_intervals: false,
        }
    }
}

/// A running driver. Dropping it kills the process.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    input: Mutex<Option<ChildStdin>>,
    shared: Arc<Shared>,
    last_id: AtomicU64,
    clock: Clock,
    hedge: Option<Duration>,
    needs_compact: bool,
    /// Whether the present client needs compact timestamps.
    is_compact: AtomicBool,
}

#[derive(Debug, Default)]
struct Shared {
    /// For each command without a reply, by its id, where the reply is sent. `None` once the driver
    /// has ended.
    waiting: Mutex<Option<HashMap<u64, Sender<Reply>>>>,
    /// Lines of the driver that are not valid replies.
    stray: Mutex<Vec<String>>,
}

/// The driver's clock. It read zero at a moment between `low` and `high`, in nanoseconds since
/// `origin`.
#[derive(Clone, Copy, Debug)]
struct Clock {
    origin: Instant,
    low: i128,
    high: i128,
}

/// A finished call.
#[derive(Clone, Debug)]
pub struct Call {
    /// A moment that is not later than the start of the call.
    pub start: Instant,
    /// A moment that is not earlier than the end of the call.
    pub end: Instant,
    /// Duration of the call by the driver's clock.
    pub took: Duration,
    /// Number of timestamps asked for; 1 in a call for the latest one.
    pub count: u64,
    /// Whether the call asked for the latest timestamp.
    pub is_latest: bool,
    /// The timestamps, or the error with which the call failed.
    pub outcome: Result<TimestampRange, Refusal>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of error.
    pub fault: Fault,
    /// The error message of the client.
    pub text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.fault, self.text)
    }
}

/// A command under way.
#[derive(Debug)]
pub struct Pending {
    id: u64,
    count: u64,
    is_latest: bool,
    /// Whether the reply must have a compact timestamp.
    is_compact: bool,
    clock: Clock,
    receiver: Receiver<Reply>,
}

impl Pending {
    /// Waits for the reply to this command.
    ///
    /// # Errors
    /// There is no reply, or an invalid one. The driver or the client has failed.
    pub fn wait(self) -> Result<Call, String> {
        let reply = match self.receiver.recv_timeout(WAIT_MAX) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("no reply to command {} within {WAIT_MAX:?}", self.id));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("the driver ended before it replied to {}", self.id));
            }
        };
        let outcome = self.outcome(&reply)?;
        Ok(Call {
            start: self.clock.earliest(reply.start),
            end: self.clock.latest(reply.end),
            took: Duration::from_nanos(reply.end.saturating_sub(reply.start)),
            count: self.count,
            is_latest: self.is_latest,
            outcome,
        })
    }

    /// Parses the result in a reply.
    fn outcome(&self, reply: &Reply) -> Result<Result<TimestampRange, Refusal>, String> {
        if reply.end < reply.start {
            return Err(format!("the driver's clock went back: {reply:?}"));
        }
        if let Some(fault) = reply.error {
            return Ok(Err(Refusal { fault, text: reply.text.clone().unwrap_or_default() }));
        }
        if self.count == 0 && reply.first.is_none() && reply.u64.is_none() {
            // The command was not a call, so the reply has no timestamps. Return a placeholder.
            let nothing = TimestampRange::new(Timestamp::default(), 1).ok_or("no range")?;
            return Ok(Ok(nothing));
        }
        let first = if self.is_compact { &reply.u64 } else { &reply.first };
        let first = first.as_deref().ok_or_else(|| format!("neither: {reply:?}"))?;
        let first: Timestamp = if self.is_compact {
            let compact = first.parse().ok().and_then(Timestamp::from_compact);
            compact.ok_or_else(|| format!("C8: no compact timestamp: {reply:?}"))?
        } else {
            first.parse().map_err(|error| format!("{error}: {reply:?}"))?
        };
        let count = reply.count.ok_or_else(|| format!("no count: {reply:?}"))?;
        let range = TimestampRange::new(first, count);
        range.map(Ok).ok_or_else(|| format!("no range: {reply:?}"))
    }
}

impl Clock {
    /// Returns a clock whose offset is not known, as it is before the first reply.
    fn unknown(origin: Instant) -> Self {
        Self { origin, low: i128::MIN, high: i128::MAX }
    }

    /// Records that the driver read `reading` between the moments `before` and `after`.
    fn narrow(&mut self, reading: u64, before: Instant, after: Instant) {
        let since = |at: Instant| at.saturating_duration_since(self.origin).as_nanos() as i128;
        self.low = self.low.max(since(before) - i128::from(reading));
        self.high = self.high.min(since(after) - i128::from(reading));
    }

    fn earliest(&self, reading: u64) -> Instant {
        self.at(i128::from(reading).saturating_add(self.low))
    }

    fn latest(&self, reading: u64) -> Instant {
        self.at(i128::from(reading).saturating_add(self.high))
    }

    fn at(&self, nanos: i128) -> Instant {
        self.origin + Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(0))
    }
}

impl Driver {
    /// Whether every client needs compact timestamps.
    pub fn needs_compact(&self) -> bool {
        self.needs_compact
    }

    /// Whether the client has a second connection for hedged requests.
    pub fn hedges(&self) -> bool {
        self.hedge.is_some()
    }

    /// Starts a driver and calibrates its clock.
    ///
    /// # Errors
    /// The program cannot be started, or does not reply.
    pub fn start(command: &DriverCommand) -> Result<Self, String> {
        let (program, arguments) = command.words.split_first().ok_or("no driver named")?;
        let mut child = Process::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program} cannot be started: {error}"))?;
        let input = Mutex::new(child.stdin.take());
        let output = child.stdout.take().ok_or("the driver has no output")?;
        let shared =
            Arc::new(Shared { waiting: Mutex::new(Some(HashMap::new())), ..<_>::default() });
        let origin = Instant::now();
        let clock = Clock::unknown(origin);
        let reading = shared.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                reading.take(&line);
            }
            lock(&reading.waiting).take();
        });
        let last_id = AtomicU64::new(0);
        let (hedge, needs_compact) = (command.hedge, command.is_compact);
        let is_compact = AtomicBool::new(needs_compact);
        let mut driver =
            Self { child, input, shared, last_id, clock, hedge, needs_compact, is_compact };
        for reading in 0..CLOCK_READINGS_MAX {
            if reading >= CLOCK_READINGS && driver.clock_uncertainty() <= CLOCK_UNCERTAINTY {
                break;
            }
            let before = Instant::now();
            let pending = driver.send(0, |id| Command::Clock { id });
            let reply = pending.receiver.recv_timeout(WAIT_MAX);
            let after = Instant::now();
            let reply = reply.map_err(|error| format!("the driver has no clock: {error}"))?;
            driver.clock.narrow(reply.start, before, after);
            driver.clock.narrow(reply.end, before, after);
        }
        if driver.clock.low > driver.clock.high {
            return Err("the driver's clock is not monotonic".to_owned());
        }
        Ok(driver)
    }

    /// Uncertainty of the driver's clock.
    #[must_use]
    pub fn clock_uncertainty(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.clock.high - self.clock.low).unwrap_or(0))
    }

    /// Makes the client.
    ///
    /// # Errors
    /// The driver failed. An error of the client is in the returned call.
    pub fn open(&self, addrs: &[String], settings: &Settings) -> Result<Call, String> {
        let millis = |time: Duration| time.as_millis() as u64;
        let addrs = addrs.to_vec();
        let compact = settings.is_compact || self.needs_compact;
        self.is_compact.store(compact, Ordering::SeqCst);
        let pending = self.send(0, |id| Command::Open {
            id,
            addrs,
            timeout_ms: settings.timeout.map(millis),
            attempt_ms: millis(settings.attempt),
            refresh_ms: millis(settings.refresh),
            cluster: settings.cluster.clone(),
            hedge_ms: settings.hedge.or(self.hedge).map(millis),
            guarantee: settings.guarantee.map(|guarantee| guarantee.name().to_owned()),
            compact,
            intervals: settings.is_intervals,
        });
        pending.wait()
    }

    /// Begins a call. Without a timeout, it has the client's.
    #[must_use]
    pub fn begin(&self, count: u64, timeout: Option<Duration>) -> Pending {
        let timeout_ms = timeout.map(|timeout| timeout.as_millis() as u64);
        let mut pending = self.send(count, |id| Command::Timestamps { id, count, timeout_ms });
        pending.count = count;
        pending
    }

    /// Begins a call for the latest timestamp.
    #[must_use]
    pub fn begin_latest(&self, timeout: Duration) -> Pending {
        let timeout_ms = Some(timeout.as_millis() as u64);
        let pending = self.send(1, |id| Command::Latest { id, timeout_ms });
        Pending { is_latest: true, ..pending }
    }

    /// Begins a call for a timestamp of interval mode, which includes the wait for it.
    #[must_use]
    pub fn begin_interval(&self, timeout: Duration) -> Pending {
        let timeout_ms = timeout.as_millis() as u64;
        self.send(1, |id| Command::Interval { id, timeout_ms })
    }

    /// Cancels a call.
    ///
    /// # Errors
    /// The driver failed.
    pub fn cancel(&self, call: &Pending) -> Result<Call, String> {
        let call = call.id;
        self.send(0, |id| Command::Cancel { id, call }).wait()
    }

    /// Closes the client.
    ///
    /// # Errors
    /// The driver failed.
    pub fn close(&self) -> Result<Call, String> {
        self.send(0, |id| Command::Close { id }).wait()
    }

    /// Ends the driver by closing its input.
    ///
    /// # Errors
    /// The driver sent invalid replies, does not end, or ends with an error.
    pub fn finish(mut self) -> Result<(), String> {
        lock(&self.input).take();
        let deadline = Instant::now() + WAIT_MAX;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) => return Err("the driver does not end with its input".to_owned()),
                Err(error) => return Err(format!("the driver cannot be waited for: {error}")),
            }
        };
        if !status.success() {
            return Err(format!("the driver ended with {status}"));
        }
        match lock(&self.shared.stray).first() {
            Some(line) => Err(format!("the driver said {line:?}, which is no reply to anything")),
            None => Ok(()),
        }
    }

    fn send(&self, count: u64, command: impl FnOnce(u64) -> Command) -> Pending {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = channel();
        if let Some(waiting) = &mut *lock(&self.shared.waiting) {
            waiting.insert(id, sender);
        }
        let mut line = serde_json::to_vec(&command(id)).expect("a command is JSON");
        line.push(b'\n');
        if let Some(input) = &mut *lock(&self.input) {
            // An error of the write is ignored. If the driver has ended, the end of its output
            // shows this.
            let _ = input.write_all(&line);
        }
        let is_compact = self.is_compact.load(Ordering::SeqCst);
        Pending { id, count, is_latest: false, is_compact, clock: self.clock, receiver }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shared {
    fn take(&self, line: &str) {
        let reply: Reply = match serde_json::from_str(line) {
            Ok(reply) => reply,
            Err(error) => return lock(&self.stray).push(format!("{line} ({error})")),
        };
        let waiting = lock(&self.waiting).as_mut().and_then(|waiting| waiting.remove(&reply.id));
        match waiting {
            // The error is ignored, because the caller may no longer wait.
            Some(sender) => drop(sender.send(reply)),
            None => lock(&self.stray).push(line.to_owned()),
        }
    }
}

/// How often the driver's clock is read at its start, at the least. The readings with the shortest
/// round trip bound the offset of the clock.
const CLOCK_READINGS: usize = 32;
/// On a busy machine every one of these round trips may be long. So the clock is read on until it
/// is known as well as this, but at most this often.
const CLOCK_UNCERTAINTY: Duration = Duration::from_micros(500);
const CLOCK_READINGS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_a_driver_lies_between_the_bounds_that_are_used_for_it() {
        let origin = Instant::now();
        let at = |nanos: u64| origin + Duration::from_nanos(nanos);
        let mut clock = Clock::unknown(origin);
        // The driver's clock read zero at 1000 ns of the suite's clock.
        clock.narrow(500, at(1400), at(1700));
        clock.narrow(900, at(1895), at(2500));
        clock.narrow(1000, at(1100), at(2003));
        assert_eq!((clock.earliest(2000), clock.latest(2000)), (at(2995), at(3003)));
    }
}
