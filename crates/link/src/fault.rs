//! What can be wrong with one direction of a link. Values only: nothing here happens.

use std::time::Duration;

/// What is wrong with one direction of a link; everything at once, if told so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// How much later everything arrives. Default none.
    pub delay: Duration,
    /// Up to this much is added to the delay, drawn from the seed for each piece that is read.
    /// Order is kept: what comes after a late piece is late, too. Default none.
    pub jitter: Duration,
    /// How fast bytes may go, all connections of this direction together. Default: no limit.
    pub pace: Option<Pace>,
    /// Whether anything goes through at all. Default: it does.
    pub cut: Cut,
}

/// Pieces of at most `bytes`, one every `every`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes of a piece; 0 counts as 1.
    pub bytes: usize,
    /// Between two pieces.
    pub every: Duration,
}

/// Whether a direction carries anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// It does.
    #[default]
    None,
    /// Nothing goes through and nothing is lost: it waits, in the sender's socket in the end, and
    /// arrives late when the link is good again. A cut cable under TCP, which sends again.
    Hold,
    /// Everything vanishes, ends of connections too, and nobody is told; connections stay open. A
    /// connection that lost bytes so is reset when the cut is over, never joined together again.
    Drop,
    /// Connections are reset, and so is every new one. A firewall that refuses.
    Reset,
}

impl Fault {
    /// A good link.
    pub const NONE: Self =
        Self { delay: Duration::ZERO, jitter: Duration::ZERO, pace: None, cut: Cut::None };

    /// Everything arrives this much later.
    #[must_use]
    pub const fn delay(delay: Duration) -> Self {
        Self { delay, ..Self::NONE }
    }

    /// Everything arrives up to this much later.
    #[must_use]
    pub const fn jitter(jitter: Duration) -> Self {
        Self { jitter, ..Self::NONE }
    }

    /// So many bytes in a second, a hundredth of them at a time.
    #[must_use]
    pub const fn bandwidth(bytes_per_second: usize) -> Self {
        // Of a link that is slower than a hundred bytes, one byte at a time.
        let (bytes, every) = match bytes_per_second {
            0 => return Self::cut(Cut::Hold),
            1..=PIECES_PER_SECOND => (1, 1_000_000 / bytes_per_second),
            _ => (bytes_per_second / PIECES_PER_SECOND, 1_000_000 / PIECES_PER_SECOND),
        };
        Self::trickle(bytes, Duration::from_micros(every as u64))
    }

    /// A few bytes at a time.
    #[must_use]
    pub const fn trickle(bytes: usize, every: Duration) -> Self {
        Self { pace: Some(Pace { bytes, every }), ..Self::NONE }
    }

    /// Nothing goes through.
    #[must_use]
    pub const fn cut(cut: Cut) -> Self {
        Self { cut, ..Self::NONE }
    }

    /// Everything vanishes silently: a machine that lost power, a cable that was pulled.
    #[must_use]
    pub const fn blackhole() -> Self {
        Self::cut(Cut::Drop)
    }
}

/// Pieces into which a second's bandwidth is cut.
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
