//! The errors, one enum per operation. Each variant says what the caller can do.

use std::io;
use std::time::Duration;

use epicepoch_wire::Timestamp;
use epicepoch_wire::http::{ErrorCode, RANGE_COUNT_MAX};
use epicepoch_wire::peer_hello::CLUSTER_NAME_LEN_MAX;
use thiserror::Error;

use crate::clock::DURATION_MAX;
use crate::dial::TlsFailure;
use crate::resolver::SlowLookup;

/// Why a client cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NewClientError {
    /// No address was given. Give at least one.
    #[error("no address given; allowed are one or more of host:port")]
    NoAddress,
    /// The address is not `host:port`. Correct it.
    #[error("{0:?} is not an address; use host:port, such as localhost:8881")]
    Address(String),
    /// The cluster name is not valid. Give the `CLUSTER` of the nodes.
    #[error("{0:?} is no name of a cluster; allowed are 1 to {CLUSTER_NAME_LEN_MAX} bytes")]
    ClusterName(String),
    /// HTTP has no hedging. Leave `hedge_after` out, or use the native protocol.
    #[error("hedge_after is for the native protocol; over HTTP no request is sent twice")]
    HedgeOverHttp,
    /// HTTP has no observer. Leave `observer` out, or use the native protocol.
    #[error("observer is for the native protocol; over HTTP it would never be called")]
    ObserverOverHttp,
    /// The duration is out of range. Give a valid one.
    #[error("{option} is {given:?}; allowed are 1ns to {:?}", DURATION_MAX)]
    Duration {
        /// The name of the option.
        option: &'static str,
        /// The value given.
        given: Duration,
    },
}

/// Why [`Client::connect`](crate::Client::connect) returned no client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An address is missing or invalid. Correct the addresses.
    #[error(transparent)]
    New(#[from] NewClientError),
    /// The first call failed.
    #[error(transparent)]
    Timestamps(#[from] TimestampsError),
}

/// Why [`Client::timestamps`](crate::Client::timestamps) returned no timestamps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TimestampsError {
    /// The count is out of range. Ask for 1 to 2^32 timestamps.
    #[error("{0} timestamps asked for; allowed are 1 to {RANGE_COUNT_MAX}")]
    Count(u64),
    /// Too many calls wait for one client. Retry when some have ended.
    #[error("too many calls wait")]
    TooManyCalls,
    /// No tokio runtime carries out the call. Call inside a runtime that outlives the call.
    #[error("there is no tokio runtime for this client's calls, or it has ended")]
    Stopped,
    /// No answer came before the deadline, and no error is known to be permanent. Try again later,
    /// or with a later deadline.
    #[error("no timestamp before the deadline{}", because(.last.as_ref()))]
    DeadlineExceeded {
        /// The last failed attempt before the deadline, if any. A refusal of a node is kept over
        /// later attempts without an answer, until these are more than the known addresses. If that
        /// node only knew no leader, and TLS failed with another node, this is
        /// [`FailedAttempt::Tls`], and its reason names both.
        last: Option<FailedAttempt>,
    },
    /// The addresses lead to different clusters: correct them. Or the cluster was restored from a
    /// backup: then do not mix timestamps of the two histories.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// An answer went back: it was not above earlier ones, or a latest timestamp was below one of
    /// them. Either the order of the oracle is broken, or another
    /// program pretends to be the oracle. Stop and find out why.
    #[error("{addr} answered {answer}; {floor} was returned before this call")]
    WentBackwards {
        /// The address of the node.
        addr: String,
        /// Highest timestamp returned before the call.
        floor: Timestamp,
        /// Lowest timestamp of the answer.
        answer: Timestamp,
    },
    /// A compact timestamp was asked for, and the cluster gives wide ones. Ask for a wide one, or have
    /// an operator change the cluster.
    #[error(
        "the cluster gave {timestamp}, which does not fit into 64 bits: ask for timestamps of 16 bytes, \
         or change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact (a new cluster \
         with this setting gives such timestamps after some seconds)"
    )]
    NotCompact {
        /// The timestamp that was given.
        timestamp: Timestamp,
    },
    /// An answer is invalid, or a node refused for good. No retry helps. Correct the address or the
    /// request.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// Why [`Client::members`](crate::Client::members) returned no members.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MembersError {
    /// No answer came before the deadline. Try again later, or with a later deadline.
    #[error("no member list before the deadline{}", because(.last.as_ref()))]
    DeadlineExceeded {
        /// The last failed attempt before the deadline, if any.
        last: Option<FailedAttempt>,
    },
    /// The addresses lead to different clusters. Correct them.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// No retry helps. Correct the address.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// Why a node did not report its state ([`Client::ready`](crate::Client::ready),
