"""Tests properties of the decoder with random inputs. The seed is fixed, so a failure repeats."""

import random
import unittest
from typing import Any

from epicepoch import ProtocolError, frame
from epicepoch.frame import Decoder, Head

from .test_vectors import Vectors, means_of

RUNS = 3000
GOOD = [
    bytes.fromhex(one["hex"])
    for one in Vectors.native["to_client"] + Vectors.native["read_only"]
    if one.get("from") != "client"
]


def decoded(pieces: list[bytes]) -> tuple[list[Any], bool]:
    """Return the frames that these bytes decode to, and whether decoding ended with an error."""
    decoder, means = Decoder(), []
    try:
        for piece in pieces:
            decoder.feed(piece)
            received = decoder.next()
            while received is not None:
                means.append(means_of(*received))
                received = decoder.next()
            assert len(decoder._bytes) < frame.HEAD_SIZE + frame.TAIL_MAX + len(piece)
    except ProtocolError:
        return means, True
    return means, False


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    at = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
    return [data[a:b] for a, b in zip([0] + at, at + [len(data)])]


class Properties(unittest.TestCase):
    def test_frames_mean_the_same_however_they_are_cut(self) -> None:
        chance = random.Random(1)
        for run in range(RUNS // 3):
            frames = chance.choices(GOOD, k=chance.randrange(1, 6))
            expected = [decoded([one])[0][0] for one in frames]
            data = b"".join(frames)
            pieces = [bytes([byte]) for byte in data] if run % 50 == 0 else cut(chance, data)
            self.assertEqual(decoded(pieces), (expected, False))

    def test_any_bytes_are_read_or_refused(self) -> None:
        chance = random.Random(2)
        refused = 0
        for _ in range(RUNS):
            data = bytearray(b"".join(chance.choices(GOOD, k=chance.randrange(1, 4))))
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(data))
                action = chance.randrange(4)
                if action == 0:
                    data[at] = chance.randrange(256)
                elif action == 1:
                    data[at] ^= 1 << chance.randrange(8)
                elif action == 2:
                    del data[at : at + chance.randrange(4)]
                    data += b"\0"
                else:
                    data[at:at] = bytes(chance.randrange(256) for _ in range(3))
            whole = decoded([bytes(data)])
            self.assertEqual(decoded(cut(chance, bytes(data))), whole)
            refused += whole[1]
        self.assertGreater(refused, RUNS // 10)

    def test_a_tail_has_a_limit(self) -> None:
        for kind in (frame.ERROR, 0xBF):
            decoder = Decoder()
            decoder.feed(Head(kind, argument=frame.TAIL_MAX).encode())
            self.assertIsNone(decoder.next())
            decoder = Decoder()
            decoder.feed(Head(kind, argument=frame.TAIL_MAX + 1).encode())
            with self.assertRaises(ProtocolError):
                decoder.next()

    def test_unknown_fields_may_repeat_and_known_ones_may_not(self) -> None:
        must = frame.field(frame.NODE_TAG, bytes(7) + b"\1")
        must += frame.field(frame.IN_FLIGHT_MAX_TAG, b"\0\0\4\0")
        must += frame.field(frame.COUNT_MAX_TAG, bytes(3) + b"\1" + bytes(4))

        def welcome(fields: bytes) -> frame.Welcome:
            tail = must + fields
            head = Head(frame.WELCOME, frame.VERSION, 0, len(tail), frame.MAGIC)
            return frame.read_welcome(head, tail)

        for tag in (frame.MEMBER_TAG + 1, 0x003F, 0x0040, frame.MUST_KNOW_TAG - 1):
            welcome(2 * frame.field(tag, b"1"))
        for tag in (frame.AGENT_TAG, frame.NODE_TAG):
            with self.assertRaises(ProtocolError):
                welcome(2 * frame.field(tag, b"1"))
        self.assertEqual(welcome(b"").ping_every, 40)
        self.assertEqual(welcome(frame.field(frame.IDLE_TAG, b"\0\0\0\1")).ping_every, 0.1)
        members = frame.field(frame.MEMBER_TAG, bytes(7) + b"\1a:1")
        self.assertEqual(len(welcome(members * frame.MEMBERS_MAX).members), frame.MEMBERS_MAX)
        with self.assertRaises(ProtocolError):
            welcome(members * (frame.MEMBERS_MAX + 1))
