"""Access tokens against a real issuer on loopback: which are good, and every way to be bad."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.issuer import RESOURCE, Issuer, SigningKey, running_issuer

from agent_sandbox.errors import ConfigError, CredentialsUncheckedError
from agent_sandbox.mcp_server.auth.access_tokens import AccessTokens
from agent_sandbox.mcp_server.auth.settings import OAuthConfig
from agent_sandbox.mcp_server.principals import Principal


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as running:
        yield running


def settings_of(issuer: Issuer, /, **more: Any) -> OAuthConfig:
    return OAuthConfig(
        **{
            "issuer": issuer.url,
            "jwks_url": issuer.jwks_url,
            "resource": RESOURCE,
            "scopes": ("sandboxes:use",),
            **more,
        }
    )


@pytest.fixture(scope="module")
def tokens(issuer: Issuer) -> AccessTokens:
    return AccessTokens(settings_of(issuer))


async def test_a_good_token_tells_who_it_is_for_and_is_not_kept(
    issuer: Issuer, tokens: AccessTokens
) -> None:
    token = issuer.token()
    found = await tokens.verify(token)
    assert found is not None
    assert Principal.of_token(found) == Principal("agent", issuer.url, "alice")
    assert found.scopes == ["sandboxes:use"]
    assert found.token == ""
    assert token.rpartition(".")[2] not in repr(found)


GOOD: dict[str, dict[str, Any]] = {
    "several audiences": {"aud": ["https://elsewhere.example", RESOURCE]},
    "without times": {"iat": None},
    "just expired": {"exp": int(time.time()) + 10**6, "nbf": int(time.time()) + 10},
    "azp": {"client_id": None, "azp": "agent"},
    "cid and scp": {"client_id": None, "cid": "agent", "scope": None, "scp": ["sandboxes:use"]},
    "scopes as a text in scp": {"scope": None, "scp": "x sandboxes:use"},
    "scopes as a list in scope": {"scope": ["x", "sandboxes:use"]},
    "two names of one client": {"azp": "other"},
    "a type of old": {"header": {"typ": "JWT"}},
    "no type": {"header": {"typ": None}},
    "further claims": {"groups": ["a"] * 100, "act": {"sub": "x"}},
}


@pytest.mark.parametrize("what", GOOD)
async def test_what_a_token_may_be_like(issuer: Issuer, tokens: AccessTokens, what: str) -> None:
    found = await tokens.verify(issuer.token(**GOOD[what]))
    assert found is not None
    assert Principal.of_token(found) == Principal("agent", issuer.url, "alice")
    assert "sandboxes:use" in found.scopes


NOW = int(time.time())
BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "for another server": {"aud": "https://elsewhere.example/mcp"},
    "for a longer address": {"aud": RESOURCE + "/x"},
    "for nobody": {"aud": []},
    "without audience": {"aud": None},
    "an audience that is none": {"aud": {"a": RESOURCE}},
    "of another issuer": {"iss": "https://evil.example"},
    "of an issuer with a slash more": {"iss": "http://127.0.0.1/"},
    "without issuer": {"iss": None},
    "expired": {"exp": NOW - 60},
    "without expiry": {"exp": None},
    "an expiry that is text": {"exp": str(NOW + 300)},
    "an expiry that is a truth": {"exp": True},
    "an expiry that never comes": {"exp": float("inf")},
    "not valid yet": {"nbf": NOW + 10**6},
    "issued in the future": {"iat": NOW + 10**6},
    "without subject": {"sub": None},
    "a subject that is a number": {"sub": 5},
    "an empty subject": {"sub": ""},
    "a subject of 513 characters": {"sub": "x" * 513},
    "without client": {"client_id": None},
    "an empty client beside another name": {"client_id": "", "azp": "agent"},
    "a client that is a list": {"client_id": ["agent"]},
    "a token for logging out": {"header": {"typ": "logout+jwt"}},
    "a type that is a list": {"header": {"typ": ["at+jwt"]}},
    "a critical extension": {"header": {"crit": ["b64"], "b64": True}},
    "an unknown critical extension": {"header": {"crit": ["x"], "x": 1}},
    "a key that nobody has": {"header": {"kid": "made-up"}},
}


@pytest.mark.parametrize("what", BAD_CLAIMS)
async def test_what_a_token_may_not_be_like(
    issuer: Issuer, tokens: AccessTokens, what: str
) -> None:
    assert await tokens.verify(issuer.token(**BAD_CLAIMS[what])) is None
    assert await tokens.verify(issuer.token()) is not None


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forged(issuer: Issuer, algorithm: Any, signature: bytes = b"", **header: Any) -> str:
    head = part({"alg": algorithm, "kid": issuer.key.kid, **header})
    tail = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return f"{head}.{part(issuer.claims())}.{tail}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, 5, ["RS256"], {}])
async def test_a_token_that_nobody_signed_is_refused(
    issuer: Issuer, tokens: AccessTokens, algorithm: Any
) -> None:
    assert await tokens.verify(forged(issuer, algorithm)) is None


@pytest.mark.parametrize("form", [PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1])
@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
@pytest.mark.parametrize("algorithm", ["HS256", "HS512", "hs256"])
async def test_the_public_key_is_no_shared_secret(
    issuer: Issuer, tokens: AccessTokens, algorithm: str, encoding: Encoding, form: PublicFormat
) -> None:
    secret = issuer.key.private.public_key().public_bytes(encoding, form)
    text = forged(issuer, algorithm).rpartition(".")[0]
    digest = hashlib.sha512 if "512" in algorithm else hashlib.sha256
    signature = hmac.new(secret, text.encode(), digest).digest()
    assert await tokens.verify(forged(issuer, algorithm, signature)) is None


async def test_a_key_that_the_token_brings_is_not_looked_at(
    issuer: Issuer, tokens: AccessTokens
) -> None:
    own = SigningKey.make(issuer.key.kid)
    with running_issuer() as evil:
        evil.jwks = [own.public_jwk()]
        for header in ({"jwk": own.public_jwk()}, {"jku": evil.jwks_url}, {"x5u": evil.jwks_url}):
            assert await tokens.verify(issuer.token(key=own, header=header)) is None
        assert evil.fetches == 0


async def test_a_changed_token_is_refused_wherever_it_is_changed(
    issuer: Issuer, tokens: AccessTokens
) -> None:
    head, body, signature = issuer.token().split(".")
    mallory = part(issuer.claims(sub="mallory"))
    for changed in (
        f"{head}.{mallory}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{head}.{body}.{signature}.{signature}",
        f"{head}.{body}.{signature}.x.y",  # five parts: an encrypted one
        f"{head}.{body}.{signature[:-4]}",
        f"{head}.{body}.{signature}=",
        f"{head} .{body}.{signature}",
        f"{head}.{body[::-1]}.{signature}",
        "..",
        "",
        f"{part([])}.{body}.{signature}",
        f"{base64.urlsafe_b64encode(b'[' * 9000).decode()}.{body}.{signature}",
    ):
        assert await tokens.verify(changed) is None


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("RSA", "RS512"), ("RSA", "PS256"), ("P-256", "ES256"), ("P-384", "ES384"),
     ("Ed25519", "EdDSA")],
)  # fmt: skip
async def test_each_algorithm_is_taken_unless_the_list_leaves_it_out(
    kind: str, algorithm: str
) -> None:
    with running_issuer() as issuer:
        key = SigningKey.make("own", kind)
        issuer.jwks = [key.public_jwk()]
        token = issuer.token(key=key, algorithm=algorithm)
        assert await AccessTokens(settings_of(issuer)).verify(token) is not None
        narrow = settings_of(issuer, algorithms=("RS256",))
        assert await AccessTokens(narrow).verify(token) is None
        assert issuer.fetches == 1  # what is not on the list costs no fetch


async def test_a_key_for_one_algorithm_checks_no_other() -> None:
    with running_issuer() as issuer:
        issuer.jwks = [issuer.key.public_jwk(alg="RS256")]
        known = AccessTokens(settings_of(issuer))
        assert await known.verify(issuer.token(algorithm="PS256")) is None
        assert await known.verify(issuer.token()) is not None


async def test_the_clocks_may_differ_by_so_much_and_no_more(issuer: Issuer) -> None:
    strict = AccessTokens(settings_of(issuer, clock_skew_s=0))
    lenient = AccessTokens(settings_of(issuer, clock_skew_s=120))
    now = int(time.time())
    early_and_late: list[dict[str, Any]] = [
        {"exp": now - 60},
        {"nbf": now + 60},
        {"iat": now + 60},
    ]
    for changed in early_and_late:
        token = issuer.token(**changed)
        assert await strict.verify(token) is None
        assert await lenient.verify(token) is not None
    assert await lenient.verify(issuer.token(exp=now - 130)) is None
    for skew in (-1, 121):
        with pytest.raises(ConfigError):
            settings_of(issuer, clock_skew_s=skew)


async def test_a_key_that_is_new_is_fetched_and_an_old_one_still_counts() -> None:
    with running_issuer() as issuer:
        known = AccessTokens(settings_of(issuer))
        known._keys._clock = lambda: clock  # the pause must pass
        clock = 1000.0
        assert await known.verify(issuer.token()) is not None
        new = SigningKey.make("second")
        issuer.jwks = [issuer.key.public_jwk(), new.public_jwk()]
        clock += 10
        assert await known.verify(issuer.token(key=new)) is not None
        assert await known.verify(issuer.token()) is not None
        assert issuer.fetches == 2


@pytest.mark.parametrize(
    "answer", [None, b"", b"{}", b"x" * 262_145, b"null"], ids=["500", "", "{}", "long", "null"]
)
async def test_an_issuer_without_usable_keys_is_no_verdict(answer: bytes | None) -> None:
    with running_issuer() as issuer:
        issuer.jwks = answer
        with pytest.raises(CredentialsUncheckedError):
            await AccessTokens(settings_of(issuer)).verify(issuer.token())


async def test_an_issuer_that_is_not_there_is_no_verdict(issuer: Issuer) -> None:
    away = AccessTokens(settings_of(issuer, jwks_url="http://127.0.0.1:9/keys"))
    with pytest.raises(CredentialsUncheckedError):
        await away.verify(issuer.token())


@given(st.one_of(st.text(), st.binary().map(bytes.hex), st.from_regex(r"[\w-]+\.[\w-]+\.[\w-]*")))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
async def test_no_text_at_all_raises(tokens: AccessTokens, text: str) -> None:
    assert await tokens.verify(text) is None


@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
async def test_no_header_at_all_raises(tokens: AccessTokens, header: dict[str, Any]) -> None:
    assert await tokens.verify(f"{part(header)}.{part({})}.AAAA") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "http://issuer.example"},
        {"issuer": "https://user:secret@issuer.example"},
        {"jwks_url": "http://keys.example"},
        {"jwks_url": "file:///etc/passwd"},
        {"resource": "/mcp"},
        {"resource": "https://[::1"},
        {"algorithms": ()},
        {"algorithms": ("HS256",)},
        {"algorithms": ("none",)},
        {"scopes": ("two words",)},
        {"scopes": ('quote"',)},
        {"scopes": ("",)},
    ],
)
def test_settings_that_would_let_others_in_are_refused(
    issuer: Issuer, changed: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        settings_of(issuer, **changed)
