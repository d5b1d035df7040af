//! The peer handshake: the checks of a peer's hello and of the welcome that answers it. A hello
//! that passes binds the connection to one node id and one data directory. Before that, nothing on
//! the connection is trusted.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use epicepoch_core::positions::{PeerBoot, RolledBack};
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::frame::{FrameKind, VERSION};
use epicepoch_wire::peer_hello::{LinkKind, PeerHello, Refusal, RefusalCode};
use epicepoch_wire::{ClusterId, DecodeError, HistoryId, NodeId};

use crate::framed::{FrameError, FrameReader};
use crate::security::tls::peer_stream::PeerStream;
use crate::shared::NodeShared;

/// Checks the hello of a Raft or confirm link, on a node that belongs to a cluster.
pub(crate) fn check(
    shared: &NodeShared,
    removed: &BTreeSet<NodeId>,
    cluster: ClusterId,
    from: NodeId,
    hello: &PeerHello,
) -> Result<(), Refusal> {
    check_name(shared, from, hello)?;
    let published = shared.core.published();
    if published.cluster == ClusterId(0) {
        let text = format!("node {} has no cluster yet", shared.identity.node);
        return Err(Refusal::new(RefusalCode::NotBootstrapped, text));
    }
    if cluster != published.cluster {
        let text = format!(
            "node {} belongs to cluster {}, not {cluster}: one of the two has a wrong address in \
             PEERS",
            shared.identity.node, published.cluster
        );
        return Err(Refusal::new(RefusalCode::WrongCluster, text));
    }
    check_history(shared.identity.node, published.history, hello.history)?;
    if removed.contains(&from) {
        let text = format!("node id {from} was removed from the cluster and is never used again");
        return Err(Refusal::new(RefusalCode::Removed, text));
    }
    match published.members.get(&from) {
        Some(member) if member.store != hello.store => Err(wrong_store(member)),
        Some(member) => check_rolled_back(shared, member, hello),
        // An unknown peer may be a new leader that this node does not know as a member yet. Until
        // then, its votes do not count here.
        None => Ok(()),
    }
}

/// Checks that both nodes belong to the same history of their cluster (S13). If the histories
/// differ, the one with the lower number has ended. A node never counts a vote, a yes or a message
/// from another history.
fn check_history(me: NodeId, ours: HistoryId, theirs: HistoryId) -> Result<(), Refusal> {
    match theirs.0.cmp(&ours.0) {
        Ordering::Equal => Ok(()),
        Ordering::Less => {
            let text = format!(
                "the cluster was restored from a backup: history {:016x}, which this data directory \
                 holds, has ended, and node {me} is of {:016x}; do not start it again, and add a node \
                 with an empty directory in its place",
                theirs.0, ours.0
            );
            Err(Refusal::new(RefusalCode::EndedHistory, text))
        }
        Ordering::Greater => {
            let text = format!(
                "node {me} is of history {:016x}, which has ended if {:016x} was restored from a backup \
                 of it: then stop node {me} for good",
                ours.0, theirs.0
            );
            Err(Refusal::new(RefusalCode::WrongCluster, text))
        }
    }
}

/// Checks that the data directory of a member that sent a hello was not rolled back.
pub(crate) fn check_rolled_back(
    shared: &NodeShared,
    member: &Member,
    hello: &PeerHello,
) -> Result<(), Refusal> {
    check_boot(shared, member, hello).map_err(|rolled_back| {
        let text = rolled_back_text(shared.identity.node, member, &rolled_back);
        Refusal::new(RefusalCode::RolledBack, text)
    })
}

/// Makes the text that tells people that a data directory was rolled back.
fn rolled_back_text(me: NodeId, member: &Member, rolled_back: &RolledBack) -> String {
    let RolledBack { named, remembered } = rolled_back;
    format!(
        "the data directory of node {} was rolled back to an older state: it names {named} durable \
         writes, and node {me} knows of {remembered}; its later promises are lost; put the newest \
         directory back, or remove this member and add a new one with an empty directory",
        member.node
    )
}

