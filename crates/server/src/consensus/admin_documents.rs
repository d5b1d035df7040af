//! The answers to admin commands, as JSON documents and error codes. Some answers come from the
//! core. Others list what this leader knows of the members and the settings.
//! [`epicepoch_core::admin`] decides which answer is given, and when.

use std::collections::BTreeMap;

use epicepoch_core::admin::{self, Answered, Done};
use epicepoch_core::closing::Progress;
use epicepoch_core::publication::{Published, Role};
use epicepoch_core::replica::{
    Advance, AdvanceError, ChangeError, Replica, SettingsError, TransferError,
};
use epicepoch_core::state::{FORMATS, MembershipStep};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::settings::SettingName;
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{Mode, NodeId};
use serde::Serialize;
use serde_json::{Value, json};

use crate::admin_queue::{ALREADY, Answer, Denied, STORE};

/// The answer of the core to a command, as a document.
pub(super) fn answer<R>(answered: &Answered<R>, replica: &Replica) -> Answer {
    let took_ms = answered.took_ns as f64 / 1e6;
    match &answered.answer {
        Ok(done) => Ok(document(done, took_ms, replica)),
        Err(error) => Err(denied(error)),
    }
}

fn document(done: &Done, took_ms: f64, replica: &Replica) -> Value {
    match done {
        Done::Planned(advance) => planned(advance),
        Done::Advanced(advance) => {
            let mut document = planned(advance);
            document["tookMs"] = json!(took_ms);
            document
        }
        Done::Transferred { to, before, term, is_already } => {
            json!({
                "leader": entry(replica, *to),
                "previousLeader": entry(replica, *before),
                "term": term.0,
                "tookMs": took_ms,
                "preferred": preferred(replica, *to),
                ALREADY: is_already,
            })
        }
        Done::Vacant => Value::Null,
        Done::Member { member, is_voter } => {
            let role = if *is_voter { VOTER } else { LEARNER };
            let changed = json!([{"nodeID": member.node.0, "role": role}]);
            json!({"changed": changed, ALREADY: true, STORE: format!("{:032x}", member.store.0)})
        }
        Done::Changed { steps, is_already } => {
            json!({"changed": changed(steps), ALREADY: is_already})
        }
        Done::Set { doubt } => {
            let mut document = current_settings(replica);
            if let Some(doubt) = doubt {
                document["emptyZones"] = zones(&doubt.empty);
                document["unplacedVoters"] =
                    doubt.unplaced.iter().map(|node| node.0).collect::<Vec<_>>().into();
            }
            document
        }
    }
}

/// A node as `/members` names it, with its address for clients.
fn entry(replica: &Replica, node: NodeId) -> Value {
    let addr = replica.state().members.get(&node).map(|member| &member.client_addr);
    json!({"nodeID": node.0, "addr": addr})
}

fn denied(denied: &admin::Denied) -> Denied {
    // `Refused` is the code of every error that has no code of its own: the operator must do
    // something first.
    let code = match denied {
        admin::Denied::NotLeader
        | admin::Denied::Advance(AdvanceError::NotLeader)
        | admin::Denied::Transfer(TransferError::NotLeader)
        | admin::Denied::Change(ChangeError::NotLeader)
        | admin::Denied::Settings(SettingsError::NotLeader) => ErrorCode::NotLeader,
        admin::Denied::Advance(AdvanceError::NotServing | AdvanceError::Busy)
        | admin::Denied::Transfer(TransferError::Busy | TransferError::Changing(_))
        | admin::Denied::Change(ChangeError::Busy)
        | admin::Denied::Settings(
            SettingsError::NotServing | SettingsError::NotSeeded { .. } | SettingsError::Busy,
        ) => ErrorCode::Busy,
        admin::Denied::Transfer(TransferError::NotCaughtUp(_) | TransferError::NoCandidate)
        | admin::Denied::Change(ChangeError::NotCaughtUp(_)) => ErrorCode::NotCaughtUp,
        admin::Denied::Overloaded => ErrorCode::Overloaded,
        admin::Denied::Unconfirmed => ErrorCode::NoQuorum,
        admin::Denied::Unsettled(_) => ErrorCode::Unsettled,
        admin::Denied::Advance(_)
        | admin::Denied::Transfer(_)
        | admin::Denied::Change(_)
        | admin::Denied::Settings(_)
        | admin::Denied::Refused(_)
        | admin::Denied::NotAllowed { .. }
        | admin::Denied::IdTaken { .. }
        | admin::Denied::NotVacant { .. }
        | admin::Denied::OtherLeads { .. }
        | admin::Denied::NotTaken { .. } => ErrorCode::Refused,
    };
    Denied::new(code, denied.to_string())
}

