//! Write skew (A5B): two concurrent transactions wrote different rows, and each read a row that the
//! other one wrote. Snapshot isolation allows this, serializability does not.

use std::collections::{HashMap, HashSet};

use epicepoch_client::Timestamp;

use super::evidence::{Evidence, Stored};
use crate::history::Outcome;

/// Counts the pairs of transactions with write skew in which both committed.
pub(super) fn count(evidence: &Evidence, stored: &Stored<'_>) -> u64 {
    // For each reader, the transactions that overwrote a row which the reader had read, before the
    // reader committed.
    let mut overtaken_by: HashMap<Timestamp, HashSet<Timestamp>> = HashMap::new();
    for ended in &evidence.ended {
        let Outcome::Committed { commit } = ended.outcome else { continue };
        let start = ended.start;
        for seen in &ended.reads {
            let versions = stored.of_row(&seen.row);
            let from = versions.partition_point(|version| version.commit <= start);
            let concurrent = versions[from..]
                .iter()
                .filter(|version| version.start < commit && version.start != start);
            overtaken_by.entry(start).or_default().extend(concurrent.map(|version| version.start));
        }
    }
    let is_overtaken = |a: &Timestamp, b: &Timestamp| {
        overtaken_by.get(a).is_some_and(|writers| writers.contains(b))
    };
    overtaken_by
        .iter()
        .flat_map(|(a, writers)| writers.iter().map(move |b| (a, b)))
        .filter(|(a, b)| a < b && is_overtaken(b, a))
        .count() as u64
}
