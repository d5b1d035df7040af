//! Scenarios about refusals: which ones a client retries and at which node, and which ones it
//! reports to the caller.

use std::time::Instant;

use epicepoch_wire::http::ErrorCode;

use super::expect::{hold, scenario};
use crate::Verdict;
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(9, "an_overloaded_leader_is_asked_again_after_a_pause", overloaded),
    scenario(12, "what_another_attempt_heals_is_not_seen", healed),
    scenario(12, "a_number_that_is_not_known_is_a_broken_node", unknown_number),
    scenario(12, "no_common_version_is_said_at_once", no_version),
    scenario(12, "a_later_version_in_a_welcome_is_refused", later_welcome),
    scenario(12, "a_request_that_is_wrong_is_not_repeated", bad_request),
    scenario(12, "a_missing_token_is_named_at_once", missing_token),
    scenario(12, "a_connection_whose_token_was_revoked_ends_no_call", revoked_token),
    scenario(12, "a_node_that_accepts_only_tls_is_named_at_once", only_tls),
];

fn overloaded(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    let before = leader.seen();
    let least = before.requests + REFUSALS;
    leader.on_request(move |_, ask| {
        if ask.number <= least {
            ask.refuse(ErrorCode::Overloaded, "");
        } else {
            ask.answer();
        }
    });
    let began = Instant::now();
    scene.answered(1)?;
    let (took, seen) = (began.elapsed().as_millis(), leader.seen());
    hold(took >= 30, || format!("{REFUSALS} refusals cost only {took} ms: there was no pause"))?;
    let closed = seen.closed - before.closed;
    hold(closed == 0, || format!("the client left a leader that leads: {closed} connections"))
}

/// How many requests the overloaded leader refuses before it answers.
const REFUSALS: u64 = 3;

fn healed(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    for code in [
        ErrorCode::NoQuorum,
        ErrorCode::NoLeader,
        ErrorCode::NotReady,
        ErrorCode::ShuttingDown,
        ErrorCode::Internal,
    ] {
        let mut is_refused = false;
        leader.on_request(move |_, ask| {
            if is_refused {
                ask.answer();
            } else {
                is_refused = true;
                ask.refuse(code, "not now");
            }
        });
        scene.answered(1).map_err(|why| format!("{code}: {why}"))?;
    }
    Ok(())
}

fn unknown_number(scene: &mut Scene) -> Verdict {
    let broken = scene.leader();
    let good = scene.node();
    scene.open(&[&broken, &good])?;
    scene.answered(1)?;
    broken
        .on_request(|_, ask| ask.peer.refuse(4242, false, ask.request.id, "from a later version"));
    scene.scripted.is_led_by(&good);
    scene.answered(1).map(drop)
}

fn no_version(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|_, peer, _| {
        peer.refuse(ErrorCode::UnsupportedVersion as u16, true, 0, "versions 7 to 9");
        peer.hang_up();
    });
    let call = scene.first_refusal(&[leader.addr()], CALL_MAX)?;
    expect_fault(&call, Fault::Refused)?;
    hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took))
}

fn later_welcome(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|node, peer, _| {
        let mut welcome = node.own_welcome();
        welcome.version = 2;
        peer.welcome(&welcome);
    });
    let call = scene.first_refusal(&[leader.addr()], CALL_MAX)?;
    hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took))?;
    match &call.outcome {
        Err(refusal) if matches!(refusal.fault, Fault::Protocol | Fault::Refused) => Ok(()),
        _ => expect_fault(&call, Fault::Protocol),
    }
}

fn bad_request(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| ask.refuse(ErrorCode::Unsupported, "not by this node"));
    let before = leader.seen().requests;
    scene.refused(1, Fault::Refused)?;
    let sent = leader.seen().requests - before;
    hold(sent == 1, || format!("it was sent {sent} times"))
}

/// Refuses every hello, and returns the error of a client without a token and without TLS.
fn refused_hello(scene: &mut Scene, code: ErrorCode, text: &'static str) -> Result<String, String> {
    let leader = scene.leader();
    leader.on_hello(move |_, peer, _| {
        peer.refuse(code as u16, true, 0, text);
        peer.hang_up();
    });
    let call = scene.first_refusal(&[leader.addr()], CALL_MAX)?;
    expect_fault(&call, Fault::Refused)?;
    hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took))?;
    Ok(call.outcome.err().map(|refusal| refusal.text).unwrap_or_default())
}

fn missing_token(scene: &mut Scene) -> Verdict {
    let text = refused_hello(scene, ErrorCode::Unauthorized, "authorization: Bearer TOKEN")?;
    hold(text.contains("missing token: set "), || text)
}

fn revoked_token(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    let mut was_ended = false;
    leader.on_request(move |_, ask| {
        if was_ended {
            return ask.answer();
        }
        was_ended = true;
        ask.peer.refuse(ErrorCode::Unauthorized as u16, true, 0, "");
        ask.peer.hang_up();
    });
    scene.answered(1).map(drop)
}

fn only_tls(scene: &mut Scene) -> Verdict {
    let text = refused_hello(scene, ErrorCode::BadRequest, "this port speaks TLS")?;
    let advice = "this port speaks TLS; this client speaks plain text: set ";
    hold(text.contains(advice), || text)
}
