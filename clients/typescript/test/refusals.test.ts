/** Tests of refusals and when they are retried, of pauses, and of the limits of nodes. */

import assert from "node:assert/strict";
import { createServer, type Socket } from "node:net";
import { test } from "node:test";

import {
  Client,
  CountError,
  DeadlineExceededError,
  ProtocolError,
  UnreachableError,
} from "../src/index.js";
import { encodeHead, Kind } from "../src/frame.js";
import { settings } from "../src/options.js";
import { Session } from "../src/session.js";
import { connect, encodeWelcome, frame, Hand, Node, Oracle, pause, until } from "./node.js";

test("refusals that no retry heals reach the caller at once, and the others do not", async (t) => {
  for (const code of [7, 13, 18, 65, 66, 64]) {
    const leader = await Node.start(t);
    leader.ask = (to, id) => to.refuse(id, code, "advice");
    const client = await connect(t, leader);
    const refused = { number: code, text: "advice", addr: leader.addr };
    await assert.rejects(client.timestamp(), refused);
    assert.equal(leader.asked, 1);
  }
  for (const code of [2, 3, 4, 10, 11, 12, 9999]) {
    const [leader, oracle] = [await Node.start(t), new Oracle()];
    leader.ask = (to, id, count) => {
      if (leader.asked === 1) {
        to.refuse(id, code);
      } else {
        oracle.serve(to, id, count);
      }
    };
    await (await connect(t, leader)).timestamp();
    assert.equal(leader.asked, 2, `${code}`);
    assert.equal(leader.met, code === 4 ? 1 : 2, `${code}`);
  }
});

test("a connection whose token is revoked is lost, and its calls are not", async (t) => {
  const [leader, follower] = [await Node.start(t, 1n), await Node.start(t, 2n)];
  const oracle = new Oracle();
  leader.ask = (to, id, count) => {
    if (leader.asked % 2 === 1) {
      to.say({ kind: Kind.error, flags: 1, code: 18 }, "revoked");
    } else {
      oracle.serve(to, id, count);
    }
  };
  const tokens = ["old", "new", "wrong"];
  const failed: Error[] = [];
  const client = await connect(t, [leader, follower], {
    tokenSource: () => tokens.shift() ?? "",
    observer: { failedAttempt: (error) => failed.push(error) },
  });
  await client.timestamp();
  // The leader has not failed, so no other node is asked.
  assert.deepEqual([tokens, leader.met, follower.met], [["wrong"], 2, 0]);
  assert.ok(failed[0] instanceof UnreachableError);
  assert.match(failed[0].message, /UNAUTHORIZED: revoked/);
  // If the next token is not valid, either, the call fails at once.
  leader.onHello = () => {
    [...leader.peers].at(-1)?.say({ kind: Kind.error, flags: 1, code: 18 }, "no such token");
    return undefined;
  };
  await assert.rejects(client.timestamp(), { code: "UNAUTHORIZED", text: "no such token" });
});

test("a refusal or an answer to nothing breaks the protocol", async (t) => {
  for (const code of [0, 2, 4, 66]) {
    const [leader, oracle] = [await Node.start(t), new Oracle()];
    leader.ask = (to, id, count) =>
      code === 0 ? oracle.serve(to, id + 1n, count) : to.refuse(id + 1n, code);
    await assert.rejects((await connect(t, leader)).timestamp(), ProtocolError);
  }
});

test("answers of another count, and with reserved bits, break the protocol", async (t) => {
  for (const head of [{ argument: 1 }, { argument: 2, flags: 1 }]) {
    const leader = await Node.start(t);
    leader.ask = (to, id) => to.say({ kind: Kind.answer, id, ...head }, Buffer.alloc(16, 1));
    await assert.rejects((await connect(t, leader)).timestamps(3), ProtocolError);
  }
});

test("a leader that names no cluster is not asked", async (t) => {
  const leader = await Node.start(t);
  for (const isLater of [false, true]) {
    const client = await connect(t, leader);
    await client.timestamp();
    const { cluster: _, leader: named, ...homeless } = leader.welcome(leader);
    leader.onHello = () => (isLater || !named ? homeless : { ...homeless, leader: named });
    leader.behind = () =>
      isLater ? frame({ kind: Kind.leader, id: leader.id }, leader.addr) : Buffer.alloc(0);
    const { asked } = leader;
    leader.hangUp();
    await until(() => client.leader === undefined);
    await assert.rejects(client.timestamp({ timeout: 300 }), /NOT_READY/);
    assert.equal(leader.asked, asked);
    leader.onHello = () => leader.welcome(leader);
    leader.behind = () => Buffer.alloc(0);
    await client.timestamp();
  }
});

test("an overloaded leader has a pause from all callers", async (t) => {
  const [leader, hand] = [await Node.start(t), new Hand()];
  leader.ask = hand.ask;
  const client = await connect(t, leader, { inFlight: 1 });
  const calls = [client.timestamp()];
  const first = await hand.take();
  calls.push(client.timestamp());
  const begin = performance.now();
  first.to.refuse(first.id, 4);
  const second = await hand.take();
  // The pause is random, between 25 ms and 50 ms.
  assert.ok(performance.now() - begin >= 25, `${performance.now() - begin}`);
  assert.equal(second.count, 2);
  second.answer(1n);
  await Promise.all(calls);
  assert.equal(leader.met, 1);
});

