//! Reads the data directory of a stopped node as its replica would apply it. When a replica applies
//! a committed change of members, it may still refuse it. Only the configuration shows whether it
//! did.

use std::sync::Arc;

use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{BootId, LogIndex, NodeId, StoreId};

use super::{Fatal, Replica, ReplicaConfig, RestoreError};
use crate::durable::Restored;
use crate::publication::{Identity, Published, Shared};
use crate::state::{FORMATS, State};
use crate::translate;

/// The state up to the known commit index, and the index of its last entry. A member whose removal
/// is proposed counts as removed: other nodes may have committed the removal.
///
/// # Errors
/// When this version cannot read a part of the directory, or no node could start from it.
pub(crate) fn committed(restored: &Restored) -> Result<(State, LogIndex), RestoreError> {
    // No real node has this identity. The replica here neither leads nor votes nor sends.
    let identity = Identity { node: NodeId(u64::MAX), store: StoreId(0), boot: BootId(0) };
    let shared = Arc::new(Shared::new(restored.hard_state.term, Published::nothing(identity)));
    let config = ReplicaConfig {
        identity,
        seed: 0,
        election_ticks: 20,
        heartbeat_ticks: 4,
        tick_ns: 10_000_000,
        reservation_ns: 1_000_000_000,
        deadline_limit: 1,
        format_max: FORMATS.newest,
    };
    let replica = Replica::new(config, restored, shared)?;
    if let Err(Fatal::Unreadable { error, .. }) = replica.check_gate() {
        return Err(error.into());
    }
    // If a change were skipped here, the backup would lack it.
    assert!(
        replica.applied.0 >= restored.hard_state.commit,
        "S5: what a directory has committed is not applied"
    );
    let configuration = translate::configuration(&replica.raw.raft.prs().conf().to_conf_state());
    let mut state = replica.state;
    if !configuration.voters_outgoing.is_empty() {
        let _changed = state.reconcile(&left(configuration));
    }
    Ok((state, replica.applied.0))
}

/// The configuration that follows when a joint one is left.
fn left(joint: Configuration) -> Configuration {
    let Configuration { voters, mut learners, learners_next, .. } = joint;
    learners.extend(learners_next);
    Configuration { voters, learners, ..Configuration::default() }
}
