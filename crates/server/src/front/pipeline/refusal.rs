//! Why a request for timestamps gets none now: one code and one line of text, the same for every
//! protocol.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use epicepoch_wire::http::ErrorCode;

use crate::worker::sequencer::Sequencer;
use crate::worker::view::{LeaderAddress, View};

/// A refusal with its code and the state of the node. Invariant: a `NotLeader` always names the
/// leader.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: ErrorCode,
    pub(crate) view: Rc<View>,
    leaving: Leaving,
}

impl Refusal {
    /// The refusal for `code` with the current state of the node. `NotLeader` becomes `NoLeader` if
    /// the leader is not known any more. While the node stops, `NoLeader` and `NotReady` become
    /// `ShuttingDown`.
    pub(crate) fn now(sequencer: &Sequencer, code: ErrorCode) -> Self {
        let (view, leaving) = (sequencer.view(), Leaving::of(sequencer));
        let code = match code {
            ErrorCode::NotLeader if view.other_leader.is_none() => ErrorCode::NoLeader,
            code => code,
        };
        let is_vague = matches!(code, ErrorCode::NoLeader | ErrorCode::NotReady);
        let code = if is_vague && leaving != Leaving::No { ErrorCode::ShuttingDown } else { code };
        Self { code, view, leaving }
    }

    /// The leader that the client should ask, if the code is `NotLeader`.
    pub(crate) fn leader(&self) -> Option<&LeaderAddress> {
        self.view.other_leader.as_ref().filter(|_| self.code == ErrorCode::NotLeader)
    }

    /// One line that tells the client what to do: the address of the leader, or advice.
    pub(crate) fn text(&self) -> Bytes {
        match (self.leader(), self.code) {
            (Some(leader), _) => leader.body.clone(),
            (None, ErrorCode::ShuttingDown) => self.leaving.advice().into(),
            (None, code) => advice(code).into(),
        }
    }
}

/// Whether this node is about to end, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leaving {
    #[default]
    No,
    /// The node was told to stop.
    ShuttingDown,
    /// The node was removed from the cluster.
    Removed,
}

impl Leaving {
    /// The current state of the node.
    pub(crate) fn of(sequencer: &Sequencer) -> Self {
        let health = &sequencer.shared.health;
        if health.is_removed.load(Ordering::Relaxed) {
            Self::Removed
        } else if health.is_shutting_down.load(Ordering::Relaxed) {
            Self::ShuttingDown
        } else {
            Self::No
        }
    }

    /// Advice for clients.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::No | Self::ShuttingDown => advice(ErrorCode::ShuttingDown),
            Self::Removed => "this node was removed from the cluster and stops; ask a member\n",
        }
    }
}

/// One line of advice for clients.
pub(crate) const fn advice(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotLeader => "not the leader; ask the leader named in epicepoch-leader\n",
        ErrorCode::NoQuorum => "no quorum of the members answered in time; retry\n",
        ErrorCode::NoLeader => "no leader is known, an election is under way; retry\n",
        ErrorCode::Overloaded => {
            "too many requests, in all or from your address; retry later, or ask for several \
             timestamps at once with n\n"
        }
        ErrorCode::BadCount => "bad n; give a whole number from 1 up\n",
        ErrorCode::BadFormat => "format must be binary, range, json, u64 or u64range\n",
        ErrorCode::BadRequest => "the request was not understood; see the documentation\n",
        ErrorCode::NotFound => "no such path; see the documentation\n",
        ErrorCode::MethodNotAllowed => "wrong method; use one named in Allow\n",
        ErrorCode::ShuttingDown => "this node is stopping; ask another member\n",
        ErrorCode::NotReady => "this node has not joined its cluster yet; retry\n",
        ErrorCode::Internal => "this node cannot answer; its log says why\n",
        ErrorCode::Forbidden => "not allowed from this address, or not on this port\n",
        ErrorCode::Unauthorized => {
            "a token is needed: authorization: Bearer TOKEN, or --token-file of a command\n"
        }
        ErrorCode::Refused => "not possible in the present state of the cluster\n",
        ErrorCode::Busy => "another change is under way; retry\n",
        ErrorCode::NotCaughtUp => "the node is not caught up; retry\n",
        ErrorCode::Unsettled => {
            "the outcome of the command is not known; check before you repeat it\n"
        }
        ErrorCode::NotCompact => {
            "this cluster gives wide timestamps, which do not fit into 64 bits; ask for another format, or \
             change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact\n"
        }
        ErrorCode::Uncertain => "this node is not certain of the time; ask another node\n",
        ErrorCode::OtherMode => {
            "the mode of this cluster is interval; ask any node for /interval\n"
        }
        ErrorCode::WrongCluster => "this node belongs to another cluster; correct the addresses\n",
        ErrorCode::UnsupportedVersion => {
            "client and node have no protocol version in common; update one of them\n"
        }
        ErrorCode::Unsupported => {
            "this node does not support a part of the request; leave that part out\n"
        }
        // New codes may be added. A test checks that no current code gets here.
        _ => ADVICE_UNKNOWN,
    }
}

const ADVICE_UNKNOWN: &str = "refused; the documentation explains the code in epicepoch-error\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_line_of_advice() {
        for code in ErrorCode::ALL {
            assert_ne!(advice(code), ADVICE_UNKNOWN, "{code:?}");
            assert_eq!(advice(code).find('\n'), Some(advice(code).len() - 1), "{code:?}");
        }
    }
}
