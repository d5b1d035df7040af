//! `/members`: the members and the leader of the cluster as JSON. All clients read the first fields
//! of the document. The later fields are for people.

use bytes::Bytes;
use epicepoch_core::publication::{Published, Role};
use epicepoch_core::quorum::Voters;
use epicepoch_wire::bootstrap::Member;
use serde::Serialize;

use crate::build::Build;

#[derive(Serialize)]
struct Page<'a> {
    leader: Option<Entry<'a>>,
    members: Vec<MemberEntry<'a>>,
    #[serde(rename = "nodeID")]
    node: u64,
    role: &'static str,
    term: u64,
    cluster: String,
    history: String,
    #[serde(rename = "clusterName")]
    cluster_name: &'a str,
    version: &'a str,
    commit: &'a str,
    profile: &'a str,
    target: &'a str,
}

/// A member. `addr` is the address for clients.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(rename = "nodeID")]
    node: u64,
    addr: &'a str,
}

#[derive(Serialize)]
struct MemberEntry<'a> {
    #[serde(flatten)]
    entry: Entry<'a>,
    #[serde(rename = "raftAddr")]
    raft_addr: &'a str,
    voter: bool,
}

impl<'a> Entry<'a> {
    fn of(member: &'a Member) -> Self {
        Self { node: member.node.0, addr: &member.client_addr }
    }
}

impl<'a> MemberEntry<'a> {
    fn of(member: &'a Member, voters: &Voters) -> Self {
        let voter = voters.position(member.node, member.store).is_some();
        Self { entry: Entry::of(member), raft_addr: &member.raft_addr, voter }
    }
}

/// The role of this node in its term.
pub(super) const fn role(published: &Published) -> &'static str {
    match published.role {
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
    }
}

/// The JSON document. `build` is the build of the node that answers.
pub(crate) fn document(published: &Published, cluster_name: &str, build: Build) -> Bytes {
    let voters = &published.voters;
    let page = Page {
        leader: published.leader.and_then(|node| published.members.get(&node)).map(Entry::of),
        members: published.members.values().map(|member| MemberEntry::of(member, voters)).collect(),
        node: published.identity.node.0,
        role: role(published),
        term: published.term.0,
        cluster: published.cluster.to_string(),
        history: format!("{:016x}", published.history.0),
        cluster_name,
        version: build.version,
        commit: build.commit,
        profile: build.profile,
        target: build.target,
    };
    let mut text = serde_json::to_vec(&page).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use epicepoch_core::publication::Identity;
    use epicepoch_wire::{BootId, NodeId, StoreId};

    use super::*;

    const BUILD: Build =
        Build { version: "1.2.3", commit: "c0ffee", profile: "release", target: "t" };

    #[test]
    fn the_document_begins_as_the_contract_says() {
        let identity = Identity { node: NodeId(2), store: StoreId(2), boot: BootId(1) };
        let member = |node: u64| Member {
            node: NodeId(node),
            store: StoreId(u128::from(node)),
            raft_addr: format!("r{node}:1"),
            client_addr: format!("c{node}:2"),
        };
        let members: BTreeMap<_, _> = (1..=2).map(|node| (NodeId(node), member(node))).collect();
        let mut published = Published::nothing(identity);
        let text = |published: &Published| {
            String::from_utf8(document(published, "test", BUILD).to_vec()).unwrap()
        };
        assert!(text(&published).starts_with(r#"{"leader":null,"members":[],"nodeID":2,"#));
        published.members = Arc::new(members);
        published.leader = Some(NodeId(1));
        published.voters = Voters::new(&[NodeId(1)], &[], |_| StoreId(1));
        let text = text(&published);
        let expected = concat!(
            r#"{"leader":{"nodeID":1,"addr":"c1:2"},"members":["#,
            r#"{"nodeID":1,"addr":"c1:2","raftAddr":"r1:1","voter":true},"#,
            r#"{"nodeID":2,"addr":"c2:2","raftAddr":"r2:1","voter":false}],"nodeID":2,"#,
        );
        assert!(text.starts_with(expected), "{text}");
        let build = r#""version":"1.2.3","commit":"c0ffee","profile":"release","target":"t"}"#;
        assert!(text.trim_end().ends_with(build), "{text}");
    }
}
