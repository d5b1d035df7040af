//! Clients of all languages at once on three real nodes, while leaders are killed and told to
//! stop. What needs Go and bounds times runs with `-- --ignored`; one cluster at a time.
//!
//! `EPICEPOCH_BIN` names the binary under test; without it a development build is made.

mod drivers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epicepoch_conformance::kills::{Loss, median, run};

use drivers::{go, hedging_rust, naive, rust};

/// Longest call around a killed leader, `(p50, worst)`: what `docs/operations.md` promises for the
/// silence is all that a client may notice. The worst is taken beyond what the machine itself
/// stalled; the median as it is, since of many losses the machine stalls only some that long.
const KILLED: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(400));
/// The same around a leader that was told to stop.
const STOPPED: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(50));

/// One cluster at a time: two on one small machine would measure each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn binary() -> PathBuf {
    if let Some(binary) = std::env::var_os("EPICEPOCH_BIN") {
        return binary.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--package", "epicepoch"]).current_dir(&root);
    assert!(build.status().expect("cargo runs").success(), "the binary does not build");
    root.join("target/debug/epicepoch")
}

#[test]
#[ignore = "needs Go, and bounds times: CI runs it with a release build"]
fn rust_go_and_http_clients_meet_lost_leaders_in_one_order_and_without_an_error() {
    let _turn = turn();
    let losses = [Loss::Killed, Loss::Stopped].repeat(6);
    let seen =
        run(&binary(), &[rust(), hedging_rust(), go()], &losses).expect("a run that can be judged");
    for crowd in &seen.crowds {
        println!(
            "{}: {} calls, clock {:?}",
            crowd.name,
            crowd.calls.len(),
            crowd.clock_uncertainty
        );
        for loss in [Loss::Killed, Loss::Stopped] {
            println!("  longest call, leader {loss:?}: {}", seen.longest(crowd, loss));
        }
    }
    println!("http: {} answers", seen.http_answers);
    assert_eq!(seen.disorder, Vec::<String>::new());
    assert_eq!(seen.failures(), Vec::<String>::new());
    assert!(seen.http_answers > 1000, "only {} answers over HTTP", seen.http_answers);
    for crowd in &seen.crowds {
        let (name, calls) = (&crowd.name, crowd.calls.len());
        assert!(calls > 1000, "only {calls} calls of {name}");
        // Otherwise the common order would hold because nothing can be told apart.
        let uncertainty = crowd.clock_uncertainty;
        assert!(uncertainty < Duration::from_millis(1), "{name}: clock {uncertainty:?}");
        for (loss, (median_max, worst_max)) in [(Loss::Killed, KILLED), (Loss::Stopped, STOPPED)] {
            let longest = seen.longest(crowd, loss);
            let costs = &longest.unexplained;
            assert_eq!(costs.len(), losses.len() / 2, "calls were under way at every loss");
            assert!(median(&longest.calls) <= Some(median_max), "{name}, {loss:?}: {longest}");
            assert!(costs.last() <= Some(&worst_max), "{name}, {loss:?}: {longest}");
        }
    }
}

#[test]
fn a_client_that_fetches_ahead_is_found_in_the_common_order() {
    let _turn = turn();
    let seen = run(&binary(), &[rust(), naive("prefetch")], &[]).expect("a run that can be judged");
    let said = seen.disorder.first().expect("the planted fault is found");
    assert!(said.starts_with("all clients: "), "{said}");
    let sound = run(&binary(), &[rust(), naive("none")], &[]).expect("a run that can be judged");
    assert_eq!(sound.disorder, Vec::<String>::new());
}
