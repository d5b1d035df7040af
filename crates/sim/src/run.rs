//! One run: everything of it comes from its seed. Faults for a while, every step checked; then
//! all heals and the cluster must answer within a bound.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use epicepoch_core::clock::{TrustedClock, trusted_ns};
use epicepoch_wire::LogIndex;

use crate::clock::START_NS;
use crate::faults::{End, Lasting, Nemesis, OFFSET_MS, RATE_PPM};
use crate::features::{BELIEVED, Feature, SPARED};
use crate::history::{Invariant, Violation};
use crate::node::Node;
use crate::plant::Plant;
use crate::summary::Summary;
use crate::trace::Trace;
use crate::world::{MS, SECOND, World};
#[cfg(debug_assertions)]
use epicepoch_core::planted;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where everything comes from.
    pub seed: u64,
    /// Simulated time with faults, seconds.
    pub seconds: u64,
    /// First voters; drawn from the seed where it is `None`.
    pub nodes: Option<u64>,
    /// Whether the members' disks hold the database of production; drawn where it is `None`.
    pub is_real: Option<bool>,
    /// A bug to plant; a release build ignores it.
    pub plant: Option<Plant>,
    /// How many of the last events are told, and how many of the last that are no part of a request; 0 for
    /// none, which is faster.
    pub story_len: usize,
}

impl Options {
    /// A run of a minute, without a story.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed, seconds: 60, nodes: None, is_real: None, plant: None, story_len: 0 }
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An invariant was broken.
    Safety(Violation),
    /// All had healed, and within the bound nobody answered, or not all was well again.
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
    /// Of everything that happened, in its order: the same seed gives the same.
    pub hash: u64,
    /// What was exercised.
    pub summary: Summary,
    /// What was wrong, if anything.
    pub failure: Option<Failure>,
    /// The last events, if asked for.
    pub story: VecDeque<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(options: Options) -> Outcome {
    // The core's own asserts are silent while a bug is planted: the checkers have to find it.
    #[cfg(debug_assertions)]
    let _planted = options.plant.map(|plant| planted::plant(plant.bug()));
    let mut world = None;
    // The core runs while a world is set up, too.
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
        return Outcome { hash: 0, summary, failure, story: VecDeque::new() };
    };
    let mut summary = world.summary;
    summary.runs = 1;
    summary.simulated_ns = world.now_ns;
    summary.leaderships = vec![world.history.leaderships() as u64];
    summary.ranges = world.history.ranges() as u64;
    if world.history.is_guessed_behind {
        summary.faults.insert("clock guessed at a start, behind", 1);
    }
    let story = world.trace.map(Trace::into_lines).unwrap_or_default();
    Outcome { hash: world.hash, summary, failure, story }
}

impl World {
    /// A cluster of as many nodes as are drawn, of which none is started.
    fn bare(options: &Options, random: &mut fastrand::Rng) -> Self {
        let drawn = match random.u32(0..100) {
            0..8 => 1,
            8..68 => 3,
            68..92 => 5,
            _ => 7,
        };
        let voters = options.nodes.unwrap_or(drawn);
        let spare = if random.u32(0..100) < 35 { 9 } else { 0 };
        let mut world = Self::new(options.seed, voters, spare, options.plant);
        if options.story_len > 0 {
            world.trace = Some(Trace::keeping(options.story_len));
        }
        world
    }

    /// Draws what the run is like, and starts everybody.
    fn set_up(&mut self, options: &Options, mut random: fastrand::Rng) {
        let voters = self.genesis.members.len() as u64;
        // Some logs begin long, on a majority, so that they are compacted and others need a
        // snapshot.
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
        self.unleash(voters, options.seconds * SECOND);
        self.operate_later();
        for id in self.ids() {
            self.start(id);
        }
        let clients = self.random.usize(4..9);
        self.add_clients(clients);
    }

