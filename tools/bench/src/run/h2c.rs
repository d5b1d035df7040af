//! Requests over HTTP/2 without TLS, on several streams at once.

use std::io;
use std::time::Instant;

use epicepoch_client::dial::Alpn;
use epicepoch_wire::http2::frame::{HEAD_LEN, PAYLOAD_LEN_MAX};

use super::channel::Channel;
use super::load_connection::{Answer, LoadConnection, Next, Useless};
use super::pipe::Protocol;
use super::statistics::Sent;
use crate::http2::{Answer as Http2Answer, Event, Request, Session, SessionError};

/// A connection with its streams.
pub(super) struct Streams {
    session: Session,
    /// Open requests, by slot of the session.
    open: Vec<Option<Sent>>,
}

impl Protocol for Streams {
    async fn open(load: &LoadConnection, depth: usize) -> io::Result<(Channel, Self)> {
        let target = load.target();
        let mut channel = Channel::open(load, Alpn::Http2, HEAD_LEN + PAYLOAD_LEN_MAX).await?;
        let (path, authorization) = (load.config.path(), load.config.authorization());
        let request = Request::new(&path, &target.name, authorization.as_deref());
        let mut session = Session::new(depth, request, &mut channel.out);
        while !session.is_ready() {
            // The first flush sends the preface, the second acknowledges the server's settings.
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

    fn ask(&mut self, _load: &LoadConnection, sent: Sent, out: &mut Vec<u8>) {
        let slot = self.session.ask(out);
        self.open[slot] = Some(sent);
    }

    fn receive(
        &mut self,
        load: &LoadConnection,
        input: &[u8],
        out: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(usize, Next), Useless> {
        let (mut at, mut next) = (0, Next::Stay);
        loop {
            let (len, event) = match self.session.receive(&input[at..], out) {
                Ok(Some(received)) => received,
                Ok(None) => return Ok((at, next)),
                Err(SessionError::Unasked(stream)) => {
                    return Err(load.unasked(stream.into()));
                }
                Err(_) => return Err(load.violated()),
            };
            at += len;
            let judged = match event {
                Event::Nothing => continue,
                Event::Answer { slot, last } => {
                    let sent = self.open[slot].take().expect("an open stream was asked on");
                    let Http2Answer { status, error, leader, proof, body } =
                        self.session.answer(slot, last);
                    load.judge_at(&sent, &Answer { status, error, leader, proof, body }, now)
                }
                Event::Reset { slot, is_unseen } => {
                    let sent = self.open[slot].take().expect("an open stream was asked on");
                    if is_unseen {
                        load.unseen(&sent);
                        // The node is overloaded but still leads, so the same node is asked again
                        // after a pause.
                        Next::Pause
                    } else {
                        load.lost_at(&sent, now);
                        Next::Elsewhere
                    }
                }
                Event::GoingAway => {
                    while let Some(slot) = self.session.poll_unseen() {
                        let sent = self.open[slot].take().expect("an open stream was asked on");
                        load.unseen(&sent);
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
