//! Targets for input from people and other programs: queries, settings, JSON, answers,
//! certificates. Each input must be parsed to a value within its bounds, or refused with a reason.

use std::collections::VecDeque;
use std::path::Path;
use std::time::UNIX_EPOCH;

use epicepoch_bench::http1::{BODY_LEN_MAX, parse_response};
use epicepoch_bench::http2::session::STREAM_WINDOW;
use epicepoch_bench::http2::{Event, Request, Session, SessionError};
use epicepoch_certs::Description;
use epicepoch_certs::expiry::not_after;
use epicepoch_certs::rustls::pki_types::CertificateDer;
use epicepoch_certs::{is_named, node_name, node_of};
use epicepoch_client::Members;
use epicepoch_config::Given;
use epicepoch_config::file::ConfigFile;
use epicepoch_core::sequencer::LATEST;
use epicepoch_server::front::http1::scan::{FastRequest, REQUEST_LEN_MAX, Scan, scan};
use epicepoch_server::front::http2::meter::FrameMeter;
use epicepoch_server::front::http2::session::{Event as Asked, STREAMS_MAX, Session as Server};
use epicepoch_server::front::http3::control::Frames;
use epicepoch_server::front::http3::limits::CONTROL_FRAME_LEN_MAX;
use epicepoch_server::front::routes::query::{Ask, Format, LIST_COUNT_MAX};
use epicepoch_server::security::authz::tokens;
use epicepoch_storage::Identity;
use epicepoch_wire::backup::Backup;
use epicepoch_wire::http::RANGE_COUNT_MAX;
use epicepoch_wire::http2::frame::Frame;
use epicepoch_wire::settings::MAX_N;

/// Number of processors of the machine, on which some default settings depend.
const CORES: usize = 4;

/// The query of `/timestamp`. The first bytes give the largest allowed `n`.
pub(crate) fn http_query(data: &[u8]) {
    let Some((max_n, text)) = data.split_first_chunk::<4>() else { return };
    let max_n = u64::from(u32::from_le_bytes(*max_n)).clamp(*MAX_N.start(), *MAX_N.end());
    let Ok(text) = std::str::from_utf8(text) else { return };
    let latest = Ask::parse_latest(Some(text));
    if let Ok(Ask { count, format, .. }) = latest {
        assert_eq!(count, 0, "the latest timestamp takes none");
        assert_ne!(format, Format::Range, "one timestamp is no range");
    }
    let timestamps = Ask::parse(Some(text), max_n);
    if let Ok(Ask { count, format, .. }) = timestamps {
        let most = if format == Format::Range { RANGE_COUNT_MAX } else { max_n };
        assert!((1..=most).contains(&count), "a count within its bounds");
    }
    for asked in [latest, timestamps] {
        match asked {
            Ok(Ask { guarantee, .. }) => {
                assert!(guarantee.is_none() || text.contains("guarantee="), "one that was named");
            }
            Err(bad) => {
                let is_line = !bad.text.is_empty() && !bad.text.contains(['\r', '\n']);
                assert!(is_line, "one line of advice");
                assert_eq!(bad.code.status(), 400, "a bad query is the client's mistake");
            }
        }
    }
}

/// The abuse meter reads frames of an HTTP/2 client after its preface. The input is repeated. The
/// first byte selects where the stream is split, which must not matter. Only clients that sent many
/// frames may be refused.
pub(crate) fn http2_frames(data: &[u8]) {
    let Some(([cut], frames)) = data.split_first_chunk::<1>() else { return };
    if frames.is_empty() {
        return;
    }
    let stream = frames.repeat((FLOOD_LEN / frames.len()).max(1));
    let mut whole = FrameMeter::new(PREFACE_LEN, 0);
    let abuse = whole.handle_read(&stream, 0);
    let mut cut_up = FrameMeter::new(PREFACE_LEN, 0);
    let parts = stream.chunks(usize::from(*cut) + 1);
    assert_eq!(
        parts.map(|part| cut_up.handle_read(part, 0)).find(Option::is_some).flatten(),
        abuse
    );
    assert_eq!(whole.has_begun(), cut_up.has_begun());
    assert_eq!(whole.has_begun(), stream.len() >= FRAME_HEAD_LEN);
    if abuse.is_some() {
        assert!(stream.len() > FLOOD_FRAMES_MIN * FRAME_HEAD_LEN, "nobody is sent away for little");
    }
    let mut patient = FrameMeter::new(PREFACE_LEN, 0);
    for (sweep, part) in stream.chunks(FRAME_HEAD_LEN * 1_000).enumerate() {
        assert_eq!(patient.handle_read(part, sweep as u64), None, "a thousand frames a second");
    }
}

