//! Log lines and counts of the consensus plane: elections, reservations, clocks and zones. Most
//! conditions are logged once, when they begin.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use epicepoch_core::clock::{ClockStatus, TrustedClock};
use epicepoch_core::positions::RolledBack;
use epicepoch_core::publication::{Published, Role};
use epicepoch_core::quorum::Voters;
use epicepoch_core::replica::{MessageError, Replica, Report};
use epicepoch_core::state::{MembershipStep, Outcome};
use epicepoch_wire::NodeId;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::voter_status::Zone;

use super::wall::AheadWarning;
use crate::config::{Config, RESERVATION_ELECTIONS_MIN, default_reservation};
use crate::lease_clock::LeaseRight;
use crate::metrics::Metrics;
use crate::shared::NodeShared;

/// Writes the log lines and metrics. It remembers which lines it has logged.
#[derive(Debug)]
pub(super) struct Reports {
    shared: Arc<NodeShared>,
    metrics: Arc<Metrics>,
    /// Whether this node had no data when it started.
    has_begun_empty: bool,
    /// The members at the last publication; `None` before the first one.
    members: Option<BTreeMap<NodeId, Known>>,
    /// Whether, at the last check, this leader's clock could not be compared with those of a
    /// majority.
    is_clock_unproved: bool,
    /// Zones of `LEADER_ZONES` without a voter, at the last check.
    empty_zones: Vec<Zone>,
    /// Voters without a zone that were logged.
    without_zone: BTreeSet<NodeId>,
    ahead: AheadWarning,
    /// The reason that was last logged why this node takes no lease.
    lease_right: LeaseRight,
    /// Whether, at the last check, this leader waited for the lease of another.
    is_waiting_for_lease: bool,
    /// For each peer, the last error when its messages were read. The error is logged once, because
    /// the peer sends the same message again and again.
    unreadable: BTreeMap<NodeId, MessageError>,
}

impl Reports {
    /// `has_begun_empty`: this node had no data when it started.
    pub(super) fn new(
        shared: Arc<NodeShared>,
        metrics: Arc<Metrics>,
        has_begun_empty: bool,
    ) -> Self {
        Self {
            shared,
            metrics,
            has_begun_empty,
            members: None,
            is_clock_unproved: false,
            empty_zones: Vec::new(),
            without_zone: BTreeSet::new(),
            ahead: AheadWarning::default(),
            lease_right: LeaseRight::Allowed,
            is_waiting_for_lease: false,
            unreadable: BTreeMap::new(),
        }
    }

    /// Forgets peers that are no longer members.
    pub(super) fn retain(&mut self, is_member: impl Fn(NodeId) -> bool) {
        self.unreadable.retain(|node, _| is_member(*node));
    }

    pub(super) fn log_clock(status: ClockStatus, clock: &TrustedClock) {
        let offsets_ns = offsets_text(clock);
        match status {
            ClockStatus::Followed => tracing::info!(offsets_ns, "the wall clock is followed"),
            ClockStatus::Outvoted => tracing::error!(
                offsets_ns,
                "the wall clock is off: the median of the voters' clocks is used; set the clock \
                 of this machine right"
            ),
            ClockStatus::Jumped => tracing::error!(
                offsets_ns,
                "the wall clock jumped or drifted off, and too few peers answer to confirm it: \
                 it is not followed; set it right, or restart this node to accept it"
            ),
        }
    }

    /// Logs why this node takes no lease, once for each reason. Call it when the cluster has leases,
    /// or the reason has changed.
    pub(super) fn log_lease_right(&mut self) {
        let right = self.shared.lease_clock.right();
        if let Some(advice) = right.advice().filter(|_| right != self.lease_right) {
            tracing::warn!(lease_clock = right.name(), "this node takes no lease: {advice}");
        }
        self.lease_right = right;
    }

