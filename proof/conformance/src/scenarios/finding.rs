//! Scenarios about finding the leader: with hints that are right, wrong, late or circular, and when
//! nodes die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epicepoch_wire::NodeId;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::LeaderNotice;

use super::expect::{hold, one_in_time, scenario};
use crate::node::{DeadAddress, Node};
use crate::scene::{CALL_MAX, Scene};
use crate::suite::Scenario;
use crate::{Settings, Verdict, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(3, "the_leader_that_a_follower_names_is_asked", follower_names),
    scenario(3, "a_leader_that_steps_down_is_followed_to_the_next", steps_down),
    scenario(3, "a_wrong_hint_is_survived", wrong_hint),
    scenario(3, "a_hint_about_a_node_that_has_just_fallen_silent_is_not_followed", silent_hint),
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

/// Makes the node refuse every request and name this address as the leader.
fn names(node: &Node, addr: String) {
    node.on_request(move |_, ask| ask.refuse(ErrorCode::NotLeader, &addr));
}

fn follower_names(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let follower = scene.node();
    names(&follower, leader.addr());
    scene.open(&[&follower])?;
    scene.answered(3)?;
    scene.answered(1).map(drop)
}

fn steps_down(scene: &mut Scene) -> Verdict {
    let (mut old, mut new) = (scene.leader(), scene.node());
    scene.open(&[&old])?;
    one_in_time(|| {
        scene.answered(1)?;
        names(&old, new.addr());
        new.on_request(|_, ask| ask.answer());
        scene.scripted.is_led_by(&new);
        let began = Instant::now();
        scene.answered(1)?;
        let took = began.elapsed();
        // In a further try, the nodes change places.
        std::mem::swap(&mut old, &mut new);
        let late = || format!("it took {took:?} to go where it was told");
        Ok(hold(took < Duration::from_secs(1), late))
    })
}

fn wrong_hint(scene: &mut Scene) -> Verdict {
    let dead = DeadAddress::hold();
    let old = scene.leader();
    let new = scene.node();
    scene.open(&[&old])?;
    scene.answered(1)?;
    names(&old, dead.addr());
    // The old leader's welcome still names itself as the leader. The new leader's welcome names the
    // new leader.
    let old_words = old.own_welcome();
    old.on_hello(move |_, peer, _| peer.welcome(&old_words));
    scene.scripted.is_led_by(&new);
    scene.answered(1).map(drop)
}

fn silent_hint(scene: &mut Scene) -> Verdict {
    let old = scene.leader();
    let others = [scene.node(), scene.node()];
    scene.open(&[&old])?;
    scene.answered(1)?;
    // The leader falls silent, but the other nodes still name it as the leader.
    old.on_request(|_, _| {});
    old.on_hello(|_, _, _| {});
    for node in &others {
        names(node, old.addr());
    }
    let hellos = || others.iter().map(|node| node.seen().hellos).sum::<u64>();
    let call = scene.begin(1, 3 * CALL_MAX);
    // After 100 ms without an answer the client leaves the silent node. Until then, a hedging
    // client may connect to it again.
    std::thread::sleep(Duration::from_millis(200));
    let before = (old.seen().connections, hellos());
    wait_until("the client asks the others", 2 * CALL_MAX, || hellos() >= before.1 + OTHERS_ASKED)?;
    let again = old.seen().connections - before.0;
    others[0].on_request(|_, ask| ask.answer());
    scene.scripted.is_led_by(&others[0]);
    scene.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    hold(again <= SILENT_ASKED_MAX, || {
        format!("{again} connections to a silent node, but {OTHERS_ASKED} to the two others")
    })
}

fn dead_address(scene: &mut Scene) -> Verdict {
    let dead = DeadAddress::hold();
    let leader = scene.leader();
    scene.open_at(&[dead.addr(), leader.addr()], &Settings::default())?;
    scene.answered(1).map(drop)
}

fn falls_silent(scene: &mut Scene) -> Verdict {
    one_in_time(|| {
        let old = scene.leader();
        let new = scene.node();
        scene.open(&[&old, &new])?;
        scene.answered(1)?;
        // From now on the node acts like a paused process. Its connections stay open, and it even
        // accepts new ones, but it sends nothing.
        old.on_request(|_, _| {});
        old.on_hello(|_, _, _| {});
        scene.scripted.is_led_by(&new);
        let took = answered_last(scene, [&old, &new])?;
        let late = || format!("it took {took:?}, attempts take 100 ms");
        Ok(hold(took < Duration::from_secs(2), late))
    })
}

/// Makes one call, which must succeed, and ends the client and these nodes, so that a further try
/// has its own. Returns how long the call took.
fn answered_last(scene: &mut Scene, nodes: [&Node; 2]) -> Result<Duration, String> {
    let began = Instant::now();
    scene.answered(1)?;
    let took = began.elapsed();
    scene.close()?;
    nodes.into_iter().for_each(Node::stop);
    Ok(took)
}

fn dies(scene: &mut Scene) -> Verdict {
    one_in_time(|| {
        let old = scene.leader();
        let new = scene.node();
        scene.open(&[&old, &new])?;
        scene.answered(1)?;
        scene.scripted.is_led_by(&new);
        old.stop();
        let took = answered_last(scene, [&old, &new])?;
        Ok(hold(took < Duration::from_secs(1), || format!("it took {took:?}")))
    })
}

fn goodbye(scene: &mut Scene) -> Verdict {
    let old = scene.leader();
    let new = scene.node();
    scene.open(&[&old, &new])?;
    scene.answered(1)?;
    scene.scripted.is_led_by(&new);
    let leaving = old.clone();
    // On each connection, the node sends a goodbye and closes after the request that it has read.
    // It answers only the first request. Requests that it has not read are lost.
    let mut was_answered = false;
    old.on_request(move |_, ask| {
        if !was_answered {
            was_answered = true;
            ask.answer();
        }
        ask.peer.leave();
    });
    let calls: Vec<_> = (0..6).map(|_| scene.begin(1, CALL_MAX)).collect();
    for call in calls {
        scene.end(call)?.outcome.map_err(|refusal| format!("a call failed: {refusal}"))?;
    }
    leaving.stop();
    scene.answered(1).map(drop)
}

fn notices(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    let notice = |node: u64, addr: &str| {
        let mut bytes = Vec::new();
        LeaderNotice { node: NodeId(node), addr }.encode(&mut bytes);
        bytes
    };
    // Send three notices in turn. The first says that no leader is known, the second that this node
    // leads, and the third that a node leads which does not exist.
    leader.say_to_all(&notice(0, ""));
    scene.answered(1)?;
    leader.say_to_all(&notice(1, &leader.addr()));
    scene.answered(1)?;
    let dead = DeadAddress::hold();
    leader.say_to_all(&notice(9, &dead.addr()));
    scene.answered(1).map(drop)
}

fn election(scene: &mut Scene) -> Verdict {
    let (mut one, mut two) = (scene.leader(), scene.node());
    scene.open(&[&one, &two])?;
    one_in_time(|| {
        scene.answered(1)?;
        scene.scripted.is_led_by_nobody();
        for node in [&one, &two] {
            node.on_request(|_, ask| ask.refuse(ErrorCode::NoLeader, ""));
        }
        one.hang_up();
        let call = scene.begin(1, CALL_MAX);
        std::thread::sleep(Duration::from_millis(300));
        two.on_request(|_, ask| ask.answer());
        scene.scripted.is_led_by(&two);
        let elected = Instant::now();
        let call = scene.end(call)?;
        call.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
        let took = call.end.saturating_duration_since(elected);
        // In a further try, the nodes change places.
        std::mem::swap(&mut one, &mut two);
        Ok(hold(took < Duration::from_millis(600), || {
            format!("the new leader was found {took:?} after it was elected")
        }))
    })
}

fn fresh_members(scene: &mut Scene) -> Verdict {
    let old = scene.leader();
    let settings = Settings { refresh: Duration::from_millis(100), ..Settings::default() };
    scene.open_with(&[&old], &settings)?;
    scene.answered(1)?;
    // Only the list of members names the new node.
    let new = scene.node();
    let before = old.seen().hellos;
    // Wait for two hellos, because the client may have sent one of them for another reason.
    wait_until("the client looks at the members again", CALL_MAX, || {
        old.seen().hellos >= before + 2
    })?;
    // Give the client time to read the welcome, which has the list of members.
    std::thread::sleep(Duration::from_millis(50));
    scene.scripted.is_led_by(&new);
    old.stop();
    scene.answered(1).map(drop)
}

fn circle(scene: &mut Scene) -> Verdict {
    let one = scene.leader();
    let two = scene.node();
    scene.open(&[&one, &two])?;
    scene.answered(1)?;
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
        // In its welcome each node names itself as the leader.
        let mut welcome = node.own_welcome();
        welcome.leader = welcome.members.iter().find(|it| it.addr == node.addr()).cloned();
        node.on_hello(move |_, peer, _| peer.welcome(&welcome));
    }
    let before = arrivals(&[&one, &two]).len();
    let call = scene.begin(1, CALL_MAX);
    let came = trouble(&[&one, &two], before);
    is_over.store(true, Ordering::SeqCst);
    scene.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    calm(&came, scene.hedges())
}

