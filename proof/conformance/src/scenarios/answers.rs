//! Scenarios about which answers a client accepts. An answer must belong to a request, have the
//! right count, and be above earlier answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{COUNT_MAX, Request, Welcome};
use epicepoch_wire::{COMPACT_INDEXES, Epoch, EpochIndex, Timestamp};

use super::expect::{QUIET, hold, scenario};
use crate::node::Ask;
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(7, "an_answer_that_goes_back_is_refused", goes_back),
    scenario(7, "an_answer_that_was_given_before_is_refused", comes_twice),
    scenario(7, "an_answer_that_goes_back_fails_all_calls_that_wait", goes_back_for_all),
    scenario(10, "an_answer_of_another_count_is_refused", wrong_count),
    scenario(10, "a_count_outside_the_limits_is_refused_and_not_sent", counts),
    scenario(10, "requests_keep_to_the_count_limit_of_the_welcome", count_limit),
    scenario(11, "answers_come_in_any_order", any_order),
    scenario(11, "an_answer_to_nothing_is_refused", answer_to_nothing),
    scenario(11, "a_refusal_of_nothing_is_refused", refusal_of_nothing),
];

fn goes_back(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| go_back(&ask));
    scene.refused(1, Fault::Backwards).map(drop)
}

/// Answers a request with an earlier timestamp than all others.
fn go_back(ask: &Ask) {
    let earlier = Timestamp::new(Epoch(crate::oracle::EPOCH.0 - 1), EpochIndex(7));
    ask.peer.say(&ask.request.answer(earlier));
}

fn goes_back_for_all(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let settings = Settings { attempt: Duration::from_secs(10), ..Settings::default() };
    scene.open_with(&[&leader], &settings)?;
    scene.answered(1)?;
    let held: Arc<Mutex<Vec<Ask>>> = Arc::default();
    let holding = held.clone();
    leader.on_request(move |_, ask| lock(&holding).push(ask));
    let asked = scene.begin(1, CALL_MAX);
    wait_until("the client asks", CALL_MAX, || !lock(&held).is_empty())?;
    let waiting = scene.begin(1, CALL_MAX);
    // A client that allows several requests in flight now sends one for the second call, too. A
    // client that allows one does not, so the wait may fail.
    let _ = wait_until("the client asks again", QUIET, || lock(&held).len() > 1);
    go_back(&lock(&held)[0]);
    for pending in [asked, waiting] {
        expect_fault(&scene.end(pending)?, Fault::Backwards)?;
    }
    Ok(())
}

fn comes_twice(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    let before = scene.answered(3)?;
    leader.on_request(move |_, ask| ask.peer.say(&ask.request.answer(before.last())));
    scene.refused(2, Fault::Backwards).map(drop)
}

fn wrong_count(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let range = ask.take();
        let less = Request::new(ask.request.id, ask.request.count() - 1).expect("a request for 4");
        ask.peer.say(&less.answer(range.first()));
    });
    let closed = leader.seen().closed;
    scene.refused(5, Fault::Protocol)?;
    wait_until("the client closes the connection", CALL_MAX, || leader.seen().closed > closed)?;
    leader.on_request(|_, ask| ask.answer());
    // A call that begins while the client handles the error may fail, too. A later one may not.
    wait_until("a later call is answered", CALL_MAX, || {
        scene.call(1, CALL_MAX).is_ok_and(|call| call.outcome.is_ok())
    })
}

fn counts(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    let is_compact = scene.scripted.oracle.is_compact();
    scene.answered(if is_compact { COMPACT_INDEXES } else { COUNT_MAX })?;
    let before = leader.seen().requests;
    for count in [0, COUNT_MAX + 1] {
        scene.refused(count, Fault::Count)?;
    }
    let after = leader.seen().requests;
    hold(before == after, || format!("{} requests were sent", after - before))
}

fn any_order(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let held: Arc<Mutex<Vec<Ask>>> = Arc::default();
    let holding = held.clone();
    leader.on_request(move |_, ask| lock(&holding).push(ask));
    let settings = Settings { attempt: Duration::from_secs(10), ..Settings::default() };
    scene.open_with(&[&leader], &settings)?;
    let mut calls = Vec::new();
    for count in [3, 5, 7, 9] {
        calls.push(scene.begin(count, CALL_MAX));
        // A client that allows several requests in flight now sends one for each call. A client
        // that allows fewer does not, so the wait may fail.
        let due = calls.len();
        let _ = wait_until("the client asks", QUIET, || lock(&held).len() == due);
    }
    // Answer the requests in flight, from the newest to the oldest. A client that allows few
    // requests in flight then sends its other requests.
    leader.on_request(|_, ask| ask.answer());
    let asks = std::mem::take(&mut *lock(&held));
    asks.iter().rev().for_each(Ask::answer);
    for call in calls {
        scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
    }
    Ok(())
}

fn answer_to_nothing(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let range = ask.take();
        let other = ask.request.with_id(ask.request.id.wrapping_add(1 << 40));
        ask.peer.say(&other.answer(range.first()));
    });
    let closed = leader.seen().closed;
    scene.refused(1, Fault::Protocol)?;
    wait_until("the client closes the connection", CALL_MAX, || leader.seen().closed > closed)
}

fn refusal_of_nothing(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let other = ask.request.id.wrapping_add(1 << 40);
        ask.peer.refuse(ErrorCode::NoQuorum as u16, false, other, "");
    });
    let closed = leader.seen().closed;
    scene.refused(1, Fault::Protocol)?;
    wait_until("the client closes the connection", CALL_MAX, || leader.seen().closed > closed)
}

fn count_limit(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|node, peer, _| {
        peer.welcome(&Welcome { count_max: LIMIT, ..node.own_welcome() });
    });
    let most = Arc::new(Mutex::new(0));
    let seen = most.clone();
    leader.on_request(move |_, ask| {
        let mut most = lock(&seen);
        *most = ask.request.count().max(*most);
        ask.answer();
    });
    scene.open(&[&leader])?;
    for _ in 0..5 {
        let calls: Vec<_> = (0..20).map(|_| scene.begin(2, CALL_MAX)).collect();
        for call in calls {
            scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
        }
    }
    let most = *lock(&most);
    hold(most <= LIMIT, || format!("a request asked for {most}, allowed are {LIMIT}"))
}

/// The largest count that the node allows in a request. It is enough for one call of this scenario,
/// but not for two calls in one request.
const LIMIT: u64 = 3;
