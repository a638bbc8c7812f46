"""Behind nginx, in front of two replicas: what a proxy repeats is still one upload."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.nginx import proxy
from tests.support.raw_http import RawClient, request
from tests.support.upload_server import UploadServer, running


@contextmanager
def swallowing_relay(target: int) -> Iterator[int]:
    """Pass one request on, and cut the connection where its answer was due."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(15)

        def relay() -> None:
            client, _ = listener.accept()
            with client, RawClient(target) as replica:
                client.settimeout(15)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += client.recv(65_536)
                replica.send(head)
                size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                left = size - len(head.split(b"\r\n\r\n", 1)[1])
                while left:
                    data = client.recv(65_536)
                    left -= len(data)
                    replica.send(data)
                assert replica.answer().status == 200

        thread = threading.Thread(target=relay)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[UploadServer, UploadServer]]:
    with ExitStack() as stack:
        made = [stack.enter_context(running(tmp_path)) for _ in range(2)]
        yield made[0], made[1]


Replicas = tuple[UploadServer, UploadServer]


@pytest.mark.parametrize("buffering", ["on", "off"])
def test_a_put_through_nginx_is_stored(replicas: Replicas, tmp_path: Path, buffering: str) -> None:
    first, second = replicas
    body = os.urandom(3_000_000)
    ticket = second.create(len(body))
    with proxy(tmp_path / "nginx", first.port, second.port, buffering=buffering) as port:
        with RawClient(port) as client:
            client.send(request("PUT", ticket.path, "Authorization: wrong", "Content-Length: 0"))
            assert client.answer().status == 404
        with RawClient(port) as client:
            client.send(ticket.put(body))
            answer = client.answer()
    assert answer.json["sha256"] == hashlib.sha256(body).hexdigest()
    assert second.state(ticket) == "stored"


def test_a_put_that_nginx_replays_to_the_second_replica_is_409(
    replicas: Replicas, tmp_path: Path
) -> None:
    first, second = replicas
    ticket = first.create(300_000)
    with ExitStack() as stack:
        relay = stack.enter_context(swallowing_relay(first.port))
        port = stack.enter_context(proxy(tmp_path / "nginx", relay, second.port))
        with RawClient(port) as client:
            client.send(ticket.put(b"x" * 300_000))
            answer = client.answer()
    assert (answer.status, answer.json["code"]) == (409, "E7007")
    assert second.state(ticket) == "stored"


def test_two_puts_on_two_replicas_give_one_200_and_one_409(replicas: Replicas) -> None:
    for _ in range(15):
        ticket = replicas[0].create(5)
        gate = threading.Barrier(2)
        statuses: list[Any] = []

        def put(server: UploadServer, data: bytes, gate: threading.Barrier = gate) -> None:
            with RawClient(server.port) as client:
                gate.wait(10)
                client.send_unless_refused(data)
                statuses.append(client.answer().status)  # noqa: B023  # joined before the next

        threads = [
            threading.Thread(target=put, args=(server, ticket.put(b"hello"))) for server in replicas
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(statuses) == [200, 409]
