//! What operators of simulated clusters do against the loss of everything: they take backups, lose all
//! disks at once, and found a new history of the cluster from what they have (S13). Nothing of the old
//! history goes on, but messages of it may still be on their way.

use epicepoch_core::restore::{FloorError, Grounds, Surroundings, WallSample};
use epicepoch_core::restore::{backup, backup_of_directory, floor, genesis, newest};
use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{Epoch, NodeId};

use crate::disk::Disk;
use crate::history::Invariant;
use crate::node::{CLOCK_OFFSET_MAX_NS, Node, RESERVATION_NS, store_in};
use crate::versions::Version;
use crate::world::{MS, SECOND, World};

/// Histories that one run may begin.
const RESTORES_MAX: u32 = 4;
/// Longest time that a first member takes to say what its clock is.
const SAMPLE_NS_MAX: u64 = 200 * MS;
/// How far above what operators have moved the epoch to a floor is that they give by hand: each leader
/// after it has raised the ceiling by a little.
const BY_HAND_NS: u64 = SECOND;
/// By how much a clock is wrong that must be noticed.
const WRONG_NS: u64 = 10 * SECOND;
/// Of a thousand restores, how many are from the directory of a node that was stopped, and of a thousand
/// backups, for how many every node is asked.
const OF_DIRECTORY: u32 = 300;
const OF_ALL: u32 = 500;
/// The longest window and the widest bound that there are, milliseconds: what operators who do not know
/// better say of those of a cluster that is stopped.
const LONGEST_MS: u64 = 60_000;

/// What operators have, and have done.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    /// Backups of the history that goes on.
    backups: Vec<Backup>,
    /// Histories that were begun after the first one.
    pub(crate) era: u32,
    /// What operators have moved the epoch to in the history that goes on; 0 when they have not.
    advanced: Epoch,
}

impl Restores {
    /// An order to move the epoch to `to` was taken, whether or not it was carried out.
    pub(crate) fn advanced(&mut self, to: Epoch) {
        self.advanced = self.advanced.max(to);
    }
}

impl World {
    /// Takes a backup, or loses everything and goes on from one that was taken. What S13 cannot know is
    /// left out: a window or bound that was raised after the backup, and trusted time that no majority's
    /// clocks have proved, which is a known gap of S11.
    pub(crate) fn back_up_or_restore(&mut self) {
        let known_from = self.history.longest.known_from();
        self.restores.backups.retain(|backup| backup.index >= known_from);
        let is_over = self.restores.era >= RESTORES_MAX || self.history.is_clock_unproved;
        if self.restores.backups.is_empty() || is_over || self.random.u32(0..10) < 7 {
            self.back_up();
        } else {
            self.restore();
        }
    }

    /// Any node that runs says what it has applied, however far that is behind, unless its clock is wrong:
    /// nothing is founded before the time that a backup names. Or all of them do.
    pub(crate) fn back_up(&mut self) {
        let any = self.any();
        let are_all = self.chance(OF_ALL);
        let asked = self.nodes.iter().filter(|node| are_all || node.id == any);
        let told = asked.filter_map(|node| self.backup_of(node));
        let Some(backup) = told.reduce(newest) else { return };
        self.count("backup taken");
        self.restores.backups.push(backup);
    }

    fn backup_of(&self, node: &Node) -> Option<Backup> {
        let running = node.running.as_ref().filter(|_| !self.is_paused(node.id))?;
        let is_right = node.clock.broken_until_ns <= self.now_ns;
        let replica = &running.replica;
        is_right.then(|| backup(replica.state(), replica.applied(), self.around(node)))
    }

    fn around(&self, node: &Node) -> Surroundings {
        Surroundings {
            name: "simulated".into(),
            taken_ns: node.clock.wall_ns(self.now_ns),
            reservation_ms: RESERVATION_NS / MS,
            clock_offset_max_ms: CLOCK_OFFSET_MAX_NS / MS,
        }
    }

    /// What the directory of a stopped node says, if that is whole; of settings that it may not know,
    /// operators say what they know, or the longest.
    fn backup_of_stopped(&mut self, node: NodeId) -> Option<Backup> {
        let disk = &self.at(node).disk;
        if disk.is_empty() || disk.is_damaged() || disk.is_set_back() {
            return None;
        }
        let restored = disk.durable().clone();
        let is_known = restored.hard_state.commit >= self.history.longest.known_from();
        let mut around = self.around(self.at(node));
        if !is_known || self.random.bool() {
            (around.reservation_ms, around.clock_offset_max_ms) = (LONGEST_MS, LONGEST_MS);
        }
        Some(backup_of_directory(&restored, around).expect("a sound directory"))
    }

