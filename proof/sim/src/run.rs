//! One run of a seed. Faults happen for a while, and every step is checked. Then all faults heal,
//! and the cluster must answer within a bound.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use epicepoch_core::clock::{TrustedClock, trusted_ns};
use epicepoch_wire::LogIndex;

use crate::event::End;
use crate::history::{Invariant, Violation};
use crate::node::Node;
use crate::parameters::{MS, SECOND, START_NS};
use crate::plant::Plant;
use crate::summary::Summary;
use crate::trace::Trace;
use crate::world::World;
use crate::world::consensus::GAVE_UP;
use crate::world::faults::{Lasting, Nemesis, OFFSET_MS, RATE_PPM};
use crate::world::features::{BELIEVED, Feature, SPARED};

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed of all random draws.
    pub seed: u64,
    /// Simulated time with faults, seconds.
    pub seconds: u64,
    /// Number of first voters; `None` draws it from the seed.
    pub nodes: Option<u64>,
    /// Whether the members' disks hold the production database; `None` draws it from the seed.
    pub is_real: Option<bool>,
    /// A bug to plant; a release build ignores it.
    pub plant: Option<Plant>,
    /// Whether nodes that do not lead send requests on to the leader in any case; otherwise the
    /// seed draws it.
    pub forwards: bool,
    /// Whether the monitor checks that the run does only what the specification allows.
    pub is_watched: bool,
    /// How many lines the trace keeps: the last lines about requests, and as many other lines. 0
    /// keeps none, which is faster.
    pub trace_len: usize,
}

impl Options {
    /// Options for a run of a minute, without a trace.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            seconds: 60,
            nodes: None,
            is_real: None,
            plant: None,
            forwards: false,
            is_watched: true,
            trace_len: 0,
        }
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An invariant was broken.
    Safety(Violation),
    /// After healing, the cluster did not answer, or did not fully recover, within the bound.
    Liveness(String),
    /// Code under test panicked, perhaps by an `assert!` that cites an invariant.
    Crash(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safety(violation) => write!(f, "SAFETY {violation}"),
            Self::Liveness(what) => write!(f, "LIVENESS {what}"),
            Self::Crash(what) => write!(f, "CRASH {what}"),
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Hash of all events in order: the same seed gives the same hash.
    pub hash: u64,
    /// Counts of what the run exercised.
    pub summary: Summary,
    /// The first failure, if any.
    pub failure: Option<Failure>,
    /// The last events, if asked for.
    pub trace: VecDeque<String>,
    /// The rules of the specification that were checked.
    #[cfg(test)]
    pub(crate) checked: std::collections::BTreeSet<&'static str>,
}

/// Runs one seed.
#[must_use]
pub fn run(options: Options) -> Outcome {
    let mut world = None;
    // The setup of a world also runs the core, so its panics must be caught, too.
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut random = fastrand::Rng::with_seed(options.seed ^ 0x5eed);
        let world = world.insert(World::bare(&options, &mut random));
        world.set_up(&options, random);
        world.live(options.seconds)
    }));
    let failure = match lived {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Some(Failure::Crash(text.unwrap_or_default()))
        }
    };
    let Some(world) = world else {
        let summary = Summary { runs: 1, ..Summary::default() };
        return Outcome {
            hash: 0,
            summary,
            failure,
            trace: VecDeque::new(),
            #[cfg(test)]
            checked: std::collections::BTreeSet::new(),
        };
    };
    let mut summary = world.summary;
    summary.runs = 1;
    summary.simulated_ns = world.now_ns;
    summary.leaderships = vec![world.history.leaderships() as u64];
    summary.ranges = world.history.ranges() as u64;
    if world.history.is_guessed_behind {
        summary.faults.insert("clock guessed at a start, behind", 1);
    }
    let trace = world.trace.map(Trace::into_lines).unwrap_or_default();
    Outcome {
        hash: world.hash,
        summary,
        failure,
        trace,
        #[cfg(test)]
        checked: world.monitor.checked,
    }
}

