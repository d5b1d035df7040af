//! Tests of the reader of answers.

use proptest::prelude::*;

use super::*;

const CLUSTER: &str = "00000000000000000000000000000abc.0000000000000001";

/// Reads an answer at once. Returns the reader, which has read an answer, or why there is none.
fn read(bytes: &[u8]) -> Result<Option<AnswerReader>, AnswerError> {
    let mut reader = AnswerReader::default();
    Ok(reader.read(bytes)?.then_some(reader))
}

/// Reads an answer byte by byte.
fn read_slowly(bytes: &[u8]) -> Result<Option<AnswerReader>, AnswerError> {
    let mut reader = AnswerReader::default();
    for end in 0..=bytes.len() {
        if reader.read(&bytes[..end])? {
            return Ok(Some(reader));
        }
    }
    Ok(None)
}

/// Checks that bytes are an answer with this body, which ends at `taken`.
fn accepted(bytes: &[u8], body: &[u8], taken: usize, keeps_open: bool) {
    let text = String::from_utf8_lossy(bytes);
    for reader in [read(bytes), read_slowly(bytes)] {
        let reader = reader.expect(&text).expect(&text);
        assert_eq!(reader.answer(bytes).body, body, "{text}");
        assert_eq!((reader.taken(), reader.keeps_open()), (taken, keeps_open), "{text}");
    }
}

/// Checks that bytes are refused, however they are split.
fn refused(bytes: &[u8], error: AnswerError) {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    for reader in [read(bytes), read_slowly(bytes)] {
        assert_eq!(reader.map(|_| ()), Err(error), "{text}");
    }
}

/// An answer with status 200 and these headers, each with its line end, and what follows them.
fn answer(headers: &str, rest: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{headers}\r\n{rest}").into_bytes()
}

#[test]
fn an_answer_of_a_node_is_read_with_the_headers_that_clients_use() {
    let bytes = answer(
        &format!(
            "epicepoch-cluster: {CLUSTER}\r\nEpicEpoch-Error:NOT_LEADER\r\nserver: x\r\n\
             epicepoch-leader: \t a:1 \t \r\nepicepoch-proof:\r\ncontent-length: 3\r\n"
        ),
        "abcHTTP",
    );
    accepted(&bytes, b"abc", bytes.len() - 4, true);
    let reader = read(&bytes).unwrap().unwrap();
    let expected = Answer {
        status: 200,
        cluster: Some(CLUSTER),
        error: Some("NOT_LEADER"),
        leader: Some("a:1"),
        proof: Some(""),
        body: b"abc",
    };
    assert_eq!(reader.answer(&bytes), expected);
}

#[test]
fn an_answer_is_complete_only_with_its_last_byte() {
    for bytes in [
        answer("content-length: 4\r\n", "abcd"),
        answer("transfer-encoding: chunked\r\n", "4\r\nabcd\r\n0\r\nx: y\r\n\r\n"),
        b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 304\r\n\r\n".to_vec(),
    ] {
        for end in 0..bytes.len() {
            let mut reader = AnswerReader::default();
            assert_eq!(reader.read(&bytes[..end]), Ok(false), "{end}");
            assert_eq!(reader.end(&bytes[..end]), Err(AnswerError::Ended), "{end}");
        }
        let mut reader = AnswerReader::default();
        assert_eq!(reader.end(&bytes), Ok(()));
        assert_eq!(reader.taken(), bytes.len());
    }
}

#[test]
fn a_body_of_a_length_ends_there_and_later_bytes_are_not_of_it() {
    accepted(&answer("content-length: 0\r\n", ""), b"", 38, true);
    accepted(&answer("Content-Length:  003 \r\n", "abcd"), b"abc", 45, true);
    accepted(&answer("content-length: 1\r\nconnection: close\r\n", "a"), b"a", 58, false);
    let options =
        answer("connection: x, Close\r\nconnection: keep-alive\r\ncontent-length: 0\r\n", "");
    accepted(&options, b"", options.len(), false);
    let other = answer("connection: closed\r\ncontent-length: 0\r\n", "");
    accepted(&other, b"", other.len(), true);
}

