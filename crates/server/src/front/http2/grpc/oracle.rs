//! What our own service asks and answers (`GRPC`).

use epicepoch_core::publication::Published;
use epicepoch_wire::grpc::oracle::{self, Member, TimestampRequest, TimestampResponse};
use epicepoch_wire::grpc::protobuf::ProtobufError;
use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::{ErrorCode, RANGE_COUNT_MAX, cluster_header};
use epicepoch_wire::{COMPACT_INDEXES, TimestampRange};

use super::call::Given;
use super::status::Status;
use crate::front::pipeline::refusal::advice;
use crate::front::routes::query::{Ask, Format};
use crate::shared::NodeShared;
use crate::worker::view::View;

/// Checks a request, and returns what it asks for.
///
/// # Errors
/// When the request can get no answer.
pub(super) fn ask(message: &[u8], view: &View) -> Result<Ask, Status> {
    let request = TimestampRequest::decode(message).map_err(|error| match error {
        // The only known field whose values are limited.
        ProtobufError::Value(3) => {
            const TEXT: &str = "guarantee must be GUARANTEE_QUORUM, GUARANTEE_LEASE, or left out";
            Status::fixed(Code::InvalidArgument, TEXT, ErrorCode::BadRequest)
        }
        error => error.into(),
    })?;
    let TimestampRequest { count, is_compact, guarantee, cluster } = request;
    if !cluster.is_empty() {
        check_joined(&view.published)?;
    }
    if !cluster.is_empty() && cluster.as_bytes() != view.cluster.as_bytes() {
        const TEXT: &str = "this node belongs to another cluster, or the cluster was restored: \
                            correct the addresses, and start the client again";
        return Err(Status::fixed(Code::FailedPrecondition, TEXT, ErrorCode::WrongCluster));
    }
    let is_limited = is_compact || view.published.is_compact();
    let most = if is_limited { COMPACT_INDEXES } else { RANGE_COUNT_MAX };
    if count > most {
        return Err(Status::bad_count(count, most));
    }
    let format = if is_compact { Format::U64Range } else { Format::Range };
    Ok(Ask { count, format, guarantee })
}

/// The answer to a request that has got the timestamps from `first` on.
///
/// # Errors
/// When the request asks for compact timestamps and the cluster gives none. That is checked only
/// now, after a quorum has confirmed that this node leads: before that, it may not know yet that the
/// cluster is compact. Requests for compact timestamps are not sent on to another node.
pub(super) fn given(
    shared: &NodeShared,
    ask: Ask,
    given: Given,
) -> Result<TimestampResponse, Status> {
    let Given { first, proved_by, forwarded_by } = given;
    let count = ask.count;
    let mut compact = None;
    if ask.format.is_compact() {
        let range = TimestampRange::new(first, count).filter(|range| shared.gives_compact(range));
        compact = Some(range.and_then(|range| range.compact_first()).ok_or_else(|| {
            let text = advice(ErrorCode::NotCompact).trim_end();
            Status::fixed(Code::FailedPrecondition, text, ErrorCode::NotCompact)
        })?);
    }
    Ok(TimestampResponse { first, count, compact, proved_by, forwarded_by })
}

/// Checks that this node knows its cluster. A node that starts or waits to join does not.
///
/// # Errors
/// When it does not. The client asks again.
fn check_joined(published: &Published) -> Result<(), Status> {
    const TEXT: &str = "this node has not joined its cluster yet; retry";
    if published.cluster.0 == 0 {
        return Err(Status::fixed(Code::Unavailable, TEXT, ErrorCode::NotReady));
    }
    Ok(())
}

/// Appends the members and the leader.
///
/// # Errors
/// When this node has not joined its cluster: clients keep the cluster's text with their data.
pub(super) fn put_members(published: &Published, out: &mut Vec<u8>) -> Result<(), Status> {
    check_joined(published)?;
    let cluster = cluster_header(published.cluster, published.history);
    let leader = published.leader.map(|leader| leader.0);
    let members = published.members.values().map(|member| Member {
        node: member.node.0,
        address: &member.client_addr,
        is_voter: published.voters.position(member.node, member.store).is_some(),
    });
    oracle::put_members(out, &cluster, leader, members);
    Ok(())
}
