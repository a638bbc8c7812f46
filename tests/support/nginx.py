"""A real nginx for tests and benches: in front of two replicas, or as a WebDAV server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_FRAME = """
{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {upstream}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 0;
    {server}
  }}
}}
"""

_PROXY = """proxy_http_version 1.1;
    proxy_set_header Host $host;
    location / {{ proxy_pass http://replicas; proxy_request_buffering {buffering};
                  proxy_next_upstream error timeout non_idempotent; }}"""


@contextlib.contextmanager
def proxy(
    folder: Path, first: int, second: int, *, buffering: str = "on", balanced: bool = False
) -> Iterator[int]:
    """Run nginx before two replicas; yield its port.

    Args:
        folder: Where it keeps its files; must not exist yet.
        first: Port of the first replica.
        second: Port of the second: a backup, or with `balanced` its equal.
        buffering: Whether a body is read whole before it is passed on.
        balanced: Requests go to both by turns, whatever their session is.
    """
    role = "" if balanced else " backup"
    upstream = f"upstream replicas {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}{role}; }}"
    with _running(folder, upstream, _PROXY.format(buffering=buffering)) as port:
        yield port


@contextlib.contextmanager
def serving(folder: Path, server: str) -> Iterator[int]:
    """Run nginx with what stands in its `server` block; yield its port."""
    with _running(folder, "", server) as port:
        yield port


@contextlib.contextmanager
def dav_server(folder: Path) -> Iterator[int]:
    """Run nginx as a WebDAV server that keeps what is PUT to it below `folder`; yield its port."""
    files = folder / "files"
    with _running(folder, "", f"root {files}; location / {{ dav_methods PUT DELETE; }}") as port:
        yield port


@contextlib.contextmanager
def _running(folder: Path, upstream: str, server: str) -> Iterator[int]:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "this needs Debian's nginx: apt-get install nginx"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    (folder / "files").mkdir(parents=True)
    config = _FRAME.format(
        user="" if os.geteuid() else "user root;",  # else the worker cannot use the folder
        folder=folder,
        port=port,
        upstream=upstream,
        server=server,
    )
    (folder / "nginx.conf").write_text(config)
    process = subprocess.Popen(
        [program, "-c", str(folder / "nginx.conf"), "-p", str(folder)], stderr=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 20
        while True:  # nginx tells nobody when it listens
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, "nginx does not listen"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=20)
