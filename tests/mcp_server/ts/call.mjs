// Calls one tool with an official TypeScript client and prints what it got, as JSON.
// Usage: node call.mjs 1|2 stdio|http legacy|auto TARGET CALLS
// TARGET: a URL, or a JSON array with the command. CALLS: a JSON array of [tool, arguments].
// The clients check structured content against the tool's output schema, for errors too, and throw.
const [generation, transportName, mode, target, calls] = process.argv.slice(2);

const names = {
  1: {
    client: "@modelcontextprotocol/sdk/client/index.js",
    http: "@modelcontextprotocol/sdk/client/streamableHttp.js",
    stdio: "@modelcontextprotocol/sdk/client/stdio.js",
  },
  2: {
    client: "@modelcontextprotocol/client",
    http: "@modelcontextprotocol/client",
    stdio: "@modelcontextprotocol/client/stdio",
  },
}[generation];
const { createRequire } = await import("node:module");
const { pathToFileURL } = await import("node:url");
const here = createRequire(`${process.env.AGENT_SANDBOX_TS}/package.json`);
const load = async (name) => import(pathToFileURL(here.resolve(name)));

const { Client } = await load(names.client);
let transport;
if (transportName === "http") {
  const { StreamableHTTPClientTransport } = await load(names.http);
  transport = new StreamableHTTPClientTransport(new URL(target));
} else {
  const { StdioClientTransport } = await load(names.stdio);
  const [command, ...args] = JSON.parse(target);
  transport = new StdioClientTransport({ command, args, env: process.env });
}
const options = generation === "2" ? { versionNegotiation: { mode } } : {};
const client = new Client({ name: "typescript", version: "1.0.0" }, options);
await client.connect(transport);
const { tools } = await client.listTools(); // from here on the client knows the output schemas
const results = [];
for (const [name, given] of JSON.parse(calls)) {
  results.push(await client.callTool({ name, arguments: given }));
}
await client.close();
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), results }));
