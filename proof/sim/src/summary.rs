//! Counts of what runs exercised. They show whether the generator is too tame. No checker reads
//! them.

use std::collections::BTreeMap;
use std::fmt;

use epicepoch_core::replica::Report;

/// A message that is delayed by more than this counts as old, nanoseconds.
const OLD_NS: u64 = 60_000_000_000;

/// Counts of one run, or of many.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of runs.
    pub runs: u64,
    /// Runs with the database of production on the members' disks.
    pub real: u64,
    /// Simulated time, nanoseconds.
    pub simulated_ns: u64,
    /// Events that happened.
    pub events: u64,
    /// Requests that arrived at a running node.
    pub requests: u64,
    /// Requests that were answered with timestamps.
    pub answered: u64,
    /// Batches that a lease has proved.
    pub leases: u64,
    /// Requests in these batches that got an answer.
    pub answered_by_lease: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Times that a client gave up and asked elsewhere.
    pub given_up: u64,
    /// Number of terms with an acting leader, for each run.
    pub leaderships: Vec<u64>,
    /// Ranges that were assigned.
    pub ranges: u64,
    /// Rounds that were begun.
    pub rounds: u64,
    /// Rounds that were asked again over links that had come back.
    pub rounds_asked_again: u64,
    /// Rounds that asked further voters, because an answer was late or a no.
    pub rounds_widened: u64,
    /// Rounds that failed.
    pub rounds_failed: u64,
    /// Number of answers of voters to rounds: first the yeses, then the noes.
    pub replies: [u64; 2],
    /// Questions of rounds that a worker passed to a sibling, to send them over its link.
    pub borrowed: u64,
    /// Answers over borrowed links that were handed back.
    pub handed_back: u64,
    /// Those that came too late: their round had ended, or the worker had begun a new term.
    pub handed_back_late: u64,
    /// Messages that were lost on the way.
    pub messages_lost: u64,
    /// Messages that arrived twice.
    pub messages_doubled: u64,
    /// Messages that arrived at the wrong node.
    pub messages_astray: u64,
    /// Messages that were delayed by a slow link.
    pub messages_slow: u64,
    /// Messages that arrived late at a running process.
    pub messages_late: u64,
    /// Late messages that were more than a minute late.
    pub messages_old: u64,
    /// Messages that a replica refused.
    pub refusals: u64,
    /// Reports of replicas, by kind.
    pub reports: BTreeMap<&'static str, u64>,
    /// Faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Longest time from healing to full recovery, nanoseconds. The time until leadership comes to
    /// rest does not count.
    pub healed_ns_max: u64,
    /// Runs in which a minority of the voters stayed broken when the rest healed.
    pub spared: u64,
    /// Longest time, in the runs of `spared`, until the other voters had recovered, nanoseconds.
    pub spared_ns_max: u64,
}

