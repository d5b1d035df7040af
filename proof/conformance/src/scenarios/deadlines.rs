//! Scenarios about the end of a call: deadlines, cancelled calls, closed clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::expect::{SLACK, hold, one_in_time, scenario};
use crate::node::{Ask, Node};
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(5, "deadlines_are_honoured_while_a_node_is_silent", silent_node),
    scenario(5, "a_call_without_time_is_not_answered", no_time),
    scenario(5, "a_call_has_two_seconds_by_default", default_timeout),
    scenario(5, "a_late_answer_goes_to_nobody", late_answer),
    scenario(5, "a_caller_that_gives_up_leaves_the_others_alone", gives_up),
    scenario(5, "a_closed_client_has_no_connection_and_answers_no_call", closes),
];

fn patient() -> Settings {
    Settings { attempt: Duration::from_secs(10), ..Settings::default() }
}

fn silent_node(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_request(|_, _| {});
    scene.open(&[&leader])?;
    one_in_time(|| {
        let timeouts = [0, 30, 60, 90, 200, 400].map(Duration::from_millis);
        let calls = timeouts.map(|timeout| (timeout, scene.begin(1, timeout)));
        let mut late = Ok(());
        for (timeout, call) in calls {
            let call = scene.end(call)?;
            expect_fault(&call, Fault::Deadline)?;
            let (took, least) = (call.took, timeout.saturating_sub(Duration::from_millis(1)));
            let ended = || format!("a call with {timeout:?} ended after {took:?}");
            hold(took >= least, ended)?;
            late = late.and(hold(took < timeout + SLACK, ended));
            let why = call.outcome.err().map(|refusal| refusal.text).unwrap_or_default();
            hold(!why.is_empty(), || "the error does not say why".to_owned())?;
        }
        Ok(late)
    })
}

fn no_time(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    for _ in 0..20 {
        let call = scene.call(1, Duration::ZERO)?;
        expect_fault(&call, Fault::Deadline)?;
    }
    scene.answered(1).map(drop)
}

fn default_timeout(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open_with(&[&leader], &Settings { timeout: None, ..Settings::default() })?;
    scene.answered(1)?;
    leader.on_request(|_, _| {});
    one_in_time(|| {
        let pending = scene.begin_without_timeout(1);
        let call = scene.end(pending)?;
        expect_fault(&call, Fault::Deadline)?;
        let ended = || format!("the call ended after {:?}", call.took);
        hold(call.took >= DEFAULT_TIMEOUT.saturating_sub(Duration::from_millis(1)), ended)?;
        Ok(hold(call.took < DEFAULT_TIMEOUT + SLACK, ended))
    })
}

/// The default of `timeout` in every client.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);

fn late_answer(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    // The node takes timestamps for each request at once. It keeps the first call's answer until
    // that call is over. Then it sends this late answer just before the answer to the next call.
    let is_late = Arc::new(AtomicBool::new(false));
    let late = is_late.clone();
    let mut held = Vec::new();
    leader.on_request(move |_, ask| {
        held.push((ask.take(), ask));
        if late.load(Ordering::SeqCst) {
            held.drain(..).for_each(|(range, ask)| ask.send(range));
        }
    });
    scene.open_with(&[&leader], &patient())?;
    let call = scene.call(1, Duration::from_millis(80))?;
    expect_fault(&call, Fault::Deadline)?;
    is_late.store(true, Ordering::SeqCst);
    // At its end, the scenario checks that these calls got timestamps that were taken after they
    // began.
    scene.answered(1)?;
    scene.answered(1).map(drop)
}

fn gives_up(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open_with(&[&leader], &patient())?;
    one_in_time(|| gives_up_once(scene, &leader))?;
    scene.answered(1).map(drop)
}

/// Plays the scenario once. The inner result says whether the client was in time.
fn gives_up_once(scene: &mut Scene, leader: &Node) -> Result<Verdict, String> {
    let held: Arc<Mutex<Option<Vec<Ask>>>> = Arc::new(Mutex::new(Some(Vec::new())));
    let holding = held.clone();
    leader.on_request(move |_, ask| match &mut *lock(&holding) {
        Some(held) => held.push(ask),
        None => ask.answer(),
    });
    let before = leader.seen().requests;
    let first = scene.begin(1, CALL_MAX);
    wait_until("the client asks", CALL_MAX, || leader.seen().requests > before)?;
    let others = [2, 1, 3].map(|count| scene.begin(count, CALL_MAX));
    let gone = scene.begin(5, CALL_MAX);
    std::thread::sleep(Duration::from_millis(20));
    let began = Instant::now();
    for call in [&first, &gone] {
        scene.cancel(call)?;
    }
    for call in [first, gone] {
        expect_fault(&scene.end(call)?, Fault::Cancelled)?;
    }
    let took = began.elapsed();
    let late = lock(&held).take().unwrap_or_default();
    late.iter().for_each(Ask::answer);
    for call in others {
        scene.end(call)?.outcome.map_err(|refusal| format!("another call failed: {refusal}"))?;
    }
    Ok(hold(took < SLACK, || format!("it took {took:?} to give up")))
}

fn closes(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    scene.close()?;
    wait_until("the client has closed its connections", CALL_MAX, || {
        let seen = leader.seen();
        seen.connections > 0 && seen.closed == seen.connections
    })?;
    scene.refused(1, Fault::Closed).map(drop)
}
