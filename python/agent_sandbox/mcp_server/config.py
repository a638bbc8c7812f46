"""Everything that can be set on the MCP server, in one immutable value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from agent_sandbox import SandboxClient
from agent_sandbox.client.providers.child import Isolation
from agent_sandbox.client.providers.local import LocalProvider
from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import ConfigError
from agent_sandbox.limits import (
    DEFAULT_TTL_S,
    HTTP_BODY_DEADLINE_S,
    MAX_TTL_S,
    RESOLVE_TIMEOUT_S,
    TRANSFER_TIMEOUT_S,
)
from agent_sandbox.loopback import is_loopback
from agent_sandbox.mcp_server.auth.authority import Authority
from agent_sandbox.mcp_server.auth.settings import OAuthConfig
from agent_sandbox.mcp_server.auth.tokens import StaticTokens
from agent_sandbox.mcp_server.transfers.settings import TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """How one MCP server runs.

    Attributes:
        provider: Name of the sandbox provider; None takes it from the environment.
        api_url: Control plane of the provider; None takes it from the environment.
        api_key: Its credential; never shown in a `repr`.
        sandbox_url: One base URL for every sandbox's data plane.
        isolation: What commands in embedded sandboxes run in (`client.providers.local.Options`).
        allow_network: Whether embedded sandboxes use this machine's network.
        ttl_seconds: Life of a sandbox after its last use, 1 to 86,400.
        host: Address that HTTP listens on.
        port: Port that HTTP listens on; 0 lets the system choose one.
        insecure: Allow an address beyond loopback without credentials.
        token_file: Static tokens that HTTP callers may show; None takes the name of the file from
            the environment (`AGENT_SANDBOX_TOKEN_FILE`). Lines of the same form in
            `AGENT_SANDBOX_TOKENS` count too. Where there are tokens, or `oauth`, every caller
            needs one.
        oauth: Whose access tokens HTTP callers may show.
        allowed_hosts: Further values of the Host header that are answered. `name:*` allows every
            port, `*` allows everything. Loopback names are always allowed.
        allowed_origins: Further values of the Origin header, in the same form.
        idle_timeout_s: An HTTP session without a request for this long ends.
        max_sessions: HTTP sessions that may be open at once.
        max_sessions_each: The same for one principal, where credentials are asked for.
        body_deadline_s: Time in which the body of an HTTP request must have arrived.
        resolve_timeout_s: Time for creating or finding a sandbox.
        transfer_timeout_s: Time for one file operation, after the sandbox is resolved.
        shutdown_timeout_s: Longest wait for sandboxes to be destroyed when the server stops.
        transfers: How upload sessions run.
    """

    provider: str | None = None
    api_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    sandbox_url: str | None = None
    isolation: Isolation = "auto"
    allow_network: bool = False
    ttl_seconds: int = DEFAULT_TTL_S
    host: str = "127.0.0.1"
    port: int = 8000
    insecure: bool = False
    token_file: Path | None = None
    oauth: OAuthConfig | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    idle_timeout_s: float = 1800.0
    max_sessions: int = 1000
    max_sessions_each: int = 250
    body_deadline_s: float = HTTP_BODY_DEADLINE_S
    resolve_timeout_s: float = RESOLVE_TIMEOUT_S
    transfer_timeout_s: float = TRANSFER_TIMEOUT_S
    shutdown_timeout_s: float = 8.0
    transfers: TransferSettings = field(default_factory=TransferSettings)

    def __post_init__(self) -> None:
        positive = (
            self.idle_timeout_s,
            self.max_sessions,
            self.max_sessions_each,
            self.body_deadline_s,
            self.resolve_timeout_s,
            self.transfer_timeout_s,
            self.shutdown_timeout_s,
        )
        if (
            not 1 <= self.ttl_seconds <= MAX_TTL_S
            or not 0 <= self.port <= 65_535
            or not all(0 < value < float("inf") for value in positive)
        ):
            raise ConfigError

    def settings(self) -> Settings:
        """Return where the sandboxes are, by these settings and the environment.

        Raises:
            ConfigError: E6000, they contradict each other.
        """
        settings = Settings.resolve(
            provider=self.provider,
            api_url=self.api_url,
            api_key=self.api_key,
            sandbox_url=self.sandbox_url,
        )
        if settings.provider != "local" and (self.isolation != "auto" or self.allow_network):
            raise ConfigError(reason="Isolation and network are set where the other service runs.")
        return settings

    def client(self) -> SandboxClient:
        """Return a client for these settings.

        Raises:
            ConfigError: E6000, they contradict each other.
        """
        settings = self.settings()
        if settings.provider == "local":
            embedded = LocalProvider(isolation=self.isolation, network=self.allow_network)
            return SandboxClient(provider=embedded)
        return SandboxClient(
            provider=settings.provider,
            api_url=settings.api_url,
            api_key=settings.api_key,
            sandbox_url=settings.sandbox_url,
        )

    def authority(self) -> Authority | None:
        """Return who may call over HTTP, None where nobody is asked for credentials.

        Raises:
            ConfigError: E6000, with a `reason`: a file of tokens or a deny-list cannot be used.
        """
        named = self.token_file or os.environ.get("AGENT_SANDBOX_TOKEN_FILE")
        text = os.environ.get("AGENT_SANDBOX_TOKENS")
        tokens = StaticTokens(Path(named) if named else None, text) if named or text else None
        return Authority(tokens, self.oauth) if tokens or self.oauth else None

    def check_exposure(self) -> None:
        """Refuse an address that others can reach while nothing asks for credentials.

        Raises:
            ConfigError: E6000, for an address beyond loopback without credentials and `insecure`,
                or credentials that cannot be used.
        """
        authority = self.authority()
        if not (self.insecure or is_loopback(self.host) or authority):
            raise ConfigError(
                reason=f"{self.host} is open to others: name a --token-file or an --oauth-issuer,"
                " keep 127.0.0.1 behind an authenticating proxy, or say --insecure"
            )
