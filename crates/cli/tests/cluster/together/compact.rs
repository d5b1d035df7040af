//! Compact timestamps: both spellings have one order over all protocols, while leaders are killed,
//! and a cluster that runs can change to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use epicepoch_bench::history::{History, read_timestamps};
use epicepoch_bench::{Operation, Outcome};
use epicepoch_client::blocking::Client;
use epicepoch_client::{Options, TimestampFormat, TimestampsError};
use epicepoch_wire::{Timestamp, TimestampRange};

use crate::support::wire::Wire;
use crate::support::{Cluster, Node, WAIT_MAX, wait_until};

/// How often a leader is killed.
const KILLS: usize = 3;
/// Pause between two calls of a caller.
const PAUSE: Duration = Duration::from_millis(2);
const COMPACT: (&str, &str) = ("TIMESTAMP_FORMAT", "compact");

fn compact_cluster() -> Cluster {
    let cluster = Cluster::start_with(&[COMPACT]);
    wait_until("timestamps are compact", WAIT_MAX, || {
        let told = cluster.operate(&["settings", "list"]);
        String::from_utf8_lossy(&told.stdout).lines().any(|it| it == "TIMESTAMP_FORMAT=compact")
    });
    cluster
}

fn numbers(body: &[u8]) -> Vec<u64> {
    body.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect()
}

fn of_compact(first: u64, count: u64) -> TimestampRange {
    let first = Timestamp::from_compact(first).expect("a compact timestamp");
    let range = TimestampRange::new(first, count).expect("a range");
    assert!(range.compact_first().is_some(), "{range:?} leaves its millisecond");
    range
}

/// The timestamps of an answer, in the form that the request asked for.
fn range_of(form: &str, body: &[u8]) -> TimestampRange {
    match form {
        "/timestamp?n=3" => {
            let range = read_timestamps(body, 3).expect("timestamps");
            assert!(range.compact_first().is_some(), "{range:?} has no compact spelling");
            range
        }
        "/timestamp?n=3&format=u64" => {
            let numbers = numbers(body);
            assert_eq!(numbers, (numbers[0]..numbers[0] + 3).collect::<Vec<_>>());
            of_compact(numbers[0], 3)
        }
        "/timestamp?n=100000&format=u64range" => {
            assert_eq!((body.len(), numbers(body)[1]), (16, 100_000));
            of_compact(numbers(body)[0], 100_000)
        }
        other => panic!("{other}"),
    }
}

/// Makes calls until it is stopped. `call` returns `None` if it gets no timestamps.
fn caller(
    is_over: &Arc<AtomicBool>,
    mut call: impl FnMut() -> Option<Outcome> + Send + 'static,
) -> JoinHandle<Vec<Operation>> {
    let is_over = is_over.clone();
    std::thread::spawn(move || {
        let mut operations = Vec::new();
        while !is_over.load(Ordering::SeqCst) {
            let start = Instant::now();
            if let Some(outcome) = call() {
                operations.push(Operation { start, end: Instant::now(), node: 0, outcome });
            }
            std::thread::sleep(PAUSE);
        }
        operations
    })
}

#[test]
fn both_spellings_have_one_order_over_http_and_native_while_leaders_are_killed() {
    let mut cluster = compact_cluster();
    let (origin, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let addrs: Vec<_> = cluster.nodes.iter().map(Node::http).collect();
    let mut callers = Vec::new();
    for form in
        ["/timestamp?n=3", "/timestamp?n=3&format=u64", "/timestamp?n=100000&format=u64range"]
    {
        for addr in addrs.clone() {
            callers.push((
                form,
                caller(&is_over, move || {
                    let mut wire = Wire::open(addr, WAIT_MAX).ok()?;
                    let answer = wire.get(form).ok()?;
                    let is_right = [200, 409, 503].contains(&answer.status);
                    assert!(is_right, "{form}: {} {}", answer.status, answer.text());
                    (answer.status == 200).then(|| Outcome::Answered(range_of(form, &answer.body)))
                }),
            ));
        }
    }
    for addr in addrs.clone() {
        callers.push((
            "/latest",
            caller(&is_over, move || {
                let mut wire = Wire::open(addr, WAIT_MAX).ok()?;
                let answer = wire.get("/latest?format=u64").ok().filter(|it| it.status == 200)?;
                Some(Outcome::Latest(of_compact(numbers(&answer.body)[0], 1).first()))
            }),
        ));
    }
    let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
    let options = || {
        let mut options = Options::default();
        options.timestamp_format = Some(TimestampFormat::Compact);
        options.timeout = Duration::from_secs(20);
        options
    };
    for (name, is_compact) in [("native", false), ("native, in 64 bits", true)] {
        let client = Client::new(addrs.clone(), options()).expect("a client");
        callers.push((
            name,
            caller(&is_over, move || {
                Some(Outcome::Answered(if is_compact {
                    let numbers =
                        client.compact_timestamps(5).expect("the native protocol answers");
                    assert_eq!(numbers.end - numbers.start, 5);
                    of_compact(numbers.start, 5)
                } else {
                    let range = client.timestamps(5).expect("the native protocol answers");
                    assert!(range.compact_first().is_some(), "{range:?}");
                    range
                }))
            }),
        ));
    }
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(500));
        let leader = cluster.wait_for_leader();
        cluster.nodes[leader].kill();
        cluster.wait_for_leader_other_than(Some(leader), WAIT_MAX);
        cluster.nodes[leader].start();
        cluster.wait_until_ready();
    }
    std::thread::sleep(Duration::from_millis(500));
    is_over.store(true, Ordering::SeqCst);
    let mut history = History::new(origin);
    let mut answers = BTreeMap::new();
    for (name, caller) in callers {
        let operations = caller.join().expect("no call failed");
        // Only the node that leads answers over HTTP.
        *answers.entry(name).or_insert(0) += operations.len();
        history.record_all(&operations);
    }
    println!("{answers:?}");
    assert!(answers.values().all(|count| *count > 50), "{answers:?}");
    history.settle(Instant::now()).assert_clean();
    cluster.assert_well();
}

