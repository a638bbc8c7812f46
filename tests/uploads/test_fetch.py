"""`fetch`: a public link, bounded, and never a way into a private network."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trustme

from agent_sandbox.errors import (
    FetchError,
    FetchRefusedError,
    FileSizeLimitError,
    TransferTimeoutError,
)
from agent_sandbox.uploads.addresses import is_public
from agent_sandbox.uploads.fetch import FetchPolicy, fetch

PUBLIC = "93.184.216.34"
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class World:
    """A private internet: a name server, and one TLS server behind every address.

    Attributes:
        names: Addresses of each name.
        asked: Names that were looked up.
        reached: Address, port and name of each connection.
    """

    names: dict[str, list[str]]
    port: int
    context: ssl.SSLContext
    asked: list[str] = field(default_factory=list)
    reached: list[tuple[str, int, str]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError
        return self.names[host]

    async def connect(
        self, address: str, port: int, context: ssl.SSLContext, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.reached.append((address, port, name))
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=name
        )

    def policy(self, **changes: Any) -> FetchPolicy:
        made = FetchPolicy(
            max_bytes=1_000_000,
            deadline_s=10.0,
            idle_s=5.0,
            resolver=self.resolve,
            connect=self.connect,
            ssl_context=self.context,
        )
        return replace(made, **changes)


AUTHORITY = trustme.CA()


@asynccontextmanager
async def world(serve: Serve, **names: list[str]) -> AsyncIterator[World]:
    """Serve every host of `.example` with one handler, which gets the head of the request."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("files.example", "other.example").configure_cert(server_side)
    client_side = ssl.create_default_context()
    AUTHORITY.configure_trust(client_side)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            made.requests.append(head)
            await serve(head, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_side)
    known = {"files.example": [PUBLIC], "other.example": ["2606:2800:220:1:248:1893:25c8:1946"]}
    known |= {name.replace("_", "."): found for name, found in names.items()}
    async with server:
        made = World(known, server.sockets[0].getsockname()[1], client_side)
        yield made


def answering(data: bytes) -> Serve:
    async def serve(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return serve


def ok(body: bytes, *lines: bytes) -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"Content-Length: %d" % len(body), *lines))
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


def redirect(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


async def load(url: str, policy: FetchPolicy) -> bytes:
    async with fetch(url, policy) as fetched:
        return b"".join([chunk async for chunk in fetched.chunks])


async def test_a_public_link_is_fetched_whole_from_the_pinned_address() -> None:
    async with world(answering(ok(b"hello"))) as net:
        async with fetch("https://files.example/a/b?c=d#e", net.policy()) as fetched:
            assert fetched.size_bytes == 5
            assert [chunk async for chunk in fetched.chunks] == [b"hello"]
        assert net.asked == ["files.example"]
        assert net.reached == [(PUBLIC, 443, "files.example")]
        head = net.requests[0].lower()
        assert head.startswith(b"get /a/b?c=d http/1.1\r\nhost: files.example\r\n")
        assert b"accept-encoding: identity" in head
        assert b"authorization" not in head
        assert b"cookie" not in head


async def test_a_chunked_body_is_counted() -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with world(answering(body)) as net:
        assert await load("https://files.example/", net.policy(max_bytes=3)) == b"abc"
        with pytest.raises(FileSizeLimitError) as caught:
            await load("https://files.example/", net.policy(max_bytes=2))
        assert caught.value.limit == 2


async def test_a_declared_size_over_the_bound_is_refused_before_the_body() -> None:
    async with world(answering(ok(b"")[:-2].replace(b": 0", b": 1000001") + b"\r\n")) as net:
        with pytest.raises(FileSizeLimitError):
            async with fetch("https://files.example/", net.policy()):
                pytest.fail("opened")


@pytest.mark.parametrize(
    "url",
    [
        "http://files.example/",
        "ftp://files.example/",
        "file:///etc/passwd",
        "//files.example/",
        "files.example",
        "",
        "https://",
        "https:///a",
        "https://user@files.example/",
        "https://user:pw@files.example/",
        "https://@files.example/",
        "https://files.example:8443/",
        "https://files.example:22/",
        "https://files.example:0/",
        "https://files.example:-1/",
        "https://files.example:x/",
        "https://files.example\\@127.0.0.1/",
        "https://files.example /",
        "https://files.example/\r\nX-A:b",
        "https://files.example/\t",
        "https://[fe80::1%25eth0]/",
        "https://[::1/",
        "https://" + "a" * 64 + ".example/",
        "https://files.example/" + "a" * 3_000,
        "https://files.example/é",
    ],
)
async def test_a_link_outside_the_rules_is_refused_before_a_look_up(url: str) -> None:
    async with world(answering(ok(b""))) as net:
        with pytest.raises(FetchRefusedError):
            await load(url, net.policy())
        assert net.asked == []


@pytest.mark.parametrize("inner", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1"])
async def test_one_private_address_among_public_ones_refuses_the_name(inner: str) -> None:
    for found in ([inner], [PUBLIC, inner], [inner, PUBLIC]):
        async with world(answering(ok(b"")), files_example=found) as net:
            with pytest.raises(FetchRefusedError):
                await load("https://files.example/", net.policy())
            assert net.reached == []


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "0x7f.1", "2130706433", "localhost"])
async def test_the_system_s_resolver_leads_no_spelling_of_this_machine_past_the_check(
    host: str,
) -> None:
    async with world(answering(ok(b""))) as net:
        policy = net.policy(resolver=FetchPolicy(max_bytes=1).resolver)
        with pytest.raises((FetchRefusedError, FetchError)):
            await load(f"https://{host}/", policy)
        assert net.reached == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_to_a_public_place(status: int) -> None:
    async def serve(head: bytes, writer: asyncio.StreamWriter) -> None:
        moved = b"other.example" not in head
        writer.write(redirect("//other.example/b", status) if moved else ok(b"there"))

    async with world(serve) as net:
        assert await load("https://files.example/a", net.policy()) == b"there"
        assert [name for _, _, name in net.reached] == ["files.example", "other.example"]


