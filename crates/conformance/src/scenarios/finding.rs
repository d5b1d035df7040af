//! Where the leader is: hints that are right, wrong, late or in a circle, and nodes that die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epicepoch_wire::NodeId;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::LeaderNotice;

use super::{hold, scenario};
use crate::node::{DeadAddress, Node};
use crate::stage::{CALL_MAX, Stage};
use crate::suite::Scenario;
use crate::{Settings, Verdict, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(3, "the_leader_that_a_follower_names_is_asked", follower_names),
    scenario(3, "a_leader_that_steps_down_is_followed_to_the_next", steps_down),
    scenario(3, "a_wrong_hint_is_survived", wrong_hint),
    scenario(3, "a_dead_address_is_passed_over", dead_address),
    scenario(3, "a_leader_that_falls_silent_is_left", falls_silent),
    scenario(3, "a_leader_that_dies_is_replaced", dies),
    scenario(3, "a_goodbye_sends_the_client_elsewhere", goodbye),
    scenario(3, "a_notice_is_a_hint_and_no_failure", notices),
    scenario(3, "an_election_is_waited_out", election),
    scenario(4, "a_member_that_was_added_is_found_when_the_others_are_gone", fresh_members),
    scenario(9, "nodes_that_name_each_other_are_not_asked_without_pause", circle),
    scenario(9, "a_node_that_hangs_up_is_not_asked_without_pause", storm),
];

/// Refuses every request, and names that address.
fn names(node: &Node, addr: String) {
    node.on_request(move |_, ask| ask.refuse(ErrorCode::NotLeader, &addr));
}

fn follower_names(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    let follower = stage.node();
    names(&follower, leader.addr());
    stage.open(&[&follower])?;
    stage.answered(3)?;
    stage.answered(1).map(drop)
}

fn steps_down(stage: &mut Stage) -> Verdict {
    let old = stage.leader();
    let new = stage.node();
    stage.open(&[&old])?;
    stage.answered(1)?;
    names(&old, new.addr());
    stage.cast.is_led_by(&new);
    let began = Instant::now();
    stage.answered(1)?;
    let took = began.elapsed();
    hold(took < Duration::from_secs(1), || format!("it took {took:?} to go where it was told"))
}

fn wrong_hint(stage: &mut Stage) -> Verdict {
    let dead = DeadAddress::hold();
    let old = stage.leader();
    let new = stage.node();
    stage.open(&[&old])?;
    stage.answered(1)?;
    names(&old, dead.addr());
    // The old one still calls itself the leader when it is greeted; the new one knows better.
    let old_words = old.greeting();
    old.on_hello(move |_, peer, _| peer.welcome(&old_words));
    stage.cast.is_led_by(&new);
    stage.answered(1).map(drop)
}

fn dead_address(stage: &mut Stage) -> Verdict {
    let dead = DeadAddress::hold();
    let leader = stage.leader();
    stage.open_at(&[dead.addr(), leader.addr()], &Settings::default())?;
    stage.answered(1).map(drop)
}

fn falls_silent(stage: &mut Stage) -> Verdict {
    let old = stage.leader();
    let new = stage.node();
    stage.open(&[&old, &new])?;
    stage.answered(1)?;
    // As a paused process: connections stand, and are even made.
    old.on_request(|_, _| {});
    old.on_hello(|_, _, _| {});
    stage.cast.is_led_by(&new);
    let began = Instant::now();
    stage.answered(1)?;
    let took = began.elapsed();
    hold(took < Duration::from_secs(2), || format!("it took {took:?}, attempts take 100 ms"))
}

fn dies(stage: &mut Stage) -> Verdict {
    let old = stage.leader();
    let new = stage.node();
    stage.open(&[&old, &new])?;
    stage.answered(1)?;
    stage.cast.is_led_by(&new);
    old.stop();
    let began = Instant::now();
    stage.answered(1)?;
    let took = began.elapsed();
    hold(took < Duration::from_secs(1), || format!("it took {took:?}"))
}

fn goodbye(stage: &mut Stage) -> Verdict {
    let old = stage.leader();
    let new = stage.node();
    stage.open(&[&old, &new])?;
    stage.answered(1)?;
    stage.cast.is_led_by(&new);
    let leaving = old.clone();
    // What was read is answered, then the node leaves, and what it had not read is lost.
    let mut was_answered = false;
    old.on_request(move |_, ask| {
        if !was_answered {
            was_answered = true;
            ask.answer();
        }
        ask.peer.leave();
    });
    let calls: Vec<_> = (0..6).map(|_| stage.begin(1, CALL_MAX)).collect();
    for call in calls {
        stage.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
    }
    leaving.stop();
    stage.answered(1).map(drop)
}

