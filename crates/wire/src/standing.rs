//! What a voter says of itself with each answer to a heartbeat, so that its leader knows whom it may
//! hand leadership to: where it is, and whether it could lead. It travels in the context of the
//! message, which the library has no use for there; a node without a zone says nothing.

use std::fmt;

use crate::cursor::{DecodeError, Reader, Writer};

/// Longest name of a zone, bytes: with the rest it fits into the context of a message. With what a name
/// may be ([`Zone::new`]) it is part of format 3 of the replicated state, whose settings hold zones
/// ([`ClusterSettings::read`](crate::settings::ClusterSettings::read)): another length, or other letters,
/// are another format.
pub const ZONE_LEN_MAX: usize = 32;
/// What the first byte says. A later version may say more behind what is known here.
const VERSION: u8 = 1;

/// A place that machines share: a data centre, an availability zone. 1 to [`ZONE_LEN_MAX`] letters,
/// digits, `.`, `_`, `-`, because it appears in logs and in lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(String);

impl Zone {
    /// A zone of this name; `None` where it is no name of one.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_name = (1..=ZONE_LEN_MAX).contains(&name.len()) && name.bytes().all(is_plain);
        is_name.then(|| Self(name.to_owned()))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it reaches a majority of the voters, and its disk keeps up.
    pub is_fit: bool,
    /// A checksum of the zones that it prefers leaders in, in their order; two that differ do not
    /// agree on who should lead.
    pub preference: u32,
    /// Where it is.
    pub zone: Zone,
}

impl Standing {
    /// As the context of a message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10 + self.zone.0.len());
        out.put_u8(VERSION);
        out.put_u8(u8::from(self.is_fit));
        out.put_u32(self.preference);
        out.put_bytes(self.zone.0.as_bytes());
        out
    }

    /// Reads a context. What a later version says behind it is passed over.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(context: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(context);
        let version = reader.u8("version")?;
        if version == 0 {
            return Err(DecodeError::BadValue { field: "version", value: 0 });
        }
        let flags = reader.u8("flags")?;
        let preference = reader.u32("preference")?;
        let name = reader.text("zone", ZONE_LEN_MAX)?;
        let zone = Zone::new(&name);
        let zone = zone.ok_or(DecodeError::BadValue { field: "zone", value: name.len() as u64 })?;
        Ok(Self { is_fit: flags & 1 == 1, preference, zone })
    }
}

/// A checksum of zones in their order; 0 for none.
#[must_use]
pub fn preference_of(zones: &[Zone]) -> u32 {
    if zones.is_empty() {
        return 0;
    }
    let names: Vec<&str> = zones.iter().map(Zone::name).collect();
    crc32fast::hash(names.join(",").as_bytes()).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::raft_message::CONTEXT_LEN_MAX;

    proptest! {
        #[test]
        fn a_standing_round_trips_and_fits_into_a_context(
            is_fit: bool, preference: u32, name in "[a-zA-Z0-9._-]{1,32}", more: u8,
        ) {
            let zone = Zone::new(&name).expect("a name");
            let standing = Standing { is_fit, preference, zone };
            let mut bytes = standing.encode();
            prop_assert!(bytes.len() <= CONTEXT_LEN_MAX);
            prop_assert_eq!(Standing::decode(&bytes), Ok(standing.clone()));
            bytes.push(more);
            prop_assert_eq!(Standing::decode(&bytes), Ok(standing));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = Standing::decode(&bytes);
        }
    }

    #[test]
    fn a_zone_has_a_name_that_lists_can_show() {
        for bad in ["", "a b", "a,b", "ü", &"a".repeat(ZONE_LEN_MAX + 1)] {
            assert_eq!(Zone::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_order_of_zones_is_part_of_what_is_preferred() {
        let zones = |names: &[&str]| -> Vec<Zone> {
            names.iter().map(|name| Zone::new(name).expect("a name")).collect()
        };
        assert_eq!(preference_of(&[]), 0);
        assert_ne!(preference_of(&zones(&["a", "b"])), preference_of(&zones(&["b", "a"])));
        assert_ne!(preference_of(&zones(&["a"])), 0);
    }
}
