//! Clients. Each asks for timestamps, or for the latest one, again and again, follows refusals to
//! the named leader, gives up after a while and asks another node. Some ask any node that believes
//! it leads, even a deposed one. The history checks the answers. Clients that run the session of
//! the Rust client are in `sessions`.

use epicepoch_core::sequencer::LATEST;
use epicepoch_wire::NodeId;

use crate::event::{Answer, Asker, Event};
use crate::parameters::{FORWARDERS_FROM, MS, NODES_MAX, SESSIONS_FROM, WORKERS};
use crate::world::World;

/// This many of a thousand requests ask for the latest timestamp.
const LATEST_OF_THOUSAND: u32 = 125;

/// One client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) target: NodeId,
    /// The worker of that node with the client's last request.
    pub(crate) worker: usize,
    /// Number of the last attempt. The client waits for its answer while `is_waiting` is set.
    pub(crate) attempt: u64,
    pub(crate) is_waiting: bool,
    /// Longest pause between an answer and the next request, nanoseconds.
    pub(crate) think_ns: u64,
    /// How long the client waits for an answer before it asks another node, nanoseconds.
    pub(crate) patience_ns: u64,
    /// The node that answered last. The client still reaches it when no new client can connect.
    pub(crate) connected: Option<NodeId>,
    /// Whether the client asks any node that believes it leads.
    pub(crate) is_blind: bool,
}

impl World {
    pub(crate) fn add_clients(&mut self, count: usize) {
        for client in 0..count {
            let target = self.any();
            self.clients.push(Client {
                target,
                worker: 0,
                attempt: 0,
                is_waiting: false,
                think_ns: self.random.u64(10..50) * MS,
                patience_ns: self.random.u64(50..600) * MS,
                connected: None,
                is_blind: client % 2 == 0,
            });
            let after_ns = self.random.u64(0..100 * MS);
            self.schedule_world(after_ns, Event::Client { client });
        }
    }

    pub(crate) fn client_asks(&mut self, client: usize) {
        let mut own = self.clients[client];
        if own.is_waiting {
            return;
        }
        if own.is_blind {
            own.target = self.any_leading();
        } else if self.forwards && self.random.bool() {
            own.target = self.any();
        }
        own.attempt += 1;
        own.is_waiting = true;
        own.worker = self.random.usize(0..WORKERS);
        self.clients[client] = own;
        let asker = Asker { client, attempt: own.attempt };
        let is_large = self.chance(20);
        let count = if let Some(count) = self.draw_large_count() {
            self.count("most of a millisecond asked for");
            count
        } else if self.chance(LATEST_OF_THOUSAND) {
            self.count("latest timestamp asked for");
            LATEST
        } else {
            self.random.u64(1..if is_large { 1_000 } else { 20 })
        };
        let (worker, after_ns) = (own.worker, self.link_ns());
        if own.connected == Some(own.target) || !self.do_accepts_fail(own.target) {
            self.schedule(own.target, None, after_ns, Event::Arrive { worker, asker, count });
        }
        self.schedule_world(own.patience_ns, Event::GiveUp { asker });
    }

    /// A request arrives at a machine without a running process.
    pub(crate) fn arrive_nowhere(&mut self, id: NodeId, asker: Asker) {
        // A client with a session gets no refusal here, because its connection has broken with the
        // process.
        if asker.client < SESSIONS_FROM && self.random.bool() {
            self.schedule_world(
                MS,
                Event::Answered { asker, answer: Answer::Refused(None), by: id },
            );
        }
    }

    pub(crate) fn client_gives_up(&mut self, asker: Asker) {
        let own = self.clients[asker.client];
        if own.is_waiting && own.attempt == asker.attempt {
            self.summary.given_up += 1;
            if self.random.bool() {
                // The client closes its connection.
                let after_ns = self.link_ns();
                let event = Event::Leave { worker: own.worker, asker };
                self.schedule(own.target, None, after_ns, event);
            }
            self.clients[asker.client].is_waiting = false;
            self.clients[asker.client].target = self.any();
            self.schedule_world(0, Event::Client { client: asker.client });
        }
    }

    pub(crate) fn client_answered(&mut self, asker: Asker, answer: Answer, by: NodeId) {
        if asker.client >= FORWARDERS_FROM {
            return self.frame_answered(asker, answer, by);
        }
        if asker.client >= SESSIONS_FROM {
            return self.session_answered(asker, answer);
        }
        let own = self.clients[asker.client];
        if !own.is_waiting || own.attempt != asker.attempt {
            return;
        }
        self.clients[asker.client].is_waiting = false;
        self.clients[asker.client].connected = self.at(by).running.as_ref().map(|_| by);
        let after_ns = match answer {
            Answer::Given(_) => {
                self.clients[asker.client].target = by;
                self.random.u64(0..=own.think_ns)
            }
            Answer::Refused(Some(leader)) => {
                self.clients[asker.client].target = leader;
                self.random.u64(1..=10) * MS
            }
            Answer::Refused(None) => {
                self.clients[asker.client].target = self.any();
                self.random.u64(1..=40) * MS
            }
        };
        self.schedule_world(after_ns, Event::Client { client: asker.client });
    }

    /// Draws a node: mostly one that believes it leads, if there is one.
    pub(crate) fn any_leading(&mut self) -> NodeId {
        let (mut leading, mut count) = ([NodeId(0); NODES_MAX], 0);
        for node in self.nodes.iter().filter(|node| node.holds_grant()) {
            leading[count] = node.id;
            count += 1;
        }
        if count == 0 || self.chance(50) {
            return self.any();
        }
        leading[self.random.usize(0..count)]
    }
}
