//! The queue of admin commands. Workers put a command in and wait for its answer; the consensus
//! plane takes it out and answers it. The types are here because both planes use them.

use std::time::Duration;

use epicepoch_core::admin::{Command, Unsettled};
use epicepoch_wire::http::ErrorCode;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// At most this many commands wait for the consensus plane, over all connections.
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
    /// Show the settings of the cluster.
    Settings,
    /// A command that the core decides.
    Decide(Command),
}

impl AdminCommand {
    /// The answer if the consensus plane does not answer this command. A command that changes
    /// something may have been carried out, so the operator must check that before repeating it.
    /// `None` for a command that only reads, which may be sent to another member.
    fn cut_off(&self) -> Option<Denied> {
        let unsettled = match self {
            Self::Members | Self::Clock | Self::Backup | Self::Settings => None,
            Self::Decide(command) => command.unsettled(),
        };
        unsettled.map(|it: Unsettled| Denied::new(ErrorCode::Unsettled, it.to_string()))
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

    /// Sends a command to the consensus plane and waits for its answer, at most for `limit`. If the
    /// plane ends or is stuck, the command may or may not have been carried out.
    pub(crate) async fn ask(&self, command: AdminCommand, limit: Duration) -> Answer {
        let (answer, answered) = oneshot::channel();
        let cut_off = command.cut_off();
        match self.0.try_send(AdminRequest { command, answer }) {
            Ok(()) => match timeout(limit, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(cut_off.unwrap_or_else(stopping)),
                Err(_) => Err(cut_off.unwrap_or_else(stuck)),
            },
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

fn stuck() -> Denied {
    let text =
        "the consensus thread of this node does not answer; its log says why; ask another member";
    Denied::new(ErrorCode::Internal, text)
}

/// JSON key in an answer: the command changed nothing, because the cluster was already in the
/// wanted state.
pub(crate) const ALREADY: &str = "already";
/// JSON key in an answer about a member: the store id of its data directory.
pub(crate) const STORE: &str = "store";

#[cfg(test)]
mod tests {
    use epicepoch_core::state::MembershipStep;
    use epicepoch_wire::{Epoch, NodeId};

    use super::*;

    /// No test waits that long.
    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn a_command_that_a_stuck_plane_does_not_answer_is_answered_in_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (admin_queue, mut requests) = AdminQueue::open();
        for (command, code) in [
            (AdminCommand::Decide(Command::Transfer(None)), ErrorCode::Unsettled),
            (AdminCommand::Members, ErrorCode::Internal),
        ] {
            let asked = runtime.block_on(admin_queue.ask(command, Duration::from_millis(1)));
            assert_eq!(asked.expect_err("no answer").code, code);
            let taken = runtime.block_on(requests.next()).expect("the command");
            assert!(taken.answer.is_closed());
        }
    }

    /// The plane takes a change from the queue and ends before it answers. The answer must not send
    /// the operator to another member, because the operator would repeat the change there.
    #[test]
    fn a_change_that_the_plane_took_before_it_ended_is_unsettled() {
        let answers = |command: AdminCommand| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime");
            let (admin_queue, mut requests) = AdminQueue::open();
            runtime.block_on(async {
                let ended = async { drop(requests.next().await) };
                let (answer, ()) = tokio::join!(admin_queue.ask(command.clone(), LONG), ended);
                let before = answer.expect_err("no answer").code;
                // The consensus plane ends.
                drop(requests);
                (before, admin_queue.ask(command, LONG).await.expect_err("no answer").code)
            })
        };
        let taken = (ErrorCode::Unsettled, ErrorCode::ShuttingDown);
        let advance = |is_plan| {
            AdminCommand::Decide(Command::Advance { to: Epoch(1), allowed_ns: 0, is_plan })
        };
        assert_eq!(
            answers(AdminCommand::Decide(Command::Change(vec![MembershipStep::Promote(NodeId(
                4
            ))]))),
            taken
        );
        assert_eq!(answers(AdminCommand::Decide(Command::Transfer(None))), taken);
        assert_eq!(
            answers(AdminCommand::Decide(Command::Set {
                changes: vec![],
                is_forced: false,
                gone: vec![],
            })),
            taken
        );
        assert_eq!(answers(advance(false)), taken);
        let reading = (ErrorCode::ShuttingDown, ErrorCode::ShuttingDown);
        for command in [
            AdminCommand::Members,
            AdminCommand::Clock,
            AdminCommand::Backup,
            AdminCommand::Settings,
            advance(true),
        ] {
            assert_eq!(answers(command), reading);
        }
        let vacancy = Command::Vacancy { node: NodeId(4), raft_addr: "n4:1".into() };
        assert_eq!(answers(AdminCommand::Decide(vacancy)), reading);
    }
}
