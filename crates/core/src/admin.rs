//! The admin commands of operators: which are accepted, when each is answered, and what the answer
//! is when the outcome is not known (S17). The replica decides whether a change is allowed; this
//! module keeps each command until it is done, and only then answers it. The caller keeps the
//! channels on which answers leave, and formats them.
//!
//! - A change is done when it is applied. A change of members is done when the configuration is no
//!   longer joint.
//! - If the cluster already is as the command wants it, nothing is changed. The answer waits for a
//!   [barrier](crate::replica::Barrier), because a deposed leader may hold an old state.
//! - A change that was begun and has no outcome in time is [unsettled](Unsettled): it may still
//!   happen.

mod answer;

use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::{Epoch, NodeId};

pub use answer::{Answer, Answered, Denied, Done, Unsettled};

use crate::publication::{Published, Role};
use crate::replica::{
    Advance, AdvanceError, Barrier, BarrierState, ChangeError, Replica, SettingsError,
    TransferError, ZonesInDoubt,
};
use crate::state::{FORMAT_OF_SETTINGS, MembershipChange, MembershipStep, Outcome};

/// A command that the replica decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Answer every later request above `to`, which may be at most `allowed_ns` ahead of trusted
    /// time. With `is_plan`, nothing moves; the answer says what would change.
    Advance {
        /// The epoch.
        to: Epoch,
        /// How far ahead of trusted time `to` may be, nanoseconds.
        allowed_ns: u64,
        /// Whether to plan only.
        is_plan: bool,
    },
    /// Hand leadership to this voter, or to the most up-to-date one.
    Transfer(Option<NodeId>),
    /// Check whether a new member may use this id, or whether the member at this address has it.
    Vacancy {
        /// The id.
        node: NodeId,
        /// The peer address of the new member.
        raft_addr: String,
    },
    /// Change the members.
    Change(Vec<MembershipStep>),
    /// Set settings of the cluster. If forced, zones without a voter are accepted.
    Set {
        /// The settings, with their values as text.
        changes: Vec<(SettingName, String)>,
        /// Whether zones without a voter are accepted.
        is_forced: bool,
        /// The nodes of which the operator states that they run no more and never will (S26).
        gone: Vec<NodeId>,
    },
}

impl Command {
    /// The outcome to report if the node ends before it has answered: what is then unknown. `None`
    /// for a command that changes nothing, which may be sent to another member.
    #[must_use]
    pub const fn unsettled(&self) -> Option<Unsettled> {
        match self {
            Self::Advance { is_plan: true, .. } | Self::Vacancy { .. } => None,
            Self::Advance { is_plan: false, .. } => Some(Unsettled::Advance),
            Self::Transfer(_) | Self::Change(_) => Some(Unsettled::Members),
            Self::Set { .. } => Some(Unsettled::Settings),
        }
    }
}

/// The commands that are not answered yet. `R` is what the caller needs to deliver an answer.
#[derive(Debug)]
pub struct AdminCommands<R> {
    pending: Vec<Pending<R>>,
}

/// A command that waits for its answer.
#[derive(Debug)]
struct Pending<R> {
    reply: R,
    begun: Begun,
    since_ns: u64,
    until_ns: u64,
}

/// A command, and what is known of its outcome.
#[derive(Debug)]
enum Begun {
    Answered(Answer),
    Already { done: Done, barrier: Barrier },
    Transfer { to: NodeId },
    Advance { advance: Advance, is_done: bool },
    Change { change: MembershipChange, is_applied: bool },
    Set { nonce: u64, doubt: Option<ZonesInDoubt>, is_applied: bool },
}

impl<R> Default for AdminCommands<R> {
    fn default() -> Self {
        Self { pending: Vec::new() }
    }
}

impl<R> AdminCommands<R> {
    /// Begins a command. [`AdminCommands::poll_answer`] returns its answer, now or later. `nonce`
    /// marks the change that the command proposes; no other change may have it. `stamped` is the
    /// epoch of this node's last timestamp.
    pub fn handle_command(
        &mut self,
        now_ns: u64,
        reply: R,
        command: Command,
        nonce: u64,
        stamped: Epoch,
        replica: &mut Replica,
    ) {
        let begun = if self.pending.len() >= PENDING_MAX {
            Err(Denied::Overloaded)
        } else {
            begin(command, now_ns, nonce, stamped, replica)
        };
        let begun = begun.unwrap_or_else(|denied| Begun::Answered(Err(denied)));
        let timeout_ns = match begun {
            Begun::Transfer { .. } => TRANSFER_ELECTIONS * replica.election_ns(),
            _ => CHANGE_TIMEOUT_NS,
        };
        let until_ns = now_ns + timeout_ns;
        self.pending.push(Pending { reply, begun, since_ns: now_ns, until_ns });
    }

