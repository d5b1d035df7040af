//! What calls hold: the limits of the memory of one connection, and how calls end.

use epicepoch_wire::grpc::status::Code;
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::http2::frame::{Frame, flag, setting};

use super::*;
use crate::front::http2::session::STREAMS_MAX;

/// Approximate bytes of an answer.
const ANSWER: &[u8] = &[b'a'; 45];

struct Fixture {
    calls: Calls,
    session: Session,
    table: Table,
    out: Vec<u8>,
}

impl Fixture {
    /// A connection whose client has opened all its streams, and lets the node send nothing.
    fn new(window: u32) -> Self {
        let mut out = Vec::new();
        let session = Session::new(1, false, &mut out);
        let (calls, table) = (Calls::default(), Table::default());
        let mut fixture = Self { calls, session, table, out };
        let mut frames = Vec::new();
        frame::put_settings(&mut frames, &[(setting::INITIAL_WINDOW_SIZE, window)]);
        frame::put(&mut frames, kind::WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
        for id in ids() {
            let block = b"\x83\x86\x04\x02/a";
            frame::put(&mut frames, kind::HEADERS, flag::END_HEADERS, id, block);
            fixture.calls.begin(Call::new(id, Method::Timestamps));
        }
        fixture.say(&frames);
        fixture
    }

    fn say(&mut self, mut frames: &[u8]) {
        while let Some((len, _)) = self.session.receive(frames, &mut self.out).unwrap() {
            frames = &frames[len..];
        }
        self.out.clear();
    }

    fn with_sink<T>(&mut self, act: impl FnOnce(&mut Calls, &mut Sink<'_>) -> T) -> T {
        let Self { calls, session, table, out } = self;
        act(calls, &mut Sink { session, table, out })
    }

    fn capacity(&self) -> usize {
        let of = |call: &Call| call.held.capacity() + call.waiting.capacity();
        self.calls.list.iter().map(of).sum()
    }

    /// Checks the invariants of [`Calls`].
    fn check(&self) {
        let mut lens = Lens::default();
        for call in &self.calls.list {
            lens += call.lens();
            for bytes in [&call.held, &call.waiting] {
                assert!(bytes.capacity() <= KEPT_LEN.max(2 * bytes.len()), "{}", bytes.len());
            }
        }
        assert_eq!(self.calls.lens, lens);
    }

    /// The frames that were sent on a stream: their kinds and lengths.
    fn sent(&self, id: u32) -> Vec<(u8, usize)> {
        let (mut rest, mut found) = (&self.out[..], Vec::new());
        while let Some(frame) = Frame::split(rest).unwrap() {
            if frame.stream == id {
                found.push((frame.kind, frame.payload.len()));
            }
            rest = &rest[frame.len()..];
        }
        found
    }
}

fn ids() -> impl Iterator<Item = u32> {
    (1..).step_by(2).take(STREAMS_MAX)
}

fn requests(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        message::put(&mut bytes, |out| out.extend_from_slice(b"\x08\x01"));
    }
    bytes
}

/// Without the limits, each stream could keep the capacity of a burst: 128 KiB of answers.
#[test]
fn the_calls_of_a_connection_keep_little_after_a_burst_on_each() {
    let mut it = Fixture::new(0);
    for id in ids() {
        let burst = requests(2000);
        let count = |call: &mut Call, _: Message<'_>| {
            call.count_request();
            Ok(())
        };
        it.calls.receive(id, &burst, burst.len(), count).unwrap();
        it.check();
        for _ in 0..IN_FLIGHT_MAX {
            it.with_sink(|calls, sink| calls.answer(id, sink, |out| out.extend_from_slice(ANSWER)));
        }
        it.check();
        // The client reads all but one byte.
        let len = it.calls.get(id).unwrap().waiting.len() as u32;
        let mut more = Vec::new();
        frame::put(&mut more, kind::WINDOW_UPDATE, 0, id, &(len - 1).to_be_bytes());
        it.say(&more);
        it.with_sink(|calls, sink| calls.flush(id, sink));
        it.check();
        let at = it.calls.position(id).unwrap();
        it.calls.change(at, Call::discard);
    }
    assert!(it.capacity() <= STREAMS_MAX * 2 * KEPT_LEN, "{} bytes", it.capacity());
    for id in ids() {
        it.with_sink(|calls, sink| calls.end(id, &status::STOPPING, sink));
        assert!(it.calls.drop_stream(id), "a byte waits");
    }
    assert_eq!(it.calls.lens, Lens::default());
}

