//! What streams of our gRPC service hold, give back and lose: clients that pad, reset, ask faster
//! than they read, or read nothing; errors behind answers that are not read yet; a node that stops.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::Instant;

use epicepoch_core::publication::Published;
use epicepoch_wire::grpc::message::{self, MESSAGE_LEN_MAX};
use epicepoch_wire::grpc::oracle::{self, TimestampRequest};
use epicepoch_wire::grpc::protobuf::put_bytes;
use epicepoch_wire::grpc::{health, reflection};
use epicepoch_wire::http2::frame::{self, flag, kind, setting};
use epicepoch_wire::{Mode, Timestamp};

use crate::grpc::{HEAD, begin, data, head, single, window};
use crate::http2_frames::Raw;
use crate::limits::connect_from;
use crate::node::{Client, Cluster, TestNode, WAIT_MAX};
use crate::oracle::{
    ONE, encoded, leading, send_without_reading, service, serving, stamped, with_grpc,
};

/// What a client has sent, by stream; 0 is the connection.
#[derive(Default)]
struct Sent(BTreeMap<u32, i64>);

impl Sent {
    /// Sends a DATA frame when the windows allow it.
    fn send(&mut self, client: &mut Raw, id: u32, flags: u8, payload: &[u8]) {
        let (len, start) = (payload.len() as i64, Instant::now());
        for at in [0, id] {
            let used = self.0.entry(at).or_default();
            *used += len;
            while *used > client.window(at) {
                assert!(start.elapsed() < WAIT_MAX, "the window of {at} stays closed");
                client.ping();
            }
        }
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind::DATA, flags, id, payload);
        client.send(&bytes);
    }
}

/// A request whose unknown field makes its message as long as a message may be.
fn longest() -> Vec<u8> {
    let mut bytes = Vec::new();
    message::put(&mut bytes, |out| put_bytes(out, 15, &[b'x'; MESSAGE_LEN_MAX - 3]));
    bytes
}

/// A leader that gives no timestamps yet, and a client whose request waits on stream 1.
fn waiting(path: &str, flags: u8) -> (Cluster, TestNode, Raw) {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        (config.workers, config.grpc) = (1, true);
        config.election_timeout = WAIT_MAX / 4;
    });
    node.publish(cluster.leading(1, 3, false));
    node.await_metric("epicepoch_is_leader", 1);
    let mut client = Raw::new(&node, &[]);
    client.send(&[begin(1, path), data(1, flags, &[encoded(ONE)])].concat());
    node.await_metric("epicepoch_waiting_requests", 1);
    (cluster, node, client)
}

/// Without a turn of its own for a full outbox, each 32 KiB would wait for the sweep, two seconds.
#[test]
fn paused_streams_go_on_at_once_when_their_client_reads() {
    let node = serving();
    let start = Instant::now();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    client.send(&window(0, 1 << 30));
    let mut asked = Vec::new();
    put_bytes(&mut asked, 7, b"*");
    for id in [1, 3, 5] {
        client.send(&begin(id, reflection::INFO));
        for _ in 0..4 {
            client.send(&data(id, 0, &vec![asked.clone(); 1000]));
        }
        client.send(&[window(id, 1 << 30), data(id, flag::END_STREAM, &[])].concat());
        assert_eq!(client.answers(1)[&id].messages().len(), 4000);
    }
    for id in [7, 9, 11] {
        client.send(&begin(id, oracle::STREAM_TIMESTAMPS));
        let sent = send_without_reading(&mut client, id);
        client.send(&[window(id, 1 << 30), data(id, flag::END_STREAM, &[])].concat());
        assert_eq!(stamped(&client.answers(1)[&id]).len(), sent);
    }
    assert!(start.elapsed() < WAIT_MAX, "{:?} for a few megabytes", start.elapsed());
}

#[test]
fn an_error_follows_the_answers_that_are_not_read_yet() {
    let (cluster, node) = leading();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 10)]);
    for id in [1, 3] {
        let two = data(id, 0, &[encoded(ONE), encoded(ONE)]);
        client.send(&[begin(id, oracle::STREAM_TIMESTAMPS), two].concat());
        client.await_body(id, 10);
    }
    // A request that is wrong, and one that the node refuses because it leads no longer.
    let many = encoded(TimestampRequest { count: (1 << 32) + 1, ..ONE });
    client.send(&data(1, 0, &[many, encoded(ONE)]));
    client.ping();
    node.publish(cluster.leading(1, 3, false));
    client.send(&data(3, 0, &[encoded(ONE)]));
    client.ping();
    node.publish(cluster.nothing(1));
    node.await_metric("epicepoch_waiting_requests", 0);
    for (id, code) in [(1, "3"), (3, "14")] {
        client.send(&window(id, 1000));
        let answer = client.answers(1).remove(&id).unwrap();
        assert_eq!((answer.call_status().0, stamped(&answer).len()), (code, 2), "{answer:?}");
    }
}

