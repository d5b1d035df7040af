//! One direction of one connection: reads from one socket, waits as long as the fault says, writes
//! to the other. It never holds more than [`BYTES_MAX`]: beyond it, the sender's socket fills.

use std::io;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::Party;
use crate::fault::{Cut, Fault};
use crate::schedule::{Piece, Schedule};
use crate::table::Shared;

/// Bytes on their way in one direction of one connection: at a delay of a second, a MiB a second.
pub(crate) const BYTES_MAX: usize = 1 << 20;
/// Bytes taken from a socket at a time.
const READ_LEN: usize = 16 << 10;

/// How a direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All of it was delivered, the end too.
    Orderly,
    /// The sender has ended its side, and that was lost.
    Unheard,
    /// The connection has to be reset: an end has, or bytes are missing.
    Reset,
}

pub(crate) struct Pump<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) from: Party,
    pub(crate) to: Party,
    source: &'a TcpStream,
    sink: &'a TcpStream,
    schedule: Schedule,
    /// The source has ended or reset its side: nothing more is read.
    is_source_done: bool,
    /// The sink takes no more.
    is_sink_gone: bool,
    /// Something was lost: what comes after must not be delivered.
    has_hole: bool,
    /// How many bytes may go next and when, as the pace has it.
    slot: Option<(usize, Instant)>,
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
        }
    }

    /// Carries `head`, which was read already, and all that follows, until the direction ends.
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
                writable = ready(self.sink, write_at), if write_at.is_some() => {
                    if let Some(ended) = self.write(writable) {
                        return ended;
                    }
                }
            }
        }
    }

    /// What the present fault does to what is on its way.
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
        // The sender learns that the receiver is gone only if word of it can get back.
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

    /// When something may be written; `None` if nothing may.
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
                // A receiver that is gone needs no end.
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

/// Waits until it is time and the socket takes something.
async fn ready(sink: &TcpStream, at: Option<Instant>) -> io::Result<()> {
    if let Some(at) = at.filter(|at| *at > Instant::now()) {
        sleep_until(at.into()).await;
    }
    sink.writable().await
}