    /// Handles the outcome of a change of members or settings: applied or refused. `of` is the
    /// nonce of the change.
    pub fn handle_outcome(&mut self, of: u64, outcome: &Outcome) {
        for pending in &mut self.pending {
            let (nonce, is_applied) = match &mut pending.begun {
                Begun::Change { change, is_applied } => (change.nonce, is_applied),
                Begun::Set { nonce, is_applied, .. } => (*nonce, is_applied),
                Begun::Answered(_)
                | Begun::Already { .. }
                | Begun::Transfer { .. }
                | Begun::Advance { .. } => continue,
            };
            if nonce == of {
                *is_applied = true;
                if let Outcome::Refused(reason) = outcome {
                    pending.begun = Begun::Answered(Err(Denied::Refused(reason)));
                }
            }
        }
    }

    /// Handles a finished advance: every request that begins from now on is answered above
    /// `reached`.
    pub fn handle_advanced(&mut self, reached: Epoch) {
        for pending in &mut self.pending {
            if let Begun::Advance { advance, is_done } = &mut pending.begun {
                *is_done |= advance.to <= reached;
            }
        }
    }

    /// Returns the next answer. Call it after every call of the replica, when the reports and
    /// publications of that call are handled.
    pub fn poll_answer(&mut self, now_ns: u64, replica: &Replica) -> Option<Answered<R>> {
        for (at, pending) in self.pending.iter().enumerate() {
            if let Some(answer) = pending.answer(now_ns, replica) {
                let Pending { reply, since_ns, .. } = self.pending.remove(at);
                return Some(Answered { reply, answer, took_ns: now_ns.saturating_sub(since_ns) });
            }
        }
        None
    }

    /// Whether no command waits for its answer.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl<R> Pending<R> {
    fn answer(&self, now_ns: u64, replica: &Replica) -> Option<Answer> {
        let is_late = now_ns >= self.until_ns;
        let late = |unsettled| is_late.then_some(Err(Denied::Unsettled(unsettled)));
        let published = replica.published();
        match &self.begun {
            Begun::Answered(answer) => Some(answer.clone()),
            Begun::Already { done, barrier } => match replica.barrier_state(*barrier) {
                BarrierState::Passed => Some(Ok(done.clone())),
                BarrierState::Lost => Some(Err(Denied::NotLeader)),
                BarrierState::Pending => is_late.then_some(Err(Denied::Unconfirmed)),
            },
            Begun::Transfer { to } => {
                transferred(*to, replica, &published).map_or_else(|| late(Unsettled::Members), Some)
            }
            Begun::Change { change, is_applied: true } if !published.voters.is_joint() => {
                let steps = change.steps.clone();
                Some(Ok(Done::Changed { steps, is_already: false }))
            }
            Begun::Change { .. } => late(Unsettled::Members),
            Begun::Set { is_applied: true, doubt, .. } => {
                Some(Ok(Done::Set { doubt: doubt.clone() }))
            }
            Begun::Set { .. } => late(Unsettled::Settings),
            Begun::Advance { advance, is_done: true } => Some(Ok(Done::Advanced(*advance))),
            // Leadership was lost. The advance may have been committed or not.
            Begun::Advance { .. } if published.role != Role::Leader => {
                Some(Err(Denied::Unsettled(Unsettled::Advance)))
            }
            Begun::Advance { .. } => late(Unsettled::Advance),
        }
    }
}

/// The outcome of a leadership transfer to `to`; `None` while it is unknown.
fn transferred(to: NodeId, replica: &Replica, published: &Published) -> Option<Answer> {
    let me = published.identity.node;
    match published.leader? {
        leader if leader == to => {
            Some(Ok(Done::Transferred { to, before: me, term: published.term, is_already: false }))
        }
        leader if leader != me => Some(Err(Denied::OtherLeads { leader, to })),
        _ if !replica.is_handing_over() => Some(Err(Denied::NotTaken { to, me })),
        _ => None,
    }
}

fn begin(
    command: Command,
    now_ns: u64,
    nonce: u64,
    stamped: Epoch,
    replica: &mut Replica,
) -> Result<Begun, Denied> {
    let published = replica.published();
    match command {
        Command::Advance { to, allowed_ns, is_plan } => {
            let plan = plan_advance(replica, stamped, to, allowed_ns)?;
            if is_plan {
                return Ok(Begun::Answered(Ok(Done::Planned(plan))));
            }
            // No barrier is needed: an assigned range and a given timestamp are never taken back.
            if plan.is_done {
                return Ok(Begun::Answered(Ok(Done::Advanced(plan))));
            }
            let advance = replica.advance(now_ns, to, allowed_ns)?;
            Ok(Begun::Advance { advance, is_done: false })
        }
        Command::Transfer(to) => match replica.hand_over_asked(now_ns, to) {
            Ok(to) => Ok(Begun::Transfer { to }),
            Err(TransferError::LeadsAlready(to)) => {
                let (before, term) = (to, published.term);
                already(now_ns, replica, Done::Transferred { to, before, term, is_already: true })
            }
            Err(error) => Err(error.into()),
        },
        Command::Vacancy { node, raft_addr } => {
            match vacancy(replica, &published, node, &raft_addr)? {
                Done::Vacant => Ok(Begun::Answered(Ok(Done::Vacant))),
                member => already(now_ns, replica, member),
            }
        }
        Command::Change(steps) if is_done_already(replica, &published, &steps) => {
            already(now_ns, replica, Done::Changed { steps, is_already: true })
        }
        Command::Change(steps) => {
            let change = MembershipChange { nonce, steps };
            replica.propose_prudent_change(now_ns, &change)?;
            Ok(Begun::Change { change, is_applied: false })
        }
        // The values are proposed even if they are already in effect. So no barrier is needed.
        Command::Set { changes, is_forced, gone } => {
            let settings = changed_settings(replica, &published, &changes)?;
            let doubt = replica.judge_zones(&settings, is_forced)?;
            replica.check_gone(&gone, &settings)?;
            replica.change_settings(now_ns, nonce, &settings)?;
            // A statement of a command that was refused must not count later.
            replica.record_gone(&gone);
            Ok(Begun::Set { nonce, doubt, is_applied: false })
        }
    }
}

