//! Runs every file of the corpus through its target, without the engine. So inputs that once showed
//! a bug are tested on every machine.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use epicepoch_fuzz::{TARGETS, targets};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the corpus files of a target, sorted by name.
fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(corpus().join(target)).expect("a directory per target");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let read = |path: PathBuf| (path.clone(), fs::read(path).expect("a readable file"));
    paths.into_iter().map(read).collect()
}

#[test]
fn every_input_of_the_corpus_holds() {
    for target in TARGETS {
        for (path, bytes) in inputs(target.name) {
            let held = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes)));
            assert!(held.is_ok(), "{} shows a bug in {}", path.display(), target.name);
        }
    }
}

/// Runs targets on corpus files that are cut or damaged, because every target must cope with
/// malformed input.
#[test]
fn cut_and_damaged_inputs_hold() {
    for target in TARGETS {
        for (path, bytes) in inputs(target.name) {
            let middle = bytes.len() / 2;
            let mut damaged = bytes.clone();
            if let Some(byte) = damaged.get_mut(middle) {
                *byte ^= 0x41;
            }
            for input in [&bytes[..middle], &damaged] {
                let held = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
                assert!(held.is_ok(), "{}, changed, shows a bug", path.display());
            }
        }
    }
}

/// A short fuzz without an engine. It changes inputs of each target for `EPICEPOCH_FUZZ_MS`
/// milliseconds (default 1,000), from another seed each time. The real fuzz is `scripts/fuzz`.
#[test]
#[ignore = "seconds for each target: cargo test --test corpus -- --ignored"]
fn randomly_changed_inputs_hold() {
    let limit = std::env::var("EPICEPOCH_FUZZ_MS").map_or(1_000, |ms| ms.parse().expect("ms"));
    let limit = Duration::from_millis(limit);
    for target in TARGETS {
        let seed = RandomState::new().hash_one(target.name);
        let (mut random, inputs) = (fastrand::Rng::with_seed(seed), inputs(target.name));
        let (start, mut runs) = (Instant::now(), 0);
        while start.elapsed() < limit {
            let (_, bytes) = &inputs[random.usize(..inputs.len())];
            let input = changed(bytes, &mut random);
            let held = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
            assert!(held.is_ok(), "{} shows a bug, seed {seed}: {input:02x?}", target.name);
            runs += 1;
        }
        println!("{}: {runs} inputs hold", target.name);
    }
}

/// Returns `bytes` with a few of them changed, cut out or repeated.
fn changed(bytes: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..=bytes.len());
        let end = (at + random.usize(..16)).min(bytes.len());
        match random.u8(..5) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.extend_from_within(at..end),
            2 => bytes.insert(at, random.u8(..)),
            3 => bytes.truncate(at),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.u8(..8)),
        }
    }
    bytes
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let directories = fs::read_dir(corpus()).expect("a corpus");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("plain");
    let found: BTreeSet<String> = directories.map(|entry| name(entry.expect("readable"))).collect();
    let wanted: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(found, wanted);
    let mut total = 0;
    for target in TARGETS {
        let inputs = inputs(target.name);
        assert!(inputs.len() >= INPUTS_MIN, "{} has {} inputs", target.name, inputs.len());
        total += inputs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }
    assert!(total < CORPUS_LEN_MAX, "{total} bytes are too many to keep in the repository");
}

#[test]
#[should_panic(expected = "range end index")]
fn the_planted_bug_is_one() {
    targets::planted(&[0xC1, 0xE5, 5, 0, 0, 0, 1, 2, 3]);
}

const INPUTS_MIN: usize = 2;
const CORPUS_LEN_MAX: usize = 1 << 20;
