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
    let before = arrivals(&[&one, &two]).len();
    let call = stage.begin(1, CALL_MAX);
    let came = trouble(&[&one, &two], before);
    is_over.store(true, Ordering::SeqCst);
    stage.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    calm(&came)
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
    let before = arrivals(&[&leader]).len();
    let call = stage.begin(1, CALL_MAX);
    let came = trouble(&[&leader], before);
    is_over.store(true, Ordering::SeqCst);
    stage.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    calm(&came)
}

/// When hellos and requests came to these nodes, in order.
fn arrivals(nodes: &[&Node]) -> Vec<Instant> {
    let mut all: Vec<_> = nodes.iter().flat_map(|node| node.seen().arrivals).collect();
    all.sort_unstable();
    all
}

/// Lets trouble last until there is enough to be judged, and says what came after `before`.
fn trouble(nodes: &[&Node], before: usize) -> Vec<Instant> {
    std::thread::sleep(STORM);
    // A client that pauses for longer than it may sends fewer, which is no storm.
    let _ = wait_until("enough came", STORM, || arrivals(nodes).len() >= before + FRAMES_LEAST);
    arrivals(nodes).split_off(before)
}

/// Frames come in bursts, with pauses between that grow. How many come in how much time says
/// nothing about a machine that stalls; it only makes pauses longer, and never takes one away.
fn calm(came: &[Instant]) -> Verdict {
    hold(came.len() >= 2, || format!("only {} frames came", came.len()))?;
    let (mut row, mut longest) = (1, 1);
    for pair in came.windows(2).skip(RAMP_FRAMES) {
        row = if pair[1] - pair[0] < PAUSE_LEAST { row + 1 } else { 1 };
        longest = longest.max(row);
    }
    hold(longest <= BURST_FRAMES_MAX, || {
        let all = came.len();
        format!(
            "{longest} frames came without a pause of {PAUSE_LEAST:?} between any two of them, \
             not {BURST_FRAMES_MAX} at most ({all} in all)"
        )
    })
}

/// How long nothing but trouble is to be had, and how much longer at most until enough came.
const STORM: Duration = Duration::from_millis(500);
/// Hellos and requests that are enough to be judged.
const FRAMES_LEAST: usize = RAMP_FRAMES + 2 * BURST_FRAMES_MAX;
/// Between attempts, from 1 ms doubling to 50, of which half is chance: from the sixth on it is
/// more than this.
const PAUSE_LEAST: Duration = Duration::from_millis(10);
/// What may come before the sixth pause: attempts of four hops, each of a hello and a request.
const RAMP_FRAMES: usize = 6 * 4 * 2;
/// What may come between two pauses after that: one such attempt, and that of a client that asks
/// twice and pauses for each by itself.
const BURST_FRAMES_MAX: usize = 2 * 4 * 2;