    /// Logs that this leader begins to wait for the lease of another.
    pub(super) fn log_lease_wait(&mut self, replica: &Replica) {
        let wait_ms = replica.lease_wait_ns().div_ceil(1_000_000);
        let is_waiting = wait_ms > 0;
        if is_waiting && !self.is_waiting_for_lease {
            tracing::info!(
                wait_ms,
                "this leader does not answer until the lease of an earlier leader is over"
            );
        }
        self.is_waiting_for_lease = is_waiting;
    }

    pub(super) fn log_unproved_clock(&mut self, replica: &Replica, clock: &TrustedClock) {
        let is_unproved = replica.is_clock_unproved();
        if is_unproved && !self.is_clock_unproved {
            tracing::warn!(
                offsets_ns = offsets_text(clock),
                "this leader cannot compare its clock with a majority within CLOCK_OFFSET_MAX_MS, \
                 or ignores a clock that is behind; it trusts the earliest that is not behind: \
                 make sure that this one is right"
            );
        }
        self.is_clock_unproved = is_unproved;
    }

    /// Logs each member whose part in the cluster or whose address has changed.
    pub(super) fn log_members(&mut self, published: &Published, removed: &BTreeSet<NodeId>) {
        let known: BTreeMap<_, _> = published
            .members
            .values()
            .map(|member| (member.node, Known::of(member, &published.voters)))
            .collect();
        let Some(before) = self.members.replace(known.clone()) else { return };
        for (node, was) in &before {
            if !known.contains_key(node) {
                let after = if removed.contains(node) { "removed" } else { "none" };
                log_member(*node, was.part, after, &was.raft_addr);
            }
        }
        for (node, is) in &known {
            let was = before.get(node);
            let part = was.map_or("none", |was| was.part);
            if part != is.part {
                log_member(*node, part, is.part, &is.raft_addr);
            }
            if let Some(was) = was.filter(|was| was.raft_addr != is.raft_addr) {
                let (before, after) = (&was.raft_addr, &is.raft_addr);
                tracing::info!(member = node.0, before, after, "a member has another address");
            }
        }
    }

    /// Logs the zones of `LEADER_ZONES` that have no voter, when they change.
    pub(super) fn log_empty_zones(&mut self, replica: &Replica) {
        let empty = replica.empty_zones();
        if empty == self.empty_zones {
            return;
        }
        if !empty.is_empty() {
            let mut known: Vec<_> = replica.placed().into_iter().filter_map(|it| it.zone).collect();
            known.sort_unstable();
            known.dedup();
            let names = |zones: &[Zone]| {
                zones.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            };
            tracing::error!(
                unknown = names(&empty),
                known = names(&known),
                "LEADER_ZONES names a zone that no voter is in: correct it, or correct ZONE on the \
                 nodes"
            );
        }
        self.empty_zones = empty;
    }

    /// Logs the voters that have no zone, if `LEADER_ZONES` is set. Each voter is logged once per
    /// leadership.
    pub(super) fn log_voters_without_zone(&mut self, replica: &Replica) {
        if self.shared.core.published().role != Role::Leader {
            return self.without_zone.clear();
        }
        let without = replica.voters_without_zone();
        if without.iter().all(|node| self.without_zone.contains(node)) {
            return;
        }
        let nodes: Vec<_> = without.iter().map(ToString::to_string).collect();
        tracing::warn!(
            nodes = nodes.join(","),
            "LEADER_ZONES is set and these voters have no ZONE, so it never hands them leadership; \
             set ZONE there, and restart them"
        );
        self.without_zone.extend(without);
    }

    pub(super) fn log_unreadable(&mut self, from: NodeId, error: MessageError) {
        if self.unreadable.insert(from, error) != Some(error) {
            tracing::warn!(
                peer = from.0,
                %error,
                "this version cannot read a peer's messages: run the peer's version, or a later one"
            );
        }
    }

