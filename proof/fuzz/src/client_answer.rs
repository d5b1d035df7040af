//! The target for answers over HTTP/1.1, as clients read them. The library `httparse` and a simple
//! decoder of chunks, which is here, must read the same answer.

use std::ops::Range;

use epicepoch_wire::http::{HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER, HEADER_PROOF};
use epicepoch_wire::http1::{
    ANSWER_LEN_MAX, AnswerError, AnswerReader, BODY_LEN_MAX, HEAD_LEN_MAX,
};

/// One answer. The first byte selects where the bytes are split, which must not matter, and whether
/// the connection ends behind them. Bytes behind the answer must not matter, either. If an answer is
/// accepted, others must read the same one.
pub(crate) fn client_answer(data: &[u8]) {
    let Some(([first], bytes)) = data.split_first_chunk::<1>() else { return };
    let (part, has_ended) = (usize::from(first / 2) + 1, first % 2 == 1);
    let whole = read(bytes, bytes.len().max(1), has_ended);
    let in_parts = read(bytes, part, has_ended);
    let view = |read: &Result<Option<AnswerReader>, AnswerError>| match read {
        Ok(Some(reader)) => Ok(Some(format!("{:?}, {}", reader.answer(bytes), reader.taken()))),
        Ok(None) => Ok(None),
        Err(error) => Err(*error),
    };
    assert_eq!(view(&whole), view(&in_parts), "in parts as in one");
    let Ok(Some(reader)) = whole else { return };
    let (answer, taken) = (reader.answer(bytes), reader.taken());
    assert!(taken <= bytes.len() && answer.body.len() <= BODY_LEN_MAX);
    let alone = read(&bytes[..taken], taken, has_ended).expect("whatever follows");
    let alone = alone.expect("it is complete");
    assert_eq!((alone.answer(&bytes[..taken]), alone.taken()), (answer, taken));
    let (other, keeps_open) = by_others(&bytes[..taken]);
    assert_eq!(answer.status, other.status);
    assert_eq!(answer.body, other.body, "the body as others see it");
    let named = [answer.cluster, answer.error, answer.leader, answer.proof];
    assert_eq!(named.map(|value| value.map(str::to_owned)), other.fields);
    assert_eq!(reader.keeps_open(), keeps_open);
}

/// Reads an answer in parts of `part` bytes.
fn read(bytes: &[u8], part: usize, has_ended: bool) -> Result<Option<AnswerReader>, AnswerError> {
    let mut reader = AnswerReader::default();
    for begin in (0..bytes.len()).step_by(part) {
        let end = (begin + part).min(bytes.len());
        if reader.read(&bytes[..end])? {
            return Ok(Some(reader));
        }
        assert!(end < ANSWER_LEN_MAX, "a limit to what is waited for");
    }
    if !has_ended {
        return Ok(None);
    }
    reader.end(bytes)?;
    Ok(Some(reader))
}

/// An answer as others read it.
struct Other {
    status: u16,
    fields: [Option<String>; 4],
    body: Vec<u8>,
}

/// Reads an answer that is accepted, with the library. Returns it, and whether the connection stays
/// open.
fn by_others(bytes: &[u8]) -> (Other, bool) {
    let mut at = 0;
    loop {
        let mut headers = vec![httparse::EMPTY_HEADER; HEAD_LEN_MAX / 4];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(&bytes[at..]).expect("a head as others see it");
        let httparse::Status::Complete(length) = parsed else { panic!("a head without its end") };
        at += length;
        assert!(at <= HEAD_LEN_MAX, "heads within their limit");
        let status = head.code.expect("a status");
        if status < 200 {
            continue;
        }
        let values = |name: &str| -> Vec<&[u8]> {
            let same = head.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
            same.map(|it| it.value).collect()
        };
        let one = |name: &str| {
            let values = values(name);
            assert!(values.len() <= 1, "{name} comes once");
            values.first().map(|value| String::from_utf8(value.to_vec()).expect("ASCII"))
        };
        let fields = [HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER, HEADER_PROOF].map(one);
        let length: Option<u128> =
            one("content-length").map(|digits| digits.parse().unwrap_or(u128::MAX));
        let coding = one("transfer-encoding");
        let has_no_body = matches!(status, 204 | 304);
        let body = match (length, &coding) {
            _ if has_no_body => Vec::new(),
            (Some(_), Some(_)) => panic!("a length and a coding"),
            (Some(length), None) => {
                assert_eq!(length, (bytes.len() - at) as u128, "it ends with its length");
                bytes[at..].to_vec()
            }
            (None, Some(coding)) => {
                assert!(coding.eq_ignore_ascii_case("chunked") && head.version == Some(1));
                let (body, end) = unchunked(bytes, at);
                assert_eq!(end, bytes.len(), "it ends with its chunks");
                body
            }
            (None, None) => bytes[at..].to_vec(),
        };
        let is_framed = has_no_body || length.is_some() || coding.is_some();
        let asks_to_close = values("connection").iter().any(|value| {
            let text = String::from_utf8_lossy(value);
            text.split(',').any(|it| it.trim().eq_ignore_ascii_case("close"))
        });
        let keeps_open = is_framed && !asks_to_close && head.version == Some(1);
        return (Other { status, fields, body }, keeps_open);
    }
}

/// Joins the chunks at `at`. Returns the body, and where it ends.
fn unchunked(bytes: &[u8], mut at: usize) -> (Vec<u8>, usize) {
    let line = |at: usize| -> Range<usize> {
        let end = bytes[at..].windows(2).position(|pair| pair == b"\r\n").expect("a line end");
        at..at + end
    };
    let mut body = Vec::new();
    loop {
        let head = line(at);
        at = head.end + 2;
        let text = String::from_utf8_lossy(&bytes[head]).into_owned();
        let size = text.split([';', ' ', '\t']).next().expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a hexadecimal number");
        if size == 0 {
            break;
        }
        body.extend_from_slice(&bytes[at..at + size]);
        assert_eq!(&bytes[at + size..at + size + 2], b"\r\n");
        at += size + 2;
    }
    loop {
        let trailer = line(at);
        at = trailer.end + 2;
        if trailer.is_empty() {
            return (body, at);
        }
    }
}
