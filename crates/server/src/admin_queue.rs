//! The queue of admin commands. Workers put a command in and wait for its answer; the consensus
//! plane takes it out and answers it. The types are here because both planes use them.

use epicepoch_core::state::MembershipStep;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::settings::SettingName;
use epicepoch_wire::{Epoch, NodeId};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// Most commands that may wait for the consensus plane, over all connections.
const QUEUE_LEN_MAX: usize = 16;

/// A command from an operator.
#[derive(Clone, Debug)]
pub(crate) enum AdminCommand {
    /// List the members.
    Members,
    /// Show this node's clock.
    Clock,
    /// Take a backup of the state that this node has applied.
    Backup,
    /// Move every later answer above `to`, which may be at most `allowed_ns` ahead of the clock.
    /// With `is_plan`, nothing moves; the answer says what would change.
    Advance { to: Epoch, allowed_ns: u64, is_plan: bool },
    /// Hand leadership to this voter, or to the most up-to-date one.
    Transfer(Option<NodeId>),
    /// Check whether a new member may use this id, or which member at this address has it.
    Vacancy { node: NodeId, raft_addr: String },
    /// Change the members.
    Change(Vec<MembershipStep>),
    /// Show the settings of the cluster.
    Settings,
    /// Set settings of the cluster. If forced, zones without a voter are accepted.
    Set { changes: Vec<(SettingName, String)>, is_forced: bool },
}

impl AdminCommand {
    /// The answer when the consensus plane ends before it has answered. A command that only reads
    /// may be sent to another member. A change may have been made, so it must not be repeated
    /// without a check.
    fn cut_off(&self) -> Denied {
        match self {
            Self::Members
            | Self::Clock
            | Self::Backup
            | Self::Advance { is_plan: true, .. }
            | Self::Vacancy { .. }
            | Self::Settings => stopping(),
            Self::Advance { is_plan: false, .. } => unsettled_advance(),
            Self::Transfer(_) | Self::Change(_) => unsettled("epicepoch member list"),
            Self::Set { .. } => unsettled("epicepoch settings list"),
        }
    }
}

/// Why a command was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) code: ErrorCode,
    /// A message for people, without a newline at the end.
    pub(crate) text: String,
}

impl Denied {
    pub(crate) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// The answer to a command: a JSON document, or the reason for denying it.
pub(crate) type Answer = Result<Value, Denied>;

/// The workers' end of the queue.
#[derive(Clone, Debug)]
pub struct AdminQueue(mpsc::Sender<AdminRequest>);

/// The consensus plane's end of the queue.
#[derive(Debug)]
pub struct AdminRequests(mpsc::Receiver<AdminRequest>);

/// A command that waits for its answer.
#[derive(Debug)]
pub(crate) struct AdminRequest {
    pub(crate) command: AdminCommand,
    pub(crate) answer: oneshot::Sender<Answer>,
}

impl AdminQueue {
    /// Makes a new queue, and returns both ends.
    #[must_use]
    pub fn open() -> (Self, AdminRequests) {
        let (sender, receiver) = mpsc::channel(QUEUE_LEN_MAX);
        (Self(sender), AdminRequests(receiver))
    }

    /// Sends a command to the consensus plane and waits for its answer. If the plane ends before
    /// that, it may have carried the command out or not.
    pub(crate) async fn ask(&self, command: AdminCommand) -> Answer {
        let (answer, answered) = oneshot::channel();
        let cut_off = command.cut_off();
        match self.0.try_send(AdminRequest { command, answer }) {
            Ok(()) => answered.await.unwrap_or(Err(cut_off)),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(Denied::new(ErrorCode::Overloaded, "too many admin commands wait; retry"))
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(stopping()),
        }
    }
}

impl AdminRequests {
    pub(crate) async fn next(&mut self) -> Option<AdminRequest> {
        self.0.recv().await
    }
}

fn stopping() -> Denied {
    Denied::new(ErrorCode::ShuttingDown, "this node is stopping; ask another member")
}

/// The answer to a change that was begun and whose outcome is unknown. `look` is the command that
/// shows the outcome.
pub(crate) fn unsettled(look: &str) -> Denied {
    let text = format!("it was begun, and whether it is done is not known; look with: {look}");
    Denied::new(ErrorCode::Unsettled, text)
}

/// The answer to an advance of the epoch that was begun and whose outcome is unknown. The operator
/// may repeat the advance.
pub(crate) fn unsettled_advance() -> Denied {
    let text = "it was begun, and whether it is done is not known: leadership was lost, no quorum \
                answered, or the node ended; repeat the command, it does no harm";
    Denied::new(ErrorCode::Unsettled, text)
}

/// Key in a document: nothing was changed, because the cluster already is as the command wants it.
pub(crate) const ALREADY: &str = "already";
/// Key in a member's document: its data directory.
pub(crate) const STORE: &str = "store";
