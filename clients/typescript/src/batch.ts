/**
 * Calls that wait, and the requests that they share. Calls join a batch until it is sent, so every
 * timestamp of its answer is allocated after all of its callers asked. This module does no IO.
 */

import { ProtocolError, WentBackwardsError } from "./errors.js";
import type { Answer, Request } from "./frame.js";
import { Timestamp, TimestampRange } from "./timestamp.js";

/** The count of a call for the latest timestamp, which takes none. */
export const LATEST = 0;

/** One call of one caller. */
export class Call {
  readonly count: number;
  /** The time at which the call ends without an answer, by `performance.now`. */
  readonly deadline: number;
  /** The batch that the call waits in. */
  batch: Batch | undefined;
  /** The last failure after which this call was tried again. */
  last: Error | undefined;
  readonly promise: Promise<TimestampRange>;
  #resolve!: (range: TimestampRange) => void;
  #reject!: (error: unknown) => void;
  #isSettled = false;
  #whenSettled: () => void;

  /** Makes a call. The function `whenSettled` is called once, when the call has its result. */
  constructor(count: number, deadline: number, whenSettled: () => void) {
    this.count = count;
    this.deadline = deadline;
    this.#whenSettled = whenSettled;
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  get isSettled(): boolean {
    return this.#isSettled;
  }

  succeed(range: TimestampRange): void {
    if (this.#settle()) {
      this.#resolve(range);
    }
  }

  fail(error: unknown): void {
    if (this.#settle()) {
      this.#reject(error);
    }
  }

  #settle(): boolean {
    if (this.#isSettled) {
      return false;
    }
    this.#isSettled = true;
    this.#whenSettled();
    return true;
  }
}

/** A request that callers share. */
export class Batch {
  /** Sum of the callers' counts; 0 if all ask for the latest timestamp. */
  count = 0;
  /** Whether the request that was sent asks for the latest timestamp. */
  isLatest = false;
  /** The request's id; 0 until it is sent. */
  id = 0n;
  sent = 0;
  /** The highest timestamp that the client had returned when it sent the request. */
  floor: Timestamp | undefined;
  readonly calls = new Set<Call>();

  add(call: Call): void {
    call.batch = this;
    this.calls.add(call);
    this.count += call.count;
  }

  /**
   * Removes a call that has ended. If the request was already sent, the call stays, and its
   * timestamps are lost.
   */
  remove(call: Call): void {
    if (this.id === 0n && this.calls.delete(call)) {
      this.count -= call.count;
    }
  }

  /**
   * Gives each caller its part of the answer. A caller whose deadline has passed gets an error
   * instead.
   */
  succeed(answer: TimestampRange, now: number, expired: (call: Call) => Error): void {
    let { index } = answer.first;
    for (const call of this.calls) {
      if (call.deadline <= now) {
        call.fail(expired(call));
      } else {
        // A caller that asks for the latest timestamp takes none, and gets the last one of its
        // request: no timestamp from before is above that one, and later ones are.
        const isLatest = call.count === LATEST;
        const first = isLatest ? answer.last : new Timestamp(answer.first.epoch, index);
        call.succeed(new TimestampRange(first, isLatest ? 1 : call.count));
      }
      index += BigInt(call.count);
    }
  }

  fail(error: unknown): void {
    for (const call of this.calls) {
      call.fail(error);
    }
  }

  /** The number of callers that still wait. */
  get waiting(): number {
    let waiting = 0;
    for (const call of this.calls) {
      waiting += call.isSettled ? 0 : 1;
    }
    return waiting;
  }
}

/**
 * Returns the request for callers that take so many timestamps. A node that is too old to say which
 * timestamp is the latest is asked for one timestamp, which no caller gets as its own. It is valid
 * as the latest one: it is above all that was answered before the request, and below all that is
 * asked for later.
 */
export function requestOf(id: bigint, count: number, hasLatest: boolean): Request {
  return { id, count: Math.max(count, 1), isLatest: count === LATEST && hasLatest };
}

/** What is needed to check the answer to a request that was sent over one connection. */
export interface Asked {
  /** How many timestamps the callers take together; 0 if all ask for the latest one. */
  readonly count: number;
  /** Whether the frame asks for the latest timestamp. */
  readonly isLatest: boolean;
  readonly floor: Timestamp | undefined;
}

/** Throws if the answer does not fit the request. */
export function checkAnswer(asked: Asked, addr: string, { range: answer, isLatest }: Answer): void {
  const expected = Math.max(asked.count, 1);
  if (answer.count !== expected) {
    throw new ProtocolError(`${answer.count} timestamps, not ${expected}`);
  }
  if (isLatest && !asked.isLatest) {
    throw new ProtocolError("the latest timestamp instead of one for this client alone");
  }
  if (!isLatest && asked.isLatest) {
    throw new ProtocolError("a timestamp for this client alone instead of the latest one");
  }
  const lowest = asked.isLatest ? 0 : 1;
  if (asked.floor && answer.first.compare(asked.floor) < lowest) {
    const text = `${addr} gave ${answer.first}, and ${asked.floor} was returned before`;
    throw new WentBackwardsError(text);
  }
}