    /// In some runs spare nodes have empty directories until they are added, and in some the last of
    /// the first members has missed the founding.
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
        // A clock that is off by less than the bound is believed, and that of a leader is followed.
        let halves = if is_clock { 2 + SAMPLE_HALVES } else { SAMPLE_HALVES };
        let halves = is_believable.then_some(halves);
        self.live_until(seconds * SECOND, halves)?;
        self.recover_without_some(halves)?;
        let healed_ns = self.now_ns;
        self.recover(halves)?;
        self.believe_again(healed_ns)
    }

    /// Lives until then, every step checked; where a clock of a healthy majority, as nodes see it, may
    /// be off by no more than its error and so many halves of the widest bound that was ever gone by,
    /// against true time, too.
    pub(crate) fn live_until(&mut self, end_ns: u64, halves: Option<u64>) -> Result<(), Failure> {
        while self.step(end_ns) {
            let half_ns = self.history.longest.bound_ns() / 2;
            self.history.believable = halves.map(|halves| self.around_true_time(halves * half_ns));
            self.check()?;
        }
        self.now_ns = end_ns;
        Ok(())
    }

    /// True time less and plus `off_ns` and the error of a clock that nobody broke.
    const fn around_true_time(&self, off_ns: u64) -> (u64, u64) {
        let true_ns = START_NS + self.now_ns;
        let off_ns = off_ns + clock_error_max_ns(self.now_ns);
        (true_ns - off_ns, true_ns + off_ns)
    }

    /// Everything heals, and within a bound the cluster must answer and be whole again.
    pub(crate) fn recover(&mut self, halves: Option<u64>) -> Result<(), Failure> {
        self.heal_the_rest();
        self.summary.healed_ns_max = self.be_whole(HEALED_NS_MAX, halves)?;
        self.come_to_rest(halves)
    }

    /// In some runs a minority of the voters does not heal with the rest, and must not be needed: the
    /// others answer, and are whole, within a bound that is larger.
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

    /// Lives on until all is well that has healed, and returns how long that took.
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
        let standing = self.standing();
        let spared = self.ids().filter(|id| self.lasting(*id).is_some()).count();
        let healed = if spared == 0 { "everything".into() } else { format!("all but {spared}") };
        Err(Failure::Liveness(format!("{seconds} s after {healed} had healed {what}{standing}")))
    }

    /// In some of the runs with wrong clocks: once no sample is left of the time before they were set
    /// right, every voter goes by its own clock again, and so do epochs, but for a ceiling that is ahead
    /// already.
    fn believe_again(&mut self, healed_ns: u64) -> Result<(), Failure> {
        if !self.nemesis.is_clock || !self.is_in(BELIEVED, BELIEVED_RUNS) {
            return Ok(());
        }
        // A single voter has no clock to hold its own against.
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

    /// Every voter's trusted time, as its workers read it, is no further from true time than its own
    /// clock.
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
                    running.clock
                );
                return self.history.violate(Invariant::Bound, || what);
            }
        }
    }

    /// Where leaders have places, leadership comes to the best of them, and stays there: nobody hands
    /// it on any more. What was under way when all healed, such as a vote that a slow disk held back,
    /// may cost that leader its term once.
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
                let standing = self.standing();
                let what = format!("after {seconds} s leadership is not where it should be");
                return Err(Failure::Liveness(format!("{what}{standing}")));
            }
            let next_ns = self.now_ns + 250 * MS;
            self.live_until(next_ns, halves)?;
        }
        Ok(())
    }

    /// What is not well yet, if anything: nobody answers; nobody is fit to; a member has not applied
    /// what was committed when all healed; the voters are still those of a change under way; a
    /// replica has given up.
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
        if leader.running().replica.is_handing_over() {
            return Some(format!("{} waits for another one to take over", leader.id));
        }
        if leader.is_used_up(self.now_ns) {
            return Some(format!("the range of {} is used up, and no other comes", leader.id));
        }
        let members = leader.running().replica.state().members.keys();
        for member in members.filter(|member| self.lasting(**member).is_none()) {
            let Some(running) = &self.at(*member).running else {
                return Some(format!("member {member} does not run"));
            };
            let applied = running.replica.applied();
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

    /// What is known to be committed, wherever it is.
    fn committed(&self) -> LogIndex {
        let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
        let committed = running.map(|running| running.replica.status().committed);
        committed.max().unwrap_or(LogIndex(0))
    }

    fn gave_up(&self) -> u64 {
        self.summary.faults.get(GAVE_UP).copied().unwrap_or(0)
    }

    /// Whether a node is not broken for good, or may lead all the same: nobody notices a disk that is stuck
    /// as long as there is nothing to write, as where operators have moved the epoch far ahead.
    fn is_fit(&self, node: &Node) -> bool {
        match self.lasting(node.id) {
            None => true,
            Some(Lasting::Stuck) => node.holds_grant(),
            Some(Lasting::Down | Lasting::Deaf | Lasting::CutOff) => false,
        }
    }

    /// Whether a leader says of itself what operators would want to read: that it leads, reaches a
    /// quorum and is fit to lead; and a follower of it that it is reached.
    fn is_ready(&self) -> bool {
        let healthy = self.nodes.iter().filter(|node| self.is_fit(node));
        let running = healthy.filter_map(|node| node.running.as_ref());
        let (mut leads, mut follows) = (false, false);
        for running in running {
            let (replica, published) = (&running.replica, running.shared.published());
            let status = replica.status();
            let is_ready = replica.is_quorum_reached() && !replica.is_impaired();
            let is_leader = status.leader == Some(running.identity.node);
            // What it stamped stands below the ceiling that it publishes.
            let is_below = running.stamper.epoch() <= replica.ceiling();
            let known = status.peers.iter().all(|peer| peer.matched <= status.last);
            leads |= is_ready && known && is_below && is_leader && published.grant.is_some();
            let is_alone = is_leader && published.voters.len() == 1;
            follows |= is_alone || is_ready && published.other_leader().is_some();
        }
        leads && follows
    }

    fn check(&self) -> Result<(), Failure> {
        match &self.history.violation {
            Some(violation) => Err(Failure::Safety(violation.clone())),
            None => Ok(()),
        }
    }
}

