//! Scenarios with answers of other clusters, and of other histories of the same cluster.

use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::Welcome;
use epicepoch_wire::{ClusterId, HistoryId};

use super::expect::scenario;
use crate::node::{CLUSTER, HISTORY, Node};
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(6, "an_answer_of_another_cluster_is_refused", another_cluster),
    scenario(6, "an_answer_of_another_history_is_refused", another_history),
    scenario(6, "a_node_that_refuses_the_cluster_is_believed", refused_by_node),
    scenario(6, "a_node_of_no_cluster_yet_is_passed_over", no_cluster_yet),
    scenario(6, "a_leader_of_no_cluster_is_not_believed", leads_nothing),
    scenario(6, "a_client_of_the_right_name_is_served", right_name),
    scenario(6, "a_client_of_another_name_is_told_so", wrong_name),
];

fn turns_into(node: &Node, cluster: ClusterId, history: HistoryId) {
    let mut welcome = node.own_welcome();
    welcome.cluster = Some((cluster, history));
    node.on_hello(move |_, peer, _| peer.welcome(&welcome));
    node.hang_up();
}

fn another_cluster(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    turns_into(&leader, ClusterId(CLUSTER.0 + 1), HISTORY);
    scene.refused(1, Fault::WrongCluster).map(drop)
}

fn another_history(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    turns_into(&leader, CLUSTER, HistoryId(HISTORY.0 + 1));
    scene.refused(1, Fault::WrongCluster).map(drop)
}

fn refused_by_node(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|_, peer, _| {
        peer.refuse(ErrorCode::WrongCluster as u16, true, 0, "another one is expected");
        peer.hang_up();
    });
    let call = scene.first_refusal(&[leader.addr()], CALL_MAX)?;
    expect_fault(&call, Fault::WrongCluster)
}

fn no_cluster_yet(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let new = scene.unlisted_node();
    let mut welcome = new.own_welcome();
    (welcome.cluster, welcome.leader) = (None, None);
    new.on_hello(move |_, peer, _| peer.welcome(&welcome));
    new.on_request(|_, ask| ask.refuse(ErrorCode::NotReady, ""));
    scene.open(&[&new, &leader])?;
    scene.answered(1).map(drop)
}

fn leads_nothing(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    let welcome = Welcome { cluster: None, ..leader.own_welcome() };
    leader.on_hello(move |_, peer, _| peer.welcome(&welcome));
    let call = scene.first_refusal(&[leader.addr()], Duration::from_millis(500))?;
    expect_fault(&call, Fault::Deadline)
}

/// Adds a leader that checks the cluster name of clients, as real nodes do.
fn named(scene: &mut Scene) -> Node {
    let leader = scene.leader();
    leader.on_hello(|node, peer, hello| {
        if hello.cluster_name == NAME {
            let mut welcome = node.own_welcome();
            NAME.clone_into(&mut welcome.cluster_name);
            return peer.welcome(&welcome);
        }
        peer.refuse(ErrorCode::WrongCluster as u16, true, 0, NAME);
        peer.hang_up();
    });
    leader
}

fn right_name(scene: &mut Scene) -> Verdict {
    let leader = named(scene);
    let cluster = Some(NAME.to_owned());
    scene.open_with(&[&leader], &Settings { cluster, ..Settings::default() })?;
    scene.answered(1).map(drop)
}

fn wrong_name(scene: &mut Scene) -> Verdict {
    let leader = named(scene);
    let cluster = Some("another".to_owned());
    let settings = Settings { cluster, timeout: Some(CALL_MAX), ..Settings::default() };
    let call = scene.first_refusal_with(&[leader.addr()], &settings)?;
    expect_fault(&call, Fault::WrongCluster)
}

/// The name of the cluster.
const NAME: &str = "payments";
