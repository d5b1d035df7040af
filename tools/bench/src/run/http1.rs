//! Requests over HTTP/1.1, one after another or several at once (pipelining). Answers come in the
//! order of the requests.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use epicepoch_client::dial::Alpn;
use epicepoch_wire::http::{HEADER_DIRECT, HEADER_ERROR, HEADER_LEADER};

use super::channel::Channel;
use super::config::Routing;
use super::load_connection::{Answer, LoadConnection, Next, Useless};
use super::pipe::Protocol;
use super::statistics::Sent;
use crate::http1::{BODY_LEN_MAX, HEAD_LEN_MAX, parse_response};

/// A connection and the requests that it waits for.
pub(super) struct Answers {
    request: Vec<u8>,
    depth: usize,
    /// Requests that were sent and not answered, oldest first.
    open: VecDeque<Sent>,
}

impl Protocol for Answers {
    async fn open(load: &LoadConnection, depth: usize) -> io::Result<(Channel, Self)> {
        let channel = Channel::open(load, Alpn::Http1, HEAD_LEN_MAX + BODY_LEN_MAX).await?;
        let (path, host) = (load.config.path(), &load.target().name);
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n");
        if let Some(authorization) = load.config.authorization() {
            request = format!("{request}authorization: {authorization}\r\n");
        }
        if load.config.routing == Routing::FollowDirectly {
            request = format!("{request}{HEADER_DIRECT}: 1\r\n");
        }
        let request = format!("{request}\r\n").into_bytes();
        Ok((channel, Self { request, depth, open: VecDeque::with_capacity(depth) }))
    }

    fn has_room(&self) -> bool {
        self.open.len() < self.depth
    }

    fn oldest(&self) -> Option<&Sent> {
        self.open.front()
    }

    fn ask(&mut self, _load: &LoadConnection, sent: Sent, out: &mut Vec<u8>) {
        self.open.push_back(sent);
        out.extend_from_slice(&self.request);
    }

    fn receive(
        &mut self,
        load: &LoadConnection,
        input: &[u8],
        _out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless> {
        let (mut at, mut next) = (0, Next::Stay);
        while at < input.len() {
            let received = parse_response(&input[at..]).map_err(|_| load.violated())?;
            let Some((response, len)) = received else { break };
            at += len;
            // No request is open for this answer. It must not be taken as the answer to the next
            // request, so the connection is closed.
            let Some(sent) = self.open.pop_front() else { return Err(load.violated()) };
            let is_refusal = response.status != 200;
            let header = |name| is_refusal.then(|| response.header(name)).flatten();
            let answer = Answer {
                status: response.status,
                error: header(HEADER_ERROR),
                leader: header(HEADER_LEADER),
                proof: response.proof,
                body: response.body,
            };
            next = next.or(load.judge_at(&sent, &answer, now));
        }
        Ok((at, next))
    }

    fn drain(&mut self) -> impl Iterator<Item = Sent> {
        self.open.drain(..)
    }
}
