"""Where the commands for people find their sandboxes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent_sandbox.client.providers.child import Options
from agent_sandbox.client.providers.user import UserProvider
from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import ArgumentError, ConfigError, SandboxUnavailableError
from agent_sandbox.sync import Sandbox, SandboxClient

_MIN_PREFIX = 4

_WHERE = "Check that it runs, and AGENT_SANDBOX_API_URL, which names it."


@contextmanager
def sandboxes(*, start: bool = False, options: Options | None = None) -> Iterator[SandboxClient]:
    """Open a client: for this user's own service, or for the one that the environment names.

    Args:
        start: Whether to start the user's service where it does not run.
        options: How that must run; None for no wish.

    Raises:
        ConfigError: E6000: settings that contradict each other.
        SandboxNotFoundError: E5001, at the first call: no service runs, so there is no sandbox.
    """
    settings = Settings.resolve()
    if settings.provider == "local":
        with (
            UserProvider(options, start=start) as provider,
            SandboxClient(provider=provider) as client,
        ):
            yield client
        return
    if options is not None:
        raise ConfigError(reason="Isolation and network are set where the other service runs.")
    with SandboxClient() as client:
        try:
            yield client
        except SandboxUnavailableError as error:  # a child's own reason does not occur here
            raise SandboxUnavailableError(reason=f"{error.text} {_WHERE}") from error


def connect(client: SandboxClient, named: str) -> Sandbox:
    """Connect to the sandbox of an id, or of the beginning of one.

    Raises:
        SandboxNotFoundError: E5001: there is none.
        ArgumentError: E2001, with a `reason`: the beginning fits several.
    """
    return client.connect(full_id(client, named))


def full_id(client: SandboxClient, named: str) -> str:
    """Return the id that begins like this, or what was given where none does."""
    if len(named) < _MIN_PREFIX:
        return named
    fitting = [s.sandbox_id for s in client.list() if s.sandbox_id.startswith(named)]
    if len(fitting) > 1 and named not in fitting:
        raise ArgumentError(
            reason=f"{len(fitting)} sandboxes begin like this: give more of the id."
        )
    return fitting[0] if len(fitting) == 1 else named
