//! The log: structured lines on standard error, as JSON or, if configured, as text for people.
//! Standard output is only for data.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, IsTerminal};
use std::panic;
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use epicepoch_config::Logging;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime as Rfc3339};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::log_writer::LogWriter;

/// Starts the log of the process. A second call changes nothing.
pub(crate) fn start(logging: Logging, colours: bool) {
    let Logging { debug, pretty, time_ms } = logging;
    let writer = Arc::new(LogWriter::new(io::stderr()));
    // Debug lines of libraries are left out, because they would hide ours.
    let ours = if debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let targets = Targets::new().with_default(LevelFilter::INFO).with_target("epicepoch", ours);
    let lines = tracing_subscriber::fmt()
        .with_max_level(ours)
        .with_timer(Clock { time_ms })
        .with_ansi(pretty && colours && io::stderr().is_terminal())
        .log_internal_errors(false)
        .with_writer(writer.clone());
    let _already_started = if pretty {
        lines.with_target(false).finish().with(targets).try_init()
    } else {
        let lines = lines.json().flatten_event(true);
        let lines = lines.with_current_span(false).with_span_list(false);
        if time_ms {
            let lines = lines.map_event_format(|format| NumberedTime(format.without_time()));
            lines.finish().with(targets).try_init()
        } else {
            lines.finish().with(targets).try_init()
        }
    };
    // The standard library would wait for the reader, and the panic of a thread that the node needs has
    // to end the process.
    panic::set_hook(Box::new(move |panic| {
        let current = thread::current();
        let thread = current.name().unwrap_or("without a name");
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => backtrace.to_string(),
            _ => String::new(),
        };
        writer.put(format!("thread '{thread}' {panic}\n{backtrace}").as_bytes());
    }));
}

/// Writes JSON lines whose time is a number. It wraps a format without a time, because the library
/// always writes the time as a string.
struct NumberedTime<F>(F);

impl<S, N, F> FormatEvent<S, N> for NumberedTime<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut object = String::new();
        self.0.format_event(context, Writer::new(&mut object), event)?;
        let members = object.strip_prefix('{').ok_or(fmt::Error)?;
        write!(line, "{{\"timestamp\":{},{members}", unix_ms())
    }
}

fn unix_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

struct Clock {
    time_ms: bool,
}

impl FormatTime for Clock {
    fn format_time(&self, line: &mut Writer<'_>) -> fmt::Result {
        if !self.time_ms {
            return Rfc3339.format_time(line);
        }
        write!(line, "{}", unix_ms())
    }
}
