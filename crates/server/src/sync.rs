//! What other threads touch of a worker's mail, of the storage thread's queue and of the places for
//! requests is made of these. In every build they are those of `std` and tokio; the tests named
//! `interleavings`, with the feature `loom`, run the same code on models of them, under every
//! order of the threads' steps. See `docs/decisions/0012-loom-for-what-threads-share.md`.

#[cfg(all(test, feature = "loom"))]
mod model;

#[cfg(all(test, feature = "loom"))]
pub(crate) use model::{
    AtomicBool, AtomicUsize, Bell, Condvar, Mutex, MutexGuard, Weakness, weaken,
};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
/// Wakes the one task that waits for it; rung while nobody waits, it wakes the next one at once,
/// and being rung twice is being rung once.
#[cfg(not(all(test, feature = "loom")))]
pub(crate) use tokio::sync::Notify as Bell;

pub(crate) use std::sync::PoisonError;
pub(crate) use std::sync::atomic::Ordering;
