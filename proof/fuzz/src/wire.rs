//! Targets for decoders of input from peers, clients and the log. A decoder must parse or refuse
//! every input. It must not allocate more than the length of the input. A parsed value must be
//! equal after it is written and parsed again.

use std::fmt::Debug;

use epicepoch_core::state::{Command, MembershipChange, State};
use epicepoch_wire::bootstrap::Empty;
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::cursor::Reader;
use epicepoch_wire::frame::{HEADER_LEN, split_frame, write_frame};
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::grpc::health;
use epicepoch_wire::grpc::message::{MESSAGE_LEN_MAX, Message, MessageError, PREFIX_LEN, put};
use epicepoch_wire::grpc::oracle::{TimestampRequest, TimestampResponse};
use epicepoch_wire::grpc::pd::{TsoRequest, TsoResponse};
use epicepoch_wire::grpc::protobuf::Fields;
use epicepoch_wire::grpc::reflection;
use epicepoch_wire::native::{
    self, ClientHello, Request, TO_CLIENT_TAIL_LEN_MAX, TO_SERVER_TAIL_LEN_MAX, ToClient, ToServer,
    Welcome,
};
use epicepoch_wire::peer_hello::{PeerHello, Refusal};
use epicepoch_wire::raft_message::{LogEntry, RaftMessage, Snapshot};
use epicepoch_wire::voter_status::VoterStatus;
use epicepoch_wire::{DecodeError, Timestamp, TimestampRange};

/// Frames of a stream, as a connection takes them from its buffer. The same content has only one
/// encoding.
pub(crate) fn frame(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((header, payload, length))) = split_frame(rest) {
        let mut again = Vec::new();
        write_frame(&mut again, header.kind, header.cluster, header.from, |out| {
            out.extend_from_slice(payload);
        });
        assert_eq!(again, rest[..length], "a frame has one spelling");
        assert_eq!(length, HEADER_LEN + header.length, "a frame is header and payload");
        rest = &rest[length..];
    }
    // A connection waits for the rest of an incomplete frame, or refuses the frame early.
    let cut = data.len().min(HEADER_LEN - 1);
    assert_eq!(split_frame(&data[..cut]), Ok(None), "less than a header is no frame");
}

/// The body of a call: messages one after another, and each as any of the requests and answers that
/// are read.
pub(crate) fn grpc(data: &[u8]) {
    let mut rest = data;
    loop {
        match Message::split(rest) {
            Ok(None) => break,
            Ok(Some((message, behind))) => {
                assert!(message.bytes.len() <= MESSAGE_LEN_MAX, "a message within its limit");
                let mut again = Vec::new();
                put(&mut again, |out| out.extend_from_slice(message.bytes));
                assert_eq!(again[1..], rest[1..rest.len() - behind.len()], "one spelling");
                grpc_message(message.bytes);
                rest = behind;
            }
            Err(error) => {
                let is_long = matches!(error, MessageError::TooLong(_));
                assert!(
                    rest.len() >= PREFIX_LEN && (is_long || rest[0] > 1),
                    "refused for a reason"
                );
                break;
            }
        }
    }
    grpc_message(data);
}

