//! What can go wrong, one enum per operation, each variant with what the caller can do.

use std::time::Duration;

use epicepoch_wire::Timestamp;
use epicepoch_wire::hello::CLUSTER_NAME_LEN_MAX;
use epicepoch_wire::http::{ErrorCode, RANGE_COUNT_MAX};
use thiserror::Error;

use crate::client::Options;

/// Why a client cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NewClientError {
    /// Give at least one address.
    #[error("no address given; allowed are one or more of host:port")]
    NoAddress,
    /// Write the address as `host:port`.
    #[error("{0:?} is no address; allowed is host:port, such as localhost:8881")]
    Address(String),
    /// Give the name that the nodes have as `CLUSTER`.
    #[error("{0:?} is no name of a cluster; allowed are 1 to {CLUSTER_NAME_LEN_MAX} bytes")]
    ClusterName(String),
    /// Leave `hedge_after` out, or use the native protocol.
    #[error("hedge_after is for the native protocol; over HTTP nothing is asked twice")]
    HedgeOverHttp,
    /// Leave `observer` out, or use the native protocol.
    #[error("observer is for the native protocol; over HTTP nobody is told anything")]
    ObserverOverHttp,
    /// Give a duration that can be kept to.
    #[error("{option} is {given:?}; allowed are 1ns to {:?}", Options::DURATION_MAX)]
    Duration {
        /// Which option.
        option: &'static str,
        /// Its value.
        given: Duration,
    },
}

/// Why [`Client::connect`](crate::Client::connect) gave no client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Correct the addresses.
    #[error(transparent)]
    New(#[from] NewClientError),
    /// What the first call came to.
    #[error(transparent)]
    Timestamps(#[from] TimestampsError),
}

/// Why [`Client::timestamps`](crate::Client::timestamps) gave none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TimestampsError {
    /// Ask for 1 to 2^32 timestamps.
    #[error("{0} timestamps asked for; allowed are 1 to {RANGE_COUNT_MAX}")]
    Count(u64),
    /// Ask again when some of the calls are through: more wait than one client takes.
    #[error("too many calls wait")]
    TooManyCalls,
    /// Call inside a tokio runtime that goes on while the call does.
    #[error("no tokio runtime carries this client's calls out, or it has ended")]
    Stopped,
    /// Try again later, or with a later deadline. Nothing is known to be wrong for ever.
    #[error("no timestamp before the deadline{}", because(.last.as_ref()))]
    DeadlineExceeded {
        /// What went wrong, if anything had before the deadline came: rather the newest refusal
        /// by a live node than the silence of another one.
        last: Option<Setback>,
    },
    /// Correct the addresses: they lead to different clusters, or the cluster was restored from a
    /// backup, in which case timestamps of both histories must not be mixed.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// Stop and find out why: the order of the oracle is broken, or something stands between.
    #[error("{addr} answered {answer}, below {floor}, which was returned before this call")]
    WentBackwards {
        /// Who answered.
        addr: String,
        /// Highest timestamp returned before the call.
        floor: Timestamp,
        /// Lowest timestamp of the answer.
        answer: Timestamp,
    },
    /// Correct the address or the request: no retry helps.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// Why [`Client::members`](crate::Client::members) gave none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MembersError {
    /// Try again later, or with a later deadline.
    #[error("no member list before the deadline{}", because(.last.as_ref()))]
    DeadlineExceeded {
        /// What went wrong last, if anything had before the deadline came.
        last: Option<Setback>,
    },
    /// Correct the addresses: they lead to different clusters.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// Correct the address: no retry helps.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// Why one node did not say how it is ([`Client::ready`](crate::Client::ready),
/// [`Client::leads`](crate::Client::leads)).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AskError {
    /// Ask again, or another node.
    #[error(transparent)]
    Setback(#[from] Setback),
    /// Correct the address: it belongs to another cluster.
    #[error(transparent)]
    AnotherCluster(#[from] AnotherCluster),
    /// Correct the address: no retry helps.
    #[error(transparent)]
    BadAnswer(#[from] BadAnswer),
}

/// One attempt that failed and may be repeated elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Setback {
    /// Nothing accepts connections there.
    #[error("{addr} does not accept connections: {reason}")]
    Unreachable {
        /// Who was asked.
        addr: String,
        /// In the system's words.
        reason: String,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection to {addr} was lost: {reason}")]
    Lost {
        /// Who was asked.
        addr: String,
        /// In the transport's words.
        reason: String,
    },
    /// No answer in time.
    #[error("{addr} did not answer in time")]
    Silent {
        /// Who was asked.
        addr: String,
    },
    /// The node refused for now.
    #[error("{addr} refused with {code}")]
    Refused {
        /// Who was asked.
        addr: String,
        /// Its reason.
        code: ErrorCode,
    },
    /// The node knows no leader: an election is under way, or no quorum is up.
    #[error("{addr} knows no leader")]
    NoLeader {
        /// Who was asked.
        addr: String,
    },
    /// Something before the node, such as a load balancer, refused for now.
    #[error("{addr} answered with status {status}")]
    Status {
        /// Who was asked.
        addr: String,
        /// HTTP status.
        status: u16,
    },
}

impl Setback {
    /// Who was asked.
    #[must_use]
    pub fn addr(&self) -> &str {
        match self {
            Self::Unreachable { addr, .. }
            | Self::Lost { addr, .. }
            | Self::Silent { addr }
            | Self::Refused { addr, .. }
            | Self::NoLeader { addr }
            | Self::Status { addr, .. } => addr,
        }
    }

    /// Whether somebody answered.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::NoLeader { .. } | Self::Status { .. } => true,
            Self::Unreachable { .. } | Self::Lost { .. } | Self::Silent { .. } => false,
        }
    }
}

/// An answer came from another cluster, or from another history of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{addr} belongs to cluster {found}, but this client talks to cluster {expected}{}", self.advice())]
pub struct AnotherCluster {
    /// Who answered.
    pub addr: String,
    /// Cluster and history of the first answer, or the quoted name that the options expect.
    pub expected: String,
    /// Cluster and history of this answer, or the quoted name of its cluster, or if it was the
    /// node that refused, its words.
    pub found: String,
}

impl AnotherCluster {
    /// Whether it is the same cluster, restored from a backup since this client's first answer: then
    /// its history is another, and every timestamp of the new one is above those of the old. The
    /// client does not go over by itself; a new client talks to the new history. `false` where
    /// the answer was of a history that has ended: that node is to be stopped.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        let histories = self.histories();
        histories.is_some_and(|(expected, found)| found > expected)
    }

    /// Both histories, if it is one cluster.
    fn histories(&self) -> Option<(&str, &str)> {
        let (cluster, expected) = self.expected.split_once('.')?;
        let (other, found) = self.found.split_once('.')?;
        // Of one width and in hexadecimal: their order is that of the numbers.
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

/// An answer that no retry makes better.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadAnswer {
    /// The node refuses the request as it is.
    #[error("{addr} refused with {code}: {message}")]
    Refused {
        /// Who answered.
        addr: String,
        /// Its reason.
        code: ErrorCode,
        /// Its advice.
        message: String,
    },
    /// No member of a cluster answers like this.
    #[error("{addr} gave an answer that no oracle gives: {what}")]
    Foreign {
        /// Who answered.
        addr: String,
        /// What is wrong with it.
        what: String,
    },
}

fn because(last: Option<&Setback>) -> String {
    last.map_or_else(String::new, |setback| format!(": {setback}"))
}
