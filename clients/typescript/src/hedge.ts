/**
 * Hedging: repeats slow requests over a second connection. Callers get the first answer. The other
 * answer is checked and dropped. docs/decisions/0014-hedged-requests.md says why the order of
 * timestamps holds.
 */

import { checkAnswer, requestOf, type Asked } from "./batch.js";
import { Connection, LateError, LEFT } from "./connection.js";
import { backoff } from "./directory.js";
import {
  isRefusal,
  ProtocolError,
  UnreachableError,
  WentBackwardsError,
  WrongClusterError,
} from "./errors.js";
import {
  encodeRequests,
  Kind,
  readAnswer,
  readError,
  readLeader,
  type Answer,
  type Frame,
} from "./frame.js";
import type { Session } from "./session.js";

/** At most this many requests wait for an answer over the second connection. */
const COPIES_MAX = 64;
/**
 * At most this many requests were answered over the second connection and not yet over the first.
 * These are called burnt. A node reads as many requests of a connection before it answers.
 */
const BURNT_MAX = 1024;
/** The longest time between two searches for slow requests. */
const TICK_MS_MAX = 5;

/** A request, as it was sent over one connection. */
interface Sent extends Asked {
  readonly at: number;
}

export class Hedge {
  readonly #session: Session;
  readonly #after: number;
  /** How long the client waits for one node before it tries the next one, in milliseconds. */
  readonly #nodeTimeout: number;
  readonly #timer: NodeJS.Timeout;
  /** The second connection, if there is one. */
  #connection: Connection | undefined;
  #isOpening = false;
  /**
   * The address at which the second connection is opened next. If it is undefined, the leader is
   * tried first, and then one address after another.
   */
  #hint: string | undefined;
  #hasTriedLeader = false;
  #notBefore = 0;
  /** While no call waits, no second connection is opened before this time. */
  #idleUntil = 0;
  /**
   * How many second connections in a row took too long to open. Each doubles the time for the next
   * one, because a handshake may take longer than `#nodeTimeout`.
   */
  #late = 0;
  /** How many second connections in a row could not be used. */
  #failures = 0;
  /** Requests that were sent over the second connection and have no answer there yet. */
  readonly #copies = new Map<bigint, Sent>();
  /** The burnt requests: answered over the second connection and not yet over the first. */
  readonly #burnt = new Map<bigint, Sent>();
  #answeredAt = -Infinity;

  constructor(session: Session, after: number) {
    this.#session = session;
    this.#after = after;
    this.#nodeTimeout = Math.max(after, session.settings.attemptTimeout / 8);
    // If the whole process has stood still, answers may wait unread. Read them before a request
    // counts as slow.
    const look = () => setImmediate(() => this.#turn(performance.now()));
    this.#timer = setInterval(look, Math.min(Math.max(after, 1), TICK_MS_MAX));
  }

  close(): void {
    clearInterval(this.#timer);
    this.#leave(0);
  }

  /**
   * Takes an answer of the first connection to a request that the second connection has already
   * answered. Returns false if there is no such request. Throws if the answer does not fit the
   * request.
   */
  takeBurnt(addr: string, id: bigint, answer: Answer): boolean {
    const sent = this.#burnt.get(id);
    if (!sent) {
      return false;
    }
    this.#burnt.delete(id);
    checkAnswer(sent, addr, answer);
    return true;
  }

  /**
   * Handles a refusal that came over the first connection. Returns whether the second connection
   * has already answered this request, and forgets the request.
   */
  forgive(id: bigint): boolean {
    return this.#burnt.delete(id);
  }

  /**
   * Returns the age, in milliseconds, of the oldest request that only the second connection has
   * answered, or 0 if there is none.
   */
  oldest(now: number): number {
    const [oldest] = this.#burnt.values();
    return oldest ? now - oldest.at : 0;
  }

  /**
   * Forgets the answers that the first connection owed, because it has ended. If the second
   * connection has brought an answer recently, returns its address.
   */
  succeed(now: number): string | undefined {
    this.#burnt.clear();
    this.#hasTriedLeader = false;
    const isAnswering = now - this.#answeredAt <= this.#session.settings.attemptTimeout;
    return isAnswering ? this.#connection?.addr : undefined;
  }

  #turn(now: number): void {
    const [oldest] = this.#copies.values();
    if (oldest && now - oldest.at > this.#nodeTimeout) {
      this.#leave(now);
    }
    const { leader, isClosed } = this.#session;
    if (!leader || isClosed) {
      return;
    }
    if (this.#connection) {
      this.#repeat(this.#connection, now);
    } else if (!this.#isOpening && this.#mayOpen(now)) {
      const first = this.#hasTriedLeader ? this.#session.directory.other(leader.addr) : leader.addr;
      const addr = this.#hint ?? first;
      this.#hint = undefined;
      this.#hasTriedLeader = true;
      void this.#open(addr);
    }
  }

  /**
   * Returns whether the pause before the next second connection is over. A call that waits ends the
   * longer pause of an idle client.
   */
  #mayOpen(now: number): boolean {
    return now >= this.#notBefore && (this.#session.isAwaited || now >= this.#idleUntil);
  }

