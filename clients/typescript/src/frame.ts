/**
 * The frames of the native protocol (docs/protocol.md). Everything that is read has a limit. A
 * frame that violates the protocol throws a {@link ProtocolError}. This module does no IO.
 */

import { ProtocolError, refusal, type RefusedError } from "./errors.js";
import { Timestamp, TimestampRange } from "./timestamp.js";

export const HEAD_SIZE = 16;
const WIDE_TAIL = 16;
/** At most this many bytes follow the head of a frame. */
const TAIL_MAX = 32_768;
const MEMBERS_MAX = 64;
const ADDRESS_MAX = 260;
const ERROR_TEXT_MAX = 512;
/** The longest name of a cluster and, below, the longest token, in bytes. */
export const NAME_MAX = 64;
export const TOKEN_MAX = 256;
/** The largest count of a request in version 1. */
export const COUNT_MAX = 2 ** 32;

const MAGIC = 0x4550_4f43_4854_534fn; // EPOCHTSO
const VERSION = 1;
const ERROR_CLOSES = 1;
/** The flag of a request for the latest timestamp, and of its answer. */
const FLAG_LATEST = 1;
/** The flag of an answer that the lease of the leader has proved. */
const FLAG_LEASE = 2;
/** The guarantees that a client hello may name, and their values there. */
export const GUARANTEES = { quorum: 0, lease: 1 } as const;
/** What a request asks to be proved before it is answered. */
export type Guarantee = keyof typeof GUARANTEES;
/** The formats of timestamps that a client hello may name, and their values there. */
export const TIMESTAMP_FORMATS = { wide: 0, compact: 1 } as const;
/** The format that timestamps must have: `wide` is any, `compact` has a spelling in 64 bits. */
export type TimestampFormat = keyof typeof TIMESTAMP_FORMATS;
/** The feature of a node that answers requests for the latest timestamp. */
export const FEATURE_LATEST = 1n;
/** This client follows to the leader: no node sends its requests on. */
export const FEATURE_DIRECT = 4n;
/**
 * The idle limit of a node whose welcome names none and, below, the shortest idle limit that the
 * client accepts.
 */
const IDLE_MS_DEFAULT = 120_000;
const IDLE_MS_MIN = 300;

export const Kind = {
  request: 0x01,
  ping: 0x02,
  pong: 0x03,
  goodbye: 0x04,
  answer: 0x41,
  hello: 0x80,
  welcome: 0x81,
  error: 0x82,
  leader: 0x83,
} as const;

const Tag = {
  features: 0x0001,
  clusterName: 0x0002,
  cluster: 0x0003,
  agent: 0x0004,
  node: 0x0005,
  leader: 0x0006,
  inFlightMax: 0x0007,
  idle: 0x0008,
  countMax: 0x0009,
  member: 0x000a,
  mustKnow: 0x8000,
  token: 0x8001,
  guarantee: 0x8002,
  timestampFormat: 0x8004,
} as const;

/** The first 16 bytes of every frame. */
export interface Head {
  kind: number;
  flags: number;
  code: number;
  argument: number;
  id: bigint;
}

/** A frame that was read. The tail is valid until the next frame is read. */
export interface Frame extends Head {
  tail: Buffer;
}

/** A request. */
export interface Request {
  readonly id: bigint;
  /** 1 to 2^32; 1 in a request for the latest timestamp. */
  readonly count: number;
  readonly isLatest: boolean;
}

/** The answer to a request. */
export interface Answer {
  readonly range: TimestampRange;
  /** Whether the range is the latest timestamp, and not timestamps for this client alone. */
  readonly isLatest: boolean;
}

/** A cluster and its history. */
export interface Cluster {
  /** Drawn at random when a cluster is founded; 32 hexadecimal digits. */
  readonly id: string;
  /** Changes when a cluster is restored from a backup. */
  readonly history: bigint;
}

/** A node and its client address. */
export interface Member {
  readonly node: bigint;
  readonly addr: string;
}

/** The client's part of the handshake. */
export interface Hello {
  features?: bigint;
  clusterName?: string | undefined;
  cluster?: Cluster | undefined;
  agent?: string;
  token?: string | undefined;
  guarantee?: Guarantee | undefined;
  timestampFormat?: TimestampFormat | undefined;
}

