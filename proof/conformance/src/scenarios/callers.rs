//! Scenarios about which caller gets which timestamps: shared requests, and lost answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::expect::{QUIET, hold, scenario};
use epicepoch_wire::{Timestamp, TimestampRange};

use crate::node::Ask;
use crate::scene::{CALL_MAX, Scene};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(1, "a_caller_joins_no_request_that_was_sent", joins_nothing_sent),
    scenario(1, "nothing_is_fetched_ahead", fetches_nothing_ahead),
    scenario(2, "a_lost_answer_is_asked_for_again", asks_again),
    scenario(2, "callers_share_requests_across_lost_connections", many_callers),
    scenario(2, "the_second_answer_to_a_hedged_request_goes_to_no_caller", burnt_answer),
];

/// After how long without an answer a client asks a second time.
const HEDGE: Duration = Duration::from_millis(20);

/// Settings with which the client does not leave a node that delays an answer.
fn patient() -> Settings {
    Settings { attempt: Duration::from_secs(10), ..Settings::default() }
}

fn joins_nothing_sent(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let held: Arc<Mutex<Vec<Ask>>> = Arc::default();
    let holding = held.clone();
    // The node takes timestamps for the first request at once, but sends the answer when a second
    // request comes.
    let mut first = None;
    leader.on_request(move |_, ask| {
        if ask.number == 1 {
            first = Some(ask.take());
            lock(&holding).push(ask);
        } else if let (Some(range), Some(early)) = (first.take(), lock(&holding).pop()) {
            early.send(range);
            ask.answer();
        } else {
            ask.answer();
        }
    });
    scene.open_with(&[&leader], &patient())?;
    let first_of_all = scene.scripted.oracle.next();
    let early = scene.begin(1, CALL_MAX);
    wait_until("the client asks", CALL_MAX, || leader.seen().requests == 1)?;
    let late: Vec<_> = (0..5).map(|_| scene.begin(1, CALL_MAX)).collect();
    std::thread::sleep(QUIET);
    if let Some(ask) = lock(&held).pop() {
        // This client allows one request in flight, so it has sent no second one. Answer the first
        // request now, with the first timestamp of the cluster.
        ask.send(range_of_first(first_of_all));
    }
    for call in std::iter::once(early).chain(late) {
        scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
    }
    Ok(())
}

/// Returns the first timestamp that the scripted cluster gives, as a range.
fn range_of_first(first: Timestamp) -> TimestampRange {
    TimestampRange::new(first, 1).expect("one is a range")
}

fn fetches_nothing_ahead(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    for _ in 0..20 {
        scene.answered(1)?;
    }
    hold(leader.seen().requests >= 20, || {
        format!("20 calls in turn came to {} requests", leader.seen().requests)
    })
}

fn asks_again(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_request(|_, ask| {
        if ask.number % 2 == 1 {
            // Take timestamps, but close the connection instead of sending them. So they are lost.
            let _ = ask.take();
            ask.peer.hang_up();
        } else {
            ask.answer();
        }
    });
    scene.open(&[&leader])?;
    for count in [1, 4, 1] {
        scene.answered(count)?;
    }
    Ok(())
}

fn burnt_answer(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let held: Arc<Mutex<Vec<Ask>>> = Arc::default();
    let settings = Settings { hedge: Some(HEDGE), ..patient() };
    if !scene.opens_with(&[&leader], &settings)? {
        return Ok(());
    }
    for is_copy_first in [false, true, false, true] {
        let holding = held.clone();
        // The copy of an earlier request may come late.
        leader.on_request(move |_, ask| {
            if ask.request.count() == 3 { lock(&holding).push(ask) } else { ask.answer() }
        });
        let slow = scene.begin(3, CALL_MAX);
        wait_until("the client asks twice", CALL_MAX, || lock(&held).len() == 2)?;
        let mut asks = std::mem::take(&mut *lock(&held));
        // Take timestamps in the order in which the request and its copy came.
        let mut ranges: Vec<_> = asks.iter().map(Ask::take).collect();
        if is_copy_first {
            asks.reverse();
            ranges.reverse();
        }
        asks[0].send(ranges[0]);
        let got =
            scene.end(slow)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
        hold(got == ranges[0], || format!("{} and not the first answer", got.first()))?;
        // Let another caller wait. Then send the second answer, which must not go to this caller.
        let late = scene.begin(3, CALL_MAX);
        wait_until("the client asks for a later caller", CALL_MAX, || !lock(&held).is_empty())?;
        asks[1].send(ranges[1]);
        std::thread::sleep(QUIET);
        leader.on_request(|_, ask| ask.answer());
        std::mem::take(&mut *lock(&held)).iter().for_each(Ask::answer);
        let got =
            scene.end(late)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
        hold(got != ranges[1], || format!("{} was burnt", got.first()))?;
        scene.answered(1)?;
    }
    Ok(())
}

fn many_callers(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_request(|_, ask| match ask.number {
        number if number % 10 == 3 => {
            let _ = ask.take();
            ask.peer.hang_up();
        }
        number if number % 10 == 7 => ask.peer.hang_up(),
        _ => ask.answer(),
    });
    scene.open(&[&leader])?;
    for _ in 0..15 {
        let calls: Vec<_> = (0..20).map(|caller| scene.begin(1 + caller % 3, CALL_MAX)).collect();
        for call in calls {
            scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
        }
    }
    Ok(())
}
