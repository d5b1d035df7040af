//! Keeps one connection of the native protocol busy. What is due goes out together and what has
//! come is taken in together, with one reading of the clock for either: at millions of requests
//! per second a reading for each would be most of the generator's work.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{
    ClientHello, ErrorFrame, HEADER_LEN, HelloError, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient,
    split,
};
use epicepoch_wire::{DecodeError, Timestamp};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout, timeout_at};

use super::lane::{Answer, CONNECT_TIMEOUT, Lane, Next};
use super::ledger::Sent;
use super::pacer::Ticket;
use super::wire::{Counted, Tally};
use crate::history::BrokenAnswer;

/// Asks until the measurement is over.
pub(super) async fn drive(lane: Lane, in_flight: usize) {
    while !lane.is_over() {
        let opened = timeout(CONNECT_TIMEOUT, Pipe::open(&lane, in_flight)).await;
        let next = if let Ok(Ok(mut pipe)) = opened {
            let next = pipe.drive().await;
            lane.count_bytes(pipe.tally.sent.get(), pipe.tally.received.get());
            next
        } else {
            lane.not_connected();
            Next::Elsewhere
        };
        lane.turn(next).await;
    }
    lane.finish();
}

/// A connection that was welcomed, and what is open on it.
struct Pipe<'a> {
    lane: &'a Lane,
    stream: Counted,
    tally: Tally,
    depth: usize,
    /// Requests by id, the one at the front is `first`; `None` is answered. The front is open.
    open: VecDeque<Option<Sent>>,
    first: u64,
    unanswered: usize,
    /// Nothing is sent before, because the node has refused. What comes is still read: it is not
    /// later for that.
    quiet_until: Option<tokio::time::Instant>,
    out: Vec<u8>,
    /// What came, up to `filled`.
    input: Box<[u8]>,
    filled: usize,
}

impl<'a> Pipe<'a> {
    async fn open(lane: &'a Lane, depth: usize) -> io::Result<Self> {
        let stream = TcpStream::connect(lane.target().addr).await?;
        stream.set_nodelay(true)?;
        let tally = Tally::default();
        let mut stream = Counted::new(stream, tally.clone());
        let mut out = Vec::new();
        let agent = concat!("epicepoch-bench/", env!("CARGO_PKG_VERSION")).to_owned();
        ClientHello { agent, ..ClientHello::default() }.encode(&mut out);
        stream.write_all(&out).await?;
        out.clear();
        let mut pipe = Self {
            lane,
            stream,
            tally,
            depth,
            open: VecDeque::with_capacity(depth),
            first: 0,
            unanswered: 0,
            quiet_until: None,
            out,
            input: vec![0; INPUT_LEN].into_boxed_slice(),
            filled: 0,
        };
        loop {
            pipe.read().await?;
            let frame = split(&pipe.input[..pipe.filled], TO_CLIENT_TAIL_LEN_MAX);
            let Some(frame) = frame.map_err(io::Error::other)? else { continue };
            let ToClient::Welcome(_) = ToClient::decode(&frame).map_err(io::Error::other)? else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let length = frame.len();
            pipe.input.copy_within(length..pipe.filled, 0);
            pipe.filled -= length;
            return Ok(pipe);
        }
    }

    /// Until the connection is of no more use, or the measurement is over.
    async fn drive(&mut self) -> Next {
        let mut claimed: Option<Ticket> = None;
        // Once this node is to be left, only what is open on it is still waited for.
        let mut leaving = Next::Stay;
        loop {
            claimed = self.fill(claimed, leaving).await;
            let Some(oldest) = self.open.front().copied().flatten() else {
                return self.leave(claimed, leaving);
            };
            let deadline = self.lane.deadline(&oldest);
            if !self.out.is_empty() {
                match timeout_at(deadline, self.stream.write_all(&self.out)).await {
                    Ok(Ok(())) => self.out.clear(),
                    outcome => return self.lost(claimed, outcome.is_err()),
                }
            }
            let waits = claimed.filter(|_| self.unanswered < self.depth && leaving == Next::Stay);
            let (lane, quiet_until) = (self.lane, self.quiet_until);
            let due = async {
                match (quiet_until, &waits) {
                    (Some(until), _) => sleep_until(until).await,
                    (None, Some(ticket)) => lane.pacer.due(ticket).await,
                    (None, None) => std::future::pending().await,
                }
            };
            let read = tokio::select! {
                biased;
                read = timeout_at(deadline, self.read()) => Some(read),
                () = due => None,
            };
            let next = match read {
                None => continue,
                Some(Ok(Ok(()))) => self.receive(),
                Some(outcome) => return self.lost(claimed, outcome.is_err()),
            };
            match next {
                Ok(Next::Stay) => {}
                Ok(Next::Pause) => {
                    self.quiet_until =
                        Some(tokio::time::Instant::now() + self.lane.config.retry_pause);
                }
                Ok(next) if leaving == Next::Stay => leaving = next,
                Ok(_) => {}
                Err(_) => return self.lost(claimed, false),
            }
        }
    }

    /// Whether nothing may be sent yet. Waits for it where there is nothing to read meanwhile.
    async fn is_quiet(&mut self, claimed: &mut Option<Ticket>) -> bool {
        let Some(until) = self.quiet_until else { return false };
        if self.unanswered == 0 {
            sleep_until(until).await;
        }
        if tokio::time::Instant::now() < until {
            return true;
        }
        self.quiet_until = None;
        // What became due meanwhile waited for the node, not for the generator.
        if let Some(ticket) = claimed {
            ticket.in_time &= Instant::now() < ticket.intended;
        }
        false
    }

