//! How a session reacts to the frames of good and bad clients.

use epicepoch_wire::http2::frame::put;
use proptest::prelude::*;

use super::header_blocks::CONTINUATIONS_MAX;
use super::*;

/// `GET /timestamp`: indexes of the static table, then a path and an authority that the table
/// keeps.
const FIRST: &[u8] = b"\x82\x86\x44\x0a/timestamp\x41\x01a";
/// The same request as `FIRST`, with path and authority read from the table.
const AGAIN: &[u8] = b"\x82\x86\xbf\xbe";
const WHOLE: u8 = flag::END_HEADERS | flag::END_STREAM;

fn framed(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, kind, flags, stream, payload);
    bytes
}

fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    framed(kind::HEADERS, flags, stream, block)
}

/// A block that does not use the table: the pseudo-headers of a `GET`, then `fields`.
fn block(path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    for (name, value) in fields {
        block.extend([&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8]].concat());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

struct Fixture {
    session: Session,
    out: Vec<u8>,
}

impl Fixture {
    /// A session whose client has sent its settings.
    fn new() -> Self {
        let mut out = Vec::new();
        let session = Session::new(65_536, true, &mut out);
        let mut fixture = Self { session, out };
        assert_eq!(fixture.say(&framed(kind::SETTINGS, 0, 0, &[])), ["window"]);
        fixture.out.clear();
        fixture
    }

    /// Feeds whole frames to the session. Returns each event as a word.
    fn say(&mut self, bytes: &[u8]) -> Vec<String> {
        let (mut words, mut rest) = (Vec::new(), bytes);
        loop {
            match self.session.receive(rest, &mut self.out) {
                Ok(None) => {
                    assert!(rest.is_empty(), "half a frame");
                    return words;
                }
                Ok(Some((len, event))) => {
                    rest = &rest[len..];
                    words.extend(word(&event));
                }
                Err(fault) => {
                    self.session.end(fault, &mut self.out);
                    words.push(format!("over {} {}", fault.code, fault.abuse.name()));
                    return words;
                }
            }
        }
    }

    /// The frames that the session has sent: kind, stream, payload.
    fn said(&mut self) -> Vec<(u8, u32, Vec<u8>)> {
        let out = std::mem::take(&mut self.out);
        let (mut rest, mut said) = (&out[..], Vec::new());
        while let Some(frame) = Frame::split(rest).unwrap() {
            said.push((frame.kind, frame.stream, frame.payload.to_vec()));
            rest = &rest[frame.len()..];
        }
        assert!(rest.is_empty());
        said
    }
}

fn word(event: &Event) -> Option<String> {
    Some(match event {
        Event::Nothing => return None,
        Event::Fast { id } => format!("fast {id}"),
        Event::Request { id, request, body_len } => {
            format!("{} {} {id} {body_len:?}", request.method(), request.uri())
        }
        Event::TooLong { id } => format!("too long {id}"),
        Event::Data { id, len, ends } => format!("data {id} {len} {ends}"),
        Event::Reset { id } => format!("reset {id}"),
        Event::Window => "window".to_owned(),
        Event::Table(len) => format!("table {len}"),
    })
}

fn reset(stream: u32, code: u32) -> (u8, u32, Vec<u8>) {
    (kind::RST_STREAM, stream, code.to_be_bytes().to_vec())
}

#[test]
fn a_request_like_the_last_is_fast_again_and_another_is_parsed() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.say(&headers(1, WHOLE, FIRST)), ["fast 1"]);
    // The first request wrote entries into the header table. The second request reads them from
    // there, and the third is identical to the second.
    assert_eq!(fixture.say(&headers(3, WHOLE, AGAIN)), ["fast 3"]);
    assert_eq!(fixture.say(&headers(5, WHOLE, AGAIN)), ["fast 5"]);
    assert_eq!(fixture.session.fast_request().unwrap().ask.count, 1);
    let other = block("/timestamp?n=3", &[("epicepoch-request-id", "42")]);
    assert_eq!(fixture.say(&headers(7, WHOLE, &other)), ["fast 7"]);
    let fast_request = fixture.session.fast_request().unwrap();
    assert_eq!((fast_request.ask.count, &fast_request.request_id[..]), (3, &b"42"[..]));
    assert_eq!(fixture.say(&headers(9, WHOLE, AGAIN)), ["fast 9"]);
    assert!(fixture.session.fast_request().unwrap().request_id.is_empty());
    // These requests are not of the fast path: one with a body, one with another path, and requests
    // on a connection without a fast path.
    assert_eq!(fixture.say(&headers(11, flag::END_HEADERS, AGAIN)), ["GET /timestamp 11 None"]);
    assert_eq!(fixture.say(&headers(13, WHOLE, &block("/up", &[]))), ["GET /up 13 Some(0)"]);
    fixture.session.takes_fast = false;
    for stream in [15, 17] {
        let said = fixture.say(&headers(stream, WHOLE, AGAIN));
        assert_eq!(said, [format!("GET /timestamp {stream} Some(0)")]);
    }
    assert_eq!(fixture.session.open(), 9);
    assert!(fixture.said().is_empty());
}

