//! Keeps one connection busy, whichever protocol it speaks. What is due goes out together and what
//! has come is taken in together, with one reading of the clock for either: at a million requests
//! per second a reading for each would be much of the generator's work.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::time::{Sleep, sleep_until, timeout, timeout_at};

use super::channel::Channel;
use super::lane::{CONNECT_TIMEOUT, Lane, Next};
use super::ledger::Sent;
use super::pacer::Ticket;

/// What a transport does in its own way: requests into bytes, and bytes into answers. It holds
/// what is open on one connection.
pub(super) trait Protocol: Sized {
    /// Connects, and does what comes before the first request.
    async fn open(lane: &Lane, depth: usize) -> io::Result<(Channel, Self)>;

    /// Whether another may be sent.
    fn has_room(&self) -> bool;

    /// The one that has been open for longest.
    fn oldest(&self) -> Option<&Sent>;

    /// Appends a request to `out`. Only with room.
    fn ask(&mut self, lane: &Lane, sent: Sent, out: &mut Vec<u8>);

    /// Takes in every whole message of `input`, which came at `now` or earlier: how many bytes
    /// they were and whom to ask next.
    fn receive(
        &mut self,
        lane: &Lane,
        input: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless>;

    /// Gives up the oldest one alone, if that can be.
    fn give_up_oldest(&mut self, _out: &mut Vec<u8>) -> Option<Sent> {
        None
    }

    /// What is open, all of it.
    fn drain(&mut self) -> impl Iterator<Item = Sent>;
}

/// What came cannot be understood, or answers what was not asked: nothing more is believed. It is
/// counted already.
#[derive(Debug)]
pub(super) struct Useless;

/// Asks until the measurement is over.
pub(super) async fn drive<P: Protocol>(lane: Lane, depth: usize) {
    while !lane.is_over() {
        let opened = timeout(CONNECT_TIMEOUT, P::open(&lane, depth)).await;
        let next = if let Ok(Ok((channel, protocol))) = opened {
            let mut pipe = Pipe {
                lane: &lane,
                channel,
                protocol,
                claimed: None,
                leaving: Next::Stay,
                quiet_until: None,
                alarm: Alarm::new(),
            };
            let next = pipe.drive().await;
            if let Some(ticket) = pipe.claimed {
                lane.give_back(ticket);
            }
            lane.count_bytes(pipe.channel.sent, pipe.channel.received);
            next
        } else {
            lane.not_connected();
            Next::Elsewhere
        };
        lane.turn(next).await;
    }
    lane.finish();
}

/// A connection on which requests may be sent.
struct Pipe<'a, P> {
    lane: &'a Lane,
    channel: Channel,
    protocol: P,
    /// The next to be sent, when its time comes or when there is room.
    claimed: Option<Ticket>,
    /// Once this node is to be left, only what is open on it is still waited for.
    leaving: Next,
    /// Nothing is sent before, because the node has refused. What comes is still read: it is not
    /// later for that.
    quiet_until: Option<tokio::time::Instant>,
    alarm: Alarm,
}

/// What ended a wait.
enum Woken {
    Read(io::Result<()>),
    Late,
    Due,
}

