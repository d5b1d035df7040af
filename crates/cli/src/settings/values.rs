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
