//! In which order the nodes are asked for interval timestamps, as far as earlier calls decide it. It
//! reads no clock: `now` is an argument.

use std::time::{Duration, Instant};

use crate::error::FailedAttempt;
use crate::members::Members;

/// Which node a client asks first, and which nodes last, because of what earlier calls have met.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The address of the node that gave the last interval timestamp.
    certain: Option<String>,
    /// Addresses that were silent a short time ago, and since when, oldest silence first. A call may
    /// have less time than an attempt takes. So without this, each call would begin, and end, with the
    /// same silent node.
    silent: Vec<(String, Instant)>,
}

impl Turns {
    /// Puts the addresses into the order in which to ask them: the node that gave the last timestamp,
    /// the others as they are, then the silent ones, oldest silence first.
    pub(super) fn sort(&mut self, addresses: &mut Vec<String>, now: Instant) {
        self.silent.retain(|(_, since)| now.saturating_duration_since(*since) < SILENCE);
        // `None`, for an address that is not silent, is below every position.
        addresses.sort_by_key(|addr| self.silent.iter().position(|(silent, _)| silent == addr));
        if let Some(certain) = &self.certain {
            addresses.retain(|addr| addr != certain);
            addresses.insert(0, certain.clone());
        }
    }

    /// Records that the node at this address gave a timestamp.
    pub(super) fn record_certain(&mut self, addr: String) {
        self.forget_silence(&addr);
        self.certain = Some(addr);
    }

    /// Records that the node at this address answered, but gave no timestamp.
    pub(super) fn record_refusal(&mut self, addr: &str) {
        self.forget_silence(addr);
        self.certain.take_if(|certain| certain == addr);
    }

    /// Records an attempt that failed. `is_proof` says that the node had enough time, so that it is
    /// silent if it did not answer. If the lookup of its name took too long, it counts as silent.
    pub(super) fn record_failed_attempt(
        &mut self,
        failed: &FailedAttempt,
        is_proof: bool,
        now: Instant,
    ) {
        let addr = failed.addr();
        if failed.is_answer() {
            return self.record_refusal(addr);
        }
        self.certain.take_if(|certain| certain == addr);
        if !is_proof || !failed.is_late() {
            return;
        }
        self.forget_silence(addr);
        if self.silent.len() == SILENT_MAX {
            self.silent.remove(0);
        }
        self.silent.push((addr.to_owned(), now));
    }

    fn forget_silence(&mut self, addr: &str) {
        self.silent.retain(|(silent, _)| silent != addr);
    }
}

/// For this long, a silent node is asked after the others.
const SILENCE: Duration = Duration::from_secs(5);
/// At most this many silent addresses are remembered. A cluster cannot have more members.
const SILENT_MAX: usize = Members::COUNT_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn order(turns: &mut Turns, now: Instant) -> String {
        let mut addresses = ["a", "b", "c"].map(str::to_owned).to_vec();
        turns.sort(&mut addresses, now);
        addresses.concat()
    }

    fn silent(addr: &str) -> FailedAttempt {
        FailedAttempt::Silent { addr: addr.to_owned() }
    }

    #[test]
    fn silent_nodes_are_asked_last_for_a_while_and_the_oldest_silence_first() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (addr, now, expected) in
            [("a", at(0), "bca"), ("b", at(1), "cab"), ("a", at(2), "cba"), ("c", at(3), "bac")]
        {
            turns.record_failed_attempt(&silent(addr), true, now);
            assert_eq!(order(&mut turns, now), expected);
        }
        let slow = FailedAttempt::SlowLookup { addr: "b".to_owned() };
        turns.record_failed_attempt(&slow, true, at(4));
        assert_eq!(order(&mut turns, at(4)), "acb");
    }

    #[test]
    fn a_silence_is_over_after_five_seconds_or_when_the_node_answers() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.record_failed_attempt(&silent("a"), true, start);
        assert_eq!(order(&mut turns, start + SILENCE / 2), "bca");
        assert_eq!(order(&mut turns, start + SILENCE), "abc");
        for addr in ["a", "b"] {
            turns.record_failed_attempt(&silent(addr), true, start);
        }
        turns.record_refusal("a");
        assert_eq!(order(&mut turns, start), "acb");
        turns.record_certain("b".to_owned());
        assert_eq!(order(&mut turns, start), "bac");
        turns.record_refusal("a");
        assert_eq!(order(&mut turns, start), "bac", "another node is certain");
        turns.record_refusal("b");
        assert_eq!(order(&mut turns, start), "abc");
    }

    #[test]
    fn an_attempt_that_proves_no_silence_only_forgets_that_the_node_was_certain() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        let lost = FailedAttempt::lost("b", &"reset");
        for (failed, is_proof) in [(silent("b"), false), (lost, true)] {
            turns.record_certain("b".to_owned());
            turns.record_failed_attempt(&failed, is_proof, start);
            assert_eq!(order(&mut turns, start), "abc");
        }
    }

    #[test]
    fn silent_nodes_are_bounded_and_each_is_kept_once() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for port in (1..=SILENT_MAX + 3).chain([SILENT_MAX; 3]) {
            turns.record_failed_attempt(&silent(&format!("a:{port}")), true, now);
        }
        assert_eq!(turns.silent.len(), SILENT_MAX);
        assert_eq!(turns.silent[0].0, "a:4", "the oldest were forgotten");
    }
}
