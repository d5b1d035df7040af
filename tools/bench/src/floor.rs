//! Measures the limits of the machine itself: a bare 16-byte echo over loopback TCP, one fsync, one
//! clock read, one thread wake-up. A result can then be read as a multiple of these limits.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::encoded::Times;
use crate::latency;
use crate::machine::Machine;
use crate::record::FORMAT;

/// The results of all measurements.
#[derive(Clone, Debug)]
pub struct Floor {
    /// Round trips of 16 bytes with both ends asleep in `read`.
    pub echo_sleeping_ns: Histogram<u64>,
    /// Round trips of 16 bytes with both ends polling `read`.
    pub echo_spinning_ns: Histogram<u64>,
    /// A write of 4 KiB and its fsync.
    pub fsync_ns: Histogram<u64>,
    /// One reading of the monotonic clock, the mean of many.
    pub clock: Duration,
    /// Time from `unpark` until the other thread runs.
    pub wake_ns: Histogram<u64>,
}

impl Floor {
    /// Runs each measurement for about `each`. The fsync is measured in `directory`.
    ///
    /// # Errors
    /// Loopback or the directory cannot be used.
    pub fn measure(directory: &Path, each: Duration) -> io::Result<Self> {
        Ok(Self {
            echo_sleeping_ns: echo(Wait::Sleeping, each)?,
            echo_spinning_ns: echo(Wait::Spinning, each)?,
            fsync_ns: fsync(directory, each)?,
            clock: clock(each.min(CLOCK_TIME_MAX)),
            wake_ns: wake(each),
        })
    }

    /// The JSON that `epicepoch bench floor --output json` prints. Times are nanoseconds.
    #[must_use]
    pub fn json(&self) -> Value {
        let times = |times: &Histogram<u64>| json!(Times(times.clone()));
        json!({
            "format": FORMAT,
            "kind": "floor",
            "machine": Machine::read(),
            "echo_sleeping_ns": times(&self.echo_sleeping_ns),
            "echo_spinning_ns": times(&self.echo_spinning_ns),
            "fsync_ns": times(&self.fsync_ns),
            "clock_read_ns": self.clock.as_nanos() as u64,
            "wake_ns": times(&self.wake_ns),
        })
    }
}

/// How the ends of an echo wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// In the kernel, in a blocking `read`.
    Sleeping,
    /// In a loop of non-blocking reads.
    Spinning,
}

/// Measures the latency of echoes for about `time`.
///
/// # Errors
/// Loopback cannot be used.
pub fn echo(wait: Wait, time: Duration) -> io::Result<Histogram<u64>> {
    let (mut near, mut far) = pair()?;
    near.set_nonblocking(wait == Wait::Spinning)?;
    far.set_nonblocking(wait == Wait::Spinning)?;
    let server = std::thread::spawn(move || {
        let mut message = [0; MESSAGE_LEN];
        while read_message(&mut far, &mut message).is_ok() && far.write_all(&message).is_ok() {}
    });
    let mut latencies = latency::histogram();
    let mut message = [7; MESSAGE_LEN];
    let began = Instant::now();
    let mut rounds = 0_u64;
    // At least one round trip is measured, even if the warm-up has taken all the time on a busy
    // machine.
    while began.elapsed() < time || latencies.is_empty() {
        let sent = Instant::now();
        near.write_all(&message)?;
        read_message(&mut near, &mut message)?;
        rounds += 1;
        if rounds > WARMUP_ROUNDS {
            latency::record(&mut latencies, sent.elapsed());
        }
    }
    drop(near);
    server.join().expect("an echo never panics");
    Ok(latencies)
}

/// Reads a complete message. If the stream does not block, it polls in a loop.
fn read_message(stream: &mut TcpStream, message: &mut [u8]) -> io::Result<()> {
    let mut read = 0;
    let mut tries = 0_u32;
    while read < message.len() {
        match stream.read(&mut message[read..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => read += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tries = tries.wrapping_add(1);
                // With a single processor, the other end can run only if this end yields.
                if tries.is_multiple_of(SPINS) {
                    std::thread::yield_now();
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the two ends of a connection over loopback.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// Measures a write and fsync of a temporary file.
fn fsync(directory: &Path, time: Duration) -> io::Result<Histogram<u64>> {
    use std::os::unix::fs::FileExt;
    let path = directory.join(format!("epicepoch-floor-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    // The name of the file is removed at once. The file itself disappears when it is closed, even
    // after a crash.
    std::fs::remove_file(&path)?;
    let block = [7; BLOCK_LEN];
    file.write_all_at(&block, 0)?;
    file.sync_all()?;
    let mut latencies = latency::histogram();
    let began = Instant::now();
    while began.elapsed() < time {
        let before = Instant::now();
        file.write_all_at(&block, 0)?;
        file.sync_all()?;
        latency::record(&mut latencies, before.elapsed());
    }
    Ok(latencies)
}

fn clock(time: Duration) -> Duration {
    let began = Instant::now();
    let mut readings = 0_u32;
    let mut now = began;
    while now.duration_since(began) < time && readings < u32::MAX {
        now = std::hint::black_box(Instant::now());
        readings += 1;
    }
    now.duration_since(began) / readings.max(1)
}

/// Measures how long it takes to wake a sleeping thread, again and again for about `time`.
fn wake(time: Duration) -> Histogram<u64> {
    let (done, woken): (SyncSender<Duration>, _) = sync_channel(1);
    let (call, called) = sync_channel::<Instant>(1);
    let sleeper = std::thread::spawn(move || {
        while let Ok(at) = called.recv() {
            if done.send(at.elapsed()).is_err() {
                return;
            }
        }
    });
    let mut latencies = latency::histogram();
    let began = Instant::now();
    while began.elapsed() < time {
        // The other thread needs this time to fall asleep.
        std::thread::sleep(FALL_ASLEEP);
        let answered = call.send(Instant::now()).ok().and_then(|()| woken.recv().ok());
        let Some(took) = answered else { break };
        latency::record(&mut latencies, took);
    }
    drop(call);
    sleeper.join().expect("a sleeper never panics");
    latencies
}

/// Length of a message, bytes: as long as a timestamp.
pub const MESSAGE_LEN: usize = 16;
/// Length of a write that is synced, bytes: a page.
const BLOCK_LEN: usize = 4096;
/// Number of round trips in the warm-up, which are not measured.
const WARMUP_ROUNDS: u64 = 100;
/// A spinning end yields the processor after this many empty reads.
const SPINS: u32 = 256;
/// Longest time spent on the measurement of the clock: enough for a mean.
const CLOCK_TIME_MAX: Duration = Duration::from_millis(200);
const FALL_ASLEEP: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_and_nothing_is_left_behind() {
        let directory = std::env::temp_dir();
        let floor = Floor::measure(&directory, Duration::from_millis(60)).expect("measured");
        for histogram in
            [&floor.echo_sleeping_ns, &floor.echo_spinning_ns, &floor.fsync_ns, &floor.wake_ns]
        {
            assert!(!histogram.is_empty() && histogram.min() > 0);
        }
        assert!(!floor.clock.is_zero() && floor.clock < Duration::from_millis(1));
        let name = format!("epicepoch-floor-{}", std::process::id());
        assert!(!directory.join(name).exists());
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert!(fsync(Path::new("/nonexistent"), Duration::ZERO).is_err());
    }
}
