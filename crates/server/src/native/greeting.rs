//! Who may connect, and what they are told: the node, the leader, the members, the limits.

use epicepoch_core::publication::Published;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::hello::MemberAddr;
use epicepoch_wire::native::{COUNT_MAX, ClientHello, HelloError, VERSION, Welcome};

/// Why a client is sent away: the code decides, the text is for people.
pub(super) type Refusal = (ErrorCode, &'static str);

/// Whether a client that introduces itself so may stay.
pub(super) fn check(
    hello: &ClientHello,
    published: &Published,
    cluster_name: &str,
) -> Result<(), Refusal> {
    if !hello.cluster_name.is_empty() && hello.cluster_name != cluster_name {
        return Err((ErrorCode::WrongCluster, "this node is of a cluster of another name"));
    }
    let Some((cluster, history)) = hello.cluster else { return Ok(()) };
    if published.cluster.0 == 0 {
        // It cannot be promised that the cluster will be the one.
        return Err((ErrorCode::NotReady, "this node has not joined its cluster yet"));
    }
    if published.cluster != cluster {
        return Err((ErrorCode::WrongCluster, "this node is of another cluster"));
    }
    if published.history != history {
        return Err((ErrorCode::WrongCluster, "this cluster was restored and has another history"));
    }
    Ok(())
}

/// Why a first frame that is no acceptable hello is refused.
pub(super) fn refusal(error: &HelloError) -> ErrorCode {
    match error {
        HelloError::Version { .. } => ErrorCode::UnsupportedVersion,
        HelloError::Field(_) => ErrorCode::Unsupported,
        // What does not speak the protocol; the type may get more reasons.
        _ => ErrorCode::BadRequest,
    }
}

/// What a client is told that may stay.
pub(super) fn welcome(
    published: &Published,
    cluster_name: &str,
    in_flight_max: usize,
    idle_ms: u32,
) -> Welcome {
    let is_joined = published.cluster.0 != 0;
    Welcome {
        version: VERSION,
        features: 0,
        cluster_name: cluster_name.to_owned(),
        cluster: is_joined.then_some((published.cluster, published.history)),
        node: published.identity.node,
        leader: leader(published),
        in_flight_max: in_flight_max as u32,
        idle_ms,
        count_max: COUNT_MAX,
        members: published.members.values().filter_map(addr).collect(),
    }
}

/// Who leads, this node included, as clients reach it.
pub(super) fn leader(published: &Published) -> Option<MemberAddr> {
    published.leader.and_then(|node| published.members.get(&node)).and_then(addr)
}

/// A member without a client address leads nobody anywhere.
fn addr(member: &Member) -> Option<MemberAddr> {
    let addr = member.client_addr.clone();
    (!addr.is_empty()).then_some(MemberAddr { node: member.node, addr })
}

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::Identity;
    use epicepoch_wire::{BootId, ClusterId, HistoryId, NodeId, StoreId};

    use super::*;

    fn expecting(name: &str, cluster: Option<(u128, u64)>) -> ClientHello {
        ClientHello {
            cluster_name: name.to_owned(),
            cluster: cluster.map(|(cluster, history)| (ClusterId(cluster), HistoryId(history))),
            ..ClientHello::default()
        }
    }

    #[test]
    fn a_client_of_another_cluster_name_cluster_or_history_is_sent_away() {
        let identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
        let mut published = Published::nothing(identity);
        let code = |published: &Published, hello: &ClientHello| {
            check(hello, published, "mine").err().map(|(code, _)| code)
        };
        assert_eq!(code(&published, &expecting("", None)), None);
        let not_ready = Some(ErrorCode::NotReady);
        assert_eq!(code(&published, &expecting("mine", Some((7, 1)))), not_ready);
        published.cluster = ClusterId(7);
        published.history = HistoryId(1);
        assert_eq!(code(&published, &expecting("mine", Some((7, 1)))), None);
        let wrong = Some(ErrorCode::WrongCluster);
        assert_eq!(code(&published, &expecting("yours", Some((7, 1)))), wrong);
        assert_eq!(code(&published, &expecting("mine", Some((8, 1)))), wrong);
        assert_eq!(code(&published, &expecting("mine", Some((7, 2)))), wrong);
    }
}
