//! Sends a fixed number of requests over one connection, in groups of a fixed size. A group leaves
//! with one write, and the next group only after the last answer to this one. So a node does nearly
//! the same work in every run, and `scripts/gate` can count its instructions. No time is measured.
//!
//! ```sh cargo run --release -p epicepoch-bench --example lockstep -- 127.0.0.1:8881 http1 1 10000
//! ``` Transports are `http1`, `h2c` and `native`. If a file of certificate authorities is named,
//! they run over TLS. HTTP/2 is written by hand, because a library would decide itself which frames
//! leave together.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use epicepoch_bench::http1::parse_response;
use epicepoch_client::Tls;
use epicepoch_client::dial::{Alpn, BlockingSocket, Dialer};
use epicepoch_wire::http2::frame::{self, Frame, flag, kind};
use epicepoch_wire::native::{ClientHello, Request, TO_CLIENT_TAIL_LEN_MAX, ToClient, split};

/// At most this many requests are sent at a time. Every transport allows this many.
const IN_FLIGHT_MAX: u64 = 128;
/// A run sends at most this many requests: HTTP/2 has this many stream ids for a client's requests.
const REQUESTS_MAX: u64 = 1 << 30;
/// Longest wait for an answer. It is long because the node may run in a processor emulator.
const WAIT_MAX: Duration = Duration::from_secs(30);
const TIMESTAMP_LEN: usize = 16;
const USAGE: &str = "usage: lockstep HOST:PORT http1|h2c|native IN_FLIGHT REQUESTS [CA_FILE]";

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (addr, transport, in_flight, requests, ca_file) = match arguments.as_slice() {
        [addr, transport, in_flight, requests] => (addr, transport, in_flight, requests, None),
        [addr, transport, in_flight, requests, ca_file] => {
            (addr, transport, in_flight, requests, Some(ca_file))
        }
        _ => return Err(USAGE.into()),
    };
    let (in_flight, requests): (u64, u64) = (in_flight.parse()?, requests.parse()?);
    let is_sound = (1..=IN_FLIGHT_MAX).contains(&in_flight)
        && requests <= REQUESTS_MAX
        && requests.is_multiple_of(in_flight);
    if !is_sound {
        return Err(format!(
            "IN_FLIGHT is 1 to {IN_FLIGHT_MAX}, REQUESTS a multiple of it, {REQUESTS_MAX} at most"
        )
        .into());
    }
    let mut wire = Wire::open(addr, transport, ca_file)?;
    let exchange: fn(&mut Wire, u64, u64) -> Result<(), Failure> = match transport.as_str() {
        "http1" => http1,
        "h2c" => {
            h2c_open(&mut wire)?;
            h2c
        }
        "native" => {
            native_open(&mut wire)?;
            native
        }
        _ => return Err("transports are http1, h2c and native".into()),
    };
    for batch in 0..requests / in_flight {
        exchange(&mut wire, batch * in_flight, in_flight)?;
    }
    println!("{requests} answers");
    Ok(())
}

/// A connection, with the bytes to send and the received bytes that were not parsed yet.
struct Wire {
    stream: BlockingSocket,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl Wire {
    fn open(addr: &str, transport: &str, ca_file: Option<&String>) -> Result<Self, Failure> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        let alpn = match transport {
            "http1" => Alpn::Http1,
            "h2c" => Alpn::Http2,
            _ => Alpn::Native,
        };
        let tls = ca_file.map(Tls::trusting).transpose()?;
        let stream = Dialer::new(tls.as_ref(), alpn).secure_blocking(stream, addr)?;
        Ok(Self { stream, out: Vec::new(), input: Vec::new() })
    }

    /// Sends all of `out` with one write.
    fn send(&mut self) -> Result<(), Failure> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn read(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes)? {
            0 => Err("the node closed the connection".into()),
            len => {
                self.input.extend_from_slice(&bytes[..len]);
                Ok(())
            }
        }
    }
}

fn http1(wire: &mut Wire, _first: u64, requests: u64) -> Result<(), Failure> {
    for _ in 0..requests {
        wire.out.extend_from_slice(b"GET /timestamp HTTP/1.1\r\nhost: epicepoch\r\n\r\n");
    }
    wire.send()?;
    let mut left = requests;
    while left > 0 {
        wire.read()?;
        while let Some((response, used)) = parse_response(&wire.input)? {
            if response.status != 200 || response.body.len() != TIMESTAMP_LEN {
                return Err(format!("status {}", response.status).into());
            }
            wire.input.drain(..used);
            left = left.checked_sub(1).ok_or("an answer that nobody asked for")?;
        }
    }
    Ok(())
}

