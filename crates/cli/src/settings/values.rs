//! How the texts of settings become values. A slip is refused, never half understood.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use epicepoch_server::config;
use epicepoch_wire::{Epoch, NodeId, Timestamp};

/// Digits only: no sign, no space, no separator, so that a slip is never half understood.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "on" => Some(true),
        "0" | "false" | "off" => Some(false),
        _ => None,
    }
}

pub(super) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(super) fn address(text: &str, into: &mut String) -> Option<()> {
    config::host_and_port(text)?;
    text.clone_into(into);
    Some(())
}

/// `1=host:port,2=host:port`; a node given twice is refused, because one of the two is a slip.
pub(super) fn peers(text: &str) -> Option<BTreeMap<NodeId, String>> {
    let mut peers = BTreeMap::new();
    for item in text.split(',') {
        let (id, addr) = item.trim().split_once('=')?;
        config::host_and_port(addr)?;
        let id = NodeId(whole_number(id)?);
        if peers.insert(id, addr.to_owned()).is_some() {
            return None;
        }
    }
    Some(peers)
}

/// `host:port,host:port`; one given twice is a slip.
pub(super) fn joined(text: &str) -> Option<Vec<String>> {
    let mut addrs = Vec::new();
    for item in text.split(',').map(str::trim) {
        config::host_and_port(item)?;
        if addrs.iter().any(|known| known == item) {
            return None;
        }
        addrs.push(item.to_owned());
    }
    Some(addrs)
}

/// The epoch of a timestamp, or of Unix time with its unit.
pub(super) fn floor(text: &str) -> Option<Epoch> {
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(timestamp.epoch);
    }
    // Shortest last: the others end in it, too.
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (number, ns) = units.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns)))?;
    whole_number(number)?.checked_mul(ns).map(Epoch)
}

/// `0,1`; a processor given twice is refused, because one of the two is a slip.
pub(super) fn processors(text: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for item in text.split(',') {
        let number = whole_number(item.trim())?;
        config::WORKER_CPUS.check(number).ok()?;
        let processor = number as usize;
        if processors.contains(&processor) {
            return None;
        }
        processors.push(processor);
    }
    Some(processors)
}

pub(super) fn file(text: &str, into: &mut PathBuf) -> Option<()> {
    *into = PathBuf::from(text);
    (!text.is_empty()).then_some(())
}

pub(super) const A_FILE: &str = "the path of a file";
pub(super) const ORIGINS: &str =
    "loopback, any, or up to 16 IP addresses or networks such as 10.0.0.0/8,fd00::/8";
pub(super) const HOST_AND_PORT: &str = "host:port, such as node1.example:60001 or [::1]:60001";

#[cfg(test)]
mod tests {
    use epicepoch_wire::EpochIndex;

    use super::*;

    /// The recipes of `docs/operations.md`, "Move here from another oracle".
    const fn of_pd(tso: u64) -> Timestamp {
        Timestamp { epoch: Epoch((tso >> 18) * 1_000_000), index: EpochIndex(tso & 0x3_ffff) }
    }

    const fn of_counter(value: u64) -> Timestamp {
        Timestamp { epoch: Epoch(value), index: EpochIndex(0) }
    }

    /// Values in order stay in order as keys, and below the first that can be given here, which is of
    /// an epoch above the floor.
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
    fn what_pd_gave_keeps_its_order_below_a_floor_in_milliseconds() {
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
    fn what_a_counter_gave_keeps_its_order_below_a_floor_in_nanoseconds_and_below_today() {
        let far = 1_700_000_000_000_000_007;
        assert_moved(&format!("{far}ns"), &[0, 1, far - 1, far], of_counter);
        // One that has not come that far lies below every epoch of today without a floor.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = since.expect("it is past 1970").as_nanos() as u64;
        assert_moved(&format!("{now}ns"), &[1, 1 << 53, 10_u64.pow(18)], of_counter);
    }

    #[test]
    fn a_floor_without_its_unit_is_none() {
        for text in ["", "1700000000", "1.5s", "-1s", "1 s", "18446744073709552s"] {
            assert_eq!(floor(text), None, "{text}");
        }
        assert_eq!(floor("17979cfe362a00000000000000000005"), Some(Epoch(0x1797_9cfe_362a_0000)));
    }
}