#[test]
fn a_repeated_request_is_checked_against_new_limits() {
    let mut fixture = Fixture::new();
    let block = block("/timestamp?n=9", &[]);
    assert_eq!(fixture.say(&headers(1, WHOLE, &block)), ["fast 1"]);
    for (max_n, expected) in [(8, "GET /timestamp?n=9 3 Some(0)"), (9, "fast 5")] {
        fixture.session.set_limits(max_n.into());
        let id = fixture.session.last_id + 2;
        assert_eq!(fixture.say(&headers(id, WHOLE, &block)), [expected]);
    }
    fixture.session.set_limits(9.into());
    assert!(fixture.session.fast_request().is_some(), "nothing has changed");
}

#[test]
fn bodies_are_counted_and_given_back() {
    let mut fixture = Fixture::new();
    let head = block("/timestamp", &[("content-length", "30000")]);
    assert_eq!(
        fixture.say(&headers(1, flag::END_HEADERS, &head)),
        ["GET /timestamp 1 Some(30000)"]
    );
    let part = |flags, len: usize| framed(kind::DATA, flags, 1, &vec![7; len]);
    assert_eq!(fixture.say(&part(0, 15_000)), ["data 1 15000 false"]);
    assert!(fixture.said().is_empty());
    // Padding uses up the window, but is not a part of the body.
    let padded = [&[255_u8][..], &[7; 15_000], &[0; 255]].concat();
    let padded = framed(kind::DATA, flag::PADDED, 1, &padded);
    assert_eq!(fixture.say(&padded), ["data 1 15000 false"]);
    assert_eq!(fixture.say(&part(flag::END_STREAM, 0)), ["data 1 0 true"]);
    assert_eq!(fixture.say(&headers(3, flag::END_HEADERS, FIRST)).len(), 1);
    let other = framed(kind::DATA, flag::END_STREAM, 3, &[7; 3_000]);
    assert_eq!(fixture.say(&other), ["data 3 3000 true"]);
    let owed = (30_000 + 256 + 3_000_u32).to_be_bytes().to_vec();
    assert_eq!(fixture.said(), [(kind::WINDOW_UPDATE, 0, owed)]);
}

#[test]
fn a_body_of_another_length_than_announced_ends_its_stream_alone() {
    for (sent, flags) in [(3, flag::END_STREAM), (5, 0), (5, flag::END_STREAM)] {
        let mut fixture = Fixture::new();
        let head = block("/timestamp", &[("content-length", "4")]);
        fixture.say(&headers(1, flag::END_HEADERS, &head));
        let said = fixture.say(&framed(kind::DATA, flags, 1, &vec![7; sent]));
        assert_eq!(said, ["reset 1"]);
        assert_eq!(fixture.said(), [reset(1, code::PROTOCOL_ERROR)]);
        // Frames that the client sent before it knew of the reset are not a fault.
        assert!(fixture.say(&framed(kind::DATA, 0, 1, &[7])).is_empty());
        assert!(fixture.say(&headers(1, WHOLE, FIRST)).is_empty());
        assert_eq!(fixture.say(&headers(3, WHOLE, AGAIN)), ["fast 3"], "the table went on");
    }
}

