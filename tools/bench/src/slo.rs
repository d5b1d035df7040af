//! Promises about a measurement, and whether they were kept. If the generator was the bottleneck,
//! there is no verdict.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::latency;
use crate::run::Measurement;

/// Promises, as in `p99=1ms,p99.99=5ms,max=20ms,gap=300ms,errors=0.1%`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slo(Vec<Promise>);

/// One promise: a figure and its upper limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    /// The latency at this quantile.
    Quantile(f64, Duration),
    Max(Duration),
    Mean(Duration),
    /// The longest time without an answer.
    Gap(Duration),
    /// Share of the requests that failed.
    Errors(f64),
}

/// A promise and the measured value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The promise as text.
    pub promise: String,
    /// The measured value.
    pub measured: String,
    /// Whether the promise was kept.
    pub kept: bool,
}

/// Why a text is not a promise.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is no promise; allowed are p50=1ms (any percentile), max=, mean=, gap= with a time such \
     as 800us, 1.5ms or 2s, and errors=0.1%, separated by commas"
)]
pub struct SloError(String);

impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let promises = text.split(',').take(PROMISES_MAX + 1).map(|part| {
            let part = part.trim();
            promise(part).ok_or_else(|| SloError(part.to_owned()))
        });
        let promises: Vec<Promise> = promises.collect::<Result<_, _>>()?;
        if promises.len() > PROMISES_MAX {
            return Err(SloError(text.to_owned()));
        }
        Ok(Self(promises))
    }
}

fn promise(text: &str) -> Option<Promise> {
    let (name, value) = text.split_once('=')?;
    Some(match name {
        "max" => Promise::Max(time(value)?),
        "mean" => Promise::Mean(time(value)?),
        "gap" => Promise::Gap(time(value)?),
        "errors" => Promise::Errors(number(value.strip_suffix('%')?, 100.0)? / 100.0),
        _ => {
            let share = number(name.strip_prefix('p')?, 100.0)? / 100.0;
            Promise::Quantile(share, time(value)?)
        }
    })
}

fn time(text: &str) -> Option<Duration> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (digits, unit) =
        units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    Some(Duration::from_secs_f64(number(digits, 1e12)? * unit))
}

/// Parses a decimal number from 0 to `max`.
fn number(text: &str, max: f64) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = text.parse().ok().filter(|_| plain)?;
    (number <= max).then_some(number)
}

impl Slo {
    /// Judges every promise. Without an answer, no promise about latency is kept.
    #[must_use]
    pub fn judge(&self, measurement: &Measurement) -> Vec<Judged> {
        let latencies = &measurement.counts.latency_ns;
        let judge = |promise: &Promise| {
            let nanos = Duration::from_nanos;
            let (measured, limit) = match promise {
                Promise::Quantile(share, limit) => (latency::quantile(latencies, *share), *limit),
                Promise::Max(limit) => (nanos(latencies.max()), *limit),
                Promise::Mean(limit) => (nanos(latencies.mean() as u64), *limit),
                Promise::Gap(limit) => (measurement.gap_max, *limit),
                Promise::Errors(limit) => {
                    let share = measurement.failure_share();
                    return Judged {
                        promise: promise.to_string(),
                        measured: format!("{:.4} %", share * 100.0),
                        kept: share <= *limit,
                    };
                }
            };
            let kept = measured <= limit && !latencies.is_empty();
            Judged { promise: promise.to_string(), measured: latency::shown(measured), kept }
        };
        self.0.iter().map(judge).collect()
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Rounded, because 99.9 / 100 * 100 is not 99.9.
            Self::Quantile(share, limit) => {
                write!(f, "p{} <= {}", (share * 1e8).round() / 1e6, latency::shown(*limit))
            }
            Self::Max(limit) => write!(f, "max <= {}", latency::shown(*limit)),
            Self::Mean(limit) => write!(f, "mean <= {}", latency::shown(*limit)),
            Self::Gap(limit) => write!(f, "gap <= {}", latency::shown(*limit)),
            Self::Errors(share) => write!(f, "errors <= {} %", (share * 1e8).round() / 1e6),
        }
    }
}

/// Most promises in one text.
const PROMISES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read_with_their_units() {
        let slo: Slo = "p99=1ms, p99.99=1.5ms,max=2s,mean=800us,gap=300ms,errors=0.1%"
            .parse()
            .expect("promises");
        let shown: Vec<String> = slo.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "p99 <= 1.00 ms",
                "p99.99 <= 1.50 ms",
                "max <= 2.00 s",
                "mean <= 800 us",
                "gap <= 300 ms",
                "errors <= 0.1 %"
            ]
        );
    }

    #[test]
    fn what_is_no_promise_is_named() {
        for bad in ["", "p99", "p99=1", "p101=1ms", "p=1ms", "max=-1ms", "errors=1", "errors=NaN%"]
        {
            assert_eq!(bad.parse::<Slo>(), Err(SloError(bad.to_owned())), "{bad}");
        }
        assert!("max=1ms,".repeat(40).trim_end_matches(',').parse::<Slo>().is_err());
    }
}
