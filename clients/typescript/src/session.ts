/**
 * Finds the leader, follows leadership to another node, sends batches of calls and passes on the
 * answers. It never gives a caller timestamps that were allocated before the call, and never gives
 * a timestamp twice.
 */

import { inspect } from "node:util";

import { Batch, Call, checkAnswer, requestOf } from "./batch.js";
import { Connection, LEFT, SILENT } from "./connection.js";
import { BACKOFF_MAX_MS, Directory, jitter } from "./directory.js";
import {
  ClosedError,
  CountError,
  DeadlineExceededError,
  isCurable,
  isRefusal,
  ProtocolError,
  refusal,
  TooManyCallsError,
  UnreachableError,
  type RefusedError,
} from "./errors.js";
import {
  COUNT_MAX,
  encodeHead,
  encodeRequests,
  Kind,
  pingEvery,
  readAnswer,
  readError,
  readLeader,
  type Answer,
  type Cluster,
  type Frame,
  type Request,
  type Welcome,
} from "./frame.js";
import { Hedge } from "./hedge.js";
import { DURATION_MAX_MS, type Observer, type Settings } from "./options.js";
import { Signals } from "./signals.js";
import { COMPACT_COUNT_MAX, type Timestamp, type TimestampRange } from "./timestamp.js";

/** At most this many leader hints are followed in a row without a pause. */
const HOPS_MAX = 3;
/** At most this many calls wait. */
const CALLS_MAX = 2 ** 20;
/** The longest time between two checks of the connection. */
const WATCH_MS_MAX = 100;

export class Session {
  readonly settings: Settings;
  readonly directory: Directory;
  /** The cluster that the first node named. The client keeps to it. */
  cluster: Cluster | undefined;
  /** The connection to the leader, if there is one. */
  leader: Connection | undefined;
  /** Requests without an answer, the oldest first. */
  readonly inFlight = new Map<bigint, Batch>();
  /** The highest timestamp that the client has returned to a caller. */
  highest: Timestamp | undefined;
  /** Ends connections that are being opened. */
  readonly closing = new AbortController();
  /**
   * Is resolved when the client first connects to a leader, or rejected at an error that no retry
   * cures.
   */
  readonly ready: Promise<void>;

  /** Batches that are not sent yet. Calls join the last of them, which is also `#open`. */
  readonly #pending = new Set<Batch>();
  #open: Batch | undefined;
  #isPumpDue = false;
  #lastId = 0n;
  #countLimit = COUNT_MAX;
  #inFlightLimit: number;
  /** The timer of the pause in which nothing is sent to an overloaded leader. */
  #quiet: NodeJS.Timeout | undefined;
  /** The number of calls that wait. */
  #waiting = 0;
  readonly #signals = new Signals();
  /** The timer that ends calls at their deadlines. The earliest deadline is `#expiresAt`. */
  #expiry: NodeJS.Timeout | undefined;
  #expiresAt = Infinity;
  /** The last error since the last answer or new connection. */
  #lastError: Error | undefined;
  /** The connection that `#run` uses. Its node may not be the leader. */
  #current: Connection | undefined;
  /** Ends the present pause of `#run`. If `#isIdle` is true, a new call ends the pause, too. */
  #wake: (() => void) | undefined;
  #isIdle = false;
  #isReady = false;
  #setReady!: (error?: Error) => void;
  readonly #watcher: NodeJS.Timeout;
  #pingedAt = performance.now();
  #refreshedAt = performance.now();
  #isRefreshing = false;
  readonly #hedge: Hedge | undefined;
  readonly #ended: Promise<void>;

