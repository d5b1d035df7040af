//! One request and its answer over a kept-alive HTTP/1.1 connection (RFC 9112). This module decides
//! nothing, and never repeats a request that was answered.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use epicepoch_wire::http::{HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER, HEADER_PROOF};
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use crate::dial::Dialer;
use crate::error::FailedAttempt;

/// An answer, with the headers that the client uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) cluster: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) leader: Option<String>,
    /// What has proved the answer, in the words of the node.
    pub(crate) proof: Option<String>,
    pub(crate) body: Bytes,
}

/// Requests over HTTP, with idle connections kept by address.
#[derive(Debug)]
pub(crate) struct Transport {
    dialer: Dialer,
    idle: Mutex<HashMap<String, Vec<Connection>>>,
}

type Connection = SendRequest<Empty<Bytes>>;

impl Transport {
    /// Creates a transport without connections.
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, idle: Mutex::default() }
    }

    /// Asks `addr` for `path`. Dropping the future closes the connection.
    ///
    /// If the idle connection that was kept turns out to be closed, the request is sent once more
    /// over a new connection, because a healthy server may close idle connections at any time.
    /// Asking twice is harmless: timestamps that nobody reads are only skipped.
    pub(crate) async fn exchange(&self, addr: &str, path: &str) -> Result<Answer, FailedAttempt> {
        if let Some(kept) = self.take_idle(addr)
            && let Ok(answer) = self.ask(addr, path, kept).await
        {
            return Ok(answer);
        }
        let fresh = self.connect(addr).await?;
        self.ask(addr, path, fresh).await
    }

    async fn ask(
        &self,
        addr: &str,
        path: &str,
        mut to: Connection,
    ) -> Result<Answer, FailedAttempt> {
        let mut request = Request::get(path).header(HOST, addr);
        if let Some(token) = self.dialer.token() {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let request = request.body(Empty::new()).map_err(|error| lost(addr, &error))?;
        to.ready().await.map_err(|error| lost(addr, &error))?;
        let response = to.send_request(request).await.map_err(|error| lost(addr, &error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_LEN_MAX).collect().await;
        let body = body.map_err(|error| FailedAttempt::broken(addr, &*error))?.to_bytes();
        if !to.is_closed() {
            self.keep_idle(addr, to);
        }
        let text = |name| header(&head.headers, name);
        Ok(Answer {
            status: head.status.as_u16(),
            cluster: text(HEADER_CLUSTER),
            error: text(HEADER_ERROR),
            leader: text(HEADER_LEADER),
            proof: text(HEADER_PROOF),
            body,
        })
    }

    async fn connect(&self, addr: &str) -> Result<Connection, FailedAttempt> {
        let stream = self.dialer.dial(addr).await;
        let stream = stream.map_err(|error| FailedAttempt::unreachable(addr, &error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (connection, driver) = handshake.map_err(|error| lost(addr, &error))?;
        // This task ends when its connection ends. An error of the connection is dropped here,
        // because the request gets the same error.
        tokio::spawn(async move { drop(driver.await) });
        Ok(connection)
    }

    fn take_idle(&self, addr: &str) -> Option<Connection> {
        let mut idle = self.lock();
        let kept = idle.get_mut(addr)?;
        while let Some(connection) = kept.pop() {
            if !connection.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    fn keep_idle(&self, addr: &str, connection: Connection) {
        let mut idle = self.lock();
        if let Some(kept) = idle.get_mut(addr) {
            if kept.len() < IDLE_PER_ADDRESS_MAX {
                kept.push(connection);
            }
        } else if idle.len() < IDLE_ADDRESSES_MAX {
            idle.insert(addr.to_owned(), vec![connection]);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn lost(addr: &str, error: &(dyn Error + 'static)) -> FailedAttempt {
    FailedAttempt::broken(addr, error)
}

/// The body of an answer has at most this many bytes. That is several times the size of a list of
/// [`Members::COUNT_MAX`](crate::Members::COUNT_MAX) members.
const ANSWER_LEN_MAX: usize = 256 * 1024;
/// At most this many idle connections to one address are kept.
const IDLE_PER_ADDRESS_MAX: usize = 64;
/// Idle connections are kept for at most this many addresses. That is enough for all members and
/// seeds of a large cluster.
const IDLE_ADDRESSES_MAX: usize = 128;
