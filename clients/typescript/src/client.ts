/** The public client. It checks its arguments, and leaves the rest to a session. */

import { LATEST } from "./batch.js";
import { CountError, NotCompactError } from "./errors.js";
import { COUNT_MAX, type Cluster } from "./frame.js";
import { settings, splitAddress, type Options } from "./options.js";
import { Session } from "./session.js";
import { TimestampRange, type Timestamp } from "./timestamp.js";

/** Options of a call. */
export interface CallOptions {
  /** How long the call may take, milliseconds. Default {@link Options.timeout}. */
  timeout?: number;
  /**
   * A signal that ends the call. The call then rejects with the signal's reason. If the signal is
   * one of `AbortSignal.timeout`, the call rejects with a `DeadlineExceededError`.
   */
  signal?: AbortSignal;
}

/**
 * Asks one cluster for timestamps. Share one client: calls at the same time share a request. A call
 * joins only a request that has not been sent yet, so its timestamp is allocated after it asked.
 */
export class Client implements AsyncDisposable {
  readonly #session: Session;

  private constructor(session: Session) {
    this.#session = session;
  }

  /**
   * Finds the cluster through the client address (`host:port`) of any member, and returns when the
   * leader is found. An open client keeps the process alive: close it.
   *
   * @throws TypeError or RangeError if an address or an option is not valid.
   * @throws DeadlineExceededError if no leader is found in time.
   * @throws EpicEpochError if no retry helps.
   */
  static async connect(addrs: readonly string[], options: Options = {}): Promise<Client> {
    const wrong = addrs.find((addr) => !splitAddress(addr));
    if (addrs.length === 0 || wrong !== undefined) {
      throw new TypeError(wrong === undefined ? "no address" : `"${wrong}" is not host:port`);
    }
    const session = new Session(addrs, settings(options));
    try {
      await session.opened(options.signal);
    } catch (error) {
      await session.close();
      throw error;
    }
    return new Client(session);
  }

  /**
   * Returns one timestamp. It is above every timestamp that any client of the cluster got before
   * this call began. See {@link Client.timestamps} for errors.
   */
  async timestamp(options?: CallOptions): Promise<Timestamp> {
    return (await this.timestamps(1, options)).first;
  }

  /**
   * Returns timestamps of one epoch with consecutive indexes, 1 to 2^32 of them. If the leader
   * fails, the call takes longer.
   *
   * @throws DeadlineExceededError if none came in time; its `cause` says why.
   * @throws CountError, TooManyCallsError or ClosedError if the call cannot be made.
   * @throws WrongClusterError, WentBackwardsError, ProtocolError or RefusedError if no retry helps.
   */
  async timestamps(count: number, options?: CallOptions): Promise<TimestampRange> {
    if (!Number.isInteger(count) || count < 1 || count > COUNT_MAX) {
      throw new CountError(count, COUNT_MAX);
    }
    return this.#call(count, options);
  }

  /**
   * Returns the latest timestamp, and takes none. Every timestamp that any client of the cluster got
   * before this call began is at or below it. Every timestamp that is asked for after this call has
   * returned is above it.
   *
   * It is no watermark: a writer that has a timestamp at or below it may not have written yet. It is
   * not unique, so it must not be used as an id. See {@link Client.timestamps} for errors.
   */
  async latest(options?: CallOptions): Promise<Timestamp> {
    return (await this.#call(LATEST, options)).first;
  }

  /**
   * Returns one timestamp in 64 bits, `milliseconds << 18 | index`: that of {@link Client.timestamp},
   * and in the same order. It is below 2^63, but above 2^53, so it is a `bigint`. The cluster must
   * give compact timestamps (`TIMESTAMP_FORMAT=compact`).
   *
   * @throws NotCompactError if it gives wide ones. See {@link Client.timestamps} for other errors.
   */
  async compactTimestamp(options?: CallOptions): Promise<bigint> {
    return this.compactTimestamps(1, options);
  }

  /**
   * Returns the first of `count` consecutive timestamps of one millisecond in 64 bits, 1 to 2^18 of
   * them. See {@link Client.compactTimestamp}. A larger count rejects with a `CountError`, or is
   * refused with `BAD_COUNT`.
   */
  async compactTimestamps(count: number, options?: CallOptions): Promise<bigint> {
    return compactOf(await this.timestamps(count, options));
  }

  /** Returns the timestamp of {@link Client.latest} in 64 bits. See {@link Client.compactTimestamp}. */
  async compactLatest(options?: CallOptions): Promise<bigint> {
    return compactOf(new TimestampRange(await this.latest(options), 1));
  }

  async #call(count: number, options: CallOptions | undefined): Promise<TimestampRange> {
    const timeout = options?.timeout ?? this.#session.settings.timeout;
    if (typeof timeout !== "number" || Number.isNaN(timeout)) {
      throw new TypeError(`timeout is ${timeout}; it must be a number of milliseconds`);
    }
    return this.#session.call(count, timeout, options?.signal);
  }

  /**
   * The client addresses of the members, as the client last learned them. While the cluster is
   * reachable, the client learns them again every {@link Options.refreshInterval}.
   */
  get members(): readonly string[] {
    return [...this.#session.directory.members];
  }

  /** The address of the leader, or undefined if it is not known. */
  get leader(): string | undefined {
    return this.#session.leader?.addr;
  }

  /** The id and history of this client's cluster, as the first node named them. */
  get cluster(): Cluster | undefined {
    return this.#session.cluster;
  }

  /** Ends all calls with a `ClosedError`, and closes the connections. */
  close(): Promise<void> {
    return this.#session.close();
  }

  /** For `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function compactOf(range: TimestampRange): bigint {
  const first = range.toCompact();
  if (first === undefined) {
    throw new NotCompactError(range.first);
  }
  return first;
}
