//! Whose timestamps they are: other clusters, and other histories of the same one.

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::{ClusterId, HistoryId};

use super::scenario;
use crate::Verdict;
use crate::node::{CLUSTER, HISTORY, Node};
use crate::protocol::Fault;
use crate::stage::{CALL_MAX, Stage, expect_fault};
use crate::suite::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(6, "an_answer_of_another_cluster_is_refused", another_cluster),
    scenario(6, "an_answer_of_another_history_is_refused", another_history),
    scenario(6, "a_node_that_refuses_the_cluster_is_believed", refused_by_node),
    scenario(6, "a_node_of_no_cluster_yet_is_passed_over", no_cluster_yet),
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
