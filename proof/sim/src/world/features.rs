//! The features of a run: versions of nodes, zones, restores and more. Each feature is drawn
//! independently, so any set of them can occur together. The draws come from a separate stream, so
//! that a new feature does not change the run's other draws.

use crate::world::World;

/// A feature that only some runs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Operators take backups, lose all data, and go on from a backup.
    Restores = 1,
    /// Nodes read different formats, and are updated or rolled back.
    Versions,
    /// Operators change settings of the cluster.
    Settings,
    /// Operators move the epoch.
    Advances,
    /// Nodes are in zones, and leaders should be in some of these zones.
    Zones,
    /// Spare nodes have empty directories until they are added.
    EmptyDirectories,
    /// The last of the first members has missed the founding.
    MissedFounding,
    /// Nodes often start at new addresses.
    Moves,
    /// For a while nodes accept no new client, because they have no file descriptor left.
    FailingAccepts,
    /// Nodes are told to stop some time before they end.
    Shutdowns,
    /// Some clients run the session of the Rust client.
    Sessions,
    /// Members tell a removed node of its removal, and it ends.
    RemovalNotices,
    /// The confirm links of each worker connect, end and fill up by themselves.
    ConfirmLinks,
    /// The cluster has leases, and requests ask for them.
    Leases,
    /// The cluster gives compact timestamps, from its foundation or since an operator's command, and
    /// some requests ask for most of a millisecond.
    Compact,
    /// Nodes that do not lead send requests on to the leader.
    Forwarding,
    /// Consensus planes are busy: they handle several events before they do the actions of these.
    Turns,
}

impl Feature {
    /// One in this many runs has the feature.
    const fn one_in(self) -> u64 {
        match self {
            Self::Settings | Self::Sessions | Self::Leases => 2,
            Self::Versions
            | Self::Compact
            | Self::Advances
            | Self::Zones
            | Self::EmptyDirectories
            | Self::Shutdowns
            | Self::RemovalNotices
            | Self::ConfirmLinks
            | Self::Forwarding
            | Self::Turns => 4,
            Self::Restores | Self::MissedFounding | Self::FailingAccepts => 8,
            Self::Moves => 16,
        }
    }

    /// Whether the run of this seed has the feature.
    pub(crate) const fn is_of(self, seed: u64) -> bool {
        hashed(seed, self as u64).is_multiple_of(self.one_in())
    }
}

impl World {
    /// Whether this run has the feature.
    pub(crate) const fn has(&self, feature: Feature) -> bool {
        feature.is_of(self.seed())
    }

    /// Whether `salt` selects this run. A salt selects one in `one_in` runs.
    pub(crate) const fn is_in(&self, salt: u64, one_in: u64) -> bool {
        self.hashed(salt).is_multiple_of(one_in)
    }

    /// A number that depends only on the seed and `salt`. The numbers of two salts are independent.
    pub(crate) const fn hashed(&self, salt: u64) -> u64 {
        hashed(self.seed(), salt)
    }
}

const fn hashed(seed: u64, salt: u64) -> u64 {
    mixed(mixed(seed).wrapping_add(salt))
}

/// Salts of other draws that depend on the seed alone. For a draw that each node makes, the node's
/// salt is the draw's salt plus [`SALTS`] times the node id.
pub(crate) const VERSIONS: u64 = 101;
pub(crate) const ZONES: u64 = 102;
pub(crate) const BELIEVED: u64 = 103;
pub(crate) const SPARED: u64 = 104;
pub(crate) const LINKLESS: u64 = 105;
pub(crate) const LEASES: u64 = 106;
pub(crate) const LEASE_CLOCKS: u64 = 107;
pub(crate) const COMPACT: u64 = 108;
pub(crate) const SALTS: u64 = 1_000;

/// The output function of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014): every bit of `number` changes about half of its bits.
const fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Feature; 17] = [
        Feature::Restores,
        Feature::Versions,
        Feature::Settings,
        Feature::Advances,
        Feature::Zones,
        Feature::EmptyDirectories,
        Feature::MissedFounding,
        Feature::Moves,
        Feature::FailingAccepts,
        Feature::Shutdowns,
        Feature::Sessions,
        Feature::RemovalNotices,
        Feature::ConfirmLinks,
        Feature::Leases,
        Feature::Compact,
        Feature::Forwarding,
        Feature::Turns,
    ];

    #[test]
    fn any_two_features_meet_as_often_as_chance_has_it() {
        const SEEDS: u64 = 20_000;
        let world = |seed| World::new(seed, 1, 0, None);
        let had: Vec<Vec<bool>> =
            (0..SEEDS).map(|seed| ALL.map(|it| world(seed).has(it)).to_vec()).collect();
        let times = |is_it: &dyn Fn(&Vec<bool>) -> bool| had.iter().filter(|it| is_it(it)).count();
        for (a, one) in ALL.into_iter().enumerate() {
            for (b, other) in ALL.into_iter().enumerate().skip(a + 1) {
                let expected = (SEEDS / one.one_in() / other.one_in()) as usize;
                let both = times(&|it| it[a] && it[b]);
                let range = expected * 7 / 10..=expected * 13 / 10;
                assert!(
                    range.contains(&both),
                    "{one:?} meets {other:?} {both} times of {expected}"
                );
            }
        }
        assert!(times(&|it| it[..6].iter().all(|has| *has)) > 0, "six at once");
    }
}
