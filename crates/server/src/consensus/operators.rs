//! What operators ask of a node, and what becomes of it: leadership goes to another voter, members
//! come and go, and the leader says how far each of them is. Only the replica decides; this waits
//! until what was asked is done, and says so only then.

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
use epicepoch_wire::standing::Zone;
use epicepoch_wire::{Epoch, NodeId};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// What operators ask that may wait for the consensus plane, on all connections together.
const ASKS_MAX: usize = 16;
/// How long a change of the members may take before nobody waits for it any more.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a handover, in election timeouts: the library gives one up after one of them.
const TRANSFER_ELECTIONS: u32 = 2;

/// What an operator wants.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    /// To see the members.
    Members,
    /// To see this node's clock.
    Clock,
    /// A backup, of what this node has applied.
    Backup,
    /// Every later answer above this, at most so far ahead of the clock; or what that would come to.
    Advance { to: Epoch, allowed_ns: u64, is_plan: bool },
    /// Another leader: this one, or the most up-to-date voter.
    Transfer(Option<NodeId>),
    /// To know whether a new member may have this id, or which member at this address has it.
    Vacancy { node: NodeId, raft_addr: String },
    /// Other members.
    Change(Vec<MembershipStep>),
    /// To see the settings of the cluster.
    Settings,
    /// Other values of these; forced, also zones that no voter is in.
    Set { changes: Vec<(SettingName, String)>, is_forced: bool },
}

impl Wish {
    /// What is said of it when the plane ends before it has answered: what only looks can be asked
    /// again, of another member; a change must not be.
    fn cut_off(&self) -> Denied {
        match self {
            Self::Members
            | Self::Clock
            | Self::Backup
            | Self::Advance { is_plan: true, .. }
            | Self::Vacancy { .. }
            | Self::Settings => stopping(),
            Self::Advance { is_plan: false, .. } => unsettled_advance(),
            Self::Transfer(_) | Self::Change(_) => unsettled(),
            Self::Set { .. } => unsettled_settings(),
        }
    }
}

/// Why an operator does not get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) code: ErrorCode,
    /// For people; without a newline.
    pub(crate) text: String,
}

impl Denied {
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// What comes back: a JSON document, or why there is none.
pub(crate) type Answer = Result<Value, Denied>;

/// Where workers put what operators ask of the consensus plane.
#[derive(Clone, Debug)]
pub struct Desk(mpsc::Sender<Asked>);

/// What the consensus plane takes from there.
#[derive(Debug)]
pub struct Asks(mpsc::Receiver<Asked>);

#[derive(Debug)]
pub(super) struct Asked {
    wish: Wish,
    answer: oneshot::Sender<Answer>,
}

impl Desk {
    /// A desk, and what is put on it.
    #[must_use]
    pub fn open() -> (Self, Asks) {
        let (sender, receiver) = mpsc::channel(ASKS_MAX);
        (Self(sender), Asks(receiver))
    }

