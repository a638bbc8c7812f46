"""Over TLS, straight and through proxies: the same promises, on sockets of another kind."""

from __future__ import annotations

import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from tests.client.conftest import Connect, Lives, connected, run, sends
from tests.support.authority import NAME, Authority, Tunnel
from tests.support.bad_peer import SANDBOX_ID, WAIT_S, BadPeer, Talk, answer, chunked
from tests.support.environment import PROXIES, without
from tests.support.express import wait_until

from agent_sandbox.models import (
    FileSizeLimitError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    TransferError,
    TransferTimeoutError,
    UploadTimeoutError,
)
from agent_sandbox.wire import connect as wire

WRITTEN = answer(b'[{"name":"f","type":"file","path":"/f"}]')


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def connect(
    surface: str, http_client: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Connect:
    """Connect as elsewhere, trusting the authority: our own client by the environment."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.pem))

    def connecting(peer: BadPeer) -> Any:
        options = {} if http_client == "own" else {"verify": authority.client}
        return connected(peer, surface=surface, http_client=http_client, **options)

    return connecting


async def test_files_go_both_ways(connect: Connect, authority: Authority) -> None:
    data = bytes(range(256)) * 12_000

    def script(talk: Talk) -> None:
        talk.send(WRITTEN if talk.requests[-1].line.startswith("POST") else answer(data))

    with BadPeer(script, tls=authority.server) as peer:
        async with connect(peer) as subject:
            for source in (data, iter([data[:10], data[10:]])):
                await subject.files("write", "/f", source)
                assert peer.data_requests[-1].body == data
            assert await subject.files("read_bytes", "/f", max_bytes=len(data)) == data
            assert b"".join(await subject.files("stream", "/f")) == data
            with pytest.raises(FileSizeLimitError):
                await subject.files("read_bytes", "/f", max_bytes=10)
            assert subject.busy() == 0


async def test_a_body_that_is_cut_is_refused(connect: Connect, authority: Authority) -> None:
    """Without TLS's own end, as whoever is in between can do it."""
    script = sends(chunked(b"abc", end=b""), fin=True)
    with BadPeer(script, tls=authority.server) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError):
                await subject.files("read_bytes", "/f", max_bytes=10)
            assert subject.busy() == 0


async def test_one_clock_runs_around_a_read(connect: Connect, authority: Authority) -> None:
    def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
        talk.drip(b"a" * 10_000, 0.02)

    with BadPeer(script, tls=authority.server) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferTimeoutError):
                await subject.files("read_bytes", "/f", max_bytes=20_000, deadline_s=0.3)
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)


async def test_a_write_that_nobody_reads_ends_in_time(
    connect: Connect, authority: Authority
) -> None:
    with BadPeer(Talk.idle, read_writes=False, tls=authority.server) as peer:
        async with connect(peer) as subject:
            with anyio.fail_after(WAIT_S), pytest.raises(UploadTimeoutError):
                await subject.files("write", "/f", bytes(16_000_000), deadline_s=0.3)


@pytest.mark.parametrize("surface", ["blocking"])
async def test_a_blocking_watch_can_be_closed_from_another_thread(
    connect: Connect, authority: Authority
) -> None:
    def script(talk: Talk) -> None:
        talk.send(chunked(wire.encode_envelope(b'{"start":{}}'), end=b""))
        talk.wait_end()

    with BadPeer(script, tls=authority.server) as peer:
        async with connect(peer) as subject:
            watch = subject.sandbox.files.watch("/d")
            seen: list[object] = []
            reader = threading.Thread(target=lambda: seen.append(list(watch)))
            reader.start()
            await anyio.to_thread.run_sync(wait_until, lambda: watch._chunks is not None)
            await anyio.to_thread.run_sync(watch.close)
            await anyio.to_thread.run_sync(reader.join, WAIT_S)
            assert seen == [[]]
            assert subject.busy() == 0


async def test_a_service_with_a_certificate_of_somebody_else_is_not_talked_to(
    surface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path / "other").pem))
    with BadPeer(sends(answer(b"abc")), tls=Authority(tmp_path).server) as peer:
        async with Lives(surface, {"api_url": peer.url}) as client:
            with pytest.raises(SandboxUnavailableError):
                await client.connect(SANDBOX_ID)
        assert [talk.requests for talk in peer.talks] == [[]]


async def test_a_handshake_that_hangs_ends_in_time(surface: str) -> None:
    with BadPeer(sends(b"")) as peer:  # waits for a request in the clear
        url = peer.url.replace("http://", "https://")
        async with Lives(surface, {"api_url": url}) as client:
            with pytest.raises(SandboxTimeoutError):
                await client.create(deadline_s=0.3)
        gc.collect()  # a socket that was left behind would complain here
        assert await anyio.to_thread.run_sync(peer.talks[0].ended.wait, WAIT_S)


@pytest.mark.parametrize("secure", [False, True], ids=["proxy", "proxy with TLS"])
async def test_a_tunnel_through_a_proxy_keeps_the_promises(
    surface: str, authority: Authority, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """With a proxy that speaks TLS itself there is TLS inside TLS, which has no socket."""
    data = bytes(2_000_000)

    def script(talk: Talk) -> None:
        if talk.requests[-1].line.startswith("POST"):
            talk.send(WRITTEN)
        elif "slow" in talk.requests[-1].line:
            talk.send(answer(b"abc", length=10))
            talk.wait_end()
        else:
            talk.send(answer(data))

    without(monkeypatch, PROXIES)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.pem))
    with (
        BadPeer(script, tls=authority.server) as peer,
        Tunnel(peer.port, authority.server if secure else None) as tunnel,
    ):
        monkeypatch.setenv("https_proxy", tunnel.url)
        async with Lives(surface, {"api_url": f"https://{NAME}"}) as client:
            files = (await client.connect(SANDBOX_ID)).files
            await run(partial(files.write, "/f", data))
            assert peer.data_requests[-1].body == data
            assert await run(partial(files.read_bytes, "/f", max_bytes=len(data))) == data
            with pytest.raises(TransferTimeoutError):
                await run(partial(files.read_bytes, "/slow", max_bytes=10, deadline_s=0.3))
        assert tunnel.asked[0] == f"CONNECT {NAME}:443 HTTP/1.1"
