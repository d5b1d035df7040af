//! Nodes that send requests on to the leader, in runs with this option: connections and tasks around
//! the state machine that production drives, [`Forwarder`]. A frame reaches the leader as a request
//! of a client. Its answer is complete only when a request of the frame is answered, so the history
//! checks the outer requests. Connections end without notice, and frames and answers are lost. The
//! planted bugs of forwarders are here.

use std::collections::BTreeMap;

use epicepoch_core::sequencer::{Forwarder, LATEST, Refused};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{BootId, Guarantee, NodeId, TimestampRange};

use crate::event::{Answer, Asker, Event, Request};
use crate::history::Invariant;
use crate::parameters::{FORWARDERS_FROM, MS, SESSIONS_FROM, WORKERS};
use crate::plane::Plane;
use crate::plant::Plant;
use crate::world::World;

/// Least and longest time until the next frame, nanoseconds.
const TURN_NS: (u64, u64) = (20_000, 2 * MS);
/// This many of a thousand answers are lost, because the connection ends.
const LOST: u32 = 30;
/// For planted bugs: each frame asks for so many timestamps more than its requests.
const EXTRA: u64 = 40;

/// The frames that are on their way, by the number of the attempt that the leader knows.
#[derive(Debug, Default)]
pub(crate) struct Forwarded {
    attempts: u64,
    sent: BTreeMap<u64, Sent>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    by: NodeId,
    boot: BootId,
    worker: usize,
    link: u64,
    frame: u64,
}

/// The forwarder of one worker, and its connection.
pub(crate) struct Forwarding {
    pub(crate) forwarder: Forwarder<usize>,
    tickets: BTreeMap<usize, Request>,
    link: Option<Link>,
    links: u64,
    is_turn_due: bool,
    /// For a planted bug: timestamps that no request of their frame has taken.
    left_over: Option<TimestampRange>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    number: u64,
    to: NodeId,
    boot: BootId,
    worker: usize,
}

impl Forwarding {
    pub(crate) fn new(forwarder: Forwarder<usize>) -> Self {
        Self {
            forwarder,
            tickets: BTreeMap::new(),
            link: None,
            links: 0,
            is_turn_due: false,
            left_over: None,
        }
    }
}

impl World {
    fn forwarding(&mut self, id: NodeId, worker: usize) -> &mut Forwarding {
        &mut self.worker(id, worker).forwarding
    }

    /// A request that the node does not answer itself joins its forwarder. Returns `false` if it may
    /// not: requests of sessions and of other forwarders are direct.
    pub(crate) fn send_on(&mut self, id: NodeId, request: Request) -> bool {
        let is_of_forwarder = request.asker.client >= FORWARDERS_FROM;
        let is_direct = request.asker.client >= SESSIONS_FROM
            && !(is_of_forwarder && self.is_planted(Plant::ForwardLoop));
        let is_plain = request.count != LATEST && request.guarantee == Guarantee::Quorum;
        if !self.forwards || is_direct || !is_plain {
            return false;
        }
        let (now_ns, worker) = (self.monotonic_ns(id), request.worker);
        if self.is_planted(Plant::ForwardLeftover)
            && let Some(part) = self.take_left_over(id, worker, request.count)
        {
            self.answer(id, request, Answer::Given(part));
            return true;
        }
        let own = self.forwarding(id, worker);
        if !own.forwarder.may_join() {
            return false;
        }
        let Ok(slot) = own.forwarder.join(1, request.count, || now_ns) else { return false };
        *own.forwarder.outcome(slot).expect_err("it has just joined") = Some(slot);
        own.tickets.insert(slot, request);
        if is_of_forwarder {
            let what = || format!("node {id} sends on what node {id} was sent by a forwarder");
            self.history.violate(Invariant::Forwarded, what);
        }
        self.count("request sent on");
        self.want_forward_turn(id, worker);
        true
    }

    /// The client of a request has gone. Returns `false` if the request does not wait here.
    pub(crate) fn leave_forwarder(&mut self, id: NodeId, worker: usize, asker: Asker) -> bool {
        let own = self.forwarding(id, worker);
        let slot = own.tickets.iter().find(|(_, request)| request.asker == asker);
        let Some(slot) = slot.map(|(slot, _)| *slot) else { return false };
        own.tickets.remove(&slot);
        own.forwarder.leave(slot);
        self.count("client of a forwarder gone");
        true
    }

