//! The versions of simulated nodes. In some runs some nodes read only older formats, and operators
//! update them one by one, or roll one back. The format gate (S15) must send a node only what it
//! can read, and raise the format only when every member reads the next one.

use epicepoch_core::state::FORMATS;
use epicepoch_wire::NodeId;

use crate::event::{End, Event, PeerHello};
use crate::history::Invariant;
use crate::parameters::MS;
use crate::plant::Plant;
use crate::version::Version;
use crate::world::World;
use crate::world::features::{Feature, SALTS, VERSIONS};

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

    /// An operator stops a node and starts it with another version, mostly a newer one.
    pub(crate) fn change_version(&mut self) {
        let node = self.any();
        let before = self.at(node).version.reads;
        let drawn = self.random.u32(FORMATS.oldest..=FORMATS.newest);
        let reads = if self.random.u32(0..10) < 4 { before.max(drawn) } else { drawn };
        if reads == before {
            return;
        }
        self.count(if reads > before { "node updated" } else { "node downgraded" });
        self.record(|| format!("{node} reads up to format {reads} from its next start on"));
        self.crash(node);
        self.close(node);
        self.node(node).version.install(reads);
        self.start_later(node);
    }

    /// Whether `id` accepts a connection from a process of `from`. Each must read everything that
    /// the other may send. With a planted bug this check is skipped.
    pub(crate) fn can_speak(&mut self, id: NodeId, from: NodeId, hello: PeerHello) -> bool {
        let running = self.at(id).running();
        let (reads, needed) = (self.at(id).version.reads, running.replica().format_needed());
        if hello.reads >= needed && reads >= hello.needs || self.is_planted(Plant::UncheckedFormat)
        {
            return true;
        }
        self.summary.refusals += 1;
        self.count("message of another version");
        for (node, is_old) in [(from, hello.reads < needed), (id, reads < hello.needs)] {
            if is_old {
                self.see_refused(node);
            }
        }
        false
    }

    /// An operator learns that a node is too old. A node that was rolled back or has just been
    /// added is updated now. Others are updated in their turn, and the format is not raised before.
    fn see_refused(&mut self, node: NodeId) {
        let is_spare = node.0 > self.nemesis.voters;
        if is_spare || self.at(node).version.is_rolled_back() {
            let after_ns = self.random.u64(100..1_000) * MS;
            self.schedule_world(after_ns, Event::End { end: End::Update(node) });
        }
    }

    /// A joining node was refused because its version is too old. Its operator installs the newest
    /// version.
    pub(crate) fn refuse_joining(&mut self, node: NodeId) {
        self.count("joining refused: too old");
        self.node(node).version.install(FORMATS.newest);
    }

    /// An operator installs the newest version on a node that is too old.
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

    /// Operators install the newest version on rolled-back nodes again.
    pub(crate) fn restore_versions(&mut self) {
        for id in self.ids() {
            if self.at(id).version.is_rolled_back() {
                self.update(id);
            }
        }
    }

    /// A node has found data that it cannot read, at its start or in its log. Only a node whose
    /// version was rolled back may hold such data.
    pub(crate) fn holds_unreadable(&mut self, node: NodeId, what: impl FnOnce() -> String) {
        if !self.at(node).version.is_rolled_back() {
            self.history.violate(Invariant::Readable, what);
        }
        self.count("stopped: of a newer format");
        self.see_refused(node);
    }
}
