//! Tests of HTTP/2 frame by frame: which requests share a round, the effect of a reset, waiting for
//! a window, and that answers are the same as over HTTP/1.1.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::time::Instant;

use epicepoch_attack::http2::get;
use epicepoch_server::front::http2::session::STREAMS_MAX;
use epicepoch_wire::http2::frame::{self, Frame, PREFACE, code, flag, kind, setting};
use epicepoch_wire::http2::hpack::{self, Decoder};
use epicepoch_wire::{NodeId, Timestamp};

use crate::node::{Cluster, TestNode, WAIT_MAX};

const WHOLE: u8 = flag::END_HEADERS | flag::END_STREAM;

/// A client that writes each frame itself.
pub(crate) struct Raw {
    stream: TcpStream,
    decoder: Decoder,
    input: Vec<u8>,
    /// Answers that have not ended.
    open: BTreeMap<u32, Answer>,
    /// Answers that have ended, and were not asked for yet.
    whole: BTreeMap<u32, Answer>,
    /// Number of bytes read.
    taken: usize,
    /// What the node has opened of its windows, by stream; 0 is the connection.
    windows: BTreeMap<u32, i64>,
    /// Number of answers to pings.
    pongs: usize,
    /// Whether the node has announced its end.
    is_ending: bool,
    /// Streams that the node has reset, with the codes.
    resets: BTreeMap<u32, u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(&self) -> &str {
        self.headers.get(":status").map_or("", String::as_str)
    }

    fn timestamps(&self) -> Vec<Timestamp> {
        assert_eq!((self.status(), self.body.len() % Timestamp::LEN), ("200", 0), "{self:?}");
        assert_eq!(self.headers["content-length"], self.body.len().to_string());
        let (stamps, _) = self.body.as_chunks();
        stamps.iter().map(|bytes| Timestamp::from_bytes(*bytes)).collect()
    }
}

