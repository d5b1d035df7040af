/** Tests of lookups of names. A test decides when a name server answers. */

import assert from "node:assert/strict";
import dns, { type LookupAddress } from "node:dns";
import { test } from "node:test";

import { Client } from "../src/index.js";
import { LOOKUPS_MAX, Resolver } from "../src/resolver.js";
import { Node, until } from "./node.js";

const HERE = { address: "127.0.0.1", family: 4 };
const NAME = "node.example";

type Answer = (error: NodeJS.ErrnoException | null, found: LookupAddress[]) => void;

/** A resolver with its own clock, whose name server answers when a test says so. */
class Scripted {
  now = 0;
  readonly asked: { host: string; answer: Answer }[] = [];
  readonly #resolver = new Resolver(
    (host, _, answer) => this.asked.push({ host, answer }),
    () => this.now,
  );

  /** Looks up a name for an attempt of 20 ms, which stops waiting when `giveUp` is called. */
  attempt(host = NAME, all = true) {
    const got: unknown[][] = [];
    const giveUp = this.#resolver.lookup(20, host, { all }, (...answer) => got.push(answer));
    return { got, giveUp };
  }

  /** Answers the last lookup after some milliseconds. */
  answer(after: number, error: Error | null = null): void {
    this.now += after;
    this.asked.at(-1)?.answer(error, [HERE]);
  }
}

test("a lookup that takes longer than an attempt serves a later one", async (t) => {
  const node = await Node.start(t);
  const answers: Answer[] = [];
  let isQuick = false;
  t.mock.method(dns, "lookup", (_host: string, _options: unknown, answer: Answer) => {
    if (isQuick) {
      process.nextTick(answer, null, [HERE]);
    } else {
      answers.push(answer);
    }
  });
  const failures: Error[] = [];
  const addr = `${NAME}:${node.addr.split(":")[1]}`;
  const opening = Client.connect([addr], {
    attemptTimeout: 50,
    timeout: 30_000,
    observer: { failedAttempt: (error) => failures.push(error) },
  });
  await until(() => failures.length >= 3);
  assert.equal(answers.length, 1);
  assert.match(String(failures[0]), new RegExp(`${addr}.*the lookup of ${NAME} took too long`));
  isQuick = true;
  answers[0]?.(null, [HERE]);
  const client = await opening;
  t.after(() => client.close());
});

test("a literal address needs no lookup", async (t) => {
  const lookup = t.mock.method(dns, "lookup");
  const failures: Error[] = [];
  const opening = Client.connect(["[::1]:1", "127.0.0.1:1"], {
    timeout: 30_000,
    observer: { failedAttempt: (error) => failures.push(error) },
    signal: t.signal,
  });
  opening.catch(() => {});
  await until(() => failures.length >= 2);
  assert.equal(lookup.mock.callCount(), 0);
});

test("attempts at the same time share a lookup, and one that gives up hears nothing", () => {
  const names = new Scripted();
  const [one, other, left] = [names.attempt(), names.attempt(NAME, false), names.attempt()];
  left.giveUp();
  names.answer(1);
  assert.deepEqual(one.got, [[null, [HERE]]]);
  assert.deepEqual(other.got, [[null, HERE.address, HERE.family]]);
  assert.deepEqual([left.got, names.asked.length], [[], 1]);
});

for (const [took, gives, age, lookups, what] of [
  [1, true, 29_999, 1, "an answer for which no attempt waits is kept for one attempt"],
  [11, false, 0, 1, "an answer that comes late in an attempt is kept for one attempt"],
  [11, false, 30_000, 2, "an old answer is not kept"],
  [10, false, 0, 2, "an answer that comes early in an attempt is not kept"],
] as const) {
  test(what, async () => {
    const names = new Scripted();
    const first = names.attempt();
    if (gives) {
      first.giveUp();
    }
    names.answer(took);
    names.now += age;
    const { got } = names.attempt();
    assert.equal(names.asked.length, lookups);
    if (lookups === 1) {
      await until(() => got.length > 0);
      assert.deepEqual(got, [[null, [HERE]]]);
      names.attempt();
      assert.equal(names.asked.length, 2);
    }
  });
}

test("a failed lookup is not kept", () => {
  const names = new Scripted();
  const error = new Error("unknown");
  const { got } = names.attempt();
  names.answer(1_000, error);
  assert.deepEqual(got, [[error, []]]);
  names.attempt();
  assert.equal(names.asked.length, 2);
});

test("the number of lookups is limited", async () => {
  const names = new Scripted();
  for (let at = 0; at < LOOKUPS_MAX; at++) {
    names.attempt(`${at}.example`);
  }
  const { got } = names.attempt();
  await until(() => got.length > 0);
  assert.ok(got[0]?.[0] instanceof Error);
  assert.equal(names.asked.length, LOOKUPS_MAX);
  // A kept answer makes place.
  names.answer(1_000);
  names.attempt();
  assert.equal(names.asked.at(-1)?.host, NAME);
});
