use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::{BootId, Epoch, EpochIndex, StoreId, Timestamp};

use super::*;
use crate::publication::Identity;

const REQUEST_NS: u64 = 1_000;

fn published(leader: u64) -> Published {
    let identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
    let member = |node| {
        let (raft_addr, client_addr) = (format!("n{node}:1"), format!("n{node}:2"));
        (node, Member { node, store: StoreId(node.0.into()), raft_addr, client_addr })
    };
    Published {
        role: if leader == 1 { Role::Leader } else { Role::Follower },
        leader: (leader != 0).then_some(NodeId(leader)),
        members: [1, 2, 3]
            .map(|it| member(NodeId(it)))
            .into_iter()
            .collect::<std::collections::BTreeMap<_, _>>()
            .into(),
        ..Published::nothing(identity)
    }
}

fn forwarder() -> Forwarder<usize> {
    let mut forwarder = Forwarder::new(8, REQUEST_NS, &published(2));
    forwarder.handle_linked();
    forwarder
}

fn range(epoch: u64, count: u64) -> TimestampRange {
    TimestampRange::new(Timestamp::new(Epoch(epoch), EpochIndex(0)), count).unwrap()
}

fn told(
    forwarder: &mut Forwarder<usize>,
    slot: usize,
) -> Option<Result<(u64, u64, u64), ErrorCode>> {
    let outcome = forwarder.outcome(slot).ok()?;
    Some(outcome.map(|it| {
        let Timestamp { epoch: Epoch(epoch), index: EpochIndex(index) } = it.range.first();
        (epoch, index, it.range.count())
    }))
}

fn wake(_: usize) {}

/// Answers a frame. Returns how many requests it had.
fn answered(it: &mut Forwarder<usize>, id: u64, range: TimestampRange) -> Result<u64, Unasked> {
    it.handle_answer(id, range, wake).map(|size| size.requests)
}

#[test]
fn requests_that_wait_share_a_frame_and_later_ones_do_not_join_it() {
    let mut it = forwarder();
    assert_eq!(it.poll_frame(0), None);
    let [a, b] = [2, 3].map(|count| it.join(1, count, || 1).unwrap());
    let first = it.poll_frame(2).unwrap();
    assert_eq!(first.count, 5);
    let late = it.join(1, 7, || 3).unwrap();
    assert_eq!(answered(&mut it, first.id, range(9, 5)), Ok(2));
    assert_eq!(told(&mut it, a), Some(Ok((9, 0, 2))));
    assert_eq!(told(&mut it, b), Some(Ok((9, 2, 3))));
    assert_eq!(told(&mut it, late), None);
    let second = it.poll_frame(4).unwrap();
    assert_eq!((second.count, answered(&mut it, second.id, range(10, 7))), (7, Ok(1)));
    assert_eq!(told(&mut it, late), Some(Ok((10, 0, 7))));
}

#[test]
fn the_part_of_a_client_that_has_gone_is_burnt() {
    let mut it = forwarder();
    let [gone, stays] = [4, 1].map(|count| it.join(1, count, || 1).unwrap());
    let frame = it.poll_frame(2).unwrap();
    it.leave(gone);
    let next = it.join(1, 4, || 3).unwrap();
    assert_eq!(next, gone, "the slot is used again");
    assert_eq!(answered(&mut it, frame.id, range(9, 5)), Ok(2));
    assert_eq!((told(&mut it, next), told(&mut it, stays)), (None, Some(Ok((9, 4, 1)))));
}

#[test]
fn an_answer_is_used_once_and_only_if_its_frame_is_on_its_way() {
    let mut it = forwarder();
    let slot = it.join(1, 1, || 1).unwrap();
    let lost = it.poll_frame(2).unwrap();
    assert_eq!(answered(&mut it, lost.id, range(9, 2)), Err(Unasked), "another count");
    assert_eq!(answered(&mut it, lost.id + 1, range(9, 1)), Err(Unasked));
    assert_eq!((it.handle_link_lost(), it.poll_frame(3)), (1, None));
    it.handle_linked();
    let again = it.poll_frame(4).unwrap();
    assert_ne!(again.id, lost.id);
    assert_eq!(answered(&mut it, lost.id, range(8, 1)), Err(Unasked));
    assert_eq!(answered(&mut it, again.id, range(9, 1)), Ok(1));
    assert_eq!(answered(&mut it, again.id, range(9, 1)), Err(Unasked));
    assert_eq!(told(&mut it, slot), Some(Ok((9, 0, 1))));
}

