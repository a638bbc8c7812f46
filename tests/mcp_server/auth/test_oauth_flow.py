"""The official client finds the issuer by our metadata, gets a token there, and is let in.

The server finds the issuer's keys by the issuer's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from tests.support.issuer import CLIENTS, Issuer, running_issuer
from tests.support.mcp_servers import ERAS, HttpServer, connected, http_server


class Kept:
    """Keeps the tokens of a client in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.fixture(scope="module")
def served(free_port: int) -> Iterator[tuple[HttpServer, Issuer]]:
    """A server that says its own address, which is what the client checks."""
    with running_issuer() as issuer:
        issuer.resource = f"http://127.0.0.1:{free_port}/mcp"
        named = [one for one in issuer.arguments() if not one.startswith("--oauth-jwks-url")]
        arguments = [*named, "--port", str(free_port)]
        with http_server(arguments=arguments) as server:
            yield server, issuer


@pytest.mark.parametrize("era", ERAS)
async def test_the_official_client_gets_in_with_what_the_server_tells_it(
    served: tuple[HttpServer, Issuer], era: str
) -> None:
    server, issuer = served
    sandboxes = {}
    for client_id, secret in CLIENTS.items():
        issuer.seen.clear()
        provider = ClientCredentialsOAuthProvider(
            server_url=server.url,
            storage=Kept(),
            client_id=client_id,
            client_secret=secret,
            issuer=issuer.url,
        )
        async with connected(server.url, era, auth=provider) as client:
            made = await client.call_tool("write_file", {"path": "/tmp/x", "content": client_id})
            assert made.structured_content is not None
            assert made.structured_content["success"]
            sandboxes[client_id] = made.structured_content["sandbox_id"]
            listed = await client.call_tool("list_sandboxes", {})
            assert listed.structured_content is not None
            (own,) = listed.structured_content["sandboxes"]
            assert own["sandbox_id"] == sandboxes[client_id]
            await client.call_tool("kill_sandbox", {"sandbox_id": own["sandbox_id"]})
        assert "/token" in issuer.seen
    assert len(set(sandboxes.values())) == 2
