//! S4: the Promise only rises, whichever thread raises it.

use std::sync::Arc;

use epicepoch_core::promise::Promise;
use epicepoch_core::sync::{Weakness, weaken};
use epicepoch_wire::Term;
use loom::thread;

fn raised_by_two() {
    let promise = Arc::new(Promise::new(Term(4)));
    let other = promise.clone();
    let raiser = thread::spawn(move || other.raise(Term(5)));
    let other = promise.clone();
    let reader = thread::spawn(move || (other.load(), other.load()));
    promise.raise(Term(6));
    assert!(promise.load() >= Term(6), "a Promise is behind what this thread promised");
    raiser.join().unwrap();
    let (first, second) = reader.join().unwrap();
    assert!(first <= second, "a Promise went back before a reader's eyes");
    assert_eq!(promise.load(), Term(6), "a Promise was lost");
}

#[test]
fn a_promise_raised_by_two_threads_is_the_higher_one() {
    loom::model(raised_by_two);
}

#[test]
#[should_panic(expected = "a Promise")]
fn planted_a_promise_that_is_read_and_then_written() {
    weaken(Weakness::SplitMaximum);
    loom::model(raised_by_two);
}
