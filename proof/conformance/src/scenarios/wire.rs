//! Scenarios about the bytes on a connection: cut into pieces, joined, of a later version, or of
//! another protocol.

use std::time::Duration;

use epicepoch_wire::native::Welcome;
use epicepoch_wire::native::frame::{HEADER_LEN, Header};
use epicepoch_wire::native::message::{ping, pong};
use epicepoch_wire::{EpochIndex, Timestamp};

use super::expect::{hold, scenario};
use crate::node::{Node, Writing};
use crate::protocol::Fault;
use crate::scene::{CALL_MAX, Scene, expect_fault};
use crate::suite::Scenario;
use crate::{Settings, Verdict, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(8, "answers_cut_into_single_bytes_are_read", single_bytes),
    scenario(8, "frames_and_fields_of_a_later_version_are_passed_over", later_version),
    scenario(8, "a_field_that_must_be_understood_is_not_passed_over", critical_field),
    scenario(8, "a_ping_is_answered", pings),
    scenario(8, "garbage_instead_of_a_welcome_is_refused", garbage_at_once),
    scenario(8, "garbage_instead_of_an_answer_is_refused", garbage_later),
    scenario(8, "reserved_bits_of_an_answer_are_refused", reserved_bits),
    scenario(8, "a_range_that_leaves_its_epoch_is_refused", overflow),
    scenario(8, "a_welcome_that_comes_twice_is_refused", second_welcome),
    scenario(8, "a_server_of_another_protocol_is_refused", another_protocol),
    scenario(8, "a_server_of_tls_is_named", tls_server),
];

fn single_bytes(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.writes(Writing::Bytes);
    // The node sends single bytes with pauses between them. On a busy machine the pauses are long.
    // The attempt timeout is long, too, so that the client does not take a pause for silence.
    scene.open_with(&[&leader], &Settings { attempt: CALL_MAX, ..Settings::default() })?;
    scene.answered(1)?;
    scene.answered(70_000).map(drop)
}

/// Encodes a welcome with one additional field.
fn with_field(welcome: &Welcome, tag: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    welcome.encode(&mut bytes);
    let [t0, t1] = tag.to_be_bytes();
    bytes.extend([t0, t1, 0, 3, b'n', b'e', b'w']);
    let length = (bytes.len() - HEADER_LEN) as u32;
    bytes[4..8].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Returns one frame of each size class. Their kinds are ones that version 1 does not know.
fn unknown_frames() -> Vec<u8> {
    let header = |kind, argument| Header { kind, flags: 0xff, code: 9, argument, id: 77 };
    let mut bytes = header(0x3f, u32::MAX).to_bytes().to_vec();
    bytes.extend(header(0x7f, u32::MAX).to_bytes());
    bytes.extend([0xee; HEADER_LEN]);
    bytes.extend(header(0xbf, 5).to_bytes());
    bytes.extend(b"later");
    bytes
}

fn later_version(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|node, peer, _| peer.say(&with_field(&node.own_welcome(), 0x0777)));
    // Send all of these in one piece: unknown frames, a ping, and the answer.
    leader.on_request(|_, ask| {
        let mut bytes = unknown_frames();
        bytes.extend(ping(3));
        bytes.extend(ask.request.answer(ask.take().first()));
        bytes.extend(unknown_frames());
        ask.peer.say(&bytes);
    });
    scene.open(&[&leader])?;
    for count in [1, 2, 3] {
        scene.answered(count)?;
    }
    let closed = leader.seen().closed;
    hold(closed == 0, || format!("the client closed {closed} connections"))
}

fn critical_field(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|node, peer, _| peer.say(&with_field(&node.own_welcome(), 0x8777)));
    refused_at_once(scene, &leader)
}

fn pings(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.say_to_all(&[ping(77), ping(78)].concat());
    // The client must answer both pings in their order. If it has several connections, it answers
    // on each.
    wait_until("the client answers two pings", CALL_MAX, || {
        let pongs = leader.seen().pongs;
        let first = |id| pongs.iter().position(|pong| *pong == id);
        first(77).is_some() && first(77) < first(78)
    })?;
    // The client must ignore an unsolicited pong.
    leader.say_to_all(&pong(5));
    scene.answered(1).map(drop)
}

/// Checks a client whose only node is not an oracle. A call must fail with a protocol error, long
/// before its deadline.
fn refused_at_once(scene: &mut Scene, node: &Node) -> Verdict {
    let call = scene.first_refusal(&[node.addr()], CALL_MAX)?;
    expect_fault(&call, Fault::Protocol)?;
    hold(call.took < CALL_MAX / 2, || format!("it took {:?}", call.took))
}

fn garbage_at_once(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|_, peer, _| peer.say(&[0xc1; 64]));
    refused_at_once(scene, &leader)
}

fn garbage_later(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| ask.peer.say(&[0xc1; 64]));
    let closed = leader.seen().closed;
    scene.refused(1, Fault::Protocol)?;
    wait_until("the client closes the connection", CALL_MAX, || leader.seen().closed > closed)
}

fn reserved_bits(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let mut bytes = ask.request.answer(ask.take().first());
        bytes[1] = 0x40;
        ask.peer.say(&bytes);
    });
    scene.refused(1, Fault::Protocol).map(drop)
}

fn overflow(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|_, ask| {
        let last = Timestamp::new(crate::oracle::EPOCH, EpochIndex(u64::MAX));
        ask.peer.say(&ask.request.answer(last));
    });
    scene.refused(2, Fault::Protocol).map(drop)
}

fn second_welcome(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    scene.open(&[&leader])?;
    scene.answered(1)?;
    leader.on_request(|node, ask| ask.peer.welcome(&node.own_welcome()));
    scene.refused(1, Fault::Protocol).map(drop)
}

fn another_protocol(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    // The node sends less than a frame, and keeps the connection open.
    leader.on_hello(|_, peer, _| peer.say(b"220 ready\r\n"));
    let call = scene.first_refusal(&[leader.addr()], Duration::from_secs(1))?;
    match &call.outcome {
        Err(refusal) if matches!(refusal.fault, Fault::Protocol | Fault::Deadline) => Ok(()),
        _ => expect_fault(&call, Fault::Protocol),
    }
}

fn tls_server(scene: &mut Scene) -> Verdict {
    let leader = scene.leader();
    leader.on_hello(|_, peer, _| {
        // The alert "protocol version", with which a server of TLS answers anything else.
        peer.say(&[0x15, 3, 1, 0, 2, 2, 70]);
        peer.hang_up();
    });
    let call = scene.first_refusal(&[leader.addr()], CALL_MAX)?;
    expect_fault(&call, Fault::Protocol)?;
    let text = call.outcome.err().map(|refusal| refusal.text).unwrap_or_default();
    let advice = "this port speaks TLS; this client speaks plain text: set ";
    hold(text.contains(advice), || text)
}
