//! A world that runs one thread at a time. A seed decides which client runs next, and which client
//! dies or sleeps and when. So the same seed repeats a run exactly. Before every call a client waits
//! for its turn, which takes one millisecond of a simulated clock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use epicepoch_client::{Epoch, EpochIndex, Timestamp};
use percolator::bank::Bank;
use percolator::checker::Evidence;
use percolator::columns::Columns;
use percolator::history::Line;
use percolator::plant::Plant;
use percolator::protocol::{Reply, Request, Row};
use percolator::transaction::LOCK_TTL;
use percolator::world::{World, WorldError};

/// The mode of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oracle {
    /// Timestamps are in order.
    Quorum,
    /// Timestamps of three nodes whose clocks differ by less than their bound says. Clients wait or
    /// not.
    Intervals { waits: bool },
}

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) oracle: Oracle,
    pub(crate) seed: u64,
    pub(crate) plant: Option<Plant>,
    pub(crate) clients: usize,
    pub(crate) transactions: usize,
    pub(crate) bank: Bank,
    /// On average, one call in this many kills its client. With 0, none does.
    pub(crate) deadly: u32,
    /// On average, one call in this many is made by a client that first sleeps longer than its locks
    /// are respected. With 0, none is.
    pub(crate) sleepy: u32,
}

/// What happens to a call.
pub(crate) enum Fault {
    /// The client dies, before or after the call is executed.
    Dies { is_done: bool },
    /// The client gets no reply. The call is executed or not.
    Lost { is_done: bool },
    /// The client sleeps longer than its locks are respected. Meanwhile another one does this. Then
    /// the call is executed.
    Sleeps(Box<dyn FnOnce() + Send>),
}

/// Runs a script, resolves the remaining locks, and returns the records.
pub(crate) fn evidence_of(script: Script) -> Evidence {
    let [first] = clients(script);
    let arena = first.arena;
    arena.begin();
    thread::scope(|scope| {
        for place in 0..script.clients {
            let arena = arena.clone();
            scope.spawn(move || live(&arena, place));
        }
    });
    arena.state().is_over = true;
    conclude(&Client::new(&arena, 0))
}

/// Makes clients of one bank, and writes the initial values. The clients do not act in turns: the
/// test decides when each one acts. A client may act in the middle of another client's transaction.
pub(crate) fn clients<const N: usize>(script: Script) -> [Client; N] {
    let arena = Arc::new(Arena::new(script));
    let mut first = Client::new(&arena, 0);
    script.bank.load(&mut first).expect("nobody disturbs the load");
    std::array::from_fn(|place| Client::new(&arena, place))
}

/// Resolves the remaining locks, and returns the records.
pub(crate) fn conclude(client: &Client) -> Evidence {
    let arena = &client.arena;
    // Move the clock ahead, so that all remaining locks have expired.
    arena.state().now += Duration::from_secs(1);
    let mut last = Client::new(arena, 0);
    arena.script.bank.audit(&mut last).expect("nobody disturbs the last audit");
    let mut evidence = Evidence { total: arena.script.bank.total(), ..Evidence::default() };
    evidence.rows = last.rows();
    evidence.add(std::mem::take(&mut arena.state().lines));
    evidence
}

fn live(arena: &Arc<Arena>, place: usize) {
    let mut client = Client::new(arena, place);
    let mut rng = fastrand::Rng::with_seed(arena.script.seed ^ ((place as u64 + 1) << 32));
    arena.await_turn(place);
    let _place = Place(arena, place);
    for _ in 0..arena.script.transactions {
        match arena.script.bank.work(&mut client, &mut rng) {
            Ok(_) => {}
            // A new client replaces the dead one. It knows nothing of the dead client's work.
            Err(WorldError::Killed) => client.life += 1,
            Err(error) => panic!("{error}"),
        }
        client.rename();
    }
}

struct Arena {
    script: Script,
    state: Mutex<State>,
    wakers: Vec<Condvar>,
}

