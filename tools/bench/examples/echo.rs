//! A bare echo in place of a node: it answers `GET /timestamp` over HTTP/1.1 with as many bytes as
//! a node, one read and one write per request. The difference between the echo's latency and a
//! node's is the node's own cost. The echo always gives the same timestamp, so answers cannot be
//! checked (`--verify off`). It serves one request at a time on a connection. ```sh cargo run
//! --release -p epicepoch-bench --example echo -- PORT ANSWER_BYTES [BEHIND] ``` `BEHIND` is the
//! port of another echo. With `BEHIND`, this echo opens a connection to the other echo for each
//! client, and asks the other echo before every answer. So the two echoes behave like a leader and
//! its nearest follower in a round. Loopback only.

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest request, bytes: far longer than a request of a load generator.
const REQUEST_LEN_MAX: usize = 4096;
/// Longest answer, bytes. The shortest answer has the length of its head.
const ANSWER_LEN_MAX: usize = 4096;
const USAGE: &str = "usage: echo PORT ANSWER_BYTES [BEHIND]";
/// The question to the other echo. It has as many bytes as a confirm frame, and ends like an HTTP
/// request.
const QUESTION: &[u8; 84] =
    b"GET /timestamp .................................................................\r\n\r\n";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (port, len, behind) = match arguments.as_slice() {
        [port, len] => (port.parse()?, len.parse()?, None),
        [port, len, behind] => (port.parse()?, len.parse()?, Some(behind.parse()?)),
        _ => return Err(USAGE.into()),
    };
    let timestamp = timestamp(len).ok_or("ANSWER_BYTES has no room for a head, or is too long")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let members = members(port);
        loop {
            let (stream, _) = listener.accept().await?;
            let (timestamp, members) = (timestamp.clone(), members.clone());
            // An error is ignored, because the client notices that its connection ends.
            tokio::spawn(async move { serve(stream, behind, &timestamp, &members).await.ok() });
        }
    })
}

async fn serve(
    mut stream: TcpStream,
    behind: Option<u16>,
    timestamp: &[u8],
    members: &[u8],
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut behind = match behind {
        Some(port) => Some(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?),
        None => None,
    };
    if let Some(behind) = &behind {
        behind.set_nodelay(true)?;
    }
    let (mut request, mut answer) = ([0; REQUEST_LEN_MAX], [0; ANSWER_LEN_MAX]);
    let mut len = 0;
    loop {
        let read = stream.read(&mut request[len..]).await?;
        if read == 0 {
            return Ok(());
        }
        len += read;
        if !request[..len].ends_with(b"\r\n\r\n") {
            continue;
        }
        let is_timestamp_request = request[..len].starts_with(b"GET /timestamp ");
        len = 0;
        if !is_timestamp_request {
            stream.write_all(members).await?;
            continue;
        }
        if let Some(behind) = &mut behind {
            behind.write_all(QUESTION).await?;
            let mut received = 0;
            while received < timestamp.len() {
                match behind.read(&mut answer[received..]).await? {
                    0 => return Ok(()),
                    read => received += read,
                }
            }
        }
        stream.write_all(timestamp).await?;
    }
}

/// Makes an answer of `len` bytes. Returns `None` if an answer cannot have this length.
fn timestamp(len: usize) -> Option<Vec<u8>> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 16\r\n";
    let rest = "epicepoch-echo: ";
    let padding = len.checked_sub(head.len() + rest.len() + 4 + 16)?;
    let answer = format!("{head}{rest}{}\r\n\r\n", "x".repeat(padding)).into_bytes();
    (len <= ANSWER_LEN_MAX).then(|| [answer, vec![7; 16]].concat())
}

/// The answer to `GET /members`: a cluster of this echo alone.
fn members(port: u16) -> Vec<u8> {
    let me = format!(r#"{{"nodeID":1,"addr":"127.0.0.1:{port}"}}"#);
    let body = format!(r#"{{"leader":{me},"members":[{me}]}}"#);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes()
}
