//! The driver: the task that carries out calls over the native protocol. It keeps a connection to
//! the leader, sends the callers' requests and gives them the answers. The session decides which
//! node to ask and which answers to accept. The waiters hold the callers.
//!
//! The driver connects at the first call, and keeps the connection alive with pings. If no request
//! is in flight, a call is sent at once; otherwise callers gather in the next request. A refused or
//! lost request is repeated for the callers that still wait. Unused timestamps are only skipped.
//!
//! - `conversation`: the exchange over one connection.
//! - `hedge`: the second connection.
//! - `state`: what the loop and the conversations share.

mod conversation;
mod hedge;
mod state;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use epicepoch_wire::NodeId;
use epicepoch_wire::http::{ErrorCode, cluster_header};
use epicepoch_wire::native::{TO_CLIENT_TAIL_LEN_MAX, ToClient, Welcome, split};
use tracing::Instrument as _;

use crate::clock::now;
use crate::error::{Setback, TimestampsError};
use crate::link::{Link, NoLink, foreign, lost};
use crate::members::is_address;
use conversation::Conversation;
use hedge::Hedge;
use state::{Driver, Limits, Next, TICK, member_addrs};

pub(crate) use state::Core;

impl Core {
    /// Starts a driver if none runs.
    ///
    /// # Errors
    /// The caller is outside of a tokio runtime.
    pub(crate) fn ensure_driven(self: &Arc<Self>) -> Result<(), TimestampsError> {
        if self.is_driven.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.is_driven.store(false, Ordering::Release);
            return Err(TimestampsError::Stopped);
        };
        runtime.spawn(Driver::new(self.clone()).run());
        Ok(())
    }
}

impl Driver {
    /// Serves callers until the client is dropped.
    async fn run(mut self) {
        while !self.core.is_closed.load(Ordering::Acquire) {
            if !self.core.waiters().is_wanted() {
                self.core.notify.notified().await;
                continue;
            }
            let next = match self.connect().await {
                Ok((addr, link, limits)) => {
                    // Each connection has one span; calls have none.
                    let span = tracing::debug_span!("connection", addr, node = self.node.0);
                    let hedge = self.hedge();
                    Conversation::new(&mut self, &addr, link, limits, hedge)
                        .run()
                        .instrument(span)
                        .await
                }
                Err(next) => next,
            };
            self.turn(next).await;
        }
    }

    /// Connects to the node that the session names. That node must lead.
    async fn connect(&mut self) -> Result<(String, Link, Limits), Next> {
        let addr = {
            let mut session = self.core.session();
            let leader = session.leader().map(str::to_owned);
            leader.unwrap_or_else(|| session.next_address())
        };
        let (link, welcome) = self.open(&addr).await?;
        match self.learn(&addr, &welcome) {
            Ok(()) => {}
            Err(Next::Leave(setback @ Setback::NoLeader { .. })) => {
                return Err(self.listen(&addr, link, welcome.node, setback).await);
            }
            Err(next) => return Err(next),
        }
        self.node = welcome.node;
        tracing::debug!(addr, node = welcome.node.0, "connected to the leader");
        if let Some(observer) = &self.core.observer {
            observer.connected(&addr);
        }
        Ok((addr, link, Limits::of(&welcome)))
    }

    /// Waits on the connection to a node that knows no leader, because the node reports the leader
    /// when it learns of one.
    async fn listen(&mut self, addr: &str, mut link: Link, node: NodeId, setback: Setback) -> Next {
        self.core.session().record_setback(&setback, now());
        let until = self.record_setback(setback, 0);
        let mut tick = until.min(now() + TICK);
        while now() < until && !self.core.is_closed.load(Ordering::Acquire) {
            // This is checked in every turn of the loop, in case the node never stops sending.
            if now() >= tick {
                self.expire();
                tick = until.min(now() + TICK);
            }
            let exchanged = tokio::select! {
                exchanged = link.exchange() => exchanged,
                () = tokio::time::sleep_until(tick.into()) => continue,
            };
            if let Err(error) = exchanged {
                return Next::Leave(lost(addr, &error));
            }
            let mut taken = 0;
            while let Ok(Some(frame)) = split(&link.received()[taken..], TO_CLIENT_TAIL_LEN_MAX) {
                taken += frame.len();
                match ToClient::decode(&frame) {
                    Ok(ToClient::Leader(leader)) if leader.node == node => {
                        return Next::Switch(addr.to_owned());
                    }
                    Ok(ToClient::Leader(leader)) if is_address(leader.addr) => {
                        let leader = leader.addr.to_owned();
                        return Next::Follow { by: addr.to_owned(), leader };
                    }
                    Ok(ToClient::Leader(_) | ToClient::Pong(_) | ToClient::Unknown) => {}
                    Ok(_) => {
                        return Next::Leave(lost(
                            addr,
                            &"it sent an unexpected frame before it knew a leader",
                        ));
                    }
                    Err(error) => return Next::Fail(foreign(addr, &error.to_string()).into()),
                }
            }
            link.consume(taken);
        }
        Next::Stay
    }

