// Uses the public JavaScript SDK of E2B against a service and prints what it got, as JSON.
// Usage: node e2b.mjs PART, with E2B_API_KEY and where the service is in the environment.
import dns from "node:dns";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const here = createRequire(`${process.env.AGENT_SANDBOX_TS}/package.json`);
const e2b = await import(pathToFileURL(here.resolve("e2b")));
const { Sandbox } = e2b;

if (process.env.RESOLVE_TO_LOOPBACK) {
  const lookup = dns.lookup;
  dns.lookup = (_name, ...rest) => lookup("127.0.0.1", ...rest);
}

// What a call fails with: the name of the error's class, or "nothing".
async function failure(promise) {
  try {
    await promise;
    return "nothing";
  } catch (error) {
    return error.constructor.name;
  }
}

// Lets somebody wait for things that happen later.
function inbox() {
  const items = [];
  const waiting = [];
  return {
    put: (item) => (waiting.length ? waiting.shift()(item) : items.push(item)),
    take: () =>
      items.length ? Promise.resolve(items.shift()) : new Promise((done) => waiting.push(done)),
  };
}

const parts = {
  async control(sandbox) {
    const info = await sandbox.getInfo();
    const paginator = Sandbox.list({ query: { metadata: { purpose: "js & more" } } });
    const listed = await paginator.nextItems();
    await sandbox.setTimeout(600_000);
    const later = await sandbox.getInfo();
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 1_000 });
    const kept = await again.getInfo();
    const running = await sandbox.isRunning();
    const paused = await sandbox.pause().catch((error) => error);
    return {
      id: info.sandboxId === sandbox.sandboxId,
      metadata: info.metadata,
      listed: listed.map((one) => one.sandboxId).includes(sandbox.sandboxId),
      prolonged: later.endAt > info.endAt,
      shortened: kept.endAt < later.endAt,
      running,
      paused: [paused.constructor.name, paused.statusCode],
      killed: await again.kill(),
      killedAgain: await Sandbox.kill(sandbox.sandboxId),
      runningThen: await sandbox.isRunning(),
      connected: await failure(Sandbox.connect(sandbox.sandboxId)),
      info: await failure(Sandbox.getInfo(sandbox.sandboxId)),
    };
  },

  async files({ files }) {
    const bytes = Uint8Array.from({ length: 1_280_000 }, (_, at) => (at * 7) % 256);
    const equal = (data) => Buffer.compare(Buffer.from(data), Buffer.from(bytes)) === 0;
    await files.write("hello.txt", "hällo\n");
    await files.write("/deep/er/buffer", bytes.buffer);
    await files.write("blob", new Blob([bytes]));
    await files.write("stream", new Blob([bytes]).stream());
    const many = await files.write([
      { path: "m/1", data: "one" },
      { path: "/tmp/ü 2", data: "two" },
    ]);
    const streamed = [];
    for await (const chunk of await files.read("blob", { format: "stream" })) streamed.push(chunk);
    const made = [await files.makeDir("/w/a"), await files.makeDir("/w/a")];
    await files.write("/w/f", "12345");
    const info = await files.getInfo("/w/f");
    const names = (await files.list("/w")).map((entry) => [entry.name, entry.type]);
    const moved = await files.rename("/w/f", "/w/g");
    const there = [await files.exists("/w/f"), await files.exists("/w/g")];
    await files.remove("/w");
    return {
      text: await files.read("hello.txt"),
      buffer: equal(await files.read("/deep/er/buffer", { format: "bytes" })),
      blob: equal(await (await files.read("blob", { format: "blob" })).arrayBuffer()),
      stream: equal(await files.read("stream", { format: "bytes" })),
      streamed: equal(Buffer.concat(streamed)),
      many: many.map((one) => one.path),
      made,
      info: [info.size, info.mode, info.owner, info.type],
      names,
      moved: moved.path,
      there,
      missing: await failure(files.read("/w/f")),
      outside: await failure(files.read("/w/../x")),
    };
  },

  async watch({ files }) {
    const events = inbox();
    await files.makeDir("/w");
    const handle = await files.watchDir("/w", events.put, { recursive: true });
    await files.write("/w/f", "1");
    await files.makeDir("/w/sub");
    await files.write("/w/sub/g", "2");
    await files.remove("/w/f");
    const seen = [];
    while (!seen.includes("remove f")) {
      const event = await events.take();
      seen.push(`${event.type} ${event.name}`);
    }
    await handle.stop();
    return { seen, missing: await failure(files.watchDir("/none", events.put)) };
  },

  async commands({ commands, files }) {
    const out = [];
    const done = await commands.run('echo "$GREETING"; echo oh >&2; pwd', {
      envs: { GREETING: "hällo" },
      cwd: "/tmp",
      onStdout: (data) => out.push(data),
    });
    await files.write("/tmp/a", "from the files");
    const exit = await commands.run("echo partly; exit 3").catch((error) => error);
    const cat = await commands.run("cat", { background: true, stdin: true });
    const listed = (await commands.list()).map((one) => one.args);
    await commands.sendStdin(cat.pid, "hello\n");
    await cat.disconnect();
    const again = await commands.connect(cat.pid);
    await commands.sendStdin(cat.pid, "again\n");
    await commands.closeStdin(cat.pid);
    const fed = await again.wait();
    const sleeper = await commands.run("sleep 1000", { background: true });
    const late = await failure(commands.run("sleep 1000", { timeoutMs: 500 }));
    const killed = [await commands.kill(sleeper.pid), await commands.kill(cat.pid)];
    while ((await commands.list()).length) await sleep(50); // both are dying
    return {
      done: [done.stdout, done.stderr, done.exitCode],
      out: out.join(""),
      exit: [exit.constructor.name, exit.exitCode, exit.stdout],
      one: (await commands.run("cat /tmp/a")).stdout,
      listed,
      fed: [fed.exitCode, fed.stdout.endsWith("again\n")],
      killed,
      late,
    };
  },

  async pty({ pty }) {
    const shown = [];
    const handle = await pty.create({
      rows: 24,
      cols: 80,
      onData: (data) => shown.push(Buffer.from(data)),
    });
    await pty.resize(handle.pid, { rows: 40, cols: 100 });
    await pty.sendInput(handle.pid, Buffer.from("stty size; exit 7\n"));
    const ended = await handle.wait().catch((error) => error);
    const other = await pty.create({ rows: 24, cols: 80, onData: () => {} });
    return {
      ended: ended.exitCode,
      size: Buffer.concat(shown).includes("40 100"),
      killed: [await pty.kill(other.pid), await pty.kill(handle.pid)],
    };
  },

  // Nothing but a domain and a key: the names of the service and of the sandbox come from these.
  async domain({ files, sandboxDomain }) {
    await files.write("/tmp/a", "by name");
    return { read: await files.read("/tmp/a"), sandboxDomain };
  },
};

const sandbox = await Sandbox.create({ timeoutMs: 120_000, metadata: { purpose: "js & more" } });
try {
  console.log(JSON.stringify(await parts[process.argv[2]](sandbox)));
} finally {
  await sandbox.kill();
}
process.exit(0); // idle connections would keep it alive for a while
