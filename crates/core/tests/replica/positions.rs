//! Data directories that were rolled back to an older state: which node notices this, and what it
//! does.

use epicepoch_core::positions::RolledBack;
use epicepoch_core::replica::MessageError;
use epicepoch_wire::raft_message::{MessageKind, RaftMessage};
use epicepoch_wire::{BootId, LogIndex, NodeId, StorePosition, Term};

use crate::support::bench::{Bench, append, message};

const PEER: NodeId = NodeId(2);
const OLD: BootId = BootId(71);
const NEW: BootId = BootId(72);

fn at(position: u64) -> StorePosition {
    StorePosition(position)
}

#[test]
fn a_rolled_back_peer_is_refused_also_by_a_restarted_node() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_peer_hello(PEER, OLD, at(7)).unwrap();
    bench.replica.handle_position(PEER, OLD, at(40), at(7)).unwrap();
    // The next write also stores the positions of peers.
    bench.take(2, &append(2, (1, 1), 1, 1)).unwrap();
    bench.persist();
    let mut bench = bench.restarted();
    let rolled_back = RolledBack { named: at(39), remembered: at(40) };
    assert_eq!(bench.replica.handle_peer_hello(PEER, NEW, at(39)), Err(rolled_back));
    assert_eq!(bench.replica.handle_peer_hello(PEER, OLD, at(7)), Ok(()), "the boot it knows");
    assert_eq!(bench.replica.handle_peer_hello(PEER, NEW, at(40)), Ok(()));
}

#[test]
fn a_peer_rolled_back_while_it_ran_has_no_vote_until_it_has_everything_again() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_peer_hello(PEER, OLD, at(7)).unwrap();
    bench.replica.handle_position(PEER, OLD, at(40), at(7)).unwrap();
    let rolled_back = RolledBack { named: at(12), remembered: at(40) };
    assert_eq!(bench.replica.handle_position(PEER, OLD, at(12), at(40)), Err(rolled_back));
    let ask = RaftMessage {
        index: LogIndex(9),
        log_term: Term(4),
        ..message(MessageKind::RequestVote, 5)
    };
    assert_eq!(bench.take(2, &ask), Err(MessageError::RolledBack(rolled_back)));
    assert_eq!(bench.shared.promise.load(), Term(1), "nothing is promised to it");
    bench.replica.handle_peer_hello(PEER, NEW, at(41)).unwrap();
    bench.take(2, &ask).unwrap();
    assert_eq!(bench.shared.promise.load(), Term(5));
}

#[test]
fn an_overtaken_answer_is_no_sign_of_a_rollback() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.replica.handle_peer_hello(PEER, OLD, at(7)).unwrap();
    bench.replica.handle_position(PEER, OLD, at(40), at(7)).unwrap();
    assert_eq!(bench.replica.handle_position(PEER, OLD, at(30), at(7)), Ok(()));
    assert_eq!(bench.shared.positions().of(PEER), at(40));
}

#[test]
fn a_position_is_reported_only_when_it_is_durable() {
    let mut bench = Bench::new(&[1, 2, 3]);
    bench.take(2, &append(2, (1, 1), 3, 1)).unwrap();
    assert_eq!(bench.replica.position(), at(0));
    bench.persist();
    let named = bench.replica.position();
    assert!(named > at(0));
    assert_eq!(bench.shared.positions().own, named);
    let bench = bench.restarted();
    assert_eq!((bench.replica.began(), bench.replica.position()), (named, named));
}