    /// Opens a connection. Callers whose deadline passes meanwhile fail.
    async fn open(&mut self, addr: &str) -> Result<(Link, Welcome), Next> {
        let core = self.core.clone();
        let link = Link::open(&core.dialer, addr, core.cluster_name.as_deref());
        let opening = tokio::time::timeout(core.attempt_timeout, link);
        let mut opening = pin!(opening);
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                () = tokio::time::sleep(TICK) => self.expire(),
            }
        };
        match opened {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(NoLink::Setback(setback))) => Err(Next::Leave(setback)),
            Ok(Err(NoLink::AnotherCluster(found))) => {
                Err(Next::Fail(core.session().another_cluster(addr, found).into()))
            }
            Ok(Err(NoLink::Bad(bad))) => Err(Next::Fail(bad.into())),
            Err(_elapsed) => Err(Next::Leave(Setback::Silent { addr: addr.to_owned() })),
        }
    }

    /// Applies a welcome: checks the cluster, learns the members and the leader.
    fn learn(&mut self, addr: &str, welcome: &Welcome) -> Result<(), Next> {
        let mut session = self.core.session();
        let name = &welcome.cluster_name;
        session.check_name(addr, name).map_err(|error| Next::Fail(error.into()))?;
        let Some((cluster, history)) = welcome.cluster else {
            let (addr, code) = (addr.to_owned(), ErrorCode::NotReady);
            return Err(Next::Leave(Setback::Refused { addr, code }));
        };
        let cluster = cluster_header(cluster, history);
        session.check_cluster(addr, Some(&cluster)).map_err(|error| Next::Fail(error.into()))?;
        let leader = welcome.leader.as_ref().filter(|leader| is_address(&leader.addr));
        session.learn_members(member_addrs(welcome));
        session.forget_any_leader();
        match leader {
            // The dialled address is kept, because it may be the only one that works from this
            // machine.
            Some(leader) if leader.node == welcome.node => {
                session.set_leader(addr.to_owned());
                Ok(())
            }
            Some(leader) => Err(Next::Follow { by: addr.to_owned(), leader: leader.addr.clone() }),
            None => Err(Next::Leave(Setback::NoLeader { addr: addr.to_owned() })),
        }
    }

    /// Carries out a step: moves to another node, waits, or fails the callers.
    async fn turn(&mut self, next: Next) {
        match next {
            Next::Stay => {}
            Next::Switch(addr) => self.core.session().set_leader(addr),
            Next::Follow { by, leader } => {
                let is_suspect = self.core.session().is_suspect(&leader, now());
                if !is_suspect && self.setbacks.hop() {
                    return self.core.session().set_leader(leader);
                }
                // That node's knowledge is outdated, or the nodes name each other in a circle.
                self.core.session().forget_leader(&by);
                self.pause(Setback::NoLeader { addr: by }).await;
            }
            Next::Leave(setback) | Next::Pause(setback) => {
                self.core.session().record_setback(&setback, now());
                self.pause(setback).await;
            }
            Next::Fail(error) => {
                tracing::error!(%error, "a node answered against the protocol; its answer was rejected");
                self.core.session().forget_any_leader();
                self.core.waiters().fail_open(&error, &mut self.wakers);
                self.wake();
            }
        }
    }

    /// Waits after a setback. Callers whose deadline passes meanwhile fail.
    async fn pause(&mut self, setback: Setback) {
        let until = self.record_setback(setback, 0);
        while now() < until && !self.core.is_closed.load(Ordering::Acquire) {
            tokio::time::sleep_until(until.min(now() + TICK).into()).await;
            self.expire();
        }
    }

    fn hedge(&self) -> Option<Hedge> {
        let name = self.core.cluster_name.clone();
        let dialer = self.core.dialer.clone();
        let timeout = self.core.attempt_timeout;
        self.core.hedge_after.map(|after| Hedge::new(after, timeout, name, dialer))
    }
}