@pytest.mark.parametrize(
    "location",
    [
        "http://files.example/",
        "https://inside.example/",
        "https://127.0.0.1/",
        "https://files.example:22/",
        "https://u:p@files.example/",
        "file:///etc/passwd",
        "javascript:1",
        "https://[",
        "//[::1",
    ],
)
async def test_a_redirect_is_checked_like_the_first_link(location: str) -> None:
    async with world(answering(redirect(location)), inside_example=["10.0.0.1"]) as net:
        net.names["127.0.0.1"] = ["127.0.0.1"]
        with pytest.raises(FetchRefusedError):
            await load("https://files.example/", net.policy())
        assert len(net.reached) == 1


async def test_a_name_that_turns_private_between_redirects_is_refused() -> None:
    async with world(answering(redirect("/again"))) as net:
        turns = iter([[PUBLIC], ["127.0.0.1"]])

        async def rebinding(host: str, port: int) -> list[str]:
            return next(turns)

        with pytest.raises(FetchRefusedError):
            await load("https://files.example/", net.policy(resolver=rebinding))
        assert len(net.reached) == 1


async def test_endless_redirects_end() -> None:
    async with world(answering(redirect("/again"))) as net:
        with pytest.raises(FetchRefusedError):
            await load("https://files.example/", net.policy())
        assert len(net.reached) == 6


GOOD = ok(b"hello")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ok(b"hello", b"Content-Encoding: gzip"),
        ok(b"hello", b"Content-Encoding: identity", b"Content-Encoding: br"),
        ok(b"hello", b"X-A: " + b"a" * 200_000),
        GOOD.replace(b"200 OK", b"206 Partial"),
        GOOD.replace(b"200 OK", b"404 Not Found"),
        GOOD.replace(b"200 OK", b"500 Oops"),
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_an_answer_that_proves_nothing_is_an_error(answer: bytes) -> None:
    async with world(answering(answer)) as net:
        with pytest.raises(FetchError):
            await load("https://files.example/", net.policy())


async def test_a_certificate_of_another_name_is_refused() -> None:
    async with world(answering(GOOD), wrong_example=[PUBLIC]) as net:
        with pytest.raises(FetchError):
            await load("https://wrong.example/", net.policy())
        with pytest.raises(FetchError):
            await load("https://files.example/", net.policy(ssl_context=FetchPolicy(1).ssl_context))
        assert net.requests == []


async def test_an_unknown_name_and_a_refused_connection_are_errors() -> None:
    async def refuses(*_: Any) -> Any:
        raise ConnectionRefusedError

    async with world(answering(GOOD)) as net:
        with pytest.raises(FetchError):
            await load("https://unknown.example/", net.policy())
        with pytest.raises(FetchError):
            await load("https://files.example/", net.policy(connect=refuses))


async def test_the_next_address_is_tried() -> None:
    async with world(answering(GOOD), files_example=["8.8.8.8", PUBLIC]) as net:

        async def first_is_down(address: str, *rest: Any) -> Any:
            if address == "8.8.8.8":
                raise ConnectionRefusedError
            return await net.connect(address, *rest)

        assert await load("https://files.example/", net.policy(connect=first_is_down)) == b"hello"


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel"])
async def test_a_stalling_server_is_given_up(head: bytes) -> None:
    done = asyncio.Event()

    async def serve(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await done.wait()

    async with world(serve) as net:
        for bounds in ({"idle_s": 0.2}, {"deadline_s": 0.3}):
            with pytest.raises(TransferTimeoutError):
                await load("https://files.example/", net.policy(**bounds))
        done.set()


CRUMBS = [
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", b"0\r\n\r\n"),
    (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", ok(b"x")),
]


@pytest.mark.parametrize(("head", "crumb", "end"), CRUMBS, ids=["chunks", "interim responses"])
async def test_a_peer_that_sends_crumbs_leaves_everybody_else_a_turn(
    head: bytes, crumb: bytes, end: bytes
) -> None:
    async with world(answering(head + crumb * 5_000 + end)) as made:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        opened = turns
        assert set(await load("https://files.example/x", made.policy(deadline_s=60))) == set(b"x")
        task.cancel()
        assert turns - opened > 5_000 / 64  # the connection alone takes a few dozen


async def test_a_dripping_server_is_given_up_at_the_deadline() -> None:
    async def serve(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        for _unused in range(200):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with world(serve) as net:
        with pytest.raises(TransferTimeoutError):
            await load("https://files.example/", net.policy(deadline_s=0.5, idle_s=0.3))


async def test_a_timeout_of_the_caller_s_own_stays_its_own() -> None:
    async with world(answering(GOOD)) as net:
        with pytest.raises(TimeoutError):
            async with fetch("https://files.example/", net.policy()):
                raise TimeoutError


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "168.63.129.16",
        "169.254.169.254", "172.16.0.1", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.0.1",
        "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
        "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1",
        "2001:0:53aa:64c:0:0:80ff:fffe", "2001:db8::1", "2002:7f00:1::", "2002:808:808::",
        "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1",
        "ff02::1",
        "", "localhost", "127.1", "0x7f000001", "2130706433", "1.2.3.4.5", "08.8.8.8",
    ],
)  # fmt: skip
def test_an_address_that_is_not_everybody_s_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", PUBLIC, "2606:4700::1111", "2a00:1450:4001::1"])
def test_an_address_of_the_open_internet_is_public(address: str) -> None:
    assert is_public(address)