#[test]
fn chunks_are_joined_and_what_comes_with_them_is_passed_over() {
    for (rest, body) in [
        ("0\r\n\r\n", ""),
        ("3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("3;name=\"value\"\r\nabc\r\n0A \t; x\r\n0123456789\r\n000\r\n\r\n", "abc0123456789"),
        ("1\r\na\r\n0\r\ncontent-length: 7\r\nepicepoch-leader: b:2\r\n\r\n", "a"),
    ] {
        let bytes = answer("Transfer-Encoding: Chunked\r\n", rest);
        accepted(&bytes, body.as_bytes(), bytes.len(), true);
        let more = [&bytes[..], b"0\r\n\r\n"].concat();
        accepted(&more, body.as_bytes(), bytes.len(), true);
        assert_eq!(read(&bytes).unwrap().unwrap().answer(&bytes).leader, None, "not of a trailer");
    }
}

#[test]
fn malformed_chunks_are_refused() {
    for rest in
        ["x\r\n", "\r\n", "-1\r\n", "1 2\r\n", "3\r\nabcd", "3\r\nabc\n", "3,\r\n", "1;\u{1}\r\n"]
    {
        refused(&answer("transfer-encoding: chunked\r\n", rest), AnswerError::Chunk);
    }
    let chunked = |rest| answer("transfer-encoding: chunked\r\n", rest);
    refused(&chunked("1\n"), AnswerError::LineEnd);
    refused(&chunked("0\r\nno trailer\r\n"), AnswerError::Header);
    refused(&chunked("0\r\nx: y\r\n folded\r\n"), AnswerError::Folded);
}

#[test]
fn interim_answers_are_skipped_with_what_they_say() {
    let bytes = b"HTTP/1.1 100 Continue\r\n\r\n\
          HTTP/1.1 103 Early Hints\r\nepicepoch-leader: a:1\r\ncontent-length: 9\r\n\
          connection: close\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx";
    accepted(bytes, b"x", bytes.len(), true);
    assert_eq!(read(bytes).unwrap().unwrap().answer(bytes).leader, None);
    refused(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", AnswerError::Switches);
    let endless = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(HEAD_LEN_MAX / 25 + 1);
    refused(&endless, AnswerError::HeadTooLong);
}

#[test]
fn an_answer_without_a_length_ends_with_its_connection() {
    for begin in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n"] {
        for body in ["", "abc"] {
            let bytes = [begin, body].concat();
            let mut reader = AnswerReader::default();
            assert_eq!(reader.read(bytes.as_bytes()), Ok(false));
            assert_eq!(reader.end(bytes.as_bytes()), Ok(()));
            assert_eq!(reader.answer(bytes.as_bytes()).body, body.as_bytes());
            assert!(!reader.keeps_open());
        }
    }
    let mut reader = AnswerReader::default();
    let long = answer("", &"x".repeat(BODY_LEN_MAX + 1));
    assert_eq!(reader.read(&long[..long.len() - 1]), Ok(false));
    assert_eq!(reader.read(&long), Err(AnswerError::BodyTooLong));
}

#[test]
fn over_http_1_0_a_connection_has_one_answer() {
    let head = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n";
    accepted(format!("{head}x").as_bytes(), b"x", head.len() + 1, false);
    let chunked = b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    refused(chunked, AnswerError::Coding);
}

#[test]
fn statuses_without_a_body_end_with_their_head() {
    for status in ["204 No Content", "304 Not Modified"] {
        for header in ["content-length: 5\r\n", "transfer-encoding: chunked\r\n", ""] {
            let head = format!("HTTP/1.1 {status}\r\n{header}\r\n");
            accepted(format!("{head}abcde").as_bytes(), b"", head.len(), true);
        }
    }
}

#[test]
fn a_length_that_could_be_understood_in_two_ways_is_refused() {
    for headers in
        ["content-length: 5\r\ncontent-length: 6\r\n", "content-length: 5\r\nContent-Length: 5\r\n"]
    {
        refused(&answer(headers, "abcdef"), AnswerError::Twice("content-length"));
    }
    for value in ["", "-1", "+1", "5, 5", "5 5", "0x5", "5a"] {
        refused(&answer(&format!("content-length: {value}\r\n"), "abcde"), AnswerError::Length);
    }
    for headers in [
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding:\r\n",
    ] {
        refused(&answer(headers, "0\r\n\r\n"), AnswerError::Coding);
    }
    let twice = "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n";
    refused(&answer(twice, "0\r\n\r\n"), AnswerError::Twice("transfer-encoding"));
}

#[test]
fn a_header_that_a_client_uses_comes_once() {
    for name in FIELDS {
        let twice = format!("{name}: a\r\nx: y\r\n{}: a\r\n", name.to_uppercase());
        refused(&answer(&twice, ""), AnswerError::Twice(name));
        refused(&answer(&format!("{name}: \u{e9}\r\n"), ""), AnswerError::Header);
    }
    let others = "via: a\r\nvia: b\r\nset-cookie: \u{e9}\r\ncontent-length: 0\r\n";
    let bytes = answer(others, "");
    accepted(&bytes, b"", bytes.len(), true);
}