    fn want_forward_turn(&mut self, id: NodeId, worker: usize) {
        let own = self.forwarding(id, worker);
        if own.forwarder.has_waiting() && !std::mem::replace(&mut own.is_turn_due, true) {
            let after_ns = self.random.u64(TURN_NS.0..=TURN_NS.1);
            self.schedule_own(id, after_ns, Event::ForwardTurn { worker });
        }
    }

    /// Sends what waits, and connects first if there is no connection.
    pub(crate) fn forward_turn(&mut self, id: NodeId, worker: usize) {
        self.forwarding(id, worker).is_turn_due = false;
        self.connect_forwarder(id, worker);
        let now_ns = self.monotonic_ns(id);
        let by_boot = self.at(id).running().identity.boot;
        loop {
            let own = self.forwarding(id, worker);
            let Some(link) = own.link else { return };
            let Some(frame) = own.forwarder.poll_frame(now_ns) else { return };
            let sent = Sent { by: id, boot: by_boot, worker, link: link.number, frame: frame.id };
            self.forwarded.attempts += 1;
            let attempt = self.forwarded.attempts;
            self.forwarded.sent.insert(attempt, sent);
            if self.links.is_cut(id, link.to, Plane::Workers) {
                self.count("frame to the leader lost");
                continue;
            }
            let asker = Asker { client: FORWARDERS_FROM, attempt };
            let count = frame.count + if self.takes_extra() { EXTRA } else { 0 };
            let after_ns = self.link_ns();
            let arrives = Event::Arrive { worker: link.worker, asker, count };
            self.schedule(link.to, Some(link.boot), after_ns, arrives);
        }
    }

    fn connect_forwarder(&mut self, id: NodeId, worker: usize) {
        let own = self.forwarding(id, worker);
        if own.link.is_some() {
            return;
        }
        let Some(to) = own.forwarder.leader() else { return };
        let is_cut = self.links.is_cut(id, to, Plane::Workers);
        if to.0 > self.nodes.len() as u64 || is_cut || self.do_accepts_fail(to) {
            return;
        }
        let Some(boot) = self.at(to).running.as_ref().map(|it| it.identity.boot) else { return };
        let at = self.random.usize(0..WORKERS);
        let own = self.forwarding(id, worker);
        own.links += 1;
        own.link = Some(Link { number: own.links, to, boot, worker: at });
        own.forwarder.handle_linked();
    }

    fn lose_forward_link(&mut self, id: NodeId, worker: usize) {
        let own = self.forwarding(id, worker);
        if own.link.take().is_some() {
            let again = own.forwarder.handle_link_lost();
            if again > 0 {
                self.count("request sent on again");
            }
        }
    }

    /// A leader, or a node that does not lead, has answered a frame. The answer goes to the forwarder
    /// over the network.
    pub(crate) fn frame_answered(&mut self, asker: Asker, answer: Answer, by: NodeId) {
        let Some(sent) = self.forwarded.sent.remove(&asker.attempt) else { return };
        if self.links.is_cut(by, sent.by, Plane::Workers) {
            return self.count("answer to a forwarder lost");
        }
        let answer = if self.chance(LOST) { None } else { Some(answer) };
        let Sent { worker, link, frame, .. } = sent;
        let event = Event::FrameAnswered { worker, link, frame, answer };
        self.schedule(sent.by, Some(sent.boot), 0, event);
    }

    /// A forwarder reads an answer, or that its connection has ended.
    pub(crate) fn read_frame_answer(
        &mut self,
        id: NodeId,
        worker: usize,
        (link, frame): (u64, u64),
        answer: Option<Answer>,
    ) {
        let takes_extra = self.takes_extra();
        let own = self.forwarding(id, worker);
        if own.link.is_none_or(|it| it.number != link) {
            return self.count("answer over an ended connection");
        }
        let mut woken = vec![];
        match answer {
            None => self.lose_forward_link(id, worker),
            Some(Answer::Given(range)) => {
                let own_count = range.count() - if takes_extra { EXTRA } else { 0 };
                let parts = range.split_first(own_count);
                let (range, extra) = parts.expect("a frame takes at least one timestamp");
                let wake = |slot| woken.push(slot);
                let told = own.forwarder.handle_answer(frame, range, wake);
                told.expect("a leader answers frames of this connection");
                self.misuse(id, worker, (range, extra), &woken);
            }
            Some(Answer::Refused(hint)) => {
                let is_follower = hint.is_some() || self.random.bool();
                let code = if is_follower { ErrorCode::NotLeader } else { ErrorCode::NoQuorum };
                let own = self.forwarding(id, worker);
                let refused = own.forwarder.handle_refusal(frame, code, |slot| woken.push(slot));
                if refused.expect("of this connection") == Refused::NotLeading {
                    self.lose_forward_link(id, worker);
                }
            }
        }
        self.wake_forwarded(id, worker, &woken);
        self.want_forward_turn(id, worker);
    }