/// The control stream of an HTTP/3 client. The first byte selects where the stream is split, which
/// must not matter. Only a frame longer than the limit may be refused.
pub(crate) fn http3_control(data: &[u8]) {
    let Some(([cut], stream)) = data.split_first_chunk::<1>() else { return };
    let whole = Frames::new().pass(stream);
    let mut frames = Frames::new();
    let parts = stream.chunks(usize::from(*cut) + 1);
    assert_eq!(parts.map(|part| frames.pass(part)).find(Result::is_err).unwrap_or(Ok(())), whole);
    assert_eq!(
        whole.is_err(),
        names_too_long(stream),
        "sent away for a length, and for nothing else"
    );
}

/// Whether a frame of a control stream is longer than the limit.
fn names_too_long(mut stream: &[u8]) -> bool {
    let is_control = take_number(&mut stream) == Some(0);
    while is_control && take_number(&mut stream).is_some() {
        match take_number(&mut stream) {
            Some(len) if len > CONTROL_FRAME_LEN_MAX => return true,
            Some(len) => stream = stream.get(len as usize..).unwrap_or_default(),
            None => return false,
        }
    }
    false
}

/// Takes a variable-length integer off the front of `bytes` (RFC 9000, 16).
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let first = u64::from(number[0] & 0x3f);
    Some(number[1..].iter().fold(first, |value, byte| value << 8 | u64::from(*byte)))
}