test("nodes that refuse everything, or name each other, are asked with pauses", async (t) => {
  const [one, two] = [await Node.start(t, 1n), await Node.start(t, 2n)];
  one.ask = (to, id) => to.refuse(id, 1, two.addr);
  two.ask = (to, id) => to.refuse(id, 1, one.addr);
  const client = await connect(t, [one, two]);
  await assert.rejects(client.timestamp({ timeout: 500 }), DeadlineExceededError);
  assert.ok(one.met + two.met < 80, `${one.met + two.met} connections in half a second`);
  one.ask = (to, id) => to.refuse(id, 12);
  const { met } = one;
  const other = await connect(t, one);
  await assert.rejects(other.timestamp({ timeout: 500 }), /INTERNAL/);
  assert.ok(one.met - met < 60, `${one.met - met} connections in half a second`);
});

test("an idle client seldom looks for a leader, and a call ends its pause", async (t) => {
  const leader = await Node.start(t);
  const session = new Session([leader.addr], settings({ timeout: 30_000 }));
  t.after(() => session.close());
  await session.opened(undefined);
  // Pretend that 100 attempts have failed in a row. The pause without callers then has its longest
  // value.
  session.directory.failedAttempts = 100;
  const { met } = leader;
  leader.onHello = () => {
    setImmediate(() => leader.hangUp());
    return undefined;
  };
  leader.hangUp();
  await until(() => leader.met > met);
  await pause(1_000);
  assert.ok(leader.met - met <= 2, `${leader.met - met} connections in a second`);
  leader.onHello = () => leader.welcome(leader);
  const begin = performance.now();
  await session.call(1, 30_000, undefined);
  // A pause without callers takes at least 2.5 s. The new call must end it.
  assert.ok(performance.now() - begin < 1_250, `${performance.now() - begin}`);
});

test("the limits of a welcome are kept", async (t) => {
  const [leader, oracle] = [await Node.start(t), new Oracle()];
  let [most, under, deepest] = [0, 0, 0];
  leader.onHello = () => ({ ...leader.welcome(leader), countMax: 10n, inFlightMax: 2 });
  leader.ask = (to, id, count) => {
    most = Math.max(most, count);
    deepest = Math.max(deepest, ++under);
    setTimeout(() => {
      under--;
      oracle.serve(to, id, count);
    }, 5);
  };
  const client = await connect(t, leader, { inFlight: 8 });
  await Promise.all(Array.from({ length: 12 }, () => client.timestamps(4)));
  assert.deepEqual([most, deepest], [8, 2]);
  await assert.rejects(client.timestamps(11), CountError);
});

test("callers who met without a leader part if the next one gives less", async (t) => {
  const [leader, oracle] = [await Node.start(t), new Oracle()];
  let [most, isUp] = [0, true];
  let countMax = 1000n;
  leader.ask = (to, id, count) => {
    most = Math.max(most, count);
    oracle.serve(to, id, count);
  };
  leader.onHello = () => (isUp ? { ...leader.welcome(leader), countMax } : undefined);
  const client = await connect(t, leader, { attemptTimeout: 50 });
  [isUp, countMax] = [false, 10n];
  leader.hangUp();
  await until(() => client.leader === undefined);
  const calls = Array.from({ length: 5 }, () => client.timestamps(4));
  const tooMany = assert.rejects(client.timestamps(11), CountError);
  isUp = true;
  await Promise.all(calls);
  await tooMany;
  assert.equal(most, 8);
});

test("a node that pings and does not read is left, and keeps no caller", async (t) => {
  const sockets: Socket[] = [];
  const id = 1n;
  const server = createServer((socket) => {
    const addr = `127.0.0.1:${(server.address() as { port: number }).port}`;
    const limits = { features: 0n, inFlightMax: 4, idleMs: 0, countMax: 10n };
    const cluster = { id: "02".repeat(16), history: 1n };
    const leader = { node: id, addr };
    const pings = Buffer.concat(Array(4096).fill(encodeHead({ kind: Kind.ping, id })));
    sockets.push(socket.on("error", () => {}).pause());
    socket.write(
      encodeWelcome({ ...limits, clusterName: "", cluster, node: id, leader, members: [leader] }),
    );
    const flood = () => {
      while (!socket.destroyed && socket.write(pings)) {}
    };
    socket.on("drain", flood);
    flood();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const client = await Client.connect([`127.0.0.1:${port}`], { attemptTimeout: 200 });
  t.after(async () => {
    await client.close();
    sockets.forEach((socket) => socket.destroy());
    server.close();
  });
  const begin = performance.now();
  await assert.rejects(client.timestamp({ timeout: 100 }), DeadlineExceededError);
  assert.ok(performance.now() - begin < 5_000);
  await until(() => sockets.length >= 2);
});
