//! Malformed streams at a real socket: HTTP/1.1 requests and HTTP/2 frames that were cut, flipped,
//! repeated and swapped. Each seed is one stream. When the client sends no more, the connection
//! ends and keeps no slot, and the node still serves others.

use epicepoch_attack::http2::{PREFACE, frame, get, kind};

use crate::node::{Cluster, WAIT_MAX};

const SEEDS: u64 = 400;
/// At most this many changes to one stream.
const CHANGES_MAX: u64 = 6;

/// Random numbers from a seed (Steele et al., splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

fn streams() -> Vec<Vec<u8>> {
    let http1 = [
        &b"GET /up HTTP/1.1\r\nhost: t\r\n\r\nGET /timestamp?n=3 HTTP/1.1\r\nhost: t\r\n\r\n"[..],
        b"POST /timestamp HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhelloGET /ready HTTP/1.1\r\nhost: t\r\n\r\n",
        b"POST /timestamp HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nt: u\r\n\r\n",
        b"GET /members HTTP/1.0\r\nconnection: keep-alive\r\n\r\nHEAD /leader HTTP/1.1\r\nhost: t\r\nupgrade: h2c\r\n\r\n",
    ];
    let mut http2 = PREFACE.to_vec();
    http2.extend(frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0xFF, 0xFF]));
    http2.extend(frame(kind::HEADERS, 5, 1, &get("/timestamp")));
    http2.extend(frame(kind::HEADERS, 4, 3, &get("/timestamp?n=2")));
    http2.extend(frame(kind::DATA, 8, 3, b"\x02bodyxx"));
    http2.extend(frame(kind::DATA, 1, 3, b"body"));
    http2.extend(frame(kind::PRIORITY, 0, 5, &[0, 0, 0, 3, 16]));
    http2.extend(frame(kind::HEADERS, 1, 5, &get("/up")[..3]));
    http2.extend(frame(kind::CONTINUATION, 4, 5, &get("/up")[3..]));
    http2.extend(frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]));
    http2.extend(frame(kind::PING, 0, 0, &[9; 8]));
    http2.extend(frame(kind::RST_STREAM, 0, 5, &[0, 0, 0, 8]));
    http2.extend(frame(kind::GOAWAY, 0, 0, &[0; 8]));
    http1.iter().map(|it| it.to_vec()).chain([http2.clone(), http2]).collect()
}

fn spoil(bytes: &mut Vec<u8>, chance: &mut Chance) {
    for _ in 0..=chance.below(CHANGES_MAX as usize) {
        let (at, to) = (chance.below(bytes.len()), chance.below(bytes.len()));
        let (from, to) = (at.min(to), at.max(to));
        match chance.below(5) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes[at] = chance.below(256) as u8,
            2 => drop(bytes.drain(from..to.min(from + 16))),
            3 => {
                let part = bytes[from..to.min(from + 64)].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes.truncate(to.max(1)),
        }
        if bytes.is_empty() {
            return;
        }
    }
}

#[test]
fn a_malformed_stream_ends_with_its_client_and_keeps_nothing() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start(1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    let streams = streams();
    for seed in 0..SEEDS {
        let mut chance = Chance(seed);
        let mut bytes = streams[chance.below(streams.len())].clone();
        spoil(&mut bytes, &mut chance);
        let mut client = node.connect();
        // The bytes are sent in two parts, because a node must not rely on where they are split.
        let (first, second) = bytes.split_at(chance.below(bytes.len() + 1));
        client.send_raw(first);
        client.send_raw(second);
        client.try_finish_sending();
        // Reads until the connection ends, at most for WAIT_MAX.
        client.read_to_end();
        if seed % 50 == 0 {
            assert_eq!(node.request("GET /timestamp").status, 200, "seed {seed}");
        }
    }
    node.await_metric("epicepoch_waiting_requests", 0);
    let start = std::time::Instant::now();
    // The request for the metrics itself uses one connection.
    while node.metric("epicepoch_connections_open") > 1 {
        assert!(start.elapsed() < WAIT_MAX, "connections are left");
        std::thread::yield_now();
    }
}
