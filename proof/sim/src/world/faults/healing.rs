//! The end of every fault. In some runs as many voters as a cluster can spare stay broken.

use epicepoch_wire::NodeId;

use crate::event::End;
use crate::network_conditions::NetworkConditions;
use crate::parameters::{NODES_MAX, THREADS};
use crate::plane::Plane;
use crate::world::World;
use crate::world::links::Links;

/// A fault of a voter that lasts after all other faults have healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// The voter's process does not start.
    Down,
    /// The voter's disk finishes no write.
    Stuck,
    /// The voter receives nothing. The others receive what it sends.
    Deaf,
    /// The voter is cut off in both directions.
    CutOff,
}

/// The lasting faults and their names in the counts.
const LASTING: [(Lasting, &str); 4] = [
    (Lasting::Down, "down for good"),
    (Lasting::Stuck, "disk stuck for good"),
    (Lasting::Deaf, "deaf for good"),
    (Lasting::CutOff, "cut off for good"),
];

impl World {
    /// Ends every fault.
    pub(crate) fn heal(&mut self) {
        self.record(|| "everything heals".into());
        self.nemesis.pause_ns = 0;
        self.conditions = NetworkConditions::FAIR;
        self.links = Links::default();
        self.join_links();
        self.heal_confirm_links();
        self.restore_versions();
        for id in self.ids() {
            self.end(End::Disk(id));
            self.end(End::RolledBack(id));
            self.node(id).accepts_fail_until_ns = 0;
            // In a run without clock faults the clocks are not set, because a healthy clock with a
            // small offset would step.
            if self.nemesis.is_clock {
                self.end(End::Clock(id));
            }
            if self.is_stopping(id) {
                self.crash(id);
                self.close(id);
            }
            self.end(End::Start(id));
            for thread in 0..THREADS {
                self.resume(id, thread);
            }
        }
    }

    /// The fault of this node that does not heal with the rest, if any.
    pub(crate) const fn lasting(&self, node: NodeId) -> Option<Lasting> {
        self.nemesis.lasting[node.0 as usize - 1]
    }

    /// Ends every fault, but leaves at most as many voters broken as a cluster can spare. This
    /// happens only while the voters are the first members, because a change under way needs
    /// others.
    pub(crate) fn heal_but_some(&mut self) {
        let voters = self.nemesis.voters;
        let mut broken: Vec<NodeId> = self.ids().filter(|id| id.0 <= voters).collect();
        self.random.shuffle(&mut broken);
        broken.truncate(self.random.usize(1..=(voters as usize - 1) / 2));
        let mut lasting = [None; NODES_MAX];
        for node in broken {
            let (kind, what) = LASTING[self.random.usize(0..LASTING.len())];
            lasting[node.0 as usize - 1] = Some(kind);
            self.count(what);
            self.record(|| format!("{node}: {what}"));
        }
        // `heal` must not start a process that is to stay down. It ends all other faults. Of these,
        // only the drawn ones begin again below.
        self.nemesis.lasting = lasting.map(|kind| kind.filter(|kind| *kind == Lasting::Down));
        self.heal();
        self.nemesis.lasting = lasting;
        for id in self.ids() {
            match self.lasting(id) {
                Some(Lasting::Down) => {
                    self.crash(id);
                    self.close(id);
                }
                Some(Lasting::Stuck) => self.node(id).disk.is_stuck = true,
                Some(Lasting::Deaf | Lasting::CutOff) | None => {}
            }
        }
        self.cut_lasting();
    }

    /// Ends the lasting faults, too.
    pub(crate) fn heal_the_rest(&mut self) {
        self.nemesis.lasting = [None; NODES_MAX];
        self.heal();
    }

    pub(super) fn cut_lasting(&mut self) {
        for node in self.ids() {
            let is_both = match self.lasting(node) {
                Some(Lasting::Deaf) => false,
                Some(Lasting::CutOff) => true,
                Some(Lasting::Down | Lasting::Stuck) | None => continue,
            };
            let others: Vec<NodeId> = self.ids().filter(|other| *other != node).collect();
            self.cut_all(&others, &[node], &[Plane::Raft, Plane::Workers], is_both);
        }
    }
}
