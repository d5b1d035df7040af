//! A whole cluster in memory: replicas, workers, disks, links and clocks, driven by one seed. No
//! thread, no clock, no socket; the same seed gives the same run.

pub(crate) mod bench;
pub(crate) mod disk;
pub(crate) mod drive;
pub(crate) mod history;
pub(crate) mod node;
pub(crate) mod plant;
pub(crate) mod world;

pub(crate) use node::{ELECTION_TICKS, EPOCH_INTERVAL_NS, RESERVATION_NS, TICK_NS, member};
pub(crate) use plant::Plant;
pub(crate) use world::{MS, Plane, START_NS, World};
