"""A server that asks for credentials, with two static tokens and an issuer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
from tests.support.express import Service, served
from tests.support.issuer import Issuer, running_issuer
from tests.support.mcp_servers import WAIT_S, HttpServer, http_server

from agent_sandbox.mcp_server.auth.tokens import NewToken, make_token


@dataclass
class Guarded:
    """A server that asks for credentials.

    Attributes:
        server: The server.
        express: Where its sandboxes are.
        issuer: Whose access tokens it takes.
        one: A static token.
        two: Another one.
        token_file: The lines of both.
        deny_file: Who is kept out.
        arguments: How to start one more server like it.
    """

    server: HttpServer
    express: Service
    issuer: Issuer
    one: NewToken
    two: NewToken
    token_file: Path
    deny_file: Path
    arguments: list[str]

    @property
    def env(self) -> dict[str, str]:
        """Where its sandboxes are, as the environment says it."""
        return {"AGENT_SANDBOX_API_URL": self.express.url, "AGENT_SANDBOX_URL": self.express.url}


@contextlib.contextmanager
def guarded_in(directory: Path) -> Iterator[Guarded]:
    """Run a server that asks for credentials; its files are in `directory`."""
    one, two = make_token("one"), make_token("two")
    token_file, deny_file = directory / "tokens", directory / "denied"
    token_file.write_text(f"{one.line}\n{two.line}\n")
    deny_file.write_text("# nobody yet\n")
    with running_issuer() as issuer, served(directory) as express:
        more = [f"--token-file={token_file}", f"--oauth-deny-file={deny_file}"]
        arguments = issuer.arguments(*more)
        env = {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}
        with http_server(env=env, arguments=arguments) as server:
            health = server.url.removesuffix("/mcp") + "/health"
            with httpx2.Client(trust_env=False, timeout=WAIT_S) as http:
                assert http.get(health).is_success  # it has read its files
            yield Guarded(server, express, issuer, one, two, token_file, deny_file, arguments)
