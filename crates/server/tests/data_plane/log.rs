//! The warnings that nodes of this process log. All tests that run at the same time share them.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::node::WAIT_MAX;

/// Lines with their fields, such as ` message=text a=1`.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Warnings;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a string takes everything");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }
}

/// Keeps all warnings from now on.
pub(crate) fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Warnings).expect("there is no other");
    });
}

/// Waits until a line has all these parts.
pub(crate) fn await_line(parts: &[&str]) {
    let start = Instant::now();
    while !LINES.lock().unwrap().iter().any(|line| parts.iter().all(|part| line.contains(part))) {
        assert!(start.elapsed() < WAIT_MAX, "no line has {parts:?}");
        sleep(Duration::from_millis(1));
    }
}
