//! The directory is what a client knows of its cluster: the addresses, the leader, the nodes that
//! did not answer, and the highest timestamp returned. The directory decides which node to ask
//! next, how long to wait after a failed attempt, and which cluster to accept. It opens no socket
//! and reads no clock: `now` and the seed are arguments.

use std::time::{Duration, Instant};

use epicepoch_wire::Timestamp;
use epicepoch_wire::http::ErrorCode;

use crate::error::{AnotherCluster, BadAnswer, FailedAttempt};
use crate::members::{Member, Members, is_cluster};

/// The knowledge that all calls of one client share.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Addresses given by the caller, never empty.
    seeds: Vec<String>,
    /// Addresses of the members in the newest member list.
    members: Vec<String>,
    leader: Option<String>,
    /// Addresses that recently did not answer, and since when. If another node names one of them as
    /// the leader (a hint), the client does not believe it, because that node may not know yet that
    /// the leader is down.
    suspects: Vec<(String, Instant)>,
    /// Cluster and history of the first answer that contained them.
    cluster: Option<String>,
    /// The required name of the cluster.
    cluster_name: Option<String>,
    /// When a list of members came over HTTP, or was asked for in vain, or when the first call began.
    refreshed: Option<Instant>,
    /// The highest timestamp returned so far.
    highest: Option<Timestamp>,
    /// How many addresses have been asked in turn so far. This number selects the next address.
    turn: usize,
    rng: fastrand::Rng,
}

/// The failures since the last success.
#[derive(Debug, Default)]
pub(crate) struct FailedAttempts {
    /// Attempts that failed so far.
    pub(crate) count: u32,
    /// Leaders followed since the last failed attempt.
    hops: u32,
    /// The failed attempt to report when the deadline has passed. It is the newest one in which a
    /// node answered, because a live node knows more about the cluster than a dead one. If no node
    /// answered, it is the newest of all.
    last: Option<FailedAttempt>,
    tls: TlsFailures,
    /// How many attempts in a row failed without any answer. If they are more than there are
    /// addresses, the answer in `last` is outdated.
    unanswered: usize,
}

/// The attempts that failed by TLS.
#[derive(Debug, Default)]
struct TlsFailures {
    /// How many there were since a node answered last. Attempts that reached no node are between
    /// them, and do not count.
    count: u32,
    /// Where they were since a node answered last. Only addresses that are asked in turn are kept,
    /// each once.
    addrs: Vec<String>,
    /// Address and reason of the newest one. Answers of other nodes do not remove it.
    newest: Option<(String, String)>,
}

impl FailedAttempts {
    /// Counts one more answer that names another node as the leader. Returns whether the client may
    /// follow it without a wait.
    pub(crate) fn hop(&mut self) -> bool {
        self.hops += 1;
        self.hops <= HOPS_MAX
    }

    /// The failed attempt to report at the deadline: the last one, or an earlier one that a node
    /// answered, as [`FailedAttempts::record`] decides. If a node knows no leader, and TLS failed
    /// with another node, that one may be the leader. Then both are reported, as a failure of TLS.
    pub(crate) fn last(&self) -> Option<FailedAttempt> {
        let last = self.last.as_ref()?;
        let is_leaderless = matches!(
            last,
            FailedAttempt::NoLeader { .. }
                | FailedAttempt::Refused { code: ErrorCode::NotLeader, .. }
        );
        Some(match &self.tls.newest {
            Some((addr, reason)) if is_leaderless => {
                FailedAttempt::Tls { addr: addr.clone(), reason: format!("{reason}; and {last}") }
            }
            Some(_) | None => last.clone(),
        })
    }

