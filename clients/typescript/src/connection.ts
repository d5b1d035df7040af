/**
 * One connection to a node: handshake, frames in, bytes out. It never decides which node to ask,
 * and never sends a request again.
 */

import { connect as connectTcp, type LookupFunction, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";

import {
  EpicEpochError,
  ProtocolError,
  refusal,
  RefusedError,
  UnreachableError,
} from "./errors.js";
import {
  checkPlain,
  encodeHead,
  encodeHello,
  FEATURE_DIRECT,
  FEATURE_LATEST,
  FrameReader,
  Kind,
  readError,
  readLeader,
  readWelcome,
  type Cluster,
  type Frame,
  type Member,
  type Welcome,
} from "./frame.js";
import { currentToken, splitAddress, type Settings } from "./options.js";
import { resolver } from "./resolver.js";

/** This client's name and version in its hello. */
const AGENT = "epicepoch-ts/0.1";
/** Names the native protocol in the TLS handshake. */
const ALPN = "epicepoch/1";
/**
 * At most this many bytes wait until the node reads. Few requests wait, so most of these bytes are
 * pongs. The limit is enough for about 4,000 of them.
 */
const OUTBOX_MAX = 64 * 1024;

/** The reasons for which the client leaves a connection. */
export const LEFT = "the connection was left";
export const SILENT = "it did not answer in time";
const DOES_NOT_READ = "it does not read";
/** The cause of an attempt to connect that took too long. */
export class LateError extends Error {}
/** The first byte of a TLS server's answer to anything but TLS (RFC 8446, section 5.1). */
const TLS_ALERT = 0x15;
/**
 * What Node.js calls an answer that is not TLS. Which one it is depends on the version of OpenSSL.
 */
const NOT_TLS = ["ERR_SSL_WRONG_VERSION_NUMBER", "ERR_SSL_HTTP_REQUEST"];
const NO_TLS = "this port does not speak TLS: leave tls out, or set CLIENT_TLS on the node";
const PLAIN = "this client speaks plain text: set tls";

export class Connection {
  readonly addr: string;
  welcome!: Welcome;
  /** Whether an answer came over this connection. */
  hasAnswered = false;
  /** Is resolved with the reason when the connection has ended. */
  readonly ended: Promise<Error>;
  readonly #isTls: boolean;
  readonly #socket: Socket;
  readonly #reader = new FrameReader();
  #onFrame: ((frame: Frame) => void) | undefined;
  #finish!: (why: Error) => void;
  #isLeft = false;
  /**
   * The number of writes that the system has not taken yet and, below, the time since which it has
   * taken none.
   */
  #unwritten = 0;
  #writingSince = 0;

  /**
   * Connects and does the handshake, within `within` milliseconds. The signal `closing` ends this
   * earlier. If it fails, the promise rejects with an error that names this node.
   */
  static async open(
    settings: Settings,
    addr: string,
    expected: Cluster | undefined,
    within: number,
    closing: AbortSignal,
  ): Promise<Connection> {
    const { clusterName, guarantee, timestampFormat } = settings;
    let token: string;
    let hello: Buffer;
    try {
      token = currentToken(settings);
      const features = FEATURE_LATEST | FEATURE_DIRECT;
      const fields = { features, clusterName, agent: AGENT, token, guarantee };
      hello = encodeHello({ ...fields, timestampFormat, cluster: expected });
    } catch (error) {
      // The function may return a token the next time, so a retry may help.
      throw new UnreachableError(addr, error);
    }
    const { socket, lookedUp } = dial(settings, addr, within);
    const connection = new Connection(addr, socket, hello, settings.tls !== undefined);
    const leave = () => connection.leave(new Error(LEFT));
    // The answer may have come while this process was busy. So read once more before the attempt
    // counts as failed.
    const expire = () => connection.#expire(lookedUp());
    const timer = setTimeout(() => setImmediate(expire), within);
    closing.addEventListener("abort", leave);
    try {
      connection.welcome = await connection.#handshake(clusterName, expected);
      return connection;
    } catch (error) {
      leave();
      throw advised(error, token !== "", settings);
    } finally {
      clearTimeout(timer);
      closing.removeEventListener("abort", leave);
    }
  }

  private constructor(addr: string, socket: Socket, hello: Buffer, isTls: boolean) {
    this.addr = addr;
    this.#isTls = isTls;
    this.#socket = socket;
    this.ended = new Promise((resolve) => {
      this.#finish = resolve;
    });
    // Nothing is sent before the node's certificate is checked.
    socket.once(isTls ? "secureConnect" : "connect", () => this.write(hello));
    socket.on("data", (bytes: Buffer) => {
      this.#reader.push(bytes);
      this.#deliver();
    });
    socket.on("error", (error) => this.leave(isNotTls(error) ? new Error(NO_TLS) : error));
    socket.on("end", () => this.leave(new Error("it closed the connection")));
    socket.on("close", () => this.leave(new Error("it closed the connection")));
  }

  /** Whether the node answers requests for the latest timestamp. */
  get hasLatest(): boolean {
    return (this.welcome.features & FEATURE_LATEST) !== 0n;
  }

  /** Whether the node has called itself the leader. */
  get leads(): boolean {
    return this.welcome.leader?.node === this.welcome.node;
  }

  get isOpen(): boolean {
    return !this.#isLeft;
  }

  /** Passes every frame to a function. If the function throws, the connection ends. */
  listen(onFrame: (frame: Frame) => void): void {
    this.#onFrame = onFrame;
    this.#socket.resume();
    this.#deliver();
  }

  /** Reads no more until {@link Connection.listen} is called again. */
  pause(): void {
    this.#onFrame = undefined;
    this.#socket.pause();
  }

  /**
   * Writes frames. If too many bytes wait because the node does not read, the connection is closed.
   */
  write(frames: Buffer): void {
    if (this.#isLeft) {
      return;
    }
    if (this.#socket.writableLength + frames.length > OUTBOX_MAX) {
      this.leave(new Error(DOES_NOT_READ));
      return;
    }
    if (this.#unwritten++ === 0) {
      this.#writingSince = performance.now();
    }
    this.#socket.write(frames, () => {
      this.#unwritten--;
      this.#writingSince = performance.now();
    });
  }

  /**
   * Returns for how many milliseconds the node has read none of the bytes that wait for it. Returns
   * 0 if no bytes wait.
   */
  unreadFor(now: number): number {
    return this.#unwritten > 0 ? now - this.#writingSince : 0;
  }

  /** Closes the connection for a reason. If it is called again, the first reason stays. */
  leave(why: Error): void {
    if (this.#isLeft) {
      return;
    }
    this.#isLeft = true;
    this.#onFrame = undefined;
    this.#socket.destroy();
    this.#finish(named(this.addr, why));
  }

  /**
   * Handles the frames that mean the same on the first and on the second connection, such as a
   * ping. Throws if the frame ends the connection.
   */
  handlePlain(frame: Frame): void {
    switch (frame.kind) {
      case Kind.ping:
        checkPlain(frame);
        this.write(encodeHead({ kind: Kind.pong, id: frame.id }));
        return;
      case Kind.pong:
        checkPlain(frame);
        return;
      case Kind.goodbye:
        checkPlain(frame);
        throw refusal(this.addr, 10);
      case Kind.request:
      case Kind.hello:
      case Kind.welcome:
        throw new ProtocolError(`a frame of kind ${frame.kind}`);
      default:
      // Kinds of later versions are skipped.
    }
  }

  /**
   * Returns the error for a leader that names no cluster. Such a leader is refused, because its
   * timestamps may have any order.
   */
  homeless(): Error {
    return refusal(this.addr, 11, "it leads and names no cluster");
  }

  /**
   * Waits until the node names the leader. A node sends this notice when it learns who leads.
   * Returns undefined if no notice comes within `within` milliseconds.
   */
  awaitLeader(within: number): Promise<Member | undefined> {
    return new Promise((resolve, reject) => {
      const done = (leader?: Member) => {
        clearTimeout(timer);
        this.pause();
        resolve(leader);
      };
      const timer = setTimeout(done, within);
      void this.ended.then((why) => {
        clearTimeout(timer);
        reject(why);
      });
      this.listen((frame) => {
        const leader = frame.kind === Kind.leader ? readLeader(frame) : undefined;
        if (leader) {
          done(leader);
        }
      });
    });
  }

  /** Returns the node's welcome. Throws if this client cannot use the node. */
  #handshake(clusterName: string | undefined, expected: Cluster | undefined): Promise<Welcome> {
    return new Promise((resolve, reject) => {
      void this.ended.then(reject);
      this.listen((frame) => {
        // Frames after the welcome wait until the next listener is set.
        this.pause();
        if (frame.kind === Kind.error) {
          throw readError(frame, this.addr).error;
        }
        const welcome = readWelcome(frame);
        const { cluster, leader } = welcome;
        if (clusterName !== undefined && welcome.clusterName !== clusterName) {
          const text = `a cluster named "${welcome.clusterName}", not "${clusterName}"`;
          throw refusal(this.addr, 64, text);
        }
        if (expected && cluster && !isSame(expected, cluster)) {
          const text = "another cluster, or another history of it, than this client has met";
          throw refusal(this.addr, 64, text);
        }
        if (!cluster && leader?.node === welcome.node) {
          throw this.homeless();
        }
        resolve(welcome);
      });
    });
  }

  #deliver(): void {
    try {
      // A server of another protocol may send less than a frame and then wait. So check the first
      // byte before a whole frame has come.
      const first = this.welcome ? undefined : this.#reader.peek();
      if (first !== undefined && first !== Kind.welcome && first !== Kind.error) {
        const isAlert = first === TLS_ALERT && !this.#isTls;
        const what = `the hello was answered with the byte ${first}`;
        throw new ProtocolError(isAlert ? `this port speaks TLS; ${PLAIN}` : what);
      }
      while (this.#onFrame) {
        const frame = this.#reader.next();
        if (!frame) {
          return;
        }
        this.#onFrame(frame);
      }
    } catch (error) {
      this.leave(error as Error);
    }
  }

  /** Ends a handshake that takes too long, perhaps because the lookup of a host goes on. */
  #expire(lookedUp: string): void {
    if (!this.welcome) {
      const why = lookedUp === "" ? SILENT : `the lookup of ${lookedUp} took too long`;
      this.leave(new LateError(why));
    }
  }
}

