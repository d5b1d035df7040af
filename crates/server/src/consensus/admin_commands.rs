//! Admin commands of operators: transfers of leadership, changes of the members and of the
//! settings, advances of the epoch, and reports. The replica decides; this module keeps each
//! command until it is done, and only then answers it.

use std::collections::BTreeMap;
use std::time::Duration;

use epicepoch_core::publication::{Published, Role};
use epicepoch_core::replica::{
    Advance, AdvanceError, ChangeError, Replica, SettingsError, TransferError, ZonesInDoubt,
};
use epicepoch_core::state::{
    FORMAT_OF_SETTINGS, FORMATS, MembershipChange, MembershipStep, Outcome,
};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{Epoch, NodeId};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::admin_queue::{
    ALREADY, AdminCommand, AdminRequest, Answer, Denied, STORE, unsettled, unsettled_advance,
};

/// Most time for a change. After that, the answer says that the outcome is unknown.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most time for a transfer, in election timeouts. The library abandons a transfer after one.
const TRANSFER_ELECTIONS: u32 = 2;

/// The commands that have begun and are not done.
#[derive(Debug, Default)]
pub(super) struct AdminCommands {
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    command: Begun,
    since_ns: u64,
    until_ns: u64,
    answer: oneshot::Sender<Answer>,
}

/// A command that takes time, and what is known of its outcome.
#[derive(Debug)]
enum Begun {
    Transfer { to: NodeId },
    Advance { advance: Advance, is_done: bool },
    Change { change: MembershipChange, is_applied: bool },
    Settings { nonce: u64, doubt: Option<ZonesInDoubt>, is_applied: bool },
}

impl AdminCommands {
    /// Begins a command, or answers it at once.
    pub(super) fn begin(
        &mut self,
        request: AdminRequest,
        replica: &mut Replica,
        published: &Published,
        (now_ns, election): (u64, Duration),
        (clock, backup, stamped): (
            impl FnOnce(&Replica) -> Value,
            impl FnOnce(&Replica) -> Value,
            Epoch,
        ),
    ) {
        let AdminRequest { command, answer } = request;
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let begun = match command {
            AdminCommand::Members => {
                let leads = published.role == Role::Leader;
                let document = leads.then(|| members(replica, published)).ok_or_else(not_leader);
                // Sending fails when the operator no longer waits. This is so for all answers
                // below.
                return drop(answer.send(document));
            }
            AdminCommand::Settings => {
                let leads = published.role == Role::Leader;
                let document = leads.then(|| settings(replica)).ok_or_else(not_leader);
                return drop(answer.send(document));
            }
            AdminCommand::Vacancy { node, raft_addr } => {
                let leads = published.role == Role::Leader;
                let vacancy = || vacancy(replica, published, node, &raft_addr);
                return drop(answer.send(if leads { vacancy() } else { Err(not_leader()) }));
            }
            AdminCommand::Set { changes, is_forced } => set(replica, now_ns, &changes, is_forced)
                .map(|begun| (begun, nanos(CHANGE_TIMEOUT))),
            AdminCommand::Clock => return drop(answer.send(Ok(clock(replica)))),
            AdminCommand::Backup => return drop(answer.send(Ok(backup(replica)))),
            AdminCommand::Advance { to, allowed_ns, is_plan } => {
                match plan_advance(replica, stamped, to, allowed_ns) {
                    Ok(plan) if is_plan => return drop(answer.send(Ok(planned(&plan)))),
                    Ok(plan) if plan.is_done => {
                        let mut document = planned(&plan);
                        document["tookMs"] = json!(0.0);
                        return drop(answer.send(Ok(document)));
                    }
                    Ok(plan) => {
                        if plan.ahead_ns > 0 {
                            tracing::warn!(to = to.0, allowed_ns, "an operator moves the epoch");
                        }
                        let begun = replica.advance(now_ns, to, allowed_ns);
                        let begun = begun.map(|advance| Begun::Advance { advance, is_done: false });
                        begun.map(|begun| (begun, nanos(CHANGE_TIMEOUT)))
                    }
                    Err(error) => Err(error),
                }
                .map_err(|error| advance_denied(&error))
            }
            AdminCommand::Transfer(to) => match replica.hand_over_asked(now_ns, to) {
                Ok(to) => Ok((Begun::Transfer { to }, nanos(election * TRANSFER_ELECTIONS))),
                // The voter that the operator named leads already.
                Err(TransferError::LeadsAlready(node)) => {
                    let document = json!({
                        "leader": node.0, "before": node.0, "term": published.term.0,
                        "tookMs": 0.0, ALREADY: true, "preferred": preferred(replica, node),
                    });
                    return drop(answer.send(Ok(document)));
                }
                Err(error) => Err(transfer_denied(&error)),
            },
            AdminCommand::Change(steps) if is_done_already(replica, published, &steps) => {
                let mut document = changed(&steps);
                document[ALREADY] = true.into();
                return drop(answer.send(Ok(document)));
            }
            AdminCommand::Change(steps) => {
                let change = MembershipChange { nonce: fastrand::u64(1..), steps };
                tracing::info!(steps = ?change.steps, "an operator changes the members");
                replica
                    .propose_prudent_change(now_ns, &change)
                    .map(|()| (Begun::Change { change, is_applied: false }, nanos(CHANGE_TIMEOUT)))
                    .map_err(|error| change_denied(&error))
            }
        };
        match begun {
            Ok((command, timeout_ns)) => {
                let until_ns = now_ns + timeout_ns;
                self.pending.push(Pending { command, since_ns: now_ns, until_ns, answer });
            }
            Err(denied) => drop(answer.send(Err(denied))),
        }
    }

