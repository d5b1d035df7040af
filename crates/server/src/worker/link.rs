//! The sender's side of one confirm link to another member. A question is written at once or
//! queued; if the queue grows too long, the link ends. This module neither connects nor reads;
//! [`super::confirm_link`] does.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{BootId, StorePosition};

use crate::addresses::Tried;
use crate::security::tls::peer_stream::PeerWriter;
use crate::sync::signal::Signal;

/// At most this many bytes wait to be sent on a link: about three thousand questions. A link with
/// more is closed, because the other end has probably hung.
pub(super) const OUT_LEN_MAX: usize = 256 << 10;

/// One confirm link, which may be connected or not.
#[derive(Debug)]
pub(crate) struct Link {
    /// The member at the other end.
    pub(crate) member: Member,
    pub(super) pipe: RefCell<Option<Pipe>>,
    /// How many questions have no answer yet. Every question gets exactly one answer.
    pub(super) outstanding: Cell<u64>,
    /// The later of two times, monotonic nanoseconds: when the last answer came, and when the first
    /// outstanding question was asked.
    pub(super) progress_ns: Cell<u64>,
    pub(super) is_removed: Cell<bool>,
    /// The boot of the process at the other end, and the position at which it began.
    pub(super) boot: Cell<(BootId, StorePosition)>,
    pub(super) tried: Tried,
    /// The turn of the address book when the process at the other end welcomed this link.
    pub(super) welcomed: Cell<u64>,
    pub(super) retry: Signal,
    pub(super) flush: Signal,
    pub(super) hang_up: Signal,
}

/// The sending half of a connected link.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) stream: Rc<PeerWriter>,
    pub(super) out: Vec<u8>,
}

impl Link {
    /// A link that is not connected yet.
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            pipe: RefCell::new(None),
            outstanding: Cell::new(0),
            progress_ns: Cell::new(0),
            is_removed: Cell::new(false),
            boot: Cell::default(),
            tried: Tried::default(),
            welcomed: Cell::new(0),
            retry: Signal::default(),
            flush: Signal::default(),
            hang_up: Signal::default(),
        }
    }

    /// Whether the link is connected.
    pub(crate) fn is_up(&self) -> bool {
        self.pipe.borrow().is_some()
    }

    /// Sends a question. If the socket cannot take it now, the question waits and is sent as soon
    /// as possible. Without a connection the question is dropped; a new connection asks the newest
    /// question again.
    pub(crate) fn send(&self, frame: &[u8], now_ns: u64) {
        let mut pipe = self.pipe.borrow_mut();
        let Some(Pipe { stream, out }) = pipe.as_mut() else { return };
        if self.outstanding.get() == 0 {
            self.progress_ns.set(now_ns);
        }
        self.outstanding.set(self.outstanding.get() + 1);
        // If earlier bytes wait, the frame is queued behind them: written now, it would land inside
        // an earlier frame.
        let written = if out.is_empty() {
            match stream.try_write(frame) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => return self.hang_up.set(),
            }
        } else {
            0
        };
        if out.len() + frame.len() > OUT_LEN_MAX {
            return self.hang_up.set();
        }
        if written < frame.len() {
            out.extend_from_slice(&frame[written..]);
            self.flush.set();
        }
    }

    /// Ends the link for good.
    pub(crate) fn remove(&self) {
        self.is_removed.set(true);
        self.hang_up.set();
        self.retry.set();
    }

    /// Shortens the pause before the next attempt.
    pub(crate) fn nudge(&self) {
        self.retry.set();
    }

    /// Ends the connection if no answer has come for `silence_ns_max` although a question waits for
    /// one.
    pub(crate) fn close_if_silent(&self, now_ns: u64, silence_ns_max: u64) {
        let silence_ns = now_ns.saturating_sub(self.progress_ns.get());
        if self.outstanding.get() > 0 && silence_ns >= silence_ns_max {
            self.hang_up.set();
        }
    }
}