#[test]
fn trailers_end_a_body_and_are_nothing_else() {
    let mut fixture = Fixture::new();
    fixture.say(&headers(1, flag::END_HEADERS, FIRST));
    assert_eq!(fixture.say(&headers(1, WHOLE, b"\0\x01x\x01y")), ["data 1 0 true"]);
    for (flags, block) in
        [(flag::END_HEADERS, &b"\0\x01x\x01y"[..]), (WHOLE, b"\x82"), (WHOLE, b"\0\x01X\x01y")]
    {
        let mut fixture = Fixture::new();
        fixture.say(&headers(1, flag::END_HEADERS, FIRST));
        assert_eq!(fixture.say(&headers(1, flags, block)), ["reset 1"]);
        assert_eq!(fixture.said(), [reset(1, code::PROTOCOL_ERROR)]);
    }
}

#[test]
fn windows_hold_what_may_be_sent() {
    let mut fixture = Fixture::new();
    let settings = |window: u32| {
        let payload = [&[0, 4][..], &window.to_be_bytes()].concat();
        framed(kind::SETTINGS, 0, 0, &payload)
    };
    let more = |stream, by: u32| framed(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    fixture.say(&settings(3));
    fixture.say(&headers(1, WHOLE, FIRST));
    assert_eq!(fixture.session.spend_all(1, 16), Some(false));
    assert_eq!(fixture.session.spend(1, 16), Some(3));
    assert_eq!(fixture.session.spend(1, 13), Some(0));
    // The window shrinks to -1. Then the client must open it by 2 before 1 byte may be sent.
    fixture.say(&settings(2));
    assert_eq!(fixture.say(&more(1, 2)), ["window"]);
    assert_eq!(fixture.session.spend(1, 13), Some(1));
    fixture.say(&more(1, 100));
    assert_eq!(fixture.session.spend_all(1, 12), Some(true));
    assert_eq!((fixture.session.spend_all(1, 12), fixture.session.open()), (None, 0));
    // The window of the stream is now larger than that of the connection. So the connection's
    // window is the limit.
    fixture.say(&settings(1 << 20));
    fixture.say(&headers(3, WHOLE, AGAIN));
    let left = 65_535 - 16;
    assert_eq!(fixture.session.spend(3, 1 << 20), Some(left));
    assert_eq!(fixture.session.spend(3, 1), Some(0));
    fixture.say(&more(0, 5));
    assert_eq!(fixture.session.spend(3, 9), Some(5));
    fixture.said();
    assert_eq!(fixture.say(&more(3, frame::ID_MAX)), ["reset 3"]);
    assert_eq!(fixture.said(), [reset(3, code::FLOW_CONTROL_ERROR)]);
    assert_eq!(fixture.say(&more(0, frame::ID_MAX)), ["window"]);
    assert_eq!(fixture.say(&more(0, 1)), ["over 3 protocol"]);
}

#[test]
fn of_the_windows_that_one_frame_names_the_last_is_meant() {
    let settings = |windows: &[u32]| {
        let named = |window: &u32| [&[0, 4][..], &window.to_be_bytes()].concat();
        framed(kind::SETTINGS, 0, 0, &windows.iter().flat_map(named).collect::<Vec<_>>())
    };
    let mut fixture = Fixture::new();
    fixture.say(&headers(1, WHOLE, FIRST));
    fixture.say(&framed(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]));
    // The frame sets the initial window three times. The first value would be too large for this
    // stream, but only the last value counts.
    assert_eq!(fixture.say(&settings(&[frame::ID_MAX, 0, 7])), ["window"]);
    assert_eq!(fixture.session.spend(1, 100), Some(16));
    assert_eq!(fixture.say(&headers(3, WHOLE, AGAIN)), ["fast 3"]);
    assert_eq!(fixture.session.spend(3, 100), Some(7));
    // A frame that repeats the same value many times changes nothing.
    assert_eq!(fixture.say(&settings(&[7; 2_730])), ["window"]);
    assert_eq!(fixture.session.spend(3, 100), Some(0));
    assert_eq!(fixture.say(&settings(&[1 << 31, 7])), ["over 3 protocol"]);
    let mut fixture = Fixture::new();
    fixture.say(&headers(1, WHOLE, FIRST));
    fixture.say(&framed(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]));
    assert_eq!(fixture.say(&settings(&[7, frame::ID_MAX])), ["over 3 protocol"]);
}

