//! Leader leases (S20). A committed reservation that is marked with a time is a lease: for that long
//! after the reservation was proposed, its leader may answer without a round. Every later leader
//! has the reservation in its log. It does not answer until the lease is over, with a margin for two
//! clocks that run at different rates.
//!
//! All times here are of one node, and are compared only with times of the same node. A leader
//! measures its lease with a clock that goes on while the machine is suspended. A node that waits
//! for the lease of another measures with one that stands still then: it only waits longer. This
//! module reads no clock.
//!
//! The idea is that of `LeaseGuard` (Davis, Demirbas, Deng 2025, arXiv 2512.15659). Here a lease is
//! counted from its arrival, so that no two clocks are compared.

use std::collections::BTreeMap;

use epicepoch_wire::raft_message::{EntryKind, LogEntry};
use epicepoch_wire::{BootId, LogIndex, NodeId, Term};

use crate::state::{Command, Owner};

/// The two clocks of leases, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseClocks {
    /// The clock of a node's own lease, nanoseconds. It never shows too little time: it goes on while
    /// the machine is suspended.
    pub own_ns: u64,
    /// The clock of the wait for leases of others, nanoseconds. It never shows too much time: it
    /// stands still while the machine is suspended.
    pub wait_ns: u64,
}

/// The lease of a leader, as its workers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The term of the grant that it belongs to.
    pub term: Term,
    /// The leader may answer without a round as long as [`LeaseClocks::own_ns`] shows less than
    /// this, nanoseconds.
    pub until_ns: u64,
}

/// How long a leader may use a lease after it has proposed the reservation, nanoseconds.
pub(crate) const fn lease_ns(lease_ms: u64) -> u64 {
    lease_ms * 1_000_000
}

/// How long another node waits after a marked reservation has reached it, nanoseconds: five
/// quarters of the lease. So the rate of every clock may be wrong by a ninth of true time.
pub(crate) const fn hold_ns(lease_ms: u64) -> u64 {
    lease_ms * 1_250_000
}

/// For how long a new leader must not answer, because the leases of others may run.
///
/// Invariant: it never forgets a lease that may still run, whatever happens to the log: entries may
/// be overwritten, compacted, or replaced by a snapshot.
#[derive(Debug)]
pub struct LeaseWait {
    me: (NodeId, BootId),
    clock_ns: u64,
    /// Whether the clock was read.
    is_clock_read: bool,
    /// When the last lease of each owner is over.
    until_ns: BTreeMap<Owner, u64>,
    /// When the leases are over whose owners are not known.
    unknown_until_ns: u64,
    /// The longest lease that may run since before the start of the process, milliseconds. It
    /// counts from the first reading of the clock.
    at_start_ms: u64,
}

impl LeaseWait {
    /// A process that starts. Leases of at most `longest_ms` may run; 0 if none ever has.
    #[must_use]
    pub const fn new(node: NodeId, boot: BootId, longest_ms: u64) -> Self {
        Self {
            me: (node, boot),
            clock_ns: 0,
            is_clock_read: false,
            until_ns: BTreeMap::new(),
            unknown_until_ns: 0,
            at_start_ms: longest_ms,
        }
    }

    /// Sets the clock: [`LeaseClocks::wait_ns`]. It never goes back.
    pub fn set_clock(&mut self, clock_ns: u64) {
        self.clock_ns = self.clock_ns.max(clock_ns);
        self.is_clock_read = true;
        let at_start_ms = std::mem::take(&mut self.at_start_ms);
        if at_start_ms > 0 {
            self.wait_for_unknown(at_start_ms);
        }
    }