fn storm(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
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
    let call = scene.begin(1, CALL_MAX);
    let came = trouble(&[&leader], before);
    is_over.store(true, Ordering::SeqCst);
    scene.end(call)?.outcome.map_err(|refusal| format!("the call failed: {refusal}"))?;
    calm(&came, scene.hedges())
}

/// Returns the times at which hellos and requests arrived at these nodes, sorted.
fn arrivals(nodes: &[&Node]) -> Vec<Instant> {
    let mut all: Vec<_> = nodes.iter().flat_map(|node| node.seen().arrivals).collect();
    all.sort_unstable();
    all
}

/// Waits, while every request fails, until there are enough frames to judge. Returns the arrivals
/// after the first `before`.
fn trouble(nodes: &[&Node], before: usize) -> Vec<Instant> {
    std::thread::sleep(STORM);
    // This wait may fail: a client with longer pauses sends fewer frames, and that is allowed.
    let _ = wait_until("enough came", STORM, || arrivals(nodes).len() >= before + FRAMES_LEAST);
    arrivals(nodes).split_off(before)
}

/// Checks that frames come in bursts with growing pauses between them. Stalls of the machine only
/// lengthen pauses.
fn calm(came: &[Instant], hedges: bool) -> Verdict {
    hold(came.len() >= 2, || format!("only {} frames came", came.len()))?;
    let all = came.len();
    if hedges {
        // The client pauses separately for its second connection, so the bursts of the two can fill
        // each other's pauses. What is left is how many frames they may send in this time.
        let took = came[all - 1] - came[0];
        let pauses = usize::try_from(took.as_millis() / PAUSE_LEAST.as_millis()).unwrap_or(all);
        let most = 2 * (RAMP_FRAMES + BURST_FRAMES * (1 + pauses));
        return hold(all <= most, || format!("{all} frames came in {took:?}, not {most} at most"));
    }
    let (mut row, mut longest) = (1, 1);
    for pair in came.windows(2).skip(RAMP_FRAMES) {
        row = if pair[1] - pair[0] < PAUSE_LEAST { row + 1 } else { 1 };
        longest = longest.max(row);
    }
    hold(longest <= BURST_FRAMES_MAX, || {
        format!(
            "{longest} frames came without a pause of {PAUSE_LEAST:?} between any two of them, \
             not {BURST_FRAMES_MAX} at most ({all} in all)"
        )
    })
}

