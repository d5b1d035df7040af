//! Tests that every decoder of the peer protocol has these properties:
//! - The decoded value of an accepted input encodes to the length of the input. So no peer makes a
//!   node keep more than it has sent.
//! - An encoded value decodes to the same value again.
//! - The first part of an encoded value is refused.
//! - A count beyond its limit is refused before the items arrive.

use std::fmt::Debug;

use epicepoch_wire::bootstrap::{Claim, Empty, MEMBERS_MAX};
use epicepoch_wire::confirm::{Confirm, ConfirmReply};
use epicepoch_wire::cursor::DecodeError;
use epicepoch_wire::gossip::{Ping, Pong};
use epicepoch_wire::peer_hello::{
    Formats, LinkKind, PeerHello, Refusal, RefusalCode, SharedSettings,
};
use epicepoch_wire::raft_message::{
    Configuration, EntryKind, LogEntry, MessageKind, RaftMessage, Snapshot,
};
use epicepoch_wire::{
    BootId, Epoch, HistoryId, LogIndex, NodeId, Round, StoreId, StorePosition, Term, WorkerId,
};
use proptest::prelude::*;

/// Decodes an input and encodes the result again. Returns `None` if the input is refused.
type Again = Box<dyn Fn(&[u8]) -> Option<Vec<u8>>>;

/// One codec: an encoded value, and how to read and write it.
struct Codec {
    name: &'static str,
    whole: Vec<u8>,
    again: Again,
}

fn codec<T: Debug + PartialEq + 'static>(
    name: &'static str,
    value: &T,
    encode: fn(&T, &mut Vec<u8>),
    decode: fn(&[u8]) -> Result<T, DecodeError>,
) -> Codec {
    let mut whole = Vec::new();
    encode(value, &mut whole);
    assert_eq!(decode(&whole).as_ref(), Ok(value), "{name}");
    let again = move |bytes: &[u8]| {
        let read = decode(bytes).ok()?;
        let mut out = Vec::new();
        encode(&read, &mut out);
        assert_eq!(decode(&out), Ok(read), "{name}: read twice, and not the same");
        Some(out)
    };
    Codec { name, whole, again: Box::new(again) }
}

fn snapshot() -> Snapshot {
    let ids = |ids: &[u64]| ids.iter().map(|id| NodeId(*id)).collect();
    Snapshot {
        index: LogIndex(9),
        term: Term(3),
        configuration: Configuration {
            voters: ids(&[1, 2]),
            learners: ids(&[3]),
            voters_outgoing: ids(&[1, 4]),
            learners_next: ids(&[4]),
            auto_leave: true,
        },
        data: b"state".to_vec(),
    }
}

fn raft_message(kind: MessageKind) -> RaftMessage {
    let entry = |index| LogEntry {
        kind: EntryKind::Membership,
        term: Term(3),
        index: LogIndex(index),
        data: b"data".to_vec(),
        context: b"context".to_vec(),
    };
    RaftMessage {
        kind,
        to: NodeId(2),
        term: Term(4),
        log_term: Term(3),
        index: LogIndex(9),
        commit: LogIndex(8),
        commit_term: Term(3),
        reject: true,
        reject_hint: LogIndex(7),
        request_snapshot: LogIndex(6),
        context: b"CampaignTransfer".to_vec(),
        entries: if kind == MessageKind::Append { vec![entry(10), entry(11)] } else { vec![] },
        snapshot: (kind == MessageKind::Snapshot).then(snapshot),
    }
}