    /// Makes ready what is due, as far as it may be open. Gives back a ticket whose time has not
    /// come.
    async fn fill(&mut self, mut claimed: Option<Ticket>, leaving: Next) -> Option<Ticket> {
        if leaving == Next::Stay && self.is_quiet(&mut claimed).await {
            return claimed;
        }
        let mut now = Instant::now();
        while self.unanswered < self.depth && leaving == Next::Stay {
            claimed = claimed.or_else(|| self.lane.claim_at(now));
            let ticket = claimed?;
            if self.unanswered == 0 && self.out.is_empty() {
                self.lane.pacer.due(&ticket).await;
                now = Instant::now();
            } else if ticket.in_time && now < ticket.intended {
                break;
            }
            let sent = self.lane.sent_at(ticket, now);
            let id = self.first + self.open.len() as u64;
            // The configuration holds the count to its bounds.
            let request = Request::new(id, self.lane.config.count).expect("a count in bounds");
            self.out.extend_from_slice(&request.to_bytes());
            self.open.push_back(Some(sent));
            self.unanswered += 1;
            claimed = None;
        }
        claimed
    }

    /// Waits for more bytes.
    async fn read(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.input[self.filled..]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.filled += length;
                Ok(())
            }
        }
    }

    /// Takes in every whole frame that has come.
    fn receive(&mut self) -> Result<Next, Useless> {
        let now = Instant::now();
        let mut next = Next::Stay;
        let mut at = 0;
        while let Some(frame) = split(&self.input[at..self.filled], TO_CLIENT_TAIL_LEN_MAX)? {
            at += frame.len();
            let judged = match ToClient::decode(&frame)? {
                ToClient::Answer { id, range } => {
                    let node = self.lane.target().id;
                    let mut ledger = self.lane.ledger.borrow_mut();
                    let Some(sent) = take(&mut self.open, self.first, id) else {
                        ledger.unasked(node, id);
                        return Err(Useless);
                    };
                    self.unanswered -= 1;
                    if range.count() == self.lane.config.count {
                        ledger.answered_at(&sent, node, range, now);
                    } else {
                        let bytes = |count| count * Timestamp::LEN as u64;
                        let (expected, got) = (bytes(self.lane.config.count), bytes(range.count()));
                        ledger.broken(&sent, node, BrokenAnswer::Length { expected, got });
                    }
                    Next::Stay
                }
                ToClient::Error(error) => {
                    match take(&mut self.open, self.first, error.id) {
                        Some(sent) => {
                            self.unanswered -= 1;
                            refused(self.lane, &sent, &error)
                        }
                        // It is about the connection, which ends.
                        None if error.closes => Next::Elsewhere,
                        None => {
                            let mut ledger = self.lane.ledger.borrow_mut();
                            ledger.unasked(self.lane.target().id, error.id);
                            return Err(Useless);
                        }
                    }
                }
                ToClient::Goodbye => Next::Elsewhere,
                ToClient::Ping(id) => {
                    self.out.extend_from_slice(&epicepoch_wire::native::message::pong(id));
                    Next::Stay
                }
                ToClient::Welcome(_)
                | ToClient::Leader(_)
                | ToClient::Pong(_)
                | ToClient::Unknown => Next::Stay,
            };
            while self.open.front().is_some_and(Option::is_none) {
                self.open.pop_front();
                self.first += 1;
            }
            if next == Next::Stay {
                next = judged;
            }
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(next)
    }

    /// What is open gets no answer.
    fn lost(&mut self, claimed: Option<Ticket>, timed_out: bool) -> Next {
        for sent in self.open.drain(..).flatten() {
            self.lane.lost(&sent, timed_out);
        }
        self.leave(claimed, Next::Elsewhere)
    }

    /// Leaves this node, with nothing open.
    fn leave(&self, claimed: Option<Ticket>, next: Next) -> Next {
        if let Some(ticket) = claimed {
            self.lane.give_back(ticket);
        }
        next
    }
}

/// What came cannot be understood, or answers what was not asked: nothing more is believed.
struct Useless;

impl From<DecodeError> for Useless {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

impl From<HelloError> for Useless {
    fn from(_: HelloError) -> Self {
        Self
    }
}

/// The request of that id, once.
fn take(open: &mut VecDeque<Option<Sent>>, first: u64, id: u64) -> Option<Sent> {
    let at = usize::try_from(id.checked_sub(first)?).ok()?;
    open.get_mut(at)?.take()
}

/// An error is judged as the same refusal over HTTP is.
fn refused(lane: &Lane, sent: &Sent, error: &ErrorFrame<'_>) -> Next {
    let code = error.error_code().unwrap_or(ErrorCode::Internal);
    let leader = (code == ErrorCode::NotLeader).then_some(error.text);
    let answer = Answer { status: code.status(), error: Some(code.name()), leader, body: &[] };
    lane.judge(sent, &answer)
}

/// Bytes that are read at once: the answers of two full pipelines of the node, and a frame of the
/// greatest length.
const INPUT_LEN: usize = (64 << 10) + HEADER_LEN + TO_CLIENT_TAIL_LEN_MAX;
