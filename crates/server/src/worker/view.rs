//! What a worker last saw published, with everything that answers repeat of it made ready. It
//! steers requests and informs people; no proof rests on it: a round reads the publication
//! itself, after its batch has closed.

use std::sync::Arc;

use bytes::Bytes;
use epicepoch_core::publication::{Published, Role};
use epicepoch_wire::http::{ErrorCode, cluster_header};
use http::HeaderValue;

/// See the module.
#[derive(Debug)]
pub(crate) struct View {
    /// What was published.
    pub(crate) published: Arc<Published>,
    /// Cluster id and history id, on every answer.
    pub(crate) cluster: HeaderValue,
    /// What answers over TCP say of HTTP/3, if it is served.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// Where clients reach the leader, if it is another node.
    pub(crate) other_leader: Option<LeaderAddress>,
}

/// The leader's client address, as header and as body.
#[derive(Clone, Debug)]
pub(crate) struct LeaderAddress {
    pub(crate) header: HeaderValue,
    pub(crate) body: Bytes,
}

impl View {
    /// Makes ready what is published.
    pub(crate) fn new(published: Arc<Published>, alt_svc: Option<HeaderValue>) -> Self {
        let text = cluster_header(published.cluster, published.history);
        let cluster = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("unknown"));
        let other_leader = published.other_leader().and_then(|leader| {
            // An address that is no header value, or none at all, leads nobody anywhere.
            let header = HeaderValue::from_str(&leader.client_addr).ok()?;
            let body = Bytes::copy_from_slice(leader.client_addr.as_bytes());
            (!body.is_empty()).then_some(LeaderAddress { header, body })
        });
        Self { published, cluster, alt_svc, other_leader }
    }

    /// Whether this node leads, with a grant or waiting for one: its requests wait for a round.
    pub(crate) fn is_leading(&self) -> bool {
        self.published.role == Role::Leader
    }

    /// Whether this node leads and owns a range: its requests are answered.
    pub(crate) fn is_serving(&self) -> bool {
        self.is_leading() && self.published.grant.is_some()
    }

    /// Whether this node has joined its cluster.
    pub(crate) fn is_joined(&self) -> bool {
        self.published.members.contains_key(&self.published.identity.node)
    }

    /// Why a node that does not lead refuses.
    pub(crate) fn refusal(&self) -> ErrorCode {
        if self.other_leader.is_some() {
            ErrorCode::NotLeader
        } else if self.is_joined() {
            ErrorCode::NoLeader
        } else {
            ErrorCode::NotReady
        }
    }
}
