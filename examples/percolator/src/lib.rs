//! An example of using the oracle: transactions with snapshot isolation over independent stores, by
//! Percolator's protocol (Peng and Dabek, OSDI 2010). It includes a bank that uses these
//! transactions, and a checker of the result.
//!
//! - [`protocol`]: requests and replies of a store. [`columns`]: its rows. [`server`]: its process.
//! - [`transaction`]: the protocol, and how locks of dead clients are resolved.
//! - [`world`]: what a transaction uses: stores, oracle, time, record. [`network`]: the world of
//!   real processes.
//! - [`bank`]: the workload. [`history`]: the records of clients. [`checker`]: checks these
//!   records.
//! - [`plant`]: mistakes made on purpose, each of which the checker must find.
//! - [`process`], [`run`], [`summary`]: starting all processes, killing some, and the result.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "an example: what a name says needs no comment"
)]

pub mod bank;
pub mod checker;
pub mod columns;
mod hex;
pub mod history;
pub mod network;
pub mod plant;
pub mod process;
pub mod protocol;
pub mod run;
pub mod server;
pub mod summary;
pub mod transaction;
pub mod world;