/// [`Client::leads`](crate::Client::leads)).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AskError {
    /// The attempt failed. Ask this node again, or another one.
    #[error(transparent)]
    FailedAttempt(#[from] FailedAttempt),
    /// The address belongs to another cluster. Correct it.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// No retry helps. Correct the address.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// An attempt that failed. Another attempt, at this node or another one, may succeed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FailedAttempt {
    /// No connection to the address could be made.
    #[error("{addr} does not accept connections: {reason}")]
    Unreachable {
        /// The address of the node.
        addr: String,
        /// The error of the system.
        reason: String,
    },
    /// TLS with the node failed, because of a certificate, or because one end speaks no TLS.
    #[error("TLS with {addr} failed: {reason}")]
    Tls {
        /// The address of the node.
        addr: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The connection ended before the answer was complete.
    #[error("the connection to {addr} was lost: {reason}")]
    Lost {
        /// The address of the node.
        addr: String,
        /// The error of the transport.
        reason: String,
    },
    /// The node did not answer in time.
    #[error("{addr} did not answer in time")]
    Silent {
        /// The address of the node.
        addr: String,
    },
    /// The lookup of the host's name took too long, so the node was not asked. If this goes on,
    /// check the name server.
    #[error("the lookup of {addr} took too long")]
    SlowLookup {
        /// The address of the node.
        addr: String,
    },
    /// The node refused, but may accept later.
    #[error("{addr} refused with {code}")]
    Refused {
        /// The address of the node.
        addr: String,
        /// The reason of the node.
        code: ErrorCode,
    },
    /// The node knows no leader: an election is in progress, or no quorum is up.
    #[error("{addr} knows no leader")]
    NoLeader {
        /// The address of the node.
        addr: String,
    },
    /// A server in front of the node, such as a load balancer, refused, but may accept later.
    #[error("{addr} answered with status {status}")]
    Status {
        /// The address of the node.
        addr: String,
        /// HTTP status.
        status: u16,
    },
}

/// The advice for a guarantee that a node refuses. Only old nodes, without guarantees, refuse one.
pub(crate) const TOO_OLD: &str = "this node is too old for guarantees: update it, or leave \
                                  guarantee out (--guarantee of a command)";
/// The error for an answer by a lease, if the client accepts rounds only.
pub(crate) const BY_LEASE: &str =
    "an answer that a lease has proved, which this client has not asked for";

impl FailedAttempt {
    /// The address of the node.
    #[must_use]
    pub fn addr(&self) -> &str {
        match self {
            Self::Unreachable { addr, .. }
            | Self::Tls { addr, .. }
            | Self::Lost { addr, .. }
            | Self::Silent { addr }
            | Self::SlowLookup { addr }
            | Self::Refused { addr, .. }
            | Self::NoLeader { addr }
            | Self::Status { addr, .. } => addr,
        }
    }

    /// Returns the error for a broken connection.
    pub(crate) fn lost(addr: &str, reason: &dyn ToString) -> Self {
        Self::Lost { addr: addr.to_owned(), reason: reason.to_string() }
    }

    /// Returns the error for a connection that broke with `error`.
    pub(crate) fn broken(addr: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::tls(addr, error).unwrap_or_else(|| Self::lost(addr, &error))
    }

    /// Returns the error for a connection that could not be made.
    pub(crate) fn unreachable(addr: &str, error: &io::Error) -> Self {
        if error.get_ref().and_then(|inner| inner.downcast_ref::<SlowLookup>()).is_some() {
            return Self::SlowLookup { addr: addr.to_owned() };
        }
        Self::tls(addr, error).unwrap_or_else(|| {
            let reason = error.to_string();
            Self::Unreachable { addr: addr.to_owned(), reason }
        })
    }

    fn tls(addr: &str, error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let failure = TlsFailure::of(error)?;
        Some(Self::Tls { addr: addr.to_owned(), reason: failure.to_string() })
    }

    /// Whether a node answered.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::NoLeader { .. } | Self::Status { .. } => true,
            Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::Lost { .. }
            | Self::Silent { .. }
            | Self::SlowLookup { .. } => false,
        }
    }

    /// Whether the attempt ended because its time was over.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::SlowLookup { .. })
    }
}