    /// Asks the consensus plane, and waits for what becomes of it. What the plane had taken when it
    /// ended may have been done: whether it was is not known then.
    pub(crate) async fn ask(&self, wish: Wish) -> Answer {
        let (answer, answered) = oneshot::channel();
        let cut_off = wish.cut_off();
        match self.0.try_send(Asked { wish, answer }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(Denied::new(ErrorCode::Overloaded, "too many operators wait; retry"));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(stopping()),
        }
        answered.await.unwrap_or(Err(cut_off))
    }
}

fn stopping() -> Denied {
    Denied::new(ErrorCode::ShuttingDown, "this node is stopping; ask another member")
}

impl Asks {
    pub(super) async fn next(&mut self) -> Option<Asked> {
        self.0.recv().await
    }
}

/// What was begun and is not done.
#[derive(Debug, Default)]
pub(super) struct Operators {
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    what: What,
    since_ns: u64,
    until_ns: u64,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
enum What {
    Transfer { to: NodeId },
    Advance { advance: Advance, is_done: bool },
    Change { change: MembershipChange, is_applied: bool },
    Settings { nonce: u64, doubt: Option<ZonesInDoubt>, is_applied: bool },
}

impl Operators {
    /// Begins what was asked, or answers it.
    pub(super) fn take(
        &mut self,
        asked: Asked,
        replica: &mut Replica,
        published: &Published,
        (now_ns, election): (u64, Duration),
        (clock, backup, stamped): (
            impl FnOnce(&Replica) -> Value,
            impl FnOnce(&Replica) -> Value,
            Epoch,
        ),
    ) {
        let Asked { wish, answer } = asked;
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let begun = match wish {
            Wish::Members => {
                let leads = published.role == Role::Leader;
                let document = leads.then(|| members(replica, published)).ok_or_else(not_leader);
                // Whoever asked may have stopped waiting.
                return drop(answer.send(document));
            }
            Wish::Settings => {
                let leads = published.role == Role::Leader;
                let document = leads.then(|| settings(replica)).ok_or_else(not_leader);
                return drop(answer.send(document));
            }
            Wish::Vacancy { node, raft_addr } => {
                let leads = published.role == Role::Leader;
                let vacancy = || vacancy(replica, published, node, &raft_addr);
                return drop(answer.send(if leads { vacancy() } else { Err(not_leader()) }));
            }
            Wish::Set { changes, is_forced } => {
                set(replica, now_ns, &changes, is_forced).map(|what| (what, nanos(CHANGE_TIMEOUT)))
            }
            Wish::Clock => return drop(answer.send(Ok(clock(replica)))),
            Wish::Backup => return drop(answer.send(Ok(backup(replica)))),
            Wish::Advance { to, allowed_ns, is_plan } => {
                match plan_advance(replica, stamped, to, allowed_ns) {
                    Ok(plan) if is_plan => return drop(answer.send(Ok(planned(&plan)))),
                    Ok(plan) if plan.is_done => {
                        let mut document = planned(&plan);
                        document["tookMs"] = json!(0.0);
                        return drop(answer.send(Ok(document)));
                    }
                    Ok(plan) => {
                        if plan.ahead_ns > 0 {
                            tracing::warn!(to = to.0, allowed_ns, "the epoch is to be moved");
                        }
                        let begun = replica.advance(now_ns, to, allowed_ns);
                        let what = |advance| What::Advance { advance, is_done: false };
                        begun.map(|advance| (what(advance), nanos(CHANGE_TIMEOUT)))
                    }
                    Err(error) => Err(error),
                }
                .map_err(|error| advance_denied(&error))
            }
            Wish::Transfer(to) => match replica.hand_over_asked(now_ns, to) {
                Ok(to) => Ok((What::Transfer { to }, nanos(election * TRANSFER_ELECTIONS))),
                // Who was named leads: what was asked for is so.
                Err(TransferError::LeadsAlready(node)) => {
                    let document = json!({
                        "leader": node.0, "before": node.0, "term": published.term.0,
                        "tookMs": 0.0, ALREADY: true, "preferred": preferred(replica, node),
                    });
                    return drop(answer.send(Ok(document)));
                }
                Err(error) => Err(transfer_denied(&error)),
            },
            Wish::Change(steps) if is_so_already(replica, published, &steps) => {
                let mut document = changed(&steps);
                document[ALREADY] = true.into();
                return drop(answer.send(Ok(document)));
            }
            Wish::Change(steps) => {
                let change = MembershipChange { nonce: fastrand::u64(1..), steps };
                tracing::info!(steps = ?change.steps, "a change of the members is asked for");
                replica
                    .propose_prudent_change(now_ns, &change)
                    .map(|()| (What::Change { change, is_applied: false }, nanos(CHANGE_TIMEOUT)))
                    .map_err(|error| change_denied(&error))
            }
        };
        match begun {
            Ok((what, patience_ns)) => {
                let until_ns = now_ns + patience_ns;
                self.pending.push(Pending { what, since_ns: now_ns, until_ns, answer });
            }
            Err(denied) => drop(answer.send(Err(denied))),
        }
    }

    /// A change was applied or refused here.
    pub(super) fn note_change(&mut self, of: u64, outcome: &Outcome) {
        let is_meant = |pending: &Pending| match &pending.what {
            What::Change { change, .. } => change.nonce == of,
            What::Settings { nonce, .. } => *nonce == of,
            What::Transfer { .. } | What::Advance { .. } => false,
        };
        let Some(at) = self.pending.iter().position(is_meant) else { return };
        if let Outcome::Refused(reason) = outcome {
            let denied = Denied::new(ErrorCode::Refused, *reason);
            return drop(self.pending.swap_remove(at).answer.send(Err(denied)));
        }
        let what = &mut self.pending[at].what;
        if let What::Change { is_applied, .. } | What::Settings { is_applied, .. } = what {
            *is_applied = true;
        }
    }

