//! The setting `TIMESTAMP_FORMAT`: which timestamps a cluster gives. It never decides anything.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Which timestamps a cluster gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimestampFormat {
    /// Any epoch, and any index.
    #[default]
    Wide,
    /// Only timestamps with a compact spelling: see
    /// [`Timestamp::to_compact`](crate::Timestamp::to_compact).
    Compact,
}

impl TimestampFormat {
    /// Every format.
    pub const ALL: [Self; 2] = [Self::Wide, Self::Compact];

    /// The word for it in a setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Compact => "compact",
        }
    }
}

impl fmt::Display for TimestampFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no format of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the format of timestamps must be `wide` or `compact`")]
pub struct UnknownTimestampFormat;

impl FromStr for TimestampFormat {
    type Err = UnknownTimestampFormat;

    fn from_str(word: &str) -> Result<Self, UnknownTimestampFormat> {
        Self::ALL.into_iter().find(|it| it.name() == word).ok_or(UnknownTimestampFormat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_as_it_is_written_and_no_other_word_is_one() {
        for format in TimestampFormat::ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        for word in ["", "Wide", "compact ", "u64"] {
            assert_eq!(word.parse::<TimestampFormat>(), Err(UnknownTimestampFormat), "{word:?}");
        }
    }
}
