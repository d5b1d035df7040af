//! The result of a measurement, and whether the generator can be trusted. It never judges the
//! service.

use std::fmt;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;

use super::checker::Checked;
use super::config::{Pace, RunConfig};
use super::counts::{Counts, failure};
use super::time_series::Interval;
use crate::latency;
use crate::machine::Machine;

/// All results of a measurement. Only `checked` includes the warm-up.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The settings of the measurement.
    pub config: RunConfig,
    /// From the end of the warm-up to the last answer; at least the configured duration.
    pub elapsed: Duration,
    /// Counts and latency of all threads.
    pub counts: Counts,
    /// The longest time without an answer.
    pub gap_max: Duration,
    /// Result of the check, if answers were checked.
    pub checked: Option<Checked>,
    /// Whether the generator could keep up.
    pub generator: Generator,
    /// Hiccups: how much longer than 1 ms each sleep of 1 ms took, nanoseconds.
    pub hiccups: Histogram<u64>,
    /// Answers by interval. The last intervals may lie after the end.
    pub intervals: Vec<Interval>,
    /// When the warm-up ended.
    pub started: SystemTime,
    /// Shares of the machine's processor time that were busy and stolen.
    pub cpu_shares: Option<(f64, f64)>,
    /// CPU time of each server process; `None` if unknown.
    pub server_cpu: Vec<(u32, Option<Duration>)>,
    /// The machine, and its load before the run.
    pub machine: Machine,
    /// Load averages after the run.
    pub load_after: Option<[f64; 3]>,
}

impl Measurement {
    /// Answers per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.counts.answers as f64 / self.elapsed.as_secs_f64()
    }

    /// Share of the requests that failed, `0.0..=1.0`; see [`failure::share`].
    #[must_use]
    pub fn failure_share(&self) -> f64 {
        failure::share(self.counts.failed(), self.counts.answers)
    }

    /// CPU time of a server process for each answer of the whole measurement.
    #[must_use]
    pub fn cpu_per_request(&self, cpu: Duration) -> Duration {
        cpu.div_f64((self.counts.answers as f64).max(1.0))
    }
}

/// How busy the generator was, and whether it was the bottleneck.
#[derive(Clone, Debug)]
pub struct Generator {
    /// Share of the time in which the busiest thread of the generator ran, or waited for a
    /// processor.
    pub busy: Option<f64>,
    /// Why the figures show the generator and not the service, if so.
    pub bottleneck: Option<Bottleneck>,
}

/// How the generator fell short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bottleneck {
    /// Closed loop: a thread was always busy, so the generator limits the rate.
    Saturated {
        /// Share of the time that the thread was busy.
        busy: f64,
    },
    /// Open loop: a thread had no time left, and requests were not sent when due.
    Overrun {
        /// Share of the time that the thread was busy.
        busy: f64,
        /// Share of the requests that waited for a connection or were never sent.
        late: f64,
    },
    /// Open loop: although a connection was free, requests were sent so late that the delay shows
    /// in the latency.
    Late {
        /// 99th percentile of the lateness.
        p99: Duration,
    },
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Saturated { busy } => write!(
                f,
                "a generator thread was busy {:.0} % of the time: the rate is the generator's; \
                 use more --threads, other cores or another host",
                busy * 100.0
            ),
            Self::Overrun { busy, late } => write!(
                f,
                "a generator thread was busy {:.0} % of the time and {:.1} % of the requests were \
                 not sent when they were due; lower --rate, or use more --threads or another host",
                busy * 100.0,
                late * 100.0
            ),
            Self::Late { p99 } => write!(
                f,
                "the generator sent 1 % of the requests more than {} late, which shows in the \
                 latency; leave it a core of its own",
                latency::shown(*p99)
            ),
        }
    }
}

impl Generator {
    pub(super) fn new(config: &RunConfig, counts: &Counts, busy: Option<f64>) -> Self {
        let bottleneck = match config.pace {
            Pace::Closed => busy.filter(|busy| *busy >= SATURATED_BUSY).map(saturated),
            Pace::Open { .. } => overrun(counts, busy).or_else(|| late(counts)),
        };
        Self { busy, bottleneck }
    }
}

fn saturated(busy: f64) -> Bottleneck {
    Bottleneck::Saturated { busy }
}

fn overrun(counts: &Counts, busy: Option<f64>) -> Option<Bottleneck> {
    let busy = busy.filter(|busy| *busy >= OVERRUN_BUSY)?;
    let late = counts.backlogged + counts.unsent;
    let all = late + counts.lateness_ns.len();
    let late = late as f64 / all.max(1) as f64;
    (late >= OVERRUN_LATE).then_some(Bottleneck::Overrun { busy, late })
}

fn late(counts: &Counts) -> Option<Bottleneck> {
    let p99 = latency::quantile(&counts.lateness_ns, 0.99);
    let shows = p99 * 2 >= latency::quantile(&counts.latency_ns, 0.99);
    (p99 >= LATE && shows).then_some(Bottleneck::Late { p99 })
}

/// If the busiest thread of a closed loop is busier than this, the figures measure the generator.
const SATURATED_BUSY: f64 = 0.95;
/// If the busiest thread of an open loop is busier than this, late requests are not the service's
/// fault.
const OVERRUN_BUSY: f64 = 0.9;
/// An overrun generator counts as the bottleneck if more than this share of the requests is late.
const OVERRUN_LATE: f64 = 0.01;
/// Lateness above this is more than the time to wake a sleeping thread on any machine.
const LATE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::super::config::Arrivals;
    use super::*;

    /// The generator's verdict on itself after 1000 requests, all with this latency and this
    /// lateness.
    fn said(
        pace: Pace,
        busy: Option<f64>,
        late: Duration,
        latency: Duration,
    ) -> Option<Bottleneck> {
        let config = RunConfig { pace, ..RunConfig::new(Vec::new()) };
        let mut counts = Counts::new();
        for _ in 0..1000 {
            latency::record(&mut counts.lateness_ns, late);
            latency::record(&mut counts.latency_ns, latency);
        }
        Generator::new(&config, &counts, busy).bottleneck
    }

    #[test]
    fn a_closed_loop_measures_itself_when_its_thread_never_waits() {
        let closed = |busy| said(Pace::Closed, busy, LATE * 10, LATE * 10);
        assert_eq!(closed(Some(0.96)), Some(Bottleneck::Saturated { busy: 0.96 }));
        assert_eq!(closed(Some(0.94)), None);
        assert_eq!(closed(None), None, "who spins is not judged by that");
    }

    #[test]
    fn an_open_loop_is_late_when_that_is_long_and_shows_in_the_latency() {
        let open = Pace::Open { rate: 1000.0, arrivals: Arrivals::Constant };
        let said = |late, latency| said(open, Some(0.1), late, latency);
        let found = said(LATE * 2, LATE * 3);
        assert!(matches!(found, Some(Bottleneck::Late { p99 }) if p99 >= LATE), "{found:?}");
        assert_eq!(said(LATE * 2, LATE * 5), None, "it is not what the latency consists of");
        assert_eq!(said(LATE / 2, LATE / 2), None, "waking up takes as long");
    }
}
