//! The latency of a run as a log of interval histograms (`.hlog`) for HdrHistogram's tools: format
//! 1.3, V2 compressed histograms of nanoseconds, maxima in milliseconds. The log holds no other
//! histograms than latency, because many readers ignore tags and add up all lines.

use std::fmt::Write as _;
use std::time::UNIX_EPOCH;

use crate::record::Program;
use crate::run::Measurement;

/// Returns the log of a run.
#[must_use]
pub fn hlog(run: &Measurement, program: &Program) -> String {
    let started = run.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let command = program.command.join(" ").replace(['\n', '\r'], " ");
    let mut text = format!(
        "#[{command}]\n#[Histogram log format version 1.3]\n\
         #[StartTime: {started:.3} (seconds since epoch)]\n\
         #[BaseTime: {started:.3} (seconds since epoch)]\n\
         #[MaxValueDivisor: {NANOS_PER_MILLI:.1}]\n\
         \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\
         \"Interval_Compressed_Histogram\"\n"
    );
    let length = run.config.interval.as_secs_f64();
    for interval in &run.intervals {
        let start = interval.number as f64 * length;
        let max = interval.latency.max_ns as f64 / NANOS_PER_MILLI;
        let histogram = &interval.latency.histogram;
        let _infallible = writeln!(text, "{start:.3},{length:.3},{max:.3},{histogram}");
    }
    text
}

const NANOS_PER_MILLI: f64 = 1e6;
