//! What the directory of a node that is stopped holds, applied as its replica would apply it: a change of
//! members that is committed may have been refused all the same, and only the configuration tells.

use std::sync::Arc;

use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{BootId, LogIndex, NodeId, StoreId};

use super::{Fatal, Replica, ReplicaConfig, RestoreError};
use crate::durable::Restored;
use crate::planted::safety_assert;
use crate::publication::{Identity, Published, Shared};
use crate::state::{FORMATS, State};
use crate::translate;

/// The state up to what is known to be committed, and the index of its last entry. Whoever is being
/// removed counts as removed: elsewhere that may be done.
///
/// # Errors
/// When something in it is of a version that this one does not read, or no node could start from it.
pub(crate) fn committed(restored: &Restored) -> Result<(State, LogIndex), RestoreError> {
    // Nobody's: it leads nothing, votes for nobody and sends nothing.
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
    // A change that was passed over would be in no backup.
    safety_assert!(
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

/// What a joint configuration becomes.
fn left(joint: Configuration) -> Configuration {
    let Configuration { voters, mut learners, learners_next, .. } = joint;
    learners.extend(learners_next);
    Configuration { voters, learners, ..Configuration::default() }
}
