//! The answers to admin commands.

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::settings::SettingName;
use epicepoch_wire::{NodeId, Term};
use thiserror::Error;

use crate::replica::{
    Advance, AdvanceError, ChangeError, SettingsError, TransferError, ZonesInDoubt,
};
use crate::state::MembershipStep;

/// What a command has done, or why it has not.
pub type Answer = Result<Done, Denied>;

/// An answer that is due.
#[derive(Debug)]
pub struct Answered<R> {
    /// The value that the caller passed with the command, to deliver the answer.
    pub reply: R,
    /// The answer.
    pub answer: Answer,
    /// How long the command took, nanoseconds.
    pub took_ns: u64,
}

/// The result of a completed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The answer to a dry run: what an advance would do. Nothing has moved.
    Planned(Advance),
    /// The epoch was moved, or the move was not needed: every later answer was above the epoch
    /// already.
    Advanced(Advance),
    /// Leadership was handed over to `to`, or `to` led already.
    Transferred {
        /// The leader.
        to: NodeId,
        /// The leader before.
        before: NodeId,
        /// The term in which `to` leads.
        term: Term,
        /// Whether `to` led already.
        is_already: bool,
    },
    /// The id is free for a new member.
    Vacant,
    /// The member at the given address already has the id.
    Member {
        /// The member.
        member: Member,
        /// Whether it is a voter.
        is_voter: bool,
    },
    /// The members are as these steps want them.
    Changed {
        /// The steps.
        steps: Vec<MembershipStep>,
        /// Whether nothing had to change.
        is_already: bool,
    },
    /// The settings are in effect.
    Set {
        /// The zones in these settings in which no voter is known to be.
        doubt: Option<ZonesInDoubt>,
    },
}

/// Why a command was denied. Nothing has changed, except perhaps after [`Denied::Unsettled`]. The
/// enum is exhaustive, so that each denial gets a status code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    /// Ask the leader.
    #[error("this node does not lead")]
    NotLeader,
    /// Ask again in a moment.
    #[error("too many admin commands wait; retry")]
    Overloaded,
    /// See [`AdvanceError`].
    #[error(transparent)]
    Advance(#[from] AdvanceError),
    /// See [`TransferError`].
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// See [`ChangeError`].
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// See [`SettingsError`].
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The change was committed, but refused when it was applied. It can never be made.
    #[error("{0}")]
    Refused(&'static str),
    /// Correct the value.
    #[error("{name} is {text:?}; allowed is {}", .name.allowed())]
    NotAllowed {
        /// The setting.
        name: SettingName,
        /// The requested value.
        text: String,
    },
    /// Another member has this id: give the new node another id.
    #[error(
        "node {node} cannot be added: a member at {raft_addr} has this id already: give the new node \
         another NODE_ID"
    )]
    IdTaken {
        /// The id.
        node: NodeId,
        /// The peer address of the member that has this id.
        raft_addr: String,
    },
    /// Do what the reason says.
    #[error("node {node} cannot be added: {reason}")]
    NotVacant {
        /// The id.
        node: NodeId,
        /// The reason, for people.
        reason: &'static str,
    },
    /// A node other than the intended leader leads now: check which one.
    #[error("node {leader} leads now instead of node {to}")]
    OtherLeads {
        /// The new leader.
        leader: NodeId,
        /// The intended leader.
        to: NodeId,
    },
    /// The successor did not take over: check why.
    #[error("node {to} did not take over, and node {me} still leads: see the log of {to}")]
    NotTaken {
        /// The intended leader.
        to: NodeId,
        /// This node.
        me: NodeId,
    },
    /// Ask again.
    #[error("no quorum confirmed in time that this node still leads; nothing was changed, retry")]
    Unconfirmed,
    /// Check before you repeat the command: it was begun, and its outcome is not known.
    #[error("{0}")]
    Unsettled(Unsettled),
}

/// A change whose outcome is not known: leadership was lost, no quorum answered, or the node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsettled {
    /// Members or leadership.
    #[error("it was begun, but its outcome is not known; check with: epicepoch member list")]
    Members,
    /// Settings.
    #[error("it was begun, but its outcome is not known; check with: epicepoch settings list")]
    Settings,
    /// An advance of the epoch. It may be repeated without a check.
    #[error(
        "it was begun, but its outcome is not known: leadership was lost, no quorum answered, or the \
         node ended; repeat the command, which does no harm"
    )]
    Advance,
}
