//! An example of what the oracle is for: transactions with snapshot isolation over several stores
//! that know nothing of each other, by the protocol of Percolator (Peng and Dabek, OSDI 2010), a
//! bank that uses them, and a checker that reads what happened.
//!
//! - [`protocol`]: what a client says to a store, and what is kept in a row.
//! - [`columns`]: the rows of one store: data, lock and write, and what is atomic on a row.
//! - [`server`]: a store as a process.
//! - [`world`]: all that a transaction touches: stores, the oracle, time, its record.
//! - [`transaction`]: the protocol itself, and what is done about locks of the dead.
//! - [`network`]: the world of real processes.
//! - [`bank`]: the workload.
//! - [`history`]: what clients write down.
//! - [`checker`]: what must be true of it; it trusts no clock and no client's opinion.
//! - [`plant`]: mistakes to make on purpose, each of which the checker must find.
//! - [`cluster`], [`run`], [`summary`]: everything at once, with kills, and what came of it.

pub mod bank;
pub mod checker;
pub mod cluster;
pub mod columns;
mod hex;
pub mod history;
pub mod network;
pub mod plant;
pub mod protocol;
pub mod run;
pub mod server;
pub mod summary;
pub mod transaction;
pub mod world;
