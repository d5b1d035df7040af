//! Which events the trace of a run shows.

use epicepoch_wire::NodeId;
use epicepoch_wire::raft_message::RaftMessage;

use crate::event::Event;
use crate::world::World;

impl World {
    /// Records an event, unless it is one of the many that say little.
    pub(crate) fn record_event(&mut self, to: NodeId, event: &Event) {
        match event {
            // There are too many of these events to log. Only their effects are logged.
            Event::Tick
            | Event::WorkerTick { .. }
            | Event::LookForLate { .. }
            | Event::Share
            | Event::Ping { .. }
            | Event::Pong { .. } => {}
            Event::Raft { from, bytes, .. } => {
                let message = RaftMessage::decode(bytes);
                self.record(|| format!("{to} receives from {from}: {message:?}"));
            }
            Event::Ask { confirm, .. } => {
                let line = || format!("{to} asks for term {}: {confirm:?}", confirm.term);
                self.record_of(event.kind(), line);
            }
            event if event.plane().is_none() => {
                self.record_of(event.kind(), || format!("world: {event:?}"));
            }
            event => self.record_of(event.kind(), || format!("{to} {event:?}")),
        }
    }
}
