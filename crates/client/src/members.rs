//! The cluster as a node describes it at `/members`. Unknown fields are ignored, because later
//! versions may add some.

use epicepoch_wire::NodeId;
use serde::Deserialize;

/// The members of the cluster and their leader, as the node that answered knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Members {
    /// Cluster and history id, as in the `epicepoch-cluster` header; `None` before the cluster
    /// exists.
    pub cluster: Option<String>,
    /// The cluster's name; empty if the cluster has none.
    pub cluster_name: String,
    /// The leader; `None` during an election or without a quorum.
    pub leader: Option<Member>,
    /// Every member, at most [`Members::COUNT_MAX`].
    pub members: Vec<Member>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The member's node id, never 0.
    pub node_id: NodeId,
    /// The member's client address, `host:port`.
    pub addr: String,
}

/// The build of the program that a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Build {
    /// The version, such as `0.2.0`.
    pub version: String,
    /// The commit of the sources; `unknown` if the builder of the program did not know it.
    pub commit: String,
    /// The build profile, such as `release`.
    pub profile: String,
    /// The target of the compiler, such as `x86_64-unknown-linux-gnu`.
    pub target: String,
}

impl Build {
    /// Parses the JSON body of an answer at `/members`, which describes the node that answers.
    pub(crate) fn from_json(body: &[u8]) -> Result<Option<Self>, String> {
        let body: BuildBody = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let BuildBody { version, commit, profile, target } = body;
        let parts = version.zip(commit).zip(profile.zip(target));
        Ok(parts.map(|((version, commit), (profile, target))| Self {
            version,
            commit,
            profile,
            target,
        }))
    }
}

#[derive(Deserialize)]
struct BuildBody {
    version: Option<String>,
    commit: Option<String>,
    profile: Option<String>,
    target: Option<String>,
}

impl Members {
    /// An answer has at most this many members. A longer list is refused.
    pub const COUNT_MAX: usize = 64;

    /// Parses the JSON body of an answer at `/members`. `cluster` is the value of its header
    /// `epicepoch-cluster`.
    ///
    /// # Errors
    /// The body is malformed, or has more than [`Members::COUNT_MAX`] members. The error is a text
    /// for people.
    pub fn from_json(body: &[u8], cluster: Option<String>) -> Result<Self, String> {
        let body: Body = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if body.members.len() > Self::COUNT_MAX {
            return Err(format!("{} members", body.members.len()));
        }
        let leader = body.leader.and_then(MemberBody::known);
        let members = body.members.into_iter().filter_map(MemberBody::known).collect();
        Ok(Self { cluster, cluster_name: body.cluster_name, leader, members })
    }

    /// Whether the node that answered has joined its cluster. Before, it names no cluster and no
    /// member.
    pub(crate) fn has_joined(&self) -> bool {
        !self.members.is_empty() || self.cluster.as_deref().is_some_and(is_cluster)
    }
}

#[derive(Deserialize)]
struct Body {
    leader: Option<MemberBody>,
    members: Vec<MemberBody>,
    #[serde(rename = "clusterName", default)]
    cluster_name: String,
}

#[derive(Deserialize)]
struct MemberBody {
    #[serde(rename = "nodeID", default)]
    node_id: u64,
    #[serde(default)]
    addr: String,
}

impl MemberBody {
    /// Returns the member. `None` for node 0, which means that no node leads, and for a member
    /// whose address is not known.
    fn known(self) -> Option<Member> {
        let named = self.node_id != 0 && is_address(&self.addr);
        named.then_some(Member { node_id: NodeId(self.node_id), addr: self.addr })
    }
}

/// Whether the value of the header `epicepoch-cluster` names a cluster. A node that has not joined
/// one yet sends zeros.
pub(crate) fn is_cluster(text: &str) -> bool {
    text.split('.').next().is_some_and(|id| id.contains(|c| c != '0'))
}

/// Whether a text is `host:port` and can be the value of a `Host` header.
pub(crate) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '[' | ']');
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    digits
        && port.parse::<u16>().is_ok_and(|port| port != 0)
        && (1..=ADDRESS_LEN_MAX).contains(&host.len())
        && host.chars().all(plain)
}

/// A host name has at most this many bytes (RFC 1035, section 2.3.4).
const ADDRESS_LEN_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_without_number_or_address_is_no_leader() {
        for leader in ["null", r#"{"nodeID":0,"addr":"a:1"}"#, r#"{"nodeID":1,"addr":""}"#] {
            let json = format!(r#"{{"leader":{leader},"members":[],"more":1}}"#);
            assert_eq!(Members::from_json(json.as_bytes(), None).map(|m| m.leader), Ok(None));
        }
        let json =
            br#"{"leader":{"nodeID":1,"addr":"a:1","x":2},"members":[{"nodeID":1,"addr":"a:1"}]}"#;
        let members = Members::from_json(json, None).expect("valid");
        assert_eq!(members.leader.as_ref(), members.members.first());
    }

    #[test]
    fn a_list_has_at_most_64_members() {
        for (count, is_valid) in [(Members::COUNT_MAX, true), (Members::COUNT_MAX + 1, false)] {
            let members = vec![r#"{"nodeID":1,"addr":"a:1"}"#; count].join(",");
            let json = format!(r#"{{"leader":null,"members":[{members}]}}"#);
            assert_eq!(Members::from_json(json.as_bytes(), None).is_ok(), is_valid, "{count}");
        }
    }

    #[test]
    fn text_that_could_break_a_header_is_no_address() {
        for good in ["a:1", "[::1]:80", "node-1.x:65535"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "a", ":1", "a:", "a:0", "a:65536", "a:1\r\nx:1", "a b:1", "u@a:1", "a:+1"] {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
