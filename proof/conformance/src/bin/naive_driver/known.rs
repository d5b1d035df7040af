//! What the client knows of the cluster, and how it executes a call: which node it asks, and which
//! answers it accepts. It handles one call at a time.

use std::time::{Duration, Instant};

use epicepoch_conformance::{Fault, Refusal};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{Request, Welcome};
use epicepoch_wire::{ClusterId, HistoryId, Timestamp, TimestampRange};

use crate::connection::{Connection, End, Event};
use crate::plant::Plant;

/// What the client knows of the cluster.
#[derive(Debug)]
pub(crate) struct Known {
    seeds: Vec<String>,
    cluster_name: Option<String>,
    members: Vec<String>,
    leader: Option<String>,
    /// Nodes that did not answer, and when that was. For a while, the client ignores hints to them.
    suspects: Vec<(String, Instant)>,
    cluster: Option<(ClusterId, HistoryId)>,
    floor: Option<Timestamp>,
    turn: usize,
    last_id: u64,
    /// Number of failed attempts since the last answer.
    setbacks: u32,
    hops: u32,
    last: String,
    /// The connection to the leader, and its address.
    connection: Option<(String, Connection)>,
    attempt: Duration,
    /// After how long without an answer a request is sent a second time, over a new connection.
    hedge: Option<Duration>,
    /// For [`Plant::KeepBurnt`]: the connection over which the second answer to a hedged request
    /// comes.
    burnt: Option<Connection>,
    /// For [`Plant::Prefetch`]: timestamps fetched in advance.
    pool: Option<TimestampRange>,
    plant: Plant,
}

/// Why an attempt failed.
enum Trouble {
    /// Try another node.
    Leave(String),
    /// Try that node.
    Follow(String),
    /// Try the same node later.
    Pause(String),
    /// No retry helps.
    Fail(Refusal),
}

impl Known {
    pub(crate) fn new(
        seeds: Vec<String>,
        cluster_name: Option<String>,
        attempt: Duration,
        hedge: Option<Duration>,
        plant: Plant,
    ) -> Self {
        Self {
            seeds,
            cluster_name,
            members: Vec::new(),
            leader: None,
            suspects: Vec::new(),
            cluster: None,
            floor: None,
            turn: 0,
            last_id: 0,
            setbacks: 0,
            hops: 0,
            last: "nothing was tried".to_owned(),
            connection: None,
            attempt,
            hedge,
            burnt: None,
            pool: None,
            plant,
        }
    }

    /// Executes a call. `is_over` returns a refusal if the call must end early.
    pub(crate) fn pursue(
        &mut self,
        count: u64,
        is_over: &dyn Fn(&str) -> Option<Refusal>,
    ) -> Result<TimestampRange, Refusal> {
        if let Some(range) = self.take_pooled(count) {
            return Ok(range);
        }
        loop {
            if let Some(refusal) = is_over(&self.last) {
                return Err(refusal);
            }
            let trouble = match self.attempt(count, is_over) {
                Ok(Some(range)) => {
                    (self.setbacks, self.hops) = (0, 0);
                    return Ok(range);
                }
                // The call has ended while it waited, but its answer may still come over this
                // connection. Close the connection, because that answer would belong to no call.
                Ok(None) => {
                    if self.plant != Plant::ByOrder {
                        self.connection = None;
                    }
                    continue;
                }
                Err(trouble) => trouble,
            };
            self.suffer(trouble, is_over)?;
        }
    }

    /// Reads the list of members from a node.
    pub(crate) fn refresh(&mut self) {
        let Some((addr, _)) = &self.connection else { return };
        let Ok(mut connection) = Connection::open(addr, self.name(), self.attempt, self.plant)
        else {
            return;
        };
        if let Ok(Some(Event::Welcome(welcome))) = connection.next(Instant::now() + self.attempt)
            && self.plant != Plant::OldMembers
        {
            self.members = welcome.members.into_iter().map(|member| member.addr).collect();
        }
    }