  constructor(addrs: readonly string[], settings: Settings) {
    this.settings = settings;
    this.directory = new Directory(addrs);
    this.#inFlightLimit = settings.inFlight;
    this.ready = new Promise((resolve, reject) => {
      this.#setReady = (error) => (error ? reject(error) : resolve());
    });
    this.ready.catch(() => {});
    if (settings.hedgeAfter !== undefined) {
      this.#hedge = new Hedge(this, settings.hedgeAfter);
    }
    // If the whole process has stood still, answers may wait unread. Read them before the check
    // decides that the leader is silent.
    const look = () => setImmediate(() => this.#watch(performance.now()));
    this.#watcher = setInterval(look, Math.min(settings.attemptTimeout / 5, WATCH_MS_MAX));
    this.#ended = this.#run();
  }

  get isClosed(): boolean {
    return this.closing.signal.aborted;
  }

  /** Whether a call waits for its answer. */
  get isAwaited(): boolean {
    return this.#waiting > 0;
  }

  /** Waits until the first leader is found, at most as long as the setting `timeout`. */
  opened(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const expire = () => reject(new DeadlineExceededError(this.#lastError));
      const timer = setTimeout(expire, this.settings.timeout);
      const abort = () => reject(reasonOf(signal, this.#lastError));
      signal?.addEventListener("abort", abort);
      if (signal?.aborted) {
        abort();
      }
      const clear = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
      };
      this.ready.then(resolve, reject).finally(clear);
    });
  }

  /** Makes a call of 1 to 2^32 timestamps, or of the latest one ({@link LATEST}). */
  call(count: number, timeout: number, signal: AbortSignal | undefined): Promise<TimestampRange> {
    if (this.isClosed) {
      return Promise.reject(new ClosedError());
    }
    if (signal?.aborted) {
      return Promise.reject(reasonOf(signal, undefined));
    }
    if (timeout <= 0) {
      return Promise.reject(new DeadlineExceededError(this.#lastError));
    }
    if (this.#waiting >= CALLS_MAX) {
      return Promise.reject(new TooManyCallsError(CALLS_MAX));
    }
    const deadline = performance.now() + timeout;
    const call = new Call(count, deadline, () => this.#settled(call, signal));
    this.#waiting++;
    if (signal) {
      this.#signals.add(signal, call, () => reasonOf(signal, this.#lastError ?? call.last));
    }
    if (deadline < this.#expiresAt) {
      this.#expireAt(deadline);
    }
    this.#join(call);
    return call.promise;
  }

  /** Ends all calls and connections. */
  async close(): Promise<void> {
    const closed = new ClosedError();
    this.closing.abort();
    clearInterval(this.#watcher);
    this.#endRest();
    this.#hedge?.close();
    this.#current?.leave(closed);
    this.failAll(closed);
    clearTimeout(this.#expiry);
    this.#setReady(closed);
    this.#wake?.();
    await this.#ended;
  }

  /** Gives an answer to the callers of a request. */
  finish(batch: Batch, answer: TimestampRange): void {
    const now = performance.now();
    this.inFlight.delete(batch.id);
    this.#lastError = undefined;
    const { last } = answer;
    if (!this.highest || this.highest.isBefore(last)) {
      this.highest = last;
    }
    this.#pumpSoon();
    const { waiting } = batch;
    batch.succeed(answer, now, (call) => this.#expired(call));
    this.observe("answered", waiting, batch.count, now - batch.sent);
  }

  /**
   * Ends the requests in flight. After an error that a retry may cure, their calls wait for another
   * request. Otherwise all calls fail.
   */
  failAll(error: Error): void {
    const sent = [...this.inFlight.values()];
    this.inFlight.clear();
    this.#lastError = error;
    if (isCurable(error)) {
      sent.forEach((batch) => this.#retry(batch, error));
      return;
    }
    const waiting = [...this.#pending];
    this.#pending.clear();
    this.#open = undefined;
    sent.concat(waiting).forEach((batch) => batch.fail(error));
  }

  /** Applies a node's report of the cluster. */
  meet(welcome: Welcome): void {
    this.cluster ??= welcome.cluster;
    this.directory.learn(welcome.members);
  }

  /** Calls a function of the observer. If it throws or rejects, the error becomes a warning. */
  observe<Name extends keyof Observer>(
    name: Name,
    ...values: Parameters<NonNullable<Observer[Name]>>
  ): void {
    const { observer } = this.settings;
    try {
      const hook = observer?.[name] as ((...all: unknown[]) => unknown) | undefined;
      const result = hook?.apply(observer, values) as { then?: unknown } | null | undefined;
      if (result?.then) {
        // Node.js ends the process if an async hook rejects and nothing handles it.
        Promise.resolve(result).catch(warn);
      }
    } catch (error) {
      warn(error);
    }
  }

  #join(call: Call): void {
    if (this.leader && call.count > this.#countLimit) {
      call.fail(new CountError(call.count, this.#countLimit));
      return;
    }
    if (!this.#open || this.#open.count + call.count > this.#countLimit) {
      this.#open = new Batch();
      this.#pending.add(this.#open);
    }
    this.#open.add(call);
    if (this.leader) {
      this.#pumpSoon();
    } else if (this.#isIdle) {
      this.#wake?.();
    }
  }

  #settled(call: Call, signal: AbortSignal | undefined): void {
    this.#waiting--;
    if (signal) {
      this.#signals.remove(signal, call);
    }
    const { batch } = call;
    batch?.remove(call);
    if (batch?.calls.size === 0) {
      this.#pending.delete(batch);
      this.#open = this.#open === batch ? undefined : this.#open;
    }
  }

  /**
   * Sends the open batch after the calls that are about to be made have joined it, but before
   * anything else is read.
   */
  #pumpSoon(): void {
    if (!this.#isPumpDue) {
      this.#isPumpDue = true;
      process.nextTick(() => this.#pump());
    }
  }

  /** Sends waiting batches, up to the limit of requests in flight. */
  #pump(): void {
    this.#isPumpDue = false;
    if (!this.leader?.isOpen || this.#pending.size === 0 || this.#quiet) {
      return;
    }
    const now = performance.now();
    const sealed: Request[] = [];
    for (const batch of this.#pending) {
      if (this.inFlight.size >= this.#inFlightLimit) {
        break;
      }
      this.#pending.delete(batch);
      this.#open = this.#open === batch ? undefined : this.#open;
      batch.id = ++this.#lastId;
      batch.sent = now;
      batch.floor = this.highest;
      const request = requestOf(batch.id, batch.count, this.leader.hasLatest);
      batch.isLatest = request.isLatest;
      this.inFlight.set(batch.id, batch);
      sealed.push(request);
    }
    if (sealed.length > 0) {
      this.leader.write(encodeRequests(sealed));
    }
  }

  /** Puts the calls of a failed batch into other batches. */
  #retry(batch: Batch, error: Error): void {
    for (const call of batch.calls) {
      if (!call.isSettled) {
        call.last = error;
        this.#join(call);
      }
    }
  }

  #expireAt(deadline: number): void {
    clearTimeout(this.#expiry);
    this.#expiresAt = deadline;
    const wait = Math.min(Math.ceil(deadline - performance.now()), DURATION_MAX_MS);
    this.#expiry = setTimeout(() => this.#expire(), wait);
  }

  /** Ends the calls whose deadline has come, and sets the timer for the next deadline. */
  #expire(): void {
    const now = performance.now();
    let next = Infinity;
    for (const batch of [...this.inFlight.values(), ...this.#pending]) {
      for (const call of batch.calls) {
        if (call.deadline <= now) {
          call.fail(this.#expired(call));
        } else if (!call.isSettled) {
          next = Math.min(next, call.deadline);
        }
      }
    }
    this.#expiresAt = Infinity;
    if (next < Infinity) {
      this.#expireAt(next);
    }
  }

  #expired(call: Call): Error {
    return new DeadlineExceededError(this.#lastError ?? call.last);
  }

  /** Keeps a connection to the leader until the client is closed. */
  async #run(): Promise<void> {
    // How many connections in a row have brought no answer.
    let fruitless = 0;
    for (;;) {
      const connection = await this.#establish();
      if (!connection) {
        return;
      }
      const why = await this.#serve(connection);
      if (this.isClosed) {
        return;
      }
      this.observe("failedAttempt", why);
      this.failAll(why);
      fruitless = connection.hasAnswered ? 0 : fruitless + 1;
      // The client follows a hint to another leader at once. But it follows only HOPS_MAX in a row
      // without a pause, because two nodes may name each other.
      const isHint = isRefusal(why, "NOT_LEADER") && fruitless <= HOPS_MAX;
      if (isRefusal(why, "OVERLOADED")) {
        await this.#sleep(jitter(BACKOFF_MAX_MS));
      } else if (fruitless > 0 && !isHint) {
        await this.#pause();
      }
    }
  }

  /** Returns a connection to a node that leads, or undefined when the client is closed. */
  async #establish(): Promise<Connection | undefined> {
    let hops = 0;
    while (!this.isClosed) {
      const addr = this.directory.next();
      try {
        const connection = await this.#ask(addr, hops < HOPS_MAX);
        if (connection) {
          return connection;
        }
        hops++;
      } catch (error) {
        if (this.isClosed) {
          return undefined;
        }
        hops = 0;
        this.observe("failedAttempt", error as Error);
        if (!isCurable(error as Error)) {
          this.#setReady(error as Error);
        }
        this.failAll(error as Error);
        await this.#pause();
      }
    }
    return undefined;
  }

  /**
   * Asks one node whether it leads. Returns a connection if it does. Returns undefined if it names
   * another leader, which is to be asked next. Otherwise throws the reason.
   */
  async #ask(addr: string, mayFollow: boolean): Promise<Connection | undefined> {
    const { directory, settings } = this;
    let connection: Connection;
    try {
      const within = settings.attemptTimeout;
      connection = await Connection.open(settings, addr, this.cluster, within, this.closing.signal);
    } catch (error) {
      directory.fail(addr, performance.now());
      throw error;
    }
    const { welcome } = connection;
    this.#current = connection;
    this.meet(welcome);
    let hint = welcome.leader;
    const follows = () => hint && mayFollow && directory.follow(hint.addr, performance.now());
    if (!connection.leads && !follows()) {
      directory.leader = undefined;
      hint = await connection.awaitLeader(settings.attemptTimeout / 4);
    }
    if (hint?.node === welcome.node) {
      if (!welcome.cluster) {
        const error = connection.homeless();
        connection.leave(error);
        throw error;
      }
      directory.succeed(addr);
      return connection;
    }
    connection.leave(new Error(LEFT));
    if (follows()) {
      return undefined;
    }
    throw refusal(addr, 3);
  }

  /** Lets callers use the connection until it ends. Returns the reason of its end. */
  async #serve(connection: Connection): Promise<Error> {
    if (this.isClosed) {
      connection.leave(new ClosedError());
      return connection.ended;
    }
    this.leader = connection;
    this.#lastError = undefined;
    this.#endRest();
    this.#abide(connection.welcome);
    this.#setReady();
    this.#isReady = true;
    this.observe("connected", connection.addr);
    connection.listen((frame) => this.#handle(connection, frame));
    this.#pump();
    const why = await connection.ended;
    this.leader = undefined;
    const { directory } = this;
    const now = performance.now();
    const answering = this.#hedge?.succeed(now);
    if (answering !== undefined && isCurable(why)) {
      directory.succeed(answering);
    } else if (isRefusal(why, "NOT_LEADER") && why.text !== connection.addr) {
      // The client believes a node that says that it does not lead. The leader that the node names
      // may be one that has just failed.
      directory.leader = undefined;
      directory.follow(why.text, now);
    } else if (!isRefusal(why.cause as Error, "UNAUTHORIZED")) {
      // A node that wants a new token has not failed.
      directory.fail(connection.addr, now);
    }
    return why;
  }

  /** Applies a leader's limits. If a waiting batch exceeds them, its calls join other batches. */
  #abide(welcome: Welcome): void {
    this.#inFlightLimit = Math.min(welcome.inFlightMax, this.settings.inFlight);
    this.#limitCount(Math.min(Number(welcome.countMax), COUNT_MAX));
  }

  #limitCount(limit: number): void {
    this.#countLimit = limit;
    for (const batch of [...this.#pending]) {
      if (batch.count > this.#countLimit) {
        this.#pending.delete(batch);
        this.#open = this.#open === batch ? undefined : this.#open;
        [...batch.calls].forEach((call) => this.#join(call));
      }
    }
  }

  #handle(connection: Connection, frame: Frame): void {
    switch (frame.kind) {
      case Kind.answer:
        this.#answered(connection, frame.id, readAnswer(frame, this.settings.guarantee));
        if (!connection.hasAnswered) {
          connection.hasAnswered = true;
          this.directory.failedAttempts = 0;
        }
        return;
      case Kind.error: {
        const { error, closes } = readError(frame, connection.addr);
        if (closes && isRefusal(error, "UNAUTHORIZED")) {
          // The token is no longer valid, and the program may have a new one. If it has none, the
          // next client hello is refused, which ends the calls.
          throw new UnreachableError(connection.addr, error);
        }
        if (closes) {
          throw error;
        }
        this.#refused(frame.id, error);
        return;
      }
      case Kind.leader: {
        const leader = readLeader(frame);
        if (leader && leader.node !== connection.welcome.node) {
          // The named leader is only a hint. But a node names another leader only when it does not
          // lead itself.
          throw refusal(connection.addr, 1, leader.addr);
        }
        return;
      }
      default:
        connection.handlePlain(frame);
    }
  }

  #answered(connection: Connection, id: bigint, answer: Answer): void {
    const batch = this.inFlight.get(id);
    if (batch) {
      checkAnswer(batch, connection.addr, answer);
      this.finish(batch, answer.range);
    } else if (!this.#hedge?.takeBurnt(connection.addr, id, answer)) {
      throw new ProtocolError(`an answer to request ${id}, which is not under way`);
    }
  }

  /**
   * Gives a refusal to the callers of a request. Throws the refusal if the connection cannot be
   * used any more.
   */
  #refused(id: bigint, error: RefusedError): void {
    const batch = this.inFlight.get(id);
    const isBurnt = this.#hedge?.forgive(id) ?? false;
    if (!batch && !isBurnt) {
      throw new ProtocolError(`a refusal of request ${id}, which is not under way`);
    }
    const isOverloaded = isRefusal(error, "OVERLOADED");
    if (!isOverloaded && isCurable(error)) {
      throw error;
    }
    this.#lastError = error;
    if (isOverloaded) {
      this.#rest();
    }
    this.observe("failedAttempt", error);
    if (batch) {
      this.inFlight.delete(id);
      if (isOverloaded || (isRefusal(error, "BAD_COUNT") && this.#becameCompact(batch))) {
        this.#retry(batch, error);
      } else {
        batch.fail(error);
      }
    }
    this.#pumpSoon();
  }

  /**
   * Applies a refusal of a batch's count. A node refuses more than a millisecond has if its cluster
   * has become compact since the welcome. Then the smaller limit holds from now on. Returns whether
   * this is so, and smaller requests can serve the callers.
   */
  #becameCompact(batch: Batch): boolean {
    if (batch.count <= COMPACT_COUNT_MAX) {
      return false;
    }
    this.#limitCount(Math.min(this.#countLimit, COMPACT_COUNT_MAX));
    return true;
  }

  /** Pauses requests to an overloaded leader. Calls during the pause share the next requests. */
  #rest(): void {
    const end = () => {
      this.#endRest();
      this.#pump();
    };
    // A timer of Node.js may fire a millisecond early, so wait one more.
    this.#quiet ??= setTimeout(end, Math.ceil(jitter(BACKOFF_MAX_MS)) + 1);
  }

  #endRest(): void {
    clearTimeout(this.#quiet);
    this.#quiet = undefined;
  }

  /**
   * Waits before the next attempt. The pause grows with each failure, and is much longer while no
   * caller waits.
   */
  async #pause(): Promise<void> {
    const { pause, idle } = this.directory.backoff();
    await this.#sleep(pause);
    if (this.#isReady && this.#pending.size === 0 && !this.isClosed) {
      this.#isIdle = true;
      await this.#sleep(idle - pause);
      this.#isIdle = false;
    }
  }

  async #sleep(ms: number): Promise<void> {
    if (this.isClosed || ms <= 0) {
      return;
    }
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = undefined;
  }

