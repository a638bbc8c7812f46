// Running one command in the foreground: the Start RPC of our wire, in Connect's envelopes of JSON.

import { once } from "node:events";

import { Failure, badRequest, failureOf } from "./failures.mjs";

const MAX_OUTPUT_BYTES = 67_108_864; // the SDK holds all output of a command until its end
const KEEP_ALIVE_MS = 50_000;
const PREFIX_BYTES = 5;
const END_FLAG = 2;

// Runs the command of a Start message and streams its output; a caller who goes kills it.
export async function run(call, sandbox, message, sdk) {
  const { line, options } = wanted(message);
  const limit = Number(call.headers["connect-timeout-ms"] ?? 0); // 0 is no limit to the SDK, too
  let begin;
  const begun = new Promise((resolve) => (begin = resolve));
  let size = 0;
  const output = (stream) => async (text) => {
    await begun;
    const data = Buffer.from(text);
    size += data.length;
    if (size <= MAX_OUTPUT_BYTES) {
      await emit(call, { event: { data: { [stream]: data.toString("base64") } } });
    } else {
      await handle.kill();
    }
  };
  const handle = await sandbox.commands.run(line, {
    ...options,
    timeoutMs: limit,
    background: true,
    onStdout: output("stdout"),
    onStderr: output("stderr"),
  });
  const kill = () => handle.kill().catch(() => {});
  if (call.gone.signal.aborted) return kill();
  call.gone.signal.addEventListener("abort", kill);
  call.response.writeHead(200, { "content-type": "application/connect+json" });
  const alive = setInterval(() => emit(call, { event: { keepalive: {} } }), KEEP_ALIVE_MS);
  try {
    await emit(call, { event: { start: { pid: handle.pid } } });
    begin();
    const result = await handle.wait().catch((error) => error);
    if (size > MAX_OUTPUT_BYTES) throw new Failure(500, "E5000");
    if (result instanceof Error && !(result instanceof sdk.CommandExitError)) throw result;
    await emit(call, { event: { end: endOf(result) } });
    await emit(call, {}, END_FLAG);
  } catch (error) {
    const { code } = await sandbox
      .isRunning()
      .then((runs) => (runs ? failureOf(error, sdk, "run") : new Failure(404, "E5001")))
      .catch(() => failureOf(error, sdk, "run"));
    const metadata = { "agent-sandbox-error": [code] };
    await emit(call, { error: { code: "unknown", message: "" }, metadata }, END_FLAG);
  } finally {
    clearInterval(alive);
    call.response.end();
  }
}

// Returns what a Start message asks for, as the SDK takes it: one line for a shell.
function wanted(message) {
  let config;
  try {
    config = JSON.parse(message.subarray(PREFIX_BYTES)).process;
  } catch {
    throw badRequest();
  }
  if (!config?.cmd) throw badRequest();
  const args = config.args ?? [];
  const isLine = config.cmd === "/bin/bash" && args.length === 3 && `${args[0]}${args[1]}` === "-l-c";
  const line = isLine ? args[2] : `exec ${[config.cmd, ...args].map(quoted).join(" ")}`;
  return { line, options: { cwd: config.cwd, envs: config.envs ?? {} } };
}

const quoted = (word) => `'${word.replaceAll("'", `'\\''`)}'`;

function endOf({ exitCode, error }) {
  const exited = exitCode >= 0;
  return { exitCode, exited, status: exited ? `exit status ${exitCode}` : String(error ?? "") };
}

// Sends one message; resolves when the caller has room for the next one, or is gone.
async function emit(call, value, flags = 0) {
  const data = Buffer.from(JSON.stringify(value));
  const prefix = Buffer.alloc(PREFIX_BYTES);
  prefix.writeUInt8(flags, 0);
  prefix.writeUInt32BE(data.length, 1);
  const { response } = call;
  if (response.destroyed || response.write(Buffer.concat([prefix, data]))) return;
  const settled = new AbortController();
  const { signal } = settled;
  await Promise.race([once(response, "drain", { signal }), once(response, "close", { signal })]).catch(
    () => {},
  );
  settled.abort();
}
