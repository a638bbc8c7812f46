"""Answers of a service that lies: nothing of them reaches the caller unchecked."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
import pytest
from pydantic import ValidationError
from tests.client.conftest import Connect, Lives, assert_clean, sends
from tests.support.bad_peer import SANDBOX_ID, BadPeer, Talk, answer
from tests.support.bad_peer import chunked as chunked_answer

from agent_sandbox.client import _sinks
from agent_sandbox.client.operations import _entries
from agent_sandbox.models import (
    FileConflictError,
    SandboxUnavailableError,
    SizeLimitError,
    TransferError,
)
from agent_sandbox.wire import connect as wire

# --- Files ------------------------------------------------------------------------------------

ENTRY = {"name": "a", "path": "/d/a", "type": "FILE_TYPE_FILE", "size": "3", "mode": 420}


def listing(*entries: dict[str, Any]) -> bytes:
    return answer(json.dumps({"entries": list(entries)}).encode())


LIES = {
    "name with a slash": {"name": "../../etc/passwd", "path": "/d/../../etc/passwd"},
    "path elsewhere": {"path": "/etc/a"},
    "path beside": {"path": "/dd/a"},
    "path relative": {"path": "../a"},
    "path with dots": {"name": "..", "path": "/d/.."},
    "path with a dot": {"name": ".", "path": "/d/."},
    "path with dots inside": {"path": "/d/../a"},
    "no path": {"path": ""},
    "the directory itself": {"name": "d", "path": "/d"},
    "no name": {"name": "", "path": "/d/"},
    "another name": {"name": "b"},
    "NUL": {"name": "a\0b", "path": "/d/a\0b"},
    "too deep": {"path": "/d/x/a"},
    "negative size": {"size": -5},
    "size is true": {"size": True},
    "mode is true": {"mode": True},
    "size of 2^63": {"size": str(2**63)},
    "size of 4,000 digits": {"size": "9" * 4000},
    "time before the year 1": {"modifiedTime": "0001-01-01T00:00:00+14:00"},
    "time after 9999": {"modifiedTime": "9999-12-31T23:59:59-14:00"},
    "time is a word": {"modifiedTime": "NaN"},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_an_entry_that_cannot_be_is_a_broken_transfer(
    connect: Connect, lie: dict[str, Any]
) -> None:
    with BadPeer(sends(listing(ENTRY, ENTRY | lie))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError) as caught:
                await subject.files("list", "/d")
            assert_clean(caught.value)
            assert subject.busy() == 0


async def test_good_entries_are_returned_at_every_depth(connect: Connect) -> None:
    below = ENTRY | {"name": "..b", "path": "/d/a/..b"}
    with BadPeer(sends(listing(ENTRY, below))) as peer:
        async with connect(peer) as subject:
            found = await subject.files("list", "/d", depth=2)
            assert [entry.path for entry in found] == ["/d/a", "/d/a/..b"]
    with BadPeer(sends(listing(ENTRY | {"name": "d", "path": "/d"}))) as peer:
        async with connect(peer) as subject:
            assert [entry.name for entry in await subject.files("list", "/")] == ["d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-01T12:00:00", datetime(2024, 1, 1, 12, tzinfo=UTC)),
        ("2024-01-01T12:00:00Z", datetime(2024, 1, 1, 12, tzinfo=UTC)),
        ("2024-01-01T14:00:00+02:00", datetime(2024, 1, 1, 12, tzinfo=UTC)),
        (None, datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
async def test_times_are_in_utc(connect: Connect, text: str | None, expected: datetime) -> None:
    with BadPeer(sends(listing(ENTRY | {"modifiedTime": text}))) as peer:
        async with connect(peer) as subject:
            (found,) = await subject.files("list", "/d")
            assert (found.modified_at, found.modified_at.tzinfo) == (expected, UTC)


@pytest.mark.parametrize(
    ("method", "arguments"), [("stat", ["/d/b"]), ("exists", ["/d/b"]), ("rename", ["/a", "/d/b"])]
)
@pytest.mark.parametrize("lie", [{}, {"path": "/d/b", "name": "c"}, {"path": "", "name": ""}])
async def test_another_entry_than_the_one_asked_for_is_a_broken_transfer(
    connect: Connect, method: str, arguments: list[str], lie: dict[str, Any]
) -> None:
    body = json.dumps({"entry": ENTRY | lie}).encode()
    with BadPeer(sends(answer(body))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError):
                await subject.files(method, *arguments)


async def test_a_directory_that_does_not_answer_for_itself_is_a_conflict_no_more(
    connect: Connect,
) -> None:
    """make_dir asks what stands there: the answer must be about the same path."""

    def script(talk: Talk) -> None:
        if "MakeDir" in talk.requests[-1].line:
            talk.send(answer(b"{}", status=b"409 Conflict"))
        else:
            talk.send(answer(json.dumps({"entry": ENTRY}).encode()))

    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError):
                await subject.files("make_dir", "/d/b")
            with pytest.raises(FileConflictError):
                await subject.files("make_dir", "/d/a")


@pytest.mark.parametrize("name", ["", "/"])
async def test_the_root_is_found_whatever_a_service_calls_it(connect: Connect, name: str) -> None:
    body = json.dumps({"entry": {"name": name, "path": "/", "type": "FILE_TYPE_DIRECTORY"}})
    with BadPeer(sends(answer(body.encode()))) as peer:
        async with connect(peer) as subject:
            assert (await subject.files("stat", "/")).name == ""


def many(count: int) -> bytes:
    """Return a list of so many good entries."""
    entries = [ENTRY | {"name": f"{n:0100}", "path": f"/d/{n:0100}"} for n in range(count)]
    return json.dumps({"entries": entries}).encode()


async def test_a_list_of_as_many_entries_as_express_sends_is_returned_and_no_longer_one() -> None:
    """Above 4 MiB, which bounds every other message."""
    body = many(_entries.MAX_ENTRIES)
    assert len(body) > 4 * wire.MAX_MESSAGE_BYTES
    found = await anyio.to_thread.run_sync(lambda: _entries.listed(body, path="/d", depth=1))
    assert len(found) == _entries.MAX_ENTRIES == 100_000
    longer = body[:-2] + b"," + many(1)[len(b'{"entries": [') :]
    with pytest.raises(ValidationError) as caught:
        await anyio.to_thread.run_sync(lambda: _entries.listed(longer, path="/d", depth=1))
    assert [error["type"] for error in caught.value.errors(include_input=False)] == ["too_long"]


async def test_a_list_that_is_longer_than_any_service_sends_is_refused(connect: Connect) -> None:
    body = many(1)[:-2] + b",{}" * _entries.MAX_ENTRIES + b"]}"
    with BadPeer(sends(answer(body))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError) as caught:
                await subject.files("list", "/d")
            assert_clean(caught.value)
            assert subject.busy() == 0


async def test_a_long_list_does_not_hold_up_the_event_loop(connect: Connect) -> None:
    entries = [ENTRY | {"name": str(n), "path": f"/d/{n}"} for n in range(2_000)]
    body = json.dumps({"entries": entries}).encode()
    assert len(body) > _sinks.PARSE_INLINE_BYTES
    parsed = _sinks.Parsed(len(body), len, TransferError)
    for chunk in (body[: _sinks.PARSE_INLINE_BYTES], body[_sinks.PARSE_INLINE_BYTES :]):
        assert not parsed.slow
        parsed.feed(chunk)
    assert parsed.slow
    with BadPeer(sends(answer(body))) as peer:
        async with connect(peer) as subject:
            assert len(await subject.files("list", "/d")) == 2_000


async def test_a_list_that_the_service_finds_too_long_is_a_size_limit(connect: Connect) -> None:
    code = f"agent-sandbox-error: {SizeLimitError.code}\r\n".encode()
    with BadPeer(sends(answer(b"{}", status=b"413 Large", headers=code))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(SizeLimitError):
                await subject.files("list", "/d")


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "a\0b", "a//b", "a/", "./a"])
async def test_an_event_that_leads_out_of_its_directory_is_a_broken_transfer(
    connect: Connect, name: str
) -> None:
    change = {"filesystem": {"name": name, "type": "EVENT_TYPE_CREATE"}}
    messages = (b'{"start":{}}', json.dumps(change).encode())
    body = b"".join(wire.encode_envelope(message) for message in messages)
    with BadPeer(sends(chunked_answer(body, end=b""))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError):
                await subject.files("watch", "/d")
            assert subject.busy() == 0


# --- Sandboxes --------------------------------------------------------------------------------

MADE = {"templateID": "b", "sandboxID": SANDBOX_ID, "envdVersion": "0.6.4"}
LISTED = {
    "templateID": "b",
    "sandboxID": SANDBOX_ID,
    "startedAt": "2024-01-01T00:00:00",
    "endAt": "2024-01-01T02:00:00+01:00",
    "state": "running",
}
BAD_IDS = ["", "ü", "a\r\nx: y", "../../x", "a/b", "a" * 70_000, "-a", " a"]


class Control(BadPeer):
    """Answers one control-plane request after the other with what it was given."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__(sends(b""))
        self._answers = list(answers)

    def _serve(self, talk: Talk) -> None:
        talk.request()
        talk.send(self._answers.pop(0))
        talk.close()
        talk.wait_end()


