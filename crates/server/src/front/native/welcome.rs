//! Decides which clients of the native protocol may connect, and makes their welcome: the node, the
//! leader, the members, the limits.

use epicepoch_core::publication::Published;
use epicepoch_wire::COMPACT_INDEXES;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::{
    COUNT_MAX, ClientHello, ClientHelloError, FEATURES_OF_NODE, VERSION, Welcome,
};

/// Why a connection is closed. Clients decide by the code; the text is for people.
pub(super) type CloseReason = (ErrorCode, &'static str);

/// Whether a client with this hello may connect.
pub(super) fn check(
    hello: &ClientHello,
    published: &Published,
    cluster_name: &str,
) -> Result<(), CloseReason> {
    if !hello.cluster_name.is_empty() && hello.cluster_name != cluster_name {
        return Err((ErrorCode::WrongCluster, "this node is of a cluster of another name"));
    }
    let Some((cluster, history)) = hello.cluster else { return Ok(()) };
    if published.cluster.0 == 0 {
        // This node has not joined a cluster yet, so it cannot promise to be in the cluster that
        // the client expects.
        return Err((ErrorCode::NotReady, "this node has not joined its cluster yet"));
    }
    if published.cluster != cluster {
        return Err((ErrorCode::WrongCluster, "this node belongs to another cluster"));
    }
    if published.history != history {
        return Err((ErrorCode::WrongCluster, "this cluster was restored and has another history"));
    }
    Ok(())
}

/// The reason to close the connection because of this error.
pub(super) fn protocol_error(error: &ClientHelloError) -> CloseReason {
    match error {
        ClientHelloError::Version { .. } => {
            (ErrorCode::UnsupportedVersion, "this node speaks version 1 only")
        }
        ClientHelloError::Field(_) => (
            ErrorCode::Unsupported,
            "the hello insists on a field, or its value, that this node does not know",
        ),
        // The error type is non-exhaustive.
        _ => (ErrorCode::BadRequest, "not a frame that a client may send"),
    }
}

/// The welcome of an accepted client, which offers `features`.
pub(super) fn welcome(
    features: u64,
    published: &Published,
    cluster_name: &str,
    in_flight_max: usize,
    idle_ms: u32,
) -> Welcome {
    let is_joined = published.cluster.0 != 0;
    Welcome {
        version: VERSION,
        features: features & FEATURES_OF_NODE,
        cluster_name: cluster_name.to_owned(),
        cluster: is_joined.then_some((published.cluster, published.history)),
        node: published.identity.node,
        leader: leader(published),
        in_flight_max: in_flight_max as u32,
        idle_ms,
        count_max: if published.is_compact() { COMPACT_INDEXES } else { COUNT_MAX },
        members: published.members.values().filter_map(addr).collect(),
    }
}

/// The leader with its client address. It may be this node.
pub(super) fn leader(published: &Published) -> Option<MemberAddr> {
    published.leader.and_then(|node| published.members.get(&node)).and_then(addr)
}

/// The client address of a member; `None` if it has none.
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