impl Raw {
    pub(crate) fn new(node: &TestNode, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(node.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let table = settings.iter().find(|(name, _)| *name == setting::HEADER_TABLE_SIZE);
        let decoder = Decoder::new(table.map_or(4096, |(_, len)| *len as usize));
        let (open, whole) = (BTreeMap::new(), BTreeMap::new());
        let (input, windows) = (Vec::new(), BTreeMap::new());
        let (taken, pongs, is_ending, resets) = (0, 0, false, BTreeMap::new());
        let mut raw =
            Self { stream, decoder, input, open, whole, taken, windows, pongs, is_ending, resets };
        let mut hello = PREFACE.to_vec();
        frame::put_settings(&mut hello, settings);
        raw.send(&hello);
        raw
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends requests on several streams in one write.
    fn ask(&mut self, asks: &[(u32, Vec<u8>)]) {
        let mut bytes = Vec::new();
        for (stream, block) in asks {
            frame::put(&mut bytes, kind::HEADERS, WHOLE, *stream, block);
        }
        self.send(&bytes);
    }

    /// The next `count` complete answers, by stream.
    pub(crate) fn answers(&mut self, count: usize) -> BTreeMap<u32, Answer> {
        let mut whole = std::mem::take(&mut self.whole);
        while whole.len() < count {
            self.read(&mut whole);
        }
        whole
    }

    /// Waits for the first `len` bytes of an answer's body. Whole answers are kept for later.
    pub(crate) fn await_body(&mut self, stream: u32, len: usize) {
        let mut whole = std::mem::take(&mut self.whole);
        let has = |answers: &BTreeMap<u32, Answer>| {
            answers.get(&stream).is_some_and(|answer| answer.body.len() >= len)
        };
        while !has(&whole) && !has(&self.open) {
            self.read(&mut whole);
        }
        self.whole = whole;
    }

    /// Bytes that may be sent on a stream, or on the connection for 0, from its begin on.
    pub(crate) fn window(&self, stream: u32) -> i64 {
        65_535 + self.windows.get(&stream).copied().unwrap_or_default()
    }

    /// The body so far of an answer that has not ended.
    pub(crate) fn body(&self, stream: u32) -> &[u8] {
        &self.open[&stream].body
    }

    /// Waits until the node has handled everything that was sent.
    pub(crate) fn ping(&mut self) {
        let before = self.pongs;
        let mut ping = Vec::new();
        frame::put(&mut ping, kind::PING, 0, 0, &[7; 8]);
        self.send(&ping);
        let mut whole = std::mem::take(&mut self.whole);
        while self.pongs == before {
            self.read(&mut whole);
        }
        self.whole = whole;
    }

    /// Waits until the node has announced its end.
    pub(crate) fn await_goaway(&mut self) {
        let mut whole = std::mem::take(&mut self.whole);
        while !self.is_ending {
            self.read(&mut whole);
        }
        self.whole = whole;
    }

    /// Answers the ping that follows the announcement.
    pub(crate) fn know_of_the_end(&mut self) {
        let mut pong = Vec::new();
        frame::put(&mut pong, kind::PING, flag::ACK, 0, b"epicend\n");
        self.send(&pong);
    }

    /// Reads once, and moves answers that are complete to `whole`.
    fn read(&mut self, whole: &mut BTreeMap<u32, Answer>) {
        let mut chunk = [0; 16 << 10];
        let len = self.stream.read(&mut chunk).unwrap();
        assert!(len > 0, "the node has closed");
        self.input.extend_from_slice(&chunk[..len]);
        self.taken += len;
        while let Some(frame) = Frame::split(&self.input).unwrap() {
            let (id, len) = (frame.stream, frame.len());
            match frame.kind {
                kind::HEADERS => {
                    let answer = self.open.entry(id).or_default();
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    let take = |name: &[u8], value: &[u8]| {
                        answer.headers.insert(text(name), text(value));
                    };
                    self.decoder.decode(frame.payload, take).unwrap();
                }
                kind::DATA => {
                    self.open.get_mut(&id).unwrap().body.extend_from_slice(frame.payload);
                }
                kind::WINDOW_UPDATE => {
                    let (more, _) = frame.payload.split_first_chunk().unwrap();
                    *self.windows.entry(id).or_default() += i64::from(u32::from_be_bytes(*more));
                }
                kind::PING if frame.has(flag::ACK) => self.pongs += 1,
                kind::GOAWAY if frame.payload[4..8] == [0; 4] => self.is_ending = true,
                kind::GOAWAY => panic!("sent away: {:?}", frame.payload),
                kind::RST_STREAM => {
                    let (code, _) = frame.payload.split_first_chunk().unwrap();
                    self.resets.insert(id, u32::from_be_bytes(*code));
                }
                _ => {}
            }
            if matches!(frame.kind, kind::HEADERS | kind::DATA) && frame.has(flag::END_STREAM) {
                whole.insert(id, self.open.remove(&id).unwrap());
            }
            self.input.drain(..len);
        }
    }
}

fn serving() -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| config.workers = 1);
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    node
}

/// The header block of a `GET` with a request id. It does not use the HPACK table.
fn told(path: &str, id: &str) -> Vec<u8> {
    let name = "epicepoch-request-id";
    let mut block = get(path);
    block.extend(
        [&[0, name.len() as u8], name.as_bytes(), &[id.len() as u8], id.as_bytes()].concat(),
    );
    block
}

#[test]
fn requests_of_one_write_share_a_round_and_later_answers_are_short() {
    const STREAMS: u32 = 100;
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    client.ask(&[(1, get("/timestamp"))]);
    let mut last = client.answers(1)[&1].timestamps()[0];
    let mut shortest = usize::MAX;
    for turn in 0..5 {
        let first = 3 + 2 * STREAMS * turn;
        let ids = (0..STREAMS).map(|nth| first + 2 * nth);
        let before = (node.metric("epicepoch_rounds_begun_total"), client.taken);
        client.ask(&ids.map(|id| (id, get("/timestamp"))).collect::<Vec<_>>());
        let answers = client.answers(STREAMS as usize);
        shortest = shortest.min((client.taken - before.1) / STREAMS as usize);
        // Reading the metrics begins no round; a check whether the node is ready may begin one.
        assert!(node.metric("epicepoch_rounds_begun_total") - before.0 <= 3);
        // Streams of one burst get their parts of the range in order.
        for (id, answer) in answers {
            assert!(answer.timestamps()[0] > last, "stream {id}");
            last = answer.timestamps()[0];
        }
    }
    assert!(shortest <= 45, "{shortest} bytes for an answer");
}

