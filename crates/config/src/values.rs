//! How the text of a setting becomes a value. A text that is only partly understood is refused.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use epicepoch_wire::settings::LEADER_ZONES_MAX;
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{Epoch, NodeId, Timestamp};

use crate::addresses::host_and_port;

/// Parses a number that has only digits: no sign, no space, no separator.
#[must_use]
pub fn whole_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "on" => Some(true),
        "0" | "false" | "off" => Some(false),
        _ => None,
    }
}

pub(crate) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Writes the value to the field. Returns `None` if there is no value.
pub(crate) fn put<T>(field: &mut T, value: Option<T>) -> Option<()> {
    *field = value?;
    Some(())
}

pub(crate) fn address(text: &str) -> Option<String> {
    host_and_port(text).map(|_| text.to_owned())
}

/// Parses `1=host:port,2=host:port`. A node that is given twice is refused.
pub(crate) fn peers(text: &str) -> Option<BTreeMap<NodeId, String>> {
    let mut peers = BTreeMap::new();
    for item in text.split(',') {
        let (id, addr) = item.trim().split_once('=')?;
        let id = NodeId(whole_number(id)?);
        if peers.insert(id, address(addr)?).is_some() {
            return None;
        }
    }
    Some(peers)
}

/// Parses `host:port,host:port`, each once.
pub(crate) fn addresses(text: &str) -> Option<Vec<String>> {
    list(text, address)
}

/// Parses `0,1`, each processor once.
pub(crate) fn processors(text: &str) -> Option<Vec<usize>> {
    let processor = |item: &str| whole_number(item).map(|number| number as usize);
    list(text, |item| processor(item).filter(|cpu| *cpu <= CPU_MAX))
}

/// Parses items between commas, with spaces allowed around them. An item that is given twice is
/// refused.
pub(crate) fn list<T: PartialEq>(text: &str, item: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let mut items = Vec::new();
    for text in text.split(',') {
        let item = item(text.trim())?;
        if items.contains(&item) {
            return None;
        }
        items.push(item);
    }
    Some(items)
}

/// Parses the epoch of a timestamp, or of Unix time with its unit.
pub(crate) fn floor(text: &str) -> Option<Epoch> {
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(timestamp.epoch);
    }
    // "s" comes last, because the other units also end in "s".
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (number, ns) = units.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns)))?;
    whole_number(number)?.checked_mul(ns).map(Epoch)
}

/// Parses zones such as `a,b`, each once, at most [`LEADER_ZONES_MAX`].
pub(crate) fn zones(text: &str) -> Option<Vec<Zone>> {
    list(text, Zone::new).filter(|zones| zones.len() <= LEADER_ZONES_MAX)
}

pub(crate) fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

/// The greatest processor number in `WORKER_CPUS`. The kernel's set of processors ends there.
pub const CPU_MAX: usize = 1023;
pub(crate) const A_FILE: &str = "the path of a file";
pub(crate) const NETWORKS: &str =
    "loopback, any, or up to 16 IP addresses or networks such as 10.0.0.0/8,fd00::/8";
pub(crate) const HOST_AND_PORT: &str = "host:port, such as node1.example:60001 or [::1]:60001";

#[cfg(test)]
mod tests {
    use epicepoch_wire::EpochIndex;

    use super::*;

    /// `of_pd` and `of_counter` convert values of other oracles to timestamps, by the rules of
    /// `docs/operations/backup-and-restore.md`, "Move here from another oracle".
    const fn of_pd(tso: u64) -> Timestamp {
        Timestamp { epoch: Epoch((tso >> 18) * 1_000_000), index: EpochIndex(tso & 0x3_ffff) }
    }

    const fn of_counter(value: u64) -> Timestamp {
        Timestamp { epoch: Epoch(value), index: EpochIndex(0) }
    }

    /// Checks that rising values of another oracle become rising timestamps. Checks that all these
    /// timestamps are below the first one that is given above the floor.
    #[track_caller]
    fn assert_moved(floor_text: &str, values: &[u64], moved: fn(u64) -> Timestamp) {
        let floor = floor(floor_text).expect("a floor");
        let first = Timestamp { epoch: Epoch(floor.0 + 1), index: EpochIndex(0) };
        for pair in values.windows(2) {
            let [one, next] = [moved(pair[0]), moved(pair[1])];
            assert!(one.to_bytes() < next.to_bytes(), "{pair:?}");
            assert!(next.to_bytes() < first.to_bytes(), "{pair:?} and {floor_text}");
        }
    }

    #[test]
    fn timestamps_of_pd_keep_their_order_below_a_floor_in_milliseconds() {
        let last_ms = 1_700_000_000_123;
        let tso = |ms: u64, logical: u64| ms << 18 | logical;
        let values = [
            tso(last_ms - 1, 0),
            tso(last_ms - 1, 0x3_ffff),
            tso(last_ms, 0),
            tso(last_ms, 1),
            tso(last_ms, 0x3_ffff),
        ];
        assert_moved(&format!("{}ms", values[4] >> 18), &values, of_pd);
    }

    #[test]
    fn values_of_a_counter_keep_their_order_below_a_floor_in_nanoseconds_and_below_today() {
        let far = 1_700_000_000_000_000_007;
        assert_moved(&format!("{far}ns"), &[0, 1, far - 1, far], of_counter);
        // A counter below 10^18 needs no floor: it is below every epoch of today. The floor given
        // here is only the present time.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = since.expect("it is past 1970").as_nanos() as u64;
        assert_moved(&format!("{now}ns"), &[1, 1 << 53, 10_u64.pow(18)], of_counter);
    }

    #[test]
    fn a_floor_needs_its_unit() {
        for text in ["", "1700000000", "1.5s", "-1s", "1 s", "18446744073709552s"] {
            assert_eq!(floor(text), None, "{text}");
        }
        assert_eq!(floor("17979cfe362a00000000000000000005"), Some(Epoch(0x1797_9cfe_362a_0000)));
    }

    #[test]
    fn a_list_of_zones_has_each_once_and_only_valid_names() {
        let names = |text: &str| -> Option<Vec<String>> {
            Some(zones(text)?.iter().map(ToString::to_string).collect())
        };
        assert_eq!(names("b, a"), Some(vec!["b".to_owned(), "a".to_owned()]));
        for bad in ["", "a,", "a,a", "a b", "a;b", "1,2,3,4,5,6,7,8,9,10"] {
            assert_eq!(names(bad), None, "{bad}");
        }
    }
}
