/**
 * Decides which node the client asks next, and after what pause. It does no IO and reads no clock.
 */

import type { Member } from "./frame.js";

const BACKOFF_MIN_MS = 1;
/** The longest pause between attempts while callers wait. */
export const BACKOFF_MAX_MS = 50;
/** The longest pause between attempts while no caller waits. A new call ends the pause. */
const IDLE_MAX_MS = 5_000;
const DOUBLINGS_MAX = 13;
/**
 * How long the client ignores hints to a failed node. It is longer than an election takes. If the
 * failed node itself says that it leads, the client believes it.
 */
const SUSPICION_MS = 1_000;
const SUSPECTS_MAX = 128;

export class Directory {
  /** Client addresses of the members, as the client last learned them. */
  members: string[] = [];
  /** The address at which the leader probably is. */
  leader: string | undefined;
  /** The number of failures since the last answer. */
  failedAttempts = 0;
  readonly #seeds: readonly string[];
  /**
   * Nodes that failed a short time ago. Hints to them are not followed, because other nodes may not
   * have noticed the failure.
   */
  readonly #suspects = new Map<string, number>();
  #turn = 0;

  constructor(seeds: readonly string[]) {
    this.#seeds = [...seeds];
  }

  /**
   * Returns the leader if it is known. Otherwise returns one address after another, the members
   * first.
   */
  next(): string {
    return this.leader ?? this.#inTurn();
  }

  /**
   * Returns the next address that differs from the given one, or the given one if no other is
   * known.
   */
  other(than: string): string {
    const addr = this.#inTurn();
    return addr === than ? this.#inTurn() : addr;
  }

  #inTurn(): string {
    const all = [...new Set([...this.members, ...this.#seeds])];
    return all[this.#turn++ % all.length] as string;
  }

  /** Applies a node's report of the members. */
  learn(members: readonly Member[]): void {
    if (members.length > 0) {
      this.members = members.map((member) => member.addr);
    }
  }

  /**
   * Takes the named node for the leader, unless it has failed a short time ago. Returns whether it
   * took it.
   */
  follow(addr: string, now: number): boolean {
    if (this.isSuspect(addr, now)) {
      return false;
    }
    this.leader = addr;
    return true;
  }

  isSuspect(addr: string, now: number): boolean {
    const failed = this.#suspects.get(addr);
    return failed !== undefined && now - failed < SUSPICION_MS;
  }

  /** Records a failed node. */
  fail(addr: string, now: number): void {
    if (this.leader === addr) {
      this.leader = undefined;
    }
    if (this.#suspects.size >= SUSPECTS_MAX) {
      this.#suspects.clear();
    }
    this.#suspects.set(addr, now);
  }

  /** Records a node that says that it leads. Only an answer resets `failedAttempts`. */
  succeed(addr: string): void {
    this.leader = addr;
    this.#suspects.delete(addr);
  }

  /** Records a failed attempt, and returns the pauses of {@link backoff}. */
  backoff(): Backoff {
    return backoff(this.failedAttempts++);
  }
}

/**
 * Two pauses before the next attempt, in milliseconds: one while callers wait, and one while none
 * waits.
 */
export interface Backoff {
  readonly pause: number;
  readonly idle: number;
}

/** Returns pauses that double with each earlier failure, each up to its own limit. */
export function backoff(failures: number): Backoff {
  const grown = BACKOFF_MIN_MS * 2 ** Math.min(failures, DOUBLINGS_MAX);
  return {
    pause: jitter(Math.min(grown, BACKOFF_MAX_MS)),
    idle: jitter(Math.min(grown, IDLE_MAX_MS)),
  };
}

/**
 * Returns a random time between half of `most` and all of it. So clients that lost the same leader
 * do not come back at the same moment.
 */
export function jitter(most: number): number {
  return most * (1 - Math.random() / 2);
}