    /// Handles frames that came between calls, such as pings, and notices the end of the
    /// connection.
    pub(crate) fn listen(&mut self) {
        if let Some((_, connection)) = &mut self.connection {
            match connection.next(Instant::now()) {
                Ok(None | Some(Event::Other)) => {}
                Ok(Some(_)) | Err(_) => self.connection = None,
            }
        }
    }

    /// Sends one request to one node, and waits for the answer. Returns `None` if the call ends
    /// before an answer comes.
    fn attempt(
        &mut self,
        count: u64,
        is_over: &dyn Fn(&str) -> Option<Refusal>,
    ) -> Result<Option<TimestampRange>, Trouble> {
        self.connect(is_over)?;
        let Some((addr, mut connection)) = self.connection.take() else { return Ok(None) };
        self.last_id += 1;
        let extra = match self.plant {
            Plant::Prefetch if count <= 16 => 8,
            Plant::JoinSent if count <= 16 => 1,
            _ => 0,
        };
        let request = Request::new(self.last_id, count + extra).expect("a count in bounds");
        let floor = self.floor;
        connection.send(request).map_err(|end| ended(&addr, end))?;
        let silent_at = Instant::now() + self.attempt;
        let mut hedge_at = self.hedge.map(|after| Instant::now() + after);
        let mut second = None;
        let came = loop {
            if is_over(&self.last).is_some() {
                self.connection = Some((addr, connection));
                return Ok(None);
            }
            if hedge_at.take_if(|at| Instant::now() >= *at).is_some() {
                second = self.ask_again(&addr, request);
            }
            // Use the answer that comes first. The other answer is lost, because its connection is
            // closed.
            if let Some(range) = answer_over(&mut second, request.id) {
                let first = second.take().map(|again| std::mem::replace(&mut connection, again));
                self.burnt = first.filter(|_| self.plant == Plant::KeepBurnt);
                break range;
            }
            if let Some(range) = answer_over(&mut self.burnt, request.id - 1) {
                self.burnt = None;
                break range;
            }
            let event = connection.next(Instant::now()).map_err(|end| ended(&addr, end))?;
            match event {
                None if Instant::now() >= silent_at => {
                    return Err(Trouble::Leave(format!("{addr} is silent")));
                }
                None | Some(Event::Other) => {}
                Some(Event::Answer(id, range)) if id == request.id => break range,
                Some(Event::Answer(_, range)) if self.plant == Plant::ByOrder => break range,
                Some(Event::Refused { id, code, text, closes }) if id == request.id || closes => {
                    if !closes {
                        self.connection = Some((addr.clone(), connection));
                    }
                    return Err(refused(&addr, code, text));
                }
                Some(Event::Goodbye) => return Err(Trouble::Leave(format!("{addr} leaves"))),
                Some(Event::Answer(..) | Event::Refused { .. } | Event::Welcome(_)) => {
                    let text = format!("{addr} sent what was not asked for");
                    return Err(Trouble::Fail(Refusal::new(Fault::Protocol, text)));
                }
            }
        };
        if came.count() != request.count() && self.plant != Plant::AnyCount {
            let text = format!("{addr} gave {} timestamps", came.count());
            return Err(Trouble::Fail(Refusal::new(Fault::Protocol, text)));
        }
        if floor.is_some_and(|floor| came.first() <= floor) && self.plant != Plant::NoFloor {
            let text = format!("{addr} went back to {}", came.first());
            return Err(Trouble::Fail(Refusal::new(Fault::Backwards, text)));
        }
        self.floor = self.floor.max(Some(came.last()));
        if self.plant == Plant::KeepBurnt && second.is_some() {
            self.burnt = second;
        }
        self.connection = Some((addr, connection));
        if extra == 0 {
            return Ok(Some(came));
        }
        let (own, rest) = came.split_first(count).expect("an answer of that count");
        self.pool = rest;
        Ok(Some(own))
    }