/**
 * Begins to connect. The function `lookedUp` returns the host whose lookup the socket waits for, or
 * the empty string.
 */
function dial(
  settings: Settings,
  addr: string,
  within: number,
): { socket: Socket; lookedUp: () => string } {
  const to = splitAddress(addr);
  if (!to) {
    throw new UnreachableError(addr, "this is not host:port");
  }
  const { tls } = settings;
  let giveUp = () => {};
  let waitsFor = "";
  const lookup: LookupFunction = (host, options, callback) => {
    waitsFor = host;
    giveUp = resolver.lookup(within, host, options, (...answer) => {
      waitsFor = "";
      callback(...answer);
    });
  };
  try {
    let socket: Socket;
    if (tls) {
      const given = typeof tls === "function" ? tls() : tls;
      const own = { ...to, ALPNProtocols: [ALPN] };
      socket = connectTls({ lookup, minVersion: "TLSv1.3", ...given, ...own }).setNoDelay(true);
    } else {
      socket = connectTcp({ ...to, lookup, noDelay: true });
    }
    socket.once("close", () => giveUp());
    return { socket, lookedUp: () => waitsFor };
  } catch (error) {
    throw new UnreachableError(addr, error);
  }
}

function isSame(one: Cluster, other: Cluster): boolean {
  return one.id === other.id && one.history === other.history;
}

