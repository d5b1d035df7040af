//! Readings of the machine's clock with a bound of their error, from a source that states one:
//! ClockBound's segment, chronyd's tracking, or an operator's word. The source and the clock are
//! read together. A bound that is not known is an error, and is never guessed.
//!
//! This crate never sets a clock, and never decides what a reading is used for.

mod chrony;
mod clock;
mod clockbound;
mod reading;
pub mod segment;
mod setting;
pub mod tracking;

use std::time::Duration;

pub use clock::raw_ns;
pub use reading::{OpenError, Reading, Unknown};
pub use setting::{BadSource, ChronyAddress, SourceSetting};

/// An open source.
#[derive(Debug)]
pub struct TimeSource(Inner);

#[derive(Debug)]
enum Inner {
    ClockBound(clockbound::ClockBound),
    Chrony(chrony::Chrony),
    Fixed(Duration),
}

impl TimeSource {
    /// Opens a source. After a disruption of ClockBound's clock, open it again.
    ///
    /// # Errors
    /// When the segment is missing, or has no valid content. A chronyd that does not run is an
    /// error of [`read`](Self::read), because it may start later.
    pub fn open(setting: &SourceSetting) -> Result<Self, OpenError> {
        Ok(Self(match setting {
            SourceSetting::ClockBound(path) => {
                Inner::ClockBound(clockbound::ClockBound::open(path)?)
            }
            SourceSetting::Chrony(address) => Inner::Chrony(chrony::Chrony::new(address.clone())),
            SourceSetting::Fixed(bound) => Inner::Fixed(*bound),
        }))
    }

    /// Whether the source is a file that its daemon may have replaced: open it again after an error.
    #[must_use]
    pub const fn is_of_segment(&self) -> bool {
        matches!(self.0, Inner::ClockBound(_))
    }

    /// Reads the clock and its bound together. Blocks for [`READ_MS_MAX`] at most.
    ///
    /// # Errors
    /// Why the bound is not known. Another read may succeed, except after
    /// [`Unknown::Disrupted`].
    pub fn read(&mut self) -> Result<Reading, Unknown> {
        match &mut self.0 {
            Inner::ClockBound(source) => source.read(),
            Inner::Chrony(source) => source.read(),
            Inner::Fixed(bound) => {
                let bound_ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
                Reading::around(clock::realtime()?, bound_ns, 0)
            }
        }
    }
}

/// The longest that a read blocks. Only `chrony` blocks: it waits for chronyd's answer.
pub const READ_MS_MAX: u64 = chrony::ANSWER_MS_MAX * chrony::TRIES as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_source_has_the_bound_of_its_setting() {
        let setting: SourceSetting = "fixed=2ms".parse().unwrap();
        let reading = TimeSource::open(&setting).unwrap().read().unwrap();
        assert_eq!(reading.latest_ns - reading.earliest_ns, 4_000_000);
    }
}
