//! What the threads of a node share is made of these: an atomic, a lock, and a pointer that is
//! swapped. In every build they are those of `std` and `arc-swap`. With the feature `loom`, which
//! only the tests of `tests/interleavings` use and which is no build to run, they are modelled, so
//! that the types of this crate themselves are explored under every order of their steps, and not
//! copies of them. See `docs/decisions/0012-loom-for-what-threads-share.md`.

#[cfg(feature = "loom")]
mod model;

#[cfg(feature = "loom")]
pub use model::{AtomicU64, Mutex, SwapPointer, Weakness, weaken};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Mutex, atomic::AtomicU64};

pub(crate) use std::sync::PoisonError;
pub(crate) use std::sync::atomic::Ordering;

#[cfg(not(feature = "loom"))]
pub(crate) use real::SwapPointer;

#[cfg(not(feature = "loom"))]
mod real {
    use std::sync::Arc;

    use arc_swap::ArcSwap;

    /// A pointer to an immutable object that one thread replaces and all read. Nobody waits. What
    /// it rests on: whoever reads an object sees what its publisher did before it stored it, and
    /// nobody reads an older object after a newer one.
    #[derive(Debug)]
    pub(crate) struct SwapPointer<T>(ArcSwap<T>);

    impl<T> SwapPointer<T> {
        /// Points to `first`.
        pub(crate) fn new(first: T) -> Self {
            Self(ArcSwap::from_pointee(first))
        }

        /// Points to `next` from now on.
        pub(crate) fn store(&self, next: Arc<T>) {
            self.0.store(next);
        }

        /// What it points to.
        pub(crate) fn load(&self) -> Arc<T> {
            self.0.load_full()
        }
    }
}

#[cfg(all(feature = "loom", not(debug_assertions)))]
compile_error!("the feature `loom` replaces what threads share by models: it is for tests only");