/** The node's part of the handshake. */
export interface Welcome {
  features: bigint;
  clusterName: string;
  cluster?: Cluster;
  node: bigint;
  leader?: Member;
  inFlightMax: number;
  idleMs: number;
  countMax: bigint;
  members: Member[];
}

/** Writes a head into a new buffer, or into the given buffer at an offset. */
export function encodeHead(head: Partial<Head> & { kind: number }, to?: Buffer, at = 0): Buffer {
  const bytes = to ?? Buffer.allocUnsafe(HEAD_SIZE);
  bytes.writeUInt8(head.kind, at);
  bytes.writeUInt8(head.flags ?? 0, at + 1);
  bytes.writeUInt16BE(head.code ?? 0, at + 2);
  bytes.writeUInt32BE(head.argument ?? 0, at + 4);
  bytes.writeBigUInt64BE(head.id ?? 0n, at + 8);
  return bytes;
}

/** Encodes requests. */
export function encodeRequests(requests: Iterable<Request>): Buffer {
  const all = [...requests];
  const bytes = Buffer.allocUnsafe(all.length * HEAD_SIZE);
  all.forEach(({ id, count, isLatest }, at) => {
    const flags = isLatest ? FLAG_LATEST : 0;
    encodeHead({ kind: Kind.request, flags, argument: count - 1, id }, bytes, at * HEAD_SIZE);
  });
  return bytes;
}

export function encodeHello(hello: Hello): Buffer {
  const fields: Buffer[] = [];
  if (hello.features) {
    fields.push(field(Tag.features, u64(hello.features)));
  }
  if (hello.clusterName) {
    fields.push(field(Tag.clusterName, Buffer.from(hello.clusterName)));
  }
  if (hello.cluster) {
    const { id, history } = hello.cluster;
    fields.push(field(Tag.cluster, Buffer.concat([Buffer.from(id, "hex"), u64(history)])));
  }
  if (hello.agent) {
    fields.push(field(Tag.agent, Buffer.from(hello.agent)));
  }
  if (hello.token) {
    fields.push(field(Tag.token, Buffer.from(hello.token)));
  }
  if (hello.guarantee) {
    fields.push(field(Tag.guarantee, Buffer.from([GUARANTEES[hello.guarantee]])));
  }
  if (hello.timestampFormat) {
    const value = TIMESTAMP_FORMATS[hello.timestampFormat];
    fields.push(field(Tag.timestampFormat, Buffer.from([value])));
  }
  const tail = Buffer.concat(fields);
  const versions = { flags: VERSION, code: VERSION << 8 };
  const head = { kind: Kind.hello, ...versions, argument: tail.length, id: MAGIC };
  return Buffer.concat([encodeHead(head), tail]);
}

/** Encodes a field of a hello or a welcome. */
export function field(tag: number, value: Buffer): Buffer {
  const bytes = Buffer.allocUnsafe(4 + value.length);
  bytes.writeUInt16BE(tag, 0);
  bytes.writeUInt16BE(value.length, 2);
  value.copy(bytes, 4);
  return bytes;
}

function u64(value: bigint): Buffer {
  const bytes = Buffer.allocUnsafe(8);
  bytes.writeBigUInt64BE(value);
  return bytes;
}

/** Cuts a stream of bytes into frames. It keeps at most one incomplete frame. */
export class FrameReader {
  #parts: Buffer[] = [];
  #length = 0;
  /** The head of the next frame, if the head has been read and the tail not yet. */
  #head: Head | undefined;

  push(bytes: Buffer): void {
    if (bytes.length > 0) {
      this.#parts.push(bytes);
      this.#length += bytes.length;
    }
  }

  /** Returns the first byte of the next frame, or undefined if it has not come yet. */
  peek(): number | undefined {
    return this.#head?.kind ?? this.#parts[0]?.[0];
  }

