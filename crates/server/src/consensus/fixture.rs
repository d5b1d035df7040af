//! For the unit tests of the consensus plane: the shared state of a node, a replica without IO, and
//! the log lines that a test causes.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex};

use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::publication::{Identity, Published, Role, Shared};
use epicepoch_core::replica::{Replica, ReplicaConfig};
use epicepoch_core::state::{FORMATS, State};
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, LogIndex, NodeId, StoreId, Term};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as Fields};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use crate::config::Config;
use crate::shared::NodeShared;

pub(super) const CLUSTER: ClusterId = ClusterId(9);
pub(super) const HISTORY: HistoryId = HistoryId(6);
/// Trusted time at monotonic time 0, Unix nanoseconds.
pub(super) const START_NS: u64 = 1_700_000_000_000_000_000;
pub(super) const ME: Identity =
    Identity { node: NodeId(1), store: StoreId(1), boot: BootId(0xB007) };
const TICK_NS: u64 = 10_000_000;
pub(super) const ELECTION_TICKS: usize = 5;

/// The shared state of node 1, which has published nothing.
pub(super) fn shared() -> Arc<NodeShared> {
    shared_with(|_| ())
}

pub(super) fn shared_with(change: impl FnOnce(&mut Config)) -> Arc<NodeShared> {
    let mut config = Config::new(ME.node, "n1:1".to_owned());
    "test".clone_into(&mut config.cluster_name);
    change(&mut config);
    NodeShared::for_test(ME, START_NS, config)
}

pub(super) fn member(id: u64) -> Member {
    let (raft_addr, client_addr) = (format!("n{id}:1"), format!("n{id}:2"));
    Member { node: NodeId(id), store: StoreId(id.into()), raft_addr, client_addr }
}

/// The state of a new cluster with members 1 to `count`.
pub(super) fn state(count: u64) -> State {
    let members = (1..=count).map(member).collect();
    let (cluster, history, floor) = (CLUSTER, HISTORY, Epoch(0));
    State::new(&Genesis { cluster, history, members, floor, removed: vec![] })
}

/// A configuration of voters 1 to `count`.
pub(super) fn voters(count: u64) -> Configuration {
    let voters = (1..=count).map(NodeId).collect();
    Configuration { voters, ..Configuration::default() }
}

/// A data directory with this state at index 1.
pub(super) fn restored(state: &State, configuration: Configuration) -> Restored {
    let (index, term, data) = (LogIndex(1), Term(1), state.encode());
    Restored {
        hard_state: HardState { term, vote: NodeId(0), commit: index },
        record: Record { index, term, configuration, data },
        entries: vec![],
        positions: Positions::default(),
    }
}

/// The replica of node 1. It reads formats up to `format_max`.
pub(super) fn replica(state: &State, configuration: Configuration, format_max: u32) -> Replica {
    let config = ReplicaConfig {
        identity: ME,
        seed: 5,
        election_ticks: ELECTION_TICKS,
        heartbeat_ticks: 1,
        tick_ns: TICK_NS,
        reservation_ns: 100 * TICK_NS,
        deadline_limit: 100,
        format_max,
    };
    let shared = Arc::new(Shared::new(Term(1), Published::nothing(ME)));
    Replica::new(config, &restored(state, configuration), shared).expect("a sound disk")
}

/// The replica of the only voter, which leads and has a grant.
pub(super) fn leader() -> Replica {
    let mut replica = replica(&state(1), voters(1), FORMATS.newest);
    replica.handle_compared(true);
    let mut ticks = 0;
    while replica.published().grant.is_none() {
        ticks += 1;
        assert!(ticks < 1_000, "it does not lead");
        run(&mut replica, ticks, 1);
    }
    replica
}

/// Runs a replica for some ticks. Its disk writes at once.
pub(super) fn run(replica: &mut Replica, from: usize, ticks: usize) {
    for tick in from..from + ticks {
        let now_ns = tick as u64 * TICK_NS;
        replica.handle_tick(now_ns, START_NS + now_ns).expect("no reason to stop");
        while let Some(write) = replica.poll_write() {
            replica.handle_persisted(now_ns, write.number);
        }
        let _changed = replica.take_published();
        while replica.poll_message().is_some() || replica.poll_report().is_some() {}
    }
}

/// The publication of a replica, with another role.
pub(super) fn published(role: Role, replica: &Replica) -> Published {
    Published { role, ..(*replica.published()).clone() }
}

/// Keeps log lines: level, text, and fields in their order, such as `INFO text a=1 b=x`.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Line {
    text: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("a string takes everything");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Fields<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = format!("{} {}{}", event.metadata().level(), line.text, line.fields);
        self.0.lock().expect("no panic while it is held").push(line);
    }
}

/// While a process has only one subscriber, `tracing` asks only the thread that reaches a line
/// first. That may be the thread of another test, where nothing listens. So there are two.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Lines::default()));

/// Returns the lines that `act` logs on this thread, from level INFO on.
pub(crate) fn logged(act: impl FnOnce()) -> Vec<String> {
    LazyLock::force(&SECOND);
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), act);
    std::mem::take(&mut lines.0.lock().expect("no panic while it is held"))
}