    /// Everything is lost at once. The operator gives the first members one of the backups, old or new, or
    /// what one of the directories still says.
    fn restore(&mut self) {
        let at = self.random.usize(0..self.restores.backups.len());
        let mut backup = self.restores.backups[at].clone();
        for id in self.ids() {
            self.crash(id);
            // As operators are told to, or no floor can be proved.
            if self.at(id).clock.broken_until_ns > self.now_ns {
                self.set_clock_right(id);
            }
        }
        let survivor = self.any();
        let is_found = self.chance(OF_DIRECTORY);
        if is_found && let Some(found) = self.backup_of_stopped(survivor) {
            self.count("backup of a stopped node");
            backup = found;
        }
        let first = self.first_members(&backup);
        self.refuse_wrong_clock(&backup, &first);
        let grounds = self.grounds(&first);
        let found = floor(Some(&backup), &grounds).and_then(|floor| {
            let drawn = self.random.u64(..);
            genesis(&backup, first, floor, grounds.own.1, drawn)
        });
        let genesis = match found {
            Ok(genesis) => genesis,
            Err(error) => {
                let what = || format!("right clocks prove no floor: {error}");
                return self.history.violate(Invariant::Restored, what);
            }
        };
        self.count("restored from a backup");
        self.note(|| format!("all is lost, and a history begins above {}", genesis.floor));
        self.history.restored(genesis.floor, &backup.removed);
        // As operators are told to: the next backup is one of the history that has begun.
        self.restores.backups.clear();
        self.restores.advanced = Epoch(0);
        self.restores.era += 1;
        let era = self.restores.era;
        self.genesis = genesis;
        for id in self.ids() {
            let is_first = self.genesis.members.iter().any(|member| member.node == id);
            let mut disk = Disk::founded(&self.genesis, is_first);
            let is_real = self.at(id).disk.is_real();
            disk.write_ns = self.at(id).disk.write_ns;
            let store = store_in(id, era);
            if !is_first {
                disk.make_empty();
            } else if is_real {
                disk.make_real(id, store);
            }
            let node = self.node(id);
            (node.disk, node.store) = (disk, store);
            // What it read of the old history is gone.
            node.version = Version::of(node.version.reads);
            self.start_later(id);
        }
    }

    /// As many as the first history had, none of them with an id that was removed; their directories
    /// are those of the history that begins.
    fn first_members(&self, backup: &Backup) -> Vec<Member> {
        let era = self.restores.era + 1;
        let member = |id: NodeId| Member { store: store_in(id, era), ..self.member(id) };
        let may = |id: &NodeId| {
            let members = vec![member(*id)];
            let refused = genesis(backup, members, Epoch(0), backup.taken_ns, 0);
            !matches!(refused, Err(FloorError::RemovedId(_)))
        };
        self.ids().filter(may).take(self.nemesis.voters as usize).map(member).collect()
    }

    /// What the founder, the first of them, knows of the clocks: each answer took a while to come, and
    /// may have been on its way for all of that or none. An operator who has moved the epoch says so by
    /// hand: no backup need know of it.
    fn grounds(&mut self, first: &[Member]) -> Grounds {
        let now_ns = self.now_ns;
        let founder = first[0].node;
        let mut others = Vec::new();
        for member in &first[1..] {
            let took_ns = self.random.u64(0..=SAMPLE_NS_MAX);
            let (before_ns, age_ns) = (self.random.u64(0..=took_ns), self.random.u64(0..SECOND));
            let wall_ns = self.at(member.node).clock.wall_ns(now_ns) - before_ns - age_ns;
            others.push(WallSample { node: member.node, wall_ns, took_ns, age_ns });
        }
        let advanced = self.restores.advanced;
        Grounds {
            by_hand: (advanced > Epoch(0)).then_some(Epoch(advanced.0 + BY_HAND_NS)),
            own: (founder, self.at(founder).clock.wall_ns(now_ns)),
            others,
            reservation_ns: RESERVATION_NS,
            bound_ns: CLOCK_OFFSET_MAX_NS,
        }
    }

    /// A clock that is wrong by far proves nothing: another one says so, or the backup does.
    fn refuse_wrong_clock(&mut self, backup: &Backup, first: &[Member]) {
        let mut grounds = self.grounds(first);
        let is_ahead = self.random.bool();
        match grounds.others.first_mut() {
            Some(other) if is_ahead => other.wall_ns += WRONG_NS,
            Some(other) => other.wall_ns -= WRONG_NS,
            None => grounds.own.1 = backup.taken_ns - WRONG_NS,
        }
        match floor(Some(backup), &grounds) {
            Err(FloorError::ClocksDisagree { .. } | FloorError::BeforeBackup { .. }) => {
                self.count("restore refused: wrong clock");
            }
            other => {
                let what = || format!("a wrong clock is taken for a proof: {other:?}");
                self.history.violate(Invariant::Restored, what);
            }
        }
    }
}