#[test]
fn parts_of_messages_have_a_limit_of_their_own_and_hold_no_window() {
    let mut it = Fixture::new(0);
    let mut longest = Vec::new();
    message::put(&mut longest, |out| out.extend_from_slice(&[0; MESSAGE_LEN_MAX]));
    let part = &longest[..longest.len() - 1];
    let mut ended = 0;
    for id in ids() {
        match it.calls.receive(id, part, part.len(), |_, _| unreachable!("a part")) {
            Ok(()) => {}
            Err(status) => {
                assert_eq!(status, status::UNFINISHED);
                it.with_sink(|calls, sink| calls.end(id, &status, sink));
                ended += 1;
            }
        }
        it.with_sink(|calls, sink| calls.hold(sink));
        it.check();
        assert!(!it.session.is_held());
        assert!(it.calls.lens.unfinished <= UNFINISHED_LEN_MAX);
    }
    assert_eq!(ended, STREAMS_MAX - 64);
    // The request of a call that has only one counts until it is answered.
    let id = ids().next().unwrap();
    let keep = |call: &mut Call, message: Message<'_>| {
        assert!(call.keep_request(message.bytes));
        Ok(())
    };
    it.calls.receive(id, &[0], 1, keep).unwrap();
    it.check();
    let before = it.calls.lens.unfinished;
    assert_eq!(it.calls.take_request(id).map(|it| it.len()), Some(MESSAGE_LEN_MAX));
    it.check();
    assert_eq!(it.calls.lens.unfinished, before - MESSAGE_LEN_MAX);
}

#[test]
fn an_error_ends_a_call_once_and_behind_the_answers_that_wait() {
    let mut it = Fixture::new(30);
    let other = Status::fixed(Code::Internal, "otherwise", ErrorCode::BadRequest);
    it.calls.get(1).unwrap().in_flight = 3;
    it.out.clear();
    it.with_sink(|calls, sink| {
        calls.answer(1, sink, |out| out.extend_from_slice(ANSWER));
        calls.end(1, &status::STOPPING, sink);
        // Requests of the call may still be in a batch, and be answered or refused.
        calls.answer(1, sink, |out| out.extend_from_slice(ANSWER));
        calls.end(1, &other, sink);
        calls.end_after_answers(&other, sink, |_| true);
    });
    let part = [kind::HEADERS, kind::DATA];
    assert_eq!(it.sent(1).iter().map(|it| it.0).collect::<Vec<_>>(), part);
    it.calls.receive(1, &requests(5), 35, |_, _| unreachable!("the call ends")).unwrap();
    it.check();
    let mut more = Vec::new();
    frame::put(&mut more, kind::WINDOW_UPDATE, 0, 1, &1000_u32.to_be_bytes());
    it.say(&more);
    it.with_sink(Calls::flush_all);
    let rest = ANSWER.len() + PREFIX_LEN - 30;
    let sent = it.sent(1);
    assert_eq!((sent[0], sent[1].0), ((kind::DATA, rest), kind::HEADERS));
    let text = String::from_utf8_lossy(&it.out).into_owned();
    assert!(text.contains("this node is stopping") && !text.contains("otherwise"), "{text}");
    assert!(it.calls.get(1).is_none());
    it.check();
}

#[test]
fn a_call_that_ends_keeps_no_messages_and_holds_no_window() {
    let mut it = Fixture::new(0);
    let burst = requests(8000);
    it.calls.get(1).unwrap().in_flight = IN_FLIGHT_MAX;
    it.calls.receive(1, &burst, burst.len(), |_, _| unreachable!("it pauses")).unwrap();
    it.with_sink(|calls, sink| calls.hold(sink));
    assert!(it.session.is_held());
    it.with_sink(|calls, sink| {
        calls.end_after_answers(&status::STOPPING, sink, |call| call.id == 1);
        calls.hold(sink);
    });
    assert!(!it.session.is_held());
    assert_eq!((it.calls.lens, it.calls.resumable()), (Lens::default(), None));
    assert_eq!(it.calls.get(1).unwrap().in_flight, IN_FLIGHT_MAX, "they get their answers");
}