    /// Sends a request again over a second connection, and returns the connection. Returns `None`
    /// if it cannot be opened. Then only the first connection can bring an answer.
    fn ask_again(&self, addr: &str, request: Request) -> Option<Connection> {
        let mut again = Connection::open(addr, self.name(), self.attempt, self.plant).ok()?;
        again.send(request).ok()?;
        Some(again)
    }

    /// Takes prefetched timestamps, if there are enough.
    fn take_pooled(&mut self, count: u64) -> Option<TimestampRange> {
        if self.plant != Plant::Prefetch {
            return None;
        }
        let (own, rest) = self.pool?.split_first(count)?;
        self.pool = rest;
        Some(own)
    }

    /// For [`Plant::JoinSent`]: takes what is left of the last answer, for a caller that came after
    /// that request was sent.
    pub(crate) fn take_spare(&mut self) -> Option<TimestampRange> {
        (self.plant == Plant::JoinSent).then(|| self.pool.take())?
    }

    /// Makes sure that there is a connection to a node that leads.
    fn connect(&mut self, is_over: &dyn Fn(&str) -> Option<Refusal>) -> Result<(), Trouble> {
        if self.connection.is_some() {
            return Ok(());
        }
        let addr = self.leader.clone().unwrap_or_else(|| self.next_address());
        let opened = Connection::open(&addr, self.name(), self.attempt, self.plant);
        let mut connection = opened.map_err(|end| ended(&addr, end))?;
        let silent_at = Instant::now() + self.attempt;
        let welcome = loop {
            if is_over(&self.last).is_some() {
                return Ok(());
            }
            match connection.next(Instant::now()).map_err(|end| ended(&addr, end))? {
                Some(Event::Welcome(welcome)) => break *welcome,
                Some(Event::Refused { code, text, .. }) => {
                    return Err(refused(&addr, code, text));
                }
                Some(Event::Other) => {}
                Some(_) => {
                    let text = format!("{addr} does not answer the hello");
                    return Err(Trouble::Fail(Refusal::new(Fault::Protocol, text)));
                }
                None if Instant::now() >= silent_at => {
                    return Err(Trouble::Leave(format!("{addr} does not answer the hello")));
                }
                None => {}
            }
        };
        self.meet(&addr, &welcome)?;
        self.connection = Some((addr, connection));
        Ok(())
    }

    /// Handles a welcome. The node must be the leader.
    fn meet(&mut self, addr: &str, welcome: &Welcome) -> Result<(), Trouble> {
        let Some(found) = welcome.cluster else {
            return Err(Trouble::Leave(format!("{addr} has not joined yet")));
        };
        let expected = *self.cluster.get_or_insert(found);
        let is_another =
            if self.plant == Plant::AnyHistory { expected.0 != found.0 } else { expected != found };
        if is_another {
            let text = format!("{addr} is of cluster {}, history {}", found.0, found.1.0);
            return Err(Trouble::Fail(Refusal::new(Fault::WrongCluster, text)));
        }
        if self.plant != Plant::OldMembers || self.members.is_empty() {
            self.members = welcome.members.iter().map(|member| member.addr.clone()).collect();
        }
        match &welcome.leader {
            Some(leader) if leader.node == welcome.node => {
                self.leader = Some(addr.to_owned());
                self.suspects.retain(|(suspect, _)| suspect != addr);
                Ok(())
            }
            Some(leader) => Err(Trouble::Follow(leader.addr.clone())),
            None => Err(Trouble::Leave(format!("{addr} knows no leader"))),
        }
    }