    /// The clock as it was last set, nanoseconds.
    #[must_use]
    pub const fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// Records entries that have reached this node, whether durable or not. A marked reservation
    /// counts from now on. A release ends the leases of its owner that were marked before.
    ///
    /// # Panics
    /// When a marked reservation comes before the first reading of the clock (S20).
    pub fn handle_entries(&mut self, entries: &[LogEntry]) {
        let normal = entries.iter().filter(|it| it.kind == EntryKind::Normal);
        for entry in normal.filter(|it| !it.data.is_empty()) {
            match Command::decode(&entry.data) {
                Ok(Command::Reserve { owner, lease_ms, .. }) if lease_ms > 0 => {
                    self.wait_for(owner, lease_ms);
                }
                Ok(Command::Release { owner }) if owner.term == entry.term => {
                    self.until_ns.remove(&owner);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Records that a snapshot was installed. It may hide a marked reservation of an unknown owner.
    pub fn handle_snapshot(&mut self, longest_ms: u64) {
        if longest_ms > 0 {
            self.wait_for_unknown(longest_ms);
        }
    }

    /// When all leases of other runs are over, nanoseconds. This run need not wait for leases of
    /// its own earlier terms: its workers lost them before it could lead again.
    #[must_use]
    pub fn until_ns(&self) -> u64 {
        self.until_ns_where(|_| true)
    }

    /// As [`LeaseWait::until_ns`], without the leases of the leader of this term.
    #[must_use]
    pub fn until_ns_besides(&self, term: Term) -> u64 {
        self.until_ns_where(|owner| owner.term != term)
    }

    fn until_ns_where(&self, counts: impl Fn(&Owner) -> bool) -> u64 {
        if self.at_start_ms > 0 {
            return u64::MAX;
        }
        let others =
            self.until_ns.iter().filter(|(owner, _)| !self.is_mine(owner) && counts(owner));
        others.map(|(_, until_ns)| *until_ns).fold(self.unknown_until_ns, u64::max)
    }

    /// Whether all leases of other runs are over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.clock_ns >= self.until_ns()
    }

    fn is_mine(&self, owner: &Owner) -> bool {
        (owner.node, owner.boot) == self.me
    }

    fn wait_for(&mut self, owner: Owner, lease_ms: u64) {
        let (clock_ns, until_ns) = (self.clock_ns, self.clock_ns + hold_ns(lease_ms));
        self.until_ns.retain(|_, until_ns| *until_ns > clock_ns);
        self.check_clock_read();
        if self.until_ns.len() >= OWNERS_MAX && !self.until_ns.contains_key(&owner) {
            return self.wait_for_unknown(lease_ms);
        }
        // An earlier lease of this owner may be longer.
        let known_ns = self.until_ns.entry(owner).or_default();
        *known_ns = until_ns.max(*known_ns);
    }

    fn wait_for_unknown(&mut self, lease_ms: u64) {
        let until_ns = self.clock_ns + hold_ns(lease_ms);
        self.check_clock_read();
        self.unknown_until_ns = until_ns.max(self.unknown_until_ns);
    }

    /// Checks that a lease counts from a reading of the clock.
    fn check_clock_read(&self) {
        // S20: otherwise the wait would count from zero, and be over at once.
        assert!(self.is_clock_read, "S20: a lease has arrived before the clock was read");
    }
}

/// The lease of this node while it leads.
#[derive(Debug, Default)]
pub(crate) struct OwnLease {
    /// The marked reservation that is under way.
    proposed: Option<Marked>,
    /// Until when answers need no round; 0 without a lease.
    until_ns: u64,
    /// The clock when the last reservation was marked; `None` if none was since the last release.
    marked_at_ns: Option<u64>,
    /// The last release in this term.
    released: LogIndex,
}

/// A marked reservation that was proposed.
#[derive(Clone, Copy, Debug)]
struct Marked {
    index: LogIndex,
    /// The clock before it was proposed.
    clock_ns: u64,
    lease_ms: u64,
}

impl OwnLease {
    /// Records a marked reservation that was proposed as the entry `index`. The clock showed
    /// `clock_ns` before that.
    pub(crate) const fn propose(&mut self, index: LogIndex, clock_ns: u64, lease_ms: u64) {
        self.proposed = Some(Marked { index, clock_ns, lease_ms });
        self.marked_at_ns = Some(clock_ns);
    }

    /// Takes the lease of the reservation `index`, which was applied and has assigned a range to
    /// this leader.
    ///
    /// # Panics
    /// When an invariant is broken (S20).
    pub(crate) fn take(&mut self, index: LogIndex) {
        let Some(marked) = self.proposed.take_if(|marked| marked.index == index) else { return };
        // S20: the next leader does not wait for a reservation that a release follows.
        assert!(index > self.released, "S20: a reservation from before a release is no lease");
        self.until_ns = self.until_ns.max(marked.clock_ns + lease_ns(marked.lease_ms));
    }

    /// Whether a release is needed before another node may answer at once: a reservation was marked
    /// since the last release.
    pub(crate) const fn is_marked(&self) -> bool {
        self.marked_at_ns.is_some()
    }

    /// Ends the lease. What was marked so far becomes no lease any more.
    pub(crate) const fn withdraw(&mut self) {
        self.proposed = None;
        self.until_ns = 0;
    }

    /// Records that a release was proposed as the entry `index`, after [`OwnLease::withdraw`].
    pub(crate) const fn release(&mut self, index: LogIndex) {
        self.marked_at_ns = None;
        self.released = index;
    }

    /// Whether it is time to mark a reservation again: two fifths of the lease have passed.
    pub(crate) fn is_due(&self, clock_ns: u64, lease_ms: u64) -> bool {
        let renewal_ns = lease_ns(lease_ms) / 5 * 2;
        self.marked_at_ns.is_none_or(|at_ns| clock_ns.saturating_sub(at_ns) >= renewal_ns)
    }

    /// The lease as workers may use it in `term`; `None` without one.
    pub(crate) fn published(&self, term: Term) -> Option<Lease> {
        (self.until_ns > 0).then_some(Lease { term, until_ns: self.until_ns })
    }
}

/// At most this many owners are remembered, each for as long as a lease lasts. Leases of further
/// owners are waited for without their name. Elections are rare enough that this never happens.
const OWNERS_MAX: usize = 64;
#[cfg(test)]
mod tests {
    use epicepoch_wire::Epoch;

    use super::*;

    const ME: (NodeId, BootId) = (NodeId(1), BootId(71));
    const MS: u64 = 1_000_000;

    fn owner(term: u64, node: u64) -> Owner {
        Owner { term: Term(term), node: NodeId(node), boot: BootId(70 + node) }
    }

    fn entry(term: u64, command: &Command) -> LogEntry {
        LogEntry {
            kind: EntryKind::Normal,
            term: Term(term),
            index: LogIndex(5),
            data: command.encode(),
            context: vec![],
        }
    }

    fn marked(owner: Owner, lease_ms: u64) -> LogEntry {
        entry(owner.term.0, &Command::Reserve { owner, until: Epoch(9), lease_ms })
    }

    fn release(owner: Owner) -> LogEntry {
        entry(owner.term.0, &Command::Release { owner })
    }

    /// A node that starts without a lease, at this time of its clock.
    fn wait(clock_ms: u64) -> LeaseWait {
        let mut wait = LeaseWait::new(ME.0, ME.1, 0);
        wait.set_clock(clock_ms * MS);
        wait
    }

    #[test]
    fn a_marked_reservation_of_another_run_is_waited_for_from_its_arrival() {
        let mut wait = wait(1_000);
        assert!(wait.is_over(), "there was none");
        wait.handle_entries(&[marked(owner(3, 2), 200), marked(owner(2, 1), 400)]);
        assert_eq!(wait.until_ns(), 1_250 * MS, "its own earlier term does not count");
        for (clock_ms, is_over) in [(1_249, false), (1_250, true), (1_100, true)] {
            wait.set_clock(clock_ms * MS);
            assert_eq!(wait.is_over(), is_over, "{clock_ms}");
        }
        assert_eq!(wait.clock_ns(), 1_250 * MS, "the clock never goes back");
        let earlier_boot = Owner { boot: BootId(5), ..owner(1, 1) };
        wait.handle_entries(&[marked(earlier_boot, 200), marked(owner(2, 3), 0)]);
        assert_eq!(wait.until_ns(), 1_500 * MS, "an earlier boot is another run");
    }

    #[test]
    fn each_owner_is_waited_for_and_the_longest_of_its_leases_counts() {
        let mut wait = wait(0);
        wait.handle_entries(&[marked(owner(2, 2), 400), marked(owner(3, 3), 100)]);
        assert_eq!(wait.until_ns(), 500 * MS);
        wait.set_clock(100 * MS);
        wait.handle_entries(&[marked(owner(2, 2), 100)]);
        assert_eq!(wait.until_ns(), 500 * MS, "the shorter one does not end the longer one");
        wait.handle_entries(&[marked(owner(2, 2), 400)]);
        assert_eq!(wait.until_ns(), 600 * MS);
    }

    #[test]
    fn a_release_ends_what_its_owner_marked_before_and_nothing_else() {
        let mut wait = wait(0);
        let (a, b) = (owner(2, 2), owner(3, 3));
        wait.handle_entries(&[marked(a, 200), marked(b, 100), release(a)]);
        assert_eq!(wait.until_ns(), 125 * MS);
        let of_another_term = LogEntry { term: Term(4), ..release(b) };
        wait.handle_entries(&[of_another_term]);
        assert_eq!(wait.until_ns(), 125 * MS);
        wait.handle_entries(&[release(b)]);
        assert_eq!(wait.until_ns(), 0);
        wait.handle_entries(&[marked(a, 200)]);
        assert_eq!(wait.until_ns(), 250 * MS, "a later one counts again");
    }

    #[test]
    fn a_start_and_a_snapshot_count_as_the_longest_lease_of_an_unknown_owner() {
        let mut wait = LeaseWait::new(ME.0, ME.1, 200);
        assert!(!wait.is_over(), "the clock was not read yet");
        wait.set_clock(7_000 * MS);
        wait.handle_entries(&[marked(owner(2, 2), 100), release(owner(2, 2))]);
        assert_eq!(wait.until_ns(), 7_250 * MS);
        wait.set_clock(7_100 * MS);
        wait.handle_snapshot(0);
        assert_eq!(wait.until_ns(), 7_250 * MS);
        wait.handle_snapshot(400);
        assert_eq!(wait.until_ns(), 7_600 * MS);
    }

    #[test]
    fn the_lease_of_the_present_leader_is_no_reason_to_choose_another_successor() {
        let mut wait = wait(0);
        wait.handle_entries(&[marked(owner(3, 2), 200), marked(owner(2, 3), 100)]);
        let besides = |wait: &LeaseWait, term| wait.until_ns_besides(Term(term));
        assert_eq!([2, 3, 4].map(|term| besides(&wait, term)), [250, 125, 250].map(|it| it * MS));
        wait.handle_snapshot(160);
        assert_eq!(besides(&wait, 3), 200 * MS, "the owner is not known");
        let started = LeaseWait::new(ME.0, ME.1, 200);
        assert_eq!(besides(&started, 3), u64::MAX);
    }

    #[test]
    #[should_panic = "S20"]
    fn a_lease_that_arrives_before_the_clock_was_read_is_a_broken_invariant() {
        LeaseWait::new(ME.0, ME.1, 0).handle_entries(&[marked(owner(3, 2), 200)]);
    }

    #[test]
    fn more_owners_than_are_remembered_are_waited_for_all_the_same() {
        let mut wait = wait(0);
        for term in 1..=2 * OWNERS_MAX as u64 {
            wait.set_clock(term * MS);
            wait.handle_entries(&[marked(owner(term, 2), 1_000)]);
        }
        assert_eq!(wait.until_ns.len(), OWNERS_MAX);
        assert_eq!(wait.until_ns(), (2 * OWNERS_MAX as u64 + 1_250) * MS);
        wait.set_clock(9_000 * MS);
        wait.handle_entries(&[marked(owner(999, 2), 100)]);
        assert_eq!(wait.until_ns.len(), 1, "what is over is forgotten");
    }

    /// The latest moment at which a leader may read its clock, and the earliest one at which
    /// another node may answer, both in true time since the proposal.
    #[test]
    fn clocks_that_are_wrong_by_a_ninth_do_not_let_two_leaders_answer() {
        for lease_ms in [50, 200, 999, 60_000] {
            let used_at = lease_ns(lease_ms) as f64 / (1.0 - 1.0 / 9.0);
            let waited_until = hold_ns(lease_ms) as f64 / (1.0 + 1.0 / 9.0);
            assert!(used_at <= waited_until * (1.0 + 1e-12), "{lease_ms}");
        }
    }

    #[test]
    fn a_lease_is_taken_from_its_proposal_and_a_release_ends_what_was_marked() {
        let mut own = OwnLease::default();
        assert!(!own.is_marked() && own.is_due(0, 200));
        own.propose(LogIndex(7), 1_000 * MS, 200);
        own.take(LogIndex(6));
        assert_eq!(own.published(Term(3)), None, "another entry");
        own.take(LogIndex(7));
        let lease = Lease { term: Term(3), until_ns: 1_200 * MS };
        assert_eq!(own.published(Term(3)), Some(lease));
        assert_eq!([1_079, 1_080].map(|at| own.is_due(at * MS, 200)), [false, true]);
        own.propose(LogIndex(8), 1_080 * MS, 100);
        own.take(LogIndex(8));
        assert_eq!(own.published(Term(3)), Some(lease), "a shorter one does not end it earlier");
        own.propose(LogIndex(9), 1_100 * MS, 200);
        own.withdraw();
        assert!(own.is_marked(), "the release is not proposed yet");
        own.release(LogIndex(10));
        own.take(LogIndex(9));
        assert_eq!(own.published(Term(3)), None, "it was marked before the release");
        assert!(!own.is_marked() && own.is_due(1_101 * MS, 200));
        own.propose(LogIndex(11), 1_200 * MS, 200);
        own.take(LogIndex(11));
        assert_eq!(own.published(Term(3)).map(|it| it.until_ns), Some(1_400 * MS));
    }
}
