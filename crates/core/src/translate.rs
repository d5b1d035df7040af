//! Converts between the Raft library's types and ours: messages, entries, configurations,
//! snapshots. Our types hold only what a peer may send.

use epicepoch_wire::raft_message::{
    Configuration, EntryKind, LogEntry, MessageKind, RaftMessage, Snapshot,
};
use epicepoch_wire::{LogIndex, NodeId, Term};
use raft::eraftpb;

use crate::durable::HardState;

pub(crate) fn hard_state(from: &eraftpb::HardState) -> HardState {
    HardState { term: Term(from.term), vote: NodeId(from.vote), commit: LogIndex(from.commit) }
}

pub(crate) fn library_hard_state(from: &HardState) -> eraftpb::HardState {
    eraftpb::HardState {
        term: from.term.0,
        vote: from.vote.0,
        commit: from.commit.0,
        ..eraftpb::HardState::default()
    }
}

pub(crate) fn entry(from: &eraftpb::Entry) -> LogEntry {
    let kind = match from.get_entry_type() {
        eraftpb::EntryType::EntryNormal => EntryKind::Normal,
        eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
            EntryKind::Membership
        }
    };
    LogEntry {
        kind,
        term: Term(from.term),
        index: LogIndex(from.index),
        data: from.data.to_vec(),
        context: from.context.to_vec(),
    }
}

pub(crate) fn library_entry(from: &LogEntry) -> eraftpb::Entry {
    let mut to = eraftpb::Entry::default();
    to.set_entry_type(match from.kind {
        EntryKind::Normal => eraftpb::EntryType::EntryNormal,
        EntryKind::Membership => eraftpb::EntryType::EntryConfChangeV2,
    });
    to.term = from.term.0;
    to.index = from.index.0;
    to.data = from.data.clone().into();
    to.context = from.context.clone().into();
    to
}

pub(crate) fn configuration(from: &eraftpb::ConfState) -> Configuration {
    // The ids are sorted, so that equal configurations have equal bytes, whatever the library's
    // order.
    let ids = |list: &[u64]| {
        let mut ids: Vec<NodeId> = list.iter().map(|id| NodeId(*id)).collect();
        ids.sort_unstable();
        ids
    };
    Configuration {
        voters: ids(&from.voters),
        learners: ids(&from.learners),
        voters_outgoing: ids(&from.voters_outgoing),
        learners_next: ids(&from.learners_next),
        auto_leave: from.auto_leave,
    }
}

pub(crate) fn library_configuration(from: &Configuration) -> eraftpb::ConfState {
    let ids = |list: &[NodeId]| list.iter().map(|id| id.0).collect::<Vec<_>>();
    eraftpb::ConfState {
        voters: ids(&from.voters),
        learners: ids(&from.learners),
        voters_outgoing: ids(&from.voters_outgoing),
        learners_next: ids(&from.learners_next),
        auto_leave: from.auto_leave,
        ..eraftpb::ConfState::default()
    }
}

pub(crate) fn snapshot(from: &eraftpb::Snapshot) -> Snapshot {
    let metadata = from.get_metadata();
    Snapshot {
        index: LogIndex(metadata.index),
        term: Term(metadata.term),
        configuration: configuration(metadata.get_conf_state()),
        data: from.data.to_vec(),
    }
}

pub(crate) fn library_snapshot(from: &Snapshot) -> eraftpb::Snapshot {
    let mut to =
        eraftpb::Snapshot { data: from.data.clone().into(), ..eraftpb::Snapshot::default() };
    let metadata = to.mut_metadata();
    metadata.index = from.index.0;
    metadata.term = from.term.0;
    metadata.set_conf_state(library_configuration(&from.configuration));
    to
}

/// The kinds of message that a peer may send, in both types.
const KINDS: [(eraftpb::MessageType, MessageKind); 10] = [
    (eraftpb::MessageType::MsgAppend, MessageKind::Append),
    (eraftpb::MessageType::MsgAppendResponse, MessageKind::AppendResponse),
    (eraftpb::MessageType::MsgRequestVote, MessageKind::RequestVote),
    (eraftpb::MessageType::MsgRequestVoteResponse, MessageKind::RequestVoteResponse),
    (eraftpb::MessageType::MsgSnapshot, MessageKind::Snapshot),
    (eraftpb::MessageType::MsgHeartbeat, MessageKind::Heartbeat),
    (eraftpb::MessageType::MsgHeartbeatResponse, MessageKind::HeartbeatResponse),
    (eraftpb::MessageType::MsgTimeoutNow, MessageKind::TimeoutNow),
    (eraftpb::MessageType::MsgRequestPreVote, MessageKind::RequestPreVote),
    (eraftpb::MessageType::MsgRequestPreVoteResponse, MessageKind::RequestPreVoteResponse),
];

/// Converts a message of the library to ours; `None` for kinds that peers never exchange here.
pub(crate) fn message(from: &eraftpb::Message) -> Option<RaftMessage> {
    let (_, kind) = KINDS.iter().find(|(library, _)| *library == from.get_msg_type())?;
    Some(RaftMessage {
        kind: *kind,
        to: NodeId(from.to),
        term: Term(from.term),
        log_term: Term(from.log_term),
        index: LogIndex(from.index),
        commit: LogIndex(from.commit),
        commit_term: Term(from.commit_term),
        reject: from.reject,
        reject_hint: LogIndex(from.reject_hint),
        request_snapshot: LogIndex(from.request_snapshot),
        context: from.context.to_vec(),
        entries: from.entries.iter().map(entry).collect(),
        snapshot: (*kind == MessageKind::Snapshot).then(|| snapshot(from.get_snapshot())),
    })
}

