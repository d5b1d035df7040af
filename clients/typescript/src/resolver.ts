/**
 * Looks up the names of nodes. It never decides which address is dialled.
 *
 * A lookup takes as long as a name server that does not answer. It cannot be ended, and it occupies
 * one of the few threads that Node.js also needs for files. So there is at most one lookup of a
 * name at a time, for all clients of the process. It goes on when an attempt to connect gives up,
 * and its answer serves the next attempt.
 */

import dns, { type LookupAddress, type LookupOptions } from "node:dns";
import type { LookupFunction } from "node:net";

/**
 * At most this many names are looked up, or have an answer that is kept, at a time. A cluster has
 * fewer members.
 */
export const LOOKUPS_MAX = 64;
/**
 * How long the answer of a slow lookup is kept, in milliseconds. The JVM also keeps answers for 30
 * s.
 */
const KEPT_MS = 30_000;

type Failure = NodeJS.ErrnoException | null;
type Callback = Parameters<LookupFunction>[2];
/** An attempt that waits for an answer. */
interface Waiter {
  readonly hear: (error: Failure, found: LookupAddress[]) => void;
  /** The time when half of the attempt is over. */
  readonly half: number;
}
/** Looks up a name, as `dns.lookup` does: it never calls back before it returns. */
type Look = (
  host: string,
  options: LookupOptions & { all: true },
  callback: (error: Failure, found: LookupAddress[]) => void,
) => void;

/** A lookup that has begun. */
interface Lookup {
  /** The attempts that wait for the answer. */
  readonly waiters: Set<Waiter>;
  /** The answer and when it came. */
  answer?: { readonly found: LookupAddress[]; readonly at: number };
}

export class Resolver {
  readonly #look: Look;
  readonly #now: () => number;
  readonly #lookups = new Map<string, Lookup>();

  constructor(look: Look, now: () => number) {
    this.#look = look;
    this.#now = now;
  }

  /**
   * Looks up a name for one attempt, which ends after `within` milliseconds. The other arguments
   * are those of the option `lookup` of a socket. Returns a function that the attempt calls when it
   * gives up. An answer stays for the next attempt unless it reaches an attempt that has at least
   * half of its time left: less may be too short to connect.
   */
  lookup(within: number, host: string, options: LookupOptions, callback: Callback): () => void {
    const { family = 0, hints = 0 } = options;
    const name = `${host} ${family} ${hints}`;
    const hear = (error: Failure, found: LookupAddress[]) => {
      const [first] = found;
      if (options.all || !first) {
        callback(error, found);
      } else {
        callback(error, first.address, first.family);
      }
    };
    const kept = this.#take(name);
    if (kept) {
      process.nextTick(hear, null, kept);
      return () => {};
    }
    const lookup = this.#lookups.get(name) ?? this.#begin(name, host, options);
    if (!lookup) {
      const text = `the lookup of ${host} must wait: ${LOOKUPS_MAX} others go on`;
      process.nextTick(hear, new Error(text), []);
      return () => {};
    }
    const waiter: Waiter = { hear, half: this.#now() + within / 2 };
    lookup.waiters.add(waiter);
    return () => lookup.waiters.delete(waiter);
  }

  /** Returns a kept answer. It serves only one attempt, because the address may have changed. */
  #take(name: string): LookupAddress[] | undefined {
    const answer = this.#lookups.get(name)?.answer;
    if (answer) {
      this.#lookups.delete(name);
    }
    return answer && this.#now() - answer.at < KEPT_MS ? answer.found : undefined;
  }

  #begin(name: string, host: string, options: LookupOptions): Lookup | undefined {
    if (this.#lookups.size >= LOOKUPS_MAX) {
      const [kept] = [...this.#lookups].find(([, { answer }]) => answer) ?? [];
      if (kept === undefined) {
        return undefined;
      }
      this.#lookups.delete(kept);
    }
    const lookup: Lookup = { waiters: new Set() };
    // If this throws, because of an option that the program gave for TLS, no lookup has begun.
    this.#look(host, { ...options, all: true }, (error, found) => {
      const at = this.#now();
      const waiters = [...lookup.waiters];
      if (error || waiters.some(({ half }) => at <= half)) {
        this.#lookups.delete(name);
      } else {
        lookup.answer = { found, at };
      }
      lookup.waiters.clear();
      waiters.forEach(({ hear }) => hear(error, error ? [] : found));
    });
    this.#lookups.set(name, lookup);
    return lookup;
  }
}

/** The lookups of all clients of the process. */
export const resolver = new Resolver(
  (host, options, callback) => dns.lookup(host, options, callback),
  () => performance.now(),
);
