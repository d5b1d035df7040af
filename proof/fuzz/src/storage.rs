//! Target of damaged database files. A file must open with a state that was once written, or be
//! refused. Opening it must never panic. An undamaged file opens with its last state. If the damage
//! restores an older sound state of the file, the file opens with that state. Only peers can notice
//! such a rollback.

use std::cell::Cell;
use std::panic;
use std::sync::{LazyLock, Once};

use epicepoch_core::durable::Restored;
use epicepoch_disk::model::Model;
use epicepoch_disk::simulated_disk::SimulatedDisk;
use epicepoch_storage::{Database, Identity};
use epicepoch_wire::{NodeId, StoreId};
use fastrand::Rng;

use crate::script::Script;

/// Damages a sound file as the bytes say, and opens it.
pub(crate) fn storage(data: &[u8]) {
    let mut script = Script::new(data);
    let lives = &*LIVES;
    let life = &lives[script.below(LIVES_COUNT) as usize];
    let mut bytes = life.bytes.clone();
    for _ in 0..DAMAGES_MAX {
        if script.is_over() {
            break;
        }
        damage(&mut bytes, &mut script, lives);
    }
    let opened = quietly(|| Database::open(SimulatedDisk::with_bytes(bytes.clone())));
    if let Some(life) = lives.iter().find(|life| life.bytes == bytes) {
        let (_, identity, restored) = opened.as_ref().expect("an undamaged file opens");
        assert_eq!(*identity, life.identity, "an undamaged file is its node's");
        assert_eq!(
            Some(restored),
            life.states.last(),
            "an undamaged file has what was written last"
        );
    }
    // A node refuses such a file and does not change it, because the operator may need it.
    let Ok((database, identity, restored)) = opened else { return };
    drop(database);
    let is_of = |life: &Life| life.identity == identity && life.states.contains(&restored);
    assert!(lives.iter().any(is_of), "it opens to what was never written: {restored:?}");
}

/// Damages the file in one way at one place.
fn damage(bytes: &mut Vec<u8>, script: &mut Script<'_>, lives: &[Life]) {
    let kind = script.below(8);
    let at = usize::from(script.byte()) << 8 | usize::from(script.byte());
    // Put half of the damage into the header and the first pages, because these are read at every
    // start.
    let at = if kind & 1 == 0 { at % HEAD_LEN } else { at * PLACE_LEN };
    let at = at % bytes.len().max(1);
    let length = (1 + usize::from(script.byte()) * 16).min(bytes.len() - at.min(bytes.len()));
    let piece = at..at + length;
    match kind {
        0 | 1 if !bytes.is_empty() => bytes[at] ^= script.byte(),
        2 => {
            let new = script.bytes(16);
            let end = (at + new.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&new[..end - at]);
        }
        3 => bytes[piece].fill(0),
        // Copy a piece of another file, or of an older copy of this file, to the same place.
        4 | 5 => {
            let other = &lives[script.below(LIVES_COUNT) as usize].bytes;
            let end = piece.end.min(other.len());
            if at < end {
                bytes[at..end].copy_from_slice(&other[at..end]);
            }
        }
        6 => bytes.truncate(at),
        _ => bytes.extend_from_slice(&script.bytes(64)),
    }
}

/// Silences panics on this thread. Some damage fails an assertion of the database library. The code
/// that opens the file catches this panic. But the fuzzing engine takes the message of any panic
/// for a failure. The panic hook belongs to the whole process, and panics of other threads must
/// count. So the hook is set once, and is silent on this thread only.
fn quietly<T>(open: impl FnOnce() -> T) -> T {
    thread_local! { static IS_QUIET: Cell<bool> = const { Cell::new(false) } }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |why| {
            if !IS_QUIET.get() {
                loud(why);
            }
        }));
    });
    IS_QUIET.set(true);
    let opened = panic::catch_unwind(panic::AssertUnwindSafe(open));
    IS_QUIET.set(false);
    opened.unwrap_or_else(|_| panic!("an opening panics"))
}

/// A database file, and every state that it has held.
struct Life {
    identity: Identity,
    states: Vec<Option<Restored>>,
    bytes: Vec<u8>,
}

/// Database files of different ages. One of them belongs to another node.
static LIVES: LazyLock<Vec<Life>> =
    LazyLock::new(|| (0..LIVES_COUNT).map(|life| lived(life, life * life * 4)).collect());

fn lived(seed: u64, batches: u64) -> Life {
    let node = if seed == LIVES_COUNT - 1 { 2 } else { 1 };
    let identity = Identity::new(NodeId(node), StoreId(u128::from(node)), "epicepoch");
    let disk = SimulatedDisk::default();
    Database::create(disk.clone(), &identity).expect("a sound disk");
    let (mut database, _, _) = Database::open(disk.clone()).expect("just made");
    let mut model = Model::founded();
    database.found(&model.restored.record).expect("a sound disk");
    let mut states = vec![None, Some(model.restored.clone())];
    let mut random = Rng::with_seed(seed);
    for _ in 0..batches {
        database.write(&model.batch(&mut random)).expect("a sound disk");
        states.push(Some(model.restored.clone()));
    }
    drop(database);
    Life { identity, states, bytes: disk.bytes() }
}

const LIVES_COUNT: u64 = 5;
const DAMAGES_MAX: usize = 16;
/// Length of the header and the first pages, bytes.
const HEAD_LEN: usize = 16 << 10;
/// Distance in bytes between two places of damage outside the header and the first pages.
const PLACE_LEN: usize = 61;
