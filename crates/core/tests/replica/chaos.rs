//! Whole clusters under random faults, every step checked, and in the end all is healed and the
//! cluster must answer. Everything of a run comes from its seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use epicepoch_core::publication::Role;
use epicepoch_core::replica::{HandOver, Report};
use epicepoch_core::state::{MembershipChange, MembershipStep};
use epicepoch_wire::{NodeId, StoreId};

use crate::support::world::Weather;
use crate::support::{MS, Plane, Plant, TICK_NS, World, member};

/// What runs have exercised.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exercised {
    pub(crate) runs: u64,
    /// Runs in which leadership changed.
    pub(crate) runs_with_leader_changes: u64,
    /// Runs in which requests were answered in more than one term.
    pub(crate) runs_with_answers: u64,
    pub(crate) leaderships: u64,
    pub(crate) grants: u64,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) crashes: u64,
    pub(crate) changes: u64,
    pub(crate) compactions: u64,
    pub(crate) transfers: u64,
    pub(crate) snapshots: u64,
    pub(crate) refusals: u64,
    pub(crate) fatals: u64,
    pub(crate) healed_ticks_max: u64,
}

impl Exercised {
    pub(crate) fn add(&mut self, one: &Self) {
        self.runs += one.runs;
        self.runs_with_leader_changes += one.runs_with_leader_changes;
        self.runs_with_answers += one.runs_with_answers;
        self.leaderships += one.leaderships;
        self.grants += one.grants;
        self.answered += one.answered;
        self.refused += one.refused;
        self.crashes += one.crashes;
        self.changes += one.changes;
        self.compactions += one.compactions;
        self.transfers += one.transfers;
        self.snapshots += one.snapshots;
        self.refusals += one.refusals;
        self.fatals += one.fatals;
        self.healed_ticks_max = self.healed_ticks_max.max(one.healed_ticks_max);
    }
}

/// How a violation begins that the core itself has found, by an assertion.
pub(crate) const PANIC: &str = "PANIC: ";
/// How long the faults of a run last.
const FAULTS_NS: u64 = 1_500 * MS;
/// Within how many ticks a healed cluster answers.
const HEALED_TICKS_MAX: u64 = 150;
/// Nodes beyond the first voters.
const JOINING: [u64; 3] = [11, 12, 13];

struct Chaos {
    world: World,
    /// Faults that end: when, and how.
    ends: Vec<(u64, End)>,
    is_membership: bool,
    is_clock: bool,
    nonce: u64,
    crashes: u64,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Start(NodeId),
    Heal,
    Disk(NodeId),
    Clock(NodeId),
}

/// Runs one seed.
///
/// # Errors
/// What was violated, with the end of the trace if it was kept.
pub(crate) fn run(seed: u64, plant: Option<Plant>, is_traced: bool) -> Result<Exercised, String> {
    let run = || {
        let mut chaos = Chaos::new(seed, plant);
        if is_traced {
            chaos.world.trace = Some(Default::default());
        }
        let result = chaos.run();
        result.map_err(|what| format!("{what}\n{}", chaos.world.lines()))
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("{PANIC}{}", text.unwrap_or_default()))
    })
}

impl Chaos {
    fn new(seed: u64, plant: Option<Plant>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let voters = match random.u32(0..100) {
            0..4 => 1,
            4..10 => 2,
            10..80 => 3,
            _ => 5,
        };
        let mut world = World::new(seed, voters);
        world.plant = plant;
        let is_rough = random.bool();
        world.weather = Weather {
            delay_ns: (100_000, if is_rough { 5 * MS } else { MS }),
            lost: if is_rough { random.u32(0..50) } else { 0 },
            doubled: if is_rough { random.u32(0..100) } else { 0 },
            late: random.u32(0..40),
            together: random.u32(0..500),
            late_ns: random.u64(10..400) * MS,
            dither_ns: if random.bool() { random.u64(0..3 * MS) } else { 0 },
        };
        for node in world.nodes.values_mut() {
            node.disk.write_ns = random.u64(100_000..3 * MS);
        }
        // Some logs begin long, on a majority, so that they are compacted and others need a
        // snapshot.
        if random.u32(0..100) < 20 {
            for node in world.nodes.values_mut().skip((voters as usize - 1) / 2) {
                node.disk.fill(1_018);
            }
        }
        world.start_all();
        let is_membership = random.u32(0..100) < 35;
        if is_membership {
            for id in JOINING {
                world.add_joining(NodeId(id));
            }
        }
        let is_clock = random.bool();
        Self { world, ends: vec![], is_membership, is_clock, nonce: 0, crashes: 0 }
    }