  /** Returns the next frame, or undefined if it is not complete yet. */
  next(): Frame | undefined {
    if (!this.#head) {
      const bytes = this.#take(HEAD_SIZE);
      if (!bytes) {
        return undefined;
      }
      this.#head = readHead(bytes);
    }
    const tail = this.#take(tailSize(this.#head));
    if (!tail) {
      return undefined;
    }
    const frame = { ...this.#head, tail };
    this.#head = undefined;
    return frame;
  }

  #take(size: number): Buffer | undefined {
    if (this.#length < size) {
      return undefined;
    }
    if (this.#parts.length > 1) {
      this.#parts = [Buffer.concat(this.#parts)];
    }
    const all = this.#parts[0] ?? EMPTY;
    this.#length -= size;
    this.#parts = this.#length > 0 ? [all.subarray(size)] : [];
    return all.subarray(0, size);
  }
}

const EMPTY = Buffer.alloc(0);

function readHead(bytes: Buffer): Head {
  return {
    kind: bytes.readUInt8(0),
    flags: bytes.readUInt8(1),
    code: bytes.readUInt16BE(2),
    argument: bytes.readUInt32BE(4),
    id: bytes.readBigUInt64BE(8),
  };
}

/** Returns how many bytes follow the head. */
function tailSize(head: Head): number {
  switch (head.kind >> 6) {
    case 0:
      return 0;
    case 1:
      return WIDE_TAIL;
    case 2:
      if (head.argument > TAIL_MAX) {
        throw new ProtocolError(`a tail of ${head.argument} bytes, the limit is ${TAIL_MAX}`);
      }
      return head.argument;
    default:
      throw new ProtocolError(`a frame of kind ${head.kind}, which has no length`);
  }
}

/**
 * Reads an Answer to a client that asks for a guarantee. Only a client that asks for a lease accepts
 * an answer that a lease has proved.
 */
export function readAnswer(frame: Frame, guarantee: Guarantee | undefined): Answer {
  if (guarantee !== "lease" && (frame.flags & FLAG_LEASE) !== 0) {
    throw new ProtocolError("an answer that a lease has proved, which was not asked for");
  }
  const flags = frame.flags & ~FLAG_LEASE;
  const isLatest = flags === FLAG_LATEST;
  const hasBits = frame.code !== 0 || (flags & ~FLAG_LATEST) !== 0;
  if (hasBits || (isLatest && frame.argument !== 0)) {
    throw new ProtocolError("an answer with reserved bits");
  }
  const first = Timestamp.fromBytes(frame.tail);
  if (BigInt.asUintN(64, first.index + BigInt(frame.argument)) < first.index) {
    throw new ProtocolError("an answer that leaves its epoch");
  }
  return { range: new TimestampRange(first, frame.argument + 1), isLatest };
}

/** Reads an Error, and whether the node closes the connection after it. */
export function readError(frame: Frame, addr: string): { error: RefusedError; closes: boolean } {
  if ((frame.flags & ~ERROR_CLOSES) !== 0) {
    throw new ProtocolError("an error with unknown flags");
  }
  const text = readText(frame.tail, ERROR_TEXT_MAX, "an error");
  return { error: refusal(addr, frame.code, text), closes: (frame.flags & ERROR_CLOSES) !== 0 };
}

/** Reads a Leader notice. Returns undefined if no node leads. */
export function readLeader(frame: Frame): Member | undefined {
  if (frame.flags !== 0 || frame.code !== 0) {
    throw new ProtocolError("a leader with reserved bits");
  }
  const addr = readText(frame.tail, ADDRESS_MAX, "a leader");
  if ((frame.id === 0n) !== (addr === "")) {
    throw new ProtocolError("a leader without an id or an address");
  }
  return addr === "" ? undefined : { node: frame.id, addr };
}

/** Checks a Ping, Pong or Goodbye. */
export function checkPlain(frame: Frame): void {
  const hasId = frame.kind === Kind.goodbye && frame.id !== 0n;
  if (frame.flags !== 0 || frame.code !== 0 || frame.argument !== 0 || hasId) {
    throw new ProtocolError(`a frame of kind ${frame.kind} with reserved bits`);
  }
}

