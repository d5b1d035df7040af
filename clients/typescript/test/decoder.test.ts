/**
 * Tests properties of the decoder with random bytes. EPICEPOCH_SEED sets the seed, and
 * EPICEPOCH_CASES the number of inputs.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  checkPlain,
  FrameReader,
  Kind,
  readAnswer,
  readError,
  readLeader,
  readWelcome,
  type Frame,
} from "../src/frame.js";
import { ProtocolError } from "../src/index.js";
import { CLUSTER, encodeWelcome, frame, random } from "./node.js";

const SEED = Number(process.env.EPICEPOCH_SEED ?? 1);
const CASES = Number(process.env.EPICEPOCH_CASES ?? 4_000);

const SEEDS = [
  frame({ kind: Kind.answer, argument: 999, id: 7n }, Buffer.alloc(16, 1)),
  frame({ kind: Kind.error, code: 1, id: 3n }, "b.example:8080"),
  frame({ kind: Kind.leader, id: 2n }, "b.example:8080"),
  frame({ kind: Kind.leader }, ""),
  frame({ kind: Kind.ping, id: 9n }, ""),
  frame({ kind: 0x3f, flags: 255 }, ""),
  frame({ kind: 0xbf }, "later"),
  encodeWelcome({
    features: 0n,
    clusterName: "c",
    cluster: CLUSTER,
    node: 1n,
    leader: { node: 1n, addr: "a:1" },
    inFlightMax: 4,
    idleMs: 1000,
    countMax: 10n,
    members: [{ node: 1n, addr: "a:1" }],
  }),
];

/** Decodes a frame of a known kind, as the client does. */
function decode(read: Frame): unknown {
  switch (read.kind) {
    case Kind.answer:
      return readAnswer(read, "lease");
    case Kind.error:
      return readError(read, "a:1");
    case Kind.leader:
      return readLeader(read);
    case Kind.welcome:
      return readWelcome(read);
    case Kind.ping:
    case Kind.pong:
    case Kind.goodbye:
      return checkPlain(read);
    default:
      return undefined;
  }
}

/** Reads the pieces to their end, or to the first frame that violates the protocol. */
function readAll(pieces: readonly Buffer[]): unknown[] {
  const reader = new FrameReader();
  const read: unknown[] = [];
  try {
    for (const piece of pieces) {
      reader.push(piece);
      for (let next = reader.next(); next; next = reader.next()) {
        const { tail, ...head } = next;
        read.push(head, tail.toString("hex"), decode(next));
      }
    }
  } catch (error) {
    assert.ok(error instanceof ProtocolError, `${String(error)}`);
    read.push(error.message);
  }
  return read;
}

/** Returns one to four frames in a row. Some of them are changed or cut short. */
function input(next: () => number): Buffer {
  const parts = Array.from({ length: 1 + (next() % 4) }, () => {
    const bytes = Buffer.from(SEEDS[next() % SEEDS.length] as Buffer);
    for (let changes = next() % 3; changes > 0; changes--) {
      bytes[next() % bytes.length] = next() % 256;
    }
    return next() % 8 === 0 ? bytes.subarray(0, next() % bytes.length) : bytes;
  });
  return Buffer.concat(parts);
}

test("any bytes are frames or a protocol error, however they are cut", () => {
  let refused = 0;
  for (let at = 0; at < CASES; at++) {
    const next = random(SEED + at);
    const bytes = input(next);
    const whole = readAll([bytes]);
    const pieces: Buffer[] = [];
    for (let from = 0; from < bytes.length; ) {
      const end = from + 1 + (next() % 24);
      pieces.push(bytes.subarray(from, end));
      from = end;
    }
    assert.deepEqual(readAll(pieces), whole, `seed ${SEED + at}: ${bytes.toString("hex")}`);
    refused += typeof whole.at(-1) === "string" && whole.length % 3 === 1 ? 1 : 0;
  }
  assert.ok(refused > CASES / 20 && refused < CASES, `${refused} of ${CASES} were refused`);
});

test("a large frame in single bytes costs little more than in one piece", () => {
  const bytes = frame({ kind: 0xbf }, Buffer.alloc(32_768, 7));
  const pieces = Array.from(bytes, (byte) => Buffer.of(byte));
  assert.equal((readAll(pieces)[1] as string).length, 2 * 32_768);
});

test("a welcome may have fields of later versions, but none that must be understood", () => {
  const welcome = SEEDS.at(-1) as Buffer;
  const extended = (tag: number, times: number) => {
    const one = Buffer.from([tag >> 8, tag & 255, 0, 1, 5]);
    const tail = Buffer.concat([welcome.subarray(16), ...Array<Buffer>(times).fill(one)]);
    return frame({ kind: Kind.welcome, flags: 1, id: welcome.readBigUInt64BE(8) }, tail);
  };
  const isRead = (bytes: Buffer) => typeof readAll([bytes]).at(-1) === "object";
  for (const tag of [0x000b, 0x0040, 0x7fff]) {
    assert.ok(isRead(extended(tag, 2)), `tag ${tag}`);
  }
  assert.ok(isRead(extended(4, 1)) && !isRead(extended(4, 2)));
  for (const tag of [0x8000, 0x8001, 0xffff]) {
    assert.ok(!isRead(extended(tag, 1)), `tag ${tag}`);
  }
});
