//! Every file of the corpus through its target, without the engine: an input that once showed a
//! bug stays fixed, and the targets stay true on any machine that runs the tests.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use epicepoch_fuzz::{TARGETS, targets};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The files of a target, by name.
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

/// An engine that changes bytes comes to all of these; no target may need well-formed input.
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
