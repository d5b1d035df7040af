//! Order of timestamps: unique, in real-time order, commits above starts.

use std::collections::{HashMap, HashSet};

use epicepoch_client::Timestamp;

use super::evidence::{Anomaly, Evidence, Stored, Verdict};
use crate::history::{Outcome, Stamp};

pub(super) fn check(evidence: &Evidence, stored: &Stored<'_>, verdict: &mut Verdict) {
    let mut stamps: Vec<(Stamp, &str)> = Vec::new();
    for ended in &evidence.ended {
        stamps.push((ended.start, &ended.client));
        if let Outcome::Committed { commit } = ended.outcome {
            stamps.push((commit, &ended.client));
        }
    }
    verdict.timestamps = stamps.len() as u64;
    unique(evidence, stored, &stamps, verdict);
    real_time(&mut stamps, verdict);
    for versions in stored.rows.values() {
        for version in *versions {
            if version.commit <= version.start {
                let what = format!("{} committed at {}", version.start, version.commit);
                verdict.add(Anomaly::CommitNotAfterStart, what);
            }
        }
    }
}

/// Timestamps of killed clients count too, if they are known.
fn unique(
    evidence: &Evidence,
    stored: &Stored<'_>,
    stamps: &[(Stamp, &str)],
    verdict: &mut Verdict,
) {
    let mut owners: HashMap<Timestamp, &str> = HashMap::new();
    let ended: HashSet<Timestamp> = evidence.ended.iter().map(|ended| ended.start.at).collect();
    let mut all: Vec<_> = stamps.iter().map(|(stamp, client)| (stamp.at, *client)).collect();
    for trying in evidence.trying.iter().filter(|trying| !ended.contains(&trying.start)) {
        all.push((trying.start, &trying.client));
        let versions = stored.by_start.get(&trying.start);
        if let Some((_, version)) = versions.and_then(|versions| versions.first()) {
            all.push((version.commit, &trying.client));
        }
    }
    for (at, client) in all {
        if let Some(other) = owners.insert(at, client) {
            verdict.add(Anomaly::Duplicate, format!("{at} was given to {other} and to {client}"));
        }
    }
}

/// Goes through the calls in the order in which they began. Compares each with the highest
/// timestamp of the calls that had ended by then.
fn real_time(stamps: &mut [(Stamp, &str)], verdict: &mut Verdict) {
    let mut by_answer = stamps.to_vec();
    by_answer.sort_by_key(|(stamp, _)| stamp.answered);
    stamps.sort_by_key(|(stamp, _)| stamp.asked);
    let mut complete = by_answer.into_iter().peekable();
    let mut highest: Option<(Stamp, &str)> = None;
    for (stamp, client) in stamps {
        while let Some(earlier) = complete.next_if(|(earlier, _)| earlier.answered < stamp.asked) {
            highest = highest.filter(|(other, _)| other.at >= earlier.0.at).or(Some(earlier));
        }
        if let Some((earlier, other)) = highest
            && earlier.at >= stamp.at
        {
            let what = format!(
                "{client} got {} after {other} had got {} (witness: {} to {}, and {} to {})",
                stamp.at, earlier.at, stamp.asked, stamp.answered, earlier.asked, earlier.answered
            );
            verdict.add(Anomaly::RealTime, what);
        }
    }
}