fn notices(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open(&[&leader])?;
    stage.answered(1)?;
    let notice = |node: u64, addr: &str| {
        let mut bytes = Vec::new();
        LeaderNotice { node: NodeId(node), addr }.encode(&mut bytes);
        bytes
    };
    // Nobody is known to lead; it leads itself; another one that is not there leads.
    leader.say_to_all(&notice(0, ""));
    stage.answered(1)?;
    leader.say_to_all(&notice(1, &leader.addr()));
    stage.answered(1)?;
    let dead = DeadAddress::hold();
    leader.say_to_all(&notice(9, &dead.addr()));
    stage.answered(1).map(drop)
}

fn election(stage: &mut Stage) -> Verdict {
    let one = stage.leader();
    let two = stage.node();
    stage.open(&[&one, &two])?;
    stage.answered(1)?;
    stage.cast.is_led_by_nobody();
    for node in [&one, &two] {
        node.on_request(|_, ask| ask.refuse(ErrorCode::NoLeader, ""));
    }
    one.hang_up();
    let call = stage.begin(1, CALL_MAX);
    std::thread::sleep(Duration::from_millis(300));
    two.on_request(|_, ask| ask.answer());
    stage.cast.is_led_by(&two);
    let elected = Instant::now();
    let call = stage.end(call)?;
    call.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    let took = call.end.saturating_duration_since(elected);
    hold(took < Duration::from_millis(600), || {
        format!("the new leader was found {took:?} after it was elected")
    })
}

fn fresh_members(stage: &mut Stage) -> Verdict {
    let old = stage.leader();
    let settings = Settings { refresh: Duration::from_millis(100), ..Settings::default() };
    stage.open_with(&[&old], &settings)?;
    stage.answered(1)?;
    // Nothing but a look at the members tells of the new one.
    let new = stage.node();
    let before = old.seen().hellos;
    // A greeting may be that of another connection, so one is not enough.
    wait_until("the client looks at the members again", CALL_MAX, || {
        old.seen().hellos >= before + 2
    })?;
    // It has the list when it has read the welcome.
    std::thread::sleep(Duration::from_millis(50));
    stage.cast.is_led_by(&new);
    old.stop();
    stage.answered(1).map(drop)
}

fn circle(stage: &mut Stage) -> Verdict {
    let one = stage.leader();
    let two = stage.node();
    stage.open(&[&one, &two])?;
    stage.answered(1)?;
    let is_over = Arc::new(AtomicBool::new(false));
    for (node, other) in [(&one, two.addr()), (&two, one.addr())] {
        let over = is_over.clone();
        node.on_request(move |_, ask| {
            if over.load(Ordering::SeqCst) {
                ask.answer();
            } else {
                ask.refuse(ErrorCode::NotLeader, &other);
            }
        });
        // Each calls itself the leader when it is greeted.
        let mut welcome = node.greeting();
        welcome.leader = welcome.members.iter().find(|it| it.addr == node.addr()).cloned();
        node.on_hello(move |_, peer, _| peer.welcome(&welcome));
    }
    let asked = |node: &Node| node.seen().requests + node.seen().hellos;
    let before = asked(&one) + asked(&two);
    let call = stage.begin(1, CALL_MAX);
    std::thread::sleep(STORM);
    let asked = asked(&one) + asked(&two) - before;
    is_over.store(true, Ordering::SeqCst);
    stage.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    calm(asked)
}

fn storm(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open(&[&leader])?;
    stage.answered(1)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    leader.on_request(move |_, ask| {
        if over.load(Ordering::SeqCst) {
            ask.answer();
        } else {
            ask.peer.hang_up();
        }
    });
    let before = leader.seen();
    let call = stage.begin(1, CALL_MAX);
    std::thread::sleep(STORM);
    let seen = leader.seen();
    is_over.store(true, Ordering::SeqCst);
    stage.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    calm(seen.requests + seen.hellos - before.requests - before.hellos)
}

/// From 1 ms to 50 between attempts, half of it chance: some twenty attempts, each of which may
/// be four hops of two frames.
fn calm(frames: u64) -> Verdict {
    let is_calm = (2..=STORM_FRAMES_MAX).contains(&frames);
    hold(is_calm, || format!("{frames} frames came in {STORM:?}, not 2 to {STORM_FRAMES_MAX}"))
}

/// How long nothing but trouble is to be had.
const STORM: Duration = Duration::from_millis(500);
/// Hellos and requests in that time at most.
const STORM_FRAMES_MAX: u64 = 250;