#[test]
fn an_end_that_was_announced_loses_nothing_that_was_under_way() {
    let mut fixture = Fixture::new();
    fixture.say(&headers(1, WHOLE, FIRST));
    fixture.session.close(&mut fixture.out);
    fixture.session.close(&mut fixture.out);
    let said = fixture.said();
    assert_eq!((said.len(), said[0].0, said[1].0), (2, kind::GOAWAY, kind::PING));
    assert_eq!(said[0].2, [&frame::ID_MAX.to_be_bytes()[..], &[0; 4]].concat());
    assert_eq!(fixture.say(&headers(3, WHOLE, AGAIN)), ["fast 3"]);
    assert!(fixture.say(&framed(kind::PING, flag::ACK, 0, &said[1].2)).is_empty());
    assert_eq!(fixture.said(), [(kind::GOAWAY, 0, vec![0, 0, 0, 3, 0, 0, 0, 0])]);
    // The client has confirmed that it knows of the end. Its new requests are ignored and are not a
    // fault.
    assert!(fixture.say(&headers(5, flag::END_HEADERS, AGAIN)).is_empty());
    assert!(fixture.say(&framed(kind::DATA, flag::END_STREAM, 5, b"x")).is_empty());
    assert!(fixture.say(&framed(kind::RST_STREAM, 0, 5, &[0; 4])).is_empty());
    assert!(!fixture.session.is_over());
    fixture.session.finish(1, &mut fixture.out);
    fixture.session.finish(3, &mut fixture.out);
    assert!(fixture.session.is_over() && fixture.said().is_empty());
}

#[test]
fn a_client_that_does_not_confirm_the_end_is_not_waited_for() {
    let mut fixture = Fixture::new();
    fixture.session.stop_waiting(&mut fixture.out);
    assert!(fixture.said().is_empty() && !fixture.session.is_over(), "nothing was announced");
    fixture.say(&headers(1, WHOLE, FIRST));
    fixture.session.close(&mut fixture.out);
    fixture.said();
    fixture.session.stop_waiting(&mut fixture.out);
    assert_eq!(fixture.said(), [(kind::GOAWAY, 0, vec![0, 0, 0, 1, 0, 0, 0, 0])]);
    assert!(fixture.say(&headers(3, WHOLE, AGAIN)).is_empty());
    assert!(!fixture.session.is_over(), "a request is under way");
    fixture.session.finish(1, &mut fixture.out);
    assert!(fixture.session.is_over());
}

#[test]
fn an_answer_before_the_end_of_its_request_asks_the_client_to_stop() {
    let mut fixture = Fixture::new();
    fixture.say(&headers(1, flag::END_HEADERS, FIRST));
    fixture.session.finish(1, &mut fixture.out);
    assert_eq!(fixture.said(), [reset(1, code::NO_ERROR)]);
    assert!(fixture.say(&framed(kind::DATA, flag::END_STREAM, 1, b"x")).is_empty());
}

/// Before a client reads the settings, it may begin any number of requests.
#[test]
fn bodies_of_any_number_of_refused_requests_are_no_fault() {
    let mut fixture = Fixture::new();
    let ids: Vec<u32> = (0..3 * STREAMS_MAX as u32).map(|nth| 2 * nth + 1).collect();
    for id in &ids {
        fixture.say(&headers(*id, flag::END_HEADERS, FIRST));
    }
    let refused = &ids[STREAMS_MAX..];
    assert_eq!(fixture.said().len(), refused.len());
    for id in refused {
        let body = framed(kind::DATA, flag::END_STREAM, *id, b"x");
        assert!(fixture.say(&body).is_empty(), "stream {id}");
    }
    assert_eq!(fixture.say(&framed(kind::DATA, flag::END_STREAM, 1, b"x")), ["data 1 1 true"]);
}

