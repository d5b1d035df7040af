//! Settings of leader leases. Two of them are only the first values of settings of the cluster.

use std::time::Duration;

use epicepoch_wire::Guarantee;

/// Settings of leader leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leases {
    /// Whether this node may take leases (`LEASE_CLOCK`). Default [`LeaseClock::Auto`].
    pub clock: LeaseClock,
    /// How long a leader may answer without a round (`LEASE_MS`); zero for never. Default never,
    /// because the order of timestamps then depends on the rates of clocks.
    pub length: Duration,
    /// The guarantee of requests that name none (`GUARANTEE_DEFAULT`). Default a quorum, because it
    /// depends on no clock.
    pub guarantee_default: Guarantee,
}

/// Whether a node may take leases. Every node waits for the leases of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseClock {
    /// Only on a machine that shows no sign of a hypervisor; some hypervisors hide every sign. The
    /// clock of a guest stands still while the guest is paused or moved, and its system does not
    /// notice.
    #[default]
    Auto,
    /// Always: the operator says that the clock never stands still while the process runs.
    Trusted,
    /// Never.
    Never,
}

impl LeaseClock {
    /// Reads `auto`, `trusted` or `never`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Auto, Self::Trusted, Self::Never].into_iter().find(|it| it.name() == text)
    }

    /// The text that [`Self::parse`] reads.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Trusted => "trusted",
            Self::Never => "never",
        }
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            clock: LeaseClock::Auto,
            length: Duration::ZERO,
            guarantee_default: Guarantee::Quorum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_leases_is_one_of_three_words() {
        for clock in [LeaseClock::Auto, LeaseClock::Trusted, LeaseClock::Never] {
            assert_eq!(LeaseClock::parse(clock.name()), Some(clock));
        }
        for word in ["", "Auto", "on", "vmclock", "trusted "] {
            assert_eq!(LeaseClock::parse(word), None, "{word}");
        }
    }
}
