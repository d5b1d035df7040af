//! Writes the log without waiting for its reader. If the reader hangs, as a log collector may, a thread
//! that waited for it would stop: other nodes would take this one for paused, and a panic could not end
//! the process. So a line that does not fit in time is lost. The next line that fits is followed by the
//! number of lost lines.
//!
//! This holds for pipes and for the sockets of journald. A terminal that stands still can hold up a
//! line: it says only that some of a line fits.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

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
    /// Whether the last line that was written has no end.
    is_cut: bool,
    /// Lines that were lost, and that no line has reported yet.
    lost: u64,
}

impl<F: AsFd> LogWriter<F> {
    pub(crate) fn new(file: F) -> Self {
        Self { file, state: Mutex::default() }
    }

    /// Writes a line, or loses it. Returns how many lines were lost before, if this one was not.
    pub(crate) fn put(&self, line: &[u8]) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wait_ms = if state.is_stuck { 0 } else { WAIT_MS };
        let is_written = (!state.is_cut || self.write_part(b"\n", wait_ms) == 1) && {
            let count = self.write_part(line, wait_ms);
            state.is_cut = 0 < count && count < line.len();
            count == line.len()
        };
        state.is_stuck = !is_written;
        if is_written {
            return std::mem::take(&mut state.lost);
        }
        state.lost += 1;
        0
    }

    /// Writes as much as fits. Returns how much that was. After an error other than a full pipe, all
    /// of the text counts as written, because there is no other place to report the error.
    fn write_part(&self, text: &[u8], wait_ms: i64) -> usize {
        let mut left = text;
        while !left.is_empty() && self.is_writable(wait_ms) {
            match rustix::io::write(&self.file, &left[..left.len().min(CHUNK)]) {
                Ok(count) => left = &left[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return text.len(),
            }
        }
        text.len() - left.len()
    }

    /// Whether [`CHUNK`] bytes can be written without waiting, after at most this many milliseconds.
    fn is_writable(&self, wait_ms: i64) -> bool {
        let mut polled = [PollFd::new(&self.file, PollFlags::OUT)];
        let wait = Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
        loop {
            match poll(&mut polled, Some(&wait)) {
                Ok(count) => return count > 0,
                Err(Errno::INTR) => {}
                // A descriptor that cannot be polled never waits.
                Err(_) => return true,
            }
        }
    }
}

impl<F: AsFd> Write for &LogWriter<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let count = self.put(line);
        if count > 0 {
            tracing::warn!(count, "log lines were lost: they were not read in time");
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_stuck {
                // The warning was lost, too.
                state.lost += count;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line waits so long for a reader that was not slow before, milliseconds. An election takes longer.
const WAIT_MS: i64 = 20;
/// The most that a pipe with room takes without waiting: `PIPE_BUF` of Linux.
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read as _};
    use std::time::Instant;

    use super::*;

    fn pipe(pages: usize) -> (PipeReader, LogWriter<PipeWriter>) {
        let (reader, file) = io::pipe().expect("a pipe");
        rustix::pipe::fcntl_setpipe_size(&file, pages * CHUNK).expect("a size");
        (reader, LogWriter::new(file))
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted_and_the_writer_goes_on() {
        let (mut reader, lines) = pipe(16);
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
    fn a_line_that_was_cut_is_ended_before_the_next_one() {
        let (mut reader, lines) = pipe(2);
        assert_eq!(lines.put(&vec![b'x'; 2 * CHUNK + 1]), 0);
        let mut read = vec![0; 2 * CHUNK];
        reader.read_exact(&mut read).expect("all that is there");
        assert_eq!(lines.put(b"next\n"), 1, "one was lost");
        let taken = reader.read(&mut read).expect("a line");
        assert_eq!(&read[..taken], b"\nnext\n");
    }

    #[test]
    fn a_long_line_is_written_whole_and_a_reader_that_has_gone_stops_nothing() {
        let (mut reader, lines) = pipe(16);
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
