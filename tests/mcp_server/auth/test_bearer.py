"""The gate over real sockets: who gets in, and what is told to those who do not."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send
from tests.support.guarded import Guarded
from tests.support.issuer import RESOURCE
from tests.support.mcp_servers import (
    ERAS,
    WAIT_S,
    RawHttp,
    connected,
    http_server,
    initialize,
    modern_call,
    modern_headers,
)

from agent_sandbox.errors import (
    AccessError,
    CredentialsInvalidError,
    CredentialsMalformedError,
    CredentialsMissingError,
    CredentialsUncheckedError,
    ScopeMissingError,
)
from agent_sandbox.mcp_server.auth.authority import Authority
from agent_sandbox.mcp_server.auth.bearer import BearerGate, Challenge
from agent_sandbox.mcp_server.auth.tokens import StaticTokens, make_token
from agent_sandbox.mcp_server.principals import Principal, principal_of_scope

METADATA = "https://sandboxes.example/.well-known/oauth-protected-resource/mcp"
CHALLENGE = f'scope="sandboxes:use", resource_metadata="{METADATA}"'


@pytest.fixture
async def raw(guarded: Guarded) -> AsyncIterator[RawHttp]:
    async with RawHttp.open(guarded.server.url) as raw:
        yield raw


async def ask(raw: RawHttp, era: str, **headers: str) -> httpx2.Response:
    """Send the first request of an era."""
    if era == ERAS[0]:
        return await raw.post(initialize(1), **headers)
    more = modern_headers("list_sandboxes")
    return await raw.post(modern_call(1, "list_sandboxes"), **more, **headers)


def check_refusal(answer: httpx2.Response, error: type[AccessError], code: str | None) -> None:
    """Check an answer to the last header."""
    assert answer.status_code == error.http_status
    assert answer.json()["error"] == {"code": -32600, "message": error.text}
    assert answer.headers["cache-control"] == "no-store"
    told = f'error="{code}", ' if code else ""
    assert answer.headers["www-authenticate"] == f'Bearer realm="agent-sandbox", {told}{CHALLENGE}'


@pytest.mark.parametrize("era", ERAS)
async def test_good_tokens_of_both_kinds_are_let_in(
    guarded: Guarded, raw: RawHttp, era: str
) -> None:
    for token in (guarded.one.token, guarded.two.token, guarded.issuer.token()):
        for scheme in ("Bearer", "bearer", "BEARER", "Bearer "):
            answer = await ask(raw, era, authorization=f"{scheme} {token}")
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("value", [None, "", "Basic b25lOnR3bw==", "bearertoken", "Token x"])
async def test_without_a_bearer_token_the_answer_says_what_is_asked_for(
    raw: RawHttp, era: str, value: str | None
) -> None:
    headers = {} if value is None else {"authorization": value}
    check_refusal(await ask(raw, era, **headers), CredentialsMissingError, None)


async def test_every_method_and_a_token_elsewhere_than_in_the_header_is_refused(
    guarded: Guarded, raw: RawHttp
) -> None:
    for method in ("GET", "POST", "DELETE", "OPTIONS", "PUT", "HEAD"):
        url = f"{raw.url}?access_token={guarded.one.token}"
        cookies = {"cookie": f"token={guarded.one.token}; access_token={guarded.one.token}"}
        answer = await raw.http.request(method, url, headers={**raw.headers, **cookies})
        assert answer.status_code == 401
        assert "error=" not in answer.headers["www-authenticate"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_wrong_token_is_refused_without_a_word_why(
    guarded: Guarded, raw: RawHttp, era: str
) -> None:
    one, issuer = guarded.one, guarded.issuer
    for token in (
        "x",
        one.token[:-1] + ("A" if one.token[-1] != "A" else "B"),
        make_token("stranger").token,
        one.line.split()[1],
        f"{one.token} {one.token}",
        f"{one.token},{one.token}",
        f"{one.token}, Bearer {one.token}",
        issuer.token(aud="https://elsewhere.example"),
        issuer.token(iss="https://evil.example"),
        issuer.token(exp=1),
        issuer.token(header={"kid": "made-up"}),
        "x" * 16_385,
        "x" * 40_000,
    ):
        answer = await ask(raw, era, authorization=f"Bearer {token}")
        check_refusal(answer, CredentialsInvalidError, "invalid_token")
    answer = await ask(raw, era, authorization="Bearer")
    check_refusal(answer, CredentialsInvalidError, "invalid_token")
    answer = await raw.http.post(raw.url, headers=[(b"authorization", b"Bearer \xff\xc3\xa9")])
    check_refusal(answer, CredentialsInvalidError, "invalid_token")


@pytest.mark.parametrize("second", ["same", "other", "basic"])
async def test_two_authorization_headers_are_refused_even_if_both_are_good(
    guarded: Guarded, raw: RawHttp, second: str
) -> None:
    good = f"Bearer {guarded.one.token}"
    other = {"same": good, "other": f"Bearer {guarded.two.token}", "basic": "Basic eDp5"}[second]
    for pair in ((good, other), (other, good)):
        headers = [*raw.headers.items(), *(("authorization", value) for value in pair)]
        answer = await raw.http.post(raw.url, content=initialize(1), headers=headers)
        check_refusal(answer, CredentialsMalformedError, "invalid_request")


@pytest.mark.parametrize(
    "changed",
    [
        {"scope": None},
        {"scope": ""},
        {"scope": "sandboxes:use2 sandboxes"},
        {"scope": "SANDBOXES:USE"},
        {"scope": None, "scp": [["sandboxes:use"]]},
        {"scope": 5},
        {"scope": {"sandboxes:use": True}},
    ],
)
async def test_a_token_without_the_scope_is_told_which_one_it_needs(
    guarded: Guarded, raw: RawHttp, changed: dict[str, Any]
) -> None:
    for era in ERAS:
        token = guarded.issuer.token(**changed)
        answer = await ask(raw, era, authorization=f"Bearer {token}")
        check_refusal(answer, ScopeMissingError, "insufficient_scope")


async def test_the_metadata_leads_to_the_issuer_and_health_asks_for_nothing(
    guarded: Guarded, raw: RawHttp
) -> None:
    root = raw.url.removesuffix("/mcp")
    described = await raw.http.get(f"{root}/.well-known/oauth-protected-resource/mcp")
    assert described.status_code == 200
    assert described.json() == {
        "resource": RESOURCE,
        "authorization_servers": [guarded.issuer.url],
        "scopes_supported": ["sandboxes:use"],
        "bearer_methods_supported": ["header"],
        "resource_name": "agent-sandbox",
    }
    assert (await raw.http.get(f"{root}/health")).status_code == 200


async def test_the_token_goes_no_further_than_the_gate(guarded: Guarded) -> None:
    seen: list[Scope] = []

    async def behind(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    gate = BearerGate(behind, Authority(StaticTokens(guarded.token_file, None), None), Challenge())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(gate)) as http:
        good = {"authorization": f"Bearer {guarded.one.token}"}
        assert (await http.post("http://test/mcp", headers=good)).status_code == 200
    (scope,) = seen
    assert principal_of_scope(scope) == Principal(guarded.one.id)
    assert guarded.one.token not in repr(scope) + repr(scope["user"].access_token)


async def test_the_secret_of_an_upload_opens_nothing_else(guarded: Guarded) -> None:
    async with connected(guarded.server.url, ERAS[1], token=guarded.one.token) as client:
        opened = await client.call_tool("create_upload_url", {"filename": "x", "size_bytes": 1})
    fields = opened.structured_content
    assert fields is not None
    secret = fields["headers"]["Authorization"]
    async with RawHttp.open(guarded.server.url) as raw:
        assert (await ask(raw, ERAS[0], authorization=secret)).status_code == 401
        token = {**fields["headers"], "Authorization": f"Bearer {guarded.one.token}"}
        put = await raw.http.put(fields["url"], headers=token, content=b"x")
        assert put.status_code == 404


async def test_host_and_origin_are_looked_at_first(guarded: Guarded, raw: RawHttp) -> None:
    good = f"Bearer {guarded.one.token}"
    for authorization in ("Bearer x", good):
        answer = await raw.post(initialize(1), authorization=authorization, host="evil.example")
        assert answer.status_code == 421
        answer = await raw.post(
            initialize(1), authorization=authorization, origin="http://evil.example"
        )
        assert answer.status_code == 403
        assert "www-authenticate" not in answer.headers


async def test_a_refused_body_is_dropped_and_its_answer_arrives(raw: RawHttp) -> None:
    answer = await raw.post(b" " * 8_000_000, authorization="Bearer x")
    assert answer.status_code == 401


def test_the_answer_to_a_stranger_does_not_wait_for_a_body_for_long(guarded: Guarded) -> None:
    with socket.create_connection(guarded.server.address, timeout=WAIT_S) as peer:
        peer.sendall(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4194304\r\n"
            b"Accept: application/json\r\nContent-Type: application/json\r\n\r\n{"
        )
        assert peer.recv(65_536).startswith(b"HTTP/1.1 401 ")


async def test_while_the_issuer_is_away_a_token_is_neither_good_nor_bad(guarded: Guarded) -> None:
    token = guarded.issuer.token()
    arguments = [
        argument
        if not argument.startswith("--oauth-jwks-url")
        else "--oauth-jwks-url=http://127.0.0.1:9/keys"
        for argument in guarded.arguments
    ]
    with http_server(arguments=arguments) as server:
        async with RawHttp.open(server.url) as raw:
            answer = await ask(raw, ERAS[1], authorization=f"Bearer {token}")
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == CredentialsUncheckedError.text
            assert answer.headers["retry-after"] == "5"
            assert "www-authenticate" not in answer.headers
            static = await ask(raw, ERAS[1], authorization=f"Bearer {guarded.one.token}")
            assert static.status_code == 200
        printed = server.end()
    assert "the issuer's keys cannot be fetched (SandboxUnavailableError)" in printed
    assert token not in printed


async def test_tokens_from_the_environment_are_asked_for_and_need_no_metadata() -> None:
    made = make_token("ci")
    with http_server(env={"AGENT_SANDBOX_TOKENS": made.line}) as server:
        async with RawHttp.open(server.url) as raw:
            refused = await ask(raw, ERAS[0])
            assert refused.headers["www-authenticate"] == 'Bearer realm="agent-sandbox"'
            assert (await ask(raw, ERAS[0], authorization="Bearer a.b.c")).status_code == 401
            good = await ask(raw, ERAS[0], authorization=f"Bearer {made.token}")
            assert good.status_code == 200
            missing = await raw.http.get(
                raw.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
            )
            assert missing.status_code == 404
