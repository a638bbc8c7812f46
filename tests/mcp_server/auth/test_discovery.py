"""Where an issuer's keys are, when nobody has said it: asked of its own metadata."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from tests.support.issuer import RESOURCE, Issuer, running_issuer

from agent_sandbox.errors import ConfigError, CredentialsUncheckedError, TransferError
from agent_sandbox.mcp_server.auth.access_tokens import AccessTokens
from agent_sandbox.mcp_server.auth.discovery import (
    FETCH_DEADLINE_S,
    KNOWN_S,
    KeySource,
    jwks_url_in,
    metadata_urls,
)
from agent_sandbox.mcp_server.auth.settings import OAuthConfig

ISSUER = "https://login.example/realms/team"
PLACES = metadata_urls(ISSUER)


def checking(issuer: Issuer) -> AccessTokens:
    return AccessTokens(OAuthConfig(issuer=issuer.url, resource=RESOURCE))


def test_the_metadata_is_looked_for_where_the_standards_put_it() -> None:
    assert PLACES == (
        "https://login.example/.well-known/oauth-authorization-server/realms/team",
        "https://login.example/realms/team/.well-known/openid-configuration",
        "https://login.example/.well-known/openid-configuration/realms/team",
    )
    assert metadata_urls("https://login.example/") == metadata_urls("https://login.example")
    assert metadata_urls("https://login.example:8443") == (
        "https://login.example:8443/.well-known/oauth-authorization-server",
        "https://login.example:8443/.well-known/openid-configuration",
    )


@pytest.mark.parametrize(
    "place", ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]
)
async def test_a_token_is_checked_by_keys_that_the_metadata_leads_to(place: str) -> None:
    with running_issuer() as issuer:
        issuer.described_at = place
        tokens = checking(issuer)
        for _ in range(3):
            assert await tokens.verify(issuer.token()) is not None
        assert issuer.seen.count(place) == 1
        assert issuer.fetches == 1


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "https://evil.example"},
        {"issuer": None},
        {"jwks_uri": None},
        {"jwks_uri": "http://keys.example/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": ["https://keys.example"]},
    ],
)
async def test_metadata_of_somebody_else_or_without_a_safe_address_is_of_no_use(
    described: dict[str, Any],
) -> None:
    with running_issuer() as issuer:
        issuer.described = described
        with pytest.raises(CredentialsUncheckedError):
            await checking(issuer).verify(issuer.token())
        assert issuer.fetches == 0


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"issuer":1}']
)
def test_what_is_no_metadata_leads_nowhere(document: bytes) -> None:
    assert jwks_url_in(document, ISSUER) is None


async def test_an_issuer_without_metadata_is_no_verdict_and_is_not_asked_again_at_once() -> None:
    with running_issuer() as issuer:
        issuer.described_at = "/nowhere"
        tokens = checking(issuer)
        for _ in range(10):
            with pytest.raises(CredentialsUncheckedError):
                await tokens.verify(issuer.token())
        assert len(issuer.seen) == 2


async def test_many_callers_wait_for_one_look() -> None:
    with running_issuer() as issuer:
        tokens = checking(issuer)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(tokens.verify, issuer.token())
        assert issuer.seen == ["/.well-known/oauth-authorization-server", "/keys"]


class Web:
    """Documents at addresses, and a clock that moves when a fetch takes time."""

    def __init__(self, **documents: Any) -> None:
        self.documents = documents
        self.now = 0.0
        self.takes_s = 0.0
        self.seen: list[tuple[str, float]] = []
        self.source = KeySource(ISSUER, None, self.fetch, lambda: self.now)

    async def fetch(self, url: str, deadline_s: float) -> bytes:
        self.seen.append((url, deadline_s))
        self.now += min(self.takes_s, deadline_s)
        if url not in self.documents:
            raise TransferError
        return json.dumps(self.documents[url]).encode()

    def asked(self) -> list[str]:
        asked = [url for url, _ in self.seen]
        self.seen.clear()
        return asked


def described(jwks: str) -> dict[str, str]:
    return {"issuer": ISSUER, "jwks_uri": jwks}


async def test_the_address_is_asked_for_again_when_it_is_old_or_leads_nowhere() -> None:
    keys, moved = "https://login.example/keys", "https://login.example/moved"
    web = Web(**{PLACES[0]: described(keys), keys: {"keys": []}, moved: {"keys": [1]}})
    assert await web.source.keys() == b'{"keys": []}'
    assert await web.source.keys() == b'{"keys": []}'
    assert web.asked() == [PLACES[0], keys, keys]
    web.now += KNOWN_S + 1
    await web.source.keys()
    assert web.asked() == [PLACES[0], keys]
    web.documents[PLACES[0]] = described(moved)
    del web.documents[keys]
    with pytest.raises(TransferError):
        await web.source.keys()
    assert await web.source.keys() == b'{"keys": [1]}'
    assert web.asked() == [keys, PLACES[0], moved]


async def test_all_of_it_has_one_deadline() -> None:
    web = Web(**{PLACES[2]: described("https://login.example/keys")})
    web.takes_s = 2.0
    with pytest.raises(TransferError):
        await web.source.keys()
    assert [deadline for _, deadline in web.seen] == [
        FETCH_DEADLINE_S,
        FETCH_DEADLINE_S - 2,
        FETCH_DEADLINE_S - 4,
        0.0,
    ]
    web.takes_s = 60.0
    with pytest.raises(TransferError):
        await web.source.keys()
    assert len(web.seen) == 5  # the first place took all the time


def test_an_issuer_with_a_query_needs_the_address_of_its_keys() -> None:
    with pytest.raises(ConfigError):
        OAuthConfig(issuer="https://login.example/?t=1", resource=RESOURCE)
    keys = "https://login.example/keys"
    OAuthConfig(issuer="https://login.example/?t=1", resource=RESOURCE, jwks_url=keys)
