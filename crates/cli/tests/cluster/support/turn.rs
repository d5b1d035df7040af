//! Decides when a test may run its processes: at the same time as other tests, or alone.
//!
//! Tests that measure are in `measuring/` and start with [`alone`]. All others are in `together/`
//! and share the machine. The turn is a lock on a file, because tests may be threads or processes.
//! `cargo test` runs them as threads of one process; `cargo nextest` runs each as a process of its
//! own.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Instant;

use super::say;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Alone,
    SideBySide,
}

thread_local! {
    /// The turn that the test on this thread has.
    static HELD: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// The right to run processes. When it is dropped, it prints how long the test took.
pub(crate) struct Turn(Option<Held>);

struct Held {
    started: Instant,
    /// Closing this file ends the turn.
    _lock: File,
}

/// Waits until no other test runs, and keeps the others waiting until the turn is dropped.
#[must_use]
pub(crate) fn alone() -> Turn {
    Turn::take(Kind::Alone)
}

/// Whether the test on this thread has the machine alone.
pub(crate) fn is_alone() -> bool {
    HELD.get() == Some(Kind::Alone)
}

impl Turn {
    /// Waits until no test runs alone. Does nothing if this test already has its turn.
    pub(crate) fn side_by_side() -> Self {
        if HELD.get().is_some() {
            return Self(None);
        }
        let is_measuring = test_name().starts_with("measuring::");
        assert!(!is_measuring, "a test in measuring/ starts with `let _alone = alone();`");
        Self::take(Kind::SideBySide)
    }

    fn take(kind: Kind) -> Self {
        // Turns are given in the order of arrival: a test that waits for its turn holds the queue
        // lock. Otherwise tests that run side by side would overtake one that waits to run alone,
        // again and again.
        let queue = locked("queue", File::lock);
        let lock = match kind {
            Kind::Alone => locked("turn", File::lock),
            Kind::SideBySide => locked("turn", File::lock_shared),
        };
        drop(queue);
        HELD.set(Some(kind));
        Self(Some(Held { started: Instant::now(), _lock: lock }))
    }
}

fn locked(name: &str, lock: fn(&File) -> io::Result<()>) -> File {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(dir).expect("a directory for locks");
    let file = File::create(dir.join(name)).expect("a file to lock");
    lock(&file).expect("a file can be locked");
    file
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(held) = &self.0 {
            HELD.set(None);
            say(&format!(
                "test {} took {:.1} s",
                test_name(),
                held.started.elapsed().as_secs_f64()
            ));
        }
    }
}

/// Returns the name of the test on this thread. With `--test-threads=1`, it is the name of the main
/// thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}
