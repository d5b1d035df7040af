//! Scenarios with compact timestamps: their spelling in 64 bits, the smaller limit of a request, a
//! cluster that gives wide ones, and one that becomes compact.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use epicepoch_wire::{COMPACT_INDEXES, TimestampFormat};

use super::expect::{QUIET, hold, scenario};
use crate::node::{Ask, Node};
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(8, "compact_timestamps_are_exact_in_64_bits", exact),
    scenario(8, "a_wide_timestamp_is_not_returned_as_a_compact_one", wide_is_refused),
    scenario(10, "requests_keep_to_the_limit_of_a_compact_cluster", keeps_to_the_limit),
    scenario(10, "requests_keep_to_the_limit_once_the_cluster_is_compact", becomes_compact),
    scenario(12, "a_client_that_needs_compact_timestamps_says_so_always", needs_it_always),
];

/// Settings of a client that needs compact timestamps, and does not leave a node that delays an
/// answer.
fn needs_compact() -> Settings {
    let attempt = Duration::from_secs(10);
    Settings { is_compact: true, attempt, ..Settings::default() }
}

fn exact(scene: &mut Scene) -> Verdict {
    scene.scripted.oracle.gives(TimestampFormat::Compact);
    let leader = scene.leader();
    scene.open_with(&[&leader], &needs_compact())?;
    // These calls go over the end of a millisecond. The end of the scenario compares each number
    // with what the node gave.
    for count in [1, 2, 1, 3, 1, 5, COMPACT_INDEXES, 1, COMPACT_INDEXES - 1, 2] {
        let range = scene.answered(count)?;
        let latest = scene.latest()?;
        hold(latest == range.last(), || format!("{latest} is not {}", range.last()))?;
    }
    Ok(())
}

fn wide_is_refused(scene: &mut Scene) -> Verdict {
    scene.scripted.oracle.gives(TimestampFormat::Wide);
    let leader = scene.leader();
    // The node does not know the format of the hello, and answers with wide timestamps.
    leader.on_request(|_, ask| ask.send(ask.take()));
    scene.open_with(&[&leader], &needs_compact())?;
    scene.refused(1, Fault::NotCompact)?;
    scene.refused(3, Fault::NotCompact)?;
    scene.latest_refused(Fault::NotCompact)
}

fn needs_it_always(scene: &mut Scene) -> Verdict {
    scene.scripted.oracle.gives(TimestampFormat::Wide);
    let leader = scene.leader();
    let formats = Arc::new(Mutex::new(Vec::new()));
    let seen = formats.clone();
    leader.on_hello(move |node, peer, hello| {
        lock(&seen).push(hello.timestamp_format);
        peer.welcome(&node.own_welcome());
    });
    scene.open_with(&[&leader], &needs_compact())?;
    for _ in 0..3 {
        let call = scene.refused(1, Fault::NotCompact)?;
        hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took))?;
        leader.hang_up();
    }
    scene.scripted.oracle.gives(TimestampFormat::Compact);
    scene.answered(1)?;
    let formats = std::mem::take(&mut *lock(&formats));
    let is_right = formats.iter().all(|it| *it == Some(TimestampFormat::Compact));
    hold(formats.len() > 1 && is_right, || format!("the client said {formats:?}"))
}

/// Records the counts of the requests of a node from now on. The node holds the first [`HELD_MAX`]
/// requests in `held`, so that later calls wait and share requests.
fn counts(node: &Node, held: &Arc<Mutex<Vec<Ask>>>) -> Arc<Mutex<Vec<u64>>> {
    let counts = Arc::new(Mutex::new(Vec::new()));
    let (seen, held) = (counts.clone(), held.clone());
    node.on_request(move |_, ask| {
        lock(&seen).push(ask.request.count());
        let mut held = lock(&held);
        if held.len() < HELD_MAX { held.push(ask) } else { ask.answer() }
    });
    counts
}

/// Makes calls for half a millisecond's timestamps while earlier requests wait for their answers.
/// Returns the counts of all requests. All calls must be answered.
fn merged(scene: &mut Scene, leader: &Node) -> Result<Vec<u64>, String> {
    let held: Arc<Mutex<Vec<Ask>>> = Arc::default();
    let first = counts(leader, &held);
    let calls: Vec<_> = (0..CALLS).map(|_| scene.begin(COMPACT_INDEXES / 2, CALL_MAX)).collect();
    // A client that allows several requests in flight now sends as many. The wait may fail.
    let _ = wait_until("the client asks", QUIET, || lock(&held).len() == HELD_MAX);
    std::thread::sleep(QUIET);
    let later = Arc::new(Mutex::new(Vec::new()));
    let seen = later.clone();
    leader.on_request(move |_, ask| {
        lock(&seen).push(ask.request.count());
        ask.answer();
    });
    std::mem::take(&mut *lock(&held)).iter().for_each(Ask::answer);
    for call in calls {
        scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
    }
    let mut all = std::mem::take(&mut *lock(&first));
    all.append(&mut lock(&later));
    Ok(all)
}

fn hold_limit(counts: &[u64]) -> Verdict {
    let most = counts.iter().copied().max().unwrap_or_default();
    hold(most <= COMPACT_INDEXES, || {
        format!("a request asked for {most}, allowed are {COMPACT_INDEXES}")
    })
}

fn keeps_to_the_limit(scene: &mut Scene) -> Verdict {
    scene.scripted.oracle.gives(TimestampFormat::Compact);
    let leader = scene.leader();
    scene.open_with(&[&leader], &needs_compact())?;
    scene.answered(1)?;
    hold_limit(&merged(scene, &leader)?)?;
    too_many_alone(scene)
}

/// A call that asks for more than a millisecond has is refused, by the client or by the node, and
/// no other call is.
fn too_many_alone(scene: &mut Scene) -> Verdict {
    let wrong = scene.begin(COMPACT_INDEXES + 1, CALL_MAX);
    let right: Vec<_> = (0..3).map(|_| scene.begin(1, CALL_MAX)).collect();
    let wrong = scene.end(wrong)?;
    let fault = wrong.outcome.as_ref().err().map(|refusal| refusal.fault);
    hold(matches!(fault, Some(Fault::Count | Fault::Refused)), || {
        format!("a call for {} ended with {:?}", COMPACT_INDEXES + 1, wrong.outcome)
    })?;
    for call in right {
        scene.end(call)?.outcome.map_err(|refusal| format!("a right call failed: {refusal}"))?;
    }
    Ok(())
}

fn becomes_compact(scene: &mut Scene) -> Verdict {
    if !scene.needs_compact() {
        scene.scripted.oracle.gives(TimestampFormat::Wide);
    }
    let leader = scene.leader();
    let attempt = Duration::from_secs(10);
    scene.open_with(&[&leader], &Settings { attempt, ..Settings::default() })?;
    scene.answered(1)?;
    let connections = leader.seen().connections;
    scene.scripted.oracle.gives(TimestampFormat::Compact);
    // The welcome has named the larger limit, so these requests may be too large. The client asks
    // again for the same calls, because each of them is small enough.
    let _ = merged(scene, &leader)?;
    hold_limit(&merged(scene, &leader)?)?;
    too_many_alone(scene)?;
    hold_limit(&merged(scene, &leader)?)?;
    // If the client connects again, it does so only once.
    let more = leader.seen().connections - connections;
    hold(more <= 1, || format!("the client connected {more} times more"))
}

/// Calls at the same time. Together they ask for more than two requests may have, beside those that
/// are in flight.
const CALLS: usize = 12;
/// At most this many requests are held. It is the number of requests that most clients have in
/// flight.
const HELD_MAX: usize = 4;
