//! What clients record, and the checker.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the moments of this process.
#[derive(Debug, Default)]
pub struct Events(AtomicU64);

/// A timestamp, and the events of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The compact timestamp.
    pub timestamp: u64,
    /// The event before the call.
    pub asked: u64,
    /// The event after the call.
    pub got: u64,
}

/// A value that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The account.
    pub account: u64,
    /// The balance in the value.
    pub balance: i64,
    /// The transaction that wrote it, as the value says.
    pub writer: u64,
    /// The sequence number of the row in the store.
    pub seq: u64,
}

/// What a client has done.
#[derive(Clone, Debug)]
pub struct Record {
    /// Number of the transaction.
    pub id: u64,
    /// The timestamp of the commit, or of the snapshot.
    pub at: Stamp,
    /// The sequence number up to which the transaction sees commits.
    pub seen: u64,
    /// What was read.
    pub reads: Vec<Read>,
    /// The accounts that were written; none in an audit, which reads all accounts.
    pub writes: Vec<u64>,
    /// Whether the commit, or what the audit has seen, is durable. If not, it may be.
    pub is_durable: bool,
}

/// A rule that the history must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// No timestamp is given twice.
    Reused,
    /// A timestamp is above all that any client had before it was asked for.
    OutOfOrder,
    /// The sequence number of a row is the commit timestamp of its writer.
    WrongSequence,
    /// A snapshot at a timestamp has exactly the commits below it.
    WrongSnapshot,
    /// A transaction reads the newest commit that it can see.
    WrongRead,
    /// No transaction replaces a version that it has not read.
    LostUpdate,
    /// The sum over all accounts is the same in each snapshot.
    Total,
}

impl Events {
    /// Returns the number of this moment.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// Returns how often each rule was broken.
pub fn check(records: &[Record], accounts: u64, total: i64) -> BTreeMap<Rule, usize> {
    let mut found = BTreeMap::new();
    let mut find = |rule, is_broken: bool| {
        if is_broken {
            *found.entry(rule).or_default() += 1;
        }
    };
    order(records, &mut find);
    let commits: HashMap<u64, u64> = records
        .iter()
        .filter(|it| !it.writes.is_empty())
        .map(|it| (it.id, it.at.timestamp))
        .collect();
    // The durable commits of each account.
    let mut versions: HashMap<u64, BTreeSet<u64>> = HashMap::new();
    for record in records.iter().filter(|it| it.is_durable) {
        for account in &record.writes {
            versions.entry(*account).or_default().insert(record.at.timestamp);
        }
    }
    let is_between = |account: u64, after: u64, before: u64| {
        let all = versions.get(&account);
        after + 1 < before && all.is_some_and(|all| all.range(after + 1..before).next().is_some())
    };
    for record in records.iter().filter(|it| it.is_durable) {
        let is_audit = record.writes.is_empty();
        for read in &record.reads {
            find(Rule::WrongSequence, commits.get(&read.writer) != Some(&read.seq));
            find(Rule::WrongRead, is_between(read.account, read.seq, record.seen + 1));
            let is_missed = is_between(read.account, read.seq, record.at.timestamp);
            find(Rule::WrongSnapshot, is_audit && is_missed);
            find(Rule::LostUpdate, record.writes.contains(&read.account) && is_missed);
        }
        if is_audit {
            find(Rule::WrongSnapshot, record.seen >= record.at.timestamp);
            let sum: i64 = record.reads.iter().map(|read| read.balance).sum();
            find(Rule::Total, sum != total || record.reads.len() as u64 != accounts);
        }
    }
    found
}

/// Checks the timestamps alone.
fn order(records: &[Record], find: &mut impl FnMut(Rule, bool)) {
    let mut unique = BTreeSet::new();
    // Each event is the beginning or the end of a call.
    let mut events = BTreeMap::new();
    for Record { at, .. } in records {
        find(Rule::Reused, !unique.insert(at.timestamp));
        events.insert(at.asked, (false, *at));
        events.insert(at.got, (true, *at));
    }
    let mut highest = 0;
    for (is_end, at) in events.values() {
        if *is_end {
            highest = highest.max(at.timestamp);
        } else {
            // What was given before this call lies below its timestamp.
            find(Rule::OutOfOrder, highest >= at.timestamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: u64, timestamp: u64, reads: &[(u64, i64, u64, u64)], writes: &[u64]) -> Record {
        let read = |&(account, balance, writer, seq)| Read { account, balance, writer, seq };
        Record {
            id,
            at: Stamp { timestamp, asked: 2 * id, got: 2 * id + 1 },
            seen: reads.iter().map(|read| read.3).max().unwrap_or(0),
            reads: reads.iter().map(read).collect(),
            writes: writes.to_vec(),
            is_durable: true,
        }
    }

    #[test]
    fn each_rule_finds_what_breaks_it_and_nothing_else() {
        let opened = record(1, 10, &[], &[1, 2]);
        let moved = record(2, 20, &[(1, 5, 1, 10), (2, 5, 1, 10)], &[1, 2]);
        let audit = record(3, 30, &[(1, 4, 2, 20), (2, 6, 2, 20)], &[]);
        let good = [opened.clone(), moved.clone(), audit.clone()];
        assert_eq!(check(&good, 2, 10), BTreeMap::new());
        let finds = |changed: Record, rule| {
            let mut records = good.to_vec();
            records.retain(|it| it.id != changed.id);
            records.push(changed);
            let found = check(&records, 2, 10);
            assert!(found.contains_key(&rule), "{rule:?}: {found:?}");
        };
        let mut early = audit.clone();
        early.at.timestamp = 20;
        finds(early.clone(), Rule::Reused);
        finds(early, Rule::OutOfOrder);
        finds(record(3, 30, &[(1, 4, 2, 21), (2, 6, 2, 20)], &[]), Rule::WrongSequence);
        finds(record(3, 30, &[(1, 5, 1, 10), (2, 5, 1, 10)], &[]), Rule::WrongSnapshot);
        finds(record(3, 30, &[(1, 5, 1, 10), (2, 6, 2, 20)], &[]), Rule::WrongRead);
        finds(record(3, 30, &[(1, 5, 1, 10)], &[1]), Rule::LostUpdate);
        finds(record(3, 30, &[(1, 4, 2, 20), (2, 7, 2, 20)], &[]), Rule::Total);
    }
}