impl World {
    /// A cluster of a drawn size, not started yet.
    fn bare(options: &Options, random: &mut fastrand::Rng) -> Self {
        let drawn = match random.u32(0..100) {
            0..8 => 1,
            8..12 => 2,
            12..15 => 4,
            15..68 => 3,
            68..92 => 5,
            _ => 7,
        };
        let voters = options.nodes.unwrap_or(drawn);
        let spare = if random.u32(0..100) < 35 { 9 } else { 0 };
        let mut world = Self::new(options.seed, voters, spare, options.plant);
        world.forwards |= options.forwards;
        if !options.is_watched {
            world.monitor.turn_off();
        }
        if options.trace_len > 0 {
            world.trace = Some(Trace::keeping(options.trace_len));
        }
        world
    }

    /// Draws the run's features and faults, and starts all nodes.
    fn set_up(&mut self, options: &Options, mut random: fastrand::Rng) {
        let voters = self.genesis.members.len() as u64;
        // In some runs a majority begins with a long log. The log is soon compacted, and the other
        // nodes need a snapshot.
        if random.u32(0..100) < 20 {
            for node in self.nodes.iter_mut().take(voters as usize).skip((voters as usize - 1) / 2)
            {
                node.disk.fill(1_010);
            }
        }
        self.empty(voters);
        let is_real = random.u32(0..100) < REAL_PERCENT;
        let is_model = options.plant.is_some_and(Plant::is_in_disk);
        let is_lying = self.is_planted(Plant::RealLyingDisk);
        if is_lying || options.is_real.unwrap_or(is_real) && !is_model {
            self.summary.real = 1;
            let founded = |node: &&mut Node| !node.disk.is_empty();
            for node in self.nodes.iter_mut().take(voters as usize).filter(founded) {
                node.disk.make_real(node.id, node.store);
            }
        }
        self.draw_versions();
        self.draw_lease_clocks();
        self.draw_faults(voters, options.seconds * SECOND);
        self.operate_later();
        for id in self.ids() {
            self.start(id);
        }
        let clients = self.random.usize(4..9);
        self.add_all_clients(clients);
    }

    /// Empties directories in some runs. Spare nodes may have empty directories until they are
    /// added. The last of the first members may have missed the founding.
    fn empty(&mut self, voters: u64) {
        let misses = voters >= 3 && self.has(Feature::MissedFounding);
        let are_spares_empty = self.has(Feature::EmptyDirectories);
        let mut is_any_without = false;
        for node in &mut self.nodes {
            let has_missed =
                misses && node.id.0 == voters && node.disk.durable().entries.is_empty();
            if node.id.0 > voters && are_spares_empty || has_missed {
                node.disk.make_empty();
            }
            is_any_without |= has_missed;
        }
        if is_any_without {
            self.count("founding missed");
        }
    }

    fn live(&mut self, seconds: u64) -> Result<(), Failure> {
        let Nemesis { is_clock, is_clock_minority, .. } = self.nemesis;
        self.history.is_healthy = !is_clock;
        let is_believable = !is_clock || is_clock_minority;
        // Nodes believe a wrong clock that is off by less than the bound, and follow it if it is
        // the leader's. So a wrong clock may add a whole bound, which is two halves.
        let halves = if is_clock { 2 + SAMPLE_HALVES } else { SAMPLE_HALVES };
        let halves = is_believable.then_some(halves);
        self.live_until(seconds * SECOND, halves)?;
        self.recover_without_some(halves)?;
        let healed_ns = self.now_ns;
        self.recover(halves)?;
        self.believe_again(healed_ns)
    }

    /// Runs until `end_ns` and checks every step. While a majority of clocks is healthy, trusted
    /// time may differ from true time. The difference is at most the clocks' error plus `halves`
    /// times half of the widest bound ever in use.
    pub(crate) fn live_until(&mut self, end_ns: u64, halves: Option<u64>) -> Result<(), Failure> {
        while self.step(end_ns) {
            let half_ns = self.history.longest.bound_ns() / 2;
            self.history.believable = halves.map(|halves| self.around_true_time(halves * half_ns));
            self.check()?;
        }
        self.now_ns = end_ns;
        Ok(())
    }

    /// True time minus, and plus, the sum of `off_ns` and the error of a healthy clock.
    const fn around_true_time(&self, off_ns: u64) -> (u64, u64) {
        let true_ns = START_NS + self.now_ns;
        let off_ns = off_ns + clock_error_max_ns(self.now_ns);
        (true_ns - off_ns, true_ns + off_ns)
    }

