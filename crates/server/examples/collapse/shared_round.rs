//! Request collapsing as one atomic step: many threads fill one open round. One atomic instruction
//! gives a request its slot in the round and its offset in the range that the round will be given;
//! one consumer closes rounds, and grants a whole one with one (epoch, first index). Several rounds
//! may be in flight, `RING - 1` at most, of `SLOTS` requests each.
//!
//! It is measured beside other ways to share rounds and no part of a node: `docs/decisions/0022`
//! says why. What its steps must hold is explored in `crates/core/tests/interleavings`.
//!
//! The idea of one word for slot and sequence is that of the Raft proposal buffer of CockroachDB
//! (`pkg/kv/kvserver/replica_proposal_buf.go`).

use super::atomics::{AtomicU32, AtomicU64, Ordering};

/// Timestamps that one request may ask for here; who wants more takes a round of its own.
pub(crate) const COUNT_MAX: u32 = 65_536;
/// Threads that may join: each can overshoot a full round by one slot, which the word has room for.
pub(crate) const THREADS_MAX: usize = 1024;

/// The rounds, as those see them who join. Made by [`rounds`].
#[derive(Debug)]
pub(crate) struct Rounds<const SLOTS: usize, const RING: usize> {
    /// Number, slots and timestamps of the open round, so that one addition takes of both.
    pub(super) open: Padded<AtomicU64>,
    pub(super) cells: [Padded<Cell<SLOTS>>; RING],
}

/// Keeps what is inside on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(super) T);

/// Where a round tells what it got. Invariant: a cell is taken for another round only when every
/// ticket of the one before is gone.
#[derive(Debug)]
pub(super) struct Cell<const SLOTS: usize> {
    pub(super) state: AtomicU32,
    pub(super) epoch: AtomicU64,
    pub(super) first: AtomicU64,
    /// Tickets of the round that are not gone; below zero, wrapping, while it is not granted.
    pub(super) left: AtomicU32,
    /// Who sleeps until the round is granted, or that it is.
    pub(super) sleepers: [AtomicU32; SLOTS],
}

/// The place of a request in a round. It has to be left, else the round's cell is never used again.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket<'a, const SLOTS: usize> {
    cell: &'a Cell<SLOTS>,
    /// 0 for whoever opens a round: it tells the consumer.
    pub(crate) slot: usize,
    offset: u64,
}

/// The consumer's end, of which there is one.
#[derive(Debug)]
pub(crate) struct Consumer<const SLOTS: usize, const RING: usize> {
    pub(super) round: u64,
    pub(super) is_in_flight: [bool; RING],
}

/// A round that takes no more requests. It must be granted or refused.
#[derive(Debug)]
#[must_use]
pub(crate) struct Closed {
    pub(super) round: u64,
    pub(super) slots: usize,
    /// Timestamps that its requests ask for together.
    pub(crate) total: u64,
}

/// What a round got: the first of its timestamps as (epoch, index), or nothing.
pub(crate) type Grant = Option<(u64, u64)>;

/// Both ends.
///
/// # Panics
/// When a word cannot hold so many slots, or the ring is no power of two from 2 on.
#[must_use]
pub(crate) fn rounds<const SLOTS: usize, const RING: usize>()
-> (Rounds<SLOTS, RING>, Consumer<SLOTS, RING>) {
    assert!(SLOTS > 0 && SLOTS + THREADS_MAX < 1 << SLOT_BITS, "slots");
    // A power of two, so that the number in the word names the same cell when it begins anew.
    assert!((2..1 << ROUND_BITS).contains(&RING) && RING.is_power_of_two(), "cells");
    let cell = || Cell {
        state: AtomicU32::new(OPEN),
        epoch: AtomicU64::new(0),
        first: AtomicU64::new(0),
        left: AtomicU32::new(0),
        sleepers: std::array::from_fn(|_| AtomicU32::new(AWAKE)),
    };
    let cells = std::array::from_fn(|_| Padded(cell()));
    let rounds = Rounds { open: Padded(AtomicU64::new(0)), cells };
    (rounds, Consumer { round: 0, is_in_flight: [false; RING] })
}

impl<const SLOTS: usize, const RING: usize> Rounds<SLOTS, RING> {
    /// Takes a slot in the open round, and `count` of its timestamps; `None` while it is full.
    ///
    /// # Panics
    /// Unless `1 <= count <= COUNT_MAX`.
    pub(crate) fn join(&self, count: u32) -> Option<Ticket<'_, SLOTS>> {
        assert!((1..=COUNT_MAX).contains(&count), "timestamps of a request");
        // Without this look a thread that tries again and again would overflow the slots.
        if slots_of(self.open.0.load(Ordering::Relaxed)) >= SLOTS {
            return None;
        }
        // Release: whoever closes the round afterwards reads nothing older than its requests (S2).
        let word = self.open.0.fetch_add(ONE_SLOT + u64::from(count), Ordering::Release);
        let slot = slots_of(word);
        let cell = &self.cells[cell_of(word >> (SLOT_BITS + TOTAL_BITS), RING)].0;
        // Where it overshoots the timestamps are burned, and the ticket was never counted.
        (slot < SLOTS).then_some(Ticket { cell, slot, offset: word & TOTAL_MASK })
    }
}

