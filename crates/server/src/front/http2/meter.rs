//! Measures the work that an HTTP/2 client causes beside answers. It counts frames as they are
//! read. All floods of cheap frames look the same here: many frames, and few bytes of answers that
//! the client accepts (RFC 9113, 10.5; CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2024-27316). The
//! session limits some kinds of frames, and the memory of each ([`super::session`]). This module
//! limits the processor time of all frames. It delays nothing, and reads only the heads of frames.
//!
//! Every frame adds to the client's debt. Every byte that the client accepts pays some of it back,
//! and so does time. A client that asks and reads its answers never has a debt.

use std::cell::Cell;

use epicepoch_wire::http2::frame::{HEAD_LEN, PREFACE, flag::END_STREAM, kind};

use crate::metrics::worker::Abuse;

/// What a frame of an ordinary client adds to its debt: the head or trailers of a request, a part of
/// its body, or a window update.
const COST_REQUEST: u32 = 1;
/// Cost of any other frame, and of an empty part of a body that is not the last.
const COST_CONTROL: u32 = 2;
/// The client must accept this many bytes to reduce its debt by 1. An answer has 40 bytes or more,
/// a pong has 17.
const BYTES_PER_CREDIT: u32 = 16;
/// Highest debt of a client: some 10 ms of a processor. A client that cancels a thousand requests
/// at once stays far below it.
const DEBT_MAX: u32 = 20_000;
/// Debt that each second pays back: less than 1 % of a processor.
const CREDIT_PER_SWEEP: u32 = 5_000;

/// Counts the frames of one connection. Reads may cut frames anywhere.
#[derive(Debug)]
pub struct FrameMeter {
    /// Bytes still to skip: of the preface, or of the payload of a counted frame.
    skip: u32,
    /// The part of a frame's head that has arrived.
    head: [u8; HEAD_LEN],
    /// Invariant: `head_len < HEAD_LEN`.
    head_len: usize,
    /// Invariant: `debt <= DEBT_MAX`, unless the client was found abusive.
    debt: u32,
    /// Written bytes that are still too few to reduce the debt by 1.
    ///
    /// Invariant: `written < BYTES_PER_CREDIT` after each read.
    written: Cell<u32>,
    paid_at: u64,
    /// Whether a frame's head has arrived.
    has_begun: bool,
}

impl FrameMeter {
    /// A connection that has received `preface_len` bytes of its preface. `sweep` counts seconds.
    #[must_use]
    pub fn new(preface_len: usize, sweep: u64) -> Self {
        Self {
            skip: (PREFACE.len().saturating_sub(preface_len)) as u32,
            head: [0; HEAD_LEN],
            head_len: 0,
            debt: 0,
            written: Cell::new(0),
            paid_at: sweep,
            has_begun: false,
        }
    }

    /// Whether the head of a frame has arrived behind the preface.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Records bytes that the client's socket accepted.
    pub fn record_written(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.written.set(self.written.get().saturating_add(bytes));
    }

    /// Counts the frames that begin in `bytes`, which continue the bytes of the last call. Returns
    /// the abuse if the debt is too high. Then further bytes of the client must be ignored.
    pub fn handle_read(&mut self, mut bytes: &[u8], sweep: u64) -> Option<Abuse> {
        self.pay(sweep);
        while !bytes.is_empty() {
            if self.skip > 0 {
                let length = bytes.len().min(self.skip as usize);
                self.skip -= length as u32;
                bytes = &bytes[length..];
                continue;
            }
            let length = bytes.len().min(HEAD_LEN - self.head_len);
            self.head[self.head_len..self.head_len + length].copy_from_slice(&bytes[..length]);
            self.head_len += length;
            bytes = &bytes[length..];
            if self.head_len == HEAD_LEN {
                self.head_len = 0;
                self.has_begun = true;
                if let Some(abuse) = self.count() {
                    return Some(abuse);
                }
            }
        }
        None
    }