/// Returns `document` if this node leads. Otherwise returns the error that this node is not the
/// leader.
fn of_leader(published: &Published, document: impl FnOnce() -> Value) -> Answer {
    match published.role {
        Role::Leader => Ok(document()),
        Role::Follower | Role::Candidate => Err(denied(&admin::Denied::NotLeader)),
    }
}

/// The document of the settings, as this leader has applied them.
pub(super) fn settings(replica: &Replica, published: &Published) -> Answer {
    of_leader(published, || current_settings(replica))
}

/// The document of the members, as this leader sees them.
pub(super) fn members(replica: &Replica, published: &Published, cluster_name: &str) -> Answer {
    of_leader(published, || listed(replica, published, cluster_name))
}

fn zones(zones: &[Zone]) -> Value {
    zones.iter().map(Zone::name).collect::<Vec<_>>().into()
}

/// The document of the cluster's settings. The settings are `null` while the replicated state has
/// none.
fn current_settings(replica: &Replica) -> Value {
    let values = replica.settings().map(|settings| {
        let value = |name: SettingName| (name.text().to_owned(), json!(settings.text(name)));
        SettingName::ALL.into_iter().map(value).collect::<serde_json::Map<_, _>>()
    });
    let change = replica.closing_progress().map(|progress| closing(replica, &progress));
    json!({"format": replica.state().format, "settings": values, "modeChange": change})
}

/// How far the change from interval mode to quorum mode has come (S26).
fn closing(replica: &Replica, progress: &Progress) -> Value {
    let nodes = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
    let ahead_ns = progress.highest_ns.saturating_sub(replica.trusted_ns());
    json!({
        "to": Mode::Quorum.to_string(),
        "missing": nodes(&progress.missing),
        "removed": nodes(&progress.removed),
        "aheadMs": ahead_ns as f64 / 1e6,
    })
}

/// The document of an advance. Epochs are Unix nanoseconds as text, because many JSON readers round
/// numbers that large.
fn planned(advance: &Advance) -> Value {
    json!({
        "to": advance.to.0.to_string(),
        "ceiling": advance.ceiling.0.to_string(),
        "ceilingAfter": advance.ceiling_after.0.to_string(),
        "aheadMs": advance.ahead_ns as f64 / 1e6,
        ALREADY: advance.is_done,
    })
}

/// The voters whose zones come before the zone of `node` in `LEADER_ZONES`, and which should lead
/// instead of it.
fn preferred(replica: &Replica, node: NodeId) -> Vec<u64> {
    replica.better_placed_than(node).iter().map(|it| it.0).collect()
}

fn changed(steps: &[MembershipStep]) -> Vec<Value> {
    let steps = steps.iter().map(|step| {
        let (node, role) = match step {
            MembershipStep::AddLearner(member) => (member.node, LEARNER),
            MembershipStep::Promote(node) => (*node, VOTER),
            MembershipStep::Remove(node) => (*node, "removed"),
        };
        json!({"nodeID": node.0, "role": role})
    });
    steps.collect()
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(rename = "nodeID")]
    node: u64,
    addr: &'a str,
    #[serde(rename = "raftAddr")]
    raft_addr: &'a str,
    role: &'static str,
    /// The number of committed log entries that this member may not hold yet.
    behind: u64,
    /// Whether the leader heard the member within an election timeout.
    heard: bool,
    /// The member's data directory.
    store: String,
    /// The member's zone; `None` when the leader does not know it.
    zone: Option<String>,
    /// Whether the member has the same `LEADER_ZONES` as the leader.
    #[serde(rename = "agreesOnZones")]
    agrees: bool,
    /// The newest format of the state that the member reads; `None` when the leader does not know
    /// it.
    #[serde(rename = "formatMax")]
    format_max: Option<u32>,
}

