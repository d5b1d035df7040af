//! The messages of a bootstrap, and the genesis that binds the first members to their data
//! directories. The member with the lowest id creates the genesis, after every other first member
//! has said that it is empty. Every other node gets the state once from a running member. That
//! state must name the data directory of the node. The same holds for a node that is added later.

use crate::cursor::{DecodeError, Reader, Writer};
use crate::id::{ClusterId, HistoryId, NodeId, StoreId};
use crate::peer_hello::ADDR_LEN_MAX;
use crate::timestamp::Epoch;

/// A cluster has at most this many members, voters and learners together.
pub const MEMBERS_MAX: usize = 64;

/// The answer of an empty node to another node that asks it during a bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Empty {
    /// The answering node's data directory.
    pub store: StoreId,
    /// Its client address.
    pub client_addr: String,
    /// Whether the node takes part in a first bootstrap (`BOOTSTRAP=1`).
    pub bootstrapping: bool,
    /// The first members by the settings of this node, ordered by node id: node id and Raft
    /// address.
    pub peers: Vec<(NodeId, String)>,
    /// The backup or floor from which this node begins, if its settings name one.
    pub claim: Option<Claim>,
}

/// The backup or floor above which a first member begins. All first members must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The backup, if there is one: the time when it was taken, in Unix nanoseconds, and the
    /// checksum of its file.
    pub backup: Option<(u64, u32)>,
    /// The floor of `RESTORE_FLOOR`; 0 for none.
    pub floor: Epoch,
    /// The wall clock of this node when it answered, in Unix nanoseconds.
    pub wall_ns: u64,
}

impl Claim {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(self.backup.is_some());
        if let Some((taken_ns, checksum)) = self.backup {
            out.put_u64(taken_ns);
            out.put_u32(checksum);
        }
        out.put_u64(self.floor.0);
        out.put_u64(self.wall_ns);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let has_backup = reader.bool("has backup")?;
        let backup =
            if has_backup { Some((reader.u64("taken")?, reader.u32("checksum")?)) } else { None };
        Ok(Self { backup, floor: Epoch(reader.u64("floor")?), wall_ns: reader.u64("wall")? })
    }
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
        out.put_bool(self.claim.is_some());
        if let Some(claim) = &self.claim {
            claim.encode(out);
        }
    }

    /// Decodes the payload of an `Empty` message.
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
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
        let claim = if reader.bool("has claim")? { Some(Claim::read(&mut reader)?) } else { None };
        reader.finish()?;
        Ok(Self { store, client_addr, bootstrapping, peers, claim })
    }
}

/// A member as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its node id.
    pub node: NodeId,
    /// The data directory to which the node id is bound for ever.
    pub store: StoreId,
    /// Its address for peers.
    pub raft_addr: String,
    /// Its address for clients.
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

    /// Reads the fields of a member.
    ///
    /// # Errors
    /// The bytes are not a valid member.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            node: NodeId(reader.u64("node")?),
            store: StoreId(reader.u128("store")?),
            raft_addr: reader.text("Raft address", ADDR_LEN_MAX)?,
            client_addr: reader.text("client address", ADDR_LEN_MAX)?,
        })
    }
}

/// The beginning of a cluster. All first members are voters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// Drawn at random by the founder.
    pub cluster: ClusterId,
    /// The history id, drawn by the founder at random. After a restore, it is above the id of the
    /// old history.
    pub history: HistoryId,
    /// The first members, ordered by node id.
    pub members: Vec<Member>,
    /// The cluster begins above this epoch. An earlier history may have given timestamps up to this
    /// epoch.
    pub floor: Epoch,
    /// Ids removed in an earlier history, which are never used again.
    pub removed: Vec<NodeId>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_empty_answer_round_trips(
            store: u128, addr in "[a-z.]{1,20}:[0-9]{1,5}", ids: [u64; 3],
            backup: Option<(u64, u32)>, times: Option<(u64, u64)>,
        ) {
            let peers = ids.map(|id| (NodeId(id), addr.clone())).to_vec();
            let client_addr = addr.clone();
            let claim = times.map(|(floor, wall_ns)| Claim { backup, floor: Epoch(floor), wall_ns });
            let empty =
                Empty { store: StoreId(store), client_addr, bootstrapping: true, peers, claim };
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
