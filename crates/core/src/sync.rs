//! The types that the threads of a node share: an atomic, a lock, and a swappable pointer. Normal
//! builds use those of `std` and `arc-swap`. The feature `loom` replaces them with models. Only the
//! tests of `tests/interleavings` use that feature: loom then runs this crate's own types under
//! every order of their steps. See `docs/decisions/0012-loom-for-what-threads-share.md`.

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

    /// A pointer to an immutable object. One thread replaces the object, and all threads read it
    /// without waiting. A reader of an object sees everything that its publisher did before, and
    /// never an older object after a newer one.
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

        /// The current object.
        pub(crate) fn load(&self) -> Arc<T> {
            self.0.load_full()
        }

        /// What `read` returns for the current object. This is faster than [`Self::load`], because
        /// threads do not share a counter.
        pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
            read(&self.0.load())
        }
    }
}

#[cfg(all(feature = "loom", not(debug_assertions)))]
compile_error!("the feature `loom` replaces what threads share by models: it is for tests only");
