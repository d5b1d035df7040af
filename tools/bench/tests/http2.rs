//! The client's half of HTTP/2 with scripted bytes: events, replies, and errors when the server
//! breaks a rule.

use epicepoch_bench::http2::session::{CONNECTION_WINDOW, SPAN_MAX, STREAM_WINDOW};
use epicepoch_bench::http2::{Event, Request, Session, SessionError};
use epicepoch_wire::http2::frame::{self, Frame, ID_MAX, code, flag, kind, setting};

/// A session, the bytes that it sends, and the bytes that the server sends.
struct Script {
    session: Session,
    out: Vec<u8>,
    input: Vec<u8>,
}

/// An owned event.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Answer {
        slot: usize,
        status: u16,
        error: Option<String>,
        leader: Option<String>,
        body: Vec<u8>,
    },
    Reset {
        slot: usize,
        is_unseen: bool,
    },
    GoingAway,
}

const END: u8 = flag::END_STREAM;
const WHOLE: u8 = flag::END_HEADERS;
/// `:status 200` of the static table.
const OK: u8 = 0x88;

fn request() -> Request {
    Request::new("/timestamp", "node:8080", None)
}

impl Script {
    /// A session that has received the server's settings.
    fn new(depth: usize, settings: &[(u16, u32)]) -> Self {
        let mut script = Self::unready(depth);
        assert!(!script.session.is_ready());
        frame::put_settings(&mut script.input, settings);
        assert_eq!(script.take().unwrap(), []);
        assert!(script.session.is_ready());
        assert_eq!(kinds(&script.sent()), [(kind::SETTINGS, flag::ACK, 0)]);
        script
    }

    fn unready(depth: usize) -> Self {
        let mut out = Vec::new();
        let session = Session::new(depth, request(), &mut out);
        Self { session, out: Vec::new(), input: Vec::new() }
    }

    /// A session that is ready. All streams below `first_id` have ended.
    fn beginning_at(first_id: u32, depth: usize) -> Self {
        let mut script = Self::unready(depth);
        let mut out = Vec::new();
        script.session = Session::beginning_at(first_id, depth, request(), &mut out);
        frame::put_settings(&mut script.input, &[]);
        assert_eq!(script.take().unwrap(), []);
        script.out.clear();
        script
    }

