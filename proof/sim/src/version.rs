//! The formats that a node's version reads.

use epicepoch_core::state::FORMATS;

/// Which formats a node reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    /// The newest format that the node reads.
    pub(crate) reads: u32,
    /// The newest format that the node has ever read. It is above `reads` after an operator has
    /// rolled the node back.
    best: u32,
}

impl Default for Version {
    fn default() -> Self {
        Self::of(FORMATS.newest)
    }
}

impl Version {
    pub(crate) const fn of(reads: u32) -> Self {
        Self { reads, best: reads }
    }

    pub(crate) const fn is_rolled_back(self) -> bool {
        self.reads < self.best
    }

    pub(crate) fn install(&mut self, reads: u32) {
        self.reads = reads;
        self.best = self.best.max(reads);
    }
}