impl Summary {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.real += other.real;
        self.simulated_ns += other.simulated_ns;
        self.events += other.events;
        self.requests += other.requests;
        self.answered += other.answered;
        self.leases += other.leases;
        self.answered_by_lease += other.answered_by_lease;
        self.refused += other.refused;
        self.given_up += other.given_up;
        self.leaderships.extend(&other.leaderships);
        self.ranges += other.ranges;
        self.rounds += other.rounds;
        self.rounds_asked_again += other.rounds_asked_again;
        self.rounds_widened += other.rounds_widened;
        self.rounds_failed += other.rounds_failed;
        self.replies[0] += other.replies[0];
        self.replies[1] += other.replies[1];
        self.borrowed += other.borrowed;
        self.handed_back += other.handed_back;
        self.handed_back_late += other.handed_back_late;
        self.messages_lost += other.messages_lost;
        self.messages_doubled += other.messages_doubled;
        self.messages_astray += other.messages_astray;
        self.messages_slow += other.messages_slow;
        self.messages_late += other.messages_late;
        self.messages_old += other.messages_old;
        self.refusals += other.refusals;
        for (all, own) in [(&mut self.reports, &other.reports), (&mut self.faults, &other.faults)] {
            for (what, times) in own {
                *all.entry(what).or_default() += times;
            }
        }
        self.healed_ns_max = self.healed_ns_max.max(other.healed_ns_max);
        self.spared += other.spared;
        self.spared_ns_max = self.spared_ns_max.max(other.spared_ns_max);
    }

    /// Median number of leader changes of a run.
    #[must_use]
    pub fn leader_changes_median(&self) -> u64 {
        let mut sorted = self.leaderships.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(0, |terms| terms.saturating_sub(1))
    }

    pub(crate) const fn count_late(&mut self, late_ns: u64) {
        self.messages_late += (late_ns > 0) as u64;
        self.messages_old += (late_ns > OLD_NS) as u64;
    }

    pub(crate) const fn count_reply(&mut self, is_yes: bool) {
        self.replies[if is_yes { 0 } else { 1 }] += 1;
    }

    pub(crate) fn take_report(&mut self, report: &Report) {
        let what = match report {
            Report::Leadership { .. } => return,
            Report::Granted { .. } => "grant",
            Report::GivenBack { .. } => "range given back",
            Report::AnswersAgain { .. } => "leader answers again",
            Report::ReservationLate { .. } => "reservation late",
            Report::Exhausted => "epochs used up",
            Report::Installed { .. } => "snapshot installed",
            Report::Compacted { .. } => "log compacted",
            Report::Changed { .. } => "membership change applied",
            Report::Advanced { .. } => "epoch advanced by an operator",
            Report::FormatRaised { .. } => "format raised",
            Report::SettingsChanged { .. } => "settings",
            Report::Removed => "removal seen",
            Report::HandingOver { .. } => "handover",
            Report::SteppedDown { .. } => "stepped down",
            Report::IntervalsEnded { .. } => "interval mode ended",
        };
        *self.reports.entry(what).or_default() += 1;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.simulated_ns / 1_000_000_000;
        let per_second = self.requests / seconds.max(1);
        let leaders: u64 = self.leaderships.iter().sum();
        let median = self.leader_changes_median();
        writeln!(
            f,
            "{} runs, {} with the real database, {seconds} simulated seconds, {} events",
            self.runs, self.real, self.events
        )?;
        writeln!(
            f,
            "requests: {} ({per_second} per simulated second), {} answered, {} refused, {} given up",
            self.requests, self.answered, self.refused, self.given_up
        )?;
        writeln!(
            f,
            "leases: {} batches, {} requests answered",
            self.leases, self.answered_by_lease
        )?;
        writeln!(
            f,
            "leaders: {leaders} terms led, {median} leader changes in the median run; {} ranges",
            self.ranges
        )?;
        writeln!(
            f,
            "rounds: {} begun, {} asked again, {} widened, {} failed; voters said yes {} times, no {} times",
            self.rounds,
            self.rounds_asked_again,
            self.rounds_widened,
            self.rounds_failed,
            self.replies[0],
            self.replies[1]
        )?;
        writeln!(
            f,
            "borrowed links: {} questions sent over them, {} answers handed back, {} of these too late",
            self.borrowed, self.handed_back, self.handed_back_late
        )?;
        writeln!(
            f,
            "messages: {} lost, {} astray, {} doubled, {} on slow links, {} came late, {} of them by \
             more than a minute, {} refused",
            self.messages_lost,
            self.messages_astray,
            self.messages_doubled,
            self.messages_slow,
            self.messages_late,
            self.messages_old,
            self.refusals
        )?;
        for (title, counts) in [("faults", &self.faults), ("reports", &self.reports)] {
            let counts: Vec<String> =
                counts.iter().map(|(what, times)| format!("{what} {times}")).collect();
            writeln!(f, "{title}: {}", counts.join(", "))?;
        }
        write!(
            f,
            "after healing: all whole within {} ms; in {} runs first without a minority of the voters, \
             the others whole within {} ms",
            self.healed_ns_max / 1_000_000,
            self.spared,
            self.spared_ns_max / 1_000_000
        )
    }
}