    /// Records a failed attempt and returns how long to wait before the next one. The wait grows
    /// with the number of failures in a row. It is computed as if there were at least `least` of
    /// them.
    pub(crate) fn record(
        &mut self,
        directory: &mut Directory,
        failed_attempt: FailedAttempt,
        least: u32,
    ) -> Duration {
        self.count = (self.count + 1).max(least);
        self.hops = 0;
        self.unanswered = if failed_attempt.is_answer() { 0 } else { self.unanswered + 1 };
        self.tls.record(directory, &failed_attempt);
        let is_outdated = self.unanswered > directory.address_count();
        let keeps = match &self.last {
            Some(kept) if kept.is_answer() => self.unanswered > 0 && !is_outdated,
            // It says what to correct, and the new one says only that nothing was reached.
            Some(FailedAttempt::Tls { .. }) => {
                self.unanswered > 0 && !matches!(failed_attempt, FailedAttempt::Tls { .. })
            }
            Some(_) | None => false,
        };
        if !keeps {
            self.last = Some(failed_attempt);
        }
        directory.backoff(self.count)
    }

    /// Returns the error if TLS has failed at every address that is asked in turn, at least
    /// [`TLS_FAILURES_MIN`] times in all, and no node has answered meanwhile. Then waiting for the
    /// deadline would not help: a file, a name or a setting is wrong. Counting starts again, so
    /// that the next call tries every address, too.
    pub(crate) fn take_tls_failure(&mut self, directory: &Directory) -> Option<BadAnswer> {
        let tls = &self.tls;
        if tls.count < TLS_FAILURES_MIN || !directory.in_turn().all(|it| tls.addrs.contains(it)) {
            return None;
        }
        let (addr, reason) = self.tls.newest.take()?;
        self.forget_tls();
        Some(BadAnswer::Tls { addr, reason })
    }

    /// Whether a failure of TLS is remembered.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.newest.is_some()
    }

    /// Forgets the failures of TLS. They may have been corrected since the last call.
    pub(crate) fn forget_tls(&mut self) {
        self.tls = TlsFailures::default();
        self.last.take_if(|last| matches!(last, FailedAttempt::Tls { .. }));
    }
}

impl TlsFailures {
    fn record(&mut self, directory: &Directory, failed_attempt: &FailedAttempt) {
        if let FailedAttempt::Tls { addr, reason } = failed_attempt {
            self.count = self.count.saturating_add(1);
            if !self.addrs.contains(addr) {
                self.addrs.push(addr.clone());
            }
            self.addrs.retain(|failed| directory.in_turn().any(|addr| addr == failed));
            self.newest = Some((addr.clone(), reason.clone()));
        } else if failed_attempt.is_answer() {
            self.count = 0;
            self.addrs.clear();
            self.newest.take_if(|(addr, _)| addr == failed_attempt.addr());
        }
    }
}