#[test]
fn parts_of_messages_do_not_close_the_window_of_the_connection() {
    const STREAMS: u32 = 40;
    let node = serving();
    let (mut client, mut sent) = (Raw::new(&node, &[]), Sent::default());
    let message = longest();
    let (part, last) = message.split_at(message.len() - 1);
    let ids = (0..STREAMS).map(|at| 2 * at + 1);
    for id in ids.clone() {
        client.send(&begin(id, oracle::STREAM_TIMESTAMPS));
        sent.send(&mut client, id, 0, part);
    }
    for id in ids {
        sent.send(&mut client, id, flag::END_STREAM, last);
    }
    for (id, answer) in client.answers(STREAMS as usize) {
        assert_eq!((answer.call_status(), stamped(&answer).len()), (("0", ""), 1), "{id}");
    }
}

#[test]
fn the_call_whose_part_of_a_message_is_too_much_ends() {
    const STREAMS: usize = 100;
    let node = serving();
    for (path, part_len) in
        [(oracle::STREAM_TIMESTAMPS, longest().len() - 1), (oracle::GET_TIMESTAMP, longest().len())]
    {
        let (mut client, mut sent) = (Raw::new(&node, &[]), Sent::default());
        for id in (1..).step_by(2).take(STREAMS) {
            client.send(&begin(id, path));
            sent.send(&mut client, id, 0, &longest()[..part_len]);
        }
        // 256 KiB fit.
        let ended = client.answers(STREAMS - 64);
        assert_eq!(ended.len(), STREAMS - 64);
        for answer in ended.values() {
            let (code, text) = answer.call_status();
            assert!(code == "8" && text.starts_with("unfinished requests"), "{text}");
        }
        // A whole request is answered as before.
        let mut whole = Vec::new();
        put_bytes(&mut whole, 15, &[b'x'; 1000]);
        client.send(&begin(999, path));
        sent.send(&mut client, 999, flag::END_STREAM, &content(&[whole]));
        assert_eq!(client.answers(1)[&999].call_status(), ("0", ""));
        // A stream that ends makes space for another.
        let mut reset = Vec::new();
        frame::put(&mut reset, kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes());
        client.send(&[reset, begin(1001, path)].concat());
        sent.send(&mut client, 1001, 0, &longest()[..part_len]);
        sent.send(&mut client, 1001, flag::END_STREAM, &longest()[part_len..]);
        assert_eq!(client.answers(1)[&1001].call_status(), ("0", ""));
    }
}

/// A node that counts requests for the rate of an address. The address of `Raw` has none left of
/// `rate` in a second.
fn rated(rate: u32) -> TestNode {
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        (config.workers, config.grpc) = (1, true);
        config.limits.address_request_rate_max = NonZeroU32::new(rate);
    });
    node.publish(cluster.leading(1, 3, true));
    // Requests of another address do not count.
    await_answer(&mut connect_from(3, &node));
    node
}

/// Asks until the node gives a timestamp.
fn await_answer(client: &mut Client) {
    let start = Instant::now();
    while client.request("GET /timestamp").status != 200 {
        assert!(start.elapsed() < WAIT_MAX, "the node does not serve");
    }
}

#[test]
fn messages_of_reflection_count_for_the_rate() {
    const REQUESTS: usize = 1000;
    let node = rated(10);
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 1 << 30)]);
    let mut asked = Vec::new();
    put_bytes(&mut asked, 7, b"*");
    let requests = data(1, flag::END_STREAM, &vec![asked; REQUESTS]);
    client.send(&[window(0, 1 << 30), begin(1, reflection::INFO), requests].concat());
    let answer = client.answers(1).remove(&1).unwrap();
    let answered = answer.messages().len();
    assert!(answer.call_status().0 == "8" && (1..REQUESTS).contains(&answered), "{answered}");
}

#[test]
fn malformed_requests_count_for_the_rate() {
    const CALLS: u32 = 250;
    let node = rated(10);
    let mut client = Raw::new(&node, &[]);
    let calls: Vec<_> =
        (0..CALLS).flat_map(|at| single(2 * at + 1, oracle::GET_TIMESTAMP, b"\x0b")).collect();
    client.send(&calls);
    let answers = client.answers(CALLS as usize);
    let of = |code: &str| answers.values().filter(|it| it.call_status().0 == code).count();
    assert!(of("13") >= 10 && of("8") > 0 && of("13") + of("8") == answers.len());
}

