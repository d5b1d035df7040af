//! The limits that a node sets for a connection, and a cluster that becomes compact.

use epicepoch_wire::COMPACT_INDEXES;

use super::*;

/// A cluster may become compact while a client is connected. The welcome has told the client a
/// larger limit.
#[test]
fn callers_of_a_request_that_became_too_large_are_asked_for_in_smaller_ones() {
    const HALF: u64 = COMPACT_INDEXES / 2;
    let (mut world, link) = World::serving();
    let lonely = world.call(COMPACT_INDEXES + 1);
    let alone = world.asked(link);
    // While the first request is in flight, these calls share another one.
    let large = world.call(COMPACT_INDEXES);
    let calls = [world.call(HALF), world.call(HALF)];
    let merged = world.asked(link);
    assert_eq!(merged.count(), 2 * COMPACT_INDEXES);
    world.refuse(link, merged, ErrorCode::BadCount);
    let requests = world.all_asked(link);
    let counts: Vec<_> = requests.iter().map(Request::count).collect();
    assert_eq!(counts, [COMPACT_INDEXES, COMPACT_INDEXES]);
    world.answer(link, requests[0], 100);
    world.answer(link, requests[1], 100 + COMPACT_INDEXES);
    assert_eq!(world.outcome(large), Some(Ok(range(100, COMPACT_INDEXES))));
    for (call, at) in calls.into_iter().zip([0, HALF]) {
        let expected = range(100 + COMPACT_INDEXES + at, HALF);
        assert_eq!(world.outcome(call), Some(Ok(expected)));
    }
    // If a single caller asks for too many, only that caller gets the refusal.
    let other = world.call(1);
    let small = world.asked(link);
    world.refuse(link, alone, ErrorCode::BadCount);
    let refused = match world.outcome(lonely) {
        Some(Err(TimestampsError::BadAnswer(BadAnswer::Refused { code, .. }))) => Some(code),
        _ => None,
    };
    assert_eq!(refused, Some(ErrorCode::BadCount));
    world.answer(link, small, 1 << 20);
    assert_eq!(world.outcome(other), Some(Ok(range(1 << 20, 1))));
    assert!(world.closed.is_empty(), "the connection stays");
}