async def control(surface: str, peer: BadPeer, method: str, *arguments: Any) -> Any:
    """Call a method of a client of the surface, and close the client."""
    async with Lives(surface, {"api_url": peer.url}) as client:
        return await getattr(client, method)(*arguments)


def as_json(value: Any, **options: Any) -> bytes:
    return answer(json.dumps(value).encode(), headers=b"Connection: close\r\n", **options)


@pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: bad[:8])
async def test_an_id_that_no_url_and_no_header_can_hold_is_refused(surface: str, bad: str) -> None:
    with Control(
        as_json(MADE | {"sandboxID": bad}), as_json([LISTED | {"sandboxID": bad}])
    ) as peer:
        with pytest.raises(SandboxUnavailableError) as caught:
            await control(surface, peer, "create")
        assert_clean(caught.value)
        with pytest.raises(SandboxUnavailableError):
            await control(surface, peer, "list")


@pytest.mark.parametrize(
    "lie",
    [
        {"envdAccessToken": ""},
        {"envdAccessToken": " "},
        {"envdAccessToken": "a b"},
        {"envdAccessToken": "é"},
        {"envdAccessToken": "a" * 10_000},
    ],
    ids=["empty", "blank", "inner blank", "not ASCII", "long"],
)
async def test_a_token_that_no_header_can_hold_is_refused(
    surface: str, lie: dict[str, str]
) -> None:
    with Control(as_json(MADE | lie)) as peer, pytest.raises(SandboxUnavailableError):
        await control(surface, peer, "create")


