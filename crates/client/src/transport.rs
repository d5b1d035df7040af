//! One request and its answer over a kept-alive HTTP/1.1 connection, and the connections that are
//! idle. This module decides nothing, and never repeats a request that was answered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use epicepoch_wire::http1::Answer;
use epicepoch_wire::native::Token;

use crate::connection::{Connection, ExchangeError, is_plain};
use crate::dial::{Dialer, Socket};
use crate::error::FailedAttempt;

/// Requests over HTTP, with idle connections kept by address.
#[derive(Debug)]
pub(crate) struct Transport {
    dialer: Dialer,
    /// The connections of each address, the one that has been idle longest first.
    idle: Mutex<HashMap<String, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    since: Instant,
    connection: BoxedConnection,
}

/// A connection in a box, because it moves often.
type BoxedConnection = Box<Connection<Socket>>;

/// An answer, which is in the buffer of its connection. Dropping it makes the connection idle.
#[derive(Debug)]
pub(crate) struct Answered<'a> {
    transport: &'a Transport,
    addr: &'a str,
    /// `None` only while this is dropped.
    connection: Option<BoxedConnection>,
}

impl Answered<'_> {
    /// The answer.
    pub(crate) fn answer(&self) -> Answer<'_> {
        self.connection.as_ref().map_or_else(Answer::default, |connection| connection.answer())
    }
}

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take_if(|it| it.is_reusable()) {
            self.transport.keep_idle(self.addr, connection);
        }
    }
}

impl Transport {
    /// Creates a transport without connections.
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, idle: Mutex::default() }
    }

    /// Asks `addr` for `path`. The caller waits until `until`. Dropping the future closes the
    /// connection.
    ///
    /// If the idle connection that was kept turns out to be closed, the request is sent once more
    /// over a new connection, because a healthy server may close idle connections at any time.
    /// Asking twice is harmless: timestamps that nobody reads are only skipped.
    pub(crate) async fn exchange<'a>(
        &'a self,
        addr: &'a str,
        path: &str,
        until: Instant,
    ) -> Result<Answered<'a>, FailedAttempt> {
        if !is_plain(addr) {
            let (addr, reason) = (addr.to_owned(), "the address is not host:port".to_owned());
            return Err(FailedAttempt::Unreachable { addr, reason });
        }
        let token = self.dialer.token();
        if let Some(mut kept) = self.take_idle(addr).await {
            match kept.ask(addr, path, token.as_ref()).await {
                Ok(()) if kept.status() == REQUEST_TIMEOUT => {}
                Ok(()) => return Ok(self.answered(addr, kept)),
                Err(error) if kept.has_received() => return Err(failed(addr, &error)),
                Err(_closed) => {}
            }
        }
        // In a box, because this is rare, and would make the future of every call several times as
        // long.
        Box::pin(self.exchange_anew(addr, path, until, token)).await
    }

    /// Asks over a new connection.
    async fn exchange_anew<'a>(
        &'a self,
        addr: &'a str,
        path: &str,
        until: Instant,
        token: Option<Token>,
    ) -> Result<Answered<'a>, FailedAttempt> {
        let stream = self.dialer.dial_before(addr, until).await;
        let stream = stream.map_err(|error| FailedAttempt::unreachable(addr, &error))?;
        let mut fresh = Box::new(Connection::new(stream));
        let asked = fresh.ask(addr, path, token.as_ref()).await;
        asked.map_err(|error| failed(addr, &error))?;
        Ok(self.answered(addr, fresh))
    }

    fn answered<'a>(&'a self, addr: &'a str, connection: BoxedConnection) -> Answered<'a> {
        Answered { transport: self, addr, connection: Some(connection) }
    }

    /// Takes an idle connection on which nothing has happened since its last answer, and closes
    /// others.
    async fn take_idle(&self, addr: &str) -> Option<BoxedConnection> {
        loop {
            let Idle { mut connection, .. } = self.lock().get_mut(addr)?.pop()?;
            if connection.stream().is_quiet().await {
                return Some(connection);
            }
        }
    }

    fn keep_idle(&self, addr: &str, mut connection: BoxedConnection) {
        connection.shrink();
        let since = Instant::now();
        let is_old = |it: &Idle| since.saturating_duration_since(it.since) > IDLE_TIME_MAX;
        let mut idle = self.lock();
        if let Some(kept) = idle.get_mut(addr) {
            // Nodes close connections that are idle for long, and the client would not notice: it
            // looks only at the connection that it takes, which is the last one.
            let old = kept.iter().take_while(|it| is_old(it)).count();
            kept.drain(..old);
            if kept.len() < IDLE_PER_ADDRESS_MAX {
                kept.push(Idle { since, connection });
            }
            return;
        }
        if idle.len() >= IDLE_ADDRESSES_MAX {
            idle.retain(|_, kept| kept.last().is_some_and(|newest| !is_old(newest)));
        }
        if idle.len() < IDLE_ADDRESSES_MAX {
            idle.insert(addr.to_owned(), vec![Idle { since, connection }]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the failed attempt for an exchange without an answer.
fn failed(addr: &str, error: &ExchangeError) -> FailedAttempt {
    match error {
        ExchangeError::Broken(error) => FailedAttempt::broken(addr, error),
        ExchangeError::NoAnswer(_) | ExchangeError::Unasked => FailedAttempt::lost(addr, error),
    }
}

/// The status with which a server closes a connection that was idle for too long. The request that
/// crosses it may be sent again (RFC 9110, section 15.5.9).
const REQUEST_TIMEOUT: u16 = 408;
/// Idle connections are kept for this long: half as long as a node keeps them by default.
const IDLE_TIME_MAX: Duration = Duration::from_mins(1);
/// At most this many idle connections to one address are kept.
const IDLE_PER_ADDRESS_MAX: usize = 64;
/// Idle connections are kept for at most this many addresses. That is enough for all members and
/// seeds of a large cluster.
const IDLE_ADDRESSES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::dial::Alpn;

    #[tokio::test]
    async fn connections_that_nobody_uses_are_closed_and_make_room_for_other_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = async || {
            let (stream, accepted) = tokio::join!(TcpStream::connect(addr), listener.accept());
            drop(accepted);
            Box::new(Connection::new(Socket::Plain(stream.unwrap())))
        };
        let transport = Transport::new(Dialer::new(None, Alpn::Http1));
        let now = Instant::now();
        let old = now.checked_sub(IDLE_TIME_MAX + Duration::from_secs(1)).unwrap();
        for since in [old, old, now] {
            let connection = connect().await;
            let mut idle = transport.lock();
            idle.entry("a:1".to_owned()).or_default().push(Idle { since, connection });
        }
        transport.keep_idle("a:1", connect().await);
        assert_eq!(transport.lock()["a:1"].len(), 2, "the old ones are closed");
        for at in 1..IDLE_ADDRESSES_MAX {
            let connection = connect().await;
            let kept = vec![Idle { since: old, connection }];
            transport.lock().insert(format!("b:{at}"), kept);
        }
        transport.keep_idle("c:1", connect().await);
        let idle = transport.lock();
        assert_eq!(idle.len(), 2, "addresses without a connection of late are forgotten");
        assert!(idle.contains_key("a:1") && idle.contains_key("c:1"));
    }
}
