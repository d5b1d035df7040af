//! Decides when each piece of one direction is due: after the delay, and a jitter that comes from a
//! seed. Pieces keep their order. This module reads no clock: time is an argument.

use std::collections::VecDeque;
use std::time::Instant;

use crate::fault::Fault;

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Bytes; at least one.
    Bytes(Vec<u8>),
    /// The sender has ended its side in an orderly way.
    End,
    /// The sender has reset the connection.
    Reset,
}

/// The pieces that were read and not yet written, in order.
#[derive(Debug)]
pub(crate) struct Schedule {
    queue: VecDeque<(Instant, Piece)>,
    /// Number of bytes in the queue.
    bytes: usize,
    random: fastrand::Rng,
    /// The time at which the last piece is due. A later piece is due no earlier.
    last_due: Option<Instant>,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { queue: VecDeque::new(), bytes: 0, random, last_due: None }
    }

    /// Adds a piece that was read at `now`.
    pub(crate) fn push(&mut self, now: Instant, piece: Piece, fault: &Fault) {
        let jitter = fault.jitter.mul_f64(self.random.f64());
        let due = self.last_due.unwrap_or(now).max(now + fault.delay + jitter);
        self.last_due = Some(due);
        if let Piece::Bytes(bytes) = &piece {
            self.bytes += bytes.len();
        }
        self.queue.push_back((due, piece));
    }

    /// When the first piece is due; `None` if there is no piece.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// The first piece under way.
    pub(crate) fn first(&self) -> Option<&Piece> {
        self.queue.front().map(|(_, piece)| piece)
    }

    /// Removes the first `count` bytes of the first piece, because they were written. Removes the
    /// piece if no bytes of it are left.
    pub(crate) fn arrived(&mut self, count: usize) {
        if let Some((_, Piece::Bytes(bytes))) = self.queue.front_mut()
            && count < bytes.len()
        {
            bytes.drain(..count);
            self.bytes -= count;
            return;
        }
        if let Some((_, Piece::Bytes(bytes))) = self.queue.pop_front() {
            self.bytes -= bytes.len();
        }
    }

    /// Number of bytes under way.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops all pieces in the queue. Returns whether there were any.
    pub(crate) fn lose(&mut self) -> bool {
        let had_any = !self.queue.is_empty();
        self.queue.clear();
        self.bytes = 0;
        had_any
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the times at which twenty pieces are due. One piece is sent every millisecond.
    fn dues(seed: u64, fault: &Fault) -> Vec<Duration> {
        let start = Instant::now();
        let mut schedule = Schedule::new(seed);
        let mut dues = Vec::new();
        for at in 0..20 {
            schedule.push(start + MS * at, Piece::Bytes(vec![0]), fault);
        }
        while let Some(due) = schedule.due() {
            dues.push(due - start);
            schedule.arrived(1);
        }
        assert_eq!(schedule.bytes(), 0);
        dues
    }

    #[test]
    fn a_delay_is_added_to_every_piece() {
        let expected: Vec<_> = (0..20).map(|at| MS * (at + 7)).collect();
        assert_eq!(dues(1, &Fault::delay(MS * 7)), expected);
    }

    #[test]
    fn jitter_is_the_seeds_keeps_order_and_stays_below_its_bound() {
        let fault = Fault { delay: MS * 3, ..Fault::jitter(MS * 50) };
        let one = dues(1, &fault);
        assert_eq!(one, dues(1, &fault), "the same seed, the same jitter");
        assert_ne!(one, dues(2, &fault));
        assert!(one.is_sorted());
        // A piece is due within 3 ms to 53 ms after it was sent. It may wait for the piece before
        // it, but that one was sent earlier with the same bound.
        for (at, due) in one.iter().enumerate() {
            let sent = MS * at as u32;
            assert!(*due >= sent + MS * 3 && *due < sent + MS * 53, "{at}: {due:?}");
        }
    }

    #[test]
    fn late_bytes_stay_in_front_of_later_ones() {
        let start = Instant::now();
        let mut schedule = Schedule::new(1);
        schedule.push(start, Piece::Bytes(vec![1]), &Fault::delay(MS * 100));
        schedule.push(start + MS, Piece::End, &Fault::NONE);
        assert_eq!(schedule.due(), Some(start + MS * 100));
        schedule.arrived(1);
        assert_eq!((schedule.due(), schedule.first()), (Some(start + MS * 100), Some(&Piece::End)));
    }

    #[test]
    fn a_piece_may_arrive_in_parts() {
        let start = Instant::now();
        let mut schedule = Schedule::new(1);
        schedule.push(start, Piece::Bytes(vec![1, 2, 3]), &Fault::NONE);
        schedule.arrived(2);
        assert_eq!((schedule.first(), schedule.bytes()), (Some(&Piece::Bytes(vec![3])), 1));
        assert!(schedule.lose());
        assert!(!schedule.lose() && schedule.bytes() == 0);
    }
}
