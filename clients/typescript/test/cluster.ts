/** Real nodes on loopback, for tests and benchmarks. */

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const repository = fileURLToPath(new URL("../../../..", import.meta.url));

/** Returns the path in EPICEPOCH_BIN. Without this variable, builds the binary of this tree. */
export function binary(): string {
  const given = process.env.EPICEPOCH_BIN;
  if (given) {
    return resolve(given);
  }
  const build = ["build", "--quiet", "--locked", "--package", "epicepoch"];
  execFileSync("cargo", build, { cwd: repository, stdio: "inherit" });
  return join(repository, "target/debug/epicepoch");
}

/** Makes a directory for a node; it is removed when the process ends. */
export function directory(): string {
  const path = mkdtempSync(join(tmpdir(), "epicepoch-node-"));
  process.on("exit", () => rmSync(path, { recursive: true, force: true }));
  return path;
}

const given = new Set<number>();

/**
 * Returns a port at which nothing listens. It is below the ports that the system gives to outgoing
 * connections. Otherwise some connection could take the port before the node listens there.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
    });
    if (isFree && !given.has(port)) {
      given.add(port);
      return port;
    }
  }
}

/**
 * Starts nodes, and returns their addresses. Every node gets the arguments in `own` besides its own
 * id, ports and directory.
 */
export async function start(
  nodes: number,
  own: readonly string[] = [],
): Promise<{ addrs: string[]; stop: () => void }> {
  const bin = binary();
  const numbers = Array.from({ length: nodes }, (_, at) => at + 1);
  const http = await Promise.all(numbers.map(freePort));
  const raft = (await Promise.all(numbers.map(freePort))).map((port) => `127.0.0.1:${port}`);
  const peers = raft.map((addr, at) => `${at + 1}=${addr}`).join(",");
  const processes: ChildProcess[] = numbers.map((number, at) => {
    const args = ["serve", "--node-id", `${number}`, "--raft-addr", raft[at] as string];
    // Without a certificate, a node writes one into its working directory.
    const cwd = directory();
    args.push("--http-port", `${http[at]}`, "--data-dir", join(cwd, "data"), "--bootstrap");
    args.push(...(nodes === 1 ? ["--single"] : ["--peers", peers]), ...own);
    return spawn(bin, args, { cwd, stdio: "ignore" });
  });
  const stop = () => processes.forEach((one) => one.kill("SIGKILL"));
  process.on("exit", stop);
  return { addrs: http.map((port) => `127.0.0.1:${port}`), stop };
}