#[test]
fn every_kind_of_fast_path_answer_can_follow_any_other() {
    let node = serving();
    for table in [4096, 1024, 1023, 0] {
        let mut client = Raw::new(&node, &[(setting::HEADER_TABLE_SIZE, table)]);
        let mut id = 1;
        for (path, count) in
            ["/timestamp", "/timestamp?n=3", "/timestamp?n=1000"].into_iter().zip([1, 3, 1000])
        {
            for (other, length) in
                [("/timestamp", 16), ("/timestamp?n=2", 32), ("/timestamp?n=4&format=range", 24)]
            {
                client.ask(&[
                    (id, get(path)),
                    (id + 2, told(other, "a b")),
                    (id + 4, get("/up")),
                    (id + 6, get(other)),
                ]);
                let answers = client.answers(4);
                assert_eq!(answers[&id].timestamps().len(), count);
                for (answer, request_id) in
                    [(&answers[&(id + 2)], Some("a b")), (&answers[&(id + 6)], None)]
                {
                    assert_eq!((answer.status(), answer.body.len()), ("200", length));
                    let given = answer.headers.get("epicepoch-request-id").map(String::as_str);
                    assert_eq!(given, request_id);
                    assert!(answer.headers.contains_key("date"));
                }
                assert_eq!(answers[&(id + 4)].body, b"ok");
                id += 8;
            }
        }
    }
}

#[test]
fn an_answer_waits_for_its_windows_and_loses_nothing() {
    let node = serving();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    client.ask(&[(1, get("/timestamp")), (3, get("/timestamp?n=2")), (5, get("/nope"))]);
    // The heads of answers come at once. Bodies come as far as the client's windows allow.
    let more = |stream: u32, by: u32| {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
        bytes
    };
    for _ in 0..16 {
        client.send(&more(1, 1));
    }
    assert_eq!(client.answers(1)[&1].timestamps().len(), 1);
    let mut settings = Vec::new();
    frame::put_settings(&mut settings, &[(setting::INITIAL_WINDOW_SIZE, 30)]);
    client.send(&settings);
    client.send(&more(5, 1000));
    assert_eq!(client.answers(1)[&5].status(), "404");
    client.send(&more(3, 2));
    assert_eq!(client.answers(1)[&3].timestamps().len(), 2);
    // The client has not enlarged the window of the connection (65,535 bytes). Both lists together
    // are longer, so the second list has to wait.
    frame::put_settings(&mut settings, &[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    client.send(&settings);
    client.ask(&[(7, get("/timestamp?n=1000")), (9, get("/timestamp?n=4000"))]);
    assert_eq!(client.answers(1)[&7].timestamps().len(), 1000);
    client.send(&more(0, 100_000));
    let listed = client.answers(1)[&9].timestamps();
    assert!(listed.len() == 4000 && listed.is_sorted());
}

#[test]
fn cancelled_requests_of_a_burst_free_their_slots() {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.workers = 1;
        config.election_timeout = WAIT_MAX / 4;
        config.request_buffer = 4;
    });
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut client = Raw::new(&node, &[]);
    let ask = |ids: &[u32]| ids.iter().map(|id| (*id, get("/timestamp?n=2"))).collect::<Vec<_>>();
    client.ask(&ask(&[1, 3, 5, 7]));
    node.await_metric("epicepoch_waiting_requests", 4);
    let take_back = |ids: &[u32]| {
        let mut bytes = Vec::new();
        for id in ids {
            frame::put(&mut bytes, kind::RST_STREAM, 0, *id, &8_u32.to_be_bytes());
        }
        bytes
    };
    client.send(&take_back(&[3, 7]));
    node.await_metric("epicepoch_waiting_requests", 2);
    client.ask(&ask(&[9, 11]));
    node.await_metric("epicepoch_waiting_requests", 4);
    // The client cancels a whole burst (9 and 11), and later a request that waits because the
    // admission limit is reached (17).
    client.send(&take_back(&[9, 11]));
    node.await_metric("epicepoch_waiting_requests", 2);
    client.ask(&ask(&[13, 15, 17]));
    node.await_metric("epicepoch_waiting_requests", 4);
    client.send(&take_back(&[17]));
    node.publish(cluster.leading(1, 3, true));
    let answers = client.answers(4);
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [1, 5, 13, 15]);
    let stamps: Vec<_> = answers.values().flat_map(Answer::timestamps).collect();
    assert!(stamps.is_sorted() && stamps.windows(2).all(|pair| pair[0] != pair[1]));
    assert_eq!(node.metric("epicepoch_waiting_requests"), 0);
}

