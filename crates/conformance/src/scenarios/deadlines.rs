//! When a call ends: deadlines, callers that give up, clients that are closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{SLACK, hold, one_in_time, scenario};
use crate::node::{Ask, Node};
use crate::protocol::Fault;
use crate::stage::{CALL_MAX, Stage, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(5, "deadlines_are_honoured_while_a_node_is_silent", silent_node),
    scenario(5, "a_call_without_time_is_not_answered", no_time),
    scenario(5, "a_late_answer_goes_to_nobody", late_answer),
    scenario(5, "a_caller_that_gives_up_leaves_the_others_alone", gives_up),
    scenario(5, "a_closed_client_has_no_connection_and_answers_no_call", closes),
];

fn patient() -> Settings {
    Settings { attempt: Duration::from_secs(10), ..Settings::default() }
}

fn silent_node(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    leader.on_request(|_, _| {});
    stage.open(&[&leader])?;
    one_in_time(|| {
        let timeouts = [0, 30, 60, 90, 200, 400].map(Duration::from_millis);
        let calls = timeouts.map(|timeout| (timeout, stage.begin(1, timeout)));
        let mut late = Ok(());
        for (timeout, call) in calls {
            let call = stage.end(call)?;
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

fn no_time(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open(&[&leader])?;
    stage.answered(1)?;
    for _ in 0..20 {
        let call = stage.call(1, Duration::ZERO)?;
        expect_fault(&call, Fault::Deadline)?;
    }
    stage.answered(1).map(drop)
}

fn late_answer(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    // Requests get their timestamps at once, and until the first call is over no answer. Those
    // answers come in front of the next call's.
    let is_late = Arc::new(AtomicBool::new(false));
    let late = is_late.clone();
    let mut held = Vec::new();
    leader.on_request(move |_, ask| {
        held.push((ask.take(), ask));
        if late.load(Ordering::SeqCst) {
            held.drain(..).for_each(|(range, ask)| ask.send(range));
        }
    });
    stage.open_with(&[&leader], &patient())?;
    let call = stage.call(1, Duration::from_millis(80))?;
    expect_fault(&call, Fault::Deadline)?;
    is_late.store(true, Ordering::SeqCst);
    // The ledger says that these are of requests from after the call.
    stage.answered(1)?;
    stage.answered(1).map(drop)
}

fn gives_up(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open_with(&[&leader], &patient())?;
    one_in_time(|| gives_up_once(stage, &leader))?;
    stage.answered(1).map(drop)
}

/// Whether it was in time.
fn gives_up_once(stage: &mut Stage, leader: &Node) -> Result<Verdict, String> {
    let held: Arc<Mutex<Option<Vec<Ask>>>> = Arc::new(Mutex::new(Some(Vec::new())));
    let holding = held.clone();
    leader.on_request(move |_, ask| match &mut *lock(&holding) {
        Some(held) => held.push(ask),
        None => ask.answer(),
    });
    let before = leader.seen().requests;
    let first = stage.begin(1, CALL_MAX);
    wait_until("the client asks", CALL_MAX, || leader.seen().requests > before)?;
    let others = [2, 1, 3].map(|count| stage.begin(count, CALL_MAX));
    let gone = stage.begin(5, CALL_MAX);
    std::thread::sleep(Duration::from_millis(20));
    let began = Instant::now();
    for call in [&first, &gone] {
        stage.cancel(call)?;
    }
    for call in [first, gone] {
        expect_fault(&stage.end(call)?, Fault::Cancelled)?;
    }
    let took = began.elapsed();
    let late = lock(&held).take().unwrap_or_default();
    late.iter().for_each(Ask::answer);
    for call in others {
        stage.end(call)?.outcome.map_err(|refusal| format!("another call failed: {refusal}"))?;
    }
    Ok(hold(took < SLACK, || format!("it took {took:?} to give up")))
}

fn closes(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open(&[&leader])?;
    stage.answered(1)?;
    stage.close()?;
    wait_until("the client has closed its connections", CALL_MAX, || {
        let seen = leader.seen();
        seen.connections > 0 && seen.closed == seen.connections
    })?;
    stage.refused(1, Fault::Closed).map(drop)
}