fn listed(replica: &Replica, published: &Published, cluster_name: &str) -> Value {
    let status = replica.status();
    let incoming = replica.incoming_voters();
    let me = published.identity.node;
    let mut placed: BTreeMap<_, _> = replica.placed().into_iter().map(|it| (it.node, it)).collect();
    let rows = published.members.values().map(|member| {
        let place = placed.remove(&member.node);
        let node = member.node;
        let peer = status.peers.iter().find(|peer| peer.node == node);
        Row {
            node: node.0,
            addr: &member.client_addr,
            raft_addr: &member.raft_addr,
            role: match () {
                () if node == me => "leader",
                () if incoming.contains(&node) => VOTER,
                () if published.voters.iter().any(|(voter, _)| voter == node) => "leaving",
                () => LEARNER,
            },
            behind: replica.entries_behind(node),
            heard: node == me || peer.is_some_and(|peer| peer.is_heard),
            store: format!("{:032x}", member.store.0),
            agrees: place.as_ref().is_none_or(|it| it.agrees),
            format_max: replica.format_of(node),
            zone: place.and_then(|it| it.zone).map(|zone| zone.to_string()),
        }
    });
    json!({
        "cluster": published.cluster.to_string(),
        "history": format!("{:016x}", published.history.0),
        "clusterName": cluster_name,
        "leader": entry(replica, me),
        "term": published.term.0,
        "joint": published.voters.is_joint(),
        "committed": status.committed.0,
        "members": rows.collect::<Vec<_>>(),
        "emptyZones": zones(&replica.empty_zones()),
        "format": replica.state().format,
        "formatWaitsFor": waits_for(replica),
        "removed": replica.state().removed.iter().map(|node| node.0).collect::<Vec<_>>(),
    })
}

/// The members for which the leader waits before it raises the format: it does not know that they
/// read the next one.
fn waits_for(replica: &Replica) -> Vec<u64> {
    let next = replica.state().format + 1;
    if next > FORMATS.newest {
        return Vec::new();
    }
    replica.not_reading(next).iter().map(|node| node.0).collect()
}

const VOTER: &str = "voter";
const LEARNER: &str = "learner";

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::Published;
    use epicepoch_wire::raft_message::Configuration;

    use super::super::fixture::{ME, leader, published, replica, state};
    use super::*;

    /// Voters 1 and 2 remain, voter 3 leaves, and node 4 is a learner.
    #[test]
    fn the_members_document_shows_each_part_of_a_joint_configuration() {
        let mut state = state(4);
        state.format = FORMATS.newest - 1;
        state.removed = [NodeId(9)].into();
        let ids = |ids: &[u64]| ids.iter().copied().map(NodeId).collect();
        let configuration = Configuration {
            voters: ids(&[1, 2]),
            voters_outgoing: ids(&[1, 2, 3]),
            learners: ids(&[4]),
            ..Configuration::default()
        };
        let replica = replica(&state, configuration, FORMATS.newest);
        let published = published(Role::Leader, &replica);
        let document = members(&replica, &published, "test").expect("it leads");
        let row = |node: u64, role: &str| {
            json!({
                "nodeID": node,
                "addr": format!("n{node}:2"),
                "raftAddr": format!("n{node}:1"),
                "role": role,
                // The log has one entry. This replica has not led, so it knows only its own copy.
                "behind": u64::from(node != ME.node.0),
                "heard": node == ME.node.0,
                "store": format!("{node:032x}"),
                "zone": null,
                "agreesOnZones": true,
                "formatMax": (node == ME.node.0).then_some(FORMATS.newest),
            })
        };
        let rows = [row(1, "leader"), row(2, "voter"), row(3, "leaving"), row(4, "learner")];
        let expected = json!({
            "cluster": published.cluster.to_string(),
            "history": "0000000000000006",
            "clusterName": "test",
            "leader": {"nodeID": 1, "addr": "n1:2"},
            "term": 1,
            "joint": true,
            "committed": 1,
            "members": rows,
            "emptyZones": [],
            "format": FORMATS.newest - 1,
            "formatWaitsFor": [2, 3, 4],
            "removed": [9],
        });
        assert_eq!(document, expected);
        let following = Published { role: Role::Follower, ..published };
        let denied = members(&replica, &following, "test").expect_err("it does not lead");
        assert_eq!(denied.code, ErrorCode::NotLeader);
    }

    #[test]
    fn a_leader_waits_for_no_member_once_the_format_is_the_newest() {
        let mut state = state(3);
        let waits = |state: &epicepoch_core::state::State| {
            let configuration = super::super::fixture::voters(3);
            waits_for(&replica(state, configuration, FORMATS.newest))
        };
        assert_eq!(waits(&state), [2, 3]);
        state.format = FORMATS.newest;
        assert_eq!(waits(&state), Vec::<u64>::new());
        // The only member reads every format.
        assert_eq!(waits_for(&leader()), Vec::<u64>::new());
    }
}