#[test]
fn streams_beyond_the_limit_are_refused_and_may_be_asked_again() {
    let mut fixture = Fixture::new();
    fixture.say(&headers(1, WHOLE, FIRST));
    for nth in 1..STREAMS_MAX as u32 {
        assert_eq!(fixture.say(&headers(2 * nth + 1, WHOLE, AGAIN)).len(), 1);
    }
    let next = 2 * STREAMS_MAX as u32 + 1;
    assert!(fixture.say(&headers(next, WHOLE, AGAIN)).is_empty());
    assert_eq!(fixture.said(), [reset(next, code::REFUSED_STREAM)]);
    assert_eq!(fixture.say(&framed(kind::RST_STREAM, 0, 5, &[0, 0, 0, 8])), ["reset 5"]);
    assert_eq!(fixture.say(&headers(next + 2, WHOLE, AGAIN)).len(), 1);
}

#[test]
fn a_head_that_is_too_long_is_told_and_the_connection_goes_on() {
    let mut fixture = Fixture::new();
    let value = "v".repeat(100);
    let fields: Vec<_> = (0..200).map(|_| ("x", &value[..])).collect();
    let long = block("/up", &fields);
    let (start, rest) = long.split_at(16_000);
    assert!(fixture.say(&headers(1, flag::END_STREAM, start)).is_empty());
    let rest = framed(kind::CONTINUATION, flag::END_HEADERS, 1, rest);
    assert_eq!(fixture.say(&rest), ["too long 1"]);
    fixture.session.finish(1, &mut fixture.out);
    assert_eq!(fixture.say(&headers(3, WHOLE, FIRST)), ["fast 3"]);
}

#[test]
fn faults_of_streams_end_the_connection_when_there_are_too_many() {
    let mut fixture = Fixture::new();
    for nth in 0..FAULTS_MAX as u32 {
        let id = 2 * nth + 1;
        assert_eq!(fixture.say(&headers(id, WHOLE, b"\x82")), [format!("reset {id}")]);
    }
    let said = fixture.say(&headers(2 * FAULTS_MAX as u32 + 1, WHOLE, b"\x82"));
    assert_eq!(said, ["over 11 calm"]);
}

