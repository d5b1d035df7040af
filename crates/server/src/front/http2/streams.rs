//! The open streams of one connection, in the order of their ids, which is the order in which they
//! began. This module knows no frames.

use std::collections::VecDeque;

use epicepoch_wire::http2::frame::ID_MAX;

/// The largest window, section 6.9.1.
pub(super) const WINDOW_MAX: i64 = ID_MAX as i64;

/// An open stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    is_open: bool,
    /// Whether the client may still send a part of the body.
    pub(super) is_sending: bool,
    /// Received bytes of the body.
    pub(super) received: u32,
    /// Announced bytes of the body that have not arrived.
    pub(super) announced: Option<u64>,
    /// Bytes that may be sent. Below 0 if the client has shrunk the window below the bytes already
    /// sent.
    ///
    /// Invariant: `window <= WINDOW_MAX`.
    pub(super) window: i64,
}

/// The streams of one connection.
///
/// Invariant: ids grow from front to back. The first stream in the list is open. `open` of the
/// streams are open.
#[derive(Debug, Default)]
pub(super) struct Streams {
    list: VecDeque<Stream>,
    open: usize,
}

/// At most this many closed streams are kept behind an open one. Beyond it, all closed ones are
/// removed at once.
const CLOSED_MAX: usize = 512;

impl Streams {
    /// How many streams are open.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Opens a stream.
    ///
    /// # Panics
    /// When its id is not the highest.
    pub(super) fn push(&mut self, id: u32, is_sending: bool, announced: Option<u64>, window: i64) {
        assert!(self.list.back().is_none_or(|last| last.id < id), "a stream was opened twice");
        self.list.push_back(Stream {
            id,
            is_open: true,
            is_sending,
            received: 0,
            announced,
            window,
        });
        self.open += 1;
    }

    /// The stream `id`, if it is open.
    pub(super) fn get(&mut self, id: u32) -> Option<&mut Stream> {
        let at = self.position(id)?;
        Some(&mut self.list[at])
    }

    /// Closes a stream. Returns whether it was open.
    pub(super) fn close(&mut self, id: u32) -> bool {
        let Some(at) = self.position(id) else { return false };
        self.list[at].is_open = false;
        self.open -= 1;
        while self.list.front().is_some_and(|stream| !stream.is_open) {
            self.list.pop_front();
        }
        if self.list.len() - self.open > CLOSED_MAX {
            self.list.retain(|stream| stream.is_open);
        }
        true
    }

    /// Adds `change` to the window of each open stream. Returns whether all windows are within
    /// their bounds.
    pub(super) fn change_windows(&mut self, change: i64) -> bool {
        let mut are_within = true;
        for stream in self.list.iter_mut().filter(|stream| stream.is_open) {
            stream.window += change;
            are_within &= stream.window <= WINDOW_MAX;
        }
        are_within
    }

    /// Gives back unused memory.
    pub(super) fn give_back(&mut self) {
        self.list.shrink_to_fit();
    }

    fn position(&self, id: u32) -> Option<usize> {
        // The answered stream is nearly always the oldest.
        let at = match self.list.front() {
            Some(first) if first.id == id => 0,
            _ => self.list.binary_search_by_key(&id, |stream| stream.id).ok()?,
        };
        self.list[at].is_open.then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_found_while_they_are_open_in_whatever_order_they_close() {
        let mut streams = Streams::default();
        for nth in 0..5 {
            streams.push(2 * nth + 1, false, None, 10);
        }
        assert!(streams.close(5) && !streams.close(5) && !streams.close(4));
        assert!(streams.get(5).is_none() && streams.get(6).is_none());
        assert_eq!(streams.get(7).map(|it| it.id), Some(7));
        assert!(streams.close(1) && streams.close(3));
        assert_eq!((streams.open(), streams.list.len()), (2, 2));
        assert!(streams.change_windows(-20));
        assert_eq!(streams.get(9).map(|it| it.window), Some(-10));
        assert!(!streams.change_windows(WINDOW_MAX + 11));
    }

    #[test]
    fn a_closed_stream_has_no_window_that_could_be_too_large() {
        let mut streams = Streams::default();
        streams.push(1, false, None, 10);
        streams.push(3, false, None, WINDOW_MAX);
        assert!(streams.close(3) && streams.change_windows(1));
        assert_eq!(streams.get(1).map(|it| it.window), Some(11));
    }

    #[test]
    fn closed_streams_behind_an_open_one_are_forgotten() {
        let mut streams = Streams::default();
        streams.push(1, true, None, 0);
        for nth in 1..10_000 {
            streams.push(2 * nth + 1, false, None, 0);
            assert!(streams.close(2 * nth + 1));
            assert!(streams.list.len() <= CLOSED_MAX + 2);
        }
        assert_eq!((streams.open(), streams.get(1).map(|it| it.is_sending)), (1, Some(true)));
    }
}
