//! The end of every fault, in some runs with as many voters broken for good as a cluster can spare.

use epicepoch_wire::NodeId;

use super::{End, RAFT, WORKERS};
use crate::links::Links;
use crate::node::THREADS;
use crate::world::{NODES_MAX, Weather, World};

/// What is wrong with a voter for good, while all others have healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// Its process does not start.
    Down,
    /// Its disk finishes nothing.
    Stuck,
    /// It hears nobody, and is heard.
    Deaf,
    /// It neither hears anybody nor is heard.
    CutOff,
}

/// What may be wrong with a voter for good.
const LASTING: [(Lasting, &str); 4] = [
    (Lasting::Down, "down for good"),
    (Lasting::Stuck, "disk stuck for good"),
    (Lasting::Deaf, "deaf for good"),
    (Lasting::CutOff, "cut off for good"),
];

impl World {
    /// Ends every fault.
    pub(crate) fn heal(&mut self) {
        self.note(|| "everything heals".into());
        self.nemesis.pause_ns = 0;
        self.weather = Weather::FAIR;
        self.links = Links::default();
        self.join_links();
        self.restore_versions();
        for id in self.ids() {
            self.end(End::Disk(id));
            self.end(End::SetBack(id));
            self.node(id).accepts_fail_until_ns = 0;
            // Who sets a clock that is right makes it step.
            if self.nemesis.is_clock {
                self.end(End::Clock(id));
            }
            if self.is_departing(id) {
                self.crash(id);
                self.close(id);
            }
            self.end(End::Start(id));
            for thread in 0..THREADS {
                self.resume(id, thread);
            }
        }
    }

    /// What does not heal with the rest.
    pub(crate) const fn lasting(&self, node: NodeId) -> Option<Lasting> {
        self.nemesis.lasting[node.0 as usize - 1]
    }

    /// Ends every fault, but leaves as many voters as a cluster can spare, or fewer, broken for good. Only
    /// where the voters are those of the beginning: else a change may be under way, for which others
    /// count.
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
            self.note(|| format!("{node}: {what}"));
        }
        // A process that is down stays down; of another that alone lasts which is drawn here.
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

    /// Now these heal, too.
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
            self.cut_all(&others, &[node], &[RAFT, WORKERS], is_both);
        }
    }
}
