//! The links between nodes. Some are cut, some are slow. A change does not affect messages that are
//! under way.

use epicepoch_core::confirm::Begun;
use epicepoch_wire::NodeId;

use crate::event::{End, Event};
use crate::parameters::{MS, NODES_MAX, WORKERS};
use crate::plane::Plane;
use crate::world::World;

/// The faults of each link, by direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    /// Whether a link is cut, by plane, sender and receiver.
    cuts: [[u16; NODES_MAX]; 2],
    /// Additional delay of a link, by sender and receiver, nanoseconds.
    slow_ns: [[u64; NODES_MAX]; NODES_MAX],
    /// The part of `slow_ns` that comes from distance. Healing does not end it.
    far_ns: [[u64; NODES_MAX]; NODES_MAX],
}

impl Links {
    /// Cuts the link from `from` to `to`.
    pub(crate) const fn cut(&mut self, from: NodeId, to: NodeId, plane: Plane) {
        self.cuts[plane as usize][from.0 as usize - 1] |= 1 << (to.0 - 1);
    }

    pub(crate) const fn is_cut(&self, from: NodeId, to: NodeId, plane: Plane) -> bool {
        self.cuts[plane as usize][from.0 as usize - 1] >> (to.0 - 1) & 1 == 1
    }

    /// Additional delay of the link from `from` to `to`, nanoseconds.
    pub(crate) const fn slow_ns(&self, from: NodeId, to: NodeId) -> u64 {
        self.slow_ns[from.0 as usize - 1][to.0 as usize - 1]
    }

    /// Joins all cut links.
    pub(crate) const fn join(&mut self) {
        self.cuts = [[0; NODES_MAX]; 2];
    }

    /// Ends the additional delays, except those of distance.
    pub(crate) const fn hasten(&mut self) {
        self.slow_ns = self.far_ns;
    }

    const fn slow(&mut self, from: NodeId, to: NodeId, ns: u64) {
        self.slow_ns[from.0 as usize - 1][to.0 as usize - 1] = ns;
    }
}

impl World {
    /// Ends every cut. Workers ask their newest round again over links that have come back, as they
    /// do over every new connection.
    pub(crate) fn join_links(&mut self) {
        self.links.join();
        for id in self.ids() {
            for worker in 0..WORKERS {
                let running = self.at(id).running.as_ref();
                let newest = running.and_then(|running| running.workers[worker].sequencer.newest());
                if let Some(Begun { confirm, published }) = newest {
                    self.summary.rounds_asked_again += 1;
                    let after_ns = self.link_ns();
                    self.schedule_own(id, after_ns, Event::Ask { confirm, published });
                }
            }
        }
    }

    /// Slows one link of a node, or all of them, for a while, in both directions or in one.
    pub(crate) fn slow_links(&mut self, node: NodeId, lasts_ns: u64) {
        if self.nodes.len() < 2 {
            return;
        }
        let what = self.slow_some(node);
        self.count(what);
        self.record(|| format!("{node}: {what} for {} ms", lasts_ns / MS));
        self.schedule_world(lasts_ns, Event::End { end: End::Slow });
    }

    /// In some runs, makes one link slow for the whole run, or all links of one node, as if the
    /// node were far away.
    pub(crate) fn draw_distance(&mut self) {
        if self.nodes.len() > 1 && self.chance(FAR_PER_THOUSAND) {
            let node = self.any();
            self.slow_some(node);
            self.links.far_ns = self.links.slow_ns;
            self.count("far apart all along");
        }
    }

    fn slow_some(&mut self, node: NodeId) -> &'static str {
        let (least, most) = SLOW_MS;
        let ns = self.random.u64(least..=most) * MS;
        let (is_there, is_back) =
            [(true, true), (true, true), (true, false), (false, true)][self.random.usize(0..4)];
        let is_one = self.random.bool();
        let others: Vec<NodeId> = self.ids().filter(|other| *other != node).collect();
        let only = others[self.random.usize(0..others.len())];
        for other in others.into_iter().filter(|other| !is_one || *other == only) {
            if is_there {
                self.links.slow(node, other, ns);
            }
            if is_back {
                self.links.slow(other, node, ns);
            }
        }
        if is_one { "link slow" } else { "links of a node slow" }
    }
}

/// Additional delay of a slow link, milliseconds. It is like a link to another building or to
/// another continent, and can exceed the election timeout.
const SLOW_MS: (u64, u64) = (5, 300);
/// This many of a thousand runs have a far link or node.
const FAR_PER_THOUSAND: u32 = 250;