#[test]
fn streams_of_a_cluster_that_goes_to_interval_mode_end_and_say_so() {
    for leads in [false, true] {
        let (cluster, node) = leading();
        let mut client = Raw::new(&node, &[]);
        client.send(&[begin(1, oracle::STREAM_TIMESTAMPS), data(1, 0, &[encoded(ONE)])].concat());
        client.await_body(1, 20);
        let next = if leads { cluster.leading(1, 3, true) } else { cluster.nothing(1) };
        node.publish(Published { mode: Mode::Interval, ..next });
        let answer = client.answers(1).remove(&1).unwrap();
        let (code, text) = answer.call_status();
        assert!(code == "9" && text.contains("interval"), "{text}");
    }
}

#[test]
fn a_stream_that_its_node_ends_gives_its_window_back_before_its_client_reads() {
    let (cluster, node) = leading();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    client.send(&[begin(1, oracle::STREAM_TIMESTAMPS), window(0, 1 << 30)].concat());
    // Two streams use up the window of the connection, and pause.
    let burst = data(3, 0, &vec![encoded(ONE); 500]);
    let len = burst.len() - frame::HEAD_LEN;
    let mut used = send_without_reading(&mut client, 1) * stream_len(1) + len;
    client.send(&begin(3, oracle::STREAM_TIMESTAMPS));
    client.ping();
    while used as i64 <= client.window(0) {
        client.send(&burst);
        client.ping();
        used += len;
    }
    let before = client.window(0);
    node.publish(cluster.nothing(1));
    let start = Instant::now();
    while client.window(0) == before {
        assert!(start.elapsed() < WAIT_MAX, "the window of the connection stays closed");
        client.ping();
    }
    client.send(&window(1, 1 << 30));
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!(answer.call_status().0, "14");
    assert!(stamped(&answer).is_sorted_by(|one, next| one.first < next.first));
}

#[test]
fn a_reset_of_a_paused_stream_gives_its_window_back() {
    let node = serving();
    let mut client = Raw::new(&node, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    client.send(&[begin(1, oracle::STREAM_TIMESTAMPS), window(0, 1 << 30)].concat());
    let sent = send_without_reading(&mut client, 1);
    let mut reset = Vec::new();
    frame::put(&mut reset, kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    client.send(&[reset, begin(3, oracle::STREAM_TIMESTAMPS), window(3, 1 << 30)].concat());
    let mut used = Sent::default();
    used.0.insert(0, (sent * stream_len(1)) as i64);
    // More than two windows go through on another stream.
    for _ in 0..20 {
        used.send(&mut client, 3, 0, &content(&vec![encoded(ONE); 1000]));
    }
    used.send(&mut client, 3, flag::END_STREAM, &[]);
    assert_eq!(stamped(&client.answers(1)[&3]).len(), 20_000);
}

/// Bytes that so many requests take of a window.
fn stream_len(requests: usize) -> usize {
    content(&vec![encoded(ONE); requests]).len()
}

/// Messages in the payload of a frame.
fn content(messages: &[Vec<u8>]) -> Vec<u8> {
    data(1, 0, messages)[frame::HEAD_LEN..].to_vec()
}

#[test]
fn padding_counts_for_the_windows_and_is_no_part_of_a_message() {
    const FRAMES: usize = 1000;
    const PADDING: u8 = 255;
    let node = serving();
    let (mut client, mut sent) = (Raw::new(&node, &[]), Sent::default());
    client.send(&begin(1, oracle::STREAM_TIMESTAMPS));
    let padded = [&[PADDING][..], &content(&[encoded(ONE)]), &[0; PADDING as usize]].concat();
    for at in 1..=FRAMES {
        sent.send(&mut client, 1, flag::PADDED, &padded);
        client.send(&[window(1, 100), window(0, 100)].concat());
        client.await_body(1, at);
    }
    sent.send(&mut client, 1, flag::PADDED | flag::END_STREAM, &[2, 0, 0]);
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!((answer.call_status(), stamped(&answer).len()), (("0", ""), FRAMES));
}

#[test]
fn trailers_end_a_call_as_its_last_frame_does() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let trailers = |id: u32| {
        let mut bytes = Vec::new();
        let block = b"\x00\x03x-a\x01b";
        frame::put(&mut bytes, kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, id, block);
        bytes
    };
    for (id, path) in [(1, oracle::GET_TIMESTAMP), (3, oracle::STREAM_TIMESTAMPS)] {
        client.send(&[begin(id, path), data(id, 0, &[encoded(ONE)]), trailers(id)].concat());
        let answer = client.answers(1).remove(&id).unwrap();
        assert_eq!((answer.call_status(), stamped(&answer).len()), (("0", ""), 1));
    }
    // A call may end so without a request, or in the middle of one.
    client.send(&[begin(5, oracle::STREAM_TIMESTAMPS), trailers(5)].concat());
    assert_eq!(client.answers(1)[&5].call_status(), ("0", ""));
    let half = [&data(7, 0, &[])[..3], &[kind::DATA, 0, 0, 0, 0, 7]].concat();
    let half = [&[0, 0, 3][..], &half[3..], &[0, 0, 0]].concat();
    client.send(&[begin(7, oracle::STREAM_TIMESTAMPS), half, trailers(7)].concat());
    let text = "the call ended in the middle of a message";
    assert_eq!(client.answers(1)[&7].call_status(), ("13", text));
}

#[test]
fn a_stream_ends_when_its_token_is_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "client-token-0123456789\n").unwrap();
    let mut cluster = Cluster::new(1);
    let node = cluster.start_with(1, |config| {
        (config.workers, config.grpc) = (1, true);
        config.authz.client_token_file = Some(file.clone());
    });
    node.publish(cluster.leading(1, 3, true));
    node.await_metric("epicepoch_has_grant", 1);
    let mut client = Raw::new(&node, &[]);
    let mut bytes = Vec::new();
    let token = [("authorization", "Bearer client-token-0123456789")];
    let block = head(oracle::STREAM_TIMESTAMPS, &token);
    frame::put(&mut bytes, kind::HEADERS, HEAD, 1, &block);
    client.send(&[bytes, data(1, 0, &[encoded(ONE)])].concat());
    client.await_body(1, 20);
    std::fs::write(&file, "another-token-0123456789\n").unwrap();
    node.shared.authz.reload();
    client.send(&data(1, 0, &[encoded(ONE)]));
    let answer = client.answers(1).remove(&1).unwrap();
    assert_eq!((answer.call_status().0, stamped(&answer).len()), ("16", 1));
}