/// Converts a peer's message to the library's type.
pub(crate) fn library_message(sender: NodeId, from: &RaftMessage) -> eraftpb::Message {
    let mut to = eraftpb::Message::default();
    let (library, _) = KINDS
        .iter()
        .find(|(_, kind)| *kind == from.kind)
        .expect("every kind of ours is in the table");
    to.set_msg_type(*library);
    to.from = sender.0;
    to.to = from.to.0;
    to.term = from.term.0;
    to.log_term = from.log_term.0;
    to.index = from.index.0;
    to.commit = from.commit.0;
    to.commit_term = from.commit_term.0;
    to.reject = from.reject;
    to.reject_hint = from.reject_hint.0;
    to.request_snapshot = from.request_snapshot.0;
    to.context = from.context.clone().into();
    to.set_entries(from.entries.iter().map(library_entry).collect::<Vec<_>>().into());
    if let Some(snapshot) = &from.snapshot {
        to.set_snapshot(library_snapshot(snapshot));
    }
    to
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_entries() -> impl Strategy<Value = Vec<LogEntry>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..6);
        let entry = (any::<bool>(), any::<[u64; 2]>(), bytes(), bytes()).prop_map(
            |(is_normal, [term, index], data, context)| LogEntry {
                kind: if is_normal { EntryKind::Normal } else { EntryKind::Membership },
                term: Term(term),
                index: LogIndex(index),
                data,
                context,
            },
        );
        prop::collection::vec(entry, 0..4)
    }

    /// Random lists are sorted, because a configuration of ours always has sorted lists.
    fn some_configuration() -> impl Strategy<Value = Configuration> {
        let ids = || {
            prop::collection::btree_set(any::<u64>(), 0..5)
                .prop_map(|ids| ids.into_iter().map(NodeId).collect::<Vec<_>>())
        };
        (ids(), ids(), ids(), ids(), any::<bool>()).prop_map(
            |(voters, learners, voters_outgoing, learners_next, auto_leave)| Configuration {
                voters,
                learners,
                voters_outgoing,
                learners_next,
                auto_leave,
            },
        )
    }

    #[test]
    fn every_kind_of_message_survives_the_way_there_and_back() {
        for kind in MessageKind::ALL {
            let entry = LogEntry {
                kind: EntryKind::Membership,
                term: Term(2),
                index: LogIndex(6),
                data: vec![1],
                context: vec![2],
            };
            let snapshot = Snapshot {
                index: LogIndex(5),
                term: Term(2),
                configuration: Configuration { voters: vec![NodeId(1)], ..Default::default() },
                data: vec![3],
            };
            let ours = RaftMessage {
                kind,
                to: NodeId(2),
                term: Term(3),
                log_term: Term(2),
                index: LogIndex(5),
                commit: LogIndex(4),
                commit_term: Term(2),
                reject: true,
                reject_hint: LogIndex(3),
                request_snapshot: LogIndex(0),
                context: b"CampaignTransfer".to_vec(),
                entries: vec![entry],
                snapshot: (kind == MessageKind::Snapshot).then_some(snapshot),
            };
            let there = library_message(NodeId(1), &ours);
            assert_eq!(there.from, 1);
            assert_eq!(message(&there), Some(ours));
        }
    }

    #[test]
    fn messages_that_peers_never_exchange_are_not_sent() {
        let mut proposal = eraftpb::Message::default();
        proposal.set_msg_type(eraftpb::MessageType::MsgPropose);
        assert_eq!(message(&proposal), None);
    }

    proptest! {
        #[test]
        fn whatever_a_message_holds_survives_the_way_there_and_back(
            kind in prop::sample::select(&MessageKind::ALL[..]),
            from: u64,
            numbers: [u64; 8],
            reject: bool,
            context in prop::collection::vec(any::<u8>(), 0..6),
            entries in some_entries(),
            configuration in some_configuration(),
        ) {
            let [to, term, log_term, index, commit, commit_term, reject_hint, asked] = numbers;
            let snapshot = Snapshot {
                index: LogIndex(index),
                term: Term(log_term),
                configuration,
                data: context.clone(),
            };
            let ours = RaftMessage {
                kind,
                to: NodeId(to),
                term: Term(term),
                log_term: Term(log_term),
                index: LogIndex(index),
                commit: LogIndex(commit),
                commit_term: Term(commit_term),
                reject,
                reject_hint: LogIndex(reject_hint),
                request_snapshot: LogIndex(asked),
                context,
                entries,
                snapshot: (kind == MessageKind::Snapshot).then_some(snapshot),
            };
            let there = library_message(NodeId(from), &ours);
            prop_assert_eq!((there.from, there.to), (from, to));
            prop_assert_eq!(message(&there), Some(ours));
        }

        #[test]
        fn hard_states_and_configurations_survive_the_way_there_and_back(
            numbers: [u64; 3], ours in some_configuration(),
        ) {
            prop_assert_eq!(configuration(&library_configuration(&ours)), ours);
            let [term, vote, commit] = numbers;
            let ours =
                HardState { term: Term(term), vote: NodeId(vote), commit: LogIndex(commit) };
            let there = library_hard_state(&ours);
            prop_assert_eq!((there.term, there.vote, there.commit), (term, vote, commit));
            prop_assert_eq!(hard_state(&there), ours);
        }
    }
}
