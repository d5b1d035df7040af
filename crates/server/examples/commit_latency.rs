//! How long one durable write takes on this disk: `cargo run --release -p epicepoch-server --example
//! commit_latency [DIRECTORY]`. It writes to a new directory below the given one, or below the
//! working directory, and removes it.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Instant;

use epicepoch_core::durable::{Record, Write};
use epicepoch_server::faults::Faults;
use epicepoch_server::storage::{Completion, Storage};
use epicepoch_wire::raft_message::{Configuration, EntryKind, LogEntry};
use epicepoch_wire::{LogIndex, NodeId, Term};

const COMMITS: u64 = 2_000;
/// Bytes in each entry that is written. The entry of a reservation is smaller.
const ENTRY_LEN: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let below = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let directory = tempfile::tempdir_in(below)?;
    let path = directory.path().join("data");
    let mut storage = Storage::open(&path, NodeId(1), "example", &Faults::none())?.storage;
    let configuration = Configuration { voters: vec![NodeId(1)], ..Configuration::default() };
    let (index, term) = (LogIndex(1), Term(1));
    storage.found(&Record { index, term, configuration, data: Vec::new() })?;
    let (completed, done) = mpsc::channel();
    let writer = storage.into_writer(move |completion| drop(completed.send(completion)))?;

    let mut took = Vec::new();
    for number in 1..=COMMITS {
        let entry = LogEntry {
            kind: EntryKind::Normal,
            term,
            index: LogIndex(number + 1),
            data: vec![0; ENTRY_LEN],
            context: Vec::new(),
        };
        let start = Instant::now();
        writer.submit(Write { number, entries: vec![entry], ..Write::default() })?;
        match done.recv()? {
            Completion::Written { .. } => took.push(start.elapsed()),
            Completion::Marked { .. } | Completion::IntervalsClosed { .. } => {
                unreachable!("no mark was submitted, and no end of interval mode")
            }
            Completion::Failed(error) => return Err(error.into()),
        }
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{COMMITS} commits of one entry, submission to completion:");
    println!("p50 {:?}  p99 {:?}  max {:?}", at(0.5), at(0.99), at(1.0));
    Ok(())
}
