"""Names of the HTTP headers that both sides of the E2B-compatible wire use.

All names are lower case, as ASGI and HTTP/2 write them.
"""

from __future__ import annotations

API_KEY = "x-api-key"
"""Credential of the control plane."""

ACCESS_TOKEN = "x-access-token"  # noqa: S105 - the name of a header, not a secret
"""Credential of one sandbox's data plane (`envdAccessToken` of create and connect)."""

SANDBOX_ID = "e2b-sandbox-id"
"""Which sandbox a data-plane request is for."""

SANDBOX_PORT = "e2b-sandbox-port"
"""Which port of the sandbox a data-plane request is for; `ENVD_PORT` names the service itself."""

ENVD_PORT = 49983
"""Port number that stands for the sandbox service on the data plane."""

ERROR_CODE = "agent-sandbox-error"
"""Stable code of `agent_sandbox.errors` (`E4001`), beside the E2B-compatible `{code, message}`."""

WANT_REPR_DIGEST = "want-repr-digest"
"""On a write: `sha-256=1` asks for the digest of what was written (RFC 9530 section 4)."""

REPR_DIGEST = "repr-digest"
"""`sha-256=:<base64>:`: answered on request, and verified when a write carries it (RFC 9530)."""

CONNECT_PROTOCOL_VERSION = "connect-protocol-version"
"""Always `1`."""

CONNECT_TIMEOUT_MS = "connect-timeout-ms"
"""Milliseconds after which a caller gives an RPC up."""

KEEPALIVE_PING_INTERVAL = "keepalive-ping-interval"
"""Seconds between keep-alive messages on a stream."""

NEXT_TOKEN = "x-next-token"  # noqa: S105 - the name of a header, not a secret
"""Where the next page of a list begins; absent on the last page."""

ON_DISCONNECT = "agent-sandbox-on-disconnect"
"""On Start: `kill` ends the command when its caller goes, and lets the sandbox live as long as it
runs. Without it a command goes on."""

OUTPUT_LIMIT = "agent-sandbox-output-limit"
"""On Start and Connect: instead of the output as it comes, send the first and the last part of
each stream at the end, at most so many bytes together."""

RETAIN = "agent-sandbox-retain"
"""On Start: seconds that the sandbox then lives at least. As long as the command runs, a release
does not end the sandbox; see `UNLESS_RETAINED`."""

UNLESS_RETAINED = "agent-sandbox-unless-retained"
"""On the end of a sandbox: `1` lets it live until the last retained command in it has ended."""

CLAIM = "agent-sandbox-claim"
"""On connect: `1` makes the caller responsible for the sandbox, so that the end of its retained
commands does not end it."""

ENDED = "agent-sandbox-ended"
"""On List: `1` also lists the commands that have ended not long ago, and says more of each."""

REPLAY = "agent-sandbox-replay"
"""On Connect: `1` sends what is still held of the output so far first, also of a command that has
ended; `only` sends just that."""