    fn run(&mut self) -> Result<Exercised, String> {
        let start_ns = self.world.now_ns + 100 * MS;
        let (mut ask_ns, mut fault_ns) = (start_ns, start_ns);
        while self.world.now_ns < start_ns + FAULTS_NS {
            let now_ns = self.world.now_ns;
            if now_ns >= ask_ns {
                ask_ns = now_ns + self.world.random.u64(0..5 * MS);
                self.ask();
            }
            if now_ns >= fault_ns {
                fault_ns = now_ns + self.world.random.u64(5..90) * MS;
                self.fault();
            }
            self.end_faults(now_ns);
            if !self.world.step() {
                // Every node is down: time passes until one is started.
                let next_ns = self.ends.iter().map(|(at_ns, _)| *at_ns).min();
                self.world.now_ns = next_ns.ok_or("nothing will ever happen")?;
            }
            self.check()?;
        }
        let answered_terms = self.world.history.leaderships();
        let healed_ticks_max = self.heal()?;
        let world = &self.world;
        let reported = |holds: fn(&Report) -> bool| {
            let all = world.nodes.values().flat_map(|node| &node.reports);
            all.filter(|report| holds(report)).count() as u64
        };
        Ok(Exercised {
            runs: 1,
            runs_with_leader_changes: u64::from(answered_terms > 1),
            runs_with_answers: u64::from(world.history.answered > 1),
            leaderships: answered_terms as u64,
            grants: world.history.grants() as u64,
            answered: world.history.answered,
            refused: world.history.refused,
            crashes: self.crashes,
            changes: reported(|report| matches!(report, Report::Changed { .. })),
            compactions: reported(|report| matches!(report, Report::Compacted { .. })),
            transfers: reported(|report| matches!(report, Report::HandingOver { .. })),
            snapshots: reported(|report| matches!(report, Report::Installed { .. })),
            refusals: world.refusals.len() as u64,
            fatals: world.fatals,
            healed_ticks_max,
        })
    }

    fn check(&self) -> Result<(), String> {
        self.world.history.violations.first().map_or(Ok(()), |what| Err(what.clone()))
    }

    fn any(&mut self) -> NodeId {
        let ids = self.world.ids();
        ids[self.world.random.usize(0..ids.len())]
    }

    /// A node that believes to lead, if there is one and chance wants it.
    fn any_leading(&mut self) -> NodeId {
        let leading: Vec<NodeId> = self
            .world
            .nodes
            .values()
            .filter(|node| {
                let published = node.running.as_ref().map(|running| running.seen.published());
                published.is_some_and(|published| published.grant.is_some())
            })
            .map(|node| node.id)
            .collect();
        if leading.is_empty() || self.world.random.u32(0..100) < 15 {
            return self.any();
        }
        leading[self.world.random.usize(0..leading.len())]
    }

    fn ask(&mut self) {
        let (node, worker) = (self.any_leading(), self.world.random.usize(0..2));
        let count = self.world.random.u64(1..20);
        self.world.ask(node, worker, count);
    }

