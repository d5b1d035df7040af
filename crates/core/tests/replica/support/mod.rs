//! Two harnesses without threads, clocks or sockets: one replica whose messages the test writes
//! ([`bench`]), and a few replicas that talk to each other ([`cluster`]).

pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod disk;

pub(crate) use bench::{
    ELECTION_TICKS, EPOCH_INTERVAL_NS, MS, RESERVATION_NS, START_NS, TICK_NS, member, store,
};
pub(crate) use cluster::Cluster;