fn codecs() -> Vec<Codec> {
    let (store, boot, worker) = (StoreId(77), BootId(8), WorkerId(3));
    let (term, round, leader) = (Term(4), Round(5), NodeId(2));
    let hello = PeerHello {
        link: LinkKind::Confirm(worker),
        to: leader,
        store,
        position: StorePosition(9),
        boot,
        history: HistoryId(10),
        cluster_name: "epicepoch".into(),
        raft_addr: "a.example:1".into(),
        client_addr: "a.example:2".into(),
        workers: 4,
        settings: SharedSettings {
            epoch_interval_ms: 100,
            reservation_ms: 1000,
            clock_offset_max_ms: 500,
            election_timeout_ms: 150,
            max_n: 65_536,
        },
        formats: Formats { oldest: 1, newest: 2 },
        version: "0.1.0".into(),
        reads_intervals: true,
    };
    let confirm = Confirm { store, boot, worker, term, round };
    let reply = ConfirmReply { leader, store, boot, worker, term, round, promise: Term(6) };
    let empty = Empty {
        store,
        client_addr: "a.example:2".into(),
        bootstrapping: true,
        claim: Some(Claim { backup: Some((7, 8)), floor: Epoch(9), wall_ns: 10 }),
        peers: vec![(NodeId(1), "a:1".into()), (NodeId(2), "b:1".into())],
    };
    let refusal = Refusal::new(RefusalCode::WrongStore, "restore it");
    let question = Ping { sent_ns: 1 };
    let answer = Pong { sent_ns: 1, wall_ns: 2, position: StorePosition(3), interval: None };
    let mut codecs = vec![
        codec("hello", &hello, PeerHello::encode, PeerHello::decode),
        codec("refusal", &refusal, Refusal::encode, Refusal::decode),
        codec("confirm", &confirm, Confirm::encode, Confirm::decode),
        codec("confirm reply", &reply, ConfirmReply::encode, ConfirmReply::decode),
        codec("ping", &question, Ping::encode, Ping::decode),
        codec("pong", &answer, Pong::encode, Pong::decode),
        codec("empty", &empty, Empty::encode, Empty::decode),
        codec("snapshot", &snapshot(), Snapshot::encode, Snapshot::decode),
    ];
    for kind in MessageKind::ALL {
        let message = raft_message(kind);
        codecs.push(codec("Raft message", &message, RaftMessage::encode, RaftMessage::decode));
    }
    codecs
}

proptest! {
    #[test]
    fn an_accepted_input_encodes_to_its_own_length(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 0..4),
        garbage: Vec<u8>,
    ) {
        for Codec { name, mut whole, again } in codecs() {
            for (at, flip) in &flips {
                let at = at.index(whole.len());
                whole[at] ^= flip;
            }
            for bytes in [&whole, &garbage] {
                let kept = again(bytes).map(|out| out.len());
                // A hello may be shorter afterwards, because unknown fields of later versions are
                // skipped.
                let is_whole = |kept: usize| kept == bytes.len() || name == "hello";
                prop_assert!(kept.is_none_or(is_whole), "{name}: {bytes:?}");
            }
        }
    }

    #[test]
    fn truncated_and_trailing_bytes_are_refused(
        cut: prop::sample::Index, surplus in prop::collection::vec(any::<u8>(), 1..9),
    ) {
        for Codec { name, whole, again } in codecs() {
            prop_assert!(again(&whole).is_some_and(|out| out == whole), "{name}");
            prop_assert!(again(&whole[..cut.index(whole.len())]).is_none(), "{name}: a part");
            prop_assert!(again(&[&whole[..], &surplus].concat()).is_none(), "{name}: a surplus");
        }
    }
}

/// Overwrites every four bytes of every encoding with large numbers, because they could be a count
/// or a length. The decoder reads them as a number or refuses the input. It never allocates memory
/// for items that have not arrived.
#[test]
fn a_count_beyond_the_input_is_refused() {
    for Codec { name, whole, again } in codecs() {
        for at in 0..whole.len().saturating_sub(3) {
            for count in [u32::MAX, 1 << 30, 1 << 20, MEMBERS_MAX as u32, 4096] {
                let mut bytes = whole.clone();
                bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
                let kept = again(&bytes).map_or(0, |out| out.len());
                assert!(kept <= bytes.len(), "{name}: {kept} bytes kept of {}", bytes.len());
            }
        }
    }
}