  /**
   * Lets the pause before the next second connection grow, because this one could not be used. The
   * pause begins now, but not before `until`.
   */
  #wait(until: number): void {
    const begin = Math.max(until, performance.now());
    const { pause, idle } = backoff(this.#failures++);
    this.#notBefore = begin + pause;
    this.#idleUntil = begin + idle;
  }

  /** Sends the slow requests a second time. */
  #repeat(connection: Connection, now: number): void {
    const slow = [];
    for (const batch of this.#session.inFlight.values()) {
      const isFull = this.#copies.size >= COPIES_MAX || this.#burnt.size >= BURNT_MAX;
      if (isFull || now - batch.sent < this.#after) {
        break;
      }
      if (!this.#copies.has(batch.id) && batch.count <= connection.welcome.countMax) {
        // The client may have returned timestamps since it sent the first request. The answer to
        // the copy must be above these, too.
        const floor = this.#session.highest;
        const request = requestOf(batch.id, batch.count, connection.hasLatest);
        const { isLatest } = request;
        this.#copies.set(batch.id, { count: batch.count, isLatest, floor, at: now });
        slow.push(request);
      }
    }
    if (slow.length > 0) {
      connection.write(encodeRequests(slow));
    }
  }

  /** Closes the second connection and forgets its copies. */
  #leave(notBefore: number): void {
    this.#connection?.leave(new Error(LEFT));
    this.#connection = undefined;
    this.#copies.clear();
    this.#notBefore = notBefore;
  }

  /** Opens the second connection, and uses it until it ends. */
  async #open(addr: string): Promise<void> {
    const { settings, cluster, closing, directory } = this.#session;
    const { attemptTimeout } = settings;
    const until = performance.now() + this.#nodeTimeout;
    const grown = Math.min(this.#nodeTimeout * 2 ** this.#late, attemptTimeout);
    const within = Math.max(this.#nodeTimeout, grown);
    this.#isOpening = true;
    let connection: Connection;
    try {
      connection = await Connection.open(settings, addr, cluster, within, closing.signal);
    } catch (error) {
      const isLate = error instanceof UnreachableError && error.cause instanceof LateError;
      this.#late += isLate && within < attemptTimeout ? 1 : 0;
      this.#wait(until);
      // After every other error, the leader answers, or its own connection will say why not.
      if (error instanceof WrongClusterError && !this.#session.isClosed) {
        this.#fail(error);
      }
      return;
    } finally {
      this.#isOpening = false;
    }
    const { leader, node } = connection.welcome;
    if (leader?.node !== node || this.#session.isClosed) {
      connection.leave(new Error(LEFT));
      this.#wait(until);
      if (leader && !directory.isSuspect(leader.addr, performance.now())) {
        this.#hint = leader.addr;
      }
      return;
    }
    this.#connection = connection;
    this.#copies.clear();
    this.#late = 0;
    this.#failures = 0;
    this.#idleUntil = 0;
    connection.listen((frame) => this.#handle(connection, frame));
    const why = await connection.ended;
    if (this.#connection === connection) {
      // This end is no sign of a failure, because nodes close idle connections. So the leader may
      // be tried again.
      this.#hasTriedLeader = false;
      this.#leave(performance.now() + this.#nodeTimeout);
    }
    if (isRefusal(why, "NOT_LEADER")) {
      this.#hint = why.text;
    }
    if (why instanceof ProtocolError || why instanceof WentBackwardsError) {
      this.#fail(why);
    }
  }

  /** Gives the callers an error that no retry cures. Also closes the connection to the leader. */
  #fail(error: Error): void {
    this.#session.observe("failedAttempt", error);
    this.#session.failAll(error);
    this.#session.leader?.leave(new Error(LEFT));
  }

  #handle(connection: Connection, frame: Frame): void {
    switch (frame.kind) {
      case Kind.answer:
        this.#take(connection, frame.id, readAnswer(frame, this.#session.settings.guarantee));
        return;
      case Kind.error:
        throw readError(frame, connection.addr).error;
      case Kind.leader:
        if (readLeader(frame)?.node !== connection.welcome.node) {
          throw new Error("it leads no more");
        }
        return;
      default:
        connection.handlePlain(frame);
    }
  }

  /** Gives an answer of the second connection to its callers, unless they have one already. */
  #take(connection: Connection, id: bigint, answer: Answer): void {
    const copy = this.#copies.get(id);
    if (!copy) {
      throw new ProtocolError(`an answer to request ${id}, which is not under way`);
    }
    this.#copies.delete(id);
    checkAnswer(copy, connection.addr, answer);
    this.#answeredAt = performance.now();
    const session = this.#session;
    const batch = session.inFlight.get(id);
    if (!batch) {
      return;
    }
    const { count, isLatest, floor, sent: at } = batch;
    this.#burnt.set(id, { count, isLatest, floor, at });
    session.finish(batch, answer.range);
    if (session.leader && session.leader.welcome.node !== connection.welcome.node) {
      // Only a leader answers, so the node of the first connection does not lead any more.
      session.leader.leave(new Error("another node answers"));
    }
  }
}
