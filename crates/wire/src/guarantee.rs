//! What a request asks to be proved before it is answered, and what has proved an answer. Both are
//! words of the HTTP interface. This module never proves anything.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The guarantee that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// The order of answers never depends on a clock: a round asks a quorum.
    #[default]
    Quorum,
    /// A leader lease may prove the answer, without a round. The order then depends on the rates of
    /// two clocks. Without a lease, a round proves the answer.
    Lease,
}

impl Guarantee {
    /// The word for it in a query or a setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Lease => "lease",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the guarantee must be `quorum` or `lease`")]
pub struct UnknownGuarantee;

impl FromStr for Guarantee {
    type Err = UnknownGuarantee;

    fn from_str(word: &str) -> Result<Self, UnknownGuarantee> {
        [Self::Quorum, Self::Lease].into_iter().find(|it| it.name() == word).ok_or(UnknownGuarantee)
    }
}

/// What has proved an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProvedBy {
    /// A quorum of the voters, in a round.
    Round,
    /// The lease of the leader.
    Lease,
}

impl ProvedBy {
    /// The word for it in a header or a metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Lease => "lease",
        }
    }
}

impl fmt::Display for ProvedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarantee_is_read_as_it_is_written_and_no_other_word_is_one() {
        for guarantee in [Guarantee::Quorum, Guarantee::Lease] {
            assert_eq!(guarantee.to_string().parse(), Ok(guarantee));
        }
        for word in ["", "Lease", "lease ", "round", "quorum,lease"] {
            assert_eq!(word.parse::<Guarantee>(), Err(UnknownGuarantee), "{word:?}");
        }
        assert_eq!(Guarantee::default(), Guarantee::Quorum);
        let words = [ProvedBy::Round, ProvedBy::Lease].map(|by| by.to_string());
        assert_eq!(words, ["round", "lease"]);
    }
}