struct State {
    rng: fastrand::Rng,
    present: Vec<usize>,
    turn: usize,
    is_over: bool,
    now: Duration,
    stores: Vec<Columns>,
    given: u64,
    /// The last time that each node of interval mode gave, in nanoseconds.
    last_ns: [u64; 3],
    lines: Vec<Line>,
}

impl State {
    /// Stamps as a node of interval mode. Also returns when the wait is over. A node that was
    /// killed goes on above the mark on its disk.
    fn stamp(&mut self, node: usize) -> (Timestamp, Duration) {
        let clock_ns =
            (BEGAN_NS + self.now.as_nanos() as u64).saturating_add_signed(OFFSETS_NS[node]);
        if self.rng.u32(0..RESTARTS) == 0 {
            self.last_ns[node] = self.last_ns[node].max(clock_ns + MARK_AHEAD_NS);
        }
        let latest_ns = (clock_ns + BOUND_NS).max(self.last_ns[node] + 1);
        self.last_ns[node] = latest_ns;
        let width_ns = latest_ns - (clock_ns - BOUND_NS);
        let index = 1 << 63 | (node as u64) << 48 | self.given;
        let timestamp = Timestamp::new(Epoch(latest_ns), EpochIndex(index));
        (timestamp, self.now + Duration::from_nanos(width_ns + width_ns.div_ceil(8) + 1))
    }

    fn draw(&mut self) {
        let drawn = self.rng.usize(0..self.present.len());
        self.turn = self.present[drawn];
    }
}

/// When this is dropped, the client leaves the order of turns. This happens after a panic, too.
/// Otherwise the other clients would wait for its turn for ever.
struct Place<'a>(&'a Arena, usize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// A client, and its position in the order of turns.
pub(crate) struct Client {
    arena: Arc<Arena>,
    place: usize,
    life: usize,
    name: String,
    /// The call with a fault, as the number of calls before it.
    pub(crate) fault_at: Option<(usize, Fault)>,
    /// When the wait for the last timestamp is over.
    ready_at: Duration,
}

impl Arena {
    fn new(script: Script) -> Self {
        let state = State {
            rng: fastrand::Rng::with_seed(script.seed),
            present: Vec::new(),
            turn: 0,
            is_over: true,
            now: Duration::ZERO,
            stores: (0..STORES).map(|_| Columns::new(script.plant)).collect(),
            given: 0,
            last_ns: [0; 3],
            lines: Vec::new(),
        };
        let wakers = (0..script.clients).map(|_| Condvar::new()).collect();
        Self { script, state: Mutex::new(state), wakers }
    }

    fn begin(&self) {
        let mut state = self.state();
        state.present = (0..self.script.clients).collect();
        state.is_over = false;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn await_turn(&self, place: usize) {
        let state = self.state();
        drop(self.wakers[place].wait_while(state, |state| state.turn != place));
    }

    /// Gives the turn to a random client, perhaps to the same one.
    fn pass(&self, place: usize) {
        let mut state = self.state();
        if state.is_over {
            return;
        }
        state.now += Duration::from_millis(1);
        state.draw();
        if state.turn != place {
            self.wakers[state.turn].notify_one();
            drop(self.wakers[place].wait_while(state, |state| state.turn != place));
        }
    }

    fn leave(&self, place: usize) {
        let mut state = self.state();
        state.present.retain(|other| *other != place);
        if !state.present.is_empty() {
            state.draw();
            self.wakers[state.turn].notify_one();
        }
    }
}

impl Client {
    fn new(arena: &Arc<Arena>, place: usize) -> Self {
        let mut client = Self {
            arena: arena.clone(),
            place,
            life: 0,
            name: String::new(),
            fault_at: None,
            ready_at: Duration::ZERO,
        };
        client.rename();
        client
    }

    fn rename(&mut self) {
        self.name = format!("client {} in life {}", self.place, self.life);
    }