  /** Leaves a silent leader, keeps an idle connection alive, and learns the members again. */
  #watch(now: number): void {
    const { leader, settings } = this;
    if (!leader || this.isClosed) {
      return;
    }
    const silence = Math.max(this.#oldest(now), this.#hedge?.oldest(now) ?? 0);
    if (Math.max(silence, leader.unreadFor(now)) > settings.attemptTimeout) {
      leader.leave(new Error(SILENT));
    } else if (now - this.#refreshedAt > settings.refreshInterval && !this.#isRefreshing) {
      this.#refreshedAt = now;
      void this.#refresh(leader.addr);
    }
    if (now - this.#pingedAt > pingEvery(leader.welcome)) {
      this.#pingedAt = now;
      leader.write(encodeHead({ kind: Kind.ping, id: 1n }));
    }
  }

  /** Returns the age of the oldest request in flight in milliseconds, or 0 if there is none. */
  #oldest(now: number): number {
    const [oldest] = this.inFlight.values();
    return oldest ? now - oldest.sent : 0;
  }

  /** Learns the members from a new handshake. */
  async #refresh(addr: string): Promise<void> {
    const { settings, closing } = this;
    const within = settings.attemptTimeout;
    this.#isRefreshing = true;
    try {
      const open = Connection.open(settings, addr, this.cluster, within, closing.signal);
      const connection = await open;
      connection.leave(new Error(LEFT));
      this.meet(connection.welcome);
    } catch (error) {
      this.observe("failedAttempt", error as Error);
    } finally {
      this.#isRefreshing = false;
    }
  }
}

/** Makes a warning of what a hook has thrown. Only an Error or a text can be one. */
function warn(error: unknown): void {
  process.emitWarning(error instanceof Error ? error : inspect(error));
}

/**
 * Returns the error for a caller whose signal was aborted. A signal of `AbortSignal.timeout` counts
 * as a deadline.
 */
function reasonOf(signal: AbortSignal | undefined, last: Error | undefined): unknown {
  const reason: unknown = signal?.reason;
  const isTimeout = reason instanceof DOMException && reason.name === "TimeoutError";
  return isTimeout ? new DeadlineExceededError(last) : reason;
}