/// Answers `done` after a barrier: this node's state shows that the command is done, and the
/// barrier proves that the state is current.
fn already(now_ns: u64, replica: &mut Replica, done: Done) -> Result<Begun, Denied> {
    let barrier = replica.propose_barrier(now_ns).ok_or(TransferError::Busy)?;
    Ok(Begun::Already { done, barrier })
}

/// Plans an advance. The advance is done already if this node has given a timestamp above `to`,
/// because every later timestamp is higher.
fn plan_advance(
    replica: &Replica,
    stamped: Epoch,
    to: Epoch,
    allowed_ns: u64,
) -> Result<Advance, AdvanceError> {
    let plan = replica.plan_advance(to, allowed_ns)?;
    Ok(Advance { is_done: plan.is_done || to < stamped, ..plan })
}

/// Whether the members already are as these steps want them, for example because an operator
/// repeats a command whose answer was lost. The result rests on the state that this leader has
/// applied. It is `false` while a change is under way or may wait in the log.
fn is_done_already(replica: &Replica, published: &Published, steps: &[MembershipStep]) -> bool {
    let (voters, removed) = (replica.incoming_voters(), &replica.state().removed);
    let is_so = |step: &MembershipStep| match step {
        // Before an addition, the caller asks with [`Command::Vacancy`] whether the id is free.
        MembershipStep::AddLearner(_) => false,
        MembershipStep::Promote(node) => voters.contains(node),
        MembershipStep::Remove(node) => removed.contains(node),
    };
    let is_settled = published.role == Role::Leader && !replica.is_changing_members();
    is_settled && !steps.is_empty() && steps.iter().all(is_so)
}

/// Answers whether a new member may have the id, or finds the member at `raft_addr` that has it.
fn vacancy(
    replica: &Replica,
    published: &Published,
    node: NodeId,
    raft_addr: &str,
) -> Result<Done, Denied> {
    if published.role != Role::Leader {
        return Err(Denied::NotLeader);
    }
    match (replica.state().check_vacancy(node), published.members.get(&node)) {
        (Ok(()), _) => Ok(Done::Vacant),
        // A pending change may remove the member that has the id.
        (Err(_), Some(_)) if replica.is_changing_members() => Err(ChangeError::Busy.into()),
        (Err(_), Some(member)) if member.raft_addr == raft_addr => {
            let is_voter = replica.incoming_voters().contains(&node);
            Ok(Done::Member { member: member.clone(), is_voter })
        }
        (Err(_), Some(member)) => {
            Err(Denied::IdTaken { node, raft_addr: member.raft_addr.clone() })
        }
        (Err(reason), None) => Err(Denied::NotVacant { node, reason }),
    }
}

/// The cluster's settings with these changes made.
fn changed_settings(
    replica: &Replica,
    published: &Published,
    changes: &[(SettingName, String)],
) -> Result<ClusterSettings, Denied> {
    // Only the leader knows the current values.
    if published.role != Role::Leader {
        return Err(Denied::NotLeader);
    }
    let format = replica.state().format;
    let none = if format < FORMAT_OF_SETTINGS {
        SettingsError::Format { format }
    } else {
        replica.not_seeded()
    };
    let mut after = replica.settings().ok_or(none)?.clone();
    for (name, text) in changes {
        let not_allowed = || Denied::NotAllowed { name: *name, text: text.clone() };
        after = after.with(*name, text).ok_or_else(not_allowed)?;
    }
    Ok(after)
}

/// At most this many commands wait for their answers.
const PENDING_MAX: usize = 16;
/// The longest time for a change or a barrier, nanoseconds: 5 s.
const CHANGE_TIMEOUT_NS: u64 = 5_000_000_000;
/// The longest time for a transfer, in election timeouts. The library abandons a transfer after one
/// election timeout.
const TRANSFER_ELECTIONS: u64 = 2;