async def test_info_about_another_sandbox_is_refused(surface: str) -> None:
    lie = Control(as_json(LISTED | {"sandboxID": "another"}))
    with lie as peer, pytest.raises(SandboxUnavailableError):
        await control(surface, peer, "info", SANDBOX_ID)


async def test_the_times_of_a_sandbox_are_in_utc(surface: str) -> None:
    with Control(as_json(LISTED)) as peer:
        found = await control(surface, peer, "info", SANDBOX_ID)
    assert (found.started_at, found.end_at) == (
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, 1, tzinfo=UTC),
    )
    assert found.end_at.tzinfo is UTC
    lie = Control(as_json(LISTED | {"endAt": "9999-12-31T23:59:59-14:00"}))
    with lie as peer, pytest.raises(SandboxUnavailableError):
        await control(surface, peer, "info", SANDBOX_ID)


def page(*ids: str, token: str = "") -> bytes:
    headers = b"Connection: close\r\n" + (f"x-next-token: {token}\r\n".encode() if token else b"")
    body = json.dumps([LISTED | {"sandboxID": sandbox_id} for sandbox_id in ids]).encode()
    return answer(body, headers=headers)


async def test_every_page_of_the_list_is_read(surface: str) -> None:
    pages = page("a", "b", token="2 &"), page("b", "c", token="4"), page("d")
    with Control(*pages) as peer:
        found = await control(surface, peer, "list")
        assert [sandbox.sandbox_id for sandbox in found] == ["a", "b", "c", "d"]
        assert [talk.requests[0].line.split()[1] for talk in peer.talks] == [
            "/v2/sandboxes",
            "/v2/sandboxes?nextToken=2%20%26",
            "/v2/sandboxes?nextToken=4",
        ]


async def test_a_list_without_end_is_refused(surface: str) -> None:
    lie = Control(page("a", token="1"), page(token="2"))
    with lie as peer, pytest.raises(SandboxUnavailableError):
        await control(surface, peer, "list")
