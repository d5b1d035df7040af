//! What clients of PD ask and are answered (`PD_WIRE`).

use epicepoch_core::publication::Published;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::grpc::pd::{self, TsoRequest, TsoResponse};
use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::timestamp::{COMPACT_INDEX_BITS, COMPACT_INDEXES};
use epicepoch_wire::{Timestamp, TimestampRange};

use super::status::{self, Status};
use crate::front::routes::query::{Ask, Format};
use crate::worker::sequencer::Sequencer;

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
fn cluster_id(published: &Published) -> Result<u64, Status> {
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
fn check_format(published: &Published) -> Result<(), Status> {
    if published.is_compact() { Ok(()) } else { Err(status::WIDE) }
}

/// Appends the members that have an address for clients, and the leader if it is known.
///
/// # Errors
/// When this node has not joined its cluster, or the cluster gives wide timestamps.
pub(super) fn put_members(
    published: &Published,
    is_encrypted: bool,
    out: &mut Vec<u8>,
) -> Result<(), Status> {
    let cluster_id = cluster_id(published)?;
    check_format(published)?;
    let members = published.members.values().filter(|member| !member.client_addr.is_empty());
    let urls: Vec<_> = members.map(|member| Urls::of(member, is_encrypted)).collect();
    let leader = urls.iter().find(|urls| published.leader.is_some_and(|it| it.0 == urls.id));
    let leader = leader.map(Urls::member);
    pd::put_members(out, cluster_id, urls.iter().map(Urls::member), leader.as_ref());
    Ok(())
}

/// Appends the mode of the cluster.
///
/// # Errors
/// When this node has not joined its cluster, or the cluster gives wide timestamps.
pub(super) fn put_info(published: &Published, out: &mut Vec<u8>) -> Result<(), Status> {
    let cluster_id = cluster_id(published)?;
    check_format(published)?;
    pd::put_cluster_info(out, cluster_id);
    Ok(())
}

/// Checks a request for timestamps, and returns what it asks for.
///
/// # Errors
/// When the request can get no answer.
pub(super) fn ask(message: &[u8], sequencer: &Sequencer) -> Result<Ask, Status> {
    let request = TsoRequest::decode(message)?;
    let (shared, view) = (&sequencer.shared, sequencer.view());
    let own = cluster_id(&view.published)?;
    if request.cluster_id != own {
        return Err(Status::mismatch(own, request.cluster_id));
    }
    if !request.is_global {
        const TEXT: &str = "dc_location must be empty or global: there is one order for all places";
        return Err(Status::fixed(Code::InvalidArgument, TEXT, ErrorCode::BadRequest));
    }
    // A follower learns of a new MAX_N later than the leader, so only the leader enforces it.
    let most = if view.is_leading() { shared.max_n() } else { u64::MAX }.min(COMPACT_INDEXES);
    let count = u64::from(request.count);
    if count == 0 || count > most {
        return Err(Status::bad_count(count, most));
    }
    // The length of such an answer does not depend on the count, like that of a range.
    Ok(Ask { count, format: Format::U64Range, guarantee: None })
}

/// The answer to a request for `count` timestamps, which has got those from `first` on.
///
/// # Errors
/// When this node has not joined its cluster, or the cluster gives wide timestamps. The latter is
/// checked only now, after a quorum has confirmed that this node leads: before that, a node may not
/// know yet that the cluster is compact.
pub(super) fn given(
    sequencer: &Sequencer,
    first: Timestamp,
    count: u64,
) -> Result<TsoResponse, Status> {
    let cluster_id = cluster_id(&sequencer.view().published)?;
    let range = TimestampRange::new(first, count);
    let range = range.filter(|range| sequencer.shared.gives_compact(range));
    let last = range.and_then(|range| range.last().to_compact()).ok_or(status::WIDE)?;
    let (physical, logical) = (last >> COMPACT_INDEX_BITS, last % COMPACT_INDEXES);
    Ok(TsoResponse { cluster_id, count: count as u32, physical, logical })
}