impl<P: Protocol> Pipe<'_, P> {
    /// Until the connection is of no more use, or the measurement is over.
    async fn drive(&mut self) -> Next {
        loop {
            self.fill();
            let oldest = self.protocol.oldest().map(|sent| self.lane.deadline(sent));
            if !self.channel.out.is_empty() {
                let deadline = oldest.unwrap_or_else(|| self.lane.given_up());
                let flushed = timeout_at(deadline, self.channel.flush()).await;
                if !matches!(flushed, Ok(Ok(()))) {
                    return self.lose();
                }
            }
            if oldest.is_none() {
                if self.leaving != Next::Stay {
                    return self.leaving;
                }
                if !self.protocol.has_room() {
                    // There never will be: the peer takes no request, or streams have run out.
                    return Next::Pause;
                }
                if self.claimed.is_none() && self.is_free() {
                    return Next::Stay;
                }
            }
            match self.wait(oldest).await {
                Woken::Due => {}
                Woken::Read(Ok(())) => {
                    if self.receive().is_err() {
                        return self.lose();
                    }
                }
                Woken::Read(Err(_)) => return self.lose(),
                Woken::Late => match self.protocol.give_up_oldest(&mut self.channel.out) {
                    Some(sent) => {
                        self.lane.lost_at(&sent, Instant::now());
                        self.leave(Next::Elsewhere);
                    }
                    None => return self.lose(),
                },
            }
        }
    }

    /// Whether something may be sent.
    fn is_free(&self) -> bool {
        self.leaving == Next::Stay && self.quiet_until.is_none()
    }

    /// Makes ready what is due, as far as it may be open.
    fn fill(&mut self) {
        self.end_quiet();
        let now = Instant::now();
        while self.is_free() && self.protocol.has_room() {
            let Some(ticket) = self.claimed.take().or_else(|| self.lane.claim_at(now)) else {
                return;
            };
            if ticket.in_time && now < ticket.intended {
                self.claimed = Some(ticket);
                return;
            }
            let sent = self.lane.sent_at(ticket, now);
            self.protocol.ask(self.lane, sent, &mut self.channel.out);
        }
        // Nothing can be sent here for now: if its time comes meanwhile, it waits for the service
        // and not for the generator.
        if let Some(ticket) = self.claimed.take() {
            self.lane.give_back(ticket);
        }
    }

    fn end_quiet(&mut self) {
        if self.quiet_until.is_some_and(|until| tokio::time::Instant::now() >= until) {
            self.quiet_until = None;
        }
    }

    /// Waits for bytes, for the next request to be due, and for the oldest one to be too late.
    async fn wait(&mut self, deadline: Option<tokio::time::Instant>) -> Woken {
        let Self { lane, channel, claimed, alarm, quiet_until, .. } = self;
        let has_room = self.protocol.has_room() && self.leaving == Next::Stay;
        let quiet_until = quiet_until.filter(|_| self.leaving == Next::Stay);
        let claimed = claimed.filter(|_| has_room);
        let due = async {
            match (quiet_until, &claimed) {
                (Some(until), _) => sleep_until(until).await,
                (None, Some(ticket)) => lane.pacer.due(ticket).await,
                (None, None) => std::future::pending().await,
            }
        };
        let late = std::future::poll_fn(|context| match deadline {
            Some(deadline) => alarm.poll_past(deadline, context),
            None => Poll::Pending,
        });
        tokio::select! {
            biased;
            read = channel.read() => Woken::Read(read),
            () = late => Woken::Late,
            () = due => Woken::Due,
        }
    }

    /// Takes in what came.
    fn receive(&mut self) -> Result<(), Useless> {
        let (input, out) = self.channel.parts();
        let (used, next) = self.protocol.receive(self.lane, input, out, Instant::now())?;
        self.channel.consume(used);
        match next {
            Next::Stay => {}
            Next::Pause => {
                let until = tokio::time::Instant::now() + self.lane.config.retry_pause;
                self.quiet_until = Some(until);
            }
            Next::Leader(_) | Next::Elsewhere => self.leave(next),
        }
        Ok(())
    }

    /// Sends nothing more here. The first reason counts.
    fn leave(&mut self, next: Next) {
        if self.leaving == Next::Stay {
            self.leaving = next;
        }
    }

    /// What is open gets no answer.
    fn lose(&mut self) -> Next {
        let now = Instant::now();
        for sent in self.protocol.drain() {
            self.lane.lost_at(&sent, now);
        }
        Next::Elsewhere
    }
}

/// A timer that is set again only when it went off, or for an earlier time: deadlines nearly always
/// move on before they come.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(CONNECT_TIMEOUT)) }
    }

    /// Ready when the time has come.
    fn poll_past(&mut self, deadline: tokio::time::Instant, context: &mut Context<'_>) -> Poll<()> {
        if self.sleep.deadline() > deadline {
            self.sleep.as_mut().reset(deadline);
        }
        while self.sleep.as_mut().poll(context).is_ready() {
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
