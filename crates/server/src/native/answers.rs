//! Answers of the native protocol as bytes: those of requests that share a range.

use epicepoch_wire::native::{ANSWER_LEN, Request};
use epicepoch_wire::{EpochIndex, Timestamp, TimestampRange};

/// Appends the answers to requests that share a range, in their order.
///
/// # Panics
/// When the range is not of as many timestamps as they ask for.
pub(super) fn encode(
    requests: impl ExactSizeIterator<Item = Request>,
    range: TimestampRange,
    out: &mut Vec<u8>,
) {
    out.reserve(requests.len() * ANSWER_LEN);
    let Timestamp { epoch, index: EpochIndex(first) } = range.first();
    let mut taken = 0;
    for request in requests {
        // Wraps only behind the last timestamp of an epoch, which is then not used.
        let index = EpochIndex(first.wrapping_add(taken));
        out.extend_from_slice(&request.answer(Timestamp::new(epoch, index)));
        taken += request.count();
    }
    assert_eq!(taken, range.count(), "a range was taken for another run");
}

#[cfg(test)]
mod tests {
    use epicepoch_wire::Epoch;
    use epicepoch_wire::native::{Frame, ToClient, split};

    use super::*;

    #[test]
    fn each_request_gets_its_part_of_the_range_up_to_the_last_index() {
        let counts = (1..3000_u64).map(|id| Request::new(id, 1 + id % 5).unwrap());
        let total = counts.clone().map(|request| request.count()).sum();
        let first = Timestamp::new(Epoch(9), EpochIndex(u64::MAX - total + 1));
        let requests: Vec<_> = counts.collect();
        let mut out = Vec::new();
        encode(requests.iter().copied(), TimestampRange::new(first, total).unwrap(), &mut out);
        let mut rest = &out[..];
        let mut next = first;
        for request in requests {
            let frame: Frame<'_> = split(rest, 0).unwrap().unwrap();
            let range = TimestampRange::new(next, request.count()).unwrap();
            let answer = ToClient::Answer { id: request.id, range };
            assert_eq!(ToClient::decode(&frame), Ok(answer));
            rest = &rest[frame.len()..];
            next.index.0 = next.index.0.wrapping_add(request.count());
        }
        assert!(rest.is_empty());
    }
}
