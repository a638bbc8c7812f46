"""What a forked child may do with the clients and sandboxes of its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from tests.client.conftest import sends
from tests.support.bad_peer import SANDBOX_ID, BadPeer, answer

PRELUDE = """
import os, signal, sys, threading
from agent_sandbox.client.providers import child, local
from agent_sandbox.errors import SandboxUnavailableError
from agent_sandbox.sync import Sandbox, SandboxClient

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a child that hangs fails
        try:
            os._exit(work())
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(code: str) -> None:
    """Run a program, which must print nothing but `done`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AGENT_SANDBOX_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env=kept,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_the_end_of_a_block_in_a_forked_child_ends_nothing() -> None:
    run("""
        with Sandbox.create() as sandbox:
            sandbox.files.write("/tmp/a", b"x")

            def leave():
                sandbox.__exit__(None, None, None)
                return 0 if local._service._child is None else 1

            assert in_child(leave) == 0
            assert sandbox.files.read_bytes("/tmp/a", max_bytes=1) == b"x"
        print("done")
    """)


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
def test_a_forked_child_never_talks_on_connections_of_its_parents_own_client(library: str) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        run(f"""
            import {library}
            http = {library}.Client(trust_env=False)
            client = SandboxClient(api_url={peer.url!r}, http_client=http)
            sandbox = client.connect({SANDBOX_ID!r})

            def use():
                for call in (lambda: client.connect({SANDBOX_ID!r}),
                             lambda: sandbox.files.read_bytes("/f", 3)):
                    try:
                        call()
                    except SandboxUnavailableError:
                        continue
                    return 1
                with {library}.Client(trust_env=False) as own:
                    mine = SandboxClient(api_url={peer.url!r}, http_client=own)
                    return int(mine.connect({SANDBOX_ID!r}).files.read_bytes("/f", 3) != b"abc")

            assert in_child(use) == 0
            assert sandbox.files.read_bytes("/f", 3) == b"abc"
            http.close()
            print("done")
        """)


@pytest.mark.parametrize("library", ["httpx2", "httpx"])
def test_nor_does_it_on_those_of_an_async_one(library: str) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        run(f"""
            import asyncio
            import {library}
            import agent_sandbox

            http = {library}.AsyncClient(trust_env=False)
            client = agent_sandbox.SandboxClient(api_url={peer.url!r}, http_client=http)
            loop = asyncio.new_event_loop()
            sandbox = loop.run_until_complete(client.connect({SANDBOX_ID!r}))
            assert loop.run_until_complete(sandbox.files.read_bytes("/f", 3)) == b"abc"

            def use():
                try:
                    asyncio.new_event_loop().run_until_complete(sandbox.files.read_bytes("/f", 3))
                except SandboxUnavailableError:
                    return 0
                return 1

            assert in_child(use) == 0
            assert loop.run_until_complete(sandbox.files.read_bytes("/f", 3)) == b"abc"
            loop.run_until_complete(http.aclose())
            loop.close()
            print("done")
        """)
        assert len(peer.data_requests) == 2


def test_a_lock_that_another_thread_held_at_the_fork_is_free_in_the_child() -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        run(f"""
            client = SandboxClient(api_url={peer.url!r})
            client.connect({SANDBOX_ID!r})
            held, over = threading.Event(), threading.Event()

            def hold():
                with client._slot._lock:
                    held.set()
                    over.wait(20)

            thread = threading.Thread(target=hold)
            thread.start()
            held.wait(20)

            def use():
                data = client.connect({SANDBOX_ID!r}).files.read_bytes("/f", 3)
                client.close()
                return int(data != b"abc")

            assert in_child(use) == 0
            over.set()
            thread.join()
            client.close()
            print("done")
        """)


def test_a_fork_in_the_middle_of_a_start_takes_nothing_of_it_along() -> None:
    """Else the child would hold the pipe and the listener open for as long as it lives."""
    run("""
        command, inside, forked = child.command, threading.Event(), threading.Event()

        def slow(*arguments):
            inside.set()
            forked.wait(0.5)  # a fork that waits for the start cannot come in this time
            return command(*arguments)

        child.command = slow
        thread = threading.Thread(target=local._service.start)
        thread.start()
        inside.wait(20)

        def look():
            open_ones = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                         if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
            ours = [link for link in open_ones if link.startswith(("socket:", "pipe:"))]
            return len(ours)

        os.register_at_fork(after_in_parent=forked.set)
        assert in_child(look) == 0
        thread.join()
        assert local._service.ready()
        local.stop()
        print("done")
    """)