    /// Logs and counts a report of the replica.
    pub(super) fn log(&mut self, report: Report, clock: &TrustedClock) {
        let metrics = &self.metrics.consensus;
        let trusted_ns = || clock.trusted_ns(self.shared.clock.monotonic_ns());
        match report {
            Report::Leadership { term, role, leader } => {
                let leader = leader.map(|leader| leader.0);
                if leader.is_some() {
                    metrics.leader_changes.add(1);
                }
                match role {
                    Role::Leader => tracing::info!(term = term.0, "this node leads"),
                    Role::Follower => tracing::info!(term = term.0, leader, "this node follows"),
                    Role::Candidate => tracing::info!(term = term.0, "this node campaigns"),
                }
            }
            Report::Granted { term, range, took_ns } => {
                metrics.reservations.add(1);
                metrics.reservation_ns.observe(took_ns);
                tracing::debug!(term = term.0, high = range.high.0, took_ns, "granted");
                let window_ms = self.shared.settings().reservation_ms;
                self.ahead.record_grant(term, range.low, trusted_ns(), window_ms);
            }
            Report::GivenBack { owner, range } => {
                let (term, leader) = (owner.term.0, owner.node.0);
                let (epoch, high) = (range.low.0, range.high.0);
                tracing::debug!(
                    term,
                    leader,
                    epoch,
                    high,
                    "a leader gave back the rest of its range"
                );
            }
            Report::AnswersAgain { to, is_offered: true, .. } => tracing::warn!(
                successor = to.0,
                "the successor has not taken over in time: this leader answers again"
            ),
            Report::AnswersAgain { to, is_offered: false, .. } => tracing::warn!(
                successor = to.0,
                "leadership could not be offered in time: this leader answers again"
            ),
            Report::ReservationLate { missed } => {
                metrics.reservation_deadlines_missed.add(1);
                tracing::warn!(missed, "a reservation has missed its deadline");
            }
            Report::IntervalsEnded { floor } => {
                tracing::info!(
                    floor = floor.0,
                    "interval mode has ended: quorum mode begins above it"
                );
            }
            Report::Exhausted => tracing::error!("no epoch is left below 2^64 nanoseconds"),
            Report::Installed { index } => tracing::info!(index = index.0, "snapshot installed"),
            Report::Compacted { to } => tracing::debug!(index = to.0, "log compacted"),
            Report::Changed { outcome: Outcome::Refused(reason), .. } => {
                tracing::info!(reason, "a membership change was refused");
            }
            // `log_members` logs what a change did to each member.
            Report::Changed { nonce, outcome } => {
                tracing::debug!(nonce, ?outcome, "a membership change was applied");
            }
            Report::Advanced { to } if to.0 > trusted_ns() => {
                tracing::warn!(
                    epoch = to.0,
                    "an operator has moved the epoch: answers are above it"
                );
            }
            Report::Advanced { to } => {
                tracing::info!(epoch = to.0, "answers are above a time that has passed");
            }
            // A debug line is enough here, because the plane logs each change of the settings when
            // it applies it.
            Report::SettingsChanged { nonce, outcome } => {
                tracing::debug!(nonce, ?outcome, "settings");
            }
            // Every member of a new cluster reads the newest format. Only after an upgrade can there
            // be an older version to start again.
            Report::FormatRaised { to } if self.has_begun_empty => {
                tracing::info!(format = to, "the replicated state has a new format");
            }
            Report::FormatRaised { to } => tracing::warn!(
                format = to,
                "the replicated state has a new format: versions that cannot read it can no longer \
                 be started"
            ),
            Report::Removed => {
                self.shared.health.is_removed.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "this node was removed from the cluster: it stops when a majority of the others \
                     confirms it"
                );
            }
            Report::HandingOver { to, why } => {
                tracing::info!(successor = to.0, ?why, "handing leadership over");
            }
            Report::SteppedDown { why } => tracing::warn!(?why, "leadership given up"),
        }
    }
}

/// What the log last said of a member.
#[derive(Clone, Debug)]
struct Known {
    /// `voter`, `learner`, or `leaving` for an outgoing voter of a joint configuration.
    part: &'static str,
    raft_addr: String,
}

impl Known {
    fn of(member: &Member, voters: &Voters) -> Self {
        let part = if voters.incoming().any(|(node, _)| node == member.node) {
            "voter"
        } else if voters.outgoing().any(|(node, _)| node == member.node) {
            "leaving"
        } else {
            "learner"
        };
        Self { part, raft_addr: member.raft_addr.clone() }
    }
}

