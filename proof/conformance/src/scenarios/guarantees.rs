//! Scenarios about the guarantee that a client names, and about answers that a lease has proved.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{Guarantee, ProvedBy};

use super::expect::{QUIET, hold, scenario};
use crate::node::{Ask, Node};
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict, lock};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(8, "each_hello_names_the_guarantee_of_the_client_or_none", names_it_always),
    scenario(8, "an_answer_that_a_lease_has_proved_is_accepted_if_it_was_asked_for", accepts_lease),
    scenario(8, "an_answer_that_a_lease_has_proved_is_refused_if_it_was_not", refuses_lease),
    scenario(12, "a_refused_client_never_asks_without_its_quorum", insists_on_a_quorum),
    scenario(12, "a_refused_client_never_asks_without_its_lease", insists_on_a_lease),
];

fn names_it_always(scene: &mut Scene) -> Verdict {
    for guarantee in [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)] {
        // A client may still connect when it is closed. So each has a node of its own.
        let leader = scene.leader();
        let named = Arc::new(Mutex::new(Vec::new()));
        let naming = named.clone();
        leader.on_hello(move |node, peer, hello| {
            lock(&naming).push(hello.guarantee);
            peer.welcome(&node.own_welcome());
        });
        // The client also connects to read the list of members, and after its connection is lost.
        let refresh = Duration::from_millis(100);
        scene.open_with(&[&leader], &Settings { refresh, guarantee, ..Settings::default() })?;
        for _ in 0..3 {
            scene.answered(1)?;
            scene.latest()?;
            leader.hang_up();
            std::thread::sleep(refresh);
        }
        scene.close()?;
        let named = std::mem::take(&mut *lock(&named));
        hold(named.len() > 1 && named.iter().all(|it| *it == guarantee), || {
            format!("the client asks for {guarantee:?} and said {named:?}")
        })?;
    }
    Ok(())
}

fn insists_on_a_quorum(scene: &mut Scene) -> Verdict {
    insists(scene, Guarantee::Quorum)
}

fn insists_on_a_lease(scene: &mut Scene) -> Verdict {
    insists(scene, Guarantee::Lease)
}

fn insists(scene: &mut Scene, guarantee: Guarantee) -> Verdict {
    let leader = scene.leader();
    let named = Arc::new(Mutex::new(Vec::new()));
    let naming = named.clone();
    // A node that is too old for guarantees refuses the field. It accepts any other hello.
    leader.on_hello(move |node, peer, hello| {
        lock(&naming).push(hello.guarantee);
        if hello.guarantee.is_none() {
            return peer.welcome(&node.own_welcome());
        }
        peer.refuse(ErrorCode::Unsupported as u16, true, 0, "unknown tag 0x8002");
        peer.hang_up();
    });
    let (timeout, guarantee) = (Some(CALL_MAX), Some(guarantee));
    let settings = Settings { timeout, guarantee, ..Settings::default() };
    let call = scene.first_refusal_with(&[leader.addr()], &settings)?;
    expect_fault(&call, Fault::Refused)?;
    hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took))?;
    let text = call.outcome.err().map(|refusal| refusal.text).unwrap_or_default();
    let advice = "this node is too old for guarantees: update it, or leave ";
    hold(text.contains(advice), || text)?;
    std::thread::sleep(QUIET);
    let named = std::mem::take(&mut *lock(&named));
    hold(!named.is_empty() && named.iter().all(|it| *it == guarantee), || {
        format!("the client asks for {guarantee:?} and said {named:?}")
    })
}

/// The node says that a lease has proved its answers.
fn has_lease(node: &Node) {
    node.on_request(|_, ask: Ask| {
        let first = ask.take().first();
        ask.peer.say(&ask.request.answer_proved_by(first, ProvedBy::Lease));
    });
}

fn accepts_lease(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    has_lease(&leader);
    let guarantee = Some(Guarantee::Lease);
    scene.open_with(&[&leader], &Settings { guarantee, ..Settings::default() })?;
    let before = scene.answered(3)?.last();
    let latest = scene.latest()?;
    hold(latest >= before, || format!("{latest} is below {before}"))?;
    // A round may prove some answers, too.
    leader.on_request(|_, ask| ask.answer());
    scene.answered(2).map(drop)
}

fn refuses_lease(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    for guarantee in [None, Some(Guarantee::Quorum)] {
        leader.on_request(|_, ask| ask.answer());
        scene.open_with(&[&leader], &Settings { guarantee, ..Settings::default() })?;
        scene.answered(1)?;
        has_lease(&leader);
        scene.refused(1, Fault::Protocol)?;
        scene.close()?;
    }
    Ok(())
}
