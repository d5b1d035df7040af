//! gRPC's health checks, for one answer or for a stream of them. A service's health follows what it
//! can do: our own is served by the node that gives timestamps, so that balancers which ask for the
//! health send their calls there.

use epicepoch_wire::grpc::health::{self, Serving};
use epicepoch_wire::grpc::{oracle, pd};

use crate::front::pipeline::refusal::Leaving;
use crate::front::routes::table::Switches;
use crate::worker::sequencer::Sequencer;

/// What a health check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// The node, or a service that each node has.
    Node,
    /// A service that gives timestamps to whoever asks.
    Oracle,
    /// No service that this node has.
    Unknown,
}

impl Watched {
    /// What a name in a request means. An empty one is the node.
    pub(super) fn named(name: &str, switches: Switches) -> Self {
        match name {
            "" | health::SERVICE => Self::Node,
            // Clients of PD find the leader themselves, and keep connections to all members.
            pd::SERVICE if switches.pd => Self::Node,
            oracle::SERVICE | oracle::FIRST_SERVICE if switches.oracle => Self::Oracle,
            _ => Self::Unknown,
        }
    }

    /// The health now.
    pub(super) fn serving(self, sequencer: &Sequencer) -> Serving {
        let serves = match self {
            Self::Node => true,
            Self::Oracle => {
                let view = sequencer.view();
                view.is_serving() || sequencer.forwards() && view.other_leader.is_some()
            }
            Self::Unknown => return Serving::Unknown,
        };
        if serves && Leaving::of(sequencer) == Leaving::No {
            Serving::Serving
        } else {
            Serving::NotServing
        }
    }
}
