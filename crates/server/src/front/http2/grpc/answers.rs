//! The content of answers that are not timestamps: the members, the mode of the cluster, the health
//! of the node.

use epicepoch_core::publication::Published;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::grpc::health::{self, Serving};
use epicepoch_wire::grpc::pd;
use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::ErrorCode;

use super::status::{self, Status};
use crate::front::pipeline::refusal::Leaving;

/// The addresses of a member, as PD's clients want them.
struct Urls {
    name: String,
    id: u64,
    peer: String,
    client: String,
}

impl Urls {
    fn of(member: &Member, is_encrypted: bool) -> Self {
        // A client uses the scheme of the first URL, so it gets one for the way it has come.
        let scheme = if is_encrypted { "https" } else { "http" };
        Self {
            name: format!("epicepoch-{}", member.node),
            id: member.node.0,
            peer: format!("{scheme}://{}", member.raft_addr),
            client: format!("{scheme}://{}", member.client_addr),
        }
    }

    fn member(&self) -> pd::Member<'_> {
        let Self { name, id, peer, client } = self;
        pd::Member { name, id: *id, peer_url: peer, client_url: client }
    }
}

/// The id of the cluster for PD's clients.
///
/// # Errors
/// When this node has not joined its cluster.
pub(super) fn cluster_id(published: &Published) -> Result<u64, Status> {
    const TEXT: &str = "server not started: this node has not joined its cluster yet; retry";
    if published.cluster.0 == 0 {
        return Err(Status::fixed(Code::Unavailable, TEXT, ErrorCode::NotReady));
    }
    Ok(pd::cluster_id(published.cluster, published.history))
}

/// Checks that the cluster gives timestamps that PD's clients can take.
///
/// # Errors
/// When it does not.
pub(super) fn check_format(published: &Published) -> Result<(), Status> {
    if published.is_compact() { Ok(()) } else { Err(status::WIDE) }
}

/// Appends the members that have an address for clients, and the leader if it is known.
pub(super) fn put_members(
    published: &Published,
    cluster_id: u64,
    is_encrypted: bool,
    out: &mut Vec<u8>,
) {
    let members = published.members.values().filter(|member| !member.client_addr.is_empty());
    let urls: Vec<_> = members.map(|member| Urls::of(member, is_encrypted)).collect();
    let leader = urls.iter().find(|urls| published.leader.is_some_and(|it| it.0 == urls.id));
    let leader = leader.map(Urls::member);
    pd::put_members(out, cluster_id, urls.iter().map(Urls::member), leader.as_ref());
}

/// Appends the health of a service.
///
/// # Errors
/// When there is no such service, or the bytes are not a request.
pub(super) fn put_health(
    request: &[u8],
    leaving: Leaving,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    let service = health::decode_check(request)?;
    if !matches!(service, "" | pd::SERVICE) {
        const TEXT: &str = "no such service here; leave the name empty to ask about the node";
        return Err(Status::fixed(Code::NotFound, TEXT, ErrorCode::NotFound));
    }
    let serving = if leaving == Leaving::No { Serving::Serving } else { Serving::NotServing };
    health::put_checked(out, serving);
    Ok(())
}
