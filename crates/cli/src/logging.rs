//! The log: structured lines on standard error, JSON for machines unless people ask otherwise.
//! It never writes to standard output, which belongs to data.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime as Rfc3339};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// How to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Logging {
    /// Debug level instead of info (`DEBUG`).
    pub(crate) debug: bool,
    /// Lines for people instead of JSON (`PRETTY`).
    pub(crate) pretty: bool,
    /// Unix milliseconds instead of RFC 3339 (`LOG_TIME_MS`).
    pub(crate) time_ms: bool,
}

impl Logging {
    /// Installs the log for the whole process; a second call changes nothing.
    pub(crate) fn start(self, colours: bool) {
        // Debugging means our own words: those of the libraries would drown them.
        let ours = if self.debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
        let targets = Targets::new().with_default(LevelFilter::INFO).with_target("epicepoch", ours);
        let lines = tracing_subscriber::fmt()
            .with_max_level(ours)
            .with_timer(Clock { time_ms: self.time_ms })
            .with_ansi(self.pretty && colours && io::stderr().is_terminal())
            .log_internal_errors(false)
            .with_writer(io::stderr);
        let _already_started = if self.pretty {
            lines.with_target(false).finish().with(targets).try_init()
        } else {
            let lines = lines.json().flatten_event(true);
            let lines = lines.with_current_span(false).with_span_list(false);
            if self.time_ms {
                let lines = lines.map_event_format(|format| NumberedTime(format.without_time()));
                lines.finish().with(targets).try_init()
            } else {
                lines.finish().with(targets).try_init()
            }
        };
    }
}

/// JSON lines whose time is a number: the library writes every time as a string. Around a format
/// without a time.
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