    /// Counts the frame whose head has arrived.
    fn count(&mut self) -> Option<Abuse> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.skip = u32::from_be_bytes([0, high, middle, low]);
        let is_empty = self.skip == 0 && flags & END_STREAM == 0;
        let (cost, abuse) = match kind {
            kind::DATA if is_empty => (COST_CONTROL, Abuse::Data),
            kind::DATA => (COST_REQUEST, Abuse::Data),
            kind::HEADERS => (COST_REQUEST, Abuse::Requests),
            kind::WINDOW_UPDATE => (COST_REQUEST, Abuse::Windows),
            kind::RST_STREAM => (COST_CONTROL, Abuse::Resets),
            kind::SETTINGS => (COST_CONTROL, Abuse::Settings),
            kind::PING => (COST_CONTROL, Abuse::Pings),
            kind::CONTINUATION => (COST_CONTROL, Abuse::Continuations),
            _ => (COST_CONTROL, Abuse::Other),
        };
        self.debt += cost;
        (self.debt > DEBT_MAX).then_some(abuse)
    }

    /// Pays back debt for written bytes and for passed time.
    fn pay(&mut self, sweep: u64) {
        let written = self.written.get();
        if written >= BYTES_PER_CREDIT {
            self.debt = self.debt.saturating_sub(written / BYTES_PER_CREDIT);
            self.written.set(written % BYTES_PER_CREDIT);
        }
        if sweep > self.paid_at {
            let sweeps = (sweep - self.paid_at).min(u64::from(DEBT_MAX)) as u32;
            self.debt = self.debt.saturating_sub(sweeps.saturating_mul(CREDIT_PER_SWEEP));
            self.paid_at = sweep;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn begun() -> FrameMeter {
        let mut meter = FrameMeter::new(0, 0);
        assert_eq!(meter.handle_read(PREFACE, 0), None);
        assert!(!meter.has_begun());
        meter
    }

    /// Sends `bytes` again and again, up to a million times, and reads `taken` bytes of answers
    /// after each. On abuse, returns after how many times the client was disconnected.
    fn times(bytes: &[u8], taken: usize) -> Result<u32, u32> {
        let mut meter = begun();
        for time in 0..1_000_000 {
            if meter.handle_read(bytes, 0).is_some() {
                return Err(time);
            }
            meter.record_written(taken);
        }
        Ok(1_000_000)
    }

    #[test]
    fn a_client_that_reads_its_answers_owes_nothing() {
        let request = frame(kind::HEADERS, 5, b"\x82");
        // A client that reads its answers is never disconnected. The shortest answer has 28 bytes,
        // one with a timestamp some 40.
        assert!(times(&request, 28).is_ok());
        let with_body = [request.clone(), frame(kind::DATA, END_STREAM, b"x")].concat();
        assert!(times(&with_body, 40).is_ok());
        let with_window = [request, frame(kind::WINDOW_UPDATE, 0, &[0; 4])].concat();
        assert!(times(&with_window, 40).is_ok());
    }

    #[test]
    fn every_flood_ends() {
        let reset = [frame(kind::HEADERS, 5, b"\x82"), frame(kind::RST_STREAM, 0, &[0; 4])];
        for (name, bytes, taken) in [
            ("requests without answers", frame(kind::HEADERS, 5, b"\x82"), 0),
            ("requests that are refused", frame(kind::HEADERS, 5, b"\x82"), 13),
            ("resets", reset.concat(), 0),
            ("resets of what was answered", reset.concat(), 42),
            ("settings", frame(kind::SETTINGS, 0, &[0, 4, 0, 0, 1, 0]), 9),
            ("pings", frame(kind::PING, 0, &[0; 8]), 17),
            ("windows", frame(kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]), 0),
            ("empty data", frame(kind::DATA, 0, b""), 0),
            ("small data", frame(kind::DATA, 0, b"x"), 0),
            ("continuations", frame(kind::CONTINUATION, 0, b""), 0),
            ("priorities", frame(2, 0, &[0; 5]), 0),
            ("unknown frames", frame(0xFE, 0, b""), 0),
        ] {
            let ended = times(&bytes, taken).unwrap_err();
            assert!((5_000..150_000).contains(&ended), "{name}: after {ended}");
        }
    }

    #[test]
    fn the_debt_of_a_client_decreases_with_time() {
        let mut meter = begun();
        let ping = frame(kind::PING, 0, &[0; 8]);
        let pings = CREDIT_PER_SWEEP / COST_CONTROL;
        for sweep in 0..1_000 {
            for _ in 0..pings {
                assert_eq!(meter.handle_read(&ping, sweep), None, "{sweep}");
            }
        }
        let mut flooding = begun();
        let found = (0..100)
            .find_map(|sweep| (0..3 * pings).find_map(|_| flooding.handle_read(&ping, sweep)));
        assert_eq!(found, Some(Abuse::Pings));
    }

    #[test]
    fn the_bytes_of_a_payload_are_no_frames() {
        let mut meter = begun();
        let body = frame(kind::DATA, 0, &[0; 16_384]);
        for _ in 0..1_000 {
            assert_eq!(meter.handle_read(&body, 0), None);
        }
        assert_eq!(meter.debt, 1_000 * COST_REQUEST);
    }

    #[test]
    fn where_bytes_are_cut_changes_nothing() {
        let mut stream = PREFACE.to_vec();
        for length in [0, 1, 8, 9, 10, 300] {
            stream.extend(frame(kind::SETTINGS, 0, &vec![7; length]));
        }
        for cut in 1..stream.len() {
            let mut meter = FrameMeter::new(0, 0);
            for part in stream.chunks(cut) {
                assert_eq!(meter.handle_read(part, 0), None);
            }
            assert_eq!(meter.debt, 6 * COST_CONTROL, "{cut}");
            assert!(meter.has_begun());
        }
    }
}