/// Files that a node reads once, when it starts: a backup, an identity, tokens. The first byte
/// selects the kind. It also selects whether the file gets a correct checksum, so that the parser
/// behind the checksum is reached.
pub(crate) fn files(data: &[u8]) {
    let Some(([which], bytes)) = data.split_first_chunk::<1>() else { return };
    if which % 3 == 0 {
        let Ok(read) = tokens::parse(bytes) else { return };
        assert!(!read.is_empty(), "a file without a token would admit anybody or nobody");
        for token in read {
            assert!(token.iter().all(u8::is_ascii_graphic), "what a header can hold");
            assert!(bytes.windows(token.len()).any(|part| *part == *token), "as it was written");
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let checksum = crc32fast::hash(bytes);
    let sealed = which & 0x80 != 0;
    let text = if sealed { format!("{text}crc32 {checksum:08x}\n") } else { text.to_owned() };
    if which % 3 == 1 {
        if let Ok(backup) = Backup::parse(&text) {
            assert_eq!(backup.text(), text, "one spelling");
        }
    } else if let Ok(identity) = Identity::parse(&text) {
        assert_eq!(identity.text(), text, "one spelling");
    }
}

/// Requests of an HTTP/2 client after its preface, as a node reads them. The first byte selects
/// where the stream is split, which must not matter, and how soon requests are answered. The node
/// must write valid frames, and only requested streams may be open.
pub(crate) fn http2_request(data: &[u8]) {
    let Some(([first], bytes)) = data.split_first_chunk::<1>() else { return };
    let (part, open_max) = (usize::from(first / 4) + 1, usize::from(first % 4));
    let whole = http2_asked(bytes, bytes.len().max(1), open_max);
    assert_eq!(whole, http2_asked(bytes, part, open_max), "in parts as in one");
    let mut said = &whole.1[..];
    while let Ok(Some(frame)) = Frame::split(said) {
        said = &said[frame.len()..];
    }
    assert!(said.is_empty(), "whole frames that a client takes");
}

/// Feeds bytes in parts of `part`. Returns the requests and the answers. A request is answered when
/// `open_max` others wait behind it.
fn http2_asked(bytes: &[u8], part: usize, open_max: usize) -> (Vec<String>, Vec<u8>) {
    let mut out = Vec::new();
    let mut server = Server::new(*MAX_N.end(), true, &mut out);
    let (mut asked, mut open, mut at) = (Vec::new(), VecDeque::new(), 0);
    for end in (0..bytes.len()).step_by(part).map(|from| (from + part).min(bytes.len())) {
        loop {
            let (len, event) = match server.receive(&bytes[at..end], &mut out) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(fault) => {
                    server.end(fault, &mut out);
                    asked.push(format!("{fault:?}"));
                    return (asked, out);
                }
            };
            at += len;
            match &event {
                Asked::Fast { id } => {
                    let fast = server.fast_request().expect("what is fast was decoded");
                    let Ask { count, format, .. } = fast.ask;
                    let is_within = match format {
                        Format::Binary => count <= LIST_COUNT_MAX,
                        Format::Range => count <= RANGE_COUNT_MAX,
                        // The limits are those of a cluster that gives wide timestamps.
                        Format::Json | Format::U64 | Format::U64Range => false,
                    };
                    assert!(count >= 1 && is_within && fast.request_id.len() <= 128);
                    asked.push(format!("{fast:?}"));
                    open.push_back(*id);
                }
                Asked::Request { id, .. } | Asked::TooLong { id } => open.push_back(*id),
                Asked::Reset { id } => open.retain(|other| other != id),
                Asked::Data { id, .. } => assert!(open.contains(id), "a part of what is open"),
                Asked::Nothing | Asked::Window | Asked::Table(_) => {}
            }
            asked.push(format!("{event:?}"));
            assert_eq!(server.open(), open.len(), "{asked:?}");
            assert!(open.len() <= STREAMS_MAX, "streams within their limit");
            if open.len() > open_max
                && let Some(id) = open.pop_front()
                && server.spend_all(id, 16) != Some(true)
            {
                assert!(server.spend(id, 1 << 20).expect("it is open") <= 1 << 20);
                server.finish(id, &mut out);
            }
        }
    }
    (asked, out)
}

/// The abuse meter counts this many bytes for each input. To reach this number, the input is
/// repeated, so most inputs are floods.
const FLOOD_LEN: usize = 200_000;
/// A client may be refused only after at least this many frames.
const FLOOD_FRAMES_MIN: usize = 9_999;
const FRAME_HEAD_LEN: usize = 9;
/// Length of the client's preface, bytes.
const PREFACE_LEN: usize = 24;

/// The start of an HTTP/1.1 connection, as the fast path reads it. The first bytes give the largest
/// allowed `n`. If the fast path accepts a request, the `httparse` crate must accept it with the
/// same meaning. The place where the bytes end must not matter.
pub(crate) fn http_request(data: &[u8]) {
    let Some((max_n, bytes)) = data.split_first_chunk::<4>() else { return };
    let max_n = u64::from(u32::from_le_bytes(*max_n)).clamp(*MAX_N.start(), *MAX_N.end());
    let FastRequest { ask, request_id, authorization, is_direct, closes, len } =
        match scan(bytes, max_n) {
            Scan::Fast(request) => request,
            Scan::Partial => {
                assert!(bytes.len() < REQUEST_LEN_MAX, "a limit to what is waited for");
                return assert_ne!(scan(&bytes[..bytes.len() / 2], max_n), Scan::Other);
            }
            Scan::Other => {
                let more = [bytes, b"\r\n\r\n"].concat();
                return assert_eq!(scan(&more, max_n), Scan::Other, "whatever follows");
            }
        };
    let whole = &bytes[..len];
    assert!(len <= REQUEST_LEN_MAX && scan(whole, max_n) == scan(bytes, max_n));
    let lines = whole.split(|byte| *byte == b'\n');
    let name = b"authorization:";
    let given = lines.filter(|line| {
        line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
    });
    let values: Vec<_> = given.map(|line| line[name.len()..].trim_ascii()).collect();
    assert!(values.len() <= 1, "two tokens are not fast");
    assert_eq!(authorization, values.first().copied().unwrap_or_default());
    for cut in [len - 1, len / 2, len / 3, 0] {
        assert_eq!(scan(&whole[..cut], max_n), Scan::Partial, "cut at {cut}");
    }
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes);
    assert_eq!(parsed, Ok(httparse::Status::Complete(len)), "a request as others see it");
    assert_eq!((request.method, request.version), (Some("GET"), Some(1)));
    let path = request.path.unwrap_or_default();
    if let Some(query) = path.strip_prefix("/latest") {
        assert_eq!(Ask::parse_latest(query.strip_prefix('?')), Ok(ask));
        assert_eq!((ask.count, ask.format), (LATEST, Format::Binary));
    } else {
        let query = path.strip_prefix("/timestamp").expect("the fast path");
        assert_eq!(Ask::parse(query.strip_prefix('?'), max_n), Ok(ask));
    }
    assert!(
        ask.format == Format::Range || ask.format == Format::Binary && ask.count <= LIST_COUNT_MAX
    );
    let values = |name: &str| -> Vec<&[u8]> {
        let same = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
        same.map(|it| it.value.trim_ascii()).collect()
    };
    for name in ["content-length", "transfer-encoding", "upgrade", "expect", "te", "trailer"] {
        assert!(values(name).is_empty(), "{name} is not for the fast path");
    }
    assert_eq!(values("host").len(), 1);
    assert_eq!(values("epicepoch-request-id").first().copied().unwrap_or_default(), request_id);
    assert_eq!(values("epicepoch-direct").contains(&&b"1"[..]), is_direct);
    let connection = values("connection");
    assert!(connection.len() <= 1);
    let asks_to_close = connection.iter().any(|it| it.eq_ignore_ascii_case(b"close"));
    assert_eq!(asks_to_close, closes);
}

