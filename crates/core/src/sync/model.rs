//! The models: loom's atomic and lock, and a pointer that promises less than `arc-swap` does. Each
//! can be weakened by a test, to show that the test would notice.

use std::cell::Cell;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicUsize};

use super::{Ordering, PoisonError};

pub use loom::sync::Mutex;

/// A fault in what threads share, for a test that must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// The swapped pointer is stored and read without ordering anything else.
    UnorderedPointer,
    /// `fetch_max` is a read and a write of their own.
    SplitMaximum,
}

thread_local! {
    // loom runs the threads of a model on the thread that runs the test.
    static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
}

/// Weakens what is shared for the rest of the calling test.
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

    /// Reads it.
    #[must_use]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Raises it to `value`, if it is below. Returns what it was.
    pub fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        if has(Weakness::SplitMaximum) {
            let before = self.0.load(Ordering::SeqCst);
            self.0.store(before.max(value), Ordering::SeqCst);
            return before;
        }
        self.0.fetch_max(value, order)
    }
}

/// An object, and an atomic of its age: loom ends a run in which one is read by a thread that
/// nothing orders after its making.
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

/// A swapped pointer that orders no more than a release store and an acquire load do: a reader may
/// be given any object that is not older than what it knows. `arc-swap` itself is sequentially
/// consistent. Keeps all objects until it is dropped: how `arc-swap` frees them is not modelled.
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

    /// Points to `next` from now on. One thread stores.
    pub fn store(&self, next: Arc<T>) {
        let next = Object::new(next);
        let position = {
            let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
            objects.push(next);
            objects.len() - 1
        };
        self.current.store(position, pointer_order(Ordering::Release));
    }

    /// What it points to.
    ///
    /// # Panics
    /// When nothing orders the caller after who stored the object.
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
}

/// The order that a pointer's store or load has, unless it is weakened.
fn pointer_order(order: Ordering) -> Ordering {
    if has(Weakness::UnorderedPointer) { Ordering::Relaxed } else { order }
}
