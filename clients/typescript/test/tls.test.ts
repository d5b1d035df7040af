/** Tests of TLS and tokens with a real node. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { test, type TestContext } from "node:test";

import { Client, ProtocolError, RefusedError, type Options } from "../src/index.js";
import { binary, directory, start } from "./cluster.js";

/** Makes an authority, and certificates for a node and a client, in a new directory. */
function certificates(): string {
  const dir = directory();
  const certs = (...args: string[]) =>
    execFileSync(binary(), ["certs", args[0] as string, "--dir", dir, ...args.slice(1)]);
  certs("ca");
  certs("node", "1=127.0.0.1");
  certs("client", "app");
  return dir;
}

const file = (dir: string, name: string) => readFileSync(join(dir, name));
const ca = (dir: string) => ({ ca: file(dir, "ca.pem") });
const pair = (dir: string) => ({
  cert: file(dir, "client-app.pem"),
  key: file(dir, "client-app.key"),
});

test("a secured node serves its own clients alone", async (t) => {
  const [dir, foreign] = [certificates(), certificates()];
  const at = (name: string) => join(dir, name);
  const files = ["--cert-file", at("node-1.pem"), "--key-file", at("node-1.key")];
  files.push("--client-ca-file", at("ca.pem"));
  const node = await start(1, ["--client-tls", "on", ...files]);
  t.after(node.stop);
  const connect = (options: Options) => Client.connect(node.addrs, { timeout: 20_000, ...options });
  let calls = 0;
  const source = () => {
    calls++;
    return { ...ca(dir), ...pair(dir) };
  };
  const client = await connect({ tls: source, hedgeAfter: 10 });
  t.after(() => client.close());
  let last = await client.timestamp();
  for (let round = 0; round < 100; round++) {
    const next = await client.timestamp();
    assert.ok(last < next);
    last = next;
  }
  assert.ok(calls >= 1);
  const refused: [why: RegExp, tls: Options["tls"]][] = [
    [/this port speaks TLS.*set tls/, undefined],
    [/certificate required/, ca(dir)],
    [/decrypt/, { ...ca(dir), ...pair(foreign) }],
    [/certificate/, { ...ca(foreign), ...pair(dir) }],
    [/elsewhere\.example/, { ...ca(dir), ...pair(dir), servername: "elsewhere.example" }],
    [/PEM|pem/, { ...ca(dir), cert: "none", key: "none" }],
  ];
  for (const [why, tls] of refused) {
    await assert.rejects(connect({ ...(tls && { tls }), timeout: 1_000 }), why);
  }
  // The node still answers.
  assert.ok(last < (await client.timestamp()));
});

test("a node with a token file serves clients with a token", async (t) => {
  const dir = directory();
  const token = "0123456789abcdef0123456789abcdef";
  writeFileSync(join(dir, "tokens"), `${token}\n`, { mode: 0o600 });
  const node = await start(1, ["--client-token-file", join(dir, "tokens")]);
  t.after(node.stop);
  const client = await Client.connect(node.addrs, { token, timeout: 20_000 });
  t.after(() => client.close());
  await client.timestamp();
  const tokenSource = () => token.replace("0", "1");
  await assert.rejects(Client.connect(node.addrs, { tokenSource }), (error: Error) => {
    return error instanceof RefusedError && error.code === "UNAUTHORIZED";
  });
  await assert.rejects(Client.connect(node.addrs), /UNAUTHORIZED: missing token: set token/);
});

/** Starts a server that answers the first bytes with these, and returns its address. */
async function answering(t: TestContext, text: string): Promise<string> {
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () => socket.end(text, "latin1"));
  });
  t.after(() => server.close());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("a port that speaks TLS is called that", async (t) => {
  // A TLS server, such as a proxy in front of the node, answers plain text with an alert.
  const addr = await answering(t, "\x15\x03\x01\x00\x02\x02\x46");
  await assert.rejects(Client.connect([addr]), (error: Error) => {
    assert.match(error.message, /this port speaks TLS; this client speaks plain text: set tls/);
    return error instanceof ProtocolError;
  });
});

test("a port that does not speak TLS is called that", async (t) => {
  // A node without TLS answers the beginning of a TLS handshake like this.
  const addr = await answering(t, "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
  const connecting = Client.connect([addr], { tls: {}, timeout: 500 });
  await assert.rejects(connecting, /this port does not speak TLS: leave tls out/);
});
