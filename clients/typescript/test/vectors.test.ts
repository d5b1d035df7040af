/** Tests this client against the golden vectors that the implementations of all languages share. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { isCurable, refusal, refusalCode } from "../src/errors.js";
import {
  checkPlain,
  encodeHead,
  encodeHello,
  encodeRequests,
  FrameReader,
  Kind,
  readAnswer,
  readError,
  readLeader,
  readWelcome,
  type Frame,
  type Guarantee,
  type TimestampFormat,
} from "../src/frame.js";
import { ProtocolError, Timestamp, TimestampRange } from "../src/index.js";

type Means = Record<string, unknown>;
interface Vector {
  from?: string;
  hex: string;
  name: string;
  means: Means;
}

function vectors<Shape>(name: string): Shape {
  const url = new URL(`../../../../crates/wire/vectors/${name}`, import.meta.url);
  return JSON.parse(readFileSync(url, "utf8")) as Shape;
}

const native = vectors<Record<"to_server" | "to_client" | "read_only" | "refused", Vector[]>>(
  "native.json",
);
const timestamps = vectors<{
  timestamps: { bytes: string; text: string; epoch: string; index: string }[];
  refused_texts: string[];
  ranges: { first: string; last: string; count: string }[];
  compact: { u64: string; text: string }[];
  not_compact: string[];
  refused_compact: string[];
  wall_times: { lowest: string; highest: string; unix_ns: string }[];
}>("timestamps.json");

/** Encodes a frame that a client sends. */
function written(means: Means): Buffer {
  const id = BigInt((means.id as string | undefined) ?? 0);
  switch (means.kind) {
    case "request":
      return encodeRequests([{ id, count: Number(means.count), isLatest: false }]);
    case "latest":
      return encodeRequests([{ id, count: 1, isLatest: true }]);
    case "ping":
      return encodeHead({ kind: Kind.ping, id });
    case "pong":
      return encodeHead({ kind: Kind.pong, id });
    case "hello":
      return encodeHello({
        features: BigInt(means.features as string),
        clusterName: means.cluster_name as string,
        cluster: means.cluster
          ? { id: means.cluster as string, history: BigInt(means.history as string) }
          : undefined,
        agent: means.agent as string,
        token: (means.token as string | null) ?? undefined,
        guarantee: (means.guarantee as Guarantee | null) ?? undefined,
        timestampFormat: (means.timestamp_format as TimestampFormat | null) ?? undefined,
      });
    default:
      throw new Error(`a frame of kind ${String(means.kind)}`);
  }
}

/** Decodes a frame that a node sends. Returns its fields under the names that the vectors use. */
function read(frame: Frame): Means {
  const id = String(frame.id);
  switch (frame.kind) {
    case Kind.answer: {
      const { range, isLatest } = readAnswer(frame, "lease");
      const { first, count } = range;
      let proof = "round";
      try {
        readAnswer(frame, undefined);
      } catch {
        proof = "lease";
      }
      if (isLatest) {
        return { kind: "latest_answer", id, latest: String(first), proof };
      }
      return { kind: "answer", id, count: String(count), first: String(first), proof };
    }
    case Kind.error: {
      const { error, closes } = readError(frame, "");
      const name = refusalCode(error.number) ?? null;
      return { kind: "error", id, code: error.number, name, text: error.text, closes };
    }
    case Kind.leader: {
      const leader = readLeader(frame) ?? { node: 0n, addr: "" };
      return { kind: "leader", node: String(leader.node), addr: leader.addr };
    }
    case Kind.ping:
      checkPlain(frame);
      return { kind: "ping", id };
    case Kind.pong:
      checkPlain(frame);
      return { kind: "pong", id };
    case Kind.goodbye:
      checkPlain(frame);
      return { kind: "goodbye" };
    case Kind.welcome: {
      const welcome = readWelcome(frame);
      const member = (one: { node: bigint; addr: string }) => ({ ...one, node: String(one.node) });
      return {
        kind: "welcome",
        version: 1,
        features: String(welcome.features),
        cluster_name: welcome.clusterName,
        cluster: welcome.cluster?.id ?? null,
        history: welcome.cluster ? String(welcome.cluster.history) : null,
        node: String(welcome.node),
        leader: welcome.leader ? member(welcome.leader) : null,
        in_flight_max: welcome.inFlightMax,
        idle_ms: welcome.idleMs,
        count_max: String(welcome.countMax),
        members: welcome.members.map(member),
      };
    }
    case Kind.request:
    case Kind.hello:
      throw new ProtocolError("a frame that only clients send");
    default:
      return { kind: "unknown" };
  }
}

/** Reads one frame, which is given in pieces of `size` bytes. */
function parse(hex: string, size = Infinity): Means {
  const reader = new FrameReader();
  const bytes = Buffer.from(hex, "hex");
  for (let at = 0; at < bytes.length; at += size) {
    assert.equal(reader.next(), undefined, "the frame is complete too early");
    reader.push(bytes.subarray(at, at + Math.min(size, bytes.length)));
  }
  const frame = reader.next();
  assert.ok(frame, "the frame is not complete");
  assert.equal(reader.peek(), undefined, "bytes are left");
  return read(frame);
}

test("frames are written as the vectors say", () => {
  assert.ok(native.to_server.length >= 5);
  for (const { name, hex, means } of native.to_server) {
    assert.equal(written(means).toString("hex"), hex, name);
  }
});

