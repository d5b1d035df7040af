//! Interval mode: the frames of the native protocol and the answer over HTTP, and the bytes that a
//! client must refuse.

use epicepoch_wire::NodeId;
use epicepoch_wire::interval::{INTERVAL_COUNTS, INTERVAL_NODE_MAX, IntervalStamp};
use epicepoch_wire::native::{
    IntervalRequest, TO_CLIENT_TAIL_LEN_MAX, TO_SERVER_TAIL_LEN_MAX, ToClient, ToServer,
    read_interval_answer, split,
};
use serde_json::{Value, json};

use super::{hex, hold, number, unhex};

const LATEST_NS: u64 = 1_700_000_000_123_456_789;

/// The request with a count of the id 7.
fn request(count: u64) -> IntervalRequest {
    IntervalRequest::new(7, count).unwrap()
}

/// Intervals with the bounds of all fields.
fn stamps() -> Vec<(&'static str, IntervalStamp)> {
    let stamp = |earliest_ns, latest_ns, node, count| {
        IntervalStamp::new(earliest_ns, latest_ns, NodeId(node), count).unwrap()
    };
    vec![
        ("an interval of 2 ms", stamp(LATEST_NS - 2_000_000, LATEST_NS, 1, 0)),
        ("a wait that is rounded up", stamp(LATEST_NS - 9, LATEST_NS, 2, 17)),
        ("an interval without a width", stamp(LATEST_NS, LATEST_NS, 3, 5)),
        (
            "the highest node id and the highest count",
            stamp(LATEST_NS - 1_000, LATEST_NS, INTERVAL_NODE_MAX, INTERVAL_COUNTS - 1),
        ),
        (
            "the widest interval of an answer",
            stamp(LATEST_NS - u64::from(u32::MAX), LATEST_NS, 1, 1),
        ),
        ("the last time", stamp(u64::MAX - 1, u64::MAX, 1, 1)),
        ("an interval that begins in 1970", stamp(0, 8, 1, 1)),
    ]
}

fn fields(stamp: &IntervalStamp) -> Value {
    json!({
        "timestamp": stamp.timestamp().to_string(),
        "earliest": number(stamp.earliest_ns()),
        "latest": number(stamp.latest_ns()),
        "wait": number(stamp.wait_ns()),
        "node": number(stamp.node().0),
        "count": number(stamp.count()),
    })
}

/// Reads a frame of a node: the id of its request, and the fields of the interval.
fn read_answer(bytes: &[u8]) -> Result<Value, String> {
    let frame = split(bytes, TO_CLIENT_TAIL_LEN_MAX).unwrap().expect("a whole frame");
    assert_eq!(frame.len(), bytes.len());
    // A client that does not know interval mode skips the frame.
    assert!(matches!(ToClient::decode(&frame), Ok(ToClient::Unknown)));
    let read = read_interval_answer(&frame).map_err(|error| error.to_string())?;
    let (id, stamp) = read.expect("an answer of interval mode");
    let mut means = fields(&stamp);
    means["id"] = number(id);
    Ok(means)
}

fn read_request(bytes: &[u8]) -> IntervalRequest {
    let frame = split(bytes, TO_SERVER_TAIL_LEN_MAX).unwrap().expect("a whole frame");
    match ToServer::decode(&frame) {
        Ok(ToServer::Interval(request)) => request,
        other => panic!("{other:?}"),
    }
}

/// Changes a byte of the first answer, or of its form over HTTP.
fn changed(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

fn refused_answers() -> Vec<(&'static str, Vec<u8>)> {
    let good = request(1).answer(&stamps()[0].1).unwrap().to_vec();
    let early = request(1).answer(&stamps()[6].1).unwrap().to_vec();
    vec![
        ("an answer with a flag", changed(good.clone(), 1, 1)),
        ("an answer with a code", changed(good.clone(), 3, 1)),
        ("an answer with an index of quorum mode", changed(good, 24, 0)),
        ("an interval that begins before 1970", changed(early, 7, 9)),
    ]
}

fn refused_bodies() -> Vec<(&'static str, Vec<u8>)> {
    let good = stamps()[0].1.to_bytes().to_vec();
    vec![
        ("an interval that ends before it begins", changed(good.clone(), 0, 0xff)),
        ("an index of quorum mode", changed(good.clone(), 16, 0)),
        ("a wait that is shorter than the interval", changed(good, 29, 0)),
    ]
}

#[test]
fn interval_mode_is_what_the_vectors_say() {
    let requests = [1, 1_000, 1 << 32].map(|count| {
        let bytes = request(count).to_bytes();
        assert_eq!(read_request(&bytes), request(count));
        json!({"hex": hex(&bytes), "id": "7", "count": number(count)})
    });
    let answers = stamps().into_iter().map(|(name, stamp)| {
        let bytes = request(1).answer(&stamp).unwrap();
        json!({"name": name, "hex": hex(&bytes), "means": read_answer(&bytes).unwrap()})
    });
    let bodies = stamps().into_iter().map(|(name, stamp)| {
        json!({"name": name, "hex": hex(&stamp.to_bytes()), "means": fields(&stamp)})
    });
    let refused = refused_answers().into_iter().map(|(name, bytes)| {
        let why = read_answer(&bytes).expect_err(name);
        json!({"name": name, "hex": hex(&bytes), "why": why})
    });
    let refused_bodies = refused_bodies().into_iter().map(|(name, bytes)| {
        let body = bytes[..].try_into().unwrap();
        let why = IntervalStamp::from_bytes(body).expect_err(name).to_string();
        json!({"name": name, "hex": hex(&bytes), "why": why})
    });
    let made = json!({
        "about": "Interval mode. requests and answers are frames of the native protocol. A client \
                  that knows interval mode writes the requests, reads the answers as `means`, and \
                  ends the connection for refused_answers; others skip all answers as unknown \
                  frames. bodies are answers over HTTP; refused_bodies are none. `why` is for \
                  people. 64-bit numbers are texts; times are nanoseconds.",
        "requests": requests,
        "answers": answers.collect::<Vec<_>>(),
        "refused_answers": refused.collect::<Vec<_>>(),
        "bodies": bodies.collect::<Vec<_>>(),
        "refused_bodies": refused_bodies.collect::<Vec<_>>(),
    });
    let stored = hold("intervals", &made);
    for entry in stored["answers"].as_array().unwrap() {
        let bytes = unhex(entry["hex"].as_str().unwrap());
        assert_eq!(read_answer(&bytes).as_ref(), Ok(&entry["means"]));
    }
    for entry in stored["bodies"].as_array().unwrap() {
        let bytes = unhex(entry["hex"].as_str().unwrap());
        let stamp = IntervalStamp::from_bytes(bytes[..].try_into().unwrap()).unwrap();
        assert_eq!((fields(&stamp), hex(&stamp.to_bytes())), (entry["means"].clone(), hex(&bytes)));
    }
}
