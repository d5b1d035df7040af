//! Decides, never does.

pub mod durable;
