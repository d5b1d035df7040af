//! The setting `MODE`: whether the leader gives timestamps after a quorum has confirmed it, or every
//! node gives its own with an interval. It never decides anything.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How a cluster gives timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The leader gives timestamps, at `/timestamp`.
    #[default]
    Quorum,
    /// Every node gives timestamps within the bound of its clock, at `/interval`.
    Interval,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 2] = [Self::Quorum, Self::Interval];

    /// The word for it in a setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Interval => "interval",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the mode must be `quorum` or `interval`")]
pub struct UnknownMode;

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|it| it.name() == word).ok_or(UnknownMode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written_and_no_other_word_is_one() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for word in ["", "Quorum", "interval ", "intervals"] {
            assert_eq!(word.parse::<Mode>(), Err(UnknownMode), "{word:?}");
        }
    }
}
