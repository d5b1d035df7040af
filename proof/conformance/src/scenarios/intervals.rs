//! Scenarios of interval mode, for clients that have it over the native protocol: the wait, nodes
//! that are uncertain, nodes that lag behind the change of the mode, and answers that no node
//! gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::interval::IntervalStamp;
use epicepoch_wire::native::FEATURE_INTERVALS;
use epicepoch_wire::{NodeId, Timestamp};

use super::expect::{hold, one_in_time, scenario};
use crate::driver::Call;
use crate::node::{Node, Stamping};
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(1, "the_wait_of_an_interval_counts_from_its_answer", waits_from_the_answer),
    scenario(8, "a_node_without_interval_mode_is_not_asked_for_an_interval", needs_the_feature),
    scenario(9, "uncertain_nodes_are_not_asked_without_pause", uncertain_for_long),
    scenario(10, "an_interval_answer_of_quorum_mode_is_refused", foreign_answers),
    scenario(12, "a_node_that_is_uncertain_is_passed_over", passes_over_uncertain),
    scenario(12, "a_node_that_lags_behind_the_mode_is_passed_over", passes_over_lagging),
    scenario(12, "a_cluster_in_quorum_mode_gives_no_interval", other_mode_of_all),
];

/// Settings of a client that asks for intervals only, and does not leave a node that is late.
fn for_intervals() -> Settings {
    let attempt = Duration::from_secs(10);
    Settings { is_intervals: true, attempt, ..Settings::default() }
}

/// Adds a member of interval mode, which answers so.
fn node(scene: &mut Scene, stamping: impl FnMut(Stamping) + Send + 'static) -> Node {
    let node = scene.node();
    node.on_hello(|node, peer, hello| {
        let mut welcome = node.own_welcome();
        welcome.features = hello.features & FEATURE_INTERVALS;
        peer.welcome(&welcome);
    });
    node.on_interval(stamping);
    node
}

/// Answers with the next timestamp of a node, in an interval of this width.
fn stamps(id: u64, width: Duration) -> impl FnMut(Stamping) + Send + 'static {
    let mut count = 0;
    move |asked| {
        count += 1;
        asked.answer(&stamp(id, width, count));
    }
}

fn stamp(id: u64, width: Duration, count: u64) -> IntervalStamp {
    let width_ns = width.as_nanos() as u64;
    let latest_ns = SOMEDAY_NS + count;
    IntervalStamp::new(latest_ns - width_ns, latest_ns, NodeId(id), count).expect("an interval")
}

fn refuses(code: ErrorCode) -> impl FnMut(Stamping) + Send + 'static {
    move |asked| asked.refuse(code)
}

/// The timestamp of a call that must succeed.
fn given(call: &Call) -> Result<Timestamp, String> {
    let range = call.outcome.as_ref().map_err(|refusal| format!("a call failed: {refusal}"))?;
    Ok(range.first())
}

fn waits_from_the_answer(scene: &mut Scene) -> Verdict {
    // The answer comes after a while. A wait that counted from the request would be over sooner.
    let node = node(scene, |asked| {
        std::thread::sleep(DELAY);
        asked.answer(&stamp(1, WIDTH, asked.number));
    });
    scene.open_with(&[&node], &for_intervals())?;
    for count in 1..=3 {
        let call = scene.interval(CALL_MAX)?;
        let got = given(&call)?;
        hold(got == stamp(1, WIDTH, count).timestamp(), || format!("{got} is another answer"))?;
        let least = DELAY + WIDTH + WIDTH / 8;
        hold(call.took >= least, || {
            format!("the wait was over after {:?}, at least {least:?} had to pass", call.took)
        })?;
    }
    Ok(())
}

fn needs_the_feature(scene: &mut Scene) -> Verdict {
    // A request to the first node is an offence, because its welcome has not the feature.
    let old = scene.node();
    let new = node(scene, stamps(2, WIDTH));
    scene.open_with(&[&old, &new], &for_intervals())?;
    let call = scene.interval(CALL_MAX)?;
    let got = given(&call)?;
    hold(got == stamp(2, WIDTH, 1).timestamp(), || format!("{got} is another answer"))
}

fn uncertain_for_long(scene: &mut Scene) -> Verdict {
    let nodes = [(); 2].map(|()| node(scene, refuses(ErrorCode::Uncertain)));
    scene.open_with(&[&nodes[0], &nodes[1]], &for_intervals())?;
    let timeout = Duration::from_millis(300);
    let call = scene.interval(timeout)?;
    expect_fault(&call, Fault::Deadline)?;
    hold(call.took >= timeout, || format!("the call ended after {:?}", call.took))?;
    let asked: u64 = nodes.iter().map(|node| node.seen().stamps).sum();
    // There is a pause of some milliseconds after each round through the two nodes.
    let most = 2 * (timeout.as_millis() as u64 / 4 + 1);
    hold(asked <= most, || format!("the nodes were asked {asked} times"))
}

fn foreign_answers(scene: &mut Scene) -> Verdict {
    let node = node(scene, |asked| {
        let mut bytes = asked.bytes(&stamp(1, WIDTH, 1));
        // The first bit of the index is that of interval mode.
        bytes[24] &= 0x7f;
        asked.peer.say(&bytes);
    });
    scene.open_with(&[&node], &for_intervals())?;
    let call = scene.interval(CALL_MAX)?;
    expect_fault(&call, Fault::Protocol)
}

fn passes_over_uncertain(scene: &mut Scene) -> Verdict {
    let unsure = node(scene, refuses(ErrorCode::Uncertain));
    let sure = node(scene, stamps(2, WIDTH));
    scene.open_with(&[&unsure, &sure], &for_intervals())?;
    for count in 1..=2 {
        let call = scene.interval(CALL_MAX)?;
        let got = given(&call)?;
        hold(got == stamp(2, WIDTH, count).timestamp(), || format!("{got} is another answer"))?;
    }
    Ok(())
}

fn passes_over_lagging(scene: &mut Scene) -> Verdict {
    let lagging = node(scene, refuses(ErrorCode::OtherMode));
    // This one is in interval mode, and uncertain at first. So the other one lags.
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let mut sure = stamps(2, WIDTH);
    let other = node(scene, move |asked| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => asked.refuse(ErrorCode::Uncertain),
        _ => sure(asked),
    });
    scene.open_with(&[&lagging, &other], &for_intervals())?;
    let call = scene.interval(CALL_MAX)?;
    let got = given(&call)?;
    hold(got == stamp(2, WIDTH, 1).timestamp(), || format!("{got} is another answer"))?;
    hold(asked.load(Ordering::SeqCst) == 2, || "the other node was asked once".to_owned())
}

fn other_mode_of_all(scene: &mut Scene) -> Verdict {
    let nodes = [(); 3].map(|()| node(scene, refuses(ErrorCode::OtherMode)));
    scene.open_with(&[&nodes[0], &nodes[1], &nodes[2]], &for_intervals())?;
    let mut calls = 0;
    one_in_time(|| {
        calls += 1;
        let call = scene.interval(CALL_MAX)?;
        expect_fault(&call, Fault::Refused)?;
        for node in &nodes {
            let stamps = node.seen().stamps;
            hold(stamps == calls, || format!("a node was asked {stamps} times in {calls} calls"))?;
        }
        Ok(hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took)))
    })
}

/// Some day in 2023.
const SOMEDAY_NS: u64 = 1_700_000_000_000_000_000;
/// The width of an interval, and how long an answer takes: less than an attempt may.
const WIDTH: Duration = Duration::from_millis(24);
const DELAY: Duration = Duration::from_millis(30);
