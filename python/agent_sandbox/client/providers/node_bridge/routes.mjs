// What may be asked: create, connect, list, info, set the time, kill, read, write, run. Whole values
// only; every other call is answered 501 before anything is asked of the SDK.

import { run } from "./commands.mjs";
import { badRequest, failureOf, goneSandbox, unsupported } from "./failures.mjs";

const MAX_FILE_BYTES = 67_108_864; // a whole value is held in memory, here and at the caller's
const MAX_JSON_BYTES = 4_194_304;
const MAX_KNOWN = 10_000;

export function makeHandler(sdk, options) {
  const bridge = new Bridge(sdk, options);
  return (request, response) => {
    const call = new Call(request, response);
    bridge.answer(call).catch((error) => call.refuse(failureOf(error, sdk, call.about)));
  };
}

// One request and its answer.
class Call {
  constructor(request, response) {
    const url = new URL(request.url, "http://bridge");
    this.method = request.method;
    this.parts = url.pathname.split("/").filter(Boolean);
    this.query = url.searchParams;
    this.headers = request.headers;
    this.request = request;
    this.response = response;
    this.about = "control";
    this.gone = new AbortController(); // aborted when the caller goes before the answer's end
    response.on("close", () => response.writableFinished || this.gone.abort());
  }

  async body(limit) {
    const chunks = [];
    let size = 0;
    for await (const chunk of this.request) {
      size += chunk.length;
      if (size > limit) throw unsupported();
      chunks.push(chunk);
    }
    return Buffer.concat(chunks);
  }

  async json(read = (value) => value) {
    const data = await this.body(MAX_JSON_BYTES);
    try {
      return read(JSON.parse(data));
    } catch {
      throw badRequest();
    }
  }

  send(status, value, more = {}) {
    const data = value instanceof Uint8Array ? value : Buffer.from(JSON.stringify(value) ?? "");
    const type = value instanceof Uint8Array ? "application/octet-stream" : "application/json";
    const length = status === 204 ? {} : { "content-length": data.length };
    this.response.writeHead(status, { "content-type": type, ...length, ...more });
    this.response.end(data);
  }

  refuse(failure) {
    if (this.response.headersSent) return this.response.destroy(); // cut: never a whole answer
    const more = { "agent-sandbox-error": failure.code };
    if (!this.request.complete) more.connection = "close"; // the rest of a body nobody wants
    this.send(failure.status, { code: failure.status }, more);
  }
}

class Bridge {
  constructor(sdk, options) {
    this.sdk = sdk;
    this.options = options;
    this.known = new Map(); // id to the SDK's object, which holds what the data plane needs
  }

  answer(call) {
    const [first, id, what] = call.parts[0] === "v2" ? call.parts.slice(1) : call.parts;
    const route = `${call.method} /${first}${id ? "/*" : ""}${what ? `/${what}` : ""}`;
    const handlers = {
      "POST /sandboxes": () => this.create(call),
      "GET /sandboxes": () => this.list(call),
      "POST /sandboxes/*/connect": () => this.connect(call, id),
      "GET /sandboxes/*": () => this.info(call, id),
      "POST /sandboxes/*/timeout": () => this.setTimeout(call, id),
      "DELETE /sandboxes/*": () => this.kill(call, id),
      "GET /files": () => this.read(call),
      "POST /files": () => this.write(call),
    };
    if (route === "POST /process.Process/*" && id === "Start") return this.run(call);
    return (handlers[route] ?? (() => Promise.reject(unsupported())))();
  }

  remember(sandbox) {
    this.known.delete(sandbox.sandboxId);
    this.known.set(sandbox.sandboxId, sandbox);
    if (this.known.size > MAX_KNOWN) this.known.delete(this.known.keys().next().value);
    // No credential of the sandbox goes to the caller: it stays with the SDK's object here.
    return { templateID: "", sandboxID: sandbox.sandboxId, envdVersion: "" };
  }

