//! The deterministic simulator: whole clusters of the real core on one event queue in one thread,
//! under every fault at once, every step checked, replayable from a seed. It never reads a clock,
//! a file or an environment, and draws no chance but from the seed. The school is that of
//! FoundationDB's simulation and TigerBeetle's VOPR.
//!
//! Under test is `epicepoch-core` as it is: replica, Promise, publication, rounds, allocator and
//! clock firewall. What the server does around it is done here by the same order of steps, each an
//! event of its own. In part of the runs the members' disks hold the database of production. Not
//! under test: sockets, HTTP, threads.
//!
//! - [`run`]: one seed: [`run::Options`] in, [`run::Outcome`] out.
//! - [`script`]: the same with the faults of a byte string, for fuzzing.
//! - [`history`]: what was seen, and one checker per invariant; `quorums` has that of rounds.
//! - [`plant`]: bugs on purpose; the checkers must find them.
//! - [`summary`]: what was exercised.
//!
//! Inside: `world` (queue, links, the way of events), `event`, `queue`; `node`, `disk`, `database`,
//! `clock` (machines); `consensus`, `workers`, `stamper` (what runs on them); `clients`; `faults`,
//! `links`, `operators`, `restore`, `versions`,
//! `settings`.

mod clients;
mod clock;
mod consensus;
mod database;
mod disk;
mod event;
mod faults;
mod features;
pub mod history;
mod links;
mod node;
mod operators;
pub mod plant;
mod queue;
mod quorums;
mod restore;
pub mod run;
pub mod script;
mod settings;
mod stamper;
pub mod summary;
mod trace;
mod versions;
mod workers;
mod world;