fn log_member(node: NodeId, before: &str, after: &str, raft_addr: &str) {
    tracing::info!(member = node.0, before, after, raft_addr, "membership change");
}

/// The steps of a membership change, for a log line.
pub(super) fn shown(steps: &[MembershipStep]) -> String {
    let step = |step: &MembershipStep| match step {
        MembershipStep::AddLearner(member) => {
            format!("add {} at {}", member.node, member.raft_addr)
        }
        MembershipStep::Promote(node) => format!("promote {node}"),
        MembershipStep::Remove(node) => format!("remove {node}"),
    };
    steps.iter().map(step).collect::<Vec<_>>().join(", ")
}

/// The offsets of the peers' clocks, for a log line: `2=-1200,3=40`, in nanoseconds.
fn offsets_text(clock: &TrustedClock) -> String {
    let offset = |(node, ns): (NodeId, i64)| format!("{node}={ns}");
    clock.peer_offsets().into_iter().map(offset).collect::<Vec<_>>().join(",")
}

pub(super) fn warn_of_short_window(settings: &ClusterSettings, election_timeout: Duration) {
    let election_timeout_ms = election_timeout.as_millis() as u64;
    let least_ms = RESERVATION_ELECTIONS_MIN * election_timeout_ms;
    if settings.reservation_ms < least_ms {
        let enough_ms = default_reservation(election_timeout).as_millis() as u64;
        tracing::warn!(
            reservation_ms = settings.reservation_ms,
            election_timeout_ms,
            least_ms,
            "RESERVATION_MS of the cluster is below four ELECTION_TIMEOUT_MS of this node; raise it: \
             epicepoch settings set RESERVATION_MS={enough_ms}"
        );
    }
}

/// Logs a change of the cluster's settings. The first time in this run, it logs instead which of
/// this node's own settings are overridden by the cluster's.
pub(super) fn log_settings_that_differ(
    config: &Config,
    before: Option<&ClusterSettings>,
    settings: &ClusterSettings,
) {
    if let Some(before) = before {
        for name in before.differing(settings) {
            tracing::warn!(
                setting = name.text(),
                before = before.text(name),
                after = settings.text(name),
                "a setting of the cluster has changed"
            );
        }
        return;
    }
    let own = config.shared();
    for name in own.differing(settings).filter(|name| config.given.contains(name.text())) {
        let (here, cluster) = (own.text(name), settings.text(name));
        tracing::warn!(
            setting = name.text(),
            here,
            cluster,
            "a setting of this node differs from the cluster's, which is used: remove it here, or \
             change the cluster's with: epicepoch settings set"
        );
    }
}

pub(super) fn log_rolled_back(node: NodeId, checked: Result<(), RolledBack>) {
    if let Err(RolledBack { named, remembered }) = checked {
        tracing::error!(
            peer = node.0,
            named = named.0,
            remembered = remembered.0,
            "a peer's data directory was rolled back to an older state: it is refused"
        );
    }
}

#[cfg(test)]
mod tests {
    use epicepoch_core::clock::ClockReading;
    use epicepoch_core::placement::Placement;
    use epicepoch_wire::{DecodeError, Epoch, LogIndex, StoreId, StorePosition};

    use super::super::fixture::{
        ELECTION_TICKS, ME, START_NS, leader, logged, member, run, shared, shared_with,
    };
    use super::*;

    fn reports(shared: &Arc<NodeShared>) -> Reports {
        Reports::new(shared.clone(), Arc::new(Metrics::new(1)), false)
    }

    fn zone(name: &str) -> Zone {
        Zone::new(name).expect("a name")
    }

    /// The clock of node 1. Node 2 is an hour ahead of it, and node 3 as far behind.
    fn clock() -> TrustedClock {
        let reading = ClockReading { monotonic_ns: 0, wall_ns: START_NS };
        let mut clock = TrustedClock::new(1, reading);
        for (node, ns) in [(2, 3_600_000_000_000_i64), (3, -3_600_000_000_000)] {
            clock.handle_sample(NodeId(node), START_NS.saturating_add_signed(ns), 0, 0);
        }
        clock
    }