/// Checks the cluster name, the formats and the node ids of a hello. It also works while this node
/// has no cluster.
pub(crate) fn check_name(
    shared: &NodeShared,
    from: NodeId,
    hello: &PeerHello,
) -> Result<(), Refusal> {
    let me = shared.identity.node;
    if hello.cluster_name != shared.config.cluster_name {
        let text = format!(
            "node {me} belongs to the cluster named {:?}, not {:?}: correct CLUSTER or the \
             address in PEERS",
            shared.config.cluster_name, hello.cluster_name
        );
        return Err(Refusal::new(RefusalCode::WrongClusterName, text));
    }
    check_formats(me, from, hello, needed_of(shared, hello))?;
    // A node that joins knows an address, but not which node has it.
    let is_any_node = hello.link == LinkKind::Bootstrap && hello.to == NodeId(0);
    if hello.to != me && !is_any_node || from == NodeId(0) {
        let text = format!("this is node {me}, not node {}: correct PEERS", hello.to);
        return Err(Refusal::new(RefusalCode::WrongNode, text));
    }
    if from == me {
        let text = format!("node id {me} is this node's own: give every node its own NODE_ID");
        return Err(Refusal::new(RefusalCode::WrongStore, text));
    }
    Ok(())
}

/// The format that a peer must read (S15): the format of the replicated state and log. If the
/// format is about to be raised, it is the next one. While this node has no cluster, any format
/// that both can read is enough.
fn needed_of(shared: &NodeShared, hello: &PeerHello) -> u32 {
    let published = shared.core.published();
    if published.cluster == ClusterId(0) {
        let ours = shared.formats();
        return hello.formats.oldest.clamp(ours.oldest, ours.newest);
    }
    published.format
}

/// Checks that a peer reads the format of the replicated state and the log.
fn check_formats(me: NodeId, from: NodeId, hello: &PeerHello, needed: u32) -> Result<(), Refusal> {
    let theirs = hello.formats;
    let version = &hello.version;
    let refused = |text: String| Err(Refusal::new(RefusalCode::Format, text));
    if theirs.newest < needed {
        return refused(format!(
            "node {from} is too old: it runs version {version:?} and reads formats up to {}, and the \
             state of node {me} has format {needed}; update node {from}, or remove its FORMAT_MAX",
            theirs.newest
        ));
    }
    if theirs.oldest > needed {
        return refused(format!(
            "node {from} is too new: it runs version {version:?} and reads formats from {} on, and the \
             state of node {me} has format {needed}; run a version in between on node {from}, and \
             update the others first",
            theirs.oldest
        ));
    }
    Ok(())
}

/// Checks the welcome that answers this node's hello.
pub(crate) fn check_welcome(
    shared: &NodeShared,
    cluster: ClusterId,
    peer: &Member,
    answered: (ClusterId, NodeId),
    welcome: &PeerHello,
) -> Result<(), String> {
    let (its_cluster, node) = answered;
    if node != peer.node {
        return Err(format!("node {node} answers at {}: correct PEERS", peer.raft_addr));
    }
    if its_cluster != cluster {
        return Err(format!("{} belongs to another cluster, {its_cluster}", peer.raft_addr));
    }
    check_formats(shared.identity.node, node, welcome, needed_of(shared, welcome))
        .map_err(|refusal| refusal.text)?;
    let ours = shared.core.published().history;
    check_history(shared.identity.node, ours, welcome.history).map_err(|refusal| refusal.text)?;
    if welcome.store != peer.store {
        return Err(format!(
            "node {node} at {} does not have the data directory of the member with that id: its disk \
             was emptied or replaced",
            peer.raft_addr
        ));
    }
    check_position(shared, peer, welcome)
}

/// Checks that the data directory of the node that sent a welcome was not rolled back.
pub(crate) fn check_position(
    shared: &NodeShared,
    peer: &Member,
    welcome: &PeerHello,
) -> Result<(), String> {
    check_boot(shared, peer, welcome)
        .map_err(|rolled_back| rolled_back_text(shared.identity.node, peer, &rolled_back))
}

fn check_boot(shared: &NodeShared, peer: &Member, hello: &PeerHello) -> Result<(), RolledBack> {
    let (boot, began) = (hello.boot, hello.position);
    shared.core.check_peer(PeerBoot { node: peer.node, boot, began })
}

/// The refusal of a node id that is bound to another data directory.
pub(crate) fn wrong_store(member: &Member) -> Refusal {
    let text = format!(
        "node id {} belongs to a member with another data directory, at {}: an emptied disk cannot \
         come back under its old id, and two nodes cannot share one; add a new member instead",
        member.node, member.raft_addr
    );
    Refusal::new(RefusalCode::WrongStore, text)
}