    /// Every answer is above `to` from now on.
    pub(super) fn note_advance(&mut self, reached: Epoch) {
        for pending in &mut self.pending {
            if let What::Advance { advance, is_done } = &mut pending.what {
                *is_done |= advance.to <= reached;
            }
        }
    }

    /// Answers what is done, and what nobody waits for any more.
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
        match &self.what {
            What::Transfer { to } => match published.leader {
                Some(leader) if leader == *to => Some(Ok(json!({
                    "leader": leader.0,
                    "before": me.0,
                    "term": published.term.0,
                    "tookMs": (now_ns - self.since_ns) as f64 / 1e6,
                    "preferred": preferred(replica, *to),
                }))),
                Some(leader) if leader != me => Some(Err(Denied::new(
                    ErrorCode::Refused,
                    format!("node {leader} leads now, and not node {to}, which was asked to"),
                ))),
                Some(_) if !replica.is_handing_over() => Some(Err(Denied::new(
                    ErrorCode::Refused,
                    format!("node {to} did not take over, node {me} leads on: see the log of {to}"),
                ))),
                _ => is_late.then(|| Err(unsettled())),
            },
            What::Change { change, is_applied: true } if !published.voters.is_joint() => {
                Some(Ok(changed(&change.steps)))
            }
            What::Change { .. } => is_late.then(|| Err(unsettled())),
            What::Settings { is_applied: true, doubt, .. } => {
                let mut document = settings(replica);
                if let Some(doubt) = doubt {
                    document["emptyZones"] = zones(&doubt.empty);
                    document["unplacedVoters"] =
                        doubt.unplaced.iter().map(|node| node.0).collect::<Vec<_>>().into();
                }
                Some(Ok(document))
            }
            What::Settings { .. } => is_late.then(|| Err(unsettled_settings())),
            What::Advance { advance, is_done: true } => {
                let took_ms = (now_ns - self.since_ns) as f64 / 1e6;
                let mut document = planned(advance);
                document["tookMs"] = json!(took_ms);
                Some(Ok(document))
            }
            // Whoever leads next may find it reserved, or not.
            What::Advance { .. } if published.role != Role::Leader => {
                Some(Err(unsettled_advance()))
            }
            What::Advance { .. } => is_late.then(|| Err(unsettled_advance())),
        }
    }
}

fn unsettled() -> Denied {
    let text =
        "it was begun, and whether it is done is not known; look with: epicepoch member list";
    Denied::new(ErrorCode::Unsettled, text)
}

fn unsettled_advance() -> Denied {
    let text = "it was begun, and whether it is done is not known: leadership was lost, no quorum \
                answered, or the node ended; give the order again, it does no harm";
    Denied::new(ErrorCode::Unsettled, text)
}

fn unsettled_settings() -> Denied {
    let text =
        "it was begun, and whether it is done is not known; look with: epicepoch settings list";
    Denied::new(ErrorCode::Unsettled, text)
}

fn settings_denied(error: &SettingsError) -> Denied {
    let code = match error {
        SettingsError::NotLeader => ErrorCode::NotLeader,
        SettingsError::NotServing | SettingsError::Busy => ErrorCode::Busy,
        // The others, and those of a later core: as things are, it cannot be done.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

/// Proposes these values. Also what counts already: only that it is committed proves that this node
/// leads, and that no other change comes after it unseen.
fn set(
    replica: &mut Replica,
    now_ns: u64,
    changes: &[(SettingName, String)],
    is_forced: bool,
) -> Result<What, Denied> {
    let settings = changed_settings(replica, changes)?;
    let denied = |error| settings_denied(&error);
    let doubt = replica.judge_zones(&settings, is_forced).map_err(denied)?;
    let nonce = fastrand::u64(1..);
    replica.change_settings(now_ns, nonce, &settings).map_err(denied)?;
    Ok(What::Settings { nonce, doubt, is_applied: false })
}

fn zones(zones: &[Zone]) -> Value {
    zones.iter().map(Zone::name).collect::<Vec<_>>().into()
}

/// The settings of the cluster with these values.
fn changed_settings(
    replica: &Replica,
    changes: &[(SettingName, String)],
) -> Result<ClusterSettings, Denied> {
    // Whoever does not lead does not know what counts.
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

/// The settings as they count here; `null` before there are any in the state.
fn settings(replica: &Replica) -> Value {
    let values = replica.settings().map(|settings| {
        let value = |name: SettingName| (name.text().to_owned(), json!(settings.text(name)));
        SettingName::ALL.into_iter().map(value).collect::<serde_json::Map<_, _>>()
    });
    json!({"format": replica.state().format, "settings": values})
}

/// What it would come to, with what this node has `stamped`: whoever stamps after that, stamps above it.
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
        // The others, and those of a later core: as things are, it cannot be done.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

/// Epochs are Unix nanoseconds as text: they exceed what many readers hold exactly.
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
        // The others, and those of a later core: as things are, it cannot be done.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

fn change_denied(error: &ChangeError) -> Denied {
    let code = match error {
        ChangeError::NotLeader => ErrorCode::NotLeader,
        ChangeError::NotCaughtUp(_) => ErrorCode::NotCaughtUp,
        ChangeError::Busy => ErrorCode::Busy,
        // As above.
        _ => ErrorCode::Refused,
    };
    Denied::new(code, error.to_string())
}

/// Whether these steps were made before, as after an order whose answer was lost: by the state that
/// this leader has applied, as the list of members is. While a change is under way, or may wait in
/// its log, nobody says so.
fn is_so_already(replica: &Replica, published: &Published, steps: &[MembershipStep]) -> bool {
    let (voters, removed) = (replica.incoming_voters(), &replica.state().removed);
    let is_so = |step: &MembershipStep| match step {
        // What has the id is asked first: see [`Wish::Vacancy`].
        MembershipStep::AddLearner(_) => false,
        MembershipStep::Promote(node) => voters.contains(node),
        MembershipStep::Remove(node) => removed.contains(node),
    };
    let is_settled = published.role == Role::Leader && !replica.is_changing_members();
    is_settled && !steps.is_empty() && steps.iter().all(is_so)
}

/// `null` where a new member may have the id; the member that has it, if it is reached at `raft_addr`.
fn vacancy(replica: &Replica, published: &Published, node: NodeId, raft_addr: &str) -> Answer {
    let denied = |reason: String| {
        let text = format!("node {node} cannot be added: {reason}");
        Err(Denied::new(ErrorCode::Refused, text))
    };
    match (replica.state().check_vacancy(node), published.members.get(&node)) {
        (Ok(()), _) => Ok(Value::Null),
        // It may be removed by what is not applied yet.
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
            "the id is that of a member already, which is reached at {}: give the new node another \
             NODE_ID",
            member.raft_addr
        )),
        (Err(reason), None) => denied(reason.to_owned()),
    }
}

/// Who is better placed to lead than `node`.
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
    /// Committed entries that it is not known to hold.
    behind: u64,
    /// Whether it was heard within an election timeout.
    heard: bool,
    /// Its data directory.
    store: String,
    /// Where it is, if it has said so.
    zone: Option<String>,
    /// Whether it prefers leaders in the same zones as this leader.
    #[serde(rename = "agreesOnZones")]
    agrees: bool,
    /// The newest format of the state that it reads, if it has said so.
    #[serde(rename = "formatMax")]
    format_max: Option<u32>,
}

/// The members as a leader knows them.
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

/// Members of which the leader waits to hear that they read the next format, if it reads that itself.
fn waits_for(replica: &Replica) -> Vec<u64> {
    let next = replica.state().format + 1;
    if next > FORMATS.newest {
        return Vec::new();
    }
    replica.not_reading(next).iter().map(|node| node.0).collect()
}

const VOTER: &str = "voter";
/// In a document: nothing was done, for what was asked for is so.
pub(crate) const ALREADY: &str = "already";
/// In that of a member: its data directory.
pub(crate) const STORE: &str = "store";
const LEARNER: &str = "learner";

#[cfg(test)]
mod tests;
