//! Locks, atomics and notifications for state that threads share, such as a worker's mailbox, the
//! queue of the storage thread and the admission limit. Normal builds use the types of `std` and
//! tokio. With the feature `loom`, the tests named `interleavings` run the same code on models of
//! these types, with every order of the threads' steps
//! (`docs/decisions/0012-loom-for-what-threads-share.md`).
//!
//! - `signal`: a flag between tasks of one thread; `ticker`: a timer with a short period.

#[cfg(all(test, feature = "loom"))]
mod model;
pub(crate) mod signal;
pub(crate) mod ticker;

#[cfg(all(test, feature = "loom"))]
pub(crate) use model::{
    AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Notify, Weakness, weaken,
};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
/// Wakes the one task that waits for a notification. If no task waits, the next wait ends at once.
/// Two notifications before a wait count as one.
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use tokio::sync::Notify;

pub(crate) use std::sync::PoisonError;
pub(crate) use std::sync::atomic::Ordering;