#[test]
fn a_head_that_is_too_long_is_refused_and_the_connection_stays_open() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let mut block = get("/timestamp");
    // One header is stored in the table and then named again and again, so a few hundred bytes
    // stand for 20 kB.
    block.extend([&b"\x40\x01x\x7f\x01"[..], &[b'v'; 128]].concat());
    block.extend([0xbe; 128]);
    client.ask(&[(1, block), (3, get("/timestamp"))]);
    let answers = client.answers(2);
    assert_eq!((answers[&1].status(), answers[&3].status()), ("431", "200"));
}

/// Sends the head of a request that has a body.
fn begin(client: &mut Raw, stream: u32, block: &[u8]) {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, kind::HEADERS, flag::END_HEADERS, stream, block);
    client.send(&bytes);
}

/// Ends the body of a request.
fn end(client: &mut Raw, stream: u32) {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, kind::DATA, flag::END_STREAM, stream, b"");
    client.send(&bytes);
}

#[test]
fn a_request_is_checked_before_its_body_comes() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    begin(&mut client, 1, &get("/nope"));
    node.await_metric("epicepoch_refusals_total{code=\"NOT_FOUND\"}", 1);
    end(&mut client, 1);
    assert_eq!(client.answers(1)[&1].status(), "404");
}

#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_answered_without_it() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let mut block = get("/timestamp");
    for text in ["expect", "100-continue"] {
        block.extend(if text == "expect" { &[0][..] } else { &[] });
        block.push(text.len() as u8);
        block.extend_from_slice(text.as_bytes());
    }
    begin(&mut client, 1, &block);
    assert_eq!(client.answers(1)[&1].status(), "200");
    client.ping();
    assert_eq!(client.resets[&1], code::NO_ERROR, "the body is not needed");
}

#[test]
fn heads_of_requests_without_their_bodies_are_limited_and_may_be_sent_again() {
    const PATH_LEN: usize = 3_900;
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    // The first block stores the path in the table, so that a few bytes stand for it later.
    let mut first = vec![0x82, 0x86, 0x44];
    hpack::put_string(&mut first, format!("/up?{}", "x".repeat(PATH_LEN - 4)).as_bytes());
    begin(&mut client, 1, &first);
    for nth in 1..STREAMS_MAX as u32 {
        begin(&mut client, 2 * nth + 1, &[0x82, 0x86, 0xbe]);
    }
    client.ping();
    let held = STREAMS_MAX - client.resets.len();
    assert!((10..20).contains(&held), "{held} heads of {PATH_LEN} bytes");
    assert!(client.resets.values().all(|reset| *reset == code::REFUSED_STREAM));
    // A request without a body needs no space, and the end of a body frees some.
    let next = 2 * STREAMS_MAX as u32 + 1;
    client.ask(&[(next, vec![0x82, 0x86, 0xbe])]);
    assert_eq!(client.answers(1)[&next].status(), "200");
    for id in [1, next + 2] {
        if id > next {
            begin(&mut client, id, &[0x82, 0x86, 0xbe]);
        }
        end(&mut client, id);
        assert_eq!(client.answers(1)[&id].status(), "200");
    }
}

