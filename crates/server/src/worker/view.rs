//! The publication as a worker last read it, with the parts of answers that are the same for many
//! answers. It only decides how requests are routed and what people are told. No proof uses it: a
//! round reads the publication itself, after its batch has closed.

use std::sync::Arc;

use bytes::Bytes;
use epicepoch_core::publication::{Published, Role};
use epicepoch_wire::http::{HEADER_FORWARDED, HEADER_LEADER, cluster_header};
use http::HeaderValue;

/// A publication, and the parts of answers made from it.
#[derive(Debug)]
pub(crate) struct View {
    /// The publication.
    pub(crate) published: Arc<Published>,
    /// The header with cluster id and history id, sent on every answer.
    pub(crate) cluster: HeaderValue,
    /// The `Alt-Svc` header that announces HTTP/3 over TCP; `None` when HTTP/3 is off.
    pub(crate) alt_svc: Option<HeaderValue>,
    /// The client address of the leader, when another node leads.
    pub(crate) other_leader: Option<LeaderAddress>,
}

/// The leader's client address, as a header and as a body.
#[derive(Clone, Debug)]
pub(crate) struct LeaderAddress {
    pub(crate) header: HeaderValue,
    pub(crate) body: Bytes,
}

impl View {
    /// Makes the parts of answers from a publication.
    pub(crate) fn new(published: Arc<Published>, alt_svc: Option<HeaderValue>) -> Self {
        let text = cluster_header(published.cluster, published.history);
        let cluster = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("unknown"));
        let other_leader = published.other_leader().and_then(|leader| {
            // An address that is empty or no valid header value would not help a client.
            let header = HeaderValue::from_str(&leader.client_addr).ok()?;
            let body = Bytes::copy_from_slice(leader.client_addr.as_bytes());
            (!body.is_empty()).then_some(LeaderAddress { header, body })
        });
        Self { published, cluster, alt_svc, other_leader }
    }

    /// The headers of an answer that another node has given through this one: the id of this node, and
    /// the leader's address if it is still known.
    pub(crate) fn forwarded_headers(&self) -> impl Iterator<Item = (&'static str, HeaderValue)> {
        let node = HeaderValue::from(self.published.identity.node.0);
        let leader = self.other_leader.as_ref().map(|it| (HEADER_LEADER, it.header.clone()));
        [(HEADER_FORWARDED, node)].into_iter().chain(leader)
    }

    /// Whether this node leads, with or without a grant. While it leads, requests wait for a round.
    pub(crate) fn is_leading(&self) -> bool {
        self.published.role == Role::Leader
    }

    /// Whether this node leads and owns a range, so that it can answer requests.
    pub(crate) fn is_serving(&self) -> bool {
        self.is_leading() && self.published.grant.is_some()
    }
}