    fn fault(&mut self) {
        let lasts_ns = self.world.random.u64(20..400) * MS;
        let end_ns = self.world.now_ns + lasts_ns;
        let kind = self.world.random.u32(0..20);
        self.world.note(|| format!("fault {kind} for {lasts_ns}"));
        let node = match kind {
            0..14 if self.world.random.bool() => self.any_leading(),
            _ => self.any(),
        };
        match kind {
            0 | 1 => {
                self.crash(node);
                self.ends.push((end_ns, End::Start(node)));
            }
            2 | 3 => {
                self.crash(node);
                self.world.start(node);
            }
            4 | 5 => self.world.pause(node, Plane::Raft, lasts_ns),
            6 => self.world.pause(node, Plane::Workers, lasts_ns),
            7 => {
                self.world.pause(node, Plane::Raft, lasts_ns);
                self.world.pause(node, Plane::Workers, lasts_ns);
            }
            8 | 9 => {
                self.world.isolate(node, Plane::Raft);
                if self.world.random.bool() {
                    self.world.isolate(node, Plane::Workers);
                }
                self.ends.push((end_ns, End::Heal));
            }
            10 | 11 => {
                for _ in 0..self.world.random.usize(1..6) {
                    let (from, to) = (self.any(), self.any());
                    let plane = if self.world.random.bool() { Plane::Raft } else { Plane::Workers };
                    self.world.cuts.insert((from, to, plane));
                }
                self.ends.push((end_ns, End::Heal));
            }
            12 | 13 => self.slow_disk(node, end_ns),
            14 => self.step_clock(node, end_ns),
            15 => self.hand_over(),
            16 => {
                let (peer, leader) = (self.any(), self.any_leading());
                if peer != leader && self.world.nodes[&peer].running.is_some() {
                    self.world.with(peer, |replica, now| replica.handle_closed(now, leader));
                }
            }
            17 => {
                let peer = self.any();
                if peer != node && self.world.nodes[&node].running.is_some() {
                    self.world.with(node, |replica, now| replica.handle_unreachable(now, peer));
                }
            }
            _ if self.is_membership => self.change_members(),
            _ => {}
        }
    }

    fn crash(&mut self, node: NodeId) {
        self.crashes += 1;
        self.world.crash(node);
        if self.world.random.bool() {
            self.world.close(node);
        }
        let is_wiped = self.world.plant == Some(Plant::WipedDisk) && self.world.random.bool();
        if is_wiped && !JOINING.contains(&node.0) {
            let genesis = self.world.genesis.clone();
            self.world.node(node).disk = crate::support::disk::Disk::genesis(&genesis);
        }
    }

    fn slow_disk(&mut self, id: NodeId, end_ns: u64) {
        let write_ns = self.world.random.u64(5..200) * MS;
        let is_stuck = self.world.random.bool();
        let disk = &mut self.world.node(id).disk;
        disk.write_ns = write_ns;
        disk.is_stuck = is_stuck;
        self.ends.push((end_ns, End::Disk(id)));
    }

    fn step_clock(&mut self, id: NodeId, end_ns: u64) {
        let steps = [-3_600_000, -400, -20, 20, 400, 10_000, 3_600_000];
        let step = steps[self.world.random.usize(0..steps.len())] * MS as i64;
        let others = self.world.ids().into_iter().filter(|other| *other != id).collect();
        let node = self.world.node(id);
        node.successors = Some(others);
        self.ends.push((end_ns, End::Clock(id)));
        if self.is_clock {
            self.world.node(id).ahead_ns += step;
        }
    }

    fn hand_over(&mut self) {
        let leader = self.any_leading();
        let to = self.world.random.bool().then(|| self.any());
        if self.world.nodes[&leader].running.is_some() {
            self.world.with(leader, |replica, now| replica.hand_over(now, to, HandOver::Asked));
        }
    }