fn grpc_message(bytes: &[u8]) {
    let (mut fields, mut count) = (Fields::new(bytes), 0);
    let is_message = loop {
        match fields.next_field() {
            Ok(Some(_)) => count += 1,
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    assert!(count <= bytes.len(), "a field has a byte at least");
    if let Ok(request) = TsoRequest::decode(bytes) {
        assert!(is_message, "a request has fields");
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(TsoRequest::decode(&again), Ok(request), "a request comes back");
    }
    if let Ok(answer) = TsoResponse::decode(bytes) {
        let mut again = Vec::new();
        answer.encode(&mut again);
        assert_eq!(TsoResponse::decode(&again), Ok(answer), "an answer comes back");
    }
    if let Ok(request) = TimestampRequest::decode(bytes) {
        assert!(is_message, "a request has fields");
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(TimestampRequest::decode(&again), Ok(request), "a request comes back");
    }
    if let Ok(answer) = TimestampResponse::decode(bytes) {
        let mut again = Vec::new();
        answer.encode(&mut again);
        assert_eq!(TimestampResponse::decode(&again), Ok(answer), "an answer comes back");
    }
    if reflection::put_answer(&mut Vec::new(), bytes, std::iter::once("a.B")).is_ok() {
        assert!(is_message, "a request has fields");
    }
    if let Ok(service) = health::decode_check(bytes) {
        assert!(service.len() <= bytes.len() && is_message, "a name from the message");
    }
}

/// The payload of any kind of frame except Raft's. The first byte selects the kind.
pub(crate) fn payload(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 8 {
        0 => {
            // A later version may send more fields, or longer ones. So compare the values, not the
            // bytes.
            if let Ok(hello) = PeerHello::decode(data) {
                let mut again = Vec::new();
                hello.encode(&mut again);
                assert_eq!(PeerHello::decode(&again), Ok(hello), "a hello comes back");
            }
        }
        1 => round_trip(data, Refusal::decode, Refusal::encode),
        2 => round_trip(data, Confirm::decode, Confirm::encode),
        3 => round_trip(data, ConfirmReply::decode, ConfirmReply::encode),
        4 => round_trip(data, Ping::decode, Ping::encode),
        5 => round_trip(data, Pong::decode, Pong::encode),
        6 => round_trip(data, Empty::decode, Empty::encode),
        _ => round_trip(data, Snapshot::decode, Snapshot::encode),
    }
}

/// A Raft message of a peer.
pub(crate) fn raft_message(data: &[u8]) {
    round_trip(data, RaftMessage::decode, RaftMessage::encode);
    // The same bytes as the context of a message. A later version may send more bytes there, and
    // the context must still be read.
    if let Ok(status) = VoterStatus::decode(data) {
        assert_eq!(VoterStatus::decode(&status.encode()), Ok(status), "a status comes back");
    }
}

/// Content of the log, the record and snapshots. The first byte selects the kind.
pub(crate) fn record(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => {
            if let Ok(state) = State::decode(data) {
                assert_eq!(State::decode(&state.encode()), Ok(state), "a state comes back");
            }
        }
        1 => round_trip(data, Command::decode, |it, out| out.extend(it.encode())),
        2 => round_trip(data, MembershipChange::decode, |it, out| out.extend(it.encode())),
        3 => round_trip(data, |data| whole(data, LogEntry::read), LogEntry::encode),
        _ => round_trip(data, |data| whole(data, Snapshot::read), Snapshot::encode),
    }
}

/// Frames of the native protocol, as a client or a node reads them. The first byte selects the
/// reader.
pub(crate) fn native(data: &[u8]) {
    let Some((end, mut rest)) = data.split_first() else { return };
    let is_server = end & 1 == 0;
    let limit = if is_server { TO_SERVER_TAIL_LEN_MAX } else { TO_CLIENT_TAIL_LEN_MAX };
    while let Ok(Some(frame)) = native::split(rest, limit) {
        assert!(frame.len() <= rest.len(), "a frame lies in what was read");
        if is_server {
            match ToServer::decode(&frame) {
                Ok(ToServer::ClientHello(hello)) => native_round_trip(
                    &hello,
                    |out| hello.encode(out),
                    |frame| ClientHello::decode(frame).ok(),
                ),
                Ok(ToServer::Request(request)) => {
                    assert_eq!(request.to_bytes(), rest[..frame.len()], "one spelling");
                    // A request for the latest timestamp takes none.
                    assert!(request.count() <= native::COUNT_MAX);
                    let is_latest = request == Request::latest(request.id);
                    assert_eq!(request.count() == 0, is_latest, "one spelling");
                }
                Ok(_) => {}
                Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
            }
        } else {
            match ToClient::decode(&frame) {
                Ok(ToClient::Welcome(welcome)) => native_round_trip(
                    &*welcome,
                    |out| welcome.encode(out),
                    |frame| Welcome::decode(frame).ok(),
                ),
                Ok(ToClient::Answer { range, is_latest, .. }) => {
                    assert!(range.first() <= range.last());
                    assert!(!is_latest || range.count() == 1, "there is one latest timestamp");
                }
                Ok(_) => {}
                Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
            }
        }
        rest = &rest[frame.len()..];
    }
}

/// Checks that a value is equal after it was written and parsed again.
fn native_round_trip<T: Debug + PartialEq>(
    value: &T,
    encode: impl Fn(&mut Vec<u8>),
    decode: impl Fn(&native::Frame<'_>) -> Option<T>,
) {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    let frame = native::split(&bytes, TO_CLIENT_TAIL_LEN_MAX).expect("a frame").expect("whole");
    assert_eq!(decode(&frame).as_ref(), Some(value), "it comes back");
}

/// Timestamps and ranges, as text and as bytes.
pub(crate) fn timestamp(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(timestamp) = text.parse::<Timestamp>()
    {
        assert_eq!(timestamp.to_string(), text.to_ascii_lowercase(), "one spelling, but for case");
        assert_eq!(Timestamp::from_bytes(timestamp.to_bytes()), timestamp);
    }
    let Some((bytes, more)) = data.split_first_chunk::<{ TimestampRange::LEN }>() else { return };
    let Some(range) = TimestampRange::from_bytes(bytes) else { return };
    assert_eq!(range.to_bytes(), *bytes, "a range has one spelling");
    assert!(range.first() <= range.last());
    let at = more.first_chunk().map_or(1, |bytes| u64::from_be_bytes(*bytes));
    if let Some((head, rest)) = range.split_first(at) {
        assert_eq!(head.count() + rest.map_or(0, |rest| rest.count()), range.count());
        assert!(rest.is_none_or(|rest| head.last() < rest.first() && rest.last() == range.last()));
    }
}

/// Checks that decoding and then encoding gives the same bytes, because each message has one
/// encoding.
fn round_trip<T: Debug + PartialEq>(
    data: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    encode: impl Fn(&T, &mut Vec<u8>),
) {
    let Ok(value) = decode(data) else { return };
    let mut again = Vec::new();
    encode(&value, &mut again);
    assert_eq!(again, data, "one spelling of {value:?}");
}

fn whole<'a, T>(
    data: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut reader = Reader::new(data);
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}
