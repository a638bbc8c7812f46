"""`agent-sandbox mcp`: the MCP server, over STDIO or HTTP."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent_sandbox.cli import _arguments, _uploads
from agent_sandbox.cli._arguments import Command, Usage
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S

if TYPE_CHECKING:
    from agent_sandbox.mcp_server.auth.settings import OAuthConfig

_EXAMPLES = """\
examples:
  agent-sandbox mcp
      STDIO, with an embedded sandbox service: no account and no configuration.
  agent-sandbox mcp --transport http --port 8000
      Streamable HTTP at http://127.0.0.1:8000/mcp.
  agent-sandbox mcp --transport http --host 0.0.0.0 --token-file /etc/agent-sandbox/tokens
      for others; `agent-sandbox token new NAME` makes a token and its line for the file.
  AGENT_SANDBOX_API_KEY=... agent-sandbox mcp --api-url https://sandboxes.example.com
      sandboxes of a service elsewhere. The key is read from the environment only.
"""

_TO_A_PERSON = """\
agent-sandbox: this is an MCP server that speaks JSON-RPC on standard input and output; it waits
for a client. Put this command into the configuration of your MCP client (README.md has the text
for Claude, Cursor and VS Code), or run `agent-sandbox mcp --transport http` for one that connects
to a URL. Ctrl-D or Ctrl-C ends it."""


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--transport",
        choices=("stdio", "http"),
        default="stdio",
        help="stdio for a client that starts this command, http for one that connects (stdio)",
    )
    add(
        "--ttl",
        type=_arguments.ttl,
        default=DEFAULT_TTL_S,
        metavar="SECONDS",
        help=f"life of a sandbox after its last use, 1 to {MAX_TTL_S} ({DEFAULT_TTL_S})",
    )
    _add_http(parser)
    _add_credentials(parser)
    where = parser.add_argument_group(
        "where the sandboxes are",
        "Without any of these: AGENT_SANDBOX_PROVIDER, _API_URL, _URL and _API_KEY, else an"
        " embedded service that ends with this command.",
    )
    where.add_argument(
        "--provider",
        choices=("local", "express", "node"),
        help="embedded, a service at --api-url, or E2B's SDK for JavaScript (docs/sdk.md)",
    )
    where.add_argument("--api-url", metavar="URL", help="control plane of the service")
    where.add_argument("--sandbox-url", metavar="URL", help="data plane, where it is elsewhere")
    _arguments.add_isolation(parser.add_argument_group("embedded sandboxes"))
    _uploads.add(parser)


def _add_http(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where HTTP listens, with --transport http").add_argument
    add("--host", type=_arguments.host, help="address to listen on (127.0.0.1)")
    add("--port", type=_arguments.port, help="port to listen on, 0 for any free one (8000)")
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a Host header to accept beside the own address, as behind a proxy; repeatable",
    )
    add(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="an Origin header of a browser page to accept; repeatable",
    )
    add(
        "--insecure",
        action="store_true",
        help="listen on an address that others reach, without credentials",
    )


def _add_credentials(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "who may call over HTTP",
        "Without any of these everyone who reaches the port, and only loopback is listened on."
        " Tokens may also stand in AGENT_SANDBOX_TOKENS, as lines of a token file.",
    ).add_argument
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="lines that `agent-sandbox token new` made; read again when it changes"
        " (AGENT_SANDBOX_TOKEN_FILE)",
    )
    add("--oauth-issuer", metavar="URL", help="whose access tokens (JWT) are taken")
    add(
        "--oauth-jwks-url",
        metavar="URL",
        help="where the issuer's keys are (what its metadata says, RFC 8414 or OpenID)",
    )
    add("--oauth-resource", metavar="URL", help="this server's /mcp, as its clients know it")
    add("--oauth-audience", metavar="TEXT", help="what tokens must be for (the resource)")
    add(
        "--oauth-scope",
        action="append",
        default=[],
        metavar="SCOPE",
        help="what a token must allow; repeatable",
    )
    add(
        "--oauth-deny-file",
        type=Path,
        metavar="FILE",
        help="tokens, people and clients that are kept out; read again when it changes",
    )


_HTTP_ONLY = (
    "host",
    "port",
    "insecure",
    "allowed_host",
    "allowed_origin",
    "token_file",
    "oauth_issuer",
    "oauth_jwks_url",
    "oauth_resource",
    "oauth_audience",
    "oauth_scope",
    "oauth_deny_file",
)
_STDIO_ONLY = ("upload_host", "upload_port")


def _run(arguments: argparse.Namespace) -> None:
    over_http = arguments.transport == "http"
    needed = "stdio" if over_http else "http"
    for option in _STDIO_ONLY if over_http else _HTTP_ONLY:
        value = getattr(arguments, option)
        if value is not None and value is not False and value != []:  # port 0 is given, too
            named = option.replace("_", "-")
            raise Usage("agent-sandbox mcp", f"--{named} needs --transport {needed}")
    from agent_sandbox.mcp_server.app import run_http, run_stdio
    from agent_sandbox.mcp_server.config import McpConfig

    config = McpConfig(
        provider=arguments.provider,
        api_url=arguments.api_url,
        sandbox_url=arguments.sandbox_url,
        isolation=arguments.isolation or "auto",
        allow_network=arguments.allow_network,
        ttl_seconds=arguments.ttl,
        host=arguments.host or "127.0.0.1",
        port=8000 if arguments.port is None else arguments.port,
        insecure=arguments.insecure,
        allowed_hosts=tuple(arguments.allowed_host),
        allowed_origins=tuple(arguments.allowed_origin),
        token_file=arguments.token_file,
        oauth=_oauth(arguments),
        transfers=_uploads.settings(arguments),
    )
    if not over_http and sys.stdin.isatty():
        print(_TO_A_PERSON, file=sys.stderr, flush=True)
    (run_http if over_http else run_stdio)(config)


def _oauth(arguments: argparse.Namespace) -> OAuthConfig | None:
    needed = {name: getattr(arguments, f"oauth_{name}") for name in ("issuer", "resource")}
    further = (
        arguments.oauth_jwks_url,
        arguments.oauth_audience,
        arguments.oauth_scope,
        arguments.oauth_deny_file,
    )
    if not any(needed.values()) and not any(further):
        return None
    for name, value in needed.items():
        if value is None:
            raise Usage("agent-sandbox mcp", f"OAuth needs --oauth-{name.replace('_', '-')}, too")
    from agent_sandbox.mcp_server.auth.settings import OAuthConfig

    return OAuthConfig(
        **needed,
        jwks_url=arguments.oauth_jwks_url,
        audience=arguments.oauth_audience,
        scopes=tuple(arguments.oauth_scope),
        deny_file=arguments.oauth_deny_file,
    )


MCP = Command("mcp", "serve MCP tools over STDIO or HTTP", _EXAMPLES, _add, _run)
