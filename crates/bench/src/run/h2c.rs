//! Keeps one h2c connection busy: as many tasks as streams may be open, each with one request.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use epicepoch_wire::http::{HEADER_ERROR, HEADER_LEADER};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Uri};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};

use super::lane::{Answer, CONNECT_TIMEOUT, Lane, Next};
use super::wire::{Counted, Tally};
use crate::http1::BODY_LEN_MAX;

/// Asks until the measurement is over.
pub(super) async fn drive(lane: Lane, streams: usize) {
    let lane = Rc::new(lane);
    while !lane.is_over() {
        let tally = Tally::default();
        let opened = timeout(CONNECT_TIMEOUT, open(&lane, tally.clone())).await;
        let next = if let Ok(Ok((sender, uri))) = opened {
            let next = drive_streams(&lane, &sender, &uri, streams).await;
            lane.count_bytes(tally.sent.get(), tally.received.get());
            next
        } else {
            lane.not_connected();
            Next::Elsewhere
        };
        lane.turn(next).await;
    }
    lane.finish();
}

type Opened = Result<(SendRequest<Bytes>, Uri), Box<dyn std::error::Error>>;

async fn open(lane: &Lane, tally: Tally) -> Opened {
    let target = lane.target();
    let uri = format!("http://{}{}", target.name, lane.config.path()).parse()?;
    let stream = TcpStream::connect(target.addr).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(Counted::new(stream, tally))
        .await?;
    // It ends with the connection; whoever waits for an answer sees the error itself.
    tokio::task::spawn_local(async move { drop(connection.await) });
    Ok((sender, uri))
}

/// Until no stream can be used any more.
async fn drive_streams(
    lane: &Rc<Lane>,
    sender: &SendRequest<Bytes>,
    uri: &Uri,
    streams: usize,
) -> Next {
    let mut tasks = JoinSet::new();
    for _ in 0..streams {
        tasks.spawn_local(drive_stream(lane.clone(), sender.clone(), uri.clone()));
    }
    let mut next = Next::Stay;
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.unwrap_or(Next::Elsewhere);
        if next == Next::Stay || matches!(ended, Next::Leader(_)) {
            next = ended;
        }
    }
    next
}

async fn drive_stream(lane: Rc<Lane>, mut sender: SendRequest<Bytes>, uri: Uri) -> Next {
    loop {
        let Some(ticket) = lane.claim() else { return Next::Stay };
        lane.pacer.due(&ticket).await;
        let Ok(ready) = sender.ready().await else {
            lane.give_back(ticket);
            return Next::Elsewhere;
        };
        sender = ready;
        let mut request = Request::new(());
        *request.uri_mut() = uri.clone();
        let sent = lane.sent(ticket);
        let Ok((response, _)) = sender.send_request(request, true) else {
            lane.lost(&sent, false);
            return Next::Elsewhere;
        };
        let next = match timeout_at(lane.deadline(&sent), receive(response)).await {
            Ok(Ok((status, headers, body))) => {
                let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
                let (error, leader) = (header(HEADER_ERROR), header(HEADER_LEADER));
                lane.judge(&sent, &Answer { status, error, leader, body: &body })
            }
            outcome => {
                lane.lost(&sent, outcome.is_err());
                Next::Elsewhere
            }
        };
        match next {
            Next::Stay => {}
            Next::Pause => lane.turn(next).await,
            Next::Leader(_) | Next::Elsewhere => return next,
        }
    }
}

type Received = Result<(u16, HeaderMap, Bytes), h2::Error>;

async fn receive(response: ResponseFuture) -> Received {
    let (head, mut body) = response.await?.into_parts();
    let mut whole = Bytes::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        // One frame is the rule, and costs no copy.
        whole = if whole.is_empty() {
            part
        } else if whole.len() + part.len() > BODY_LEN_MAX {
            return Err(h2::Reason::ENHANCE_YOUR_CALM.into());
        } else {
            let mut joined = BytesMut::from(whole);
            joined.extend_from_slice(&part);
            joined.freeze()
        };
    }
    Ok((head.status.as_u16(), head.headers, whole))
}

/// Bytes of one answer that may be under way: the largest `n` fits.
const WINDOW: u32 = 2 * 1024 * 1024;
/// Bytes of all answers of a connection that may be under way.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
