"""The rescue of a blocking worker whose caller has gone."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from agent_sandbox.client._in_time import Rescue


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/2"])
def test_a_socket_that_is_learned_too_late_is_cut_unless_others_share_it(version: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = SimpleNamespace(get_extra_info=lambda name: ours)
        rescue = Rescue()
        rescue.stop()
        rescue.watch(SimpleNamespace(http_version=version, extensions={"network_stream": stream}))
        theirs.setblocking(False)
        if version == "HTTP/1.1":
            assert theirs.recv(1) == b"", "its reader is woken"
        else:
            with pytest.raises(BlockingIOError):
                theirs.recv(1)
        with pytest.raises(TimeoutError):
            rescue.end()
