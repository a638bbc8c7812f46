// The Node side of provider="node": our sandbox wire in HTTP, spoken by a JavaScript sandbox SDK.
//
// Usage: node main.mjs FD, where FD is a listening unix socket. Standard input brings one line of
// JSON ({protocol, packages, options}) and is the lifeline after that: when it ends, so do we.
// Standard output carries one line of JSON back ({protocol, ready} or {protocol, error}). What
// follows is HTTP/1.1 on the socket: lengths frame every message. Secrets come by standard input
// alone; neither arguments nor environment hold any.

import fs from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { makeHandler } from "./routes.mjs";

const PROTOCOL = 1;
const PACKAGE = "e2b";
const MAX_ORDER_BYTES = 65_536;
const KEEP_ALIVE_MS = 75_000; // longer than our client keeps an idle connection

const reply = (line) => fs.writeSync(1, `${JSON.stringify({ protocol: PROTOCOL, ...line })}\n`);

function fail(error) {
  reply({ error });
  process.exit(1);
}

async function load(packages) {
  let found;
  try {
    found = createRequire(path.join(packages, "package.json")).resolve(PACKAGE);
  } catch {
    return fail("missing");
  }
  try {
    return await import(pathToFileURL(found));
  } catch {
    return fail("broken");
  }
}

async function begin(text) {
  const order = JSON.parse(text);
  if (order.protocol !== PROTOCOL) return fail("protocol");
  const sdk = await load(order.packages);
  // A library's words are nobody's to read, and standard output must not fill up.
  process.stdout.write = () => true;
  const server = http.createServer(makeHandler(sdk, order.options));
  server.keepAliveTimeout = KEEP_ALIVE_MS;
  server.requestTimeout = 0; // the client has a clock around each call
  server.listen({ fd: Number(process.argv[2]) }, () => reply({ ready: true }));
}

process.on("unhandledRejection", () => {}); // of a call whose caller has gone
let order = Buffer.alloc(0);
let begun = false;
process.stdin.on("data", (chunk) => {
  if (begun) return;
  order = Buffer.concat([order, chunk]);
  const end = order.indexOf("\n");
  if (end >= 0) {
    begun = true;
    begin(order.subarray(0, end).toString()).catch(() => fail("broken"));
  } else if (order.length > MAX_ORDER_BYTES) {
    fail("protocol");
  }
});
for (const event of ["end", "close", "error"]) process.stdin.on(event, () => process.exit(0));
