/**
 * Tests the package as its users get it: it is packed and installed, and the README's code is
 * compiled and run.
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Node } from "./node.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../..", import.meta.url));

test("the installed package runs the README's code", async (t) => {
  const cwd = mkdtempSync(join(tmpdir(), "epicepoch-package-"));
  t.after(() => rmSync(cwd, { recursive: true }));
  const packed = await run("npm", ["pack", "--json", "--pack-destination", cwd], { cwd: root });
  const [{ filename, files }] = JSON.parse(packed.stdout) as [
    { filename: string; files: { path: string }[] },
  ];
  const others = files.map(({ path }) => path).filter((path) => !path.startsWith("dist/src/"));
  assert.deepEqual(others.sort(), ["LICENSE", "README.md", "package.json"]);
  writeFileSync(join(cwd, "package.json"), '{ "type": "module", "private": true }');
  await run("npm", ["install", "--offline", "--no-audit", "--no-fund", filename], { cwd });

  // The README's code asks a cluster. Here it asks this node instead.
  const node = await Node.start(t);
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const blocks = [...readme.matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code as string);
  assert.equal(blocks.length, 4);
  const names = blocks.map((code, at) => {
    writeFileSync(join(cwd, `${at}.ts`), code.replaceAll(/localhost:888[1-3]/g, node.addr));
    return `${at}.ts`;
  });
  const types = ["--typeRoots", join(root, "node_modules/@types"), "--types", "node"];
  const lib = ["--target", "ES2022", "--lib", "ES2022,ESNext.Disposable"];
  const tsc = join(root, "node_modules/typescript/bin/tsc");
  const strict = ["--strict", "--module", "NodeNext"];
  await run(process.execPath, [tsc, ...strict, ...lib, ...types, ...names], { cwd });
  const said: string[] = [];
  for (const name of names) {
    const js = name.replace(".ts", ".js");
    said.push((await run(process.execPath, [js], { cwd, timeout: 20_000 })).stdout);
  }
  assert.match(said[0] as string, /^true [0-9a-f]{32}\n$/);
  assert.match(said[1] as string, /^1700000000123456789n 7n\n2023-11-14T22:13:20.123Z\n/);
  assert.match(said[1] as string, /true\n$/);
  assert.equal(said[2], "true\n");
});
