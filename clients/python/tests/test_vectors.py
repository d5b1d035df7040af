"""Tests this client against the golden vectors that all implementations of the protocol share."""

import json
import pathlib
import unittest
from datetime import datetime, timezone
from typing import Any, Optional

from epicepoch import Cluster, ProtocolError, Timestamp, TimestampRange, errors, frame
from epicepoch.frame import Decoder, Head, Member, Welcome

VECTORS = pathlib.Path(__file__).parents[3] / "crates/wire/vectors"
Means = dict[str, Any]


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def written(means: Means) -> bytes:
    """Encode a frame that a client sends."""
    if means["kind"] == "request":
        return frame.request(int(means["id"]), int(means["count"]))
    if means["kind"] == "latest":
        return frame.latest(int(means["id"]))
    if means["kind"] == "ping":
        return frame.ping(int(means["id"]))
    if means["kind"] == "pong":
        return frame.pong(int(means["id"]))
    cluster = None
    if means["cluster"] is not None:
        cluster = Cluster(bytes.fromhex(means["cluster"]), int(means["history"]))
    name, token, features = means["cluster_name"], means["token"] or "", int(means["features"])
    guarantee = means["guarantee"] or ""
    form = means["timestamp_format"] or ""
    return frame.hello(means["agent"], name, cluster, token, features, guarantee, form)


def read(data: bytes) -> Means:
    """Decode a frame that a node sends, as the client does."""
    decoder = Decoder()
    decoder.feed(data)
    received = decoder.next()
    if received is None or decoder.next() is not None:
        raise ProtocolError("not one frame")
    return means_of(*received)


def means_of(head: Head, tail: bytes) -> Means:
    """Return the fields of a frame under the names that the vectors use."""
    if head.kind == frame.ANSWER:
        answer, is_latest = frame.read_answer(head, tail, "lease")
        first, count, proof = str(answer.first), str(answer.count), "round"
        try:
            frame.read_answer(head, tail, "quorum")
        except ProtocolError:
            proof = "lease"
        known = {"id": str(head.id), "proof": proof}
        if is_latest:
            return {"kind": "latest_answer", "latest": first, **known}
        return {"kind": "answer", "count": count, "first": first, **known}
    if head.kind == frame.ERROR:
        refusal, closes = frame.read_error(head, tail, "")
        return {
            "kind": "error",
            "id": str(head.id),
            "code": refusal.code,
            "name": refusal.name if refusal.code in errors.REFUSALS else None,
            "text": refusal.text,
            "closes": closes,
        }
    if head.kind == frame.LEADER:
        leader = frame.read_leader(head, tail) or Member(0, "")
        return {"kind": "leader", **member(leader)}
    if head.kind in (frame.PING, frame.PONG, frame.GOODBYE):
        frame.check_plain(head)
        if head.kind == frame.GOODBYE:
            return {"kind": "goodbye"}
        return {"kind": "ping" if head.kind == frame.PING else "pong", "id": str(head.id)}
    if head.kind == frame.WELCOME:
        return welcome_means(frame.read_welcome(head, tail))
    if head.kind in (frame.REQUEST, frame.HELLO):
        raise ProtocolError("a frame that only clients send")
    return {"kind": "unknown"}


def member(one: Member) -> Means:
    return {"node": str(one.node), "addr": one.addr}


def welcome_means(welcome: Welcome) -> Means:
    cluster: Optional[Cluster] = welcome.cluster
    return {
        "kind": "welcome",
        "version": frame.VERSION,
        "features": str(welcome.features),
        "cluster_name": welcome.cluster_name,
        "cluster": cluster.id.hex() if cluster else None,
        "history": str(cluster.history) if cluster else None,
        "node": str(welcome.node),
        "leader": member(welcome.leader) if welcome.leader else None,
        "members": [member(one) for one in welcome.members],
        "in_flight_max": welcome.in_flight_max,
        "idle_ms": welcome.idle_ms,
        "count_max": str(welcome.count_max),
    }