    const OFFSETS: &str = "offsets_ns=2=3600000000000,3=-3600000000000";

    #[test]
    fn each_change_of_a_member_is_logged_once() {
        let mut reports = reports(&shared());
        let published = |incoming: &[u64], outgoing: &[u64], members: Vec<Member>| {
            let ids = |ids: &[u64]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
            let voters = Voters::new(&ids(incoming), &ids(outgoing), |it| StoreId(it.0.into()));
            let members = members.into_iter().map(|member| (member.node, member)).collect();
            Published { voters, members: Arc::new(members), ..Published::nothing(ME) }
        };
        let all = |count| (1..=count).map(member).collect::<Vec<_>>();
        let moved = Member { raft_addr: "new:1".to_owned(), ..member(3) };
        let removed = BTreeSet::from([NodeId(2)]);
        let none = BTreeSet::new();
        let change = |node: u64, before: &str, after: &str, addr: &str| {
            let text = "INFO membership change";
            format!("{text} member={node} before={before} after={after} raft_addr={addr}")
        };
        let steps = [
            // What a node finds when it starts is no change.
            (published(&[1, 2], &[], all(2)), &none, vec![]),
            (published(&[1, 2], &[], all(2)), &none, vec![]),
            (published(&[1, 2], &[], all(3)), &none, vec![change(3, "none", "learner", "n3:1")]),
            (
                published(&[1, 3], &[1, 2], all(4)),
                &none,
                vec![
                    change(2, "voter", "leaving", "n2:1"),
                    change(3, "learner", "voter", "n3:1"),
                    change(4, "none", "learner", "n4:1"),
                ],
            ),
            (
                published(&[1, 3], &[], vec![member(1), member(3)]),
                &removed,
                vec![change(2, "leaving", "removed", "n2:1"), change(4, "learner", "none", "n4:1")],
            ),
            (
                published(&[1, 3], &[], vec![member(1), moved]),
                &removed,
                vec!["INFO a member has another address member=3 before=n3:1 after=new:1".into()],
            ),
            (published(&[1], &[], all(1)), &removed, vec![change(3, "voter", "none", "new:1")]),
        ];
        for (published, removed, expected) in steps {
            assert_eq!(logged(|| reports.log_members(&published, removed)), expected);
        }
    }

    #[test]
    fn each_verdict_on_the_clock_is_logged_with_the_offsets_of_the_peers() {
        let line = |status| logged(|| Reports::log_clock(status, &clock())).concat();
        for (status, begins) in [
            (ClockStatus::Followed, "INFO the wall clock is followed "),
            (ClockStatus::Outvoted, "ERROR the wall clock is off: "),
            (ClockStatus::Jumped, "ERROR the wall clock jumped or drifted off"),
        ] {
            let line = line(status);
            assert!(line.starts_with(begins) && line.ends_with(OFFSETS), "{line}");
        }
    }

    #[test]
    fn a_leader_that_cannot_compare_its_clock_is_warned_of_once() {
        let mut reports = reports(&shared());
        let mut replica = leader();
        let mut log =
            |replica: &Replica| logged(|| reports.log_unproved_clock(replica, &clock())).concat();
        assert_eq!(log(&replica), "");
        replica.handle_compared(false);
        run(&mut replica, 100, 10 * ELECTION_TICKS);
        let line = log(&replica);
        assert!(line.starts_with("WARN this leader cannot compare its clock"), "{line}");
        assert!(line.ends_with(OFFSETS), "{line}");
        assert_eq!(log(&replica), "", "again");
        replica.handle_compared(true);
        assert_eq!(log(&replica), "");
        replica.handle_compared(false);
        assert_ne!(log(&replica), "", "after it was compared in between");
    }