    /// Heals all faults. Within a bound the cluster must answer and be fully recovered.
    pub(crate) fn recover(&mut self, halves: Option<u64>) -> Result<(), Failure> {
        self.heal_the_rest();
        self.summary.healed_ns_max = self.be_whole(HEALED_NS_MAX, halves)?;
        self.come_to_rest(halves)
    }

    /// In some runs a minority of the voters stays broken. The others must answer and recover
    /// within a larger bound.
    fn recover_without_some(&mut self, halves: Option<u64>) -> Result<(), Failure> {
        let voters = self.nemesis.voters;
        let are_fixed = self.nodes.len() as u64 == voters && voters >= 3;
        if are_fixed && self.is_in(SPARED, SPARED_RUNS) {
            self.heal_but_some();
            self.summary.spared = 1;
            self.summary.spared_ns_max = self.be_whole(SPARED_NS_MAX, halves)?;
        }
        Ok(())
    }

    /// Runs until everything that was healed has recovered. Returns how long that took,
    /// nanoseconds.
    fn be_whole(&mut self, bound_ns: u64, halves: Option<u64>) -> Result<u64, Failure> {
        let healed = Healed {
            at_ns: self.now_ns,
            answered: self.summary.answered,
            committed: self.committed(),
            gave_up: self.gave_up(),
        };
        while self.now_ns < healed.at_ns + bound_ns {
            self.live_until(self.now_ns + 50 * MS, halves)?;
            if self.unwell(healed).is_none() {
                return Ok(self.now_ns - healed.at_ns);
            }
            for id in self.ids() {
                self.end(End::Start(id));
            }
        }
        let what = self.unwell(healed).unwrap_or_default();
        let seconds = bound_ns / SECOND;
        let statuses = self.node_statuses();
        let spared = self.ids().filter(|id| self.lasting(*id).is_some()).count();
        let healed = if spared == 0 { "everything".into() } else { format!("all but {spared}") };
        Err(Failure::Liveness(format!("{seconds} s after {healed} had healed {what}{statuses}")))
    }

    /// In some runs with wrong clocks the run goes on until all samples from before the repair of
    /// the clocks have expired. From then on every voter must follow its own clock again. Epochs
    /// must follow the clocks again, unless the ceiling is ahead.
    fn believe_again(&mut self, healed_ns: u64) -> Result<(), Failure> {
        if !self.nemesis.is_clock || !self.is_in(BELIEVED, BELIEVED_RUNS) {
            return Ok(());
        }
        // A single voter has no other clock to compare its own with, so this check does not apply.
        let voters = |node: &Node| node.published().map_or(0, |published| published.voters.len());
        if self.nodes.iter().find(|node| node.holds_grant()).map_or(0, voters) < 2 {
            return Ok(());
        }
        let settled_ns = (healed_ns + TrustedClock::SAMPLE_AGE_MAX_NS + SECOND).max(self.now_ns);
        self.live_until(settled_ns, None)?;
        self.count("clocks believed again");
        let believable = self.around_true_time(0);
        self.history.settle(believable);
        while self.now_ns < settled_ns + BELIEVED_NS {
            self.live_until(self.now_ns + 50 * MS, Some(0))?;
            self.check_trusted_time();
            self.check()?;
        }
        Ok(())
    }

    /// Checks the trusted time of every voter, as its workers read it. That time must be no further
    /// from true time than a healthy clock may be.
    fn check_trusted_time(&mut self) {
        let Some(leader) = self.nodes.iter().find(|node| node.holds_grant()) else { return };
        let (earliest_ns, latest_ns) = self.around_true_time(0);
        let voters = leader.running().shared.published().voters.clone();
        for (voter, _) in voters.iter() {
            let Some(running) = &self.at(voter).running else { continue };
            let trusted_ns = trusted_ns(self.monotonic_ns(voter), running.trusted_offset_ns);
            if trusted_ns < earliest_ns || trusted_ns > latest_ns {
                let what = format!(
                    "all clocks are right, and voter {voter} trusts {trusted_ns}, which is not from \
                     {earliest_ns} to {latest_ns}: {:?}",
                    running.consensus.clock()
                );
                return self.history.violate(Invariant::Bound, || what);
            }
        }
    }