/// Why no connection to a node was made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Ask another node, or this one later.
    #[error(transparent)]
    FailedAttempt(#[from] FailedAttempt),
    /// The node refused: it belongs to another cluster. Correct the address.
    #[error("the node belongs to another cluster: {0}")]
    AnotherCluster(String),
    /// No retry helps. Correct the address.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// An answer came from another cluster, or from another history of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{addr} belongs to cluster {found}, but this client talks to cluster {expected}{}", self.advice())]
pub struct AnotherCluster {
    /// The address of the node.
    pub addr: String,
    /// Cluster and history of the first answer, or the quoted name that the options expect.
    pub expected: String,
    /// The cluster and history that the node named. If the node named only its cluster, that name
    /// in quotes. If the node refused this client, the text of the refusal.
    pub found: String,
}

impl AnotherCluster {
    /// Whether the cluster was restored from a backup since this client's first answer. If so, a
    /// new client can use the restored cluster. The timestamps of the new history are above those
    /// of the old one, unless an operator moved the epoch after the backup, or restored one backup
    /// twice. So let a person decide, or accept that risk. If the cluster was not restored, the
    /// answer came from another cluster, or from a node of a history that has ended. Stop such a
    /// node.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        let histories = self.histories();
        histories.is_some_and(|(expected, found)| found > expected)
    }

    /// Returns the expected and the found history id if both belong to the same cluster.
    fn histories(&self) -> Option<(&str, &str)> {
        let (cluster, expected) = self.expected.split_once('.')?;
        let (other, found) = self.found.split_once('.')?;
        // Both history ids are hexadecimal texts of the same length. So the order of the texts is
        // the order of the numbers.
        (cluster == other && expected.len() == found.len()).then_some((expected, found))
    }

    fn advice(&self) -> &'static str {
        match self.histories() {
            Some((expected, found)) if found > expected => {
                ": it was restored from a backup; make a new client to go on with it"
            }
            Some(_) => ": that history has ended with a restore; stop that node",
            None => "",
        }
    }
}

/// An invalid answer, or a refusal for which no retry helps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadAnswer {
    /// The node refuses this request, and will refuse it again.
    #[error("{addr} refused with {code}: {message}")]
    Refused {
        /// The address of the node.
        addr: String,
        /// The reason of the node.
        code: ErrorCode,
        /// The advice of the node.
        message: String,
    },
    /// TLS failed at every address, at least three times in all, and no node answered meanwhile. So
    /// a file, a name or a setting is wrong. Correct it as the text says.
    #[error("TLS with {addr} failed: {reason}")]
    Tls {
        /// The address of the last of these nodes.
        addr: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The answer is not one that a member of a cluster sends, so another program is at this
    /// address.
    #[error("{addr} gave an answer that no oracle gives: {what}")]
    Foreign {
        /// The address of the node.
        addr: String,
        /// What is wrong with the answer.
        what: String,
    },
}

impl BadAnswer {
    /// Returns the error for an answer that no node of EpicEpoch would send.
    pub(crate) fn foreign(addr: &str, what: &str) -> Self {
        Self::Foreign { addr: addr.to_owned(), what: what.to_owned() }
    }
}

fn because(last: Option<&FailedAttempt>) -> String {
    last.map_or_else(String::new, |failed_attempt| format!(": {failed_attempt}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a node that names `found` where the client expects `expected`.
    fn another(expected: &str, found: &str) -> AnotherCluster {
        let [addr, expected, found] = ["a:1", expected, found].map(str::to_owned);
        AnotherCluster { addr, expected, found }
    }

    #[test]
    fn a_later_history_of_the_same_cluster_is_a_restored_one() {
        for (expected, found, advice) in [
            ("7.01", "7.02", "was restored from a backup"),
            ("7.02", "7.01", "has ended with a restore"),
            ("7.01", "8.02", ""),
            ("7.01", "7.002", ""),
            ("7.01", "8.002", ""),
            ("\"a\"", "\"b\"", ""),
        ] {
            let error = another(expected, found);
            assert_eq!(error.is_restored(), advice.contains("restored"), "{error}");
            let text = error.to_string();
            let rest = text.split_once(expected).expect("the expected cluster is named").1;
            assert!(rest.contains(advice) && advice.is_empty() == rest.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_passed_deadline_names_the_last_failed_attempt() {
        let silent = FailedAttempt::Silent { addr: "a:1".to_owned() };
        let text = TimestampsError::DeadlineExceeded { last: Some(silent) }.to_string();
        assert_eq!(text, "no timestamp before the deadline: a:1 did not answer in time");
        let text = TimestampsError::DeadlineExceeded { last: None }.to_string();
        assert_eq!(text, "no timestamp before the deadline");
    }
}