    #[test]
    fn zones_without_a_voter_are_logged_when_they_change() {
        let mut reports = reports(&shared());
        let mut replica = leader();
        run(&mut replica, 100, 40 * ELECTION_TICKS);
        let mut log = |leaders: &[&str]| {
            let leaders = leaders.iter().copied().map(zone).collect();
            let placement = Placement { zone: Some(zone("east")), leaders };
            replica.place(placement);
            logged(|| reports.log_empty_zones(&replica)).concat()
        };
        assert_eq!(log(&["east"]), "");
        let line = log(&["north", "east"]);
        assert!(line.starts_with("ERROR LEADER_ZONES names a zone that no voter is in"), "{line}");
        assert!(line.ends_with(" unknown=north known=east"), "{line}");
        assert_eq!(log(&["north", "east"]), "", "again");
        assert_eq!(log(&["east"]), "", "corrected");
        assert!(log(&["south", "north"]).ends_with(" unknown=south,north known=east"));
    }

    #[test]
    fn a_voter_without_a_zone_is_logged_once_in_each_leadership() {
        let shared = shared();
        let mut reports = reports(&shared);
        let mut replica = leader();
        replica.place(Placement { zone: None, leaders: vec![zone("east")] });
        run(&mut replica, 100, 40 * ELECTION_TICKS);
        let mut log = |role| {
            let published = Published { role, ..Published::nothing(ME) };
            shared.core.publish(Arc::new(published));
            logged(|| reports.log_voters_without_zone(&replica)).concat()
        };
        for leadership in 0..2 {
            assert_eq!(log(Role::Follower), "", "{leadership}");
            let line = log(Role::Leader);
            assert!(line.starts_with("WARN LEADER_ZONES is set and these voters"), "{line}");
            assert!(line.ends_with(" nodes=1"), "{line}");
            assert_eq!(log(Role::Leader), "", "again");
        }
    }

    #[test]
    fn an_unreadable_message_is_logged_once_for_each_peer_and_error() {
        let mut reports = reports(&shared());
        let error = |index| {
            let error = DecodeError::BadValue { field: "format", value: 9 };
            MessageError::Unreadable { index: LogIndex(index), error }
        };
        let log = |reports: &mut Reports, node: u64, index| {
            let lines = logged(|| reports.log_unreadable(NodeId(node), error(index)));
            let line = lines.concat();
            let is_of_it = line.contains(&format!(" peer={node} error="));
            assert!(lines.is_empty() || line.starts_with("WARN this version") && is_of_it);
            lines.len()
        };
        assert_eq!(
            [(2, 7), (2, 7), (3, 7), (2, 8)].map(|it| log(&mut reports, it.0, it.1)),
            [1, 0, 1, 1]
        );
        // A member that was removed and comes back is another one.
        reports.retain(|node| node == NodeId(3));
        assert_eq!([(3, 7), (2, 8)].map(|it| log(&mut reports, it.0, it.1)), [0, 1]);
    }

    #[test]
    fn an_advance_is_a_warning_only_above_trusted_time() {
        let mut reports = reports(&shared());
        let clock = clock();
        let mut log =
            |to| logged(|| reports.log(Report::Advanced { to: Epoch(to) }, &clock)).concat();
        assert_eq!(log(7), "INFO answers are above a time that has passed epoch=7");
        let later = START_NS + (1 << 60);
        let line = log(later);
        assert!(line.starts_with("WARN an operator has moved the epoch"), "{line}");
        assert!(line.ends_with(&format!(" epoch={later}")), "{line}");
    }

    #[test]
    fn a_handover_that_takes_too_long_is_a_warning_that_says_whether_leadership_was_offered() {
        let mut reports = reports(&shared());
        let mut log = |is_offered| {
            let report = Report::AnswersAgain { to: NodeId(2), is_offered, range: None };
            logged(|| reports.log(report, &clock())).concat()
        };
        let again = "in time: this leader answers again successor=2";
        assert_eq!(log(true), format!("WARN the successor has not taken over {again}"));
        assert_eq!(log(false), format!("WARN leadership could not be offered {again}"));
    }

