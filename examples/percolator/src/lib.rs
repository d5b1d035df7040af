//! An example of using the oracle: transactions with snapshot isolation over independent stores, by
//! Percolator's protocol (Peng and Dabek, OSDI 2010). It includes a bank that uses these
//! transactions, and a checker of the result.
//!
//! - [`protocol`]: requests and replies of a store. [`columns`]: its rows.
//! - [`transaction`]: the protocol, and how locks of dead clients are resolved. [`world`]: what it
//!   uses: stores, oracle, time, record.
//! - [`bank`]: the workload. [`history`]: the records of clients. [`checker`]: checks these
//!   records.
//! - [`plant`]: mistakes made on purpose, each of which the checker must find.
//! - [`run`], [`summary`]: clients that use a real oracle and are killed, and the result.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "an example: what a name says needs no comment"
)]

pub mod bank;
pub mod checker;
pub mod columns;
pub mod history;
pub mod plant;
pub mod protocol;
pub mod run;
pub mod summary;
pub mod transaction;
pub mod world;