    fn put(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> &mut Self {
        frame::put(&mut self.input, kind, flags, stream, payload);
        self
    }

    /// Lets the session handle all of the input.
    fn take(&mut self) -> Result<Vec<Seen>, SessionError> {
        let input = std::mem::take(&mut self.input);
        let (mut at, mut seen) = (0, Vec::new());
        while let Some((len, event)) = self.session.receive(&input[at..], &mut self.out)? {
            at += len;
            seen.extend(match event {
                Event::Nothing => None,
                Event::Reset { slot, is_unseen } => Some(Seen::Reset { slot, is_unseen }),
                Event::GoingAway => Some(Seen::GoingAway),
                Event::Answer { slot, last } => {
                    let it = self.session.answer(slot, last);
                    Some(Seen::Answer {
                        slot,
                        status: it.status,
                        error: it.error.map(str::to_owned),
                        leader: it.leader.map(str::to_owned),
                        body: it.body.to_vec(),
                    })
                }
            });
        }
        assert_eq!(at, input.len(), "whole frames");
        Ok(seen)
    }

    fn ask(&mut self, times: usize) -> Vec<usize> {
        (0..times).map(|_| self.session.ask(&mut self.out)).collect()
    }

    fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

fn answer(slot: usize, body: &[u8]) -> Seen {
    Seen::Answer { slot, status: 200, error: None, leader: None, body: body.to_vec() }
}

/// Kind, flags and stream of each frame.
fn kinds(mut bytes: &[u8]) -> Vec<(u8, u8, u32)> {
    let mut kinds = Vec::new();
    while let Some(frame) = Frame::split(bytes).unwrap() {
        kinds.push((frame.kind, frame.flags, frame.stream));
        bytes = &bytes[frame.len()..];
    }
    kinds
}

/// Encodes a header that enters no table.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

#[test]
fn it_begins_with_the_preface_and_what_it_can_take() {
    let mut out = Vec::new();
    let session = Session::new(1, Request::new("/", "node", None), &mut out);
    assert!(!session.is_ready());
    let frames = out.strip_prefix(frame::PREFACE).expect("the preface comes first");
    assert_eq!(kinds(frames), [(kind::SETTINGS, 0, 0), (kind::WINDOW_UPDATE, 0, 0)]);
    assert!(frames.ends_with(&(CONNECTION_WINDOW - 65_535).to_be_bytes()));
}

#[test]
fn answers_come_in_any_order_and_slots_are_used_again() {
    let mut script = Script::new(3, &[]);
    let slots = script.ask(3);
    assert!(!script.session.has_room());
    let requests = script.sent();
    let head = |id| (kind::HEADERS, WHOLE | END, id);
    assert_eq!(kinds(&requests), [head(1), head(3), head(5)]);
    // The first request fills the server's table; each later one has a block of 4 bytes.
    assert_eq!(requests[requests.len() - 13..][..9], [0, 0, 4, 1, 5, 0, 0, 0, 5]);
    script.put(kind::HEADERS, WHOLE, 5, &[OK]).put(kind::HEADERS, WHOLE, 3, &[OK]);
    script.put(kind::DATA, END, 3, b"three").put(kind::DATA, END, 5, b"five");
    let seen = script.take().unwrap();
    assert_eq!(seen, [answer(slots[1], b"three"), answer(slots[2], b"five")]);
    assert_eq!((script.session.open(), script.session.oldest()), (1, Some(slots[0])));
    let again = script.ask(1);
    script.put(kind::HEADERS, WHOLE | END, 1, &[OK]);
    assert_eq!(script.take().unwrap(), [answer(slots[0], b"")]);
    assert_eq!(script.session.oldest(), Some(again[0]));
}

#[test]
fn bodies_in_parts_with_padding_are_put_together() {
    let mut script = Script::new(1, &[]);
    for round in 0..2_u8 {
        let slot = script.ask(1)[0];
        let id = u32::from(round) * 2 + 1;
        script.put(kind::HEADERS, WHOLE | flag::PADDED, id, &[2, OK, 0, 0]);
        script.put(kind::DATA, flag::PADDED, id, &[3, b'a', round, 0, 0, 0]);
        script.put(kind::DATA, 0, id, b"").put(kind::DATA, END, id, b"b");
        assert_eq!(script.take().unwrap(), [answer(slot, &[b'a', round, b'b'])]);
    }
}

#[test]
fn a_refusal_says_why_and_who_leads_and_nothing_of_it_stays() {
    let mut script = Script::new(1, &[]);
    let slot = script.ask(1)[0];
    let block = [
        literal(":status", "409"),
        literal("epicepoch-error", "NOT_LEADER"),
        literal("epicepoch-leader", "b:1"),
    ]
    .concat();
    // The answer comes in parts, after an interim answer.
    script.put(kind::HEADERS, WHOLE, 1, &literal(":status", "103"));
    script.put(kind::HEADERS, 0, 1, &block[..5]).put(kind::CONTINUATION, 0, 1, &block[5..30]);
    script.put(kind::CONTINUATION, WHOLE, 1, &block[30..]);
    // After the body come trailers, which must not count as headers of the answer.
    script.put(kind::DATA, 0, 1, b"no");
    script.put(kind::HEADERS, WHOLE | END, 1, &literal("epicepoch-leader", "c:1"));
    let refusal = Seen::Answer {
        slot,
        status: 409,
        error: Some("NOT_LEADER".into()),
        leader: Some("b:1".into()),
        body: b"no".to_vec(),
    };
    assert_eq!(script.take().unwrap(), [refusal]);
    script.ask(1);
    script.put(kind::HEADERS, WHOLE | END, 3, &literal(":status", "503"));
    let bare = Seen::Answer { slot, status: 503, error: None, leader: None, body: Vec::new() };
    assert_eq!(script.take().unwrap(), [bare]);
}

#[test]
fn the_table_of_headers_is_kept_in_step_even_by_what_nobody_waits_for() {
    let mut script = Script::new(2, &[]);
    let slots = script.ask(2);
    script.session.cancel(slots[0], &mut script.out);
    assert_eq!(kinds(&script.sent())[2..], [(kind::RST_STREAM, 0, 1)]);
    // The late answer on the cancelled stream has a header that enters the HPACK table. The next
    // answer uses the index of that header.
    script.put(kind::HEADERS, WHOLE, 1, b"\x88\x40\x01a\x01b").put(kind::DATA, END, 1, b"late");
    script.put(kind::HEADERS, WHOLE | END, 3, &[OK, 0xbe]);
    assert_eq!(script.take().unwrap(), [answer(slots[1], b"")]);
}

#[test]
fn windows_are_given_back_in_batches_and_held_to() {
    let mut script = Script::new(64, &[]);
    let part = vec![0; frame::PAYLOAD_LEN_MAX];
    let per_stream = STREAM_WINDOW / part.len() as u32;
    let half = CONNECTION_WINDOW / 2 / part.len() as u32;
    script.ask(64);
    script.sent();
    let mut received = 0;
    for id in (1..).step_by(2).take((half / per_stream) as usize + 1) {
        script.put(kind::HEADERS, WHOLE, id, &[OK]);
        for at in 0..per_stream {
            let flags = if at + 1 == per_stream { END } else { 0 };
            script.put(kind::DATA, flags, id, &part);
            script.take().unwrap();
            received += 1;
            let update = script.sent();
            if received == half + 1 {
                assert!(update.ends_with(&((half + 1) * part.len() as u32).to_be_bytes()));
            } else {
                assert!(update.is_empty(), "{received}");
            }
        }
    }
    assert!(received > half);
    // The server sends one byte more than the window of the stream allows.
    script.put(kind::HEADERS, WHOLE, 33, &[OK]);
    for _ in 0..per_stream {
        script.put(kind::DATA, 0, 33, &part);
    }
    assert_eq!(script.take().unwrap(), []);
    script.put(kind::DATA, 0, 33, b"x");
    assert_eq!(script.take().unwrap_err(), SessionError::FlowControl("a stream"));
}

#[test]
fn a_peer_that_goes_away_answers_what_it_has_seen() {
    let mut script = Script::new(4, &[]);
    let slots = script.ask(4);
    let away = |last: u32| [last.to_be_bytes(), 0_u32.to_be_bytes()].concat();
    script.put(kind::GOAWAY, 0, 0, &away(ID_MAX));
    assert_eq!(script.take().unwrap(), [Seen::GoingAway]);
    assert_eq!(script.session.poll_unseen(), None);
    script.put(kind::GOAWAY, 0, 0, &away(3));
    assert_eq!(script.take().unwrap(), [Seen::GoingAway]);
    let mut unseen: Vec<_> = std::iter::from_fn(|| script.session.poll_unseen()).collect();
    unseen.sort_unstable();
    assert_eq!(unseen, slots[2..]);
    assert!(!script.session.has_room());
    script.put(kind::HEADERS, WHOLE | END, 3, &[OK]).put(kind::HEADERS, WHOLE | END, 1, &[OK]);
    assert_eq!(script.take().unwrap(), [answer(slots[1], b""), answer(slots[0], b"")]);
    assert_eq!((script.session.open(), script.session.oldest()), (0, None));
    script.put(kind::GOAWAY, 0, 0, &away(5));
    assert!(matches!(script.take(), Err(SessionError::Protocol(_))));
}

#[test]
fn a_stream_that_is_reset_was_seen_or_not() {
    let mut script = Script::new(2, &[]);
    let slots = script.ask(2);
    script.put(kind::RST_STREAM, 0, 1, &code::REFUSED_STREAM.to_be_bytes());
    script.put(kind::RST_STREAM, 0, 3, &2_u32.to_be_bytes());
    // The server resets one stream twice; the second reset has no effect.
    script.put(kind::RST_STREAM, 0, 3, &0_u32.to_be_bytes());
    let reset = |slot, is_unseen| Seen::Reset { slot, is_unseen };
    assert_eq!(script.take().unwrap(), [reset(slots[0], true), reset(slots[1], false)]);
    assert_eq!(script.session.open(), 0);
}

#[test]
fn pings_are_answered_and_what_is_unknown_means_nothing() {
    let mut script = Script::new(1, &[(0xff, 7), (setting::HEADER_TABLE_SIZE, 0)]);
    script.put(kind::PING, 0, 0, b"12345678").put(kind::PING, flag::ACK, 0, b"12345678");
    script.put(0xee, 0xff, 9, b"?").put(kind::PRIORITY, 0, 9, &[0; 5]);
    script.put(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    assert_eq!(script.take().unwrap(), []);
    let sent = script.sent();
    assert_eq!(kinds(&sent), [(kind::PING, flag::ACK, 0)]);
    assert!(sent.ends_with(b"12345678"));
    // The server allows no header table (size 0). So the block begins with a table size update
    // (0x20), and its headers are literals.
    script.ask(1);
    assert_eq!(script.sent()[9], 0x20);
}

#[test]
fn a_peer_that_breaks_the_protocol_is_found_out() {
    let protocol = |error: &SessionError| matches!(error, SessionError::Protocol(_));
    let cases: [(&str, u8, u8, u32, &[u8]); 21] = [
        ("an answer on the connection", kind::HEADERS, WHOLE, 0, &[OK]),
        ("an answer on a stream of the peer's", kind::DATA, END, 2, b""),
        ("an answer that was never asked for", kind::HEADERS, WHOLE, 7, &[OK]),
        ("a body first", kind::DATA, END, 1, b""),
        ("an answer without a status", kind::HEADERS, WHOLE, 1, &[0x9f]),
        (
            "an answer that is informational and whole",
            kind::HEADERS,
            WHOLE | END,
            1,
            b"\x08\x03100",
        ),
        ("a status that is none", kind::HEADERS, WHOLE, 1, b"\x08\x032x0"),
        ("padding and nothing else", kind::DATA, flag::PADDED, 1, &[1]),
        ("a header block that goes on nowhere", kind::CONTINUATION, WHOLE, 1, &[OK]),
        ("an entry that is not there", kind::HEADERS, WHOLE, 1, &[OK, 0xfe]),
        ("a reset of an idle stream", kind::RST_STREAM, 0, 9, &[0; 4]),
        ("a reset of the wrong length", kind::RST_STREAM, 0, 1, &[0; 5]),
        ("settings of a stream", kind::SETTINGS, 0, 1, &[]),
        ("half a setting", kind::SETTINGS, 0, 0, &[0, 1, 0]),
        ("settings in an acknowledgement", kind::SETTINGS, flag::ACK, 0, &[0; 6]),
        ("a window beyond any", kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
        ("a push", kind::PUSH_PROMISE, WHOLE, 1, &[0, 0, 0, 2, OK]),
        ("a ping of the wrong length", kind::PING, 0, 0, b"1234567"),
        ("a window that grows by nothing", kind::WINDOW_UPDATE, 0, 1, &[0; 4]),
        ("a window that grows too far", kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        ("a GOAWAY cut short", kind::GOAWAY, 0, 0, &[0; 7]),
    ];
    for (what, kind, flags, stream, payload) in cases {
        let mut script = Script::new(1, &[]);
        script.ask(1);
        let error = script.put(kind, flags, stream, payload).take().unwrap_err();
        let is_expected = match what {
            _ if what.starts_with("an answer on") || what.contains("never asked") => {
                matches!(error, SessionError::Unasked(_))
            }
            "an entry that is not there" => matches!(error, SessionError::Hpack(_)),
            _ => protocol(&error),
        };
        assert!(is_expected, "{what}: {error}");
    }
}

#[test]
fn requests_and_answers_allocate_nothing() {
    let mut script = Script::new(16, &[]);
    let mut input = Vec::with_capacity(1 << 16);
    let mut round = |script: &mut Script, first: u32| {
        let slots = script.session.open();
        assert_eq!(slots, 0);
        input.clear();
        for at in 0..16 {
            script.session.ask(&mut script.out);
            frame::put(&mut input, kind::HEADERS, WHOLE, first + 2 * at, b"\x88\x0f\x0d\x0216");
            frame::put(&mut input, kind::DATA, END, first + 2 * at, b"0123456789abcdef");
        }
        let mut at = 0;
        let session = &mut script.session;
        while let Some((len, event)) = session.receive(&input[at..], &mut script.out).unwrap() {
            at += len;
            if let Event::Answer { slot, last } = event {
                assert_eq!(session.answer(slot, last).body.len(), 16);
            }
        }
        script.out.clear();
    };
    round(&mut script, 1);
    let allocated =
        allocation_counter::measure(|| (1..9).for_each(|at| round(&mut script, 32 * at + 1)));
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn an_answer_comes_once() {
    for second in [kind::HEADERS, kind::DATA] {
        let mut script = Script::new(1, &[]);
        script.ask(1);
        script.put(kind::HEADERS, WHOLE | END, 1, &[OK]).take().unwrap();
        let error = script.put(second, WHOLE | END, 1, &[OK]).take().unwrap_err();
        assert_eq!(error, SessionError::Unasked(1));
    }
}

#[test]
fn header_blocks_are_not_interrupted_and_not_endless() {
    let mut script = Script::new(1, &[]);
    script.ask(1);
    script.put(kind::HEADERS, 0, 1, &[OK]).put(kind::PING, 0, 0, b"12345678");
    assert!(matches!(script.take(), Err(SessionError::Protocol(_))));
    let mut script = Script::new(1, &[]);
    script.ask(1);
    script.put(kind::HEADERS, 0, 1, &[OK]);
    for _ in 0..100 {
        script.put(kind::CONTINUATION, 0, 1, &[]);
    }
    assert_eq!(script.take().unwrap_err(), SessionError::TooLong("a header block"));
    let mut script = Script::new(1, &[]);
    script.ask(1);
    script.put(kind::HEADERS, 0, 1, &[OK; 16_384]).put(kind::CONTINUATION, WHOLE, 1, &[OK]);
    assert_eq!(script.take().unwrap_err(), SessionError::TooLong("a header block"));
}

#[test]
fn a_peer_begins_with_its_settings() {
    for (kind, flags) in [(kind::PING, 0), (kind::SETTINGS, flag::ACK)] {
        let mut script = Script::unready(1);
        let payload: &[u8] = if kind == kind::PING { b"12345678" } else { b"" };
        script.put(kind, flags, 0, payload);
        assert!(matches!(script.take(), Err(SessionError::Protocol(_))));
    }
    // The server answers with HTTP/1.1.
    let mut script = Script::unready(1);
    script.input = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    assert_eq!(script.take().unwrap_err(), SessionError::TooLong("a frame"));
}

#[test]
fn after_the_last_stream_there_is_no_room_and_what_is_open_is_still_answered() {
    let mut script = Script::beginning_at(ID_MAX - 2, 8);
    let slots = [script.session.ask(&mut script.out), script.session.ask(&mut script.out)];
    let asked: Vec<u32> = kinds(&script.sent()).into_iter().map(|(_, _, stream)| stream).collect();
    assert_eq!(asked, [ID_MAX - 2, ID_MAX]);
    assert!(!script.session.has_room(), "there is no greater number");
    for (id, expected) in [ID_MAX, ID_MAX - 2].into_iter().zip(slots.into_iter().rev()) {
        script.put(kind::HEADERS, WHOLE, id, &[OK]).put(kind::DATA, END, id, &[7; 16]);
        let seen = script.take().unwrap();
        assert!(matches!(&seen[..], [Seen::Answer { slot, .. }] if *slot == expected), "{seen:?}");
    }
    assert_eq!((script.session.open(), script.session.oldest()), (0, None));
    assert!(!script.session.has_room(), "numbers are never used twice");
}

#[test]
fn while_the_oldest_is_not_answered_only_so_many_others_are_asked() {
    let mut script = Script::new(2, &[]);
    let oldest = script.session.ask(&mut script.out);
    for number in 1..SPAN_MAX as u32 {
        assert!(script.session.has_room(), "{number}");
        script.session.ask(&mut script.out);
        script.put(kind::HEADERS, WHOLE | END, 2 * number + 1, &[OK]);
        assert_eq!(script.take().unwrap().len(), 1);
        script.out.clear();
    }
    assert!(!script.session.has_room());
    assert_eq!(script.session.oldest(), Some(oldest));
    script.put(kind::HEADERS, WHOLE | END, 1, &[OK]);
    assert_eq!(script.take().unwrap().len(), 1);
    assert!(script.session.has_room());
}
