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
 * An answer that took this long, in milliseconds, is kept for the next attempt. No `attemptTimeout`
 * is shorter, so every lookup that may be too slow for one attempt serves the next one.
 */
const SLOW_MS = 10;
/** How long such an answer is kept, in milliseconds. The JVM also keeps answers for 30 s. */
const KEPT_MS = 30_000;

type Failure = NodeJS.ErrnoException | null;
type Callback = Parameters<LookupFunction>[2];
type Waiter = (error: Failure, found: LookupAddress[]) => void;
/** Looks up a name, as `dns.lookup` does: it never calls back before it returns. */
type Look = (
  host: string,
  options: LookupOptions & { all: true },
  callback: (error: Failure, found: LookupAddress[]) => void,
) => void;

/** A lookup that has begun. */
interface Lookup {
  readonly began: number;
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
   * Looks up a name for one attempt. The arguments are those of the option `lookup` of a socket.
   * Returns a function that the attempt calls when it gives up.
   */
  lookup(host: string, options: LookupOptions, callback: Callback): () => void {
    const { family = 0, hints = 0 } = options;
    const name = `${host} ${family} ${hints}`;
    const waiter: Waiter = (error, found) => {
      const [first] = found;
      if (options.all || !first) {
        callback(error, found);
      } else {
        callback(error, first.address, first.family);
      }
    };
    const kept = this.#take(name);
    if (kept) {
      process.nextTick(waiter, null, kept);
      return () => {};
    }
    const lookup = this.#lookups.get(name) ?? this.#begin(name, host, options);
    if (!lookup) {
      const text = `the lookup of ${host} must wait: ${LOOKUPS_MAX} others go on`;
      process.nextTick(waiter, new Error(text), []);
      return () => {};
    }
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
    const lookup: Lookup = { began: this.#now(), waiters: new Set() };
    // If this throws, because of an option that the program gave for TLS, no lookup has begun.
    this.#look(host, { ...options, all: true }, (error, found) => {
      const at = this.#now();
      if (error || at - lookup.began < SLOW_MS) {
        this.#lookups.delete(name);
      } else {
        lookup.answer = { found, at };
      }
      const waiters = [...lookup.waiters];
      lookup.waiters.clear();
      waiters.forEach((waiter) => waiter(error, error ? [] : found));
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
