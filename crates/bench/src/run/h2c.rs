//! Requests over HTTP/2 without TLS, on as many streams as may be open.

use std::io;
use std::time::Instant;

use epicepoch_client::dial::Alpn;
use epicepoch_wire::http2::frame::{HEAD_LEN, PAYLOAD_LEN_MAX};

use super::channel::Channel;
use super::lane::{Answer, Lane, Next};
use super::ledger::Sent;
use super::pipe::{Protocol, Useless};
use crate::http2::{Event, Request, Session, SessionError};

/// A connection with its streams.
pub(super) struct Streams {
    session: Session,
    /// What is open, by slot of the session.
    open: Vec<Option<Sent>>,
}

impl Protocol for Streams {
    async fn open(lane: &Lane, depth: usize) -> io::Result<(Channel, Self)> {
        let target = lane.target();
        let mut channel = Channel::open(lane, Alpn::Http2, HEAD_LEN + PAYLOAD_LEN_MAX).await?;
        let (path, authorization) = (lane.config.path(), lane.config.authorization());
        let request = Request::new(&path, &target.name, authorization.as_deref());
        let mut session = Session::new(depth, request, &mut channel.out);
        while !session.is_ready() {
            // The second time it is what the first settings ask for.
            channel.flush().await?;
            channel.read().await?;
            let (input, out) = channel.parts();
            let received = session.receive(input, out).map_err(io::Error::other)?;
            let used = received.map_or(0, |(len, _)| len);
            channel.consume(used);
        }
        Ok((channel, Self { session, open: vec![None; depth] }))
    }

    fn has_room(&self) -> bool {
        self.session.has_room()
    }

    fn oldest(&self) -> Option<&Sent> {
        self.open[self.session.oldest()?].as_ref()
    }

    fn ask(&mut self, _lane: &Lane, sent: Sent, out: &mut Vec<u8>) {
        let slot = self.session.ask(out);
        self.open[slot] = Some(sent);
    }

    fn receive(
        &mut self,
        lane: &Lane,
        input: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless> {
        let (mut at, mut next) = (0, Next::Stay);
        loop {
            let (len, event) = match self.session.receive(&input[at..], out) {
                Ok(Some(received)) => received,
                Ok(None) => return Ok((at, next)),
                Err(SessionError::Unasked(stream)) => return Err(lane.unasked(stream.into())),
                Err(_) => return Err(lane.violated()),
            };
            at += len;
            let judged = match event {
                Event::Nothing => continue,
                Event::Answer(answer) => {
                    let sent = self.open[answer.slot].take().expect("an open stream was asked on");
                    let (status, body) = (answer.status, answer.body);
                    let (error, leader) = (answer.error, answer.leader);
                    lane.judge_at(&sent, &Answer { status, error, leader, body }, now)
                }
                Event::Reset { slot, is_unseen } => {
                    let sent = self.open[slot].take().expect("an open stream was asked on");
                    if is_unseen {
                        lane.unseen(&sent);
                        // It has too much to do, and is still the one to ask.
                        Next::Pause
                    } else {
                        lane.lost_at(&sent, now);
                        Next::Elsewhere
                    }
                }
                Event::GoingAway => {
                    while let Some(slot) = self.session.poll_unseen() {
                        let sent = self.open[slot].take().expect("an open stream was asked on");
                        lane.unseen(&sent);
                    }
                    Next::Elsewhere
                }
            };
            next = next.or(judged);
        }
    }

    fn give_up_oldest(&mut self, out: &mut Vec<u8>) -> Option<Sent> {
        let slot = self.session.oldest()?;
        self.session.cancel(slot, out);
        self.open[slot].take()
    }

    fn drain(&mut self) -> impl Iterator<Item = Sent> {
        self.open.iter_mut().filter_map(Option::take)
    }
}
