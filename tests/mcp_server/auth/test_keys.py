"""The issuer's keys: which count, how long, and how often they are fetched."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from tests.support.issuer import SigningKey

from agent_sandbox.errors import CredentialsUncheckedError, TransferError
from agent_sandbox.mcp_server.auth.keys import (
    FRESH_S,
    MAX_KEYS,
    PAUSE_S,
    STALE_S,
    KeySet,
    read_keys,
)

RSA = SigningKey.make("rsa")
EC = SigningKey.make("ec", "P-256")


class Source:
    """Hands out keys, and counts; a clock beside it that stands still unless it is moved."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys: list[dict[str, Any]] | None = list(keys)
        self.fetches = 0
        self.now = 1000.0
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()
        self.may_answer.set()
        self.known = KeySet(self.fetch, lambda: self.now)

    async def fetch(self) -> bytes:
        self.fetches += 1
        self.asked.set()
        await self.may_answer.wait()
        if self.keys is None:
            raise TransferError
        return json.dumps({"keys": self.keys}).encode()


def numbers(public: Any) -> Any:
    return public.public_numbers()


async def test_keys_are_fetched_once_and_found_by_name_kind_and_algorithm() -> None:
    source = Source(RSA.public_jwk(), EC.public_jwk(alg="ES256", use="sig"))
    assert numbers(await source.known.find("rsa", "RS256")) == numbers(RSA.private.public_key())
    assert numbers(await source.known.find("rsa", "PS512")) == numbers(RSA.private.public_key())
    assert numbers(await source.known.find("ec", "ES256")) == numbers(EC.private.public_key())
    assert source.fetches == 1
    for kid, algorithm in (("rsa", "ES256"), ("ec", "RS256"), ("ec", "ES384"), ("x", "RS256")):
        assert await source.known.find(kid, algorithm) is None
    assert source.fetches == 1  # the pause holds


async def test_a_token_without_a_key_name_fits_only_where_one_key_can_be_meant() -> None:
    source = Source(RSA.public_jwk(), EC.public_jwk())
    assert await source.known.find(None, "RS256") is not None
    source.keys = [RSA.public_jwk(), SigningKey.make("second").public_jwk()]
    source.now += FRESH_S + 1
    assert await source.known.find(None, "RS256") is None


async def test_an_unknown_key_is_fetched_but_never_more_often_than_the_pause() -> None:
    source = Source(RSA.public_jwk())
    await source.known.find("rsa", "RS256")
    new = SigningKey.make("new")
    source.keys = [RSA.public_jwk(), new.public_jwk()]
    assert await source.known.find("new", "RS256") is None
    source.now += PAUSE_S
    assert numbers(await source.known.find("new", "RS256")) == numbers(new.private.public_key())
    assert source.fetches == 2
    for number in range(1000):
        source.now += PAUSE_S / 500
        assert await source.known.find(f"made-up-{number}", "RS256") is None
    assert source.fetches <= 5


async def test_a_key_that_was_taken_back_ends_with_the_next_fetch() -> None:
    source = Source(RSA.public_jwk())
    assert await source.known.find("rsa", "RS256") is not None
    source.keys = [EC.public_jwk()]
    source.now += FRESH_S
    assert await source.known.find("rsa", "RS256") is not None
    source.now += 1
    assert await source.known.find("rsa", "RS256") is None


async def test_while_the_issuer_is_away_its_last_keys_count_for_an_hour_and_no_longer() -> None:
    source = Source(RSA.public_jwk())
    await source.known.find("rsa", "RS256")
    source.keys = None
    source.now += STALE_S
    assert await source.known.find("rsa", "RS256") is not None
    source.now += PAUSE_S
    with pytest.raises(CredentialsUncheckedError):
        await source.known.find("rsa", "RS256")
    source.keys = [RSA.public_jwk()]
    source.now += PAUSE_S
    assert await source.known.find("rsa", "RS256") is not None


async def test_before_the_first_answer_nothing_can_be_checked() -> None:
    source = Source()
    source.keys = None
    with pytest.raises(CredentialsUncheckedError):
        await source.known.find("rsa", "RS256")


async def test_many_callers_wait_for_one_fetch(anyio_backend: str) -> None:
    source = Source(RSA.public_jwk())
    source.may_answer = anyio.Event()
    found: list[Any] = []

    async def ask() -> None:
        found.append(await source.known.find("rsa", "RS256"))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(ask)
            await source.asked.wait()
            source.may_answer.set()
    assert source.fetches == 1
    assert len(found) == 50
    assert None not in found


async def test_who_hangs_up_does_not_keep_the_fetch_from_the_others() -> None:
    source = Source(RSA.public_jwk())
    source.may_answer = anyio.Event()

    async def ask_and_hang_up(tasks: TaskGroup) -> None:
        with anyio.CancelScope() as scope:
            tasks.start_soon(hang_up, scope)
            await source.known.find("made-up", "RS256")

    async def hang_up(scope: anyio.CancelScope) -> None:
        await source.asked.wait()
        scope.cancel()
        source.may_answer.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await ask_and_hang_up(tasks)
    assert await source.known.find("rsa", "RS256") is not None
    assert source.fetches == 1


PASSED_OVER: dict[str, Any] = {
    "symmetric": {"kty": "oct", "kid": "x", "k": "c2VjcmV0"},
    "private": {**RSA.public_jwk(), "d": "AQAB"},
    "for encryption": RSA.public_jwk(use="enc"),
    "for another operation": RSA.public_jwk(key_ops=["encrypt"]),
    "with operations that are none": RSA.public_jwk(key_ops="verify"),
    "symmetric algorithm": RSA.public_jwk(alg="HS256"),
    "no algorithm": RSA.public_jwk(alg="none"),
    "algorithm of a wrong type": RSA.public_jwk(alg=["RS256"]),
    "short": SigningKey.make("short", "short").public_jwk(),
    "another curve": {**EC.public_jwk(), "crv": "secp256k1"},
    "a point that is on no curve": {**EC.public_jwk(), "x": EC.public_jwk()["y"]},
    "without its numbers": {"kty": "RSA", "kid": "x"},
    "numbers that are none": {"kty": "RSA", "kid": "x", "n": 5, "e": []},
    "a name of a wrong type": RSA.public_jwk(kid=5),
    "text": "RSA",
}


@pytest.mark.parametrize("what", PASSED_OVER)
def test_a_key_that_must_check_nothing_is_passed_over(what: str) -> None:
    document = json.dumps({"keys": [PASSED_OVER[what], EC.public_jwk()]}).encode()
    assert [key.kid for key in read_keys(document)] == ["ec"]


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000, b"null"]
)
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_keys(document)


def test_only_so_many_keys_are_read() -> None:
    many = {"keys": [EC.public_jwk(kid=str(number)) for number in range(2 * MAX_KEYS)]}
    assert len(read_keys(json.dumps(many).encode())) == MAX_KEYS
