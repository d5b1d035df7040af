//! Threads that stop and go on. A paused thread handles nothing; the events that come meanwhile wait
//! for it.

use std::ops::Range;

use epicepoch_wire::NodeId;

use crate::event::{End, Event};
use crate::world::World;

impl World {
    /// Pauses threads for `ns`. A thread that is already paused for longer keeps its later end.
    pub(crate) fn pause(&mut self, id: NodeId, threads: Range<usize>, ns: u64) {
        let until_ns = self.now_ns + ns;
        for thread in threads {
            let paused_until_ns = &mut self.node(id).paused_until_ns[thread];
            *paused_until_ns = until_ns.max(*paused_until_ns);
            self.schedule_world(ns, Event::End { end: End::Pause(id, thread) });
        }
    }

    /// A thread goes on after a pause. It first handles all events that came meanwhile, in order,
    /// and then the ticks.
    pub(crate) fn resume(&mut self, id: NodeId, thread: usize) {
        let now_ns = self.now_ns;
        let node = self.node(id);
        node.clock.lease.resume(now_ns);
        node.paused_until_ns[thread] = 0;
        for (boot, event) in std::mem::take(&mut node.held[thread]) {
            let is_tick = matches!(event, Event::Tick | Event::WorkerTick { .. });
            self.schedule(id, boot, u64::from(is_tick), event);
        }
    }

    /// Whether the consensus plane of a node is paused.
    pub(crate) fn is_paused(&self, id: NodeId) -> bool {
        self.at(id).paused_until_ns[0] > 0
    }
}
