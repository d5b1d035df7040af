//! Versions of simulated nodes: in some runs some read only older formats of the state, and operators
//! update them one by one, or set one back. The gate (S15) has to keep what a node cannot read from it,
//! and the format where it is until every member has said that it reads the next.

use epicepoch_core::state::FORMATS;
use epicepoch_wire::NodeId;

use crate::event::Event;
use crate::faults::End;
use crate::features::{Feature, SALTS, VERSIONS};
use crate::history::Invariant;
use crate::node::Run;
use crate::plant::Plant;
use crate::world::{MS, World};

/// Which formats a node reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    /// The newest.
    pub(crate) reads: u32,
    /// The newest that it has ever read: above `reads` once an operator has set it back.
    best: u32,
}

impl Default for Version {
    fn default() -> Self {
        Self::of(FORMATS.newest)
    }
}

impl Version {
    pub(crate) const fn of(reads: u32) -> Self {
        Self { reads, best: reads }
    }

    pub(crate) const fn is_set_back(self) -> bool {
        self.reads < self.best
    }

    fn install(&mut self, reads: u32) {
        self.reads = reads;
        self.best = self.best.max(reads);
    }
}

impl World {
    /// Gives every node its first version.
    pub(crate) fn draw_versions(&mut self) {
        if !self.has(Feature::Versions) {
            return;
        }
        let formats = u64::from(FORMATS.newest - FORMATS.oldest + 1);
        for id in self.ids() {
            let step = self.hashed(VERSIONS + id.0 * SALTS) % formats;
            self.node(id).version = Version::of(FORMATS.oldest + step as u32);
        }
    }

    /// An operator stops a node and starts it as another version: mostly a newer one.
    pub(crate) fn change_version(&mut self) {
        let node = self.any();
        let before = self.at(node).version.reads;
        let drawn = self.random.u32(FORMATS.oldest..=FORMATS.newest);
        let reads = if self.random.u32(0..10) < 4 { before.max(drawn) } else { drawn };
        if reads == before {
            return;
        }
        self.count(if reads > before { "node updated" } else { "node set back to a version" });
        self.note(|| format!("{node} reads up to format {reads} from its next start on"));
        self.crash(node);
        self.close(node);
        self.node(node).version.install(reads);
        self.start_later(node);
    }

    /// Whether a connection between `id` and a run of `from` comes about: each reads what the other
    /// may send. A planted bug does not ask.
    pub(crate) fn can_speak(&mut self, id: NodeId, from: NodeId, run: Run) -> bool {
        let running = self.at(id).running();
        let (reads, needed) = (self.at(id).version.reads, running.replica.format_needed());
        if run.reads >= needed && reads >= run.needs || self.is_planted(Plant::UncheckedFormat) {
            return true;
        }
        self.summary.refusals += 1;
        self.count("message of another version");
        for (node, is_old) in [(from, run.reads < needed), (id, reads < run.needs)] {
            if is_old {
                self.see_refused(node);
            }
        }
        false
    }

    /// An operator reads that a node is too old, and updates it, if he had set it back or has just
    /// added it. What was there from the beginning is updated when its turn comes: nothing has to be
    /// raised before.
    fn see_refused(&mut self, node: NodeId) {
        let is_spare = node.0 > self.nemesis.voters;
        if is_spare || self.at(node).version.is_set_back() {
            let after_ns = self.random.u64(100..1_000) * MS;
            self.schedule_world(after_ns, Event::End { end: End::Update(node) });
        }
    }

    /// A node that wants to join is refused, because it is too old.
    pub(crate) fn refuse_joining(&mut self, node: NodeId) {
        self.count("joining refused: too old");
        self.node(node).version.install(FORMATS.newest);
    }

    /// The newest version is installed on a node that is too old.
    pub(crate) fn update(&mut self, node: NodeId) {
        if self.at(node).version.reads == FORMATS.newest {
            return;
        }
        self.count("node updated after a refusal");
        self.crash(node);
        self.close(node);
        self.node(node).version.install(FORMATS.newest);
        self.start_if_down(node);
    }

    /// Whoever was set back gets back what it was.
    pub(crate) fn restore_versions(&mut self) {
        for id in self.ids() {
            if self.at(id).version.is_set_back() {
                self.update(id);
            }
        }
    }

    /// A node holds what it cannot read: at its start, or in its log. Only one that was set back may.
    pub(crate) fn holds_unreadable(&mut self, node: NodeId, what: impl FnOnce() -> String) {
        if !self.at(node).version.is_set_back() {
            self.history.violate(Invariant::Readable, what);
        }
        self.count("stopped: of a newer format");
        self.see_refused(node);
    }
}
