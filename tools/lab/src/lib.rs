//! `epicepoch lab`: what distance costs, measured before it is paid for. It runs real nodes on this
//! machine, puts delayed links between them and their clients, and measures what a timestamp costs
//! from each region, wherever the leader is, and what the loss of a region costs.
//!
//! The idea is F. Pachot's, "Simulate network latency in a `YugabyteDB` cluster, on a Docker lab"
//! (2023): real processes, delay per direction, verified before anything is measured.
//!
//! - [`topology`]: regions, links, nodes and clients; [`file`](mod@file): the TOML file, refused by
//!   name; [`builtin`]: the topologies that the binary has.
//! - [`expected`]: what a topology should cost; [`advice`]: what follows from it. Both are pure.
//! - [`plan`]: the steps and how long they take.
//! - [`outcome`]: what was measured, and whether it is as expected.
//! - [`run`]: runs it.
//! - [`text`], [`report`], [`picture`], [`page`]: the outcome as a table, as JSON, as SVG, as HTML.
//!
//! It never contacts another machine.

pub mod advice;
pub mod builtin;
pub mod expected;
pub mod file;
pub mod outcome;
pub mod page;
pub mod picture;
pub mod plan;
pub mod report;
pub mod run;
pub mod text;
pub mod topology;

pub use outcome::Outcome;
pub use plan::{LinkKind, Plan, Step};
pub use run::{Entry, LabError, Running, Setup};
pub use topology::Topology;
