"""Tests of timestamps and errors as values: order, copies, pickles, limits."""

import copy
import pickle
import unittest
from datetime import datetime, timedelta, timezone

import epicepoch
from epicepoch import Options, Timestamp, TimestampRange
from epicepoch.errors import REFUSALS, refusal


class Values(unittest.TestCase):
    def test_a_timestamp_is_an_ordered_value(self) -> None:
        low, high = Timestamp(1, 2**64 - 1), Timestamp(2, 0)
        self.assertLess(low, high)
        self.assertEqual(sorted([high, low]), [low, high])
        self.assertEqual(sorted([bytes(high), bytes(low)]), [bytes(low), bytes(high)])
        self.assertEqual(len({low, Timestamp(1, 2**64 - 1)}), 1)
        with self.assertRaises(AttributeError):
            low.epoch = 3  # type: ignore[misc]
        with self.assertRaises(TypeError):
            low < (2, 0)  # type: ignore[operator]

    def test_bad_timestamps_and_ranges_are_refused(self) -> None:
        for epoch, index in ((-1, 0), (0, -1), (2**64, 0), (0, 2**64)):
            with self.assertRaises(ValueError):
                Timestamp(epoch, index)
        for count in (0, 3):
            with self.assertRaises(ValueError):
                TimestampRange(Timestamp(1, 2**64 - 2), count)
        with self.assertRaises(ValueError):
            Timestamp.from_bytes(bytes(15))
        with self.assertRaises(ValueError):
            Timestamp.lowest(datetime(2026, 1, 1))

    def test_a_moment_lies_between_its_lowest_and_its_highest_timestamp(self) -> None:
        at = datetime(2026, 11, 21, 9, 0, 0, 1, tzinfo=timezone(timedelta(hours=2)))
        lowest, highest = Timestamp.lowest(at), Timestamp.highest(at)
        self.assertEqual((lowest.time(), highest.time()), (at, at))
        self.assertEqual((lowest.index, highest.index), (0, 2**64 - 1))
        self.assertEqual(highest.epoch - lowest.epoch, 999)

    def test_a_range_is_indexed_as_a_list_is(self) -> None:
        three = TimestampRange(Timestamp(1, 7), 3)
        self.assertEqual([three[0], three[1], three[2]], list(three))
        self.assertEqual((three[-1], three[-3]), (three.last, three.first))
        for offset in (3, -4):
            with self.assertRaises(IndexError):
                three[offset]

    def test_values_and_errors_survive_copies_and_pickles(self) -> None:
        last = refusal("a:1", 2, "text")
        for one in (Timestamp(1, 2), TimestampRange(Timestamp(1, 2), 3)):
            self.assertEqual(pickle.loads(pickle.dumps(one)), one)
            self.assertEqual(copy.copy(one), one)
        for error in (last, epicepoch.DeadlineExceededError(last), epicepoch.ProtocolError("no")):
            for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                self.assertEqual((type(same), str(same)), (type(error), str(error)))

    def test_a_caller_sees_no_retried_error_but_as_a_reason(self) -> None:
        retried = {kind.name for kind in REFUSALS.values() if kind.is_retried}
        expected = "NOT_LEADER NO_QUORUM NO_LEADER OVERLOADED SHUTTING_DOWN NOT_READY INTERNAL"
        self.assertEqual(retried, set(expected.split()))

    def test_options_that_cannot_be_meant_are_refused(self) -> None:
        for name, value in (
            ("timeout", 0),
            ("timeout", float("nan")),
            ("attempt_timeout", 0.001),
            ("refresh_interval", 0.01),
            ("hedge_after", 0),
            ("hedge_after", -1),
            ("in_flight", 0),
            ("in_flight", 257),
            ("cluster_name", "n" * 65),
            ("token", "a b"),
            ("token", "t" * 257),
        ):
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                Options(**{name: value})  # type: ignore[arg-type]

    def test_a_token_is_not_printed(self) -> None:
        self.assertNotIn("secret", repr(Options(token="secret")))

    def test_addresses_that_are_none_are_refused(self) -> None:
        for addrs in ([], ["localhost"], [":1"], ["a:b"], ["a:65536"], "localhost:1"):
            for kind in (epicepoch.Client, epicepoch.blocking.Client):
                with self.assertRaises(ValueError):
                    kind(addrs)
