//! A range of epochs, which apply assigns and a leader stamps in.

use epicepoch_wire::Epoch;

/// A range of epochs, `(low, high]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRange {
    /// The ceiling before the assignment. It is not in the range.
    pub low: Epoch,
    /// The last epoch of the range.
    pub high: Epoch,
}

impl EpochRange {
    /// Whether `epoch` is in the range.
    #[must_use]
    pub fn contains(&self, epoch: Epoch) -> bool {
        self.low < epoch && epoch <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_above_its_low_end_and_holds_its_high_end() {
        let range = EpochRange { low: Epoch(10), high: Epoch(12) };
        let inside = (9..14).filter(|epoch| range.contains(Epoch(*epoch))).collect::<Vec<_>>();
        assert_eq!(inside, [11, 12]);
    }
}