#[test]
fn watchers_are_told_that_the_node_stops() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    let watch = |id: u32, name: &str| single(id, health::WATCH, &service(name));
    client.send(&[watch(1, oracle::SERVICE), watch(3, ""), watch(5, "no.such")].concat());
    for id in [1, 3, 5] {
        client.await_body(id, 7);
    }
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
        let answers = client.answers(3);
        for (id, told) in [(1, &[1, 2][..]), (3, &[1, 2]), (5, &[3])] {
            let found: Vec<_> = answers[&id].messages().iter().map(|it| it[1]).collect();
            assert_eq!((answers[&id].call_status().0, &found[..]), ("14", told), "{id}");
        }
        client.know_of_the_end();
        assert!(stopping.join().unwrap());
    });
}

/// The health of a node that will stop changes before its connections end.
#[test]
fn watchers_are_told_when_a_node_has_been_told_to_stop() {
    let mut cluster = Cluster::new(1);
    let node = with_grpc(&mut cluster);
    let mut client = Raw::new(&node, &[]);
    client.send(&single(1, health::WATCH, &service("")));
    client.await_body(1, 7);
    node.shared.health.is_removed.store(true, Ordering::SeqCst);
    node.publish(cluster.nothing(1));
    client.await_body(1, 14);
    assert_eq!(client.body(1)[13], 2);
}

/// A client may begin calls until it knows that the node stops.
#[test]
fn calls_that_begin_while_the_node_stops_end_too() {
    let node = serving();
    let mut client = Raw::new(&node, &[]);
    client.ping();
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
        client.await_goaway();
        client.send(&begin(1, oracle::STREAM_TIMESTAMPS));
        client.send(&single(3, health::WATCH, &service("no.such")));
        for (id, answer) in client.answers(2) {
            let (code, text) = answer.call_status();
            assert!(code == "14" && text.contains("stopping"), "{id}: {text}");
        }
        client.know_of_the_end();
        assert!(stopping.join().unwrap());
    });
}

/// The answer is whole, so its status says so.
#[test]
fn a_call_that_is_answered_while_the_node_stops_ends_well() {
    for path in [oracle::GET_TIMESTAMP, oracle::STREAM_TIMESTAMPS] {
        let (cluster, node, mut client) = waiting(path, flag::END_STREAM);
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
            client.await_goaway();
            node.publish(cluster.leading(1, 3, true));
            let answer = client.answers(1).remove(&1).unwrap();
            assert_eq!((answer.call_status(), stamped(&answer).len()), (("0", ""), 1), "{path}");
            client.know_of_the_end();
            assert!(stopping.join().unwrap());
        });
    }
}

#[test]
fn a_stream_that_is_answered_while_the_node_stops_gets_its_answer_first() {
    let (cluster, node, mut client) = waiting(oracle::STREAM_TIMESTAMPS, 0);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.workers.shutdown(WAIT_MAX));
        client.await_goaway();
        node.publish(cluster.leading(1, 3, true));
        let answer = client.answers(1).remove(&1).unwrap();
        let first = stamped(&answer)[0].first;
        assert!(answer.call_status().0 == "14" && first > Timestamp::default());
        client.know_of_the_end();
        assert!(stopping.join().unwrap());
    });
}
