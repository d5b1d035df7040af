//! Header blocks of calls: which requests are calls, the head of an answer, and its trailers. They
//! do not change the client's header table.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use epicepoch_wire::grpc::oracle::{NOT_LEADER, NotLeader};
use epicepoch_wire::grpc::status::{put_details, put_text};
use epicepoch_wire::http2::frame::flag;
use epicepoch_wire::http2::hpack::INDEXED;
use http::header::CONTENT_TYPE;
use http::{Method, Request};

use super::status::Status;
use crate::front::http2::answers::{Table, begin_head, end_head, index, put_literal};

/// The media type of calls. A suffix names the encoding of their messages.
const MEDIA_TYPE: &[u8] = b"application/grpc";
/// The encoding of messages that is understood, and the one of a call that names none.
const ENCODING: &[u8] = b"proto";
const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";
const DETAILS: &str = "grpc-status-details-bin";

/// Whether a request is a gRPC call.
pub(in crate::front::http2) fn is_call(request: &Request<()>) -> bool {
    let media_type = request.headers().get(CONTENT_TYPE).map_or(&[][..], |it| it.as_bytes());
    let is_grpc = match media_type.strip_prefix(MEDIA_TYPE) {
        Some([] | [b';', ..]) => true,
        Some([b'+', encoding @ ..]) => encoding == ENCODING,
        Some(_) | None => false,
    };
    is_grpc && *request.method() == Method::POST
}

/// Appends the head of an answer.
pub(super) fn put_head(table: &mut Table, id: u32, out: &mut Vec<u8>) {
    let at = begin_head(out);
    put_start(table, out);
    end_head(at, flag::END_HEADERS, id, out);
}

/// Appends the trailers, which end the answer. They are also the head if it was not sent yet.
pub(super) fn put_end(
    table: &mut Table,
    id: u32,
    has_head: bool,
    status: &Status,
    out: &mut Vec<u8>,
) {
    let at = begin_head(out);
    if has_head {
        table.begin(out);
    } else {
        put_start(table, out);
    }
    put_literal(0, 0, STATUS, (status.code as u8).to_string().as_bytes(), out);
    if !status.text.is_empty() {
        let mut text = Vec::new();
        put_text(&mut text, &status.text);
        put_literal(0, 0, MESSAGE, &text, out);
    }
    if let Some((node, address)) = &status.leader {
        put_leader(status, NotLeader { node: *node, address }, out);
    }
    end_head(at, flag::END_HEADERS | flag::END_STREAM, id, out);
}

/// Appends the leader as the details of the status.
fn put_leader(status: &Status, leader: NotLeader<'_>, out: &mut Vec<u8>) {
    let (mut details, mut text) = (Vec::new(), String::new());
    let put_leader = |out: &mut Vec<u8>| leader.encode(out);
    put_details(&mut details, status.code, &status.text, NOT_LEADER, put_leader);
    BASE64_STANDARD_NO_PAD.encode_string(&details, &mut text);
    put_literal(0, 0, DETAILS, text.as_bytes(), out);
}

fn put_start(table: &mut Table, out: &mut Vec<u8>) {
    table.begin(out);
    out.push(INDEXED | index::STATUS);
    put_literal(0, index::CONTENT_TYPE, CONTENT_TYPE.as_str(), MEDIA_TYPE, out);
}
