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

  /** Looks up a name for an attempt, which stops waiting when `giveUp` is called. */
  attempt(host = NAME, all = true) {
    const got: unknown[][] = [];
    const giveUp = this.#resolver.lookup(host, { all }, (...answer) => got.push(answer));
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
  t.mock.method(dns, "lookup", (_host: string, _options: unknown, answer: Answer) => {
    answers.push(answer);
  });
  let failures = 0;
  const opening = Client.connect([`${NAME}:${node.addr.split(":")[1]}`], {
    attemptTimeout: 50,
    timeout: 30_000,
    observer: { failedAttempt: () => failures++ },
  });
  await until(() => failures >= 3);
  assert.equal(answers.length, 1);
  answers[0]?.(null, [HERE]);
  const client = await opening;
  t.after(() => client.close());
  await client.timestamp();
  assert.equal(answers.length, 1);
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

for (const [took, age, lookups, what] of [
  [10, 29_999, 1, "a slow answer is kept for one attempt"],
  [10, 30_000, 2, "an old answer is not kept"],
  [9, 0, 2, "a quick answer is not kept"],
] as const) {
  test(what, async () => {
    const names = new Scripted();
    names.attempt().giveUp();
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