fn native_open(wire: &mut Wire) -> Result<(), Failure> {
    ClientHello { agent: "lockstep".to_owned(), ..ClientHello::default() }.encode(&mut wire.out);
    wire.send()?;
    loop {
        wire.read()?;
        let Some(frame) = split(&wire.input, TO_CLIENT_TAIL_LEN_MAX)? else { continue };
        let ToClient::Welcome(_) = ToClient::decode(&frame)? else {
            return Err("the node does not welcome".into());
        };
        let used = frame.len();
        wire.input.drain(..used);
        return Ok(());
    }
}

fn native(wire: &mut Wire, first: u64, requests: u64) -> Result<(), Failure> {
    for id in first..first + requests {
        let request = Request::new(id, 1).ok_or("one timestamp can be asked for")?;
        wire.out.extend_from_slice(&request.to_bytes());
    }
    wire.send()?;
    let mut next = first;
    while next < first + requests {
        wire.read()?;
        while let Some(frame) = split(&wire.input, TO_CLIENT_TAIL_LEN_MAX)? {
            match ToClient::decode(&frame)? {
                ToClient::Answer { id, range, .. } if id == next && range.count() == 1 => next += 1,
                ToClient::Leader(_) => {}
                other => return Err(format!("not the answer to {next}: {other:?}").into()),
            }
            let used = frame.len();
            wire.input.drain(..used);
        }
    }
    Ok(())
}

/// HPACK codes from the static table (RFC 7541, appendix A). The first two are `:method GET` and
/// `:scheme http`. `:path` and `:authority` are sent as the index of their name and a value that no
/// table keeps. Entry 8 is `:status 200`.
const REQUEST_START: [u8; 2] = [0x82, 0x86];
const PATH: &[u8] = b"/timestamp";
const AUTHORITY: &[u8] = b"epicepoch";
const STATUS_200: u8 = 0x88;
/// The largest flow-control window minus the initial one, bytes (RFC 9113, 6.9.1).
const WINDOW_INCREMENT: u32 = (1 << 31) - 1 - 65_535;

fn h2c_open(wire: &mut Wire) -> Result<(), Failure> {
    wire.out.extend_from_slice(frame::PREFACE);
    frame::put_settings(&mut wire.out, &[]);
    // The window has room for all answers of a run, so no other frame is sent.
    frame::put(&mut wire.out, kind::WINDOW_UPDATE, 0, 0, &WINDOW_INCREMENT.to_be_bytes());
    wire.send()?;
    let (mut is_asked, mut is_acknowledged) = (false, false);
    while !(is_asked && is_acknowledged) {
        wire.read()?;
        while let Some(frame) = Frame::split(&wire.input).map_err(|_| "a frame is too long")? {
            match (frame.kind, frame.has(flag::ACK)) {
                (kind::SETTINGS, false) => is_asked = true,
                (kind::SETTINGS, true) => is_acknowledged = true,
                (kind::WINDOW_UPDATE, _) => {}
                _ => return Err(format!("a frame before any request: {frame:?}").into()),
            }
            let used = frame.len();
            wire.input.drain(..used);
        }
    }
    frame::put(&mut wire.out, kind::SETTINGS, flag::ACK, 0, &[]);
    wire.send()
}

fn h2c(wire: &mut Wire, first: u64, requests: u64) -> Result<(), Failure> {
    let mut block = REQUEST_START.to_vec();
    for (name, value) in [(0x04, PATH), (0x01, AUTHORITY)] {
        block.extend_from_slice(&[name, value.len() as u8]);
        block.extend_from_slice(value);
    }
    for number in first..first + requests {
        let flags = flag::END_STREAM | flag::END_HEADERS;
        frame::put(&mut wire.out, kind::HEADERS, flags, 2 * number as u32 + 1, &block);
    }
    wire.send()?;
    let mut left = requests;
    while left > 0 {
        wire.read()?;
        while let Some(frame) = Frame::split(&wire.input).map_err(|_| "a frame is too long")? {
            let payload = frame.payload;
            match frame.kind {
                // A first answer may begin with a change of the table's size (RFC 7541, 6.3).
                kind::HEADERS if payload.iter().take(8).any(|byte| *byte == STATUS_200) => {}
                kind::DATA if payload.len() == TIMESTAMP_LEN && frame.has(flag::END_STREAM) => {
                    left = left.checked_sub(1).ok_or("an answer that nobody asked for")?;
                }
                kind::SETTINGS | kind::WINDOW_UPDATE => {}
                kind::PING if !frame.has(flag::ACK) => {
                    frame::put(&mut wire.out, kind::PING, flag::ACK, 0, payload);
                }
                _ => return Err(format!("not an answer: {frame:?}").into()),
            }
            let used = frame.len();
            wire.input.drain(..used);
        }
    }
    Ok(())
}
