/** A scripted node, whose behaviour a test decides, and helpers that the tests share. */

import { createServer, type Server, type Socket } from "node:net";
import type { TestContext } from "node:test";

import { Client, Timestamp, type Options } from "../src/index.js";
import {
  COUNT_MAX,
  encodeHead,
  field,
  FrameReader,
  Kind,
  type Head,
  type Welcome,
} from "../src/frame.js";

export const CLUSTER = { id: "01".repeat(16), history: 1n };
const MAGIC = 0x4550_4f43_4854_534fn;

/** Time limits, in milliseconds, that a busy machine does not reach. */
const PATIENT = { timeout: 30_000, attemptTimeout: 20_000 };

/** A client's connection, on the node's side. */
export class Peer {
  readonly socket: Socket;

  constructor(socket: Socket) {
    this.socket = socket;
  }

  say(head: Partial<Head> & { kind: number }, tail: Buffer | string = ""): void {
    this.socket.write(frame(head, tail));
  }

  answer(id: bigint, count: number, first: Timestamp): void {
    this.say({ kind: Kind.answer, argument: count - 1, id }, Buffer.from(first.toBytes()));
  }

  refuse(id: bigint, code: number, text = ""): void {
    this.say({ kind: Kind.error, code, id }, text);
  }

  leader(node: Node): void {
    this.say({ kind: Kind.leader, id: node.id }, node.addr);
  }
}

/** Allocates rising timestamps. */
export class Oracle {
  next = 1n;

  take(count: number): Timestamp {
    const first = new Timestamp(1n, this.next);
    this.next += BigInt(count);
    return first;
  }

  readonly serve = (to: Peer, id: bigint, count: number): void => {
    to.answer(id, count, this.take(count));
  };
}

/** A server whose behaviour a test decides. */
export class Node {
  readonly id: bigint;
  /**
   * Returns the welcome. If it returns undefined, the node accepts the connection and sends
   * nothing.
   */
  onHello: () => Welcome | undefined = () => this.welcome(this);
  /** Returns bytes that follow the welcome in the same write. */
  behind: () => Buffer = () => Buffer.alloc(0);
  /** The function that is called for every request. */
  ask: (to: Peer, id: bigint, count: number) => void = new Oracle().serve;
  asked = 0;
  pings = 0;
  met = 0;
  readonly pongs: bigint[] = [];
  readonly peers = new Set<Peer>();
  readonly #server: Server;

  private constructor(id: bigint, server: Server) {
    this.id = id;
    this.#server = server;
    server.on("connection", (socket) => this.#converse(socket));
  }

  /** Starts a node, and stops it after the test. */
  static async start(t: TestContext, id = 1n): Promise<Node> {
    const server = createServer({ noDelay: true });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const node = new Node(id, server);
    t.after(() => {
      server.close();
      node.hangUp();
    });
    return node;
  }

  get addr(): string {
    const address = this.#server.address();
    return `127.0.0.1:${typeof address === "object" ? address?.port : 0}`;
  }

  /** Returns a welcome that names the given leader, or no leader. */
  welcome(leader?: Node): Welcome {
    return {
      features: 0n,
      clusterName: "",
      cluster: CLUSTER,
      node: this.id,
      inFlightMax: 1024,
      idleMs: 60_000,
      countMax: BigInt(COUNT_MAX),
      members: [{ node: this.id, addr: this.addr }],
      ...(leader && { leader: { node: leader.id, addr: leader.addr } }),
    };
  }

  hangUp(): void {
    this.peers.forEach((peer) => peer.socket.destroy());
  }

  #converse(socket: Socket): void {
    const peer = new Peer(socket);
    const reader = new FrameReader();
    this.met++;
    this.peers.add(peer);
    socket.on("error", () => {});
    socket.on("close", () => this.peers.delete(peer));
    socket.on("data", (bytes: Buffer) => {
      reader.push(bytes);
      for (let read = reader.next(); read; read = reader.next()) {
        if (read.kind === Kind.hello) {
          const welcome = this.onHello();
          if (welcome) {
            socket.write(Buffer.concat([encodeWelcome(welcome), this.behind()]));
          }
        } else if (read.kind === Kind.request) {
          this.asked++;
          this.ask(peer, read.id, read.argument + 1);
        } else if (read.kind === Kind.ping) {
          this.pings++;
          peer.say({ kind: Kind.pong, id: read.id });
        } else if (read.kind === Kind.pong) {
          this.pongs.push(read.id);
        }
      }
    });
  }
}

/** Encodes a frame. If its kind has a tail of any length, the head gets the length of the tail. */
export function frame(head: Partial<Head> & { kind: number }, tail: Buffer | string): Buffer {
  const bytes = Buffer.from(tail);
  const argument = head.kind >> 6 === 2 ? bytes.length : (head.argument ?? 0);
  return Buffer.concat([encodeHead({ ...head, argument }), bytes]);
}

export function encodeWelcome(welcome: Welcome): Buffer {
  const u64 = (value: bigint) => encodeHead({ kind: 0, id: value }).subarray(8);
  const u32 = (value: number) => encodeHead({ kind: 0, argument: value }).subarray(4, 8);
  const member = (one: { node: bigint; addr: string }) =>
    Buffer.concat([u64(one.node), Buffer.from(one.addr)]);
  const fields = [field(5, u64(welcome.node)), field(7, u32(welcome.inFlightMax))];
  fields.push(field(8, u32(welcome.idleMs)), field(9, u64(welcome.countMax)));
  fields.push(field(2, Buffer.from(welcome.clusterName)));
  if (welcome.cluster) {
    const { id, history } = welcome.cluster;
    fields.push(field(3, Buffer.concat([Buffer.from(id, "hex"), u64(history)])));
  }
  if (welcome.leader) {
    fields.push(field(6, member(welcome.leader)));
  }
  welcome.members.forEach((one) => fields.push(field(10, member(one))));
  return frame({ kind: Kind.welcome, flags: 1, id: MAGIC }, Buffer.concat(fields));
}

/** Connects a client with the limits of PATIENT, and closes it after the test. */
export async function connect(
  t: TestContext,
  nodes: Node | readonly Node[],
  options: Options = {},
): Promise<Client> {
  const addrs = [nodes].flat().map((node) => node.addr);
  const client = await Client.connect(addrs, { ...PATIENT, ...options });
  t.after(() => client.close());
  return client;
}

/** Waits until a condition holds. Fails after thirty seconds. */
export async function until(isSo: () => unknown): Promise<void> {
  for (const begin = performance.now(); !isSo(); await pause(1)) {
    if (performance.now() - begin > 30_000) {
      throw new Error(`in vain: ${isSo}`);
    }
  }
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Keeps the requests that a node has read, until the test answers them. */
export class Hand {
  readonly kept: { to: Peer; id: bigint; count: number }[] = [];

  readonly ask = (to: Peer, id: bigint, count: number): void => {
    this.kept.push({ to, id, count });
  };

  /** Waits for a request that is wanted, and removes it. */
  async take(wanted: (one: { to: Peer; id: bigint }) => boolean = () => true) {
    await until(() => this.kept.some(wanted));
    const [one] = this.kept.splice(this.kept.findIndex(wanted), 1);
    const { to, id, count } = one as (typeof this.kept)[number];
    const answer = (index: bigint) => to.answer(id, count, new Timestamp(1n, index));
    return { to, id, count, answer };
  }
}

/**
 * Returns a generator of random numbers within 0 to 2^32 - 1. The same seed gives the same numbers.
 */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (mixed ^ (mixed >>> 14)) >>> 0;
  };
}