impl<const SLOTS: usize> Ticket<'_, SLOTS> {
    /// What the request got: its first timestamp, or nothing; `None` while its round is in flight.
    #[must_use]
    pub(crate) fn outcome(&self) -> Option<Grant> {
        let state = self.cell.state.load(Ordering::Acquire);
        let of = |part: &AtomicU64| part.load(Ordering::Relaxed);
        (state != OPEN).then(|| {
            let first = of(&self.cell.first) + self.offset;
            (state == GRANTED).then(|| (of(&self.cell.epoch), first))
        })
    }

    /// Asks to be woken as `sleeper`; `false` when there is nothing to wait for any more.
    #[must_use]
    pub(crate) fn sleep(&self, sleeper: usize) -> bool {
        let sleeper = sleeper as u32 + 1;
        self.cell.sleepers[self.slot].swap(sleeper, Ordering::AcqRel) != WOKEN
    }

    /// Gives the place up; what it asked for is burned if it was not read. Returns whether the
    /// consumer has to be told, because it may have found no room for another round.
    #[must_use]
    pub(crate) fn leave(self) -> bool {
        // Release: who takes the cell for another round comes after all that was read of this one.
        self.cell.left.fetch_sub(1, Ordering::Release) == 1
    }
}

impl<const SLOTS: usize, const RING: usize> Consumer<SLOTS, RING> {
    /// Closes the open round; `None` when nobody has joined it, or as many are in flight as may be:
    /// then the round goes on to fill.
    pub(crate) fn close(&mut self, rounds: &Rounds<SLOTS, RING>) -> Option<Closed> {
        let next = self.round + 1;
        let is_empty = slots_of(rounds.open.0.load(Ordering::Relaxed)) == 0;
        if is_empty || !self.prepare(&rounds.cells[cell_of(next, RING)].0, next) {
            return None;
        }
        let word = rounds.open.0.swap(next << (SLOT_BITS + TOTAL_BITS), Ordering::AcqRel);
        Some(self.closed(word))
    }

    /// Readies a cell for a round, unless it is still in use.
    pub(super) fn prepare(&self, cell: &Cell<SLOTS>, round: u64) -> bool {
        let is_used =
            self.is_in_flight[cell_of(round, RING)] || cell.left.load(Ordering::Acquire) != 0;
        if !is_used {
            // Published by the swap that opens the round.
            cell.state.store(OPEN, Ordering::Relaxed);
            let used = cell.sleepers.iter().take_while(|it| it.load(Ordering::Relaxed) != AWAKE);
            used.for_each(|sleeper| sleeper.store(AWAKE, Ordering::Relaxed));
        }
        !is_used
    }

    pub(super) fn closed(&mut self, word: u64) -> Closed {
        let round = self.round;
        self.round += 1;
        self.is_in_flight[cell_of(round, RING)] = true;
        Closed { round, slots: slots_of(word).min(SLOTS), total: word & TOTAL_MASK }
    }

    /// Tells every request of a round what it got, and wakes those that sleep.
    pub(crate) fn grant(
        &mut self,
        rounds: &Rounds<SLOTS, RING>,
        closed: &Closed,
        grant: Grant,
        mut wake: impl FnMut(usize),
    ) {
        let position = cell_of(closed.round, RING);
        let cell = &rounds.cells[position].0;
        if let Some((epoch, first)) = grant {
            cell.epoch.store(epoch, Ordering::Relaxed);
            cell.first.store(first, Ordering::Relaxed);
        }
        cell.left.fetch_add(closed.slots as u32, Ordering::Relaxed);
        let state = if grant.is_some() { GRANTED } else { REFUSED };
        cell.state.store(state, Ordering::Release);
        for sleeper in &cell.sleepers[..closed.slots] {
            match sleeper.swap(WOKEN, Ordering::AcqRel) {
                AWAKE => {}
                sleeper => wake(sleeper as usize - 1),
            }
        }
        self.is_in_flight[position] = false;
    }
}

fn slots_of(word: u64) -> usize {
    (word >> TOTAL_BITS) as usize & ((1 << SLOT_BITS) - 1)
}

/// Only the lowest bits of a round's number are in the word, which is enough for a ring.
fn cell_of(round: u64, ring: usize) -> usize {
    (round & ((1 << ROUND_BITS) - 1)) as usize % ring
}

const TOTAL_BITS: u32 = 34;
const SLOT_BITS: u32 = 14;
const ROUND_BITS: u32 = u64::BITS - SLOT_BITS - TOTAL_BITS;
const TOTAL_MASK: u64 = (1 << TOTAL_BITS) - 1;
const ONE_SLOT: u64 = 1 << TOTAL_BITS;

/// States of a cell: its round is not granted yet, has timestamps, has none.
const OPEN: u32 = 0;
const GRANTED: u32 = 1;
const REFUSED: u32 = 2;

/// Of a slot: nobody sleeps there, or its round is over. Anything else is a sleeper, and one.
const AWAKE: u32 = 0;
pub(super) const WOKEN: u32 = u32::MAX;

// As many requests as a word counts cannot ask for more timestamps than it counts.
const _: () = assert!(((1 << SLOT_BITS) as u64 * COUNT_MAX as u64) <= 1 << TOTAL_BITS);