#[test]
fn malformed_heads_are_refused() {
    for line in [
        "SSH-2.0-x",
        "HTTP/2.0 200 OK",
        "HTTP/1.2 200 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1 200OK",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1 200 \u{7f}",
        "http/1.1 200 OK",
        " HTTP/1.1 200 OK",
        "HTTP/1.1",
        "",
    ] {
        refused(format!("{line}\r\n\r\n").as_bytes(), AnswerError::StatusLine);
    }
    for line in
        [": x", "x", "x : y", "x\ty: z", "x: a\rb", "x: a\0", "x\u{e9}: y", "x: \u{7f}", "x y: z"]
    {
        refused(&answer(&format!("{line}\r\n"), ""), AnswerError::Header);
    }
    for line in [" x: y", "\tx: y", "x: y\r\n z"] {
        refused(&answer(&format!("{line}\r\n"), ""), AnswerError::Folded);
    }
    refused(b"HTTP/1.1 200 OK\n\n", AnswerError::LineEnd);
    refused(&answer("x: y\n", ""), AnswerError::LineEnd);
    refused(b"HTTP/1.1 200 OK\r\n\n", AnswerError::LineEnd);
}

#[test]
fn another_protocol_is_found_out_at_its_first_byte() {
    for bytes in [&b"\x15\x03\x01"[..], b"x", b"HTTP/2"] {
        refused(bytes, AnswerError::StatusLine);
    }
}

#[test]
fn every_part_of_an_answer_has_a_limit() {
    let long = "x".repeat(ANSWER_LEN_MAX);
    refused(format!("HTTP/1.1 200 {long}").as_bytes(), AnswerError::HeadTooLong);
    refused(&answer(&format!("x: {long}"), ""), AnswerError::HeadTooLong);
    refused(&answer(&"x: y\r\n".repeat(HEAD_LEN_MAX / 6), ""), AnswerError::HeadTooLong);
    let over = BODY_LEN_MAX + 1;
    for length in [over.to_string(), u64::MAX.to_string(), "9".repeat(100)] {
        refused(&answer(&format!("content-length: {length}\r\n"), ""), AnswerError::BodyTooLong);
    }
    let chunked = |rest: &str| answer("transfer-encoding: chunked\r\n", rest);
    for size in [format!("{over:x}"), "f".repeat(16), "f".repeat(17)] {
        refused(&chunked(&format!("{size}\r\n")), AnswerError::BodyTooLong);
    }
    let half = format!("{:x}\r\n{}\r\n", BODY_LEN_MAX / 2, &long[..BODY_LEN_MAX / 2]);
    refused(&chunked(&format!("{half}{half}1\r\n")), AnswerError::BodyTooLong);
    let whole = chunked(&format!("{half}{half}0\r\n\r\n"));
    let reader = read(&whole).unwrap().expect("exactly the longest body");
    assert_eq!(reader.answer(&whole).body.len(), BODY_LEN_MAX);
    refused(&chunked(&format!("1;{long}")), AnswerError::ChunkingTooLong);
    refused(&chunked(&"1\r\na\r\n".repeat(CHUNKING_LEN_MAX / 5 + 1)), AnswerError::ChunkingTooLong);
    let trailers = "x: y\r\n".repeat(CHUNKING_LEN_MAX / 6 + 1);
    refused(&chunked(&format!("0\r\n{trailers}")), AnswerError::ChunkingTooLong);
}

#[test]
fn a_reader_that_is_reset_knows_nothing_of_the_last_answer() {
    let first =
        answer("epicepoch-leader: a:1\r\ntransfer-encoding: chunked\r\n", "1\r\na\r\n0\r\n\r\n");
    let mut reader = read(&first).unwrap().unwrap();
    reader.reset();
    let second = answer("content-length: 1\r\n", "b");
    assert_eq!(reader.read(&second), Ok(true));
    let expected = Answer { status: 200, body: b"b", ..Answer::default() };
    assert_eq!(reader.answer(&second), expected);
}

#[test]
#[should_panic(expected = "only a complete answer is returned")]
fn an_answer_that_is_not_complete_is_not_returned() {
    let bytes = answer("content-length: 2\r\n", "b");
    let mut reader = AnswerReader::default();
    assert_eq!(reader.read(&bytes), Ok(false));
    let _ = reader.answer(&bytes);
}

