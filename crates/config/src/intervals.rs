//! Settings of interval mode that belong to one node and its clock. The mode itself is a setting of
//! the cluster, which only a command sets.

use std::time::Duration;

use epicepoch_time_source::SourceSetting;

/// Settings of interval mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// The source that states the bound of this machine's clock (`INTERVAL_SOURCE`), a text that
    /// [`SourceSetting`] reads. Default none: a node that names none gives no interval timestamps.
    pub source: Option<String>,
    /// The largest bound with which this node gives interval timestamps (`INTERVAL_BOUND_MAX_MS`).
    /// Default 10 ms: a machine with plain NTP has less, and clients wait for twice the bound.
    pub bound_max: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { source: None, bound_max: Duration::from_millis(10) }
    }
}

impl Intervals {
    /// Sets the source; `None` if there is no source with this name.
    pub(crate) fn set_source(&mut self, text: &str) -> Option<()> {
        text.parse::<SourceSetting>().ok()?;
        self.source = Some(text.to_owned());
        Some(())
    }
}
