//! The size of a data directory after a long time, with the real replica and storage. Time is an
//! argument, so the test does not wait.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::publication::{Identity, Published, Shared};
use epicepoch_core::replica::{Replica, ReplicaConfig, Report};
use epicepoch_core::state::{FORMATS, State};
use epicepoch_server::faults::Faults;
use epicepoch_server::storage::{Completion, Opened, Storage, WriterHandle};
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{BootId, ClusterId, Epoch, HistoryId, LogIndex, NodeId, Term};

const ME: NodeId = NodeId(1);
const RESERVATIONS: usize = 10_000;
const BYTES_MAX: u64 = 5_000_000;
const TICK_NS: u64 = 10_000_000;
const WINDOW_NS: u64 = 1_000_000_000;

fn open(path: &Path) -> Opened {
    Storage::open(path, ME, "footprint", &Faults::none()).unwrap()
}

fn genesis(identity: Identity) -> Restored {
    let addr = "127.0.0.1:1".to_owned();
    let member =
        Member { node: ME, store: identity.store, raft_addr: addr.clone(), client_addr: addr };
    let genesis = Genesis {
        cluster: ClusterId(1),
        history: HistoryId(1),
        members: vec![member],
        floor: Epoch(0),
        removed: vec![],
    };
    let configuration = Configuration { voters: vec![ME], ..Configuration::default() };
    let record = Record {
        index: LogIndex(1),
        term: Term(1),
        configuration,
        data: State::new(&genesis).encode(),
    };
    let hard_state = HardState { term: Term(1), vote: NodeId(0), commit: LogIndex(1) };
    Restored { hard_state, record, entries: Vec::new(), positions: Positions::default() }
}

fn replica(identity: Identity, restored: &Restored) -> Replica {
    let shared = Shared::new(restored.hard_state.term, Published::nothing(identity));
    let config = ReplicaConfig {
        identity,
        seed: 1,
        election_ticks: 20,
        heartbeat_ticks: 4,
        tick_ns: TICK_NS,
        reservation_ns: WINDOW_NS,
        deadline_limit: 100,
        format_max: FORMATS.newest,
    };
    let mut replica = Replica::new(config, restored, Arc::new(shared)).unwrap();
    // A single voter has no peer to compare clocks with.
    replica.handle_compared(true);
    replica
}

/// Performs all writes of the replica, and counts its grants.
fn settle(replica: &mut Replica, writer: &WriterHandle, done: &Receiver<Completion>) -> usize {
    let mut granted = 0;
    loop {
        let mut last = None;
        while let Some(write) = replica.poll_write() {
            last = Some(write.number);
            writer.submit(write).unwrap();
        }
        while let Some(report) = replica.poll_report() {
            granted += usize::from(matches!(report, Report::Granted { .. }));
        }
        let Some(last) = last else { return granted };
        loop {
            let Completion::Written { number, .. } = done.recv().unwrap() else {
                panic!("the disk failed");
            };
            replica.handle_persisted(0, number);
            if number >= last {
                break;
            }
        }
    }
}

fn bytes_in(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn the_data_directory_stays_small_through_ten_thousand_reservations() {
    // In memory, files have the same size, and thousands of syncs take no minute.
    let in_memory = tempfile::tempdir_in("/dev/shm");
    let directory = in_memory.or_else(|_| tempfile::tempdir()).unwrap();
    let path = directory.path().join("data");
    let Opened { mut storage, store, .. } = open(&path);
    let identity = Identity { node: ME, store, boot: BootId(1) };
    let restored = genesis(identity);
    storage.found(&restored.record).unwrap();
    let (completed, done) = mpsc::channel();
    let writer = storage.into_writer(move |completion| drop(completed.send(completion))).unwrap();
    let mut replica = replica(identity, &restored);

    let (mut now_ns, mut granted, mut largest) = (0, 0, 0);
    let mut ceiling = replica.ceiling();
    for turn in 0.. {
        // Once the node leads, half a reservation window passes at each tick. So each tick needs a
        // new reservation.
        now_ns += if granted == 0 { TICK_NS } else { WINDOW_NS / 2 };
        replica.handle_tick(now_ns, now_ns).unwrap();
        granted += settle(&mut replica, &writer, &done);
        assert!(replica.ceiling() >= ceiling, "the ceiling went back");
        ceiling = replica.ceiling();
        if turn % 100 == 0 {
            largest = largest.max(bytes_in(&path));
        }
        if granted >= RESERVATIONS {
            break;
        }
        assert!(turn < 3 * RESERVATIONS, "{granted} reservations in {turn} turns");
    }
    largest = largest.max(bytes_in(&path));
    println!("{granted} reservations: at most {largest} bytes in the data directory");
    assert!(largest < BYTES_MAX, "{largest} bytes");

    // The directory can be opened again, and has the same ceiling.
    assert!(writer.shutdown());
    drop(replica);
    let Opened { restored, .. } = open(&path);
    let restored = restored.expect("a member");
    let again = Identity { boot: BootId(2), ..identity };
    let mut replica = self::replica(again, &restored);
    while let Some(report) = replica.poll_report() {
        assert!(!matches!(report, Report::Granted { .. }), "granted from a replay");
    }
    assert_eq!(replica.ceiling(), ceiling);
}
