/**
 * Finds the calls that a signal cancels. Each signal has one listener, although many calls may
 * share the signal, because each further listener of a signal costs more than the one before.
 */

import type { Call } from "./batch.js";

export class Signals {
  readonly #entries = new Map<AbortSignal, { calls: Map<Call, () => unknown>; end: () => void }>();

  /** Ends the call with a reason when the signal is aborted. */
  add(signal: AbortSignal, call: Call, reason: () => unknown): void {
    let entry = this.#entries.get(signal);
    if (!entry) {
      const calls = new Map<Call, () => unknown>();
      const end = () => [...calls].forEach(([one, why]) => one.fail(why()));
      entry = { calls, end };
      this.#entries.set(signal, entry);
      signal.addEventListener("abort", end);
    }
    entry.calls.set(call, reason);
  }

  /** Forgets a call that has ended. */
  remove(signal: AbortSignal, call: Call): void {
    const entry = this.#entries.get(signal);
    if (entry?.calls.delete(call) && entry.calls.size === 0) {
      signal.removeEventListener("abort", entry.end);
      this.#entries.delete(signal);
    }
  }
}