test("frames are read as the vectors say, however they are cut", () => {
  const all = [...native.to_client, ...native.read_only].filter(({ from }) => from !== "client");
  assert.ok(all.length >= 10);
  for (const { name, hex, means } of all) {
    for (const size of [1, 7, 16, Infinity]) {
      assert.deepEqual(parse(hex, size), means, name);
    }
  }
});

test("frames that break the protocol are refused", () => {
  const all = native.refused.filter(({ from }) => from !== "client");
  assert.ok(all.length >= 5);
  for (const { name, hex } of all) {
    assert.throws(() => parse(hex.padEnd(32, "0")), ProtocolError, name);
  }
});

test("answers of interval mode are skipped as unknown frames", () => {
  const mode = vectors<Record<"answers" | "refused_answers", Vector[]>>("intervals.json");
  const all = [...mode.answers, ...mode.refused_answers];
  assert.ok(all.length >= 10);
  for (const { name, hex } of all) {
    assert.deepEqual(parse(hex), { kind: "unknown" }, name);
  }
});

test("errors have their numbers", () => {
  const { errors } = vectors<{ errors: { name: string; number: number; retryable: boolean }[] }>(
    "errors.json",
  );
  const onlyHttp = ["BAD_FORMAT", "NOT_FOUND", "METHOD_NOT_ALLOWED", "REFUSED"];
  onlyHttp.push("BUSY", "NOT_CAUGHT_UP", "UNSETTLED", "UNCERTAIN");
  for (const { name, number, retryable } of errors) {
    if (!onlyHttp.includes(name)) {
      assert.equal(refusalCode(number), name);
      // The vectors call INTERNAL not retryable, because the node is broken. The client retries it,
      // because another node may answer.
      assert.equal(isCurable(refusal("", number)), retryable || name === "INTERNAL", name);
    }
  }
  assert.equal(refusal("", 9999).code, "INTERNAL");
});

test("compact timestamps are those of the vectors", () => {
  let last = -1n;
  for (const { u64, text } of timestamps.compact) {
    const timestamp = Timestamp.parse(text);
    assert.equal(timestamp.toCompact(), BigInt(u64));
    assert.ok(Timestamp.fromCompact(BigInt(u64)).equals(timestamp) && BigInt(u64) > last);
    last = BigInt(u64);
  }
  for (const text of timestamps.not_compact) {
    assert.equal(Timestamp.parse(text).toCompact(), undefined, text);
  }
  for (const text of [...timestamps.refused_compact, "-1"]) {
    assert.throws(() => Timestamp.fromCompact(BigInt(text)), RangeError, text);
  }
});

test("timestamps are those of the vectors", () => {
  let last: Timestamp | undefined;
  for (const { text, bytes, epoch, index } of timestamps.timestamps) {
    const timestamp = Timestamp.parse(text);
    assert.equal(Buffer.from(timestamp.toBytes()).toString("hex"), bytes);
    assert.equal(String(timestamp), text);
    assert.equal(JSON.stringify({ timestamp }), `{"timestamp":"${text}"}`);
    assert.deepEqual([timestamp.epoch, timestamp.index], [BigInt(epoch), BigInt(index)]);
    assert.ok(Timestamp.fromBytes(timestamp.toBytes()).equals(timestamp));
    if (last) {
      assert.ok(last < timestamp && last.isBefore(timestamp) && last.compare(timestamp) < 0);
      assert.ok(!timestamp.isBefore(last) && !timestamp.equals(last));
    }
    last = timestamp;
  }
  for (const text of timestamps.refused_texts) {
    assert.throws(() => Timestamp.parse(text), SyntaxError);
  }
  for (const { first, last: end, count } of timestamps.ranges) {
    const range = new TimestampRange(Timestamp.parse(first), Number(count));
    assert.equal(String(range.last), end);
  }
});

test("wall times are those of the vectors", () => {
  for (const { lowest, highest, unix_ns } of timestamps.wall_times) {
    const at = BigInt(unix_ns);
    assert.equal(String(Timestamp.lowest(at)), lowest);
    assert.equal(String(Timestamp.highest(at)), highest);
    assert.equal(Timestamp.lowest(at).toDate().getTime(), Number(at / 1_000_000n));
  }
  assert.equal(Timestamp.lowest(new Date(-1)).epoch, 0n);
  assert.equal(Timestamp.lowest(new Date(8.64e15)).epoch, 2n ** 64n - 1n);
  assert.equal(Timestamp.lowest(new Date(1_700_000_000_123)).epoch, 1_700_000_000_123_000_000n);
  assert.equal(Timestamp.highest(new Date(1_700_000_000_123)).epoch, 1_700_000_000_123_999_999n);
  assert.equal(Timestamp.highest(new Date(8.64e15)).epoch, 2n ** 64n - 1n);
});

test("a range gives its timestamps from the lowest, and no other", () => {
  const range = new TimestampRange(new Timestamp(1n, 7n), 3);
  assert.deepEqual(
    [...range].map(({ index }) => index),
    [7n, 8n, 9n],
  );
  for (const offset of [-1, 3, 0.5, NaN]) {
    assert.throws(() => range.at(offset), RangeError);
  }
  assert.throws(() => new Timestamp(2n ** 64n, 0n), RangeError);
  assert.throws(() => new Timestamp(0n, -1n), RangeError);
});