/// How things stood when all healed.
#[derive(Clone, Copy, Debug)]
struct Healed {
    at_ns: u64,
    answered: u64,
    committed: LogIndex,
    gave_up: u64,
}

/// What is counted when a replica ends its process.
pub(crate) const GAVE_UP: &str = "replica gave up";
/// Of a hundred runs, how many have the real database on the members' disks.
const REAL_PERCENT: u32 = 5;
/// Within which a healed cluster answers again. An election takes less than a second; a replica
/// that has to give up first, and a client that waits for a node that was down, take theirs.
const HEALED_NS_MAX: u64 = 5 * SECOND;
/// Of so many runs, in one a minority of the voters does not heal with the rest; within which the others
/// must answer.
const SPARED_RUNS: u64 = 4;
const SPARED_NS_MAX: u64 = 10 * SECOND;
/// Within which leadership is where it should be: the longest wait between two offers is 80 s, with
/// the election timeout of production.
const PLACED_NS_MAX: u64 = 100 * SECOND;
/// For how long it then has to stay: more than the shortest wait, twice.
const RESTING_NS: u64 = 12 * SECOND;
/// Of so many runs with wrong clocks, one lives on until their samples have expired, and then so long.
const BELIEVED_RUNS: u64 = 2;
const BELIEVED_NS: u64 = SECOND;
/// Answers that prove it.
const ANSWERS_HEALED: u64 = 5;

/// How far a sample may be off, halves of the bound: a round trip that took all of its time one way.
pub(crate) const SAMPLE_HALVES: u64 = 1;

/// How far a clock that nobody broke is from true time: its offset, and its rate until now. Trusted
/// time may be of a sample of another such clock, so that both count twice.
const fn clock_error_max_ns(now_ns: u64) -> u64 {
    2 * (OFFSET_MS as u64 * MS + now_ns / 1_000_000 * RATE_PPM as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_a_run_is_set_up_is_a_crash_with_its_words_and_its_story() {
        // In a world without a node no client finds one to ask.
        let outcome = run(Options { nodes: Some(0), story_len: 10, ..Options::new(1) });
        let Some(Failure::Crash(what)) = outcome.failure else { panic!("{:?}", outcome.failure) };
        assert!(!what.is_empty());
        assert_eq!((outcome.summary.runs, outcome.summary.events), (1, 0), "nothing has happened");
    }
}
