//! Writes lines of the log without waiting for whoever reads them. A reader that has stopped reading,
//! such as a log collector that hangs, would otherwise stop each thread that logs: to other nodes the
//! process would look paused, and a panic could not end it. Lines that nobody takes are lost, and the
//! first line that fits again says how many.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

/// Lines of the log for a file descriptor.
#[derive(Debug)]
pub(crate) struct LogWriter<F> {
    file: F,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the last line was lost. Then the next one does not wait.
    is_stuck: bool,
    /// Lines that were lost, and that no line has reported yet.
    lost: u64,
}

impl<F: AsFd> LogWriter<F> {
    pub(crate) fn new(file: F) -> Self {
        Self { file, state: Mutex::default() }
    }

    /// Writes a line, or loses it. Returns how many lines were lost before, if this one was not.
    fn put(&self, line: &[u8]) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wait_ms = if state.is_stuck { 0 } else { WAIT_MS };
        state.is_stuck = !self.fits(line, wait_ms);
        if state.is_stuck {
            state.lost += 1;
            return 0;
        }
        std::mem::take(&mut state.lost)
    }

    /// Whether all of the line was written. An error other than a full pipe counts as written: nobody
    /// can be told.
    fn fits(&self, line: &[u8], wait_ms: i64) -> bool {
        let mut left = line;
        while !left.is_empty() {
            if !is_writable(&self.file, wait_ms) {
                return false;
            }
            match rustix::io::write(&self.file, &left[..left.len().min(CHUNK)]) {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
        true
    }
}

/// Whether [`CHUNK`] bytes can be written without waiting, after at most this many milliseconds.
pub(crate) fn is_writable(file: impl AsFd, wait_ms: i64) -> bool {
    let mut polled = [PollFd::new(&file, PollFlags::OUT)];
    let wait = Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
    // A descriptor that cannot be polled never waits.
    poll(&mut polled, Some(&wait)).map_or(true, |count| count > 0)
}

impl<F: AsFd> Write for &LogWriter<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let count = self.put(line);
        if count > 0 {
            tracing::warn!(count, "lines of the log were lost, because nobody read them");
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, F: AsFd + 'a> MakeWriter<'a> for LogWriter<F> {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// A line waits so long for a reader that was not slow before, milliseconds. An election takes longer.
const WAIT_MS: i64 = 20;
/// The most that a pipe with room takes without waiting: `PIPE_BUF` of Linux.
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Instant;

    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_the_writer_goes_on() {
        let (mut reader, file) = io::pipe().expect("a pipe");
        let lines = LogWriter::new(file);
        let began = Instant::now();
        for number in 0..10_000 {
            assert_eq!(lines.put(format!("line {number}\n").as_bytes()), 0);
        }
        assert!(began.elapsed().as_millis() < 1_000 * WAIT_MS as u128, "only the first one waits");
        let lost = lines.state.lock().expect("no panic").lost;
        // The reader goes on.
        let mut read = vec![0; 1 << 20];
        let taken = reader.read(&mut read).expect("lines");
        let text = String::from_utf8_lossy(&read[..taken]);
        assert!(lost > 1_000 && text.lines().count() as u64 + lost == 10_000, "{lost}: {text}");
        assert_eq!([0, 1].map(|_| lines.put(b"more\n")), [lost, 0]);
        let taken = reader.read(&mut read).expect("lines");
        assert_eq!(&read[..taken], b"more\nmore\n");
    }

    #[test]
    fn a_long_line_is_written_whole_and_a_reader_that_has_gone_stops_nothing() {
        let (mut reader, file) = io::pipe().expect("a pipe");
        let lines = LogWriter::new(file);
        let line = vec![b'x'; 5 * CHUNK + 1];
        assert_eq!(lines.put(&line), 0);
        let mut read = vec![0; line.len()];
        reader.read_exact(&mut read).expect("the line");
        assert_eq!(read, line);
        drop(reader);
        assert_eq!(lines.put(&line), 0);
        assert!(!lines.state.lock().expect("no panic").is_stuck);
    }
}