/// How the end of a body is marked.
#[derive(Clone, Debug)]
enum Ends {
    Length,
    /// Chunks of at most this many bytes.
    Chunks(usize),
    Connection,
}

/// An answer to encode.
#[derive(Clone, Debug)]
struct Given {
    interims: usize,
    status: u16,
    fields: [Option<String>; 4],
    /// Other headers, before the known ones.
    others: Vec<(String, String)>,
    is_upper: bool,
    closes: bool,
    ends: Ends,
    body: Vec<u8>,
}

impl Given {
    fn encode(&self) -> Vec<u8> {
        let named = |name: &str, value: &str| {
            let name = if self.is_upper { name.to_uppercase() } else { name.to_owned() };
            format!("{name}:{value} \r\n")
        };
        let mut parts = vec!["HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(self.interims)];
        parts.push(format!("HTTP/1.1 {} Some reason\r\n", self.status));
        parts.extend(self.others.iter().map(|(name, value)| format!("x-{name}: {value}\r\n")));
        let fields = FIELDS.iter().zip(&self.fields);
        parts.extend(fields.filter_map(|(name, value)| Some(named(name, value.as_ref()?))));
        if self.closes {
            parts.push(named("connection", "close"));
        }
        match self.ends {
            Ends::Length => parts.push(named("content-length", &self.body.len().to_string())),
            Ends::Chunks(_) => parts.push(named("transfer-encoding", "chunked")),
            Ends::Connection => {}
        }
        let mut out = (parts.concat() + "\r\n").into_bytes();
        let Ends::Chunks(size) = self.ends else {
            out.extend_from_slice(&self.body);
            return out;
        };
        for chunk in self.body.chunks(size) {
            out.extend_from_slice(format!("{:x};e=1\r\n", chunk.len()).as_bytes());
            out.extend_from_slice(chunk);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\ntrailer: x\r\n\r\n");
        out
    }
}

fn given() -> impl Strategy<Value = Given> {
    let value = || proptest::option::of("[!-~]([ -~]{0,20}[!-~])?");
    let ends = prop_oneof![
        Just(Ends::Length),
        (1..50_usize).prop_map(Ends::Chunks),
        Just(Ends::Connection)
    ];
    let status = (200..1000_u16).prop_filter("a status with a body", |it| !matches!(it, 204 | 304));
    let others = proptest::collection::vec(("[a-z!#$%&'*+.^_`|~-]{1,9}", "[ -~]{0,20}"), 0..6);
    let body = proptest::collection::vec(any::<u8>(), 0..200);
    let fields = [value(), value(), value(), value()];
    (0..3_usize, status, fields, others, any::<bool>(), any::<bool>(), ends, body).prop_map(
        |(interims, status, fields, others, is_upper, closes, ends, body)| Given {
            interims,
            status,
            fields,
            others,
            is_upper,
            closes,
            ends,
            body,
        },
    )
}

proptest! {
    #[test]
    fn an_answer_is_read_as_it_was_written_however_reads_split_it(
        given in given(),
        cuts in proptest::collection::vec(1..60_usize, 1..8),
        more in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = given.encode();
        let whole = bytes.len();
        let ends_with_connection = matches!(given.ends, Ends::Connection);
        if !ends_with_connection {
            bytes.extend_from_slice(&more);
        }
        let mut reader = AnswerReader::default();
        let (mut end, mut cuts) = (0, cuts.iter().cycle());
        while !reader.read(&bytes[..end]).expect("an answer") && end < bytes.len() {
            end = (end + cuts.next().expect("endless")).min(bytes.len());
        }
        if ends_with_connection {
            reader.end(&bytes).expect("an answer");
        }
        prop_assert_eq!(reader.taken(), whole);
        prop_assert_eq!(reader.keeps_open(), !given.closes && !ends_with_connection);
        let [cluster, error, leader, proof] = given.fields.each_ref().map(Option::as_deref);
        let (status, body) = (given.status, &given.body[..]);
        let expected = Answer { status, cluster, error, leader, proof, body };
        prop_assert_eq!(reader.answer(&bytes), expected);
    }

    #[test]
    fn any_bytes_are_read_to_the_same_end_however_reads_split_them(
        given in given(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = given.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let view = |reader: AnswerReader| {
            (reader.taken(), reader.keeps_open(), format!("{:?}", reader.answer(&bytes)))
        };
        let at_once = read(&bytes).map(|reader| reader.map(view));
        prop_assert_eq!(at_once, read_slowly(&bytes).map(|reader| reader.map(view)));
    }
}