    fn change_members(&mut self) {
        let leader = self.any_leading();
        let Some(running) = &self.world.nodes[&leader].running else { return };
        if running.shared.published().role != Role::Leader {
            return;
        }
        let voters: Vec<NodeId> =
            running.shared.published().voters.iter().map(|(node, _)| node).collect();
        let random = &mut self.world.random;
        let joining = |random: &mut fastrand::Rng| NodeId(JOINING[random.usize(0..3)]);
        let voter = voters[random.usize(0..voters.len())];
        let learner = |node: NodeId| {
            MembershipStep::AddLearner(member(node, StoreId(u128::from(node.0) + 100)))
        };
        let steps = match random.u32(0..6) {
            0 | 1 => vec![learner(joining(random))],
            2 => vec![MembershipStep::Promote(joining(random))],
            3 if voters.len() > 2 => vec![MembershipStep::Remove(voter)],
            _ => {
                vec![MembershipStep::Promote(joining(random)), MembershipStep::Remove(voter)]
            }
        };
        self.nonce += 1;
        let change = MembershipChange { nonce: self.nonce, steps };
        // Whether it can be proposed just now is not the question here.
        let _ = self.world.with(leader, |replica, now| replica.propose_change(now, &change));
    }

    fn end_faults(&mut self, now_ns: u64) {
        while let Some(at) = self.ends.iter().position(|(at_ns, _)| *at_ns <= now_ns) {
            let (_, end) = self.ends.swap_remove(at);
            self.end(end);
        }
    }

    fn end(&mut self, end: End) {
        match end {
            End::Start(node) => {
                if self.world.nodes[&node].running.is_none() {
                    self.world.start(node);
                }
            }
            End::Heal => self.world.heal(),
            End::Disk(node) => {
                let disk = &mut self.world.node(node).disk;
                disk.write_ns = MS;
                disk.is_stuck = false;
            }
            End::Clock(node) => self.world.node(node).successors = None,
        }
    }

    /// Ends every fault. Returns after how many ticks the cluster answered.
    fn heal(&mut self) -> Result<u64, String> {
        for (_, end) in std::mem::take(&mut self.ends) {
            self.end(end);
        }
        self.world.heal();
        self.world.weather = Weather::FAIR;
        for id in self.world.ids() {
            self.world.pause(id, Plane::Raft, 0);
            self.world.pause(id, Plane::Workers, 0);
            self.end(End::Disk(id));
            self.end(End::Clock(id));
            self.end(End::Start(id));
        }
        let answered = self.world.history.answered;
        let (committed, fatals) = (self.world.committed(), self.world.fatals);
        for tick in 0..HEALED_TICKS_MAX {
            let end_ns = self.world.now_ns + TICK_NS;
            while self.world.now_ns < end_ns && self.world.step() {
                self.check()?;
            }
            if self.world.fatals > fatals {
                return Err(format!(
                    "LIVENESS: healed, and one gives up: {}",
                    self.world.summary()
                ));
            }
            if self.world.history.answered > answered && self.world.is_whole(committed) {
                return Ok(tick);
            }
            for id in self.world.ids() {
                self.world.start_if_down(id);
            }
            if let Some(leader) = self.world.leader() {
                self.world.ask(leader, 0, 1);
            }
        }
        let what = if self.world.history.answered > answered { "not whole" } else { "no answer" };
        Err(format!("LIVENESS: healed, and {what}: {}", self.world.summary()))
    }
}

/// Seeds of the randomized test: some 15 seconds of a development build, alone on the machine.
const SEEDS: u64 = 8_000;

/// [`SEEDS`], or what `CHAOS_SEEDS` said when this was compiled: mutation testing, which runs this
/// once for every mutant, takes fewer (`.cargo/mutants.toml`).
fn seeds() -> u64 {
    option_env!("CHAOS_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("a number of seeds"))
}

#[test]
fn clusters_under_random_faults_keep_every_guarantee_and_answer_when_healed() {
    let mut exercised = Exercised::default();
    for seed in 0..seeds() {
        match run(seed, None, false) {
            Ok(one) => exercised.add(&one),
            Err(what) => {
                let traced = run(seed, None, true).err().unwrap_or_default();
                panic!("seed {seed}: {what}\n{traced}");
            }
        }
    }
    #[expect(
        clippy::disallowed_macros,
        reason = "what a randomized test has reached is its result"
    )]
    {
        println!("{exercised:#?}");
    }
}
