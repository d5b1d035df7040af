//! Zones: where a node is, and where leaders should be, in order of preference. This module only
//! ranks zones. The leader decides whether and when to hand over ([`crate::replica`]).

use epicepoch_wire::voter_status::{Zone, preference_of};

/// A node's zone, and the zones for leaders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The zone of this node.
    pub zone: Option<Zone>,
    /// Zones for leaders, the best first. A zone that is not listed ranks below all that are.
    pub leaders: Vec<Zone>,
}

impl Placement {
    /// The rank of a zone; 0 is the best.
    #[must_use]
    pub fn rank(&self, zone: Option<&Zone>) -> usize {
        let at = self.leaders.iter().position(|leader| Some(leader) == zone);
        at.unwrap_or(self.leaders.len())
    }

    /// The rank of this node's own zone.
    #[must_use]
    pub fn own_rank(&self) -> usize {
        self.rank(self.zone.as_ref())
    }

    /// A digest of the preference: equal on nodes that prefer the same.
    #[must_use]
    pub fn preference(&self) -> u32 {
        preference_of(&self.leaders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_zones_come_in_their_order_and_all_others_after_them() {
        let zone = |name: &str| Zone::new(name).expect("a name");
        let (a, b, c) = (zone("a"), zone("b"), zone("c"));
        let placement = Placement { zone: Some(b.clone()), leaders: vec![a.clone(), b.clone()] };
        let ranks = [Some(&a), Some(&b), Some(&c), None].map(|zone| placement.rank(zone));
        assert_eq!((ranks, placement.own_rank()), ([0, 1, 2, 2], 1));
        assert_eq!(Placement::default().own_rank(), 0, "nothing is preferred: all are best");
    }
}
