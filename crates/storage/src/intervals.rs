//! What a data directory remembers of interval mode: the mark, and the change of the mode for which
//! this node has stopped giving interval timestamps (S23, S26). It decides nothing.

use redb::Table;

/// The key of the mark.
pub(crate) const MARK_KEY: &str = "interval mark";
/// The key of the change for which this node has stopped.
pub(crate) const CLOSED_KEY: &str = "intervals closed";

/// What is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// The mark (S23): no interval timestamp was given above it, Unix nanoseconds. 0 if there is none.
    pub mark_ns: u64,
    /// The change for which this node has stopped (S26); 0 for none. It never goes back.
    pub closed: u64,
}

/// What a transaction changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalsWrite {
    /// The new mark, Unix nanoseconds. It may be lower than the last one: a run that ends writes the
    /// exact mark.
    pub mark_ns: Option<u64>,
    /// The change for which this node has stopped.
    pub closed: Option<u64>,
}

impl IntervalsWrite {
    /// Whether nothing changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.mark_ns.is_none() && self.closed.is_none()
    }
}

impl Intervals {
    /// What is on the disk after a write.
    pub(crate) fn after(self, write: IntervalsWrite) -> Self {
        // A node that was started again may apply an earlier change once more.
        let closed = self.closed.max(write.closed.unwrap_or(0));
        Self { mark_ns: write.mark_ns.unwrap_or(self.mark_ns), closed }
    }

    /// Writes what differs from `before`.
    pub(crate) fn write(
        self,
        before: Self,
        state: &mut Table<'_, &'static str, &'static [u8]>,
    ) -> Result<(), redb::Error> {
        if self.mark_ns != before.mark_ns {
            state.insert(MARK_KEY, self.mark_ns.to_le_bytes().as_slice())?;
        }
        if self.closed != before.closed {
            state.insert(CLOSED_KEY, self.closed.to_le_bytes().as_slice())?;
        }
        Ok(())
    }
}
