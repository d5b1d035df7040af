//! What the machine itself held up while a test ran: how late a sleeping thread woke, and how long
//! the disk took to make one small write durable. Nodes on the same machine wait as long, so a
//! bound on their silence holds beside it; without it a test would judge the machine.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread sleeps between two looks.
const PAUSE: Duration = Duration::from_millis(1);
/// One durable write for so many sleeps: enough to meet a disk that is held up for 10 ms, and no
/// load to speak of.
const SLEEPS_PER_WRITE: u32 = 5;
/// Each write makes the file longer, so that it waits for the file system's journal as well, as
/// that of a database does now and then; after so many bytes it begins again.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Bytes of one write.
const WRITE_LEN: usize = 4096;
/// What is shorter is the machine as it always is, and counts as nothing.
const STALL_MIN: Duration = Duration::from_millis(2);
/// Writes that follow one another when leadership moves: a vote of the one that campaigns, one of
/// another, and the new leader's first entry.
const WRITES_IN_A_ROW: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The processor was somebody else's.
    Wake,
    /// The disk was somebody else's.
    Write,
}

#[derive(Debug)]
struct Stall {
    from: Instant,
    to: Instant,
    cause: Cause,
}

/// Watches the machine until it is told to stop.
pub(crate) struct StallMeter {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Stalls>,
}

impl StallMeter {
    /// Starts to watch; its file lies on the disk that the nodes write to.
    pub(crate) fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let file = tempfile::tempfile().expect("a temporary file");
        let thread = std::thread::spawn(move || watch(&file, &over));
        Self { is_over, thread }
    }

    pub(crate) fn stop(self) -> Stalls {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("the disk takes a byte")
    }
}

fn watch(file: &File, is_over: &AtomicBool) -> Stalls {
    let mut stalls = Stalls::default();
    let mut length = 0;
    while !is_over.load(Ordering::SeqCst) {
        for _ in 0..SLEEPS_PER_WRITE {
            let due = Instant::now() + PAUSE;
            std::thread::sleep(PAUSE);
            stalls.note(Cause::Wake, due, Instant::now());
        }
        let from = Instant::now();
        file.write_all_at(&[0; WRITE_LEN], length)
            .and_then(|()| file.sync_data())
            .expect("a durable write");
        stalls.note(Cause::Write, from, Instant::now());
        length += WRITE_LEN as u64;
        if length > FILE_LEN_MAX {
            file.set_len(0).expect("a shorter file");
            length = 0;
        }
    }
    stalls
}

/// When the machine was held up.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Vec<Stall>);

impl Stalls {
    fn note(&mut self, cause: Cause, from: Instant, to: Instant) {
        if to.saturating_duration_since(from) >= STALL_MIN {
            self.0.push(Stall { from, to, cause });
        }
    }

    /// How much of a silence between `from` and `to` can be the machine's: one late wake-up, and
    /// the writes of a handover, each as slow as the slowest that was met.
    pub(crate) fn allowance(&self, from: Instant, to: Instant) -> Duration {
        let longest = |cause| {
            let met =
                self.0.iter().filter(|it| it.cause == cause && it.from <= to && it.to >= from);
            met.map(|it| it.to - it.from).max().unwrap_or_default()
        };
        longest(Cause::Wake) + longest(Cause::Write) * WRITES_IN_A_ROW
    }
}

#[test]
fn only_what_was_held_up_in_a_window_is_allowed_for() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut stalls = Stalls::default();
    stalls.note(Cause::Wake, at(0), at(1));
    assert_eq!(stalls.allowance(at(0), at(100)), Duration::ZERO, "as it always is");
    stalls.note(Cause::Wake, at(10), at(15));
    stalls.note(Cause::Write, at(20), at(30));
    stalls.note(Cause::Write, at(40), at(44));
    assert_eq!(stalls.allowance(at(0), at(100)), Duration::from_millis(5 + 3 * 10));
    assert_eq!(stalls.allowance(at(35), at(100)), Duration::from_millis(3 * 4));
    assert_eq!(stalls.allowance(at(50), at(100)), Duration::ZERO);
}
