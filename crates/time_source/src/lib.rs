//! Clock readings with a bound of their error, from a source that states one. This version has the
//! source `fixed`, for tests: the bound is the operator's word. It never decides what a reading is
//! used for.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;

/// Which source states the bound of the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceSetting {
    /// The bound is always this one. For tests.
    Fixed(Duration),
}

/// A text that names no source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the source must be fixed=DURATION, such as fixed=1ms")]
pub struct BadSource;

impl FromStr for SourceSetting {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, BadSource> {
        let bound = text.strip_prefix("fixed=").ok_or(BadSource)?;
        let digits = bound.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let number: u64 = digits.parse().map_err(|_| BadSource)?;
        let bound = match &bound[digits.len()..] {
            "ns" => Duration::from_nanos(number),
            "us" => Duration::from_micros(number),
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            _ => return Err(BadSource),
        };
        Ok(Self::Fixed(bound))
    }
}

impl fmt::Display for SourceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bound) => write!(f, "fixed={}ns", bound.as_nanos()),
        }
    }
}

/// An interval that held true time when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// True time was not below this, Unix nanoseconds.
    pub earliest_ns: u64,
    /// True time was not above this, Unix nanoseconds.
    pub latest_ns: u64,
    /// Another number after the machine was paused or moved.
    pub disruption: u64,
}

/// Why a source gives no reading.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unknown {
    /// The clock of the machine is before 1970.
    #[error("the clock is before 1970")]
    BeforeEpoch,
}

/// Why a source cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {}

/// An open source.
#[derive(Debug)]
pub struct TimeSource {
    bound: Duration,
}

impl TimeSource {
    /// Opens a source.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(setting: &SourceSetting) -> Result<Self, OpenError> {
        match setting {
            SourceSetting::Fixed(bound) => Ok(Self { bound: *bound }),
        }
    }

    /// Reads the clock and its bound together.
    ///
    /// # Errors
    /// Why the bound is not known.
    pub fn read(&mut self) -> Result<Reading, Unknown> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| Unknown::BeforeEpoch)?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let earliest_ns = ns(now.saturating_sub(self.bound));
        Ok(Reading { earliest_ns, latest_ns: ns(now.saturating_add(self.bound)), disruption: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_source_is_read_as_it_is_written_and_has_this_bound() {
        let setting: SourceSetting = "fixed=2ms".parse().unwrap();
        assert_eq!(setting.to_string().parse(), Ok(setting.clone()));
        let reading = TimeSource::open(&setting).unwrap().read().unwrap();
        assert_eq!(reading.latest_ns - reading.earliest_ns, 4_000_000);
        for text in ["", "fixed", "fixed=", "fixed=1", "fixed=1h", "fixed=-1ms", "Fixed=1ms"] {
            assert_eq!(text.parse::<SourceSetting>(), Err(BadSource), "{text}");
        }
    }
}