/// A settings file, from its text to a checked configuration.
pub(crate) fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("epicepoch.toml");
    let file = match ConfigFile::parse(path, text) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty(), "a refusal says why"),
    };
    let mut given = Given::default();
    given.add_file(path, file);
    match given.node(CORES) {
        Ok(config) => assert_eq!(config.check(), Ok(()), "what is taken is within bounds"),
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
    }
}

/// The body of `/members`, as the client reads it.
pub(crate) fn members(data: &[u8]) {
    let Ok(members) = Members::from_json(data, None) else { return };
    assert!(members.members.len() <= Members::COUNT_MAX, "members within their limit");
    for member in members.members.iter().chain(&members.leader) {
        assert_ne!(member.node_id.0, 0, "node 0 is nobody");
        let is_plain = member.addr.bytes().all(|byte| byte.is_ascii_graphic());
        assert!(is_plain && member.addr.contains(':'), "an address that a header can hold");
    }
}

/// Answers one after another, as the load generator reads them.
pub(crate) fn http_answer(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((response, used))) = parse_response(rest) {
        assert!(used <= rest.len() && response.body.len() <= BODY_LEN_MAX.min(used));
        let names = response.headers().map(|(name, _)| name);
        assert!(names.into_iter().all(|name| response.header(name).is_some()));
        rest = &rest[used..];
    }
}

/// The stream of an HTTP/2 server, as the load generator reads it. The first byte selects how many
/// requests are open, and where the stream is split, which must not matter.
pub(crate) fn http2_answer(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let (depth, part) = (usize::from(first % 8) + 1, usize::from(first / 8) + 1);
    let whole = http2_events(depth, bytes, bytes.len().max(1));
    assert_eq!(whole, http2_events(depth, bytes, part), "in parts as in one");
}

/// The result of a connection. It has slot, status, body length and leader of each answer, then the
/// bytes sent, and then the error that ended the connection.
type Http2Events = (Vec<(usize, u16, usize, Option<String>)>, Vec<u8>, Option<SessionError>);

/// Returns the result of reading `bytes` in parts of `part` bytes.
fn http2_events(depth: usize, bytes: &[u8], part: usize) -> Http2Events {
    let mut out = Vec::new();
    let mut session = Session::new(depth, Request::new("/timestamp", "node:8080", None), &mut out);
    let (mut seen, mut at) = (Vec::new(), 0);
    for end in (0..bytes.len()).step_by(part).map(|from| (from + part).min(bytes.len())) {
        loop {
            if session.is_ready() {
                while session.has_room() {
                    assert!(session.ask(&mut out) < depth, "a slot within the depth");
                }
            }
            let (len, event) = match session.receive(&bytes[at..end], &mut out) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(error) => return (seen, out, Some(error)),
            };
            at += len;
            match event {
                Event::Nothing => {}
                Event::Answer { slot, last } => {
                    let it = session.answer(slot, last);
                    assert!((200..=999).contains(&it.status), "a final status");
                    assert!(it.body.len() <= STREAM_WINDOW as usize, "a body within its window");
                    let leader = it.leader.map(str::to_owned);
                    seen.push((slot, it.status, it.body.len(), leader));
                }
                Event::Reset { slot, .. } => seen.push((slot, 0, 0, None)),
                Event::GoingAway => {
                    while let Some(slot) = session.poll_unseen() {
                        seen.push((slot, 1, 0, None));
                    }
                    assert!(!session.has_room(), "nothing is asked of who goes away");
                }
            }
            assert!(session.open() <= depth && session.oldest().is_none() == (session.open() == 0));
        }
    }
    (seen, out, None)
}

/// A certificate. A node reads the expiry of its own certificates, and the node id of a peer's
/// certificate.
pub(crate) fn certificate(data: &[u8]) {
    let certificate = CertificateDer::from(data);
    if let Some(node) = node_of(&certificate, CLUSTER) {
        assert!(is_named(&certificate, &node_name(CLUSTER, node)), "by its one name");
    }
    if let Some(description) = Description::of(&certificate) {
        assert_eq!(not_after(data), Some(description.not_after), "both read the same end");
    }
    let Some(at) = not_after(data) else { return };
    let since = at.duration_since(UNIX_EPOCH).expect("none is read that ended before 1970");
    assert!(since.as_secs() < TEN_THOUSAND_YEARS_S, "four digits of a year");
    for cut in [data.len() - 1, data.len() / 2, 0] {
        assert_eq!(not_after(&data[..cut]), None, "cut at {cut}");
    }
    assert_eq!(not_after(&[data, b"x"].concat()), None, "it ends where it says");
}

/// The name of the cluster in the corpus's certificates.
const CLUSTER: &str = "fuzz";
const TEN_THOUSAND_YEARS_S: u64 = 10_000 * 366 * 86_400;
