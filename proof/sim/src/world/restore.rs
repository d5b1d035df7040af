//! Operators of simulated clusters that prepare for the loss of all data. They take backups, lose
//! all disks at once, and found a new history of the cluster from a backup (S13). The old history
//! ends, but its messages may still be under way.

use epicepoch_core::restore::{FloorError, Grounds, Surroundings, WallSample};
use epicepoch_core::restore::{backup, backup_of_directory, floor, genesis, newest};
use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{Epoch, NodeId};

use crate::disk::Disk;
use crate::history::Invariant;
use crate::node::{Node, store_in};
use crate::parameters::{CLOCK_OFFSET_MAX_NS, MS, RESERVATION_NS, SECOND};
use crate::version::Version;
use crate::world::World;
use crate::world::features::Feature;

/// A run has at most this many restores, each of which begins a new history.
const RESTORES_MAX: u32 = 4;
/// Longest time that a first member takes to report its clock, nanoseconds.
const SAMPLE_NS_MAX: u64 = 200 * MS;
/// How far a floor given by hand is above the epoch to which operators have moved, nanoseconds. The
/// margin is needed because each leader after the move has raised the ceiling by a little. A leader
/// of compact timestamps may also have raised it as far as time has passed since the move.
const BY_HAND_NS: u64 = SECOND;
/// A restore must be refused if a clock is wrong by this much, nanoseconds.
const WRONG_NS: u64 = 10 * SECOND;
/// `OF_DIRECTORY` of a thousand restores use the directory of a stopped node. `OF_ALL` of a
/// thousand backups ask every node. `OF_SETTINGS` of a thousand nodes that take new settings in are
/// backed up at that moment.
const OF_DIRECTORY: u32 = 300;
const OF_ALL: u32 = 500;
const OF_SETTINGS: u32 = 400;
/// The longest possible window, and also the widest possible clock bound, milliseconds. Operators
/// name this value for a stopped cluster whose settings they do not know.
const LONGEST_MS: u64 = 60_000;

/// The operators' backups and the restores so far.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    /// Backups of the current history.
    backups: Vec<Backup>,
    /// Number of histories begun after the first one.
    pub(crate) era: u32,
    /// The epoch that operators have moved to in the current history, and when they first moved it,
    /// nanoseconds of true time; `None` if they have not.
    advanced: Option<(Epoch, u64)>,
}

impl Restores {
    /// Records that a node accepted a command to move the epoch to `to`, even if the command was
    /// not carried out.
    pub(crate) fn advanced(&mut self, now_ns: u64, to: Epoch) {
        let (before, at_ns) = self.advanced.unwrap_or((to, now_ns));
        self.advanced = Some((before.max(to), at_ns));
    }
}

impl World {
    /// Takes a backup, or loses all data and restores one. Two cases that S13 does not cover are
    /// left out. One is a window or bound that was raised after the backup. The other is trusted
    /// time that no majority of clocks has proved, which is a known gap of S11.
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

    /// Takes a backup of the applied state of any running node, however old, or of all nodes. Nodes
    /// with a wrong clock are left out, because a restore is refused if a clock is earlier than the
    /// time in the backup.
    pub(crate) fn back_up(&mut self) {
        let any = self.any();
        let are_all = self.chance(OF_ALL);
        let asked = self.nodes.iter().filter(|node| are_all || node.id == any);
        let told = asked.filter_map(|node| self.backup_of(node));
        let Some(backup) = told.reduce(newest) else { return };
        self.count("backup taken");
        self.restores.backups.push(backup);
    }

    /// Sometimes takes a backup of a node that has just taken new settings in. It knows a window that
    /// was raised, and its ceiling is still that of the old window.
    pub(crate) fn back_up_settings(&mut self, id: NodeId) {
        if self.has(Feature::Restores)
            && self.chance(OF_SETTINGS)
            && let Some(told) = self.backup_of(self.at(id))
        {
            self.count("backup of new settings");
            self.restores.backups.push(told);
        }
    }

    fn backup_of(&self, node: &Node) -> Option<Backup> {
        let running = node.running.as_ref().filter(|_| !self.is_paused(node.id))?;
        let is_right = node.clock.broken_until_ns <= self.now_ns;
        let replica = running.replica();
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

    /// Makes a backup from a stopped node's directory, if the directory is undamaged. If the
    /// directory may not know some settings, operators name the ones that they know, or the
    /// longest.
    fn backup_of_stopped(&mut self, node: NodeId) -> Option<Backup> {
        let disk = &self.at(node).disk;
        if disk.is_empty() || disk.is_damaged() || disk.is_rolled_back() {
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

    /// The running cluster is lost for good. The operator founds a new one from a backup, old or
    /// new. Or, if the data directory of one node is left, from a backup of that directory.
    fn restore(&mut self) {
        let at = self.random.usize(0..self.restores.backups.len());
        let mut backup = self.restores.backups[at].clone();
        for id in self.ids() {
            self.crash(id);
            // The documents tell operators to set the clocks right first. Otherwise no floor can be
            // proved.
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
        self.record(|| format!("all is lost, and a history begins above {}", genesis.floor));
        self.history.restored(genesis.floor, &backup.removed);
        // The documents tell operators to use only backups of the new history from now on.
        self.restores.backups.clear();
        self.restores.advanced = None;
        self.restores.era += 1;
        let era = self.restores.era;
        self.genesis = genesis;
        self.monitor.restored(&self.genesis);
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
            // In the new history it no longer matters which formats the node once read.
            node.version = Version::of(node.version.reads);
            self.start_later(id);
        }
    }

    /// The first members of the new history: as many as the first history had. None of them has a
    /// removed id. Their directories belong to the new history.
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

    /// The clocks as the founder, the first of the members, knows them. Each sample took a while,
    /// and the clock was read at any moment of that time. An operator who has moved the epoch names
    /// it by hand, because a backup may not know it.
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
        let is_compact = self.may_be_compact();
        let by_hand = |(to, at_ns): (Epoch, u64)| {
            let pace_ns = if is_compact { now_ns - at_ns } else { 0 };
            Epoch(to.0 + BY_HAND_NS + pace_ns)
        };
        Grounds {
            by_hand: self.restores.advanced.map(by_hand),
            own: (founder, self.at(founder).clock.wall_ns(now_ns)),
            others,
            reservation_ns: RESERVATION_NS,
            bound_ns: CLOCK_OFFSET_MAX_NS,
        }
    }

    /// Checks that a restore refuses a clock that is far off. Another clock, or the backup, shows
    /// that this clock is wrong.
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