    /// Handles a failed attempt.
    fn suffer(
        &mut self,
        trouble: Trouble,
        is_over: &dyn Fn(&str) -> Option<Refusal>,
    ) -> Result<(), Refusal> {
        match trouble {
            Trouble::Follow(_) if self.plant == Plant::StayPut => {}
            Trouble::Follow(leader) => {
                let now = Instant::now();
                self.connection = None;
                self.suspects.retain(|(_, since)| now.duration_since(*since) < SUSPICION);
                let is_suspect = self.suspects.iter().any(|(suspect, _)| *suspect == leader);
                self.hops += 1;
                if !is_suspect && self.hops <= HOPS_MAX {
                    self.leader = Some(leader);
                    return Ok(());
                }
                self.leader = None;
            }
            Trouble::Leave(why) => {
                self.last = why;
                self.connection = None;
                if let Some(leader) = self.leader.take() {
                    self.suspects.push((leader, Instant::now()));
                }
                if self.plant == Plant::LoseCalls {
                    return Err(Refusal::new(Fault::Other, self.last.clone()));
                }
            }
            Trouble::Pause(why) => {
                self.last = why;
                self.setbacks = self.setbacks.max(5);
            }
            Trouble::Fail(refusal) if self.plant == Plant::RetryAll => {
                self.last = refusal.text;
                self.connection = None;
            }
            Trouble::Fail(refusal) => {
                self.connection = None;
                self.leader = None;
                return Err(refusal);
            }
        }
        self.pause(is_over);
        Ok(())
    }

    /// Waits between attempts. The pause doubles from 1 ms to 50 ms; up to half of it is random.
    fn pause(&mut self, is_over: &dyn Fn(&str) -> Option<Refusal>) {
        if self.plant == Plant::NoPause {
            return;
        }
        self.hops = 0;
        let most = Duration::from_millis(1 << self.setbacks.min(6)).min(PAUSE_MAX);
        self.setbacks += 1;
        let chance =
            f64::from(std::process::id().wrapping_mul(7).wrapping_add(self.setbacks * 37) & 63)
                / 64.0;
        let until = Instant::now() + most.mul_f64(1.0 - chance / 2.0);
        while Instant::now() < until && is_over(&self.last).is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The cluster name for the client hello; empty accepts any cluster.
    fn name(&self) -> &str {
        self.cluster_name.as_deref().unwrap_or_default()
    }

    /// Returns the next address to try: first the members, then the addresses that the client was
    /// given.
    fn next_address(&mut self) -> String {
        let extra = self.seeds.iter().filter(|seed| !self.members.contains(seed));
        let all: Vec<_> = self.members.iter().chain(extra).collect();
        self.turn += 1;
        all[self.turn % all.len()].clone()
    }
}

/// Reads once from a connection over which a request was sent again. Returns the answer to it.
fn answer_over(connection: &mut Option<Connection>, request: u64) -> Option<TimestampRange> {
    match connection.as_mut()?.next(Instant::now()) {
        Ok(Some(Event::Answer(id, range))) if id == request => Some(range),
        Ok(_) => None,
        Err(_) => {
            *connection = None;
            None
        }
    }
}

fn ended(addr: &str, end: End) -> Trouble {
    match end {
        End::Lost(why) => Trouble::Leave(format!("{addr}: {why}")),
        End::Foreign(why) => {
            Trouble::Fail(Refusal::new(Fault::Protocol, format!("{addr} is no oracle: {why}")))
        }
    }
}

fn refused(addr: &str, code: ErrorCode, text: String) -> Trouble {
    let why = format!("{addr} refused with {code}");
    match code {
        ErrorCode::NotLeader => Trouble::Follow(text),
        ErrorCode::Overloaded => Trouble::Pause(why),
        ErrorCode::WrongCluster => Trouble::Fail(Refusal::new(Fault::WrongCluster, why)),
        code if code.is_retryable() || code == ErrorCode::Internal => Trouble::Leave(why),
        _ => Trouble::Fail(Refusal::new(Fault::Refused, why)),
    }
}

/// How long the client ignores hints to a silent node. If the node itself says that it leads, the
/// client believes it.
const SUSPICION: Duration = Duration::from_secs(1);
/// At most this many leader hints are followed in a row without a pause.
const HOPS_MAX: u32 = 3;
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_millis(50);
