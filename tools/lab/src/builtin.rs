//! The topologies that the binary has. Their files are in `tools/lab/topologies`.

use crate::file;
use crate::topology::Topology;

/// Name and text of each topology, from the shortest links to the longest.
pub const BUILT_IN: [(&str, &str); 7] = [
    ("one-zone", include_str!("../topologies/one-zone.toml")),
    ("three-zones", include_str!("../topologies/three-zones.toml")),
    ("five-in-three", include_str!("../topologies/five-in-three.toml")),
    ("two-near-one-far", include_str!("../topologies/two-near-one-far.toml")),
    ("two-dc-50ms", include_str!("../topologies/two-dc-50ms.toml")),
    ("three-regions", include_str!("../topologies/three-regions.toml")),
    ("two-and-two", include_str!("../topologies/two-and-two.toml")),
];

/// The built-in topology of this name.
#[must_use]
pub fn find(name: &str) -> Option<Topology> {
    let (_, text) = BUILT_IN.iter().find(|(it, _)| *it == name)?;
    Some(file::parse(text).expect("a built-in topology is valid, as a test shows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_topology_is_valid_and_has_its_name() {
        for (name, _) in BUILT_IN {
            let topology = find(name).expect("it is there");
            assert_eq!(topology.name, name);
            assert!(!topology.about.is_empty());
        }
        assert_eq!(find("four-zones"), None);
    }
}
