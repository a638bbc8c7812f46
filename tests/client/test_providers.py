"""Where sandboxes come from: settings, adapters, the embedded service's life."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
import httpx2
import pytest
from tests.client.conftest import Lives, Subject
from tests.support.bad_peer import SANDBOX_ID, BadPeer, Talk, answer
from tests.support.environment import PROXIES, without

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client._calls import Target
from agent_sandbox.client._http import proxy_for
from agent_sandbox.client.providers import Endpoint
from agent_sandbox.client.settings import Settings
from agent_sandbox.loopback import is_loopback
from agent_sandbox.models import ConfigError, SandboxUnavailableError, UnsupportedError
from agent_sandbox.wire import e2b

# --- Settings ---------------------------------------------------------------------------------

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ({}, {}, Settings("local")),
        ({}, {"AGENT_SANDBOX_PROVIDER": ""}, Settings("local")),
        ({"provider": "local"}, {"AGENT_SANDBOX_API_URL": URL}, Settings("local")),
        ({}, {"AGENT_SANDBOX_PROVIDER": "local"}, Settings("local")),
        (
            {"provider": "local"},
            {"AGENT_SANDBOX_PROVIDER": "express", "AGENT_SANDBOX_API_KEY": "k"},
            Settings("local"),
        ),
        ({"api_url": URL}, {}, Settings("express", URL)),
        ({"api_url": URL}, {"AGENT_SANDBOX_PROVIDER": "local"}, Settings("express", URL)),
        ({}, {"AGENT_SANDBOX_API_URL": URL + "/"}, Settings("express", URL)),
        (
            {"api_key": "k"},
            {"AGENT_SANDBOX_API_URL": URL, "AGENT_SANDBOX_API_KEY": "other"},
            Settings("express", URL, "k"),
        ),
        (
            {"provider": "express"},
            {
                "AGENT_SANDBOX_API_URL": URL,
                "AGENT_SANDBOX_API_KEY": "k",
                "AGENT_SANDBOX_URL": "https://data.example/x/",
            },
            Settings("express", URL, "k", "https://data.example/x"),
        ),
        (
            {"provider": "node"},
            {"AGENT_SANDBOX_NODE_PACKAGES": "/p", "AGENT_SANDBOX_API_KEY": "k"},
            Settings("node", None, "k", node_packages="/p"),
        ),
        (
            {"api_url": URL},
            {
                "AGENT_SANDBOX_PROVIDER": "node",
                "AGENT_SANDBOX_NODE": "/n",
                "AGENT_SANDBOX_NODE_PACKAGES": "/p",
            },
            Settings("express", URL),
        ),
    ],
)
def test_an_argument_wins_over_the_environment_and_that_over_the_default(
    arguments: dict[str, Any], environ: dict[str, str], expected: Settings
) -> None:
    assert Settings.resolve(environ=environ, **arguments) == expected


PROVIDER = "The provider is one of: local, express, node."
LOCAL = "Local sandboxes have no api_url, api_key or sandbox_url."
API_URL = "api_url (AGENT_SANDBOX_API_URL) must be "


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"provider": "nobody"}, PROVIDER),
        ({"provider": "express"}, "The express provider needs an api_url (AGENT_SANDBOX_API_URL)."),
        (
            {"provider": "node"},
            "The node provider needs AGENT_SANDBOX_NODE_PACKAGES: the folder whose node_modules"
            " holds the package e2b.",
        ),
        ({"provider": "local", "api_url": URL}, LOCAL),
        ({"provider": "local", "api_key": "k"}, LOCAL),
        ({"provider": "local", "sandbox_url": URL}, LOCAL),
        ({"api_key": "k"}, LOCAL),
        ({"api_url": "ftp://host"}, API_URL + "an http or https URL."),
        ({"api_url": "host:80"}, API_URL + "an http or https URL."),
        ({"api_url": "http://"}, API_URL + "an http or https URL."),
        ({"api_url": "http://host:99999"}, API_URL + "an http or https URL."),
        ({"api_url": "http://ho st"}, API_URL + "an http or https URL."),
        (
            {"api_url": "http://user:secret@host"},
            API_URL + "a URL without credentials, query or fragment.",
        ),
        ({"api_url": "http://host/?q"}, API_URL + "a URL without credentials, query or fragment."),
        ({"api_url": "http://host/#f"}, API_URL + "a URL without credentials, query or fragment."),
        ({"api_url": "http://host/?"}, API_URL + "a URL without credentials, query or fragment."),
        ({"api_url": "http://host/#"}, API_URL + "a URL without credentials, query or fragment."),
        ({"api_url": "http://host?#"}, API_URL + "a URL without credentials, query or fragment."),
        (
            {"api_url": URL, "api_key": "a\nb"},
            "api_key (AGENT_SANDBOX_API_KEY) must be visible ASCII.",
        ),
        (
            {"api_url": URL, "api_key": "é"},
            "api_key (AGENT_SANDBOX_API_KEY) must be visible ASCII.",
        ),
        (
            {"api_url": URL, "sandbox_url": "nonsense"},
            "sandbox_url (AGENT_SANDBOX_URL) must be an http or https URL.",
        ),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_with_a_reason_that_repeats_nothing(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.resolve(environ={}, **arguments)
    assert caught.value.__dict__ == {"reason": reason}
    assert str(caught.value) == f"{ConfigError.text} {reason}"


@pytest.mark.parametrize(
    "environ",
    [
        {"AGENT_SANDBOX_PROVIDER": "local", "AGENT_SANDBOX_API_URL": URL},
        {"AGENT_SANDBOX_PROVIDER": "local", "AGENT_SANDBOX_API_KEY": "canary"},
        {"AGENT_SANDBOX_PROVIDER": "local", "AGENT_SANDBOX_URL": URL},
        {"AGENT_SANDBOX_API_KEY": "canary"},
        {"AGENT_SANDBOX_URL": URL},
    ],
    ids=lambda environ: "+".join(environ),
)
def test_an_environment_that_means_two_things_is_refused(environ: dict[str, str]) -> None:
    """Else a forgotten address would put the work on this machine, and nobody would know."""
    with pytest.raises(ConfigError) as caught:
        Settings.resolve(environ=environ)
    assert caught.value.reason == (
        "Local sandboxes have no AGENT_SANDBOX_API_URL, AGENT_SANDBOX_API_KEY, AGENT_SANDBOX_URL:"
        " unset them, or set AGENT_SANDBOX_API_URL and no local provider."
    )
    assert Settings.resolve(environ=environ, provider="local") == Settings("local")
    assert Settings.resolve(environ=environ, api_url=URL).provider == "express"


def test_secrets_have_no_repr() -> None:
    settings = Settings.resolve(environ={}, api_url=URL, api_key="canary")
    found = e2b.Sandbox(
        template_id="b", sandbox_id="s", envd_version="1", envd_access_token="canary"
    )
    target = Endpoint(Target(URL, {"x-api-key": "canary"})).data(found)
    assert "canary" in target.headers.values()
    assert "canary" not in repr((settings, target, found, Endpoint(target)))


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_an_own_client_of_the_wrong_kind_is_refused(kind: str) -> None:
    own: Any = getattr(httpx2, kind)()
    wrong: Any = (
        agent_sandbox.SandboxClient if kind == "Client" else agent_sandbox.sync.SandboxClient
    )
    with pytest.raises(TypeError):
        wrong(api_url=URL, http_client=own)
    with pytest.raises(TypeError):
        wrong(api_url=URL, http_client=object())
    with pytest.raises(ConfigError):
        wrong(provider="local", http_client=own)


async def test_a_closed_client_says_so(surface: str) -> None:
    if surface == "async":
        client = agent_sandbox.SandboxClient(api_url=URL)
        await client.aclose()
        await client.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await client.list()
    else:
        blocking = agent_sandbox.sync.SandboxClient(api_url=URL)
        blocking.close()
        blocking.close()
        with pytest.raises(RuntimeError, match="closed"):
            blocking.list()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("example.com", False),
    ],
)
def test_loopback_is_known_by_its_name(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_proxies_are_for_the_network_only(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, PROXIES)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "internal.example")
    assert proxy_for("http", "127.0.0.1") is None
    assert proxy_for("http", "localhost") is None
    assert proxy_for("http", "internal.example") is None
    assert proxy_for("http", "example.com") == "http://127.0.0.1:9"
    assert proxy_for("https", "example.com") == "http://127.0.0.1:9"


KIND = "The proxy of the environment must be an http, https or socks5 URL."


@pytest.mark.parametrize("variable", ["all_proxy", "ALL_PROXY", "http_proxy"])
@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("socks5://canary:canary@127.0.0.1:9", "needs the package socksio"),
        ("SOCKS5H://127.0.0.1:9", "needs the package socksio"),
        ("socks4://canary:canary@127.0.0.1:9", KIND),
        ("ftp://canary@127.0.0.1:9", KIND),
        ("http://127.0.0.1:99999", KIND),
        ("http://", KIND),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_a_fault_of_the_settings(
    surface: str, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str, reason: str
) -> None:
    without(monkeypatch, PROXIES)
    monkeypatch.setenv(variable, proxy)
    async with Lives(surface, {"api_url": "http://sandboxes.example"}) as client:
        with pytest.raises(ConfigError) as caught:
            await client.create(deadline_s=10)
    assert reason in caught.value.reason
    assert "canary" not in str(caught.value)


async def test_a_proxy_of_the_environment_is_used_for_the_network(
    surface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, PROXIES)

    def script(talk: Talk) -> None:
        talk.send(answer(b"abc"))

    with BadPeer(script) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:pw@"))
        if surface == "async":
            async with agent_sandbox.SandboxClient(api_url="http://sandboxes.example") as client:
                sandbox = await client.connect(SANDBOX_ID)
                assert await sandbox.files.read_bytes("/f", max_bytes=3) == b"abc"
        else:

            def blocking() -> bytes:
                with agent_sandbox.sync.SandboxClient(api_url="http://sandboxes.example") as client:
                    return client.connect(SANDBOX_ID).files.read_bytes("/f", max_bytes=3)

            assert await anyio.to_thread.run_sync(blocking) == b"abc"
        request = proxy.data_requests[0]
        assert request.line.startswith("GET http://sandboxes.example/files?")
        assert request.header("proxy-authorization") == ["Basic bWU6cHc="]


# --- Adapters ---------------------------------------------------------------------------------


class Collecting:
    """An adapter that collects a whole file before it hands it on."""

    streaming = False

    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint(Target(url, {}))

    def ready(self) -> Endpoint:
        return self._endpoint

    def open(self) -> Endpoint:
        return self._endpoint


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("read_bytes", {"max_bytes": 10}),
        ("read_bytes", {"max_bytes": 0}),
        ("read_text", {"max_bytes": 10}),
        ("stream", {}),
        ("stream", {"max_bytes": 10}),
        ("download", {"local": "/nowhere/goal"}),
    ],
)
async def test_a_provider_that_does_not_stream_refuses_a_bound_before_any_request(
    surface: str, method: str, arguments: dict[str, Any]
) -> None:
    with BadPeer(lambda talk: talk.send(answer(b"abc"))) as peer:
        async with _adapted(peer, surface) as subject:
            with pytest.raises(UnsupportedError) as caught:
                await subject.files(method, "/f", **arguments)
            assert caught.value.code == "E5006"
            assert peer.data_requests == []
            assert await subject.files("read_bytes", "/f") == b"abc"
            assert await subject.files("read_text", "/f") == "abc"


class _adapted:  # noqa: N801 - used as a function
    def __init__(self, peer: BadPeer, surface: str) -> None:
        self._provider = Collecting(peer.url)
        self._surface = surface

    async def __aenter__(self) -> Subject:
        if self._surface == "async":
            self._client: Any = agent_sandbox.SandboxClient(provider=self._provider)
            return Subject(await self._client.connect(SANDBOX_ID), None, blocking=False)
        self._client = agent_sandbox.sync.SandboxClient(provider=self._provider)
        sandbox = await anyio.to_thread.run_sync(lambda: self._client.connect(SANDBOX_ID))
        return Subject(sandbox, None, blocking=True)

    async def __aexit__(self, *exc_info: object) -> None:
        if self._surface == "async":
            await self._client.aclose()
        else:
            self._client.close()


def test_an_adapter_brings_its_own_settings() -> None:
    with pytest.raises(ConfigError) as caught:
        agent_sandbox.SandboxClient(provider=Collecting(URL), api_key="k")
    assert caught.value.__dict__ == {"reason": "A provider object brings its own URLs and key."}


@pytest.mark.parametrize(
    ("domain", "base"),
    [
        ("e.example", "https://49983-s.e.example"),
        ("e.example:8443", "https://49983-s.e.example:8443"),
        ("ü.example", None),
        ("e.example/x?", None),
        ("@e.example", None),
        ("a b", None),
        ("e.example:port", None),
        ("a" * 300, None),
    ],
)
def test_a_domain_that_is_none_is_refused(domain: str, base: str | None) -> None:
    endpoint = Endpoint(Target("https://api.example", {}))
    found = e2b.Sandbox(template_id="b", sandbox_id="s", envd_version="1", domain=domain)
    if base is None:
        with pytest.raises(SandboxUnavailableError):
            endpoint.data(found)
    else:
        assert endpoint.data(found).base_url == base