#[test]
fn a_cluster_that_runs_becomes_compact_by_a_command_and_stays_so() {
    let cluster = Cluster::start_calm();
    wait_until("the settings are seeded", WAIT_MAX, || {
        let told = cluster.operate(&["settings", "list"]);
        String::from_utf8_lossy(&told.stdout).lines().any(|it| it == "TIMESTAMP_FORMAT=wide")
    });
    let leader = cluster.wait_for_leader();
    let ask = |target: &str| {
        let answer = cluster.nodes[leader].ask(target).expect("an answer");
        (answer.status, answer.error().unwrap_or_default().to_owned(), answer.body)
    };
    let refused = (422, "NOT_COMPACT".to_owned());
    for target in ["/timestamp?format=u64", "/timestamp?n=7&format=u64range", "/latest?format=u64"]
    {
        let (status, code, body) = ask(target);
        assert_eq!((status, code), refused, "{target}");
        let text = String::from_utf8(body).expect("text");
        assert!(text.contains("TIMESTAMP_FORMAT=compact"), "{text}");
    }
    let addrs = cluster.nodes.iter().map(|node| node.http().to_string());
    let mut options = Options::default();
    options.timestamp_format = Some(TimestampFormat::Compact);
    let strict = Client::new(addrs.clone(), options).expect("a client");
    let error = strict.timestamp().expect_err("the cluster gives wide timestamps");
    assert!(error.to_string().contains("NOT_COMPACT"), "{error}");
    let client = Client::new(addrs, Options::default()).expect("a client");
    let error = client.compact_timestamp().expect_err("the cluster gives wide timestamps");
    assert!(matches!(error, TimestampsError::NotCompact { .. }), "{error}");
    for command in ["get", "latest"] {
        let advice = "epicepoch settings set TIMESTAMP_FORMAT=compact";
        let words = ["does not fit into 64 bits: ask for timestamps of 16 bytes", advice];
        cluster.assert_refused(&[command, "--compact"], &words);
    }
    let wide = client.timestamp().expect("a wide timestamp");
    // A new cluster raises the format of its state in steps.
    wait_until("the setting can be made", WAIT_MAX, || {
        cluster.operate(&["settings", "set", "TIMESTAMP_FORMAT=compact", "--yes"]).status.success()
    });
    // The command has returned, so the setting is in effect. Only a range that was assigned before
    // may have no whole millisecond left.
    wait_until("compact timestamps", WAIT_MAX, || ask("/timestamp?format=u64").0 != 503);
    let (status, code, body) = ask("/timestamp?format=u64");
    assert_eq!((status, code.as_str()), (200, ""));
    let first = of_compact(numbers(&body)[0], 1).first();
    assert!(first > wide);
    let next = strict.timestamp().expect("a compact timestamp");
    assert!(next > first && next.to_compact().is_some());
    assert!(client.compact_timestamp().expect("a number") > next.to_compact().expect("compact"));
    let (_, _, body) = ask("/timestamp?n=2&format=json");
    let document: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let one = &document["timestamps"][1];
    let timestamp: Timestamp = one["hex"].as_str().expect("text").parse().expect("a timestamp");
    let number = timestamp.to_compact().expect("compact");
    assert_eq!(one["u64"], number.to_string(), "a string");
    for (target, status) in [
        ("/timestamp?n=262144&format=u64range", 200),
        ("/timestamp?n=262145&format=u64range", 400),
        ("/timestamp?n=262144&format=range", 200),
        ("/timestamp?n=262145&format=range", 400),
        ("/timestamp?n=65536&format=u64", 200),
        ("/timestamp?n=65537&format=u64", 400),
        ("/timestamp?format=u32", 400),
    ] {
        assert_eq!(ask(target).0, status, "{target}");
    }
    let error = client.timestamps(262_145).expect_err("more than a millisecond has");
    assert!(error.to_string().contains("BAD_COUNT"), "{error}");
    let printed = cluster.order(&["get", "-n", "3", "--compact"]);
    let printed: Vec<u64> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!((printed.len(), printed[2] - printed[0]), (3, 2));
    let printed = cluster.order(&["get", "--compact", "--range", "--output", "json"]);
    let range: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let first: Timestamp = range["first"].as_str().expect("text").parse().expect("16 bytes");
    assert_eq!(range["u64First"], first.to_compact().expect("compact").to_string());
    cluster.assert_refused(
        &["settings", "set", "TIMESTAMP_FORMAT=wide"],
        &["TIMESTAMP_FORMAT is compact", "cannot become wide again"],
    );
    // Other settings can still be changed.
    cluster.order(&["settings", "set", "EPOCH_INTERVAL_MS=50"]);
}
