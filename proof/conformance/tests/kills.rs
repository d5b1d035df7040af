//! Tests clients of all languages on three real nodes, while leaders are killed or stopped. Tests
//! that need other languages, or that limit times, run only with `-- --ignored`. Only one cluster
//! runs at a time.
//!
//! `EPICEPOCH_BIN` names the binary under test. Without it, the tests make a development build.

mod drivers;

use std::time::Duration;

use epicepoch_conformance::DriverCommand;
use epicepoch_conformance::kills::{Loss, Seen, median, run};

use drivers::{
    Sources, binary, compact, go, hedging, java, python, python_threads, rust, turn, typescript,
};

/// Limits for the longest call at each killed leader: the median and the worst over all kills. A
/// client may notice no more than the time without an answer that `docs/operations/outages.md`
/// promises. Stalls of the machine are subtracted from the worst.
const KILLED: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(400));
/// The same limits for leaders that are stopped by SIGTERM.
const STOPPED: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(50));

#[test]
#[ignore = "needs Go, and bounds times: cargo xtask ci runs it"]
fn rust_go_and_http_clients_meet_lost_leaders_in_one_order_and_without_an_error() {
    let losses = [Loss::Killed, Loss::Stopped].repeat(6);
    let clients = || vec![rust(), hedging(rust()), go(&Sources::of_repository(), false)];
    let seen = in_one_order(clients, &losses, false);
    for client in &seen.clients {
        let name = &client.name;
        for (loss, (median_max, worst_max)) in [(Loss::Killed, KILLED), (Loss::Stopped, STOPPED)] {
            let longest = seen.longest(client, loss);
            let costs = &longest.unexplained;
            assert_eq!(costs.len(), losses.len() / 2, "calls were under way at every loss");
            assert!(median(&longest.calls) <= Some(median_max), "{name}, {loss:?}: {longest}");
            assert!(costs.last() <= Some(&worst_max), "{name}, {loss:?}: {longest}");
        }
    }
}

/// Each client runs twice, without and with hedging. With hedging, the Go client makes asynchronous
/// calls, and the Python client is the one for threads. Limits no times. With so many processes on
/// two processors, times say nothing about a client.
#[test]
#[ignore = "needs Go, a JDK, Python and Node.js: cargo xtask ci runs it"]
fn clients_of_all_languages_meet_lost_leaders_in_one_order_and_without_an_error() {
    let clients = || {
        let ours = Sources::of_repository();
        let plain =
            [rust(), go(&ours, false), java(&ours, false), python(&ours), typescript(&ours)];
        let mut second = plain.clone();
        second[1] = go(&ours, true);
        second[3] = python_threads(&ours);
        plain.into_iter().chain(second.map(hedging)).collect()
    };
    in_one_order(clients, &[Loss::Killed, Loss::Stopped].repeat(3), false);
}

/// S21: all answers have a compact spelling, and one order over HTTP and all clients. The clients
/// return the spellings.
#[test]
#[ignore = "needs Go, a JDK, Python and Node.js: cargo xtask ci runs it"]
fn clients_of_compact_timestamps_meet_lost_leaders_in_one_order_and_without_an_error() {
    let clients = || {
        let ours = Sources::of_repository();
        let all = [
            rust(),
            hedging(rust()),
            go(&ours, false),
            java(&ours, false),
            python(&ours),
            typescript(&ours),
        ];
        all.map(compact).to_vec()
    };
    in_one_order(clients, &[Loss::Killed, Loss::Stopped].repeat(3), true);
}

/// Builds these clients and runs them while leaders are lost. Checks that no call failed and that
/// all answers have one order.
fn in_one_order(
    clients: impl FnOnce() -> Vec<DriverCommand>,
    losses: &[Loss],
    is_compact: bool,
) -> Seen {
    let _turn = turn();
    let seen = run(&binary(), &clients(), losses, is_compact).expect("a run that can be judged");
    for client in &seen.clients {
        let (name, calls, uncertainty) =
            (&client.name, client.calls.len(), client.clock_uncertainty);
        println!("{name}: {calls} calls, clock {uncertainty:?}");
        for loss in [Loss::Killed, Loss::Stopped] {
            println!("  longest call, leader {loss:?}: {}", seen.longest(client, loss));
        }
        assert!(calls > 1000, "only {calls} calls of {name}");
        // With a larger uncertainty of the clock, a wrong order would not be noticed.
        assert!(uncertainty < Duration::from_millis(1), "{name}: clock {uncertainty:?}");
    }
    println!("http: {} answers", seen.http_answers);
    assert_eq!(seen.disorder, Vec::<String>::new());
    assert_eq!(seen.failures(), Vec::<String>::new());
    assert!(seen.http_answers > 1000, "only {} answers over HTTP", seen.http_answers);
    seen
}
