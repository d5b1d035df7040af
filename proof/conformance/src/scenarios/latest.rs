//! Scenarios about the latest timestamp: it takes none, may go to several callers, and lies between
//! what was returned before and what is asked for later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epicepoch_wire::native::{Request, Welcome};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

use super::expect::{QUIET, hold, scenario};
use crate::node::Ask;
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(1, "a_caller_of_the_latest_timestamp_joins_no_request_that_was_sent", joins_nothing),
    scenario(2, "the_latest_timestamp_takes_none", takes_none),
    scenario(2, "a_lost_answer_with_the_latest_timestamp_is_asked_for_again", asks_again),
    scenario(2, "callers_share_requests_for_both_kinds_across_lost_connections", many_callers),
    scenario(7, "a_latest_timestamp_that_goes_back_is_refused", goes_back),
    scenario(7, "a_timestamp_must_be_above_a_latest_one_that_was_returned", counts_for_later),
    scenario(7, "a_node_without_the_feature_may_not_give_a_timestamp_again", old_node_repeats),
    scenario(8, "a_node_without_the_feature_is_not_asked_for_the_latest_timestamp", old_node),
    scenario(10, "the_latest_timestamp_is_not_taken_for_one_of_the_caller", wrong_kind),
    scenario(10, "a_timestamp_of_a_caller_is_not_taken_for_the_latest_one", wrong_kind_of_latest),
];

fn takes_none(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    let before = scene.answered(3)?.last();
    for _ in 0..3 {
        let latest = scene.latest()?;
        hold(latest == before, || format!("{latest} is not {before}, which was given last"))?;
    }
    let next = scene.answered(1)?.first();
    hold(next.index.0 == before.index.0 + 1, || format!("{next} is not the next after {before}"))
}

fn joins_nothing(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let held: Arc<Mutex<Option<(Ask, TimestampRange)>>> = Arc::default();
    let is_sent = Arc::new(AtomicBool::new(false));
    // The client must not leave the node while it holds an answer.
    let patient = Settings { attempt: Duration::from_secs(10), ..Settings::default() };
    scene.open_with(&[&leader], &patient)?;
    let before = scene.answered(1)?;
    // The node answers the first request last, with the timestamp that was the latest one when the
    // request came.
    let (holding, sending) = (held.clone(), is_sent.clone());
    let mut is_first = true;
    leader.on_request(move |_, ask| {
        if std::mem::take(&mut is_first) {
            let latest = ask.take();
            *lock(&holding) = Some((ask, latest));
            return;
        }
        sending.fetch_or(ask.request.count() > 0, Ordering::SeqCst);
        ask.answer();
    });
    let early = scene.begin_latest();
    wait_until("the client asks", CALL_MAX, || lock(&held).is_some())?;
    let other = scene.begin(1, CALL_MAX);
    let is_sent = || is_sent.load(Ordering::SeqCst);
    let mut calls = vec![early];
    if wait_until("the client asks again", QUIET * 4, is_sent).is_ok() {
        let given = scene.end(other)?.outcome.map_err(|refusal| format!("no answer: {refusal}"))?;
        hold(given.first() > before.last(), || format!("{given:?} is not above {before:?}"))?;
    } else {
        // This client allows one request in flight.
        calls.push(other);
    }
    // The first answer is too low for this caller: another one has been given before it calls.
    calls.push(scene.begin_latest());
    std::thread::sleep(QUIET);
    if let Some((ask, latest)) = lock(&held).take() {
        ask.send(latest);
    }
    for call in calls {
        scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
    }
    Ok(())
}

fn asks_again(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    let before = scene.answered(2)?.last();
    let mut is_lost = false;
    leader.on_request(move |_, ask| {
        if !is_lost {
            is_lost = true;
            return ask.peer.hang_up();
        }
        ask.answer();
    });
    let latest = scene.latest()?;
    hold(latest >= before, || format!("{latest} is below {before}"))
}

fn many_callers(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    leader.on_request(|node, ask| {
        ask.answer();
        if ask.number.is_multiple_of(20) {
            node.hang_up();
        }
    });
    for turn in 0..40 {
        let calls: Vec<_> = (0..8_u64)
            .map(|caller| match (turn + caller) % 3 {
                0 => scene.begin_latest(),
                count => scene.begin(count, CALL_MAX),
            })
            .collect();
        for call in calls {
            scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
        }
    }
    Ok(())
}

fn goes_back(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let earlier = Timestamp::new(Epoch(crate::oracle::EPOCH.0 - 1), EpochIndex(7));
        ask.peer.say(&ask.request.answer(earlier));
    });
    scene.latest_refused(Fault::Backwards)
}

fn counts_for_later(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    // Another client gets a timestamp.
    let given = Arc::new(Mutex::new(None));
    let giving = given.clone();
    leader.on_request(move |node, ask| {
        let mut given = lock(&giving);
        match *given {
            None if ask.request.count() == 0 => {
                *given = Some(node.take_for_another(5).last());
                ask.answer();
            }
            None => ask.answer(),
            Some(latest) => ask.peer.say(&ask.request.answer(latest)),
        }
    });
    let latest = scene.latest()?;
    let given = *lock(&given);
    hold(given == Some(latest), || format!("{latest} is not the latest, {given:?}"))?;
    scene.refused(1, Fault::Backwards).map(drop)
}

fn old_node(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|node, peer, _| peer.welcome(&Welcome { features: 0, ..node.own_welcome() }));
    scene.open(&[&leader])?;
    let before = scene.answered(1)?.first();
    let latest = scene.latest()?;
    let after = scene.answered(1)?.first();
    hold(before <= latest && latest < after, || format!("{before}, then {latest}, then {after}"))
}

fn old_node_repeats(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|node, peer, _| peer.welcome(&Welcome { features: 0, ..node.own_welcome() }));
    scene.open(&[&leader])?;
    let before = scene.answered(1)?;
    leader.on_request(move |_, ask| ask.send(before));
    scene.latest_refused(Fault::Backwards)
}

fn wrong_kind(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let first = ask.take().first();
        ask.peer.say(&Request::latest(ask.request.id).answer(first));
    });
    scene.refused(1, Fault::Protocol).map(drop)
}

fn wrong_kind_of_latest(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let first = ask.take().first();
        let one = Request::new(ask.request.id, 1).expect("one may be asked for");
        ask.peer.say(&one.answer(first));
    });
    scene.latest_refused(Fault::Protocol)
}
