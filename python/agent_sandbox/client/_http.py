"""Our own HTTP clients: a unix socket, or the network with its proxies."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.util import find_spec
from urllib.request import getproxies, proxy_bypass

import httpx2

from agent_sandbox.client._deadline import UNIX_SOCKET_OPTIONS, DeadlineTransport
from agent_sandbox.client._handshake import ClosingBackend
from agent_sandbox.errors import ConfigError
from agent_sandbox.loopback import is_loopback

_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20)


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the proxy that the environment names for a host, never one for loopback.

    Raises:
        ConfigError: E6000, with a `reason`: it is none that can be used.
    """
    if is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    kind = _kind_of_proxy(proxy)
    if kind is None:
        raise ConfigError("The proxy of the environment must be an http, https or socks5 URL.")
    if kind.startswith("socks5") and find_spec("socksio") is None:
        raise ConfigError("A socks5 proxy of the environment needs the package socksio.")
    return proxy


def _kind_of_proxy(proxy: str) -> str | None:
    """Return the scheme of a proxy's URL, None where it is no usable URL."""
    try:
        url = httpx2.Proxy(proxy).url
    except (httpx2.InvalidURL, ValueError):
        return None
    return url.scheme if url.host and 0 < (url.port or 80) < 65_536 else None


def async_client(uds: str | None) -> httpx2.AsyncClient:
    """Return a client for a unix socket, or for the network where `uds` is None."""
    if uds is not None:
        # verify=False: no certificates are loaded for a socket that never speaks TLS.
        transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(
            uds=uds,
            verify=False,
            trust_env=False,
            limits=_LIMITS,
            socket_options=UNIX_SOCKET_OPTIONS,
        )
    else:
        transport = _AsyncNetwork()
    return httpx2.AsyncClient(transport=transport, trust_env=False, cookies=_no_cookies())


def blocking_client(uds: str | None) -> httpx2.Client:
    """Return the blocking twin of `async_client`; its transport keeps exact deadlines."""
    transport = DeadlineTransport(uds=uds) if uds is not None else _BlockingNetwork()
    return httpx2.Client(transport=transport, trust_env=False, cookies=_no_cookies())


def _no_cookies() -> CookieJar:
    """Return a jar that takes none: one sandbox must not write into the requests to another."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class _AsyncNetwork(httpx2.AsyncBaseTransport):
    """One pool for each way out: direct, and each proxy."""

    def __init__(self) -> None:
        self._ways: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        proxy = proxy_for(request.url.scheme, request.url.host)
        if proxy not in self._ways:
            way = httpx2.AsyncHTTPTransport(limits=_LIMITS, proxy=proxy, trust_env=True)
            # By a private name, as there is no public one; a test fails when it vanishes.
            way._pool._network_backend = ClosingBackend(way._pool._network_backend)
            self._ways[proxy] = way
        return await self._ways[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        for way in self._ways.values():
            await way.aclose()


class _BlockingNetwork(httpx2.BaseTransport):
    """The blocking twin of `_AsyncNetwork`."""

    def __init__(self) -> None:
        self._ways: dict[str | None, DeadlineTransport] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        proxy = proxy_for(request.url.scheme, request.url.host)
        way = self._ways.get(proxy)
        if way is None:
            # setdefault: two threads may come here at once, and one pool wins.
            way = self._ways.setdefault(proxy, DeadlineTransport(proxy=proxy))
        return way.handle_request(request)

    def close(self) -> None:
        for way in self._ways.values():
            way.close()