    fn wake_forwarded(&mut self, id: NodeId, worker: usize, woken: &[usize]) {
        for slot in woken {
            let Some(request) = self.forwarding(id, worker).tickets.get(slot) else { continue };
            let asker = request.asker;
            self.next_step(id, Event::ForwardWoken { worker, slot: *slot, asker });
        }
    }

    /// A request reads its outcome and gives its slot back, unless its client has gone.
    pub(crate) fn forward_woken(&mut self, id: NodeId, worker: usize, slot: usize, asker: Asker) {
        let own = self.forwarding(id, worker);
        let Some(request) = own.tickets.get(&slot).copied().filter(|it| it.asker == asker) else {
            return;
        };
        let outcome = *own.forwarder.outcome(slot).as_ref().expect("who is woken has an outcome");
        own.tickets.remove(&slot);
        own.forwarder.leave(slot);
        let answer = outcome.map_or(Answer::Refused(None), |it| Answer::Given(it.range));
        if outcome.is_ok() {
            self.count("request answered through the leader");
        }
        self.answer(id, request, answer);
    }

    /// The worker has read a publication.
    pub(crate) fn follow_forwarder(&mut self, id: NodeId, worker: usize) {
        let (now_ns, mut woken) = (self.monotonic_ns(id), vec![]);
        let published = self.at(id).running().seen.published();
        let own = self.forwarding(id, worker);
        let wake = |slot| woken.push(slot);
        if own.forwarder.handle_publication(now_ns, &published, wake) {
            self.lose_forward_link(id, worker);
        }
        self.wake_forwarded(id, worker, &woken);
        self.want_forward_turn(id, worker);
    }

    pub(crate) fn tick_forwarder(&mut self, id: NodeId, worker: usize) {
        let (now_ns, mut woken) = (self.monotonic_ns(id), vec![]);
        let own = self.forwarding(id, worker);
        let is_silent = own.forwarder.handle_tick(now_ns, |slot| woken.push(slot));
        let has_ended = own.link.is_some_and(|link| {
            let running = &self.at(link.to).running;
            running.as_ref().is_none_or(|it| it.identity.boot != link.boot)
        });
        if is_silent || has_ended {
            self.lose_forward_link(id, worker);
        }
        self.wake_forwarded(id, worker, &woken);
        self.want_forward_turn(id, worker);
    }

    fn takes_extra(&self) -> bool {
        matches!(self.plant(), Some(Plant::ForwardLateJoin | Plant::ForwardLeftover))
    }

    /// For planted bugs: what else a forwarder does with the range of a frame, and with timestamps that
    /// it has asked for beyond it.
    fn misuse(
        &mut self,
        id: NodeId,
        worker: usize,
        (range, extra): (TimestampRange, Option<TimestampRange>),
        woken: &[usize],
    ) {
        match self.plant() {
            Some(Plant::ForwardLateJoin) => self.give_late(id, worker, extra, woken),
            Some(Plant::ForwardTwice) => self.give_late(id, worker, Some(range), woken),
            Some(Plant::ForwardLeftover) => self.forwarding(id, worker).left_over = extra,
            _ => {}
        }
    }

    /// For planted bugs: requests that have joined after the frame get parts of a range.
    fn give_late(
        &mut self,
        id: NodeId,
        worker: usize,
        mut rest: Option<TimestampRange>,
        woken: &[usize],
    ) {
        let own = self.forwarding(id, worker);
        let late = own.tickets.iter().filter(|(slot, _)| !woken.contains(slot));
        let late: Vec<_> = late.map(|(slot, request)| (*slot, *request)).collect();
        for (slot, request) in late {
            let Some((part, behind)) = rest.and_then(|it| it.split_first(request.count)) else {
                continue;
            };
            rest = behind;
            let own = self.forwarding(id, worker);
            if own.forwarder.outcome(slot).is_err() {
                own.tickets.remove(&slot);
                own.forwarder.leave(slot);
                self.answer(id, request, Answer::Given(part));
            }
        }
    }

    fn take_left_over(&mut self, id: NodeId, worker: usize, count: u64) -> Option<TimestampRange> {
        let own = self.forwarding(id, worker);
        let (part, rest) = own.left_over?.split_first(count)?;
        own.left_over = rest;
        Some(part)
    }
}
