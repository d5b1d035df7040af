//! Keeps one HTTP/1.1 connection busy, with one request open or with several (pipelining).

use std::collections::VecDeque;

use tokio::time::{timeout, timeout_at};

use super::lane::{Answer, CONNECT_TIMEOUT, Lane, Next};
use super::ledger::Sent;
use super::pacer::Ticket;
use crate::http1::{Connection, Response};

/// Asks until the measurement is over.
pub(super) async fn drive(lane: Lane, pipeline: usize) {
    while !lane.is_over() {
        let host = &lane.target().name;
        let request = format!("GET {} HTTP/1.1\r\nhost: {host}\r\n\r\n", lane.config.path());
        let opened = timeout(CONNECT_TIMEOUT, Connection::open(lane.target().addr)).await;
        let next = if let Ok(Ok(connection)) = opened {
            let mut pipe = Pipe {
                lane: &lane,
                connection,
                request: request.into_bytes(),
                depth: pipeline,
                open: VecDeque::with_capacity(pipeline),
                out: Vec::new(),
            };
            let next = pipe.drive().await;
            let (sent, received) = pipe.connection.bytes();
            lane.count_bytes(sent, received);
            next
        } else {
            lane.not_connected();
            Next::Elsewhere
        };
        lane.turn(next).await;
    }
    lane.finish();
}

/// A connection and what is open on it.
struct Pipe<'a> {
    lane: &'a Lane,
    connection: Connection,
    request: Vec<u8>,
    depth: usize,
    /// Sent and not answered, oldest first; answers come in this order.
    open: VecDeque<Sent>,
    /// Bytes to send.
    out: Vec<u8>,
}

impl Pipe<'_> {
    /// Until the connection is of no more use, or the measurement is over.
    async fn drive(&mut self) -> Next {
        let mut claimed: Option<Ticket> = None;
        // Once this node is to be left, only what is open on it is still waited for.
        let mut leaving = Next::Stay;
        loop {
            // As many as are due go out together.
            self.out.clear();
            while self.open.len() < self.depth && leaving == Next::Stay {
                claimed = claimed.or_else(|| self.lane.claim());
                let Some(ticket) = claimed else { break };
                if self.open.is_empty() {
                    self.lane.pacer.due(&ticket).await;
                } else if !ticket.is_due() {
                    break;
                }
                self.open.push_back(self.lane.sent(ticket));
                self.out.extend_from_slice(&self.request);
                claimed = None;
            }
            let Some(oldest) = self.open.front().copied() else {
                return self.leave(claimed, leaving);
            };
            let deadline = self.lane.deadline(&oldest);
            if !self.out.is_empty() {
                match timeout_at(deadline, self.connection.send(&self.out)).await {
                    Ok(Ok(())) => {}
                    outcome => return self.lost(claimed, outcome.is_err()),
                }
            }
            let room = self.open.len() < self.depth && leaving == Next::Stay;
            let waits = claimed.filter(|_| room);
            let next = {
                let due = async {
                    match &waits {
                        Some(ticket) => self.lane.pacer.due(ticket).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    received = timeout_at(deadline, self.connection.receive()) => match received {
                        Ok(Ok(response)) => Some(judge(self.lane, &mut self.open, &response)),
                        outcome => {
                            let timed_out = outcome.is_err();
                            return self.lost(claimed, timed_out);
                        }
                    },
                    () = due => None,
                }
            };
            let next = match next {
                Some(next) => self.received(next),
                None => Ok(Next::Stay),
            };
            match next {
                Ok(Next::Stay) => {}
                Ok(Next::Pause) => self.lane.turn(Next::Pause).await,
                Ok(next) if leaving == Next::Stay => leaving = next,
                Ok(_) => {}
                Err(()) => return self.lost(claimed, false),
            }
        }
    }

    /// Judges what came with the answer that was judged as `next`.
    fn received(&mut self, mut next: Next) -> Result<Next, ()> {
        while !self.open.is_empty() {
            let Some(response) = self.connection.received().map_err(drop)? else { break };
            let judged = judge(self.lane, &mut self.open, &response);
            if next == Next::Stay {
                next = judged;
            }
        }
        Ok(next)
    }

    /// What is open gets no answer.
    fn lost(&mut self, claimed: Option<Ticket>, timed_out: bool) -> Next {
        for sent in self.open.drain(..) {
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

fn judge(lane: &Lane, open: &mut VecDeque<Sent>, response: &Response<'_>) -> Next {
    // An answer that nobody asked for is not an answer to the next request either.
    let Some(sent) = open.pop_front() else { return Next::Elsewhere };
    let ok = response.status == 200;
    let header = |name| if ok { None } else { response.header(name) };
    let answer = Answer {
        status: response.status,
        error: header(epicepoch_wire::http::HEADER_ERROR),
        leader: header(epicepoch_wire::http::HEADER_LEADER),
        body: response.body,
    };
    lane.judge(&sent, &answer)
}