class Vectors(unittest.TestCase):
    native = vectors("native.json")
    times = vectors("timestamps.json")

    def test_frames_are_written_as_the_vectors_say(self) -> None:
        self.assertGreaterEqual(len(self.native["to_server"]), 5)
        for one in self.native["to_server"]:
            with self.subTest(one["name"]):
                self.assertEqual(written(one["means"]).hex(), one["hex"])

    def test_frames_are_read_as_the_vectors_say(self) -> None:
        self.assertGreaterEqual(len(self.native["to_client"]), 10)
        for one in self.native["to_client"] + self.native["read_only"]:
            if one.get("from") != "client":
                with self.subTest(one["name"]):
                    self.assertEqual(read(bytes.fromhex(one["hex"])), one["means"])

    def test_frames_that_break_the_protocol_are_refused(self) -> None:
        ours = [one for one in self.native["refused"] if one["from"] == "node"]
        self.assertGreaterEqual(len(ours), 5)
        for one in ours:
            with self.subTest(one["name"]), self.assertRaises(ProtocolError):
                read(bytes.fromhex(one["hex"]).ljust(frame.HEAD_SIZE, b"\0"))

    def test_answers_of_interval_mode_are_skipped_as_unknown_frames(self) -> None:
        mode = vectors("intervals.json")
        answers = mode["answers"] + mode["refused_answers"]
        self.assertGreaterEqual(len(answers), 10)
        for one in answers:
            with self.subTest(one["name"]):
                self.assertEqual(read(bytes.fromhex(one["hex"])), {"kind": "unknown"})

    def test_errors_have_their_numbers(self) -> None:
        over_http = {"BAD_FORMAT", "NOT_FOUND", "METHOD_NOT_ALLOWED"}
        over_http |= {"FORBIDDEN", "REFUSED", "BUSY", "NOT_CAUGHT_UP", "UNSETTLED", "UNCERTAIN"}
        for one in vectors("errors.json")["errors"]:
            if one["name"] not in over_http:
                refusal = errors.refusal("", one["number"])
                self.assertEqual(refusal.name, one["name"])
                # The vectors call INTERNAL not retryable, because the node is broken. The client
                # retries it, because another node may answer.
                is_retried = one["retryable"] or one["name"] == "INTERNAL"
                self.assertEqual(refusal.is_retried, is_retried, one["name"])
        self.assertIs(type(errors.refusal("", 4242)), errors.InternalError)

    def test_timestamps_are_those_of_the_vectors(self) -> None:
        last = None
        for one in self.times["timestamps"]:
            parsed = Timestamp.parse(one["text"])
            self.assertEqual((str(parsed.epoch), str(parsed.index)), (one["epoch"], one["index"]))
            self.assertEqual((str(parsed), bytes(parsed).hex()), (one["text"], one["bytes"]))
            self.assertEqual(Timestamp.from_bytes(bytes(parsed)), parsed)
            self.assertTrue(last is None or last < parsed)
            last = parsed
        for text in self.times["refused_texts"]:
            with self.subTest(text), self.assertRaises(ValueError):
                Timestamp.parse(text)
        last_compact = -1
        for one in self.times["compact"]:
            compact, parsed = int(one["u64"]), Timestamp.parse(one["text"])
            self.assertEqual((parsed.compact(), Timestamp.from_compact(compact)), (compact, parsed))
            self.assertLess(last_compact, compact)
            last_compact = compact
        for text in self.times["not_compact"]:
            self.assertIsNone(Timestamp.parse(text).compact())
        for text in [*self.times["refused_compact"], "-1"]:
            with self.subTest(text), self.assertRaises(ValueError):
                Timestamp.from_compact(int(text))
        for one in self.times["ranges"]:
            answer = TimestampRange(Timestamp.parse(one["first"]), int(one["count"]))
            self.assertEqual(str(answer.last), one["last"])

    def test_wall_times_are_those_of_the_vectors(self) -> None:
        for one in self.times["wall_times"]:
            nanoseconds = int(one["unix_ns"])
            self.assertEqual(str(Timestamp.lowest(nanoseconds)), one["lowest"])
            self.assertEqual(str(Timestamp.highest(nanoseconds)), one["highest"])
        before = datetime(1969, 12, 31, tzinfo=timezone.utc)
        self.assertEqual(Timestamp.lowest(before), Timestamp(0, 0))
        self.assertEqual(
            Timestamp.lowest(datetime.max.replace(tzinfo=timezone.utc)).epoch, 2**64 - 1
        )
