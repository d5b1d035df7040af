//! Keeps one TCP connection busy, for any protocol. Requests that are due are sent together, and
//! answers that have arrived are handled together. The clock is read only once for each such group.
//! At a million requests per second, a reading for each request would take most of the generator's
//! time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until, timeout, timeout_at};

use super::channel::Channel;
use super::load_connection::{CONNECT_TIMEOUT, LoadConnection, Next, Useless};
use super::pacer::Ticket;
use super::statistics::Sent;

/// A transport's protocol. It turns requests into bytes and bytes into answers, and holds the open
/// requests of one connection.
pub(super) trait Protocol: Sized {
    /// Connects, and does the handshake.
    async fn open(load: &LoadConnection, depth: usize) -> io::Result<(Channel, Self)>;

    /// Whether another request may be sent.
    fn has_room(&self) -> bool;

    /// The request that has been open longest.
    fn oldest(&self) -> Option<&Sent>;

    /// Appends a request to `out`. Call it only if [`Self::has_room`] is true.
    fn ask(&mut self, load: &LoadConnection, sent: Sent, out: &mut Vec<u8>);

    /// Handles every complete message of `input`, which came at `now` or earlier. Returns the
    /// length of these messages and which node to ask next.
    fn receive(
        &mut self,
        load: &LoadConnection,
        input: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless>;

    /// Cancels only the oldest request, if the protocol can.
    fn give_up_oldest(&mut self, _out: &mut Vec<u8>) -> Option<Sent> {
        None
    }

    /// Removes and returns all open requests.
    fn drain(&mut self) -> impl Iterator<Item = Sent>;
}

/// Sends requests until the measurement is over.
pub(super) async fn drive<P: Protocol>(load: LoadConnection, depth: usize) {
    while !load.is_over() {
        let opened = timeout(CONNECT_TIMEOUT, P::open(&load, depth)).await;
        let next = if let Ok(Ok((channel, protocol))) = opened {
            let mut pipe = Pipe {
                load: &load,
                channel,
                protocol,
                claimed: None,
                leaving: Next::Stay,
                quiet_until: None,
                alarm: Alarm::new(),
            };
            let next = pipe.drive().await;
            if let Some(ticket) = pipe.claimed {
                load.give_back(ticket);
            }
            load.count_bytes(pipe.channel.sent, pipe.channel.received);
            next
        } else {
            load.not_connected();
            Next::Elsewhere
        };
        load.turn(next).await;
    }
    load.finish();
}

/// A connection on which requests may be sent.
struct Pipe<'a, P> {
    load: &'a LoadConnection,
    channel: Channel,
    protocol: P,
    /// The next request, which is claimed but not sent yet.
    claimed: Option<Ticket>,
    /// Which node to ask next. Unless this is `Stay`, no more requests are sent on this connection,
    /// which only waits for the answers to its open requests.
    leaving: Next,
    /// No request is sent before this time: the pause after a refusal or an answer. Answers are
    /// still read at once.
    quiet_until: Option<tokio::time::Instant>,
    alarm: Alarm,
}

/// Why a wait ended.
enum Woken {
    Read(io::Result<()>),
    Late,
    Due,
}

impl<P: Protocol> Pipe<'_, P> {
    /// Sends requests until the connection is of no more use, or the measurement is over.
    async fn drive(&mut self) -> Next {
        loop {
            self.fill();
            let oldest = self.protocol.oldest().map(|sent| self.load.deadline(sent));
            if !self.channel.out.is_empty() {
                let deadline = oldest.unwrap_or_else(|| self.load.given_up());
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
                    // This connection can send no more requests: the server accepts none, or stream
                    // ids have run out.
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
                        self.load.lost_at(&sent, Instant::now());
                        self.leave(Next::Elsewhere);
                    }
                    None => return self.lose(),
                },
            }
        }
    }

    /// Whether a request may be sent.
    fn is_free(&self) -> bool {
        self.leaving == Next::Stay && self.quiet_until.is_none()
    }

    /// Writes the requests that are due, as many as may be open.
    fn fill(&mut self) {
        self.end_quiet();
        let now = Instant::now();
        while self.is_free() && self.protocol.has_room() {
            let Some(ticket) = self.claimed.take().or_else(|| self.load.claim_at(now)) else {
                return;
            };
            if ticket.in_time && now < ticket.intended {
                self.claimed = Some(ticket);
                return;
            }
            let sent = self.load.sent_at(ticket, now);
            self.protocol.ask(self.load, sent, &mut self.channel.out);
        }
        // No further request may be open now. If the claimed request becomes due meanwhile, the
        // service makes it wait and not the generator.
        if let Some(ticket) = self.claimed.take() {
            self.load.give_back(ticket);
        }
    }

    fn keep_quiet(&mut self, pause: Duration) {
        if !pause.is_zero() {
            self.quiet_until = Some(tokio::time::Instant::now() + pause);
        }
    }

    fn end_quiet(&mut self) {
        if self.quiet_until.is_some_and(|until| tokio::time::Instant::now() >= until) {
            self.quiet_until = None;
        }
    }

    /// Waits for received bytes, the next due request, or the deadline of the oldest open one.
    async fn wait(&mut self, deadline: Option<tokio::time::Instant>) -> Woken {
        let Self { load, channel, claimed, alarm, quiet_until, .. } = self;
        let has_room = self.protocol.has_room() && self.leaving == Next::Stay;
        let quiet_until = quiet_until.filter(|_| self.leaving == Next::Stay);
        let claimed = claimed.filter(|_| has_room);
        let due = async {
            match (quiet_until, &claimed) {
                (Some(until), _) => sleep_until(until).await,
                (None, Some(ticket)) => load.pacer.due(ticket).await,
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

    /// Handles received bytes.
    fn receive(&mut self) -> Result<(), Useless> {
        let (input, out) = self.channel.parts();
        let (used, next) = self.protocol.receive(self.load, input, out, Instant::now())?;
        self.channel.consume(used);
        match next {
            Next::Stay => self.keep_quiet(self.load.config.answer_pause),
            Next::Pause => self.keep_quiet(self.load.config.retry_pause),
            Next::Leader(_) | Next::Elsewhere => self.leave(next),
        }
        Ok(())
    }

    /// Ends sending on this connection. If there are several reasons, the first one decides which
    /// node is asked next.
    fn leave(&mut self, next: Next) {
        if self.leaving == Next::Stay {
            self.leaving = next;
        }
    }

    /// Counts all open requests as lost.
    fn lose(&mut self) -> Next {
        let now = Instant::now();
        for sent in self.protocol.drain() {
            self.load.lost_at(&sent, now);
        }
        Next::Elsewhere
    }
}

/// A timer that is reset only when it fires or must fire earlier. This saves resets, because
/// deadlines nearly always move to a later time before they are reached.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Alarm {
    fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(CONNECT_TIMEOUT)) }
    }

    /// Ready once the deadline has passed.
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
