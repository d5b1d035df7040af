//! The models: loom's atomic and lock, and a pointer that guarantees less than `arc-swap` does. A
//! test can weaken each of them, to show that it would notice.

use std::cell::Cell;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicUsize};

use super::{Ordering, PoisonError};

pub use loom::sync::Mutex;

/// A fault in a shared type, for a test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// The swapped pointer is stored and read without any memory order.
    UnorderedPointer,
    /// `fetch_max` is a separate read and write.
    SplitMaximum,
}

thread_local! {
    // loom runs the threads of a model on the thread that runs the test.
    static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
}

/// Weakens a shared type for the rest of the calling test.
pub fn weaken(weakness: Weakness) {
    WEAKNESS.set(Some(weakness));
}

fn has(weakness: Weakness) -> bool {
    WEAKNESS.get() == Some(weakness)
}

/// An atomic number.
#[derive(Debug, Default)]
pub struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    /// Holds `value`.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    /// Reads the number.
    #[must_use]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Replaces the number.
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    /// Raises the number to `value`, if it is below. Returns the old number.
    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        if has(Weakness::SplitMaximum) {
            let before = self.0.load(Ordering::SeqCst);
            self.0.store(before.max(value), Ordering::SeqCst);
            return before;
        }
        self.0.fetch_max(value, order)
    }
}

/// An object with an atomic of the same age. If a thread reads an object before anything orders the
/// read after the object's creation, loom ends the run.
#[derive(Debug)]
struct Object<T> {
    value: Arc<T>,
    made: Arc<AtomicBool>,
}

impl<T> Object<T> {
    fn new(value: Arc<T>) -> Self {
        Self { value, made: Arc::new(AtomicBool::new(true)) }
    }
}

/// A swapped pointer with the order of a release store and an acquire load. A reader may get any
/// object that is not older than the newest one that it knows. `arc-swap` itself is sequentially
/// consistent, so this model allows more. All objects are kept until the pointer is dropped: the
/// model does not show how `arc-swap` frees them.
#[derive(Debug)]
pub struct SwapPointer<T> {
    objects: std::sync::Mutex<Vec<Object<T>>>,
    current: AtomicUsize,
}

impl<T> SwapPointer<T> {
    /// Points to `first`.
    #[must_use]
    pub fn new(first: T) -> Self {
        let objects = vec![Object::new(Arc::new(first))];
        Self { objects: std::sync::Mutex::new(objects), current: AtomicUsize::new(0) }
    }

    /// Points to `next` from now on. Only one thread may call this.
    pub fn store(&self, next: Arc<T>) {
        let next = Object::new(next);
        let position = {
            let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
            objects.push(next);
            objects.len() - 1
        };
        self.current.store(position, pointer_order(Ordering::Release));
    }

    /// The current object, or an older one that the order allows.
    ///
    /// # Panics
    /// When nothing orders the caller after the thread that stored the object.
    #[must_use]
    pub fn load(&self) -> Arc<T> {
        let position = self.current.load(pointer_order(Ordering::Acquire));
        let (value, made) = {
            let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
            (objects[position].value.clone(), objects[position].made.clone())
        };
        assert!(made.load(Ordering::Relaxed), "an object that was not made");
        value
    }

    /// What `read` returns for the current object.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.load())
    }
}

/// The memory order of a pointer's store or load, unless the pointer is weakened.
fn pointer_order(order: Ordering) -> Ordering {
    if has(Weakness::UnorderedPointer) { Ordering::Relaxed } else { order }
}
