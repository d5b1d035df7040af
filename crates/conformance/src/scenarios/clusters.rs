//! Whose timestamps they are: other clusters, and other histories of the same one.

use std::time::Duration;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::Welcome;
use epicepoch_wire::{ClusterId, HistoryId};

use super::scenario;
use crate::node::{CLUSTER, HISTORY, Node};
use crate::protocol::Fault;
use crate::stage::{CALL_MAX, Stage, expect_fault};
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
    let mut welcome = node.greeting();
    welcome.cluster = Some((cluster, history));
    node.on_hello(move |_, peer, _| peer.welcome(&welcome));
    node.hang_up();
}

fn another_cluster(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open(&[&leader])?;
    stage.answered(1)?;
    turns_into(&leader, ClusterId(CLUSTER.0 + 1), HISTORY);
    stage.refused(1, Fault::WrongCluster).map(drop)
}

fn another_history(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    stage.open(&[&leader])?;
    stage.answered(1)?;
    turns_into(&leader, CLUSTER, HistoryId(HISTORY.0 + 1));
    stage.refused(1, Fault::WrongCluster).map(drop)
}

fn refused_by_node(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    leader.on_hello(|_, peer, _| {
        peer.refuse(ErrorCode::WrongCluster as u16, true, 0, "another one is expected");
        peer.hang_up();
    });
    let call = stage.first_refusal(&[leader.addr()], CALL_MAX)?;
    expect_fault(&call, Fault::WrongCluster)
}

fn no_cluster_yet(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    let new = stage.unlisted_node();
    let mut welcome = new.greeting();
    (welcome.cluster, welcome.leader) = (None, None);
    new.on_hello(move |_, peer, _| peer.welcome(&welcome));
    new.on_request(|_, ask| ask.refuse(ErrorCode::NotReady, ""));
    stage.open(&[&new, &leader])?;
    stage.answered(1).map(drop)
}

fn leads_nothing(stage: &mut Stage) -> Verdict {
    let leader = stage.leader();
    let welcome = Welcome { cluster: None, ..leader.greeting() };
    leader.on_hello(move |_, peer, _| peer.welcome(&welcome));
    let call = stage.first_refusal(&[leader.addr()], Duration::from_millis(500))?;
    expect_fault(&call, Fault::Deadline)
}

/// A leader that holds clients to the name of its cluster, as real nodes do.
fn named(stage: &mut Stage) -> Node {
    let leader = stage.leader();
    leader.on_hello(|node, peer, hello| {
        if hello.cluster_name == NAME {
            let mut welcome = node.greeting();
            NAME.clone_into(&mut welcome.cluster_name);
            return peer.welcome(&welcome);
        }
        peer.refuse(ErrorCode::WrongCluster as u16, true, 0, NAME);
        peer.hang_up();
    });
    leader
}

fn right_name(stage: &mut Stage) -> Verdict {
    let leader = named(stage);
    let cluster = Some(NAME.to_owned());
    stage.open_with(&[&leader], &Settings { cluster, ..Settings::default() })?;
    stage.answered(1).map(drop)
}

fn wrong_name(stage: &mut Stage) -> Verdict {
    let leader = named(stage);
    let cluster = Some("another".to_owned());
    let settings = Settings { cluster, timeout: CALL_MAX, ..Settings::default() };
    let call = stage.first_refusal_with(&[leader.addr()], &settings)?;
    expect_fault(&call, Fault::WrongCluster)
}

/// What the cluster is called.
const NAME: &str = "payments";
