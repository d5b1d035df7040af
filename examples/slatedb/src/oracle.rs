//! Timestamps for a store: from the oracle, or by the planted mistake. Tests have a counter.

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use epicepoch_client::{Client, TimestampsError};

use crate::check::{Events, Stamp};
use crate::plant::Plant;

/// Takes timestamps from the oracle, or makes the planted mistake.
pub struct Oracle {
    source: Source,
    events: Arc<Events>,
    pub plant: Option<Plant>,
}

enum Source {
    /// A client of a cluster with compact timestamps.
    Client(Client),
    /// The last number that was given.
    #[cfg(test)]
    Counter(AtomicU64),
}

impl Oracle {
    /// Uses a client of a cluster with compact timestamps.
    pub fn new(client: Client, events: Arc<Events>, plant: Option<Plant>) -> Self {
        Self { source: Source::Client(client), events, plant }
    }

    /// Counts from here. It answers at once.
    #[cfg(test)]
    pub fn count_above(last: u64) -> Arc<Self> {
        let source = Source::Counter(AtomicU64::new(last));
        Arc::new(Self { source, events: Arc::default(), plant: None })
    }

    /// Takes a timestamp.
    pub async fn take(&self) -> Result<Stamp, TimestampsError> {
        let asked = self.events.next();
        let timestamp = if self.plant == Some(Plant::LocalClock) && asked.is_multiple_of(20) {
            let clock = SystemTime::now() + Duration::from_millis(20);
            let clock = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            ((clock.as_millis() as u64) << 18) | (asked % (1 << 18))
        } else {
            match &self.source {
                Source::Client(client) => client.compact_timestamp().await?,
                #[cfg(test)]
                Source::Counter(last) => last.fetch_add(1, Ordering::SeqCst) + 1,
            }
        };
        Ok(Stamp { timestamp, asked, got: self.events.next() })
    }
}
