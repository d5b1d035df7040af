//! One direction of one connection. It reads from one socket, waits as the fault says, and writes
//! to the other socket. It holds at most [`BYTES_MAX`]. After that it reads no more, and the
//! sender's socket fills.

use std::io;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::alarm::Alarm;
use crate::fault::{Cut, Fault};
use crate::party::Party;
use crate::schedule::{Piece, Schedule};
use crate::table::Shared;

/// At most this many bytes are held in one direction of a connection. With a delay of a second,
/// this allows a MiB per second.
pub(crate) const BYTES_MAX: usize = 1 << 20;
/// At most this many bytes per read.
const READ_LEN: usize = 16 << 10;

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All bytes were delivered, and so was the end of the stream.
    Orderly,
    /// The sender has ended its side, but the receiver does not know, because the end was lost.
    Unheard,
    /// The connection must be reset, because one of its ends has reset it or bytes are missing.
    Reset,
}

pub(crate) struct Pump<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) from: Party,
    pub(crate) to: Party,
    source: &'a TcpStream,
    sink: &'a TcpStream,
    schedule: Schedule,
    /// Whether the source has ended or reset its side.
    is_source_done: bool,
    /// Whether the sink accepts no more bytes.
    is_sink_gone: bool,
    /// Whether bytes were lost. Then no later bytes may be delivered.
    has_hole: bool,
    /// How many bytes the rate limit allows next, and at which time.
    slot: Option<(usize, Instant)>,
    alarm: Alarm,
}

impl<'a> Pump<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        (from, source): (Party, &'a TcpStream),
        (to, sink): (Party, &'a TcpStream),
        seed: u64,
    ) -> Self {
        Self {
            shared,
            from,
            to,
            source,
            sink,
            schedule: Schedule::new(seed),
            is_source_done: false,
            is_sink_gone: false,
            has_hole: false,
            slot: None,
            alarm: Alarm::default(),
        }
    }

    /// Carries `head`, which was read already, and all further bytes until the direction ends.
    pub(crate) async fn run(mut self, head: Vec<u8>, mut changed: watch::Receiver<u64>) -> Ended {
        if !head.is_empty() {
            self.take(Piece::Bytes(head));
        }
        loop {
            changed.borrow_and_update();
            let fault = self.shared.fault(self.from, self.to);
            if let Some(ended) = self.settle(&fault) {
                return ended;
            }
            let may_read =
                !self.is_source_done && fault.cut != Cut::Hold && self.schedule.bytes() < BYTES_MAX;
            let write_at = self.write_at(&fault);
            tokio::select! {
                told = changed.changed() => {
                    self.slot = None;
                    if told.is_err() {
                        return Ended::Reset;
                    }
                }
                readable = self.source.readable(), if may_read => self.read(readable),
                writable = ready(&mut self.alarm, self.sink, write_at), if write_at.is_some() => {
                    if let Some(ended) = self.write(writable) {
                        return ended;
                    }
                }
            }
        }
    }

    /// Applies the current fault to the bytes that are held. Returns how the direction ends, if it
    /// ends now.
    fn settle(&mut self, fault: &Fault) -> Option<Ended> {
        match fault.cut {
            Cut::Reset => return Some(Ended::Reset),
            Cut::Drop => {
                self.lose_all();
                if self.is_source_done {
                    return Some(Ended::Unheard);
                }
            }
            Cut::None | Cut::Hold if self.has_hole => return Some(Ended::Reset),
            Cut::None | Cut::Hold => {}
        }
        // The receiver is gone. The sender learns this only if the other direction is not cut.
        let word_gets_back = self.shared.fault(self.to, self.from).cut == Cut::None;
        (self.is_sink_gone && word_gets_back).then_some(Ended::Reset)
    }

    fn lose_all(&mut self) {
        let bytes = self.schedule.bytes() as u64;
        if self.schedule.lose() {
            self.has_hole = true;
            self.slot = None;
            self.shared.count(self.from, self.to, |passed| passed.bytes_lost += bytes);
        }
    }

    /// Returns the time at which bytes may be written next, or `None` if none may be written.
    fn write_at(&mut self, fault: &Fault) -> Option<Instant> {
        if self.is_sink_gone || fault.cut != Cut::None {
            return None;
        }
        let due = self.schedule.due()?;
        let Some(Piece::Bytes(bytes)) = self.schedule.first() else { return Some(due) };
        let Some(pace) = fault.pace else {
            self.slot = Some((bytes.len(), due));
            return Some(due);
        };
        let (_, at) = *self.slot.get_or_insert_with(|| {
            let at = self.shared.slot(self.from, self.to, due.max(Instant::now()), pace);
            (bytes.len().min(pace.bytes.max(1)), at)
        });
        Some(at)
    }

    fn take(&mut self, piece: Piece) {
        let fault = self.shared.fault(self.from, self.to);
        self.schedule.push(Instant::now(), piece, &fault);
    }

    fn read(&mut self, readable: io::Result<()>) {
        let mut chunk = vec![0; READ_LEN];
        let piece = match readable.and_then(|()| self.source.try_read(&mut chunk)) {
            Ok(0) => Piece::End,
            Ok(len) => {
                chunk.truncate(len);
                Piece::Bytes(chunk)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => Piece::Reset,
        };
        self.is_source_done = !matches!(piece, Piece::Bytes(_));
        self.take(piece);
    }

    fn write(&mut self, writable: io::Result<()>) -> Option<Ended> {
        match self.schedule.first()? {
            Piece::Reset => Some(Ended::Reset),
            Piece::End => {
                // An error is ignored, because a receiver that is already gone needs no end.
                let _ = socket2::SockRef::from(self.sink).shutdown(std::net::Shutdown::Write);
                Some(Ended::Orderly)
            }
            Piece::Bytes(bytes) => {
                let (len, _) = self.slot.take()?;
                match writable.and_then(|()| self.sink.try_write(&bytes[..len.min(bytes.len())])) {
                    Ok(written) => {
                        self.schedule.arrived(written);
                        let count = written as u64;
                        self.shared.count(self.from, self.to, |passed| passed.bytes += count);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => self.is_sink_gone = true,
                }
                None
            }
        }
    }
}

/// Waits until `at`, and until the socket accepts bytes.
async fn ready(alarm: &mut Alarm, sink: &TcpStream, at: Option<Instant>) -> io::Result<()> {
    if let Some(at) = at {
        alarm.until(at).await;
    }
    sink.writable().await
}
