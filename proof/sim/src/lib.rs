//! The deterministic simulator. It runs whole clusters of the real core on one event queue in one
//! thread, under every fault at once. Every step is checked, and a seed replays a run. The
//! simulator reads no clock, file or environment, and draws all chance from the seed. It follows
//! FoundationDB's simulation and TigerBeetle's VOPR.
//!
//! Under test is `epicepoch-core` as it ships: replica, Promise, publication, rounds, allocator and
//! clock firewall; and the session of `epicepoch-client`, which some clients run. Around the core the
//! simulator does what the server does, in the same order, each step as an event. In some runs the
//! members' disks hold the production database. Not under test: sockets, HTTP, threads.
//!
//! - [`run`]: one seed: [`run::Options`] in, [`run::Outcome`] out.
//! - [`script`]: a run whose faults are a byte string, for fuzzing.
//! - [`history`]: everything observed, and one checker per invariant.
//! - `monitor`: the state of the specification beside a run, and each rule of it.
//! - [`plant`]: deliberate bugs that the checkers must find.
//! - [`intervals`]: interval mode, in a simulator of its own.
//! - [`modes`]: the changes between quorum mode and interval mode, in a simulator of their own.
//! - [`summary`]: what a run exercised.
//!
//! Private modules, from the bottom up: `parameters`, `plane`, `node_set`, `event`, `queue`,
//! `callers`; `clock`, `disk`, `database`, `stamper`, `version` and `node` (a machine and its
//! process); `world` (all nodes, links and clients, and in its folder what happens to them);
//! `trace` (a run in words).

mod callers;
mod clock;
mod database;
mod disk;
mod event;
pub mod history;
pub mod intervals;
pub mod modes;
mod monitor;
mod network_conditions;
mod node;
mod node_set;
mod parameters;
mod plane;
pub mod plant;
mod queue;
pub mod run;
pub mod script;
mod stamper;
pub mod summary;
mod trace;
mod version;
mod world;
