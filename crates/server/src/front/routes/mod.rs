//! The answers of a node over HTTP of any version.
//!
//! - [`table`]: paths, methods, rights.
//! - `service`: one request: route, wait, answer.
//! - [`query`]: the parameters of a request for timestamps.
//! - `admin`: the commands of operators.
//! - `members`, `metrics_page`, `process_page`, `status`: documents.
//! - `page`: the page for operators in a browser, which draws `status`.
//! - `answer`, `body`, `date`: the parts of answers.

mod admin;
pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod date;
mod members;
mod metrics_page;
mod page;
mod process_page;
pub mod query;
pub(crate) mod service;
mod status;
pub mod table;