    /// Decides what happens to this call.
    fn fault(&mut self) -> Option<Fault> {
        if let Some((calls, _)) = &mut self.fault_at {
            if let Some(left) = calls.checked_sub(1) {
                *calls = left;
                return None;
            }
            return self.fault_at.take().map(|(_, fault)| fault);
        }
        let Script { deadly, sleepy, .. } = self.arena.script;
        let mut state = self.arena.state();
        if state.is_over {
            return None;
        }
        if deadly > 0 && state.rng.u32(0..deadly) == 0 {
            return Some(Fault::Dies { is_done: state.rng.bool() });
        }
        let is_asleep = sleepy > 0 && state.rng.u32(0..sleepy) == 0;
        is_asleep.then(|| Fault::Sleeps(Box::new(|| {})))
    }

    /// Lets the others act until that time.
    fn wait_until(&self, time: Duration) {
        loop {
            let mut state = self.arena.state();
            if state.is_over {
                // The clients do not act in turns, so this one decides over time.
                state.now = state.now.max(time);
            }
            if state.now >= time {
                return;
            }
            drop(state);
            self.arena.pass(self.place);
        }
    }

    fn rows(&self) -> Vec<Row> {
        self.arena.state().stores.iter().flat_map(Columns::rows).collect()
    }
}

impl World for Client {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&mut self, request: Request) -> Result<Reply, WorldError> {
        self.arena.pass(self.place);
        let failure = match self.fault() {
            None => None,
            Some(Fault::Dies { is_done }) => Some((WorldError::Killed, is_done)),
            Some(Fault::Lost { is_done }) => {
                Some((WorldError::Unavailable("no reply".to_owned()), is_done))
            }
            Some(Fault::Sleeps(meanwhile)) => {
                let until = self.now() + LOCK_TTL + Duration::from_millis(1);
                self.wait_until(until);
                meanwhile();
                None
            }
        };
        if let Some((error, false)) = failure {
            return Err(error);
        }
        let store = request.store(STORES);
        let mut state = self.arena.state();
        let now = state.now;
        let reply = state.stores[store].handle(request, now);
        failure.map_or(Ok(reply), |(error, _)| Err(error))
    }

    fn timestamp(&mut self) -> Result<Timestamp, WorldError> {
        self.arena.pass(self.place);
        let mut state = self.arena.state();
        state.given += 1;
        if let Oracle::Intervals { .. } = self.arena.script.oracle {
            let (timestamp, ready_at) = state.stamp(self.place % NODES);
            self.ready_at = ready_at;
            return Ok(timestamp);
        }
        let epoch = BEGAN_NS + state.now.as_nanos() as u64;
        Ok(Timestamp::new(Epoch(epoch), EpochIndex(state.given)))
    }

    fn commit_wait(&mut self) {
        if self.arena.script.oracle == (Oracle::Intervals { waits: true }) {
            self.wait_until(self.ready_at);
        }
    }

    fn now(&mut self) -> Duration {
        self.arena.state().now
    }

    fn pause(&mut self, about: Duration) {
        self.arena.pass(self.place);
        self.arena.state().now += about;
    }

    fn record(&mut self, line: &Line) {
        self.arena.state().lines.push(line.clone());
    }

    fn plant(&self) -> Option<Plant> {
        self.arena.script.plant
    }
}

const STORES: usize = 2;
/// Nodes of interval mode.
const NODES: usize = 3;
/// The nodes' clocks minus true time, and the bound that the nodes state.
const OFFSETS_NS: [i64; NODES] = [-9_000_000, 0, 9_000_000];
const BOUND_NS: u64 = 10_000_000;
/// One stamp in so many is the first of a node that was killed. It is this far ahead.
const RESTARTS: u32 = 300;
const MARK_AHEAD_NS: u64 = 200_000_000;
/// Some day in 2023.
const BEGAN_NS: u64 = 1_700_000_000_000_000_000;
