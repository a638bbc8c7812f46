"""`agent-sandbox mcp`: the MCP server, over STDIO or HTTP."""

from __future__ import annotations

import argparse
import sys

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command, Usage
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S

_EXAMPLES = """\
examples:
  agent-sandbox mcp
      STDIO, with an embedded sandbox service: no account and no configuration.
  agent-sandbox mcp --transport http --port 8000
      Streamable HTTP at http://127.0.0.1:8000/mcp.
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
    add(
        "--ttl",
        type=_arguments.ttl,
        default=DEFAULT_TTL_S,
        metavar="SECONDS",
        help=f"life of a sandbox after its last use, 1 to {MAX_TTL_S} ({DEFAULT_TTL_S})",
    )
    where = parser.add_argument_group(
        "where the sandboxes are",
        "Without any of these: AGENT_SANDBOX_PROVIDER, _API_URL, _URL and _API_KEY, else an"
        " embedded service that ends with this command.",
    )
    where.add_argument(
        "--provider", choices=("local", "express"), help="embedded, or a service at --api-url"
    )
    where.add_argument("--api-url", metavar="URL", help="control plane of the service")
    where.add_argument("--sandbox-url", metavar="URL", help="data plane, where it is elsewhere")
    _arguments.add_isolation(parser.add_argument_group("embedded sandboxes"))


def _run(arguments: argparse.Namespace) -> None:
    over_http = arguments.transport == "http"
    for option in ("host", "port", "insecure", "allowed_host", "allowed_origin"):
        value = getattr(arguments, option)
        given = value is not None and value is not False and value != []  # port 0 is given, too
        if given and not over_http:
            raise Usage("agent-sandbox mcp", f"--{option.replace('_', '-')} needs --transport http")
    from agent_sandbox.mcp_server.config import McpConfig, is_loopback

    host = arguments.host or "127.0.0.1"
    if over_http and not arguments.insecure and not is_loopback(host):
        raise Usage(
            "agent-sandbox mcp",
            f"{host} is open to others and there are no credentials yet: keep 127.0.0.1 behind an"
            " authenticating proxy, or say --insecure",
        )
    from agent_sandbox.mcp_server.app import run_http, run_stdio

    config = McpConfig(
        provider=arguments.provider,
        api_url=arguments.api_url,
        sandbox_url=arguments.sandbox_url,
        isolation=arguments.isolation or "auto",
        allow_network=arguments.allow_network,
        ttl_seconds=arguments.ttl,
        host=host,
        port=8000 if arguments.port is None else arguments.port,
        insecure=arguments.insecure,
        allowed_hosts=tuple(arguments.allowed_host),
        allowed_origins=tuple(arguments.allowed_origin),
    )
    if not over_http and sys.stdin.isatty():
        print(_TO_A_PERSON, file=sys.stderr, flush=True)
    (run_http if over_http else run_stdio)(config)


MCP = Command("mcp", "serve MCP tools over STDIO or HTTP", _EXAMPLES, _add, _run)