    /// If leaders have preferred zones, leadership must come to the best zone and stay there. Work
    /// that was under way when all faults healed, such as a vote that a slow disk held back, may
    /// cost that leader its term once.
    fn come_to_rest(&mut self, halves: Option<u64>) -> Result<(), Failure> {
        let mut since = 0;
        for _ in 0..2 {
            self.come_to_the_best(halves)?;
            if self.is_well_placed().is_none() {
                return Ok(());
            }
            let before = self.history.leaderships();
            let end_ns = self.now_ns + RESTING_NS;
            self.live_until(end_ns, halves)?;
            since = self.history.leaderships() - before;
            if since == 0 {
                return self.misplaced().map_or(Ok(()), |what| Err(Failure::Liveness(what)));
            }
        }
        let what =
            format!("leadership does not come to rest: {since} leaders after the best, again");
        Err(Failure::Liveness(what))
    }

    fn come_to_the_best(&mut self, halves: Option<u64>) -> Result<(), Failure> {
        let bound_ns = self.now_ns + PLACED_NS_MAX;
        while self.is_well_placed() == Some(false) {
            if self.now_ns >= bound_ns {
                let seconds = PLACED_NS_MAX / SECOND;
                let statuses = self.node_statuses();
                let what = format!("after {seconds} s leadership is not where it should be");
                return Err(Failure::Liveness(format!("{what}{statuses}")));
            }
            let next_ns = self.now_ns + 250 * MS;
            self.live_until(next_ns, halves)?;
        }
        Ok(())
    }

    /// The first thing that has not recovered yet, if any: the cluster does not answer; no leader
    /// is fit to answer; a member lacks entries committed before healing; a change of voters is
    /// unfinished; a replica has given up.
    fn unwell(&self, healed: Healed) -> Option<String> {
        if self.gave_up() > healed.gave_up {
            return Some("a replica gives up".into());
        }
        if self.summary.answered <= healed.answered + ANSWERS_HEALED {
            return Some("nobody answers".into());
        }
        if let Some(asker) = self.history.untold(healed.at_ns) {
            return Some(format!("{asker:?} waits for a word of the node that it asked"));
        }
        if !self.is_ready() {
            return Some("no leader and follower say that they are well".into());
        }
        let Some(leader) = self.serving().filter(|node| self.is_fit(node)) else {
            return Some("nobody holds a range".into());
        };
        let workers = &leader.running().workers;
        if let Some(worker) = workers.iter().position(|it| it.confirmed_at_ns <= healed.at_ns) {
            return Some(format!("no round of worker {worker} of {} is confirmed", leader.id));
        }
        if leader.running().replica().is_handing_over() {
            return Some(format!("{} waits for another one to take over", leader.id));
        }
        if leader.is_used_up(self.now_ns) {
            return Some(format!("the range of {} is used up, and no other comes", leader.id));
        }
        let members = leader.running().replica().state().members.keys();
        for member in members.filter(|member| self.lasting(**member).is_none()) {
            let Some(running) = &self.at(*member).running else {
                return Some(format!("member {member} does not run"));
            };
            let applied = running.replica().applied();
            if applied < healed.committed {
                let committed = healed.committed;
                return Some(format!("member {member} has applied {applied} of {committed}"));
            }
            if running.shared.published().voters.is_joint() {
                return Some(format!("member {member} is in a joint configuration"));
            }
        }
        None
    }

    /// The highest commit index known to any node.
    fn committed(&self) -> LogIndex {
        let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
        let committed = running.map(|running| running.replica().status().committed);
        committed.max().unwrap_or(LogIndex(0))
    }

    fn gave_up(&self) -> u64 {
        self.summary.faults.get(GAVE_UP).copied().unwrap_or(0)
    }

    /// Whether a node can be the leader. It can if it is not broken for good. It also can if its
    /// disk is stuck and nothing has to be written, because then nothing notices the disk. An
    /// example: operators have moved the epoch far ahead.
    fn is_fit(&self, node: &Node) -> bool {
        match self.lasting(node.id) {
            None => true,
            Some(Lasting::Stuck) => node.holds_grant(),
            Some(Lasting::Down | Lasting::Deaf | Lasting::CutOff) => false,
        }
    }

