//! How first members find each other empty, and the genesis that binds them to their data
//! directories. Only the member with the lowest id draws a genesis, and only after every other
//! first member has said that it is empty. Everybody else, a member that is added later included,
//! takes the state of a running member once, if it names their own data directory.

use crate::cursor::{DecodeError, Reader, Writer};
use crate::hello::ADDR_LEN_MAX;
use crate::id::{ClusterId, HistoryId, NodeId, StoreId};

/// Most members a cluster may have, first members and learners included.
pub const MEMBERS_MAX: usize = 64;

/// An empty node's answer to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Empty {
    /// The answering node's data directory.
    pub store: StoreId,
    /// Its client address.
    pub client_addr: String,
    /// Whether it was told to take part in a first bootstrap (`BOOTSTRAP=1`).
    pub bootstrapping: bool,
    /// Its list of first members, ordered by node id: node id and Raft address.
    pub peers: Vec<(NodeId, String)>,
}

impl Empty {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u128(self.store.0);
        out.put_bytes(self.client_addr.as_bytes());
        out.put_bool(self.bootstrapping);
        out.put_count(self.peers.len());
        for (node, addr) in &self.peers {
            out.put_u64(node.0);
            out.put_bytes(addr.as_bytes());
        }
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// When it is not one.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let store = StoreId(reader.u128("store")?);
        let client_addr = reader.text("client address", ADDR_LEN_MAX)?;
        let bootstrapping = reader.bool("bootstrapping")?;
        let mut peers = Vec::new();
        for _ in 0..reader.count("peers", MEMBERS_MAX)? {
            let node = NodeId(reader.u64("node")?);
            peers.push((node, reader.text("Raft address", ADDR_LEN_MAX)?));
        }
        reader.finish()?;
        Ok(Self { store, client_addr, bootstrapping, peers })
    }
}

/// A member as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its node id.
    pub node: NodeId,
    /// The data directory that the id is bound to for ever.
    pub store: StoreId,
    /// Where peers reach it.
    pub raft_addr: String,
    /// Where clients reach it.
    pub client_addr: String,
}

impl Member {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.node.0);
        out.put_u128(self.store.0);
        out.put_bytes(self.raft_addr.as_bytes());
        out.put_bytes(self.client_addr.as_bytes());
    }

    /// Reads the fields.
    ///
    /// # Errors
    /// When they are not a member's.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            node: NodeId(reader.u64("node")?),
            store: StoreId(reader.u128("store")?),
            raft_addr: reader.text("Raft address", ADDR_LEN_MAX)?,
            client_addr: reader.text("client address", ADDR_LEN_MAX)?,
        })
    }
}

/// The beginning of a cluster: who its first members are, all of them voters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Drawn at random by the founder.
    pub cluster: ClusterId,
    /// Drawn at random by the founder.
    pub history: HistoryId,
    /// The first members, ordered by node id.
    pub members: Vec<Member>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_an_empty_node_says_round_trips(store: u128, addr in "[a-z.]{1,20}:[0-9]{1,5}", ids: [u64; 3]) {
            let peers = ids.map(|id| (NodeId(id), addr.clone())).to_vec();
            let client_addr = addr.clone();
            let empty =
                Empty { store: StoreId(store), client_addr, bootstrapping: true, peers };
            let mut bytes = Vec::new();
            empty.encode(&mut bytes);
            prop_assert_eq!(Empty::decode(&bytes), Ok(empty));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = Empty::decode(&bytes);
        }
    }
}