  async create(call) {
    const given = await call.json((it) => ({
      ...this.options,
      timeoutMs: it.timeout * 1000,
      metadata: it.metadata ?? {},
    }));
    const sandbox = await this.sdk.Sandbox.create(given);
    if (call.gone.signal.aborted) return void (await sandbox.kill()); // nobody knows of it
    call.send(201, this.remember(sandbox));
  }

  async connect(call, id) {
    const timeoutMs = await call.json((it) => it.timeout * 1000);
    const signal = call.gone.signal;
    const sandbox = await this.sdk.Sandbox.connect(id, { ...this.options, timeoutMs, signal });
    call.send(200, this.remember(sandbox));
  }

  async list(call) {
    const nextToken = call.query.get("nextToken") ?? undefined;
    const paginator = this.sdk.Sandbox.list({ ...this.options, nextToken });
    const page = await paginator.nextItems();
    const more = paginator.hasNext && paginator.nextToken;
    call.send(200, page.map(described), more ? { "x-next-token": paginator.nextToken } : {});
  }

  async info(call, id) {
    const signal = call.gone.signal;
    call.send(200, described(await this.sdk.Sandbox.getInfo(id, { ...this.options, signal })));
  }

  async setTimeout(call, id) {
    const timeoutMs = await call.json((it) => it.timeout * 1000);
    await this.sdk.Sandbox.setTimeout(id, timeoutMs, this.options);
    call.send(204);
  }

  async kill(call, id) {
    const killed = await this.sdk.Sandbox.kill(id, this.options);
    this.known.delete(id);
    if (!killed) throw goneSandbox();
    call.send(204);
  }

  // Returns the SDK's object of the sandbox that a data-plane request is for.
  async sandbox(call) {
    const id = call.headers["e2b-sandbox-id"];
    if (!id) throw badRequest();
    if (!this.known.has(id)) {
      // Another child of the same program knew it. To connect must not shorten its life.
      const { endAt } = await this.sdk.Sandbox.getInfo(id, this.options);
      const timeoutMs = Math.max(1000, Math.ceil((endAt - Date.now()) / 1000) * 1000);
      this.remember(await this.sdk.Sandbox.connect(id, { ...this.options, timeoutMs }));
    }
    return this.known.get(id);
  }

  // Runs work on a sandbox. The SDK says of an ended one only that time is over: ask it then.
  async use(call, about, work) {
    const sandbox = await this.sandbox(call);
    call.about = about;
    try {
      return await work(sandbox);
    } catch (error) {
      const late = error instanceof this.sdk.TimeoutError;
      if (!late || (await sandbox.isRunning().catch(() => true))) throw error;
      this.known.delete(sandbox.sandboxId);
      throw goneSandbox();
    }
  }

  async read(call) {
    const path = call.query.get("path") ?? "";
    const data = await this.use(call, "read", async ({ files }) => {
      const options = { format: "stream", requestTimeoutMs: 0, signal: call.gone.signal };
      const chunks = [];
      let size = 0;
      for await (const chunk of await files.read(path, options)) {
        size += chunk.length;
        if (size > MAX_FILE_BYTES) throw unsupported(); // leaving the loop closes the stream
        chunks.push(chunk);
      }
      return Buffer.concat(chunks);
    });
    call.send(200, data);
  }

  async write(call) {
    const path = call.query.get("path") ?? "";
    const data = await call.body(MAX_FILE_BYTES);
    const content = new Blob([data]);
    const options = { requestTimeoutMs: 0, signal: call.gone.signal };
    await this.use(call, "write", ({ files }) => files.write(path, content, options));
    call.send(200, [{ name: path.split("/").pop(), type: "file", path, size: data.length }]);
  }

  async run(call) {
    // A command that outlives its call (`start`) is none of what this form offers.
    if (call.headers["agent-sandbox-on-disconnect"] !== "kill") throw unsupported();
    const message = await call.body(MAX_JSON_BYTES);
    await this.use(call, "run", (sandbox) => run(call, sandbox, message, this.sdk));
  }
}

function described(info) {
  return {
    templateID: info.templateId,
    sandboxID: info.sandboxId,
    startedAt: info.startedAt,
    endAt: info.endAt,
    state: info.state,
    metadata: info.metadata ?? {},
  };
}