#[test]
fn each_connection_error_has_its_code() {
    let settings = |name: u8, value: u32| {
        framed(kind::SETTINGS, 0, 0, &[&[0, name][..], &value.to_be_bytes()].concat())
    };
    let unfinished = headers(1, flag::END_STREAM, &FIRST[..2]);
    let behind = |frame: Vec<u8>| [unfinished.clone(), frame].concat();
    let many = (0..=CONTINUATIONS_MAX).flat_map(|_| framed(kind::CONTINUATION, 0, 1, b""));
    let closed = headers(1, WHOLE, FIRST);
    let twice = |frame: Vec<u8>| [closed.clone(), frame].concat();
    for (code, bytes) in [
        (1, headers(0, WHOLE, FIRST)),
        (1, headers(2, WHOLE, FIRST)),
        (1, headers(1, WHOLE | flag::PADDED, b"\x09\x82")),
        (6, headers(1, WHOLE | flag::PRIORITY, b"\0\0")),
        (9, headers(1, WHOLE, b"\xbe")),
        (9, headers(1, WHOLE, b"\x82\x20")),
        (5, twice(headers(1, WHOLE, AGAIN))),
        (5, twice(framed(kind::DATA, 0, 1, b"x"))),
        (1, [headers(5, WHOLE, FIRST), headers(3, WHOLE, AGAIN)].concat()),
        (1, behind(headers(1, WHOLE, FIRST))),
        (1, behind(framed(kind::PRIORITY, 0, 1, &[0; 5]))),
        (1, behind(framed(0xFE, 0, 0, b""))),
        (1, behind(framed(kind::CONTINUATION, flag::END_HEADERS, 3, b""))),
        (11, behind(many.collect())),
        (1, framed(kind::CONTINUATION, flag::END_HEADERS, 1, FIRST)),
        (1, framed(kind::DATA, 0, 0, b"x")),
        (1, framed(kind::DATA, 0, 1, b"x")),
        (1, framed(kind::RST_STREAM, 0, 0, &[0; 4])),
        (1, framed(kind::RST_STREAM, 0, 1, &[0; 4])),
        (6, twice(framed(kind::RST_STREAM, 0, 1, &[0; 3]))),
        (1, framed(kind::WINDOW_UPDATE, 0, 0, &[0; 4])),
        (1, framed(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
        (6, framed(kind::WINDOW_UPDATE, 0, 0, &[0; 5])),
        (3, framed(kind::WINDOW_UPDATE, 0, 0, &[0x7F, 255, 255, 255])),
        (1, framed(kind::SETTINGS, 0, 1, &[])),
        (6, framed(kind::SETTINGS, 0, 0, &[0; 5])),
        (6, framed(kind::SETTINGS, flag::ACK, 0, &[0; 6])),
        (1, settings(2, 2)),
        (3, settings(4, 1 << 31)),
        (1, settings(5, 16_383)),
        (1, settings(5, 1 << 24)),
        (1, framed(kind::PING, 0, 1, &[0; 8])),
        (6, framed(kind::PING, 0, 0, &[0; 7])),
        (1, framed(kind::GOAWAY, 0, 1, &[0; 8])),
        (6, framed(kind::GOAWAY, 0, 0, &[0; 7])),
        (1, framed(kind::PRIORITY, 0, 0, &[0; 5])),
        (6, framed(kind::PRIORITY, 0, 1, &[0; 4])),
        (1, framed(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])),
        (1, framed(kind::PUSH_PROMISE, 0, 1, &[0; 4])),
        (6, vec![0, 0x40, 1, 0, 0, 0, 0, 0, 1]),
    ] {
        let mut fixture = Fixture::new();
        let said = fixture.say(&bytes);
        let label = if code == 11 { "calm" } else { "protocol" };
        assert_eq!(said.last(), Some(&format!("over {code} {label}")), "{}", bytes.escape_ascii());
        assert_eq!(fixture.said().last().map(|it| it.0), Some(kind::GOAWAY));
    }
    let mut out = Vec::new();
    let mut session = Session::new(1, true, &mut out);
    let ping = framed(kind::PING, 0, 0, &[0; 8]);
    assert_eq!(session.receive(&ping, &mut out).unwrap_err(), Fault::PROTOCOL, "settings first");
}

#[test]
fn the_preface_is_told_from_all_else_by_its_first_wrong_byte() {
    for len in 0..PREFACE.len() {
        assert_eq!(Session::preface(&PREFACE[..len]), Some(false));
        let wrong = [&PREFACE[..len], b"\0"].concat();
        assert_eq!(Session::preface(&wrong), None);
    }
    assert_eq!(Session::preface(PREFACE), Some(true));
    assert_eq!(Session::preface(&[PREFACE, b"x"].concat()), Some(true));
}

/// Feeds `bytes` to a session in parts of `part` bytes. Returns the events and the output of the
/// session.
fn in_parts(bytes: &[u8], part: usize) -> (Vec<String>, Vec<u8>) {
    let mut fixture = Fixture::new();
    let (mut words, mut at) = (Vec::new(), 0);
    for end in (0..bytes.len()).step_by(part).map(|from| (from + part).min(bytes.len())) {
        loop {
            match fixture.session.receive(&bytes[at..end], &mut fixture.out) {
                Ok(None) => break,
                Ok(Some((len, event))) => {
                    at += len;
                    words.extend(word(&event));
                }
                Err(fault) => {
                    words.push(format!("{fault:?}"));
                    return (words, fixture.out);
                }
            }
        }
    }
    (words, fixture.out)
}

proptest! {
    #[test]
    fn where_frames_are_cut_changes_nothing(
        at in any::<prop::sample::Index>(), byte: u8, part in 1_usize..40,
    ) {
        let mut bytes = [
            headers(1, WHOLE, FIRST),
            headers(3, WHOLE, AGAIN),
            headers(5, flag::END_HEADERS, AGAIN),
            framed(kind::DATA, flag::END_STREAM, 5, b"body"),
            framed(kind::PING, 0, 0, &[7; 8]),
            headers(7, flag::END_STREAM, &FIRST[..5]),
            framed(kind::CONTINUATION, flag::END_HEADERS, 7, &FIRST[5..]),
            framed(kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 9]),
            headers(9, WHOLE, AGAIN),
            headers(11, WHOLE, AGAIN),
        ].concat();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        prop_assert_eq!(in_parts(&bytes, part), in_parts(&bytes, bytes.len()));
    }
}
