//! Faults of one direction of a link, as plain values.

use std::time::Duration;

/// The fault of one direction. Several of its parts may be set at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Delay of every byte. Default none.
    pub delay: Duration,
    /// The longest random delay in addition to `delay`. It is drawn from the seed for each piece
    /// that is read. Pieces keep their order, so a late piece delays the pieces behind it. Default
    /// none.
    pub jitter: Duration,
    /// The rate limit, which all connections of this direction share. Default none.
    pub pace: Option<Pace>,
    /// Whether the direction is cut, and how. Default [`Cut::None`].
    pub cut: Cut,
}

/// A rate limit: one piece of at most `bytes` bytes in each time `every`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Length of a piece; 0 counts as 1.
    pub bytes: usize,
    /// Time between two pieces.
    pub every: Duration,
}

/// Whether a direction is cut, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// The direction is not cut.
    #[default]
    None,
    /// Nothing goes through and nothing is lost. Bytes wait in the proxy, and when the proxy is
    /// full, in the sender's socket. They arrive when the cut ends. This is like a cable that is
    /// cut for a while, because TCP sends lost bytes again.
    Hold,
    /// All bytes vanish silently, and so do the ends of connections. Connections stay open. A
    /// connection that lost bytes is reset when the cut ends.
    Drop,
    /// All connections are reset, also new ones. This is like a firewall that refuses connections.
    Reset,
}

impl Fault {
    /// No fault at all.
    pub const NONE: Self =
        Self { delay: Duration::ZERO, jitter: Duration::ZERO, pace: None, cut: Cut::None };

    /// A fault that delays every byte by `delay`.
    #[must_use]
    pub const fn delay(delay: Duration) -> Self {
        Self { delay, ..Self::NONE }
    }

    /// A fault with a random delay of up to `jitter`.
    #[must_use]
    pub const fn jitter(jitter: Duration) -> Self {
        Self { jitter, ..Self::NONE }
    }

    /// A fault that lets `bytes_per_second` through, in a hundred pieces a second.
    #[must_use]
    pub const fn bandwidth(bytes_per_second: usize) -> Self {
        // Below a hundred bytes a second, each piece is one byte.
        let (bytes, every) = match bytes_per_second {
            0 => return Self::cut(Cut::Hold),
            1..=PIECES_PER_SECOND => (1, 1_000_000 / bytes_per_second),
            _ => (bytes_per_second / PIECES_PER_SECOND, 1_000_000 / PIECES_PER_SECOND),
        };
        Self::trickle(bytes, Duration::from_micros(every as u64))
    }

    /// A fault that lets a few bytes through at a time.
    #[must_use]
    pub const fn trickle(bytes: usize, every: Duration) -> Self {
        Self { pace: Some(Pace { bytes, every }), ..Self::NONE }
    }

    /// A fault that cuts the direction.
    #[must_use]
    pub const fn cut(cut: Cut) -> Self {
        Self { cut, ..Self::NONE }
    }

    /// A fault in which all bytes vanish silently, as after a power loss or a pulled cable.
    #[must_use]
    pub const fn blackhole() -> Self {
        Self::cut(Cut::Drop)
    }
}

/// How many pieces per second a bandwidth limit lets through.
const PIECES_PER_SECOND: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_is_a_pace_of_a_hundred_pieces_a_second() {
        let pace = |bytes| Fault::bandwidth(bytes).pace.unwrap();
        let ms = Duration::from_millis;
        assert_eq!(pace(64_000), Pace { bytes: 640, every: ms(10) });
        assert_eq!(pace(20), Pace { bytes: 1, every: ms(50) });
        assert_eq!(Fault::bandwidth(0).cut, Cut::Hold);
    }
}
