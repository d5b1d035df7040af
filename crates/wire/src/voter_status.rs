//! The status of a voter in its answers to heartbeats: its zone, whether it could lead, whether it
//! would wait for leases, and how long its writes took. The leader uses it to choose a successor. The status travels in the
//! context of the message, which the library does not use in answers to heartbeats. Older
//! versions (0.2.0 and before) send it only with a zone, and ignore a status without one.

use std::fmt;

use crate::cursor::{DecodeError, Reader, Writer};

/// Longest name of a zone, in bytes. With such a name, the whole status still fits into the context
/// of a message. This limit and the allowed characters of a name ([`Zone::new`]) belong to format 3
/// of the replicated state, because the state contains zones in its settings
/// ([`ClusterSettings::read`](crate::settings::ClusterSettings::read)).
pub const ZONE_LEN_MAX: usize = 32;
/// The first byte of an encoded status is this version number. Later versions may append fields.
const VERSION: u8 = 1;

/// A location that machines share, such as a data centre or an availability zone. Its name has 1 to
/// [`ZONE_LEN_MAX`] letters, digits, `.`, `_`, `-`, because it appears in logs and lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(String);

impl Zone {
    /// Returns the zone with this name; `None` if the name is not valid.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_name = (1..=ZONE_LEN_MAX).contains(&name.len()) && name.bytes().all(is_plain);
        is_name.then(|| Self(name.to_owned()))
    }

    /// The zone's name.
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

/// The status of a voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterStatus {
    /// Whether the voter could lead: it reaches a majority of the voters, and its disk keeps up.
    pub is_fit: bool,
    /// Checksum of the voter's `LEADER_ZONES`, in order. If two nodes have different checksums,
    /// they do not agree on where leaders should be.
    pub preference: u32,
    /// The voter's zone; `None` if it has none.
    pub zone: Option<Zone>,
    /// The longest that one of the voter's last durable writes took, or has waited so far,
    /// milliseconds. `None` from older versions.
    pub slowest_write_ms: Option<u16>,
    /// Whether the voter would wait for leases of former leaders if it led now. Older versions say
    /// nothing of it, and it is `false`.
    pub waits_for_leases: bool,
    /// The change of the mode for which the node has stopped giving interval timestamps; `None` if it
    /// has not. Not only voters say it.
    pub closed: Option<Closed>,
}

/// A node's word that it has stopped giving interval timestamps, durably: it gives none until it has
/// applied a later change of the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The number of the change for which it has stopped.
    pub change: u64,
    /// None of its timestamps is above this time, Unix nanoseconds.
    pub given_ns: u64,
}

/// Bit of the flags: the voter could lead.
const IS_FIT: u8 = 1;
/// Bit of the flags: the time of the slowest write follows the zone.
const HAS_SLOWEST_WRITE: u8 = 2;
/// Bit of the flags: the voter would wait for leases.
const WAITS_FOR_LEASES: u8 = 4;
/// Bit of the flags: the change of the mode for which the node has stopped follows the others.
const HAS_CLOSED: u8 = 8;

impl VoterStatus {
    /// Encodes the status as the context of a message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let zone = self.zone.as_ref().map_or("", Zone::name);
        let mut out = Vec::with_capacity(28 + zone.len());
        let fit = if self.is_fit { IS_FIT } else { 0 };
        let slowest = self.slowest_write_ms.map_or(0, |_| HAS_SLOWEST_WRITE);
        let waits = if self.waits_for_leases { WAITS_FOR_LEASES } else { 0 };
        out.put_u8(VERSION);
        let closed = self.closed.map_or(0, |_| HAS_CLOSED);
        out.put_u8(fit | slowest | waits | closed);
        out.put_u32(self.preference);
        out.put_bytes(zone.as_bytes());
        if let Some(ms) = self.slowest_write_ms {
            out.put_u16(ms);
        }
        if let Some(Closed { change, given_ns }) = self.closed {
            out.put_u64(change);
            out.put_u64(given_ns);
        }
        out
    }

    /// Decodes the status from the context of a message. Skips what later versions append.
    ///
    /// # Errors
    /// The bytes are not a valid status.
    pub fn decode(context: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(context);
        let version = reader.u8("version")?;
        if version == 0 {
            return Err(DecodeError::BadValue { field: "version", value: 0 });
        }
        let flags = reader.u8("flags")?;
        let preference = reader.u32("preference")?;
        let name = reader.text("zone", ZONE_LEN_MAX)?;
        let bad_zone = DecodeError::BadValue { field: "zone", value: name.len() as u64 };
        let zone = if name.is_empty() { None } else { Some(Zone::new(&name).ok_or(bad_zone)?) };
        let has_slowest = flags & HAS_SLOWEST_WRITE != 0;
        let slowest_write_ms = if has_slowest { Some(reader.u16("slowest write")?) } else { None };
        let (is_fit, waits_for_leases) = (flags & IS_FIT != 0, flags & WAITS_FOR_LEASES != 0);
        let has_closed = flags & HAS_CLOSED != 0;
        let closed = if has_closed {
            let change = reader.u64("change of the mode")?;
            Some(Closed { change, given_ns: reader.u64("highest time given")? })
        } else {
            None
        };
        Ok(Self { is_fit, preference, zone, slowest_write_ms, waits_for_leases, closed })
    }
}

/// Returns a checksum of the zones in their order; 0 if there are none.
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
        fn a_status_round_trips_and_fits_into_a_context(
            is_fit: bool, preference: u32, name in "[a-zA-Z0-9._-]{0,32}", more: u8,
            slowest_write_ms: Option<u16>, waits_for_leases: bool, closed: Option<(u64, u64)>,
        ) {
            let closed = closed.map(|(change, given_ns)| Closed { change, given_ns });
            let zone = Zone::new(&name);
            let status =
                VoterStatus { is_fit, preference, zone, slowest_write_ms, waits_for_leases, closed };
            let mut bytes = status.encode();
            prop_assert!(bytes.len() <= CONTEXT_LEN_MAX);
            prop_assert_eq!(VoterStatus::decode(&bytes), Ok(status.clone()));
            bytes.push(more);
            prop_assert_eq!(VoterStatus::decode(&bytes), Ok(status));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = VoterStatus::decode(&bytes);
        }
    }

    #[test]
    fn a_zone_has_a_name_that_lists_can_show() {
        for bad in ["", "a b", "a,b", "ü", &"a".repeat(ZONE_LEN_MAX + 1)] {
            assert_eq!(Zone::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_order_of_preferred_zones_matters() {
        let zones = |names: &[&str]| -> Vec<Zone> {
            names.iter().map(|name| Zone::new(name).expect("a name")).collect()
        };
        assert_eq!(preference_of(&[]), 0);
        assert_ne!(preference_of(&zones(&["a", "b"])), preference_of(&zones(&["b", "a"])));
        assert_ne!(preference_of(&zones(&["a"])), 0);
    }
}