/// How often the other two nodes name the silent one. A client that follows each hint makes at
/// least seven connections to the silent node meanwhile.
const OTHERS_ASKED: u64 = 8;
/// At most this many connections may be made to the silent node meanwhile. A client that asks the
/// three members in turn makes three or four. If the machine stalls until a suspicion ends, it
/// makes one more.
const SILENT_ASKED_MAX: u64 = 5;
/// For how long every request fails. After that, the test waits for enough frames at most as long
/// again.
const STORM: Duration = Duration::from_millis(500);
/// At least this many hellos and requests are needed to judge.
const FRAMES_LEAST: usize = RAMP_FRAMES + 2 * BURST_FRAMES_MAX;
/// Least length of the sixth pause and of all later ones. Pauses double from 1 ms to 50 ms, and up
/// to half of each is random.
const PAUSE_LEAST: Duration = Duration::from_millis(10);
/// At most this many frames come in one attempt: the client asks at most four nodes, one after
/// another as hints say, with a hello and a request to each.
const BURST_FRAMES: usize = 4 * 2;
/// At most this many frames come before the sixth pause.
const RAMP_FRAMES: usize = 6 * BURST_FRAMES;
/// At most this many frames come between two later pauses, twice as many as an attempt needs.
const BURST_FRAMES_MAX: usize = 2 * BURST_FRAMES;