impl Directory {
    /// Creates a directory that knows the addresses `seeds`, at least one. The random part of waits
    /// is drawn from the number `seed`.
    pub(crate) fn new(seeds: Vec<String>, seed: u64) -> Self {
        assert!(!seeds.is_empty(), "a directory needs an address to begin with");
        Self {
            seeds,
            members: Vec::new(),
            leader: None,
            suspects: Vec::new(),
            cluster: None,
            cluster_name: None,
            refreshed: None,
            highest: None,
            turn: 0,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Makes the directory accept only nodes of a cluster with this name; `None` accepts any name.
    pub(crate) fn expecting(mut self, cluster_name: Option<String>) -> Self {
        self.cluster_name = cluster_name;
        self
    }

    /// Checks that the cluster of the node at `addr` has the expected name. If a name is expected,
    /// a node without a name is refused, too.
    pub(crate) fn check_name(&self, addr: &str, found: &str) -> Result<(), AnotherCluster> {
        match &self.cluster_name {
            Some(expected) if expected != found => {
                let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
                Err(AnotherCluster { addr: addr.to_owned(), expected, found })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that an answer comes from the cluster of the first answer. The first answer that names a
    /// cluster fixes it, so check the cluster's name before. A node that has not joined a cluster
    /// yet sends zeros as the cluster id. Such an answer is accepted.
    pub(crate) fn check_cluster(
        &mut self,
        addr: &str,
        cluster: Option<&str>,
    ) -> Result<(), AnotherCluster> {
        self.compare_cluster(addr, cluster)?;
        if self.cluster.is_none() {
            self.cluster = cluster.filter(|text| is_cluster(text)).map(str::to_owned);
        }
        Ok(())
    }

    /// Checks an answer that does not say the cluster's name. It fixes the cluster only if any name
    /// is accepted: a node of another name must not.
    pub(crate) fn check_nameless(
        &mut self,
        addr: &str,
        cluster: Option<&str>,
    ) -> Result<(), AnotherCluster> {
        match self.cluster_name {
            Some(_) => self.compare_cluster(addr, cluster),
            None => self.check_cluster(addr, cluster),
        }
    }

    fn compare_cluster(&self, addr: &str, cluster: Option<&str>) -> Result<(), AnotherCluster> {
        let Some(found) = cluster.filter(|text| is_cluster(text)) else { return Ok(()) };
        match &self.cluster {
            Some(expected) if expected != found => {
                let (expected, found) = (expected.clone(), found.to_owned());
                Err(AnotherCluster { addr: addr.to_owned(), expected, found })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks a list of members from the node at `addr`: the cluster's name, then the cluster.
    pub(crate) fn check_members(
        &mut self,
        addr: &str,
        members: &Members,
    ) -> Result<(), AnotherCluster> {
        self.check_name(addr, &members.cluster_name)?;
        self.check_cluster(addr, members.cluster.as_deref())
    }

    /// Whether no node has said yet that its cluster has the expected name. If so, ask a node for the
    /// members before anything that does not say the name.
    pub(crate) fn is_name_unchecked(&self) -> bool {
        self.cluster_name.is_some() && self.cluster.is_none()
    }

    /// Cluster and history of the first answer that contained them.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Whether an answer names the cluster of the first answer. Answers with timestamps must,
    /// because a node that names no cluster, or one of zeros, may belong to any.
    pub(crate) fn is_own_cluster(&self, cluster: Option<&str>) -> bool {
        self.cluster.is_some() && self.cluster() == cluster
    }

    /// Returns the error for a node at `addr` that belongs to another cluster; `found` names that
    /// cluster.
    pub(crate) fn another_cluster(&self, addr: &str, found: String) -> AnotherCluster {
        let name = self.cluster_name.as_ref().map(|name| format!("{name:?}"));
        let expected = name.or_else(|| self.cluster.clone());
        let expected = expected.unwrap_or_else(|| "any".to_owned());
        AnotherCluster { addr: addr.to_owned(), expected, found }
    }

    /// Applies a list of members from the node at `from`.
    pub(crate) fn learn(&mut self, from: &str, members: &Members, now: Instant) {
        self.learn_listed(members, now);
        let leader = members.leader.as_ref().map(|Member { addr, .. }| addr.clone());
        self.leader = leader.filter(|leader| leader == from || !self.is_suspect(leader, now));
    }

    /// Applies a list of members, but not the leader that it names.
    pub(crate) fn learn_listed(&mut self, members: &Members, now: Instant) {
        self.refreshed = Some(now);
        self.learn_members(members.members.iter().map(|member| member.addr.clone()).collect());
    }

    /// Whether to read the members again, because `interval` has passed. If this returns true, the
    /// caller asks a node once; the next time comes after another `interval`, also if that fails.
    pub(crate) fn take_refresh(&mut self, interval: Duration, now: Instant) -> bool {
        let since = *self.refreshed.get_or_insert(now);
        let is_due = now.saturating_duration_since(since) >= interval;
        if is_due {
            self.refreshed = Some(now);
        }
        is_due
    }

    /// Replaces the addresses of the members by the addresses that a node has sent. Every cluster has
    /// a member, so a list without one says nothing, and is ignored.
    pub(crate) fn learn_members(&mut self, members: Vec<String>) {
        if !members.is_empty() {
            self.members = members;
        }
    }

    /// Forgets the leader if the failed attempt was at its address. If no node answered there, the
    /// client does not believe for a while that the leader is at that address, even if other nodes
    /// say so.
    pub(crate) fn record_failed_attempt(&mut self, failed_attempt: &FailedAttempt, now: Instant) {
        let addr = failed_attempt.addr();
        self.forget_leader(addr);
        if failed_attempt.is_answer() {
            return;
        }
        self.suspects.retain(|(suspect, since)| suspect != addr && !is_over(*since, now));
        if self.suspects.len() == SUSPECTS_MAX {
            self.suspects.remove(0);
        }
        self.suspects.push((addr.to_owned(), now));
    }

    /// Whether the node at this address recently did not answer. Then the client does not believe
    /// other nodes that name it as the leader.
    pub(crate) fn is_suspect(&self, addr: &str, now: Instant) -> bool {
        self.suspects.iter().any(|(suspect, since)| suspect == addr && !is_over(*since, now))
    }

    /// Returns the address at which the leader probably is.
    pub(crate) fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    /// Sets the address at which the leader probably is.
    pub(crate) fn set_leader(&mut self, addr: String) {
        self.suspects.retain(|(suspect, _)| *suspect != addr);
        self.leader = Some(addr);
    }

    /// Forgets the leader.
    pub(crate) fn forget_any_leader(&mut self) {
        self.leader = None;
    }

    /// The highest timestamp returned so far.
    pub(crate) fn highest(&self) -> Option<Timestamp> {
        self.highest
    }

    /// Records the last timestamp of an answer that is about to be returned to a caller.
    pub(crate) fn record_returned(&mut self, last: Timestamp) {
        self.highest = self.highest.max(Some(last));
    }

    /// Forgets the leader if its address is `addr`. If the leader has another address, another call
    /// has found a newer leader, so that one is kept.
    pub(crate) fn forget_leader(&mut self, addr: &str) {
        self.leader.take_if(|leader| leader == addr);
    }

    /// Returns the addresses that are asked in turn: members first, then seeds that are not
    /// members, because seeds may be outdated.
    fn in_turn(&self) -> impl Iterator<Item = &String> {
        let extra = self.seeds.iter().filter(|seed| !self.members.contains(seed));
        self.members.iter().chain(extra)
    }

    /// Returns the next address in turn.
    pub(crate) fn next_address(&mut self) -> String {
        let all: Vec<_> = self.in_turn().collect();
        let addr = all[self.turn % all.len()].clone();
        self.turn = self.turn.wrapping_add(1);
        addr
    }

    /// Returns every address once, in the order of a program that names the nearest nodes first:
    /// the seeds, then the other members.
    pub(crate) fn nearest(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::with_capacity(self.address_count());
        for addr in self.seeds.iter().chain(&self.members) {
            if !all.contains(addr) {
                all.push(addr.clone());
            }
        }
        all
    }

    /// Returns the number of addresses that are asked in turn. An address counts twice if it is
    /// both a seed and a member.
    pub(crate) fn address_count(&self) -> usize {
        self.members.len() + self.seeds.len()
    }

    /// Returns the wait after a failed attempt. It doubles with each failure, from [`BACKOFF_MIN`]
    /// to [`BACKOFF_MAX`]. Up to half of it is random, so that clients that lost the same leader do
    /// not return at the same moment. The header `Retry-After` is ignored: it counts whole seconds,
    /// and an election is shorter.
    fn backoff(&mut self, failed_attempts: u32) -> Duration {
        let doubled =
            BACKOFF_MIN * 2_u32.pow(failed_attempts.saturating_sub(1).min(BACKOFF_DOUBLINGS_MAX));
        let most = doubled.min(BACKOFF_MAX);
        most.mul_f64(1.0 - self.rng.f64() / 2.0)
    }
}

fn is_over(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= SUSPICION
}

/// For this long after a node did not answer, the client does not believe other nodes that name it
/// as the leader. It is longer than an election. If the node itself says that it leads, the client
/// believes that.
const SUSPICION: Duration = Duration::from_secs(1);
/// At most this many addresses are remembered because they did not answer. A cluster cannot have
/// more members.
const SUSPECTS_MAX: usize = Members::COUNT_MAX;
/// Shortest wait after a failed attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Longest wait after a failed attempt: much shorter than an election.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_millis(50);
/// After this many doublings, the wait has reached [`BACKOFF_MAX`]: `BACKOFF_MIN * 2^6 = 64 ms`.
const BACKOFF_DOUBLINGS_MAX: u32 = 6;
/// A refusal by an overloaded leader counts as at least this many failed attempts, so the wait is
/// long at once. That leader still leads and needs a pause.
pub(crate) const OVERLOADED_FAILED_ATTEMPTS: u32 = BACKOFF_DOUBLINGS_MAX;
/// The client follows at most this many answers in a row that name another leader. Then it waits.
/// More than one is rare.
const HOPS_MAX: u32 = 3;
/// A call ends because of TLS after at least this many failures. Several nodes may be behind one
/// address, and the others may be well.
const TLS_FAILURES_MIN: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_maximum() {
        let mut directory = Directory::new(vec!["x:9".into()], 7);
        for failed_attempts in 1..200 {
            let wait = directory.backoff(failed_attempts);
            assert!(wait >= BACKOFF_MIN / 2 && wait <= BACKOFF_MAX, "{failed_attempts}: {wait:?}");
        }
    }

    #[test]
    fn a_call_ends_when_tls_has_failed_everywhere_and_not_while_a_node_answers() {
        let seeds = ["a:1", "b:1", "c:1"].map(str::to_owned);
        let mut directory = Directory::new(seeds.to_vec(), 1);
        let ends_after = |seeds: &[String], attempts: &[FailedAttempt]| {
            let mut directory = Directory::new(seeds.to_vec(), 1);
            let mut failed = FailedAttempts::default();
            let mut attempts = attempts.iter().cycle().take(60).enumerate();
            attempts.find_map(|(at, attempt)| {
                failed.record(&mut directory, attempt.clone(), 0);
                failed.take_tls_failure(&directory).map(|_| at + 1)
            })
        };
        let [a, b, c] = ["a:1", "b:1", "c:1"];
        assert_eq!(ends_after(&seeds, &[tls(a), tls(b), tls(c)]), Some(3));
        // A node that is down may be well when it is back.
        assert_eq!(ends_after(&seeds, &[tls(a), down(b), down(c)]), None);
        assert_eq!(ends_after(&seeds, &[tls(a), tls(b), down(c)]), None);
        assert_eq!(ends_after(&seeds, &[tls(a), tls(b), down(c), tls(a), tls(b), tls(c)]), Some(6));
        assert_eq!(ends_after(&seeds, &[tls(a), tls(b), leaderless(c)]), None);
        assert_eq!(ends_after(&seeds, &[down(a), down(b), down(c)]), None);
        // Three failures at one address are not failures at three addresses.
        assert_eq!(ends_after(&seeds, &[tls(a), tls(a), tls(a), tls(b)]), None);
        // Several nodes may be behind one address.
        assert_eq!(ends_after(&seeds[..1], &[tls(a)]), Some(3));
        assert_eq!(ends_after(&seeds[..1], &[tls(a), tls(a), leaderless(a)]), None);
        // At the deadline, the failure of TLS is reported rather than a node that is down.
        let mut failed = FailedAttempts::default();
        for attempt in [tls("a:1"), down("b:1"), down("c:1"), down("b:1"), down("c:1")] {
            failed.record(&mut directory, attempt, 0);
        }
        assert_eq!(failed.last(), Some(tls("a:1")));
        failed.forget_tls();
        failed.record(&mut directory, leaderless("b:1"), 0);
        assert_eq!(failed.last(), Some(leaderless("b:1")));
    }

    #[test]
    fn a_node_without_a_leader_does_not_hide_that_tls_failed_with_another() {
        let mut directory = Directory::new(["a:1", "b:1"].map(str::to_owned).to_vec(), 1);
        let mut failed = FailedAttempts::default();
        for attempt in [tls("a:1"), leaderless("b:1"), tls("a:1"), leaderless("b:1")] {
            failed.record(&mut directory, attempt, 0);
        }
        let text = failed.last().map(|last| last.to_string());
        assert_eq!(text.as_deref(), Some("TLS with a:1 failed: x; and b:1 knows no leader"));
        // The node at a:1 has a good certificate now.
        failed.record(&mut directory, leaderless("a:1"), 0);
        assert_eq!(failed.last(), Some(leaderless("a:1")));
    }

    fn tls(addr: &str) -> FailedAttempt {
        FailedAttempt::Tls { addr: addr.to_owned(), reason: "x".to_owned() }
    }

    fn down(addr: &str) -> FailedAttempt {
        FailedAttempt::Silent { addr: addr.to_owned() }
    }

    fn leaderless(addr: &str) -> FailedAttempt {
        FailedAttempt::NoLeader { addr: addr.to_owned() }
    }

    #[test]
    fn a_suspicion_ends_after_a_while_and_suspects_are_bounded() {
        let mut directory = Directory::new(vec!["x:9".to_owned()], 1);
        let now = Instant::now();
        for port in 1..=SUSPECTS_MAX + 3 {
            directory
                .record_failed_attempt(&FailedAttempt::Silent { addr: format!("a:{port}") }, now);
        }
        assert_eq!(directory.suspects.len(), SUSPECTS_MAX);
        assert!(!directory.is_suspect("a:3", now) && directory.is_suspect("a:4", now));
        assert!(directory.is_suspect("a:4", now + SUSPICION / 2));
        assert!(!directory.is_suspect("a:4", now + SUSPICION));
        directory.set_leader("a:5".to_owned());
        assert!(!directory.is_suspect("a:5", now), "it said that it leads");
        directory.record_failed_attempt(&FailedAttempt::NoLeader { addr: "b:1".to_owned() }, now);
        assert!(!directory.is_suspect("b:1", now), "it answered");
    }

    #[test]
    fn a_suspect_is_kept_once_and_only_while_it_is_suspected() {
        let mut directory = Directory::new(vec!["x:9".to_owned()], 1);
        let now = Instant::now();
        for (addr, at, count) in [("a:1", now, 1), ("a:1", now, 1), ("b:2", now + SUSPICION, 1)] {
            let silent = FailedAttempt::Silent { addr: addr.to_owned() };
            directory.record_failed_attempt(&silent, at);
            assert_eq!(directory.suspects.len(), count, "{addr}");
        }
    }

    #[test]
    fn an_answer_is_reported_until_more_attempts_than_addresses_had_none() {
        let addrs = ["a:1", "b:2"].map(str::to_owned);
        let mut directory = Directory::new(addrs.to_vec(), 1);
        let mut failed_attempts = FailedAttempts::default();
        let answer = FailedAttempt::NoLeader { addr: addrs[0].clone() };
        let silent = FailedAttempt::Silent { addr: addrs[1].clone() };
        for (attempt, reported) in
            [(&answer, &answer), (&silent, &answer), (&silent, &answer), (&silent, &silent)]
        {
            failed_attempts.record(&mut directory, attempt.clone(), 0);
            assert_eq!(failed_attempts.last().as_ref(), Some(reported));
        }
    }
}
