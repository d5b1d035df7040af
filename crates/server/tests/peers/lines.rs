//! The log lines of all nodes in this process.

use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Begins to keep log lines. Call it before the node starts whose lines a test reads.
pub(crate) fn keep() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| tracing::subscriber::set_global_default(Keeping).expect("the first"));
}

/// The lines that have all of `texts`. A line is its level, its text and its fields, such as
/// `INFO text a=1 b=x`. Other tests log at the same time, so one of `texts` must be a value that
/// only one test uses, such as an address.
pub(crate) fn lines_with(texts: &[&str]) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| texts.iter().all(|text| line.contains(text))).cloned().collect()
}

struct Keeping;

#[derive(Default)]
struct Line {
    text: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => write!(self.text, "{value:?}").unwrap(),
            name => write!(self.fields, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Keeping {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("epicepoch")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = format!("{} {}{}", event.metadata().level(), line.text, line.fields);
        LINES.lock().unwrap().push(line);
    }
}
