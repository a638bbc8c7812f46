"""`agent-sandbox`, for which every name of `.example` leads to one TLS server of a test.

`TEST_FETCH_PORT` names its port on loopback, `SSL_CERT_FILE` the CA to believe. Nothing else is
another: the links are judged, and their names verified, as ever.
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import sys

from agent_sandbox.cli import main
from agent_sandbox.uploads.fetch import FetchPolicy
from agent_sandbox.uploads.lookups import system_resolver
from agent_sandbox.uploads.tools import backend


async def _resolve(host: str, port: int) -> list[str]:
    if host.endswith(".example"):
        return ["93.184.216.34"]
    return await system_resolver(host, port)


async def _connect(
    _address: str, _port: int, context: ssl.SSLContext, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(os.environ["TEST_FETCH_PORT"])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)


if __name__ == "__main__":
    made = functools.partial(FetchPolicy, resolver=_resolve, connect=_connect)
    setattr(backend, "FetchPolicy", made)  # noqa: B010 - a class becomes a function here
    sys.exit(main())
