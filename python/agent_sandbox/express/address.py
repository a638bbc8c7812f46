"""The address of a service for others: listening, its keys, and what a newcomer is told."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from agent_sandbox.errors import ConfigError
from agent_sandbox.loopback import is_loopback

BACKLOG = 1_024


def listen(host: str, port: int, *, option: str = "--{}") -> socket.socket:
    """Return a listening socket; port 0 lets the system choose one.

    Args:
        host: Name or address of this machine.
        port: Its port.
        option: How the options `host` and `port` are written, for the `reason` of an error.

    Raises:
        ConfigError: E6000, with a `reason` that names the address and the way out.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigError(
            reason=f"The host {host} was not found: give an address of this machine, as in"
            f" {option.format('host')} 127.0.0.1."
        ) from None
    # With the protocol named, asyncio switches Nagle's algorithm off on what it accepts; without,
    # each request with a body would wait 40 ms for a delayed acknowledgement.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(reason=_why(error, host, port, place, option)) from None
    return listener


def _why(error: OSError, host: str, port: int, place: str, option: str) -> str:
    host_option, port_option = option.format("host"), option.format("port")
    if error.errno == errno.EADDRINUSE:
        return (
            f"{place} is in use: choose another {port_option} (0 is any free one), or end what"
            " listens there."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is no address of this machine: give one that is, as in {host_option}"
            " 127.0.0.1."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} is for root alone: choose a {port_option} from 1024 on."
    return f"{place} cannot be listened on ({errno.errorcode.get(error.errno or 0, 'unknown')})."


def is_near(listener: socket.socket) -> bool:
    """Tell whether only this machine reaches a listening socket."""
    address: str = listener.getsockname()[0]
    return is_loopback(address)


def url_host(listener: socket.socket) -> str:
    """Return the address of a listening socket as it stands in a URL."""
    address: str = listener.getsockname()[0]
    return f"[{address}]" if listener.family is socket.AF_INET6 else address


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the API keys of a file: one a line, blank lines and `#` lines skipped.

    Raises:
        ConfigError: E6000, with a `reason`: it cannot be read, or holds none.
    """
    try:
        lines = [line.strip() for line in path.read_text("ascii").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise ConfigError(reason="The file of API keys (--api-key-file) cannot be read.") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(reason="The file of API keys (--api-key-file) holds no key.")
    return keys


def greeting(
    url: str, *, loopback: bool, keys: int, kind: str | None, network: bool, domain: str | None
) -> str:
    """Return the sentences that tell a newcomer what runs here and what to do next.

    Args:
        url: Where it listens.
        loopback: Whether only this machine reaches it.
        keys: How many API keys it accepts; 0 accepts every caller.
        kind: What sandboxes are made of; None is files alone.
        network: Whether they reach the network.
        domain: See `heads.SandboxHosts`.
    """
    near = url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - nothing is bound to it here
    near = near.replace("[::]", "[::1]")
    reach = "for this machine only" if loopback else "for everybody who reaches this address"
    callers = "without API keys" if not keys else f"with {keys} API key{'s' if keys > 1 else ''}"
    commands = {
        "bubblewrap": "Commands are isolated by bubblewrap",
        "none": "Commands run WITHOUT ISOLATION",
        None: "There is no bubblewrap here, so commands are refused and files work",
    }[kind]
    if kind == "bubblewrap":
        commands += ", with this machine's network" if network else ", without network"
    key = "one of the keys" if keys else "any text"
    e2b = f"E2B_DOMAIN={domain}" if domain else "E2B_API_URL and E2B_SANDBOX_URL (the same)"
    return (
        f"Sandboxes at {url}, {reach}, {callers}. {commands}. Next:"
        f" AGENT_SANDBOX_API_URL={near}{' and AGENT_SANDBOX_API_KEY' if keys else ''} for our SDK"
        f" and `agent-sandbox mcp`; {e2b} and E2B_API_KEY ({key}) for E2B's. Ctrl-C ends it and"
        " its sandboxes."
    )
