//! The driver of the Rust client, `epicepoch-client`, over the native protocol.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_client::{
    BadAnswer, Client, Options, TimestampFormat, TimestampRange, TimestampsError,
};
use epicepoch_conformance::Fault;
use epicepoch_conformance::protocol::{Command, Reply};
use epicepoch_wire::http::ErrorCode;
use tokio::sync::{mpsc, oneshot};

fn main() {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let command = serde_json::from_str(&line).expect("a command");
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(drive(receiver));
}

/// The calls in progress, by id. Each has a sender that cancels it.
type Calls = Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>;

/// Executes commands until the input ends.
async fn drive(mut commands: mpsc::UnboundedReceiver<Command>) {
    let origin = Instant::now();
    let calls = Calls::default();
    let mut client = None;
    let mut is_compact = false;
    while let Some(command) = commands.recv().await {
        let start = reading(origin);
        match command {
            Command::Open {
                id,
                addrs,
                timeout_ms,
                attempt_ms,
                refresh_ms,
                cluster,
                hedge_ms,
                guarantee,
                compact,
                intervals,
            } => {
                if intervals {
                    reply(id, start, origin, Err(Some(unsupported())));
                    continue;
                }
                is_compact = compact;
                let mut options = Options::default();
                if let Some(timeout_ms) = timeout_ms {
                    options.timeout = Duration::from_millis(timeout_ms);
                }
                options.attempt_timeout = Duration::from_millis(attempt_ms);
                options.refresh_interval = Duration::from_millis(refresh_ms);
                options.cluster_name = cluster;
                options.hedge_after = hedge_ms.map(Duration::from_millis);
                options.guarantee = guarantee.map(|word| word.parse().expect("a guarantee"));
                options.timestamp_format = compact.then_some(TimestampFormat::Compact);
                let opened = Client::new(addrs, options);
                let error = opened.as_ref().err().map(|error| (Fault::Other, error.to_string()));
                client = opened.ok();
                reply(id, start, origin, Err(error));
            }
            Command::Timestamps { id, .. } | Command::Latest { id, .. } => {
                let (count, timeout_ms) = match command {
                    Command::Timestamps { count, timeout_ms, .. } => (Some(count), timeout_ms),
                    Command::Latest { timeout_ms, .. } => (None, timeout_ms),
                    Command::Open { .. }
                    | Command::Interval { .. }
                    | Command::Cancel { .. }
                    | Command::Clock { .. }
                    | Command::Close { .. } => unreachable!("another arm has these commands"),
                };
                // In Rust, a program closes a client by dropping it. A later call would not
                // compile. So here the driver itself reports that the client is closed.
                let Some(client) = client.clone() else {
                    let closed = (Fault::Closed, "there is no client".to_owned());
                    reply(id, start, origin, Err(Some(closed)));
                    continue;
                };
                let (cancel, cancelled) = oneshot::channel();
                held(&calls).insert(id, cancel);
                let calls = calls.clone();
                tokio::spawn(async move {
                    let start = reading(origin);
                    let call = async {
                        let deadline = timeout_ms
                            .map(|timeout_ms| Instant::now() + Duration::from_millis(timeout_ms));
                        if is_compact {
                            return compact(&client, count, deadline).await.map(Given::Compact);
                        }
                        let range = wide(&client, count, deadline).await;
                        range.map(Given::Wide)
                    };
                    let outcome = tokio::select! {
                        outcome = call => outcome
                            .map_err(|error| Some((fault(&error), error.to_string()))),
                        // A caller cancels by dropping the future.
                        Ok(()) = cancelled => {
                            Err(Some((Fault::Cancelled, "the caller gave up".to_owned())))
                        }
                    };
                    reply(id, start, origin, outcome);
                    held(&calls).remove(&id);
                });
            }
            Command::Interval { id, .. } => {
                reply(id, start, origin, Err(Some(unsupported())));
            }
            Command::Cancel { id, call } => {
                if let Some(cancel) = held(&calls).remove(&call) {
                    // The call may have ended already.
                    let _ = cancel.send(());
                }
                reply(id, start, origin, Err(None));
            }
            Command::Clock { id } => reply(id, start, origin, Err(None)),
            Command::Close { id } => {
                client = None;
                reply(id, start, origin, Err(None));
            }
        }
    }
}

/// The error of a command of interval mode. This client asks for intervals over HTTP, which the
/// nodes of the suite do not speak.
fn unsupported() -> (Fault, String) {
    (Fault::Unsupported, "intervals are asked for over HTTP".to_owned())
}

/// What a call got.
enum Given {
    Wide(TimestampRange),
    Compact(Range<u64>),
}

/// Gets timestamps, or the latest one if there is no count.
async fn wide(
    client: &Client,
    count: Option<u64>,
    deadline: Option<Instant>,
) -> Result<TimestampRange, TimestampsError> {
    let latest = match (count, deadline) {
        (Some(count), None) => return client.timestamps(count).await,
        (Some(count), Some(deadline)) => return client.timestamps_before(count, deadline).await,
        (None, None) => client.latest().await?,
        (None, Some(deadline)) => client.latest_before(deadline).await?,
    };
    Ok(TimestampRange::new(latest, 1).expect("one is a range"))
}

/// Gets compact timestamps, or the latest one if there is no count.
async fn compact(
    client: &Client,
    count: Option<u64>,
    deadline: Option<Instant>,
) -> Result<Range<u64>, TimestampsError> {
    let latest = match (count, deadline) {
        (Some(count), None) => return client.compact_timestamps(count).await,
        (Some(count), Some(deadline)) => {
            return client.compact_timestamps_before(count, deadline).await;
        }
        (None, None) => client.compact_latest().await?,
        (None, Some(deadline)) => client.compact_latest_before(deadline).await?,
    };
    Ok(latest..latest + 1)
}

fn held(calls: &Calls) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<()>>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reading(origin: Instant) -> u64 {
    origin.elapsed().as_nanos() as u64
}

/// Writes a reply. Without a range and without an error, the reply only confirms the command.
fn reply(id: u64, start: u64, origin: Instant, outcome: Result<Given, Option<(Fault, String)>>) {
    let end = reading(origin);
    let mut reply = Reply { id, start, end, ..Reply::default() };
    match outcome {
        Ok(Given::Compact(range)) => {
            reply.u64 = Some(range.start.to_string());
            reply.count = Some(range.end - range.start);
        }
        Ok(Given::Wide(range)) => {
            reply.first = Some(range.first().to_string());
            reply.count = Some(range.count());
        }
        Err(Some((fault, text))) => (reply.error, reply.text) = (Some(fault), Some(text)),
        Err(None) => {}
    }
    let mut line = serde_json::to_vec(&reply).expect("a reply is JSON");
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    // The process that reads the output may have ended.
    let _ = output.write_all(&line).and_then(|()| output.flush());
}

fn fault(error: &TimestampsError) -> Fault {
    match error {
        TimestampsError::Count(_) => Fault::Count,
        TimestampsError::Stopped => Fault::Closed,
        TimestampsError::DeadlineExceeded { .. } => Fault::Deadline,
        TimestampsError::WentBackwards { .. } => Fault::Backwards,
        TimestampsError::AnotherCluster(_) => Fault::WrongCluster,
        TimestampsError::NotCompact { .. }
        | TimestampsError::BadAnswer(BadAnswer::Refused { code: ErrorCode::NotCompact, .. }) => {
            Fault::NotCompact
        }
        TimestampsError::BadAnswer(BadAnswer::Refused { .. }) => Fault::Refused,
        TimestampsError::BadAnswer(_) => Fault::Protocol,
        _ => Fault::Other,
    }
}