#[test]
fn too_long_bodies_count_for_the_rate_of_their_address() {
    const RATE_MAX: u32 = 10;
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        config.limits.address_request_rate_max = NonZeroU32::new(RATE_MAX);
    });
    let mut client = Raw::new(&node, &[]);
    let mut block = get("/up");
    block.extend(b"\0\x0econtent-length\x045000");
    for nth in 0..2 * RATE_MAX {
        begin(&mut client, 2 * nth + 1, &block);
    }
    let answers = client.answers(2 * RATE_MAX as usize);
    let refused = answers.values().filter(|answer| answer.status() == "503").count();
    assert!((1..=RATE_MAX as usize).contains(&refused), "{refused}");
    let last = answers.values().last().map(|answer| &*answer.headers["epicepoch-error"]);
    assert_eq!(last, Some("OVERLOADED"));
}

#[test]
fn a_client_that_never_confirms_the_end_does_not_delay_a_node_that_stops() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    client.ask(&[(1, get("/timestamp"))]);
    assert_eq!(client.answers(1)[&1].timestamps().len(), 1);
    let began = Instant::now();
    assert!(node.workers.shutdown(WAIT_MAX / 2));
    assert!(began.elapsed() < WAIT_MAX / 2, "the connection was cut off");
}

/// An answer without the parts that differ from one answer to the next.
fn comparable(mut headers: BTreeMap<String, String>, body: Vec<u8>, is_stamps: bool) -> String {
    for name in ["date", "connection", "transfer-encoding"] {
        headers.remove(name);
    }
    let len = body.len();
    let body = if is_stamps { format!("{len} bytes") } else { String::from_utf8(body).unwrap() };
    format!("{headers:?} {body}")
}

#[test]
fn answers_over_http2_are_those_over_http1() {
    let mut cluster = Cluster::new(2);
    let mut start = |node: u64| cluster.start_with(node, |config| config.workers = 1);
    let (follower, candidate) = (start(1), start(2));
    let mut published = cluster.nothing(1);
    published.leader = Some(NodeId(2));
    follower.publish(published);
    let leader = serving();
    while follower.request("GET /leader").header("epicepoch-error") != "NOT_LEADER" {
        std::thread::yield_now();
    }
    for node in [&leader, &follower, &candidate] {
        let mut client = Raw::new(node, &[]);
        let mut other = node.connect();
        for (nth, path) in [
            "/timestamp",
            "/timestamp?n=3",
            "/timestamp?n=1001",
            "/timestamp?n=5&format=range",
            "/timestamp?n=0",
            "/timestamp?n=99999999",
            "/timestamp?m=1",
            "/timestamp?format=xml",
            "/timestamp/",
            "/nope",
            "/members",
            "/ready",
            "/leader",
            "/up",
            "/admin/add",
            "/admin/members?x=1",
        ]
        .into_iter()
        .enumerate()
        {
            let id = 2 * nth as u32 + 1;
            let request_id = format!("id {nth}");
            client.ask(&[(id, told(path, &request_id))]);
            let Answer { mut headers, body } = client.answers(1).remove(&id).unwrap();
            let line = format!(
                "GET {path} HTTP/1.1\r\nhost: localhost\r\nepicepoch-request-id: {request_id}\r\n\r\n"
            );
            other.send_raw(line.as_bytes());
            let reply = other.reply().unwrap();
            let status = headers.remove(":status").unwrap();
            assert_eq!(status, reply.status.to_string(), "{path}");
            let is_stamps = path.starts_with("/timestamp") && status == "200";
            let ours = comparable(headers, body, is_stamps);
            let theirs = comparable(reply.headers.clone(), reply.body.clone(), is_stamps);
            assert_eq!(ours, theirs, "{path}");
        }
    }
}