/** Adds to the error of a refused handshake what the program must set. */
function advised(error: unknown, hasToken: boolean, { tls, guarantee }: Settings): unknown {
  if (!(error instanceof RefusedError)) {
    return error;
  }
  if (error.code === "UNAUTHORIZED" && !hasToken) {
    const text = `missing token: set token or tokenSource; the node says: ${error.text}`;
    return refusal(error.addr, error.number, text);
  }
  if (error.code === "UNSUPPORTED" && guarantee) {
    // A node refuses a guarantee only if it does not know the field.
    const advice = "this node is too old for guarantees: update it, or leave guarantee out";
    return refusal(error.addr, error.number, `${advice}; the node says: ${error.text}`);
  }
  if (error.code === "BAD_REQUEST" && !tls) {
    // A node that accepts only TLS answers this. Its text says so.
    return refusal(error.addr, error.number, `${error.text}; ${PLAIN}`);
  }
  return error;
}

/** Returns whether the answer to a TLS handshake was not TLS. */
function isNotTls(error: NodeJS.ErrnoException): boolean {
  return NOT_TLS.includes(error.code ?? "");
}

/**
 * Adds the node's address to an error. An error that is not one of this package becomes an {@link
 * UnreachableError}.
 */
function named(addr: string, error: Error): Error {
  if (error instanceof ProtocolError) {
    return new ProtocolError(`${addr} gave an answer that no oracle gives: ${error.message}`);
  }
  return error instanceof EpicEpochError ? error : new UnreachableError(addr, error);
}