/// The settings that should have the same value on both nodes, but differ. The result is text for a
/// warning.
pub(crate) fn differing_settings(shared: &NodeShared, hello: &PeerHello) -> Vec<String> {
    let ours = shared.hello(LinkKind::Raft, hello.to).settings;
    let theirs = &hello.settings;
    let replicated = [
        ("EPOCH_INTERVAL_MS", ours.epoch_interval_ms, theirs.epoch_interval_ms),
        ("RESERVATION_MS", ours.reservation_ms, theirs.reservation_ms),
        ("CLOCK_OFFSET_MAX_MS", ours.clock_offset_max_ms, theirs.clock_offset_max_ms),
        ("MAX_N", ours.max_n, theirs.max_n),
    ];
    // Replicated settings are not compared. If they differ, the peer has only not applied the
    // newest ones yet.
    let is_replicated = shared.core.published().settings.is_some();
    let replicated = replicated.iter().filter(|_| !is_replicated);
    let own = [("ELECTION_TIMEOUT_MS", ours.election_timeout_ms, theirs.election_timeout_ms)];
    let differing = replicated.chain(&own).filter(|(_, ours, theirs)| ours != theirs);
    differing.map(|(name, ours, theirs)| format!("{name} is {ours} here, {theirs} there")).collect()
}

/// Why a connection did not begin with a hello.
pub(crate) enum NoHello {
    /// The first frame has another version of the protocol.
    Version(u8),
    /// The connection began with something other than a hello, or ended.
    Other,
}

/// Reads the hello with which a connection begins.
pub(crate) async fn read_hello(
    reader: &mut FrameReader<PeerStream>,
) -> Result<(ClusterId, NodeId, PeerHello), NoHello> {
    let (header, payload) = match reader.next().await {
        Ok(Some(frame)) => frame,
        Err(FrameError::Malformed(DecodeError::Version(version))) => {
            return Err(NoHello::Version(version));
        }
        Ok(None) | Err(_) => return Err(NoHello::Other),
    };
    if header.kind != FrameKind::PeerHello {
        return Err(NoHello::Other);
    }
    let hello = PeerHello::decode(payload).map_err(|_| NoHello::Other)?;
    Ok((header.cluster, header.from, hello))
}

/// The refusal of a peer with another protocol version. The refusal has one of the oldest codes, so
/// that an older peer knows the code and tries again.
pub(crate) fn other_version(me: NodeId, version: u8) -> Refusal {
    let text = format!(
        "node {me} speaks version {VERSION} of the peer protocol, and this peer version {version}: \
         update the older one of the two"
    );
    Refusal::new(RefusalCode::NotBootstrapped, text)
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::peer_hello::{Formats, SharedSettings};
    use epicepoch_wire::{BootId, StoreId, StorePosition};

    use super::*;

    const NEEDED: u32 = 2;

    fn checked(oldest: u32, newest: u32) -> Result<(), Refusal> {
        let hello = PeerHello {
            link: LinkKind::Raft,
            to: NodeId(1),
            store: StoreId(2),
            position: StorePosition(0),
            boot: BootId(1),
            history: HistoryId(1),
            cluster_name: "test".into(),
            raft_addr: "n2:1".into(),
            client_addr: "n2:2".into(),
            workers: 1,
            settings: SharedSettings::default(),
            formats: Formats { oldest, newest },
            version: "9.9.9".into(),
            reads_intervals: true,
        };
        check_formats(NodeId(1), NodeId(2), &hello, NEEDED)
    }

    #[test]
    fn a_node_that_is_too_old_or_too_new_is_refused_with_advice() {
        for (oldest, newest) in [(1, 2), (2, 2), (2, 7), (1, 7)] {
            assert_eq!(checked(oldest, newest), Ok(()), "{oldest} to {newest}");
        }
        for (oldest, newest, words) in [(1, 1, "update node 2"), (3, 4, "node 2 is too new")] {
            let refusal = checked(oldest, newest).expect_err(words);
            assert_eq!(refusal.code, RefusalCode::Format);
            assert!(refusal.text.contains(words) && refusal.text.contains("9.9.9"), "{refusal}");
        }
    }
}
