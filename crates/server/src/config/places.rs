//! Where a node is, and where leaders should be.

use epicepoch_core::placement::Placement;
pub use epicepoch_wire::settings::LEADER_ZONES_MAX;
use epicepoch_wire::standing::Zone;

use super::ConfigError;

/// The zones of a list such as `a,b`, in its order, each once; `None` where it is no such list.
#[must_use]
pub fn zones(text: &str) -> Option<Vec<Zone>> {
    let mut zones = Vec::new();
    for name in text.split(',') {
        let zone = Zone::new(name.trim())?;
        if zones.contains(&zone) || zones.len() == LEADER_ZONES_MAX {
            return None;
        }
        zones.push(zone);
    }
    Some(zones)
}

/// A node that does not say where it is could not be preferred, nor handed over from in words.
pub(super) fn check(placement: &Placement) -> Result<(), ConfigError> {
    if !placement.leaders.is_empty() && placement.zone.is_none() {
        return Err(ConfigError::LeaderZonesWithoutZone);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_zones_has_each_once_and_no_slip_in_a_name() {
        let names = |text: &str| -> Option<Vec<String>> {
            Some(zones(text)?.iter().map(ToString::to_string).collect())
        };
        assert_eq!(names("b, a"), Some(vec!["b".to_owned(), "a".to_owned()]));
        for bad in ["", "a,", "a,a", "a b", "a;b", "1,2,3,4,5,6,7,8,9,10"] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }
}
