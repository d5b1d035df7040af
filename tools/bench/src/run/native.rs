//! Requests over the native protocol. Answers come in any order and are matched by request id.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use epicepoch_client::dial::Alpn;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::message::pong;
use epicepoch_wire::native::{
    ClientHello, ErrorFrame, FEATURE_DIRECT, HEADER_LEN, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient,
    split,
};
use epicepoch_wire::{ProvedBy, Timestamp};

use super::channel::Channel;
use super::config::Routing;
use super::load_connection::{Answer, LoadConnection, Next, Useless};
use super::pipe::Protocol;
use super::statistics::Sent;
use crate::history::BrokenAnswer;

/// A connection after its handshake, and its open requests.
pub(super) struct Ids {
    depth: usize,
    /// The requests with the ids from `first` on. `None` stands for an answered request. The front
    /// request is open.
    open: VecDeque<Option<Sent>>,
    first: u64,
    unanswered: usize,
    /// Ids of requests that timed out; late answers to them are allowed. They are at most as many
    /// as may be open, because no request is sent after the first timeout.
    given_up: Vec<u64>,
}

impl Protocol for Ids {
    async fn open(load: &LoadConnection, depth: usize) -> io::Result<(Channel, Self)> {
        let message_max = HEADER_LEN + TO_CLIENT_TAIL_LEN_MAX;
        let mut channel = Channel::open(load, Alpn::Native, message_max).await?;
        let agent = concat!("epicepoch-bench/", env!("CARGO_PKG_VERSION")).to_owned();
        let token = load.config.token.clone();
        let guarantee = load.config.guarantee;
        let is_direct = load.config.routing == Routing::FollowDirectly;
        let features = if is_direct { FEATURE_DIRECT } else { 0 };
        let hello = ClientHello { features, agent, token, guarantee, ..ClientHello::default() };
        hello.encode(&mut channel.out);
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

    fn ask(&mut self, load: &LoadConnection, sent: Sent, out: &mut Vec<u8>) {
        let id = self.first + self.open.len() as u64;
        // The check of the configuration has already bounded the count.
        let request = Request::new(id, load.config.count).expect("a count in bounds");
        out.extend_from_slice(&request.to_bytes());
        self.open.push_back(Some(sent));
        self.unanswered += 1;
    }

    fn receive(
        &mut self,
        load: &LoadConnection,
        input: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless> {
        let (mut at, mut next) = (0, Next::Stay);
        let split = |at| split(&input[at..], TO_CLIENT_TAIL_LEN_MAX).map_err(|_| load.violated());
        while let Some(frame) = split(at)? {
            at += frame.len();
            let judged = match ToClient::decode(&frame).map_err(|_| load.violated())? {
                ToClient::Answer { is_latest: true, .. } => return Err(load.violated()),
                // A node says it only on a connection whose hello names a guarantee.
                ToClient::Answer { proved_by: ProvedBy::Lease, .. } if !load.asks_for_lease() => {
                    return Err(load.violated());
                }
                ToClient::Answer { id, range, is_latest: false, proved_by: _ } => {
                    let Some(sent) = self.take(id) else {
                        self.forget(id).ok_or_else(|| load.unasked(id))?;
                        continue;
                    };
                    let node = load.target().id;
                    let mut statistics = load.statistics.borrow_mut();
                    if range.count() == load.config.count {
                        statistics.answered_at(&sent, node, range, now);
                    } else {
                        let bytes = |count| count * Timestamp::LEN as u64;
                        let (expected, got) = (bytes(load.config.count), bytes(range.count()));
                        statistics.broken(&sent, node, BrokenAnswer::Length { expected, got });
                    }
                    Next::Stay
                }
                ToClient::Error(error) => match self.take(error.id) {
                    Some(sent) => refused(load, &sent, &error, now),
                    // The error concerns the whole connection, which the server closes.
                    None if error.closes => Next::Elsewhere,
                    None => {
                        self.forget(error.id).ok_or_else(|| load.unasked(error.id))?;
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
    /// Removes the request with that id, if it is open.
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

    /// Removes the id of a request that timed out; `None` if there is no such id.
    fn forget(&mut self, id: u64) -> Option<()> {
        let at = self.given_up.iter().position(|given_up| *given_up == id)?;
        self.given_up.swap_remove(at);
        Some(())
    }
}

/// From the oldest open request to the newest one there are at most this many ids. If a request is
/// still open after so many later ones, the service will not answer it any more.
const SPAN_MAX: usize = 1 << 18;

/// Handles an error frame like the same refusal over HTTP.
fn refused(load: &LoadConnection, sent: &Sent, error: &ErrorFrame<'_>, now: Instant) -> Next {
    let code = error.error_code().unwrap_or(ErrorCode::Internal);
    let leader = (code == ErrorCode::NotLeader).then_some(error.text);
    let answer =
        Answer { status: code.status(), error: Some(code.name()), leader, proof: None, body: &[] };
    load.judge_at(sent, &answer, now)
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