export function readWelcome(frame: Frame): Welcome {
  if (frame.id !== MAGIC) {
    throw new ProtocolError("a welcome with another magic");
  }
  if (frame.flags !== VERSION) {
    throw new ProtocolError(`version ${frame.flags}, which was not offered`);
  }
  if (frame.code !== 0) {
    throw new ProtocolError("a welcome with reserved bits");
  }
  const welcome: Welcome = {
    features: 0n,
    clusterName: "",
    node: 0n,
    inFlightMax: 0,
    idleMs: 0,
    countMax: 0n,
    members: [],
  };
  const seen = new Set<number>();
  for (const [tag, value] of fields(frame.tail)) {
    // Only the member and fields of later versions may repeat.
    if (seen.has(tag) && tag < Tag.member) {
      throw new ProtocolError(`the field ${tag} twice`);
    }
    seen.add(tag);
    readField(welcome, tag, value);
  }
  if (welcome.node === 0n || welcome.inFlightMax === 0 || welcome.countMax === 0n) {
    throw new ProtocolError("a welcome without a node id or its limits");
  }
  return welcome;
}

/** Returns the time between pings, in milliseconds, that keeps an idle connection open. */
export function pingEvery(welcome: Welcome): number {
  return Math.max(welcome.idleMs || IDLE_MS_DEFAULT, IDLE_MS_MIN) / 3;
}

function* fields(tail: Buffer): Generator<[tag: number, value: Buffer]> {
  let rest = tail;
  while (rest.length > 0) {
    const end = rest.length < 4 ? Infinity : 4 + rest.readUInt16BE(2);
    if (rest.length < end) {
      throw new ProtocolError("a field that is cut off");
    }
    yield [rest.readUInt16BE(0), rest.subarray(4, end)];
    rest = rest.subarray(end);
  }
}

function readField(welcome: Welcome, tag: number, value: Buffer): void {
  switch (tag) {
    case Tag.features:
      welcome.features = sized(tag, value, 8).readBigUInt64BE();
      break;
    case Tag.clusterName:
      welcome.clusterName = readText(value, NAME_MAX, "a cluster's name");
      break;
    case Tag.cluster: {
      const id = sized(tag, value, 24).toString("hex", 0, 16);
      if (/^0*$/.test(id)) {
        throw new ProtocolError("a cluster without an id");
      }
      welcome.cluster = { id, history: value.readBigUInt64BE(16) };
      break;
    }
    case Tag.node:
      welcome.node = sized(tag, value, 8).readBigUInt64BE();
      break;
    case Tag.leader:
      welcome.leader = readMember(value);
      break;
    case Tag.inFlightMax:
      welcome.inFlightMax = sized(tag, value, 4).readUInt32BE();
      break;
    case Tag.idle:
      welcome.idleMs = sized(tag, value, 4).readUInt32BE();
      break;
    case Tag.countMax:
      welcome.countMax = sized(tag, value, 8).readBigUInt64BE();
      break;
    case Tag.member:
      if (welcome.members.length === MEMBERS_MAX) {
        throw new ProtocolError(`more than ${MEMBERS_MAX} members`);
      }
      welcome.members.push(readMember(value));
      break;
    default:
      if (tag >= Tag.mustKnow) {
        throw new ProtocolError(`the field ${tag}, which must be understood and is not`);
      }
  }
}

function sized(tag: number, value: Buffer, size: number): Buffer {
  if (value.length !== size) {
    throw new ProtocolError(`the field ${tag} with ${value.length} bytes`);
  }
  return value;
}

function readMember(value: Buffer): Member {
  if (value.length < 9) {
    throw new ProtocolError("a member without an id or an address");
  }
  const node = value.readBigUInt64BE();
  if (node === 0n) {
    throw new ProtocolError("a member with the id 0");
  }
  return { node, addr: readText(value.subarray(8), ADDRESS_MAX, "a member") };
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function readText(bytes: Buffer, longest: number, of: string): string {
  if (bytes.length > longest) {
    throw new ProtocolError(`${of} with a text of ${bytes.length} bytes, the limit is ${longest}`);
  }
  try {
    return utf8.decode(bytes);
  } catch {
    throw new ProtocolError(`${of} with a text that is not UTF-8`);
  }
}
