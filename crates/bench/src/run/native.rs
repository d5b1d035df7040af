//! Requests over the native protocol: answers come in any order, by the number of the request.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use epicepoch_client::dial::Alpn;
use epicepoch_wire::Timestamp;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::pong;
use epicepoch_wire::native::{
    ClientHello, ErrorFrame, HEADER_LEN, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, split,
};

use super::channel::Channel;
use super::lane::{Answer, Lane, Next};
use super::ledger::Sent;
use super::pipe::{Protocol, Useless};
use crate::history::BrokenAnswer;

/// A connection that was welcomed, with what is open on it.
pub(super) struct Ids {
    depth: usize,
    /// Requests by id, the one at the front is `first`; `None` is answered. The front is open.
    open: VecDeque<Option<Sent>>,
    first: u64,
    unanswered: usize,
    /// Requests that were given up: an answer to one of them is not one that nobody asked for. No
    /// more than may be open, because nothing is asked after the first.
    given_up: Vec<u64>,
}

impl Protocol for Ids {
    async fn open(lane: &Lane, depth: usize) -> io::Result<(Channel, Self)> {
        let message_max = HEADER_LEN + TO_CLIENT_TAIL_LEN_MAX;
        let mut channel = Channel::open(lane, Alpn::Native, message_max).await?;
        let agent = concat!("epicepoch-bench/", env!("CARGO_PKG_VERSION")).to_owned();
        let token = lane.config.token.clone();
        ClientHello { agent, token, ..ClientHello::default() }.encode(&mut channel.out);
        channel.flush().await?;
        loop {
            channel.read().await?;
            let frame = split(channel.parts().0, TO_CLIENT_TAIL_LEN_MAX);
            let Some(frame) = frame.map_err(io::Error::other)? else { continue };
            let ToClient::Welcome(_) = ToClient::decode(&frame).map_err(io::Error::other)? else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let length = frame.len();
            channel.consume(length);
            let open = VecDeque::with_capacity(depth);
            let given_up = Vec::new();
            return Ok((channel, Self { depth, open, first: 0, unanswered: 0, given_up }));
        }
    }

    fn has_room(&self) -> bool {
        self.unanswered < self.depth && self.open.len() < SPAN_MAX
    }

    fn oldest(&self) -> Option<&Sent> {
        self.open.front()?.as_ref()
    }

    fn ask(&mut self, lane: &Lane, sent: Sent, out: &mut Vec<u8>) {
        let id = self.first + self.open.len() as u64;
        // The configuration holds the count to its bounds.
        let request = Request::new(id, lane.config.count).expect("a count in bounds");
        out.extend_from_slice(&request.to_bytes());
        self.open.push_back(Some(sent));
        self.unanswered += 1;
    }

    fn receive(
        &mut self,
        lane: &Lane,
        input: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless> {
        let (mut at, mut next) = (0, Next::Stay);
        let split = |at| split(&input[at..], TO_CLIENT_TAIL_LEN_MAX).map_err(|_| lane.violated());
        while let Some(frame) = split(at)? {
            at += frame.len();
            let judged = match ToClient::decode(&frame).map_err(|_| lane.violated())? {
                ToClient::Answer { id, range } => {
                    let Some(sent) = self.take(id) else {
                        self.forget(id).ok_or_else(|| lane.unasked(id))?;
                        continue;
                    };
                    let node = lane.target().id;
                    let mut ledger = lane.ledger.borrow_mut();
                    if range.count() == lane.config.count {
                        ledger.answered_at(&sent, node, range, now);
                    } else {
                        let bytes = |count| count * Timestamp::LEN as u64;
                        let (expected, got) = (bytes(lane.config.count), bytes(range.count()));
                        ledger.broken(&sent, node, BrokenAnswer::Length { expected, got });
                    }
                    Next::Stay
                }
                ToClient::Error(error) => match self.take(error.id) {
                    Some(sent) => refused(lane, &sent, &error, now),
                    // It is about the connection, which ends.
                    None if error.closes => Next::Elsewhere,
                    None => {
                        self.forget(error.id).ok_or_else(|| lane.unasked(error.id))?;
                        Next::Stay
                    }
                },
                ToClient::Goodbye => Next::Elsewhere,
                ToClient::Ping(id) => {
                    out.extend_from_slice(&pong(id));
                    Next::Stay
                }
                ToClient::Welcome(_)
                | ToClient::Leader(_)
                | ToClient::Pong(_)
                | ToClient::Unknown => Next::Stay,
            };
            next = next.or(judged);
        }
        Ok((at, next))
    }

    fn give_up_oldest(&mut self, _out: &mut Vec<u8>) -> Option<Sent> {
        let oldest = self.first;
        let sent = self.take(oldest)?;
        self.given_up.push(oldest);
        Some(sent)
    }

    fn drain(&mut self) -> impl Iterator<Item = Sent> {
        self.open.drain(..).flatten()
    }
}

impl Ids {
    /// The request of that id, once.
    fn take(&mut self, id: u64) -> Option<Sent> {
        let at = usize::try_from(id.checked_sub(self.first)?).ok()?;
        let sent = self.open.get_mut(at)?.take()?;
        self.unanswered -= 1;
        while self.open.front().is_some_and(Option::is_none) {
            self.open.pop_front();
            self.first += 1;
        }
        Some(sent)
    }

    /// What came answers a request that was given up, once.
    fn forget(&mut self, id: u64) -> Option<()> {
        let at = self.given_up.iter().position(|given_up| *given_up == id)?;
        self.given_up.swap_remove(at);
        Some(())
    }
}

/// From the oldest request that is open to the newest: while one answer is missing and others come,
/// they are remembered. A service that leaves one behind for so long has stopped answering it.
const SPAN_MAX: usize = 1 << 18;

/// An error is judged as the same refusal over HTTP is.
fn refused(lane: &Lane, sent: &Sent, error: &ErrorFrame<'_>, now: Instant) -> Next {
    let code = error.error_code().unwrap_or(ErrorCode::Internal);
    let leader = (code == ErrorCode::NotLeader).then_some(error.text);
    let answer = Answer { status: code.status(), error: Some(code.name()), leader, body: &[] };
    lane.judge_at(sent, &answer, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_oldest_is_not_answered_only_so_many_others_are_asked() {
        let ids = |span: usize| Ids {
            depth: 2,
            open: vec![None; span].into(),
            first: 0,
            unanswered: 1,
            given_up: Vec::new(),
        };
        assert!(ids(SPAN_MAX - 1).has_room());
        assert!(!ids(SPAN_MAX).has_room());
    }
}