    /// Records that the change `of` was applied or refused.
    pub(super) fn record_change(&mut self, of: u64, outcome: &Outcome) {
        let is_meant = |pending: &Pending| match &pending.command {
            Begun::Change { change, .. } => change.nonce == of,
            Begun::Settings { nonce, .. } => *nonce == of,
            Begun::Transfer { .. } | Begun::Advance { .. } => false,
        };
        let Some(at) = self.pending.iter().position(is_meant) else { return };
        if let Outcome::Refused(reason) = outcome {
            let denied = Denied::new(ErrorCode::Refused, *reason);
            return drop(self.pending.swap_remove(at).answer.send(Err(denied)));
        }
        let command = &mut self.pending[at].command;
        if let Begun::Change { is_applied, .. } | Begun::Settings { is_applied, .. } = command {
            *is_applied = true;
        }
    }

    /// Records that every answer is above `reached` from now on.
    pub(super) fn record_advance(&mut self, reached: Epoch) {
        for pending in &mut self.pending {
            if let Begun::Advance { advance, is_done } = &mut pending.command {
                *is_done |= advance.to <= reached;
            }
        }
    }

    /// Answers the commands that are done or late.
    pub(super) fn settle(&mut self, replica: &Replica, published: &Published, now_ns: u64) {
        let mut at = 0;
        while at < self.pending.len() {
            match self.pending[at].outcome(replica, published, now_ns) {
                Some(answer) => drop(self.pending.swap_remove(at).answer.send(answer)),
                None => at += 1,
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Pending {
    fn outcome(&self, replica: &Replica, published: &Published, now_ns: u64) -> Option<Answer> {
        let is_late = now_ns >= self.until_ns;
        let me = published.identity.node;
        match &self.command {
            Begun::Transfer { to } => match published.leader {
                Some(leader) if leader == *to => Some(Ok(json!({
                    "leader": leader.0,
                    "before": me.0,
                    "term": published.term.0,
                    "tookMs": (now_ns - self.since_ns) as f64 / 1e6,
                    "preferred": preferred(replica, *to),
                }))),
                Some(leader) if leader != me => Some(Err(Denied::new(
                    ErrorCode::Refused,
                    format!("node {leader} leads now instead of node {to}"),
                ))),
                Some(_) if !replica.is_handing_over() => Some(Err(Denied::new(
                    ErrorCode::Refused,
                    format!(
                        "node {to} did not take over, and node {me} still leads: see the log of {to}"
                    ),
                ))),
                _ => is_late.then(|| Err(unsettled("epicepoch member list"))),
            },
            Begun::Change { change, is_applied: true } if !published.voters.is_joint() => {
                Some(Ok(changed(&change.steps)))
            }
            Begun::Change { .. } => is_late.then(|| Err(unsettled("epicepoch member list"))),
            Begun::Settings { is_applied: true, doubt, .. } => {
                let mut document = settings(replica);
                if let Some(doubt) = doubt {
                    document["emptyZones"] = zones(&doubt.empty);
                    document["unplacedVoters"] =
                        doubt.unplaced.iter().map(|node| node.0).collect::<Vec<_>>().into();
                }
                Some(Ok(document))
            }
            Begun::Settings { .. } => is_late.then(|| Err(unsettled("epicepoch settings list"))),
            Begun::Advance { advance, is_done: true } => {
                let took_ms = (now_ns - self.since_ns) as f64 / 1e6;
                let mut document = planned(advance);
                document["tookMs"] = json!(took_ms);
                Some(Ok(document))
            }
            // This node no longer leads. The advance may have been committed or not.
            Begun::Advance { .. } if published.role != Role::Leader => {
                Some(Err(unsettled_advance()))
            }
            Begun::Advance { .. } => is_late.then(|| Err(unsettled_advance())),
        }
    }
}

fn settings_denied(error: &SettingsError) -> Denied {
    let code = match error {
        SettingsError::NotLeader => ErrorCode::NotLeader,
        SettingsError::NotServing | SettingsError::Busy => ErrorCode::Busy,
        // Other errors cannot occur at present.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

/// Proposes these values, even if they are set already. Only a committed entry proves that this
/// node still leads and has missed no other change.
fn set(
    replica: &mut Replica,
    now_ns: u64,
    changes: &[(SettingName, String)],
    is_forced: bool,
) -> Result<Begun, Denied> {
    let settings = changed_settings(replica, changes)?;
    let denied = |error| settings_denied(&error);
    let doubt = replica.judge_zones(&settings, is_forced).map_err(denied)?;
    let nonce = fastrand::u64(1..);
    replica.change_settings(now_ns, nonce, &settings).map_err(denied)?;
    Ok(Begun::Settings { nonce, doubt, is_applied: false })
}

fn zones(zones: &[Zone]) -> Value {
    zones.iter().map(Zone::name).collect::<Vec<_>>().into()
}

/// Returns the cluster's settings with these changes made.
fn changed_settings(
    replica: &Replica,
    changes: &[(SettingName, String)],
) -> Result<ClusterSettings, Denied> {
    // Only the leader knows the current values.
    if replica.status().role != Role::Leader {
        return Err(not_leader());
    }
    let Some(before) = replica.settings() else {
        let format = replica.state().format;
        return Err(settings_denied(&if format < FORMAT_OF_SETTINGS {
            SettingsError::Format { format }
        } else {
            SettingsError::NotServing
        }));
    };
    let mut after = before.clone();
    for (name, text) in changes {
        let text = text.as_str();
        after = after.with(*name, text).ok_or_else(|| {
            let allowed = name.allowed();
            Denied::new(ErrorCode::Refused, format!("{name} is {text:?}; allowed is {allowed}"))
        })?;
    }
    Ok(after)
}

/// The document of the settings. They are `null` while the replicated state has none.
fn settings(replica: &Replica) -> Value {
    let values = replica.settings().map(|settings| {
        let value = |name: SettingName| (name.text().to_owned(), json!(settings.text(name)));
        SettingName::ALL.into_iter().map(value).collect::<serde_json::Map<_, _>>()
    });
    json!({"format": replica.state().format, "settings": values})
}

/// Plans an advance. It is done already if this node has given out a timestamp above `to`, because
/// every later timestamp is higher.
fn plan_advance(
    replica: &Replica,
    stamped: Epoch,
    to: Epoch,
    allowed_ns: u64,
) -> Result<Advance, AdvanceError> {
    let plan = replica.plan_advance(to, allowed_ns)?;
    Ok(Advance { is_done: plan.is_done || to < stamped, ..plan })
}

fn advance_denied(error: &AdvanceError) -> Denied {
    let code = match error {
        AdvanceError::NotLeader => ErrorCode::NotLeader,
        AdvanceError::NotServing | AdvanceError::Busy => ErrorCode::Busy,
        // Other errors cannot occur at present.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

/// The document of an advance. Epochs are Unix nanoseconds as text, because many JSON readers round
/// numbers that large.
fn planned(advance: &Advance) -> Value {
    json!({
        "to": advance.to.0.to_string(),
        "ceiling": advance.ceiling.0.to_string(),
        "ceilingAfter": advance.ceiling_after.0.to_string(),
        "aheadMs": advance.ahead_ns as f64 / 1e6,
        "isDone": advance.is_done,
    })
}

fn not_leader() -> Denied {
    Denied::new(ErrorCode::NotLeader, "this node does not lead")
}

fn transfer_denied(error: &TransferError) -> Denied {
    let code = match error {
        TransferError::NotLeader => ErrorCode::NotLeader,
        TransferError::NotCaughtUp(_) | TransferError::Nobody => ErrorCode::NotCaughtUp,
        TransferError::Busy | TransferError::Changing(_) => ErrorCode::Busy,
        // Other errors cannot occur at present.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

fn change_denied(error: &ChangeError) -> Denied {
    let code = match error {
        ChangeError::NotLeader => ErrorCode::NotLeader,
        ChangeError::NotCaughtUp(_) => ErrorCode::NotCaughtUp,
        ChangeError::Busy => ErrorCode::Busy,
        // Other errors cannot occur at present.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

/// Whether the members already are as these steps want them, for example because the answer to an
/// earlier command was lost. It uses the state that this leader has applied. It is false while a
/// change is under way or may wait in the log.
fn is_done_already(replica: &Replica, published: &Published, steps: &[MembershipStep]) -> bool {
    let (voters, removed) = (replica.incoming_voters(), &replica.state().removed);
    let is_so = |step: &MembershipStep| match step {
        // The caller checks first whether the id is free: see [`AdminCommand::Vacancy`].
        MembershipStep::AddLearner(_) => false,
        MembershipStep::Promote(node) => voters.contains(node),
        MembershipStep::Remove(node) => removed.contains(node),
    };
    let is_settled = published.role == Role::Leader && !replica.is_changing_members();
    is_settled && !steps.is_empty() && steps.iter().all(is_so)
}

/// Answers whether a new member may have the id. The document is `null` if it may, or names the
/// member at `raft_addr` that has the id already.
fn vacancy(replica: &Replica, published: &Published, node: NodeId, raft_addr: &str) -> Answer {
    let denied = |reason: String| {
        let text = format!("node {node} cannot be added: {reason}");
        Err(Denied::new(ErrorCode::Refused, text))
    };
    match (replica.state().check_vacancy(node), published.members.get(&node)) {
        (Ok(()), _) => Ok(Value::Null),
        // A pending change may remove the member that has the id.
        (Err(_), Some(_)) if replica.is_changing_members() => {
            Err(change_denied(&ChangeError::Busy))
        }
        (Err(_), Some(member)) if member.raft_addr == raft_addr => {
            let is_voter = replica.incoming_voters().contains(&node);
            let role = if is_voter { VOTER } else { LEARNER };
            let changed = json!([{"nodeID": node.0, "role": role}]);
            Ok(
                json!({"changed": changed, ALREADY: true, STORE: format!("{:032x}", member.store.0)}),
            )
        }
        (Err(_), Some(member)) => denied(format!(
            "a member at {} has this id already: give the new node another NODE_ID",
            member.raft_addr
        )),
        (Err(reason), None) => denied(reason.to_owned()),
    }
}

/// The voters that are better leaders than `node` by `LEADER_ZONES`.
fn preferred(replica: &Replica, node: NodeId) -> Vec<u64> {
    replica.better_placed_than(node).iter().map(|it| it.0).collect()
}

fn changed(steps: &[MembershipStep]) -> Value {
    let steps = steps.iter().map(|step| {
        let (node, role) = match step {
            MembershipStep::AddLearner(member) => (member.node, LEARNER),
            MembershipStep::Promote(node) => (*node, VOTER),
            MembershipStep::Remove(node) => (*node, "removed"),
        };
        json!({"nodeID": node.0, "role": role})
    });
    json!({"changed": steps.collect::<Vec<_>>()})
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(rename = "nodeID")]
    node: u64,
    addr: &'a str,
    #[serde(rename = "raftAddr")]
    raft_addr: &'a str,
    role: &'static str,
    /// How many committed entries this member may not hold yet.
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

/// The document of the members, as this leader sees them.
fn members(replica: &Replica, published: &Published) -> Value {
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
        "leader": me.0,
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

/// The members that keep the leader from raising the format. It does not know whether they read the
/// next one.
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
mod tests;