    /// Whether the status of the nodes is what operators expect. The leader reports that it leads,
    /// reaches a quorum and is fit to lead. A follower reports that its leader reaches it.
    fn is_ready(&self) -> bool {
        let healthy = self.nodes.iter().filter(|node| self.is_fit(node));
        let running = healthy.filter_map(|node| node.running.as_ref());
        let (mut leads, mut follows) = (false, false);
        for running in running {
            let (replica, published) = (running.replica(), running.shared.published());
            let status = replica.status();
            let is_ready = replica.is_quorum_reached() && !replica.is_impaired();
            let is_leader = status.leader == Some(running.identity.node);
            // No epoch of the leader may be above the ceiling that it reports.
            let is_below = running.stamper.epoch() <= replica.ceiling();
            let known = status.peers.iter().all(|peer| peer.matched <= status.last);
            leads |= is_ready && known && is_below && is_leader && published.grant.is_some();
            let is_alone = is_leader && published.voters.len() == 1;
            follows |= is_alone || is_ready && published.other_leader().is_some();
        }
        leads && follows
    }

    fn check(&self) -> Result<(), Failure> {
        let most = self.most_waiting();
        if most > WAITING_MAX {
            let what = format!("{most} events wait: messages cause more messages without end");
            return Err(Failure::Liveness(what));
        }
        match self.monitor.broken.as_ref().or(self.history.violation.as_ref()) {
            Some(violation) => Err(Failure::Safety(violation.clone())),
            None => Ok(()),
        }
    }
}

/// The time and the counts at the moment of healing.
#[derive(Clone, Copy, Debug)]
struct Healed {
    at_ns: u64,
    answered: u64,
    committed: LogIndex,
    gave_up: u64,
}

/// Events that may wait at once, far above the most that any run without a bug has had.
const WAITING_MAX: usize = 1_000_000;
/// In this many percent of the runs, the members' disks hold the real database.
const REAL_PERCENT: u32 = 5;
/// Longest time until a healed cluster answers again, nanoseconds. An election takes less than a
/// second. It takes longer if a replica must give up first, or a client waits for a node that was
/// down.
const HEALED_NS_MAX: u64 = 5 * SECOND;
/// One in `SPARED_RUNS` runs leaves a minority of the voters broken. Then the others must answer
/// within `SPARED_NS_MAX`.
const SPARED_RUNS: u64 = 4;
const SPARED_NS_MAX: u64 = 10 * SECOND;
/// Time after healing within which leadership must come to the best zone. The longest wait between
/// two offers is 80 s with the production election timeout.
const PLACED_NS_MAX: u64 = 100 * SECOND;
/// How long leadership must then stay in that zone: more than twice the shortest wait between two
/// offers.
const RESTING_NS: u64 = 12 * SECOND;
/// One in `BELIEVED_RUNS` runs with wrong clocks goes on until the samples of these clocks have
/// expired, and for `BELIEVED_NS` after that.
const BELIEVED_RUNS: u64 = 2;
const BELIEVED_NS: u64 = SECOND;
/// So many answers after healing show that the cluster answers again.
const ANSWERS_HEALED: u64 = 5;

/// How far off a sample may be, in halves of the bound: the whole round trip may have been spent in
/// one direction.
pub(crate) const SAMPLE_HALVES: u64 = 1;

/// How far a healthy clock may be from true time: its offset, plus what its rate has added until
/// now. Both count twice, because trusted time may come from a sample of another such clock.
const fn clock_error_max_ns(now_ns: u64) -> u64 {
    2 * (OFFSET_MS as u64 * MS + now_ns / 1_000_000 * RATE_PPM as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_a_run_is_set_up_is_a_crash_with_its_words_and_its_story() {
        // In a run without nodes the clients have no node to ask, and the simulator panics.
        let outcome = run(Options { nodes: Some(0), trace_len: 10, ..Options::new(1) });
        let Some(Failure::Crash(what)) = outcome.failure else { panic!("{:?}", outcome.failure) };
        assert!(!what.is_empty());
        assert_eq!((outcome.summary.runs, outcome.summary.events), (1, 0), "nothing has happened");
    }
}