#[test]
fn requests_that_are_sent_again_come_before_newer_ones() {
    let mut it = forwarder();
    let oldest = it.join(1, 1, || 1).unwrap();
    it.poll_frame(2).unwrap();
    let older = it.join(1, 2, || 3).unwrap();
    it.poll_frame(4).unwrap();
    let newer = it.join(1, 3, || 5).unwrap();
    assert_eq!(it.handle_link_lost(), 2);
    it.handle_linked();
    let again = it.poll_frame(6).unwrap();
    let size = it.handle_answer(again.id, range(9, 6), wake).unwrap();
    assert_eq!((again.count, size.requests), (6, 3));
    assert_eq!((size.opened_ns, size.closed_ns), (1, 6), "the oldest has waited since it came");
    let parts = [oldest, older, newer].map(|slot| told(&mut it, slot));
    assert_eq!(parts, [Some(Ok((9, 0, 1))), Some(Ok((9, 1, 2))), Some(Ok((9, 3, 3)))]);
}

#[test]
fn a_node_that_does_not_lead_refuses_and_the_next_leader_is_asked() {
    let mut it = forwarder();
    let slot = it.join(1, 1, || 1).unwrap();
    let frame = it.poll_frame(2).unwrap();
    let refused = it.handle_refusal(frame.id, ErrorCode::NotLeader, wake);
    assert_eq!(refused, Ok(Refused::NotLeading));
    assert_eq!((it.handle_link_lost(), told(&mut it, slot)), (1, None));
    assert!(!it.handle_publication(3, &published(0), wake) && !it.may_join());
    assert!(!it.handle_publication(4, &published(3), wake) && it.may_join());
    it.handle_linked();
    let again = it.poll_frame(5).unwrap();
    assert!(it.handle_publication(6, &published(2), wake), "the link is not to the leader");
    assert_eq!(it.handle_refusal(again.id, ErrorCode::NoQuorum, wake), Ok(Refused::Told));
    assert_eq!(told(&mut it, slot), Some(Err(ErrorCode::NoQuorum)));
}

#[test]
fn a_silent_leader_is_given_up_at_the_deadline_and_so_are_its_requests() {
    let mut it = forwarder();
    let sent = it.join(1, 1, || 0).unwrap();
    it.poll_frame(10).unwrap();
    let waits = it.join(1, 1, || 500).unwrap();
    assert!(!it.handle_tick(999, wake));
    assert_eq!((told(&mut it, sent), it.is_active()), (None, true));
    assert!(!it.handle_tick(1_000, wake));
    assert_eq!(told(&mut it, sent), Some(Err(ErrorCode::NoQuorum)));
    assert!(it.handle_tick(1_010, wake));
    assert_eq!(told(&mut it, waits), None);
}

#[test]
fn a_node_that_leads_refuses_what_it_wanted_to_forward() {
    let mut it = forwarder();
    let sent = it.join(1, 1, || 0).unwrap();
    it.poll_frame(1).unwrap();
    let waits = it.join(1, 1, || 2).unwrap();
    assert!(it.handle_publication(3, &published(1), wake));
    for slot in [sent, waits] {
        assert_eq!(told(&mut it, slot), Some(Err(ErrorCode::NoLeader)));
        it.leave(slot);
    }
    assert_eq!((it.handle_link_lost(), it.is_active(), it.may_join()), (0, false, false));
}

#[test]
fn frames_are_few_and_large_bursts_are_divided() {
    let mut it = forwarder();
    let slots = [FRAME_COUNT_MAX - 1, 1, 1, FRAME_COUNT_MAX + 5, 1]
        .map(|count| it.join(1, count, || 1).unwrap());
    let frames: Vec<_> = std::iter::from_fn(|| it.poll_frame(2)).collect();
    let counts: Vec<_> = frames.iter().map(|it| it.count).collect();
    assert_eq!(counts, [FRAME_COUNT_MAX, 1, FRAME_COUNT_MAX + 5, 1]);
    let more = it.join(1, 2, || 3).unwrap();
    assert_eq!(it.poll_frame(4), None, "four are on their way");
    for (epoch, frame) in (1..).zip(frames) {
        assert!(answered(&mut it, frame.id, range(epoch, frame.count)).is_ok());
    }
    let epochs = slots.map(|slot| told(&mut it, slot).unwrap().unwrap().0);
    assert_eq!(epochs, [1, 1, 2, 3, 4]);
    let last = it.poll_frame(5).unwrap();
    assert_eq!((last.count, answered(&mut it, last.id, range(6, 2))), (2, Ok(1)));
    assert_eq!(told(&mut it, more), Some(Ok((6, 0, 2))));
}
