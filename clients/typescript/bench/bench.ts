/**
 * Measures what the client costs: the latency of one caller, and the rate of a thousand callers.
 * For comparison it also measures a bare echo on loopback and, if a Redis server and its client are
 * there, INCR of Redis.
 *
 *     npm run bench -- [SECONDS]
 *
 * EPICEPOCH_BIN names the binary; use a release build. REDIS_URL names a Redis server. `npm install
 * --no-save redis` installs the client of Redis.
 */

import { spawn } from "node:child_process";
import { connect, createServer } from "node:net";

import { Client } from "../src/index.js";
import { start } from "../test/cluster.js";

const CALLERS = 1_000;

/** Starts callers, which call again and again for `ms` milliseconds. Prints the cost of a call. */
async function measure(name: string, callers: number, ms: number, call: () => Promise<unknown>) {
  const took: number[] = [];
  let calls = 0;
  const run = async (until: number, isKept: boolean) => {
    for (let begin = performance.now(); begin < until; ) {
      await call();
      const end = performance.now();
      if (isKept) {
        calls++;
        if (callers === 1) {
          took.push(end - begin);
        }
      }
      begin = end;
    }
  };
  const all = (until: number, isKept: boolean) =>
    Promise.all(Array.from({ length: callers }, () => run(until, isKept)));
  await all(performance.now() + ms / 4, false);
  const begin = performance.now();
  await all(begin + ms, true);
  const seconds = (performance.now() - begin) / 1000;
  took.sort((one, other) => one - other);
  const at = (share: number) => ((took[Math.floor(took.length * share)] ?? 0) * 1000).toFixed(1);
  const latency = callers === 1 ? `  p50 ${at(0.5)} us, p99 ${at(0.99)} us` : "";
  const rate = Math.round(calls / seconds).toLocaleString("en");
  console.log(`${name.padEnd(28)} ${rate.padStart(10)} /s${latency}`);
}

/** Measures an echo: sends 16 bytes to another process, which sends them back. */
async function echo(ms: number): Promise<void> {
  const server = spawn(process.execPath, [process.argv[1] as string, "--echo"]);
  const port = await new Promise<number>((resolve) => {
    server.stdout.once("data", (text: Buffer) => resolve(Number(text)));
  });
  const socket = connect({ port, host: "127.0.0.1", noDelay: true });
  let wake = (): void => {};
  socket.on("data", () => wake());
  const request = Buffer.alloc(16, 1);
  const call = () =>
    new Promise<void>((resolve) => {
      wake = resolve;
      socket.write(request);
    });
  await measure("echo, one caller", 1, ms, call);
  socket.destroy();
  server.kill();
}

async function oracle(ms: number): Promise<void> {
  const cluster = await start(3);
  const client = await Client.connect(cluster.addrs, { timeout: 30_000 });
  await measure("epicepoch, one caller", 1, ms, () => client.timestamp());
  await measure("epicepoch, 1,000 callers", CALLERS, ms, () => client.timestamp());
  await client.close();
  cluster.stop();
}

interface Redis {
  connect(): Promise<unknown>;
  incr(key: string): Promise<unknown>;
  close?(): Promise<unknown>;
}

async function redis(ms: number, url: string): Promise<void> {
  const name: string = "redis";
  const library = (await import(name)) as { createClient(options: { url: string }): Redis };
  const client = library.createClient({ url });
  await client.connect();
  await measure("redis INCR, one caller", 1, ms, () => client.incr("epicepoch-bench"));
  await measure("redis INCR, 1,000 callers", CALLERS, ms, () => client.incr("epicepoch-bench"));
  await client.close?.();
}

if (process.argv[2] === "--echo") {
  const server = createServer({ noDelay: true }, (socket) => {
    socket.on("error", () => {}).pipe(socket);
  });
  server.listen(0, "127.0.0.1", () => console.log((server.address() as { port: number }).port));
} else {
  const ms = Number(process.argv[2] ?? 3) * 1000;
  await echo(ms);
  await oracle(ms);
  if (process.env.REDIS_URL) {
    await redis(ms, process.env.REDIS_URL);
  }
}