    #[test]
    fn a_new_format_is_a_warning_only_for_a_node_that_had_data() {
        let shared = shared();
        let level = |has_begun_empty| {
            let metrics = Arc::new(Metrics::new(1));
            let mut reports = Reports::new(shared.clone(), metrics, has_begun_empty);
            let lines = logged(|| reports.log(Report::FormatRaised { to: 4 }, &clock()));
            assert!(lines[0].ends_with(" format=4"), "{lines:?}");
            lines.concat().split(' ').next().map(str::to_owned)
        };
        assert_eq!([true, false].map(level), ["INFO", "WARN"].map(|it| Some(it.to_owned())));
    }

    #[test]
    fn the_steps_of_a_change_are_shown_in_order() {
        let steps = [
            MembershipStep::AddLearner(member(4)),
            MembershipStep::Promote(NodeId(4)),
            MembershipStep::Remove(NodeId(2)),
        ];
        assert_eq!(shown(&steps), "add 4 at n4:1, promote 4, remove 2");
    }

    #[test]
    fn a_window_below_four_election_timeouts_is_warned_of() {
        let own = Config::new(ME.node, String::new()).shared();
        let log = |reservation_ms| {
            let settings = ClusterSettings { reservation_ms, ..own.clone() };
            logged(|| warn_of_short_window(&settings, Duration::from_millis(300))).concat()
        };
        assert_eq!(log(1_200), "");
        let line = log(1_199);
        assert!(line.contains("settings set RESERVATION_MS=1500"), "{line}");
        let fields = " reservation_ms=1199 election_timeout_ms=300 least_ms=1200";
        assert!(line.starts_with("WARN ") && line.ends_with(fields), "{line}");
    }

    #[test]
    fn settings_are_logged_when_they_change_and_at_the_start_where_an_own_setting_loses() {
        // An operator has set LEASE_MS to the default. RESERVATION_MS is the default, too, but not
        // given.
        let given = |config: &mut Config| {
            config.max_n = 1_000;
            config.given = BTreeSet::from(["MAX_N", "LEASE_MS"]);
        };
        let config = shared_with(given).config.clone();
        let own = config.shared();
        let settings = ClusterSettings { max_n: 77, reservation_ms: 9_000, ..own.clone() };
        let log = |before| logged(|| log_settings_that_differ(&config, before, &settings));
        let log_with_leases = || {
            let settings = ClusterSettings { lease_ms: 200, ..settings.clone() };
            logged(|| log_settings_that_differ(&config, None, &settings))
        };
        let begins = "WARN a setting of this node differs from the cluster's";
        let ends = [" setting=MAX_N here=1000 cluster=77", " setting=LEASE_MS here=0 cluster=200"];
        for (lines, count) in [(log(None), 1), (log_with_leases(), 2)] {
            assert_eq!(lines.len(), count, "{lines:?}");
            for (line, end) in lines.iter().zip(ends) {
                assert!(line.starts_with(begins) && line.ends_with(end), "{line}");
            }
        }
        let changed = |name, before: u64, after: u64| {
            let text = "WARN a setting of the cluster has changed";
            format!("{text} setting={name} before={before} after={after}")
        };
        let lines = log(Some(&own));
        let window_ms = own.reservation_ms;
        let expected = [changed("RESERVATION_MS", window_ms, 9_000), changed("MAX_N", 1_000, 77)];
        assert_eq!(lines, expected);
        assert_eq!(log(Some(&settings)), Vec::<String>::new());
    }

    #[test]
    fn a_rolled_back_peer_is_an_error_in_the_log() {
        let named = StorePosition(3);
        let rolled_back = RolledBack { named, remembered: StorePosition(5) };
        let line = logged(|| log_rolled_back(NodeId(2), Err(rolled_back))).concat();
        assert!(line.starts_with("ERROR a peer's data directory was rolled back"), "{line}");
        assert!(line.ends_with(" peer=2 named=3 remembered=5"), "{line}");
        assert_eq!(logged(|| log_rolled_back(NodeId(2), Ok(()))), Vec::<String>::new());
    }
}
