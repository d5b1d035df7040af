//! Whether a peer is who it says: checks of a hello, pure. A hello that passes binds the whole
//! connection to one node id and one data directory; nothing on it is believed before.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use epicepoch_core::positions::SetBack;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::hello::{Hello, LinkKind, Refusal, RefusalCode};
use epicepoch_wire::{ClusterId, HistoryId, NodeId};

use crate::shared::NodeShared;

/// Checks a hello that a member of a cluster received on a Raft or confirm link.
pub(crate) fn check(
    shared: &NodeShared,
    removed: &BTreeSet<NodeId>,
    cluster: ClusterId,
    from: NodeId,
    hello: &Hello,
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
        Some(member) => check_set_back(shared, member, hello),
        // A member that this node has not heard of yet may lead it; it has no vote here.
        None => Ok(()),
    }
}

/// Checks that both belong to one history of their cluster (S13). Of two, the one with the lower
/// number has ended; nobody who belongs to the other counts a vote, a yes or a message of it.
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

/// Checks that a member's data directory has not been set back.
pub(crate) fn check_set_back(
    shared: &NodeShared,
    member: &Member,
    hello: &Hello,
) -> Result<(), Refusal> {
    let checked = shared.core.positions().check(member.node, hello.boot, hello.position);
    checked.map_err(|set_back| {
        let text = set_back_text(shared.identity.node, member, &set_back);
        Refusal::new(RefusalCode::SetBack, text)
    })
}

/// What a data directory that was set back to an older state means, and what to do about it.
fn set_back_text(me: NodeId, member: &Member, set_back: &SetBack) -> String {
    let SetBack { named, remembered } = set_back;
    format!(
        "the data directory of node {} was set back to an older state: it has made {named} durable \
         writes, and node {me} knows of {remembered}; what it promised since is forgotten; put the \
         newest directory back, or remove this member and add a new one with an empty directory",
        member.node
    )
}

/// Checks what a hello says whatever state the receiver is in.
pub(crate) fn check_name(shared: &NodeShared, from: NodeId, hello: &Hello) -> Result<(), Refusal> {
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
    // An empty directory that joins knows an address, and not whose it is.
    let is_anybody = hello.link == LinkKind::Bootstrap && hello.to == NodeId(0);
    if hello.to != me && !is_anybody || from == NodeId(0) {
        let text = format!("node {me} is here, not node {}: correct PEERS", hello.to);
        return Err(Refusal::new(RefusalCode::WrongNode, text));
    }
    if from == me {
        let text = format!("node id {me} is this node's own: give every node its own NODE_ID");
        return Err(Refusal::new(RefusalCode::WrongStore, text));
    }
    Ok(())
}

/// The format that a peer must read: that of the replicated state and of the log here, or one that they
/// are about to be raised to (S15). An empty node gets what it can read from whoever can write it.
fn needed_of(shared: &NodeShared, hello: &Hello) -> u32 {
    let published = shared.core.published();
    if published.cluster == ClusterId(0) {
        let ours = shared.formats();
        return hello.formats.oldest.clamp(ours.oldest, ours.newest);
    }
    published.format
}

/// Checks that a peer reads what it will be sent: the replicated state, and the entries of the log.
fn check_formats(me: NodeId, from: NodeId, hello: &Hello, needed: u32) -> Result<(), Refusal> {
    let theirs = hello.formats;
    let version = &hello.version;
    let refused = |text: String| Err(Refusal::new(RefusalCode::Format, text));
    if theirs.newest < needed {
        return refused(format!(
            "node {from} is too old: it runs version {version:?} and reads formats up to {}, and the \
             state that node {me} holds is of format {needed}; update node {from}, or take its \
             FORMAT_MAX away",
            theirs.newest
        ));
    }
    if theirs.oldest > needed {
        return refused(format!(
            "node {from} is too new: it runs version {version:?} and reads formats from {} on, and the \
             state that node {me} holds is of format {needed}; run a version between on node {from}, \
             and update the others first",
            theirs.oldest
        ));
    }
    Ok(())
}

/// Checks the welcome with which a peer answered a hello.
pub(crate) fn check_welcome(
    shared: &NodeShared,
    cluster: ClusterId,
    peer: &Member,
    answered: (ClusterId, NodeId),
    welcome: &Hello,
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
            "node {node} at {} has another data directory than the member of that id: its disk \
             was emptied or replaced",
            peer.raft_addr
        ));
    }
    check_position(shared, peer, welcome)
}

/// Checks that a peer's data directory has not been set back, whoever said hello first.
pub(crate) fn check_position(
    shared: &NodeShared,
    peer: &Member,
    welcome: &Hello,
) -> Result<(), String> {
    let checked = shared.core.positions().check(peer.node, welcome.boot, welcome.position);
    checked.map_err(|set_back| set_back_text(shared.identity.node, peer, &set_back))
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

/// Settings of a peer that differ from this node's and should not; for a warning.
pub(crate) fn differing_settings(shared: &NodeShared, hello: &Hello) -> Vec<String> {
    let ours = shared.hello(LinkKind::Raft, hello.to).settings;
    let theirs = &hello.settings;
    let replicated = [
        ("EPOCH_INTERVAL_MS", ours.epoch_interval_ms, theirs.epoch_interval_ms),
        ("RESERVATION_MS", ours.reservation_ms, theirs.reservation_ms),
        ("CLOCK_OFFSET_MAX_MS", ours.clock_offset_max_ms, theirs.clock_offset_max_ms),
        ("MAX_N", ours.max_n, theirs.max_n),
    ];
    // Where they are part of the replicated state, whoever differs has not applied it yet.
    let is_replicated = shared.core.published().settings.is_some();
    let replicated = replicated.iter().filter(|_| !is_replicated);
    let own = [("ELECTION_TIMEOUT_MS", ours.election_timeout_ms, theirs.election_timeout_ms)];
    let differing = replicated.chain(&own).filter(|(_, ours, theirs)| ours != theirs);
    differing.map(|(name, ours, theirs)| format!("{name} is {ours} here, {theirs} there")).collect()
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::hello::{Formats, SharedSettings};
    use epicepoch_wire::{BootId, StoreId, StorePosition};

    use super::*;

    const NEEDED: u32 = 2;

    fn checked(oldest: u32, newest: u32) -> Result<(), Refusal> {
        let hello = Hello {
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
        };
        check_formats(NodeId(1), NodeId(2), &hello, NEEDED)
    }

    #[test]
    fn a_node_that_is_too_old_or_too_new_is_refused_in_words() {
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
