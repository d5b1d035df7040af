//! Settings that say where a node is, and where leaders should be.

use epicepoch_server::config;
use epicepoch_wire::standing::Zone;

use super::{Group, Kind, Setting};

pub(super) const ZONE: Setting = Setting {
    name: "ZONE",
    group: Group::Identity,
    value: "NAME",
    default: "none",
    help: "The place that this node shares with others: a data centre, an availability zone",
    kind: Kind::Text {
        allowed: "1 to 32 letters, digits, '.', '_' and '-'",
        set: |draft, text| {
            draft.config.placement.zone = Some(Zone::new(text)?);
            Some(())
        },
    },
};

pub(super) const LEADER_ZONES: Setting = Setting {
    name: "LEADER_ZONES",
    group: Group::Identity,
    value: "NAME,...",
    default: "none: all places are the same",
    help: "Zones that leaders should be in, the best first, the same on every node; a leader \
           elsewhere hands over when all has been calm for 25 ELECTION_TIMEOUT_MS",
    kind: Kind::Text {
        allowed: "up to 9 zones such as near-1,near-2, each once, of 1 to 32 letters, digits, '.', \
                  '_' and '-'",
        set: |draft, text| {
            draft.config.placement.leaders = config::zones(text)?;
            Some(())
        },
    },
};
