// From the SDK's exceptions to our stable error codes: by class and status, never by their text.

export class Failure extends Error {
  constructor(status, code) {
    super(code);
    this.status = status;
    this.code = code;
  }
}

export const unsupported = () => new Failure(501, "E5006");
export const badRequest = () => new Failure(400, "E2001");
export const goneSandbox = () => new Failure(404, "E5001");
export const unavailable = () => new Failure(503, "E5003");

// What a class means depends on what the call was about.
const MEANINGS = {
  control: { missing: goneSandbox, invalid: badRequest, late: () => new Failure(504, "E5004") },
  read: {
    missing: () => new Failure(404, "E4001"),
    invalid: () => new Failure(400, "E4004"), // paths are checked before: what it names is no file
    late: () => new Failure(504, "E4008"),
  },
  write: {
    missing: () => new Failure(404, "E4001"),
    invalid: () => new Failure(400, "E4004"),
    late: () => new Failure(504, "E4009"),
  },
  run: {
    missing: () => new Failure(404, "E4001"),
    invalid: badRequest,
    late: () => new Failure(504, "E5008"),
  },
};

const OTHER = { control: unavailable, run: () => new Failure(500, "E5000") };

const BY_STATUS = { 400: badRequest, 404: goneSandbox, 501: unsupported };

// Returns the failure that an exception of the SDK stands for.
export function failureOf(error, sdk, about) {
  if (error instanceof Failure) return error;
  const is = (name) => typeof sdk[name] === "function" && error instanceof sdk[name];
  const meaning = MEANINGS[about];
  if (is("AuthenticationError")) return new Failure(401, "E5005");
  if (is("SandboxNotFoundError")) return goneSandbox();
  if (is("NotFoundError")) return meaning.missing();
  if (is("InvalidArgumentError")) return meaning.invalid();
  if (is("NotEnoughSpaceError")) return new Failure(507, "E4006");
  if (is("RateLimitError") || is("ServiceBusyError")) return unavailable();
  if (is("TimeoutError") || error?.name === "TimeoutError") return meaning.late();
  if (is("SandboxError")) {
    const known = about === "control" ? BY_STATUS[error.statusCode] : undefined;
    return (known ?? OTHER[about] ?? (() => new Failure(500, "E4000")))();
  }
  return unavailable(); // fetch failed, a broken answer: whatever it was, there is no service
}
