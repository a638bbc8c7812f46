"""The values of upload sessions: settings, callers, rows and results. All are frozen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agent_sandbox.errors import ArgumentError, ConfigError
from agent_sandbox.uploads.secrets import KeepsSecrets
from agent_sandbox.uploads.states import Phase, State

Kind = Literal["upload", "download"]
"""Which way the bytes go: to us by one PUT, or from us by one GET."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call is made for.

    Attributes:
        credential_id: The credential connection, never the credential itself: the id of a static
            token; issuer, client and subject of OAuth; a random id of the process under STDIO.
        workspace: What quotas and stored bytes belong to.

    Raises:
        ArgumentError: E2001, one of them is no Unicode text without NUL.
    """

    credential_id: str
    workspace: str

    def __post_init__(self) -> None:
        # A database would refuse it, and with it what others wait to have done at the same time.
        for text in (self.credential_id, self.workspace):
            if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
                raise ArgumentError


@dataclass(frozen=True, slots=True)
class UploadsConfig(KeepsSecrets):
    """Settings of the upload sessions, with the documented defaults.

    Attributes:
        public_url: Where clients reach this server (`https://files.example.com`), without a
            trailing slash. Never taken from a Host header.
        server_key: Secret key of at least 32 bytes, the same on every replica.
        max_size_bytes: Largest file.
        put_lifetime_s: Life of the secret.
        use_lifetime_s: Life of a file that nobody uses, from the creation of the session.
        keep_s: Age at which the sweep removes rows, and objects that no row knows.
        header_deadline_s: Time for the request's header.
        idle_deadline_s: Longest pause within a body.
        body_deadline_s: Time for a whole body.
        body_extra_s_per_mib: Growth of that time with the declared size; 0 is off.
        receive_grace_s: How long after its body's deadline an attempt may still publish and
            commit, before another replica calls it abandoned.
        pending_per_workspace: Most sessions pending and receiving at once.
        hourly_per_workspace: Most sessions created in any 60 minutes.
        creates_per_minute: Rate limit of creation per principal and replica.
        allowed_extensions: Lower-case, with the dot (`.csv`); None allows all.
        allowed_origins: Origins that a browser may PUT from, besides our own page.
        place_timeout_s: Time for one use of a file.
        place_lease_s: After this the attempt of a crashed replica is reconciled; must exceed
            `place_timeout_s`.
        upload_path: Where the routes of uploads are mounted.
        download_path: Where the routes of downloads are mounted.
    """

    public_url: str
    server_key: bytes = field(repr=False)
    max_size_bytes: int = 1 << 30
    put_lifetime_s: int = 600
    use_lifetime_s: int = 3_600
    keep_s: int = 86_400
    header_deadline_s: float = 10.0
    idle_deadline_s: float = 10.0
    body_deadline_s: float = 60.0
    body_extra_s_per_mib: float = 0.0
    receive_grace_s: float = 60.0
    pending_per_workspace: int = 20
    hourly_per_workspace: int = 120
    creates_per_minute: int = 60
    allowed_extensions: frozenset[str] | None = None
    allowed_origins: frozenset[str] = frozenset()
    place_timeout_s: float = 150.0
    place_lease_s: float = 180.0
    upload_path: str = "/uploads"
    download_path: str = "/downloads"

    def __post_init__(self) -> None:
        if len(self.server_key) < 32:
            raise ConfigError(reason="The server key of uploads needs 32 bytes.")
        if not self.public_url.startswith(("https://", "http://")) or self.public_url[-1] == "/":
            raise ConfigError(
                reason="The public URL of uploads is a http or https address without a slash at"
                " its end."
            )
        paths = (self.upload_path, self.download_path)
        if paths[0] == paths[1] or any(path[:1] != "/" or path[-1:] == "/" for path in paths):
            raise ConfigError(
                reason="The paths of uploads and downloads differ, and begin, but do not end, with"
                " a slash."
            )
        names = self.allowed_extensions or ()
        if any(name != name.lower() or name[:1] != "." for name in names):
            raise ConfigError(
                reason="Extensions for uploads are written in lower case, with the dot."
            )
        if self.place_lease_s <= self.place_timeout_s:
            raise ConfigError(reason="The lease of a use must be longer than its time.")
        times = (self.put_lifetime_s, self.use_lifetime_s, self.place_timeout_s)
        deadlines = (self.header_deadline_s, self.idle_deadline_s, self.body_deadline_s)
        if min(*times, *deadlines) <= 0 or self.keep_s < 0 or self.creates_per_minute < 1:
            raise ConfigError(reason="Times and the rate of uploads are more than 0.")

    def endpoint(self, kind: Kind, upload_id: str) -> str:
        """Return the path of a session's transfer endpoint; the secret is bound to it."""
        return f"{self.upload_path if kind == 'upload' else self.download_path}/{upload_id}"

    def url(self, kind: Kind, upload_id: str) -> str:
        """Return the public URL of a session's transfer endpoint."""
        return self.public_url + self.endpoint(kind, upload_id)

    def body_limit_s(self, size_bytes: int) -> float:
        """Return the time that a body of the declared size may take."""
        return self.body_deadline_s + self.body_extra_s_per_mib * size_bytes / (1 << 20)


@dataclass(frozen=True, slots=True)
class DeclaredUpload:
    """What the creator of a session says about its file; checked before anything is issued.

    Attributes:
        filename: For display and the extension check only.
        size_bytes: The exact size; for a download, the largest size.
        sha256: Lower-case hex, where given.
    """

    filename: str
    size_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class UploadSession:
    """One row. Times are Unix milliseconds of the database's clock.

    Attributes:
        state: The state in force: a pending session past `put_by_unix_ms` and a stored one past
            `use_by_unix_ms` read as `expired`, whether a sweep has come by or not.
        now_unix_ms: The database's clock when the row was read.
        attempt: Token of the one PUT; a placing has its own, `place_attempt`.
        received_bytes: Size as counted, once the body was whole.
        received_sha256: Lower-case hex as computed, recorded before the blob is published.
        reason: Code of the error that ended the session or the latest attempt of placing.
        object_key: Where the bytes are or may be; None once they are surely gone.
    """

    upload_id: str
    kind: Kind
    workspace: str
    credential_id: str
    endpoint: str
    filename: str
    size_bytes: int
    sha256: str | None
    secret_hmac: bytes = field(repr=False)
    state: State
    created_unix_ms: int
    put_by_unix_ms: int
    use_by_unix_ms: int
    now_unix_ms: int
    attempt: str | None = None
    object_key: str | None = field(default=None, repr=False)
    receive_by_unix_ms: int | None = None
    received_bytes: int | None = None
    received_sha256: str | None = None
    revoke_requested: bool = False
    place_phase: Phase = Phase.NONE
    place_attempt: str | None = None
    place_count: int = 0
    place_target: str | None = field(default=None, repr=False)
    place_result: str | None = field(default=None, repr=False)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """The right to the one PUT of a session, won by the compare-and-set.

    Attributes:
        session: The session as it is while receiving.
        token: Names this attempt in every later change of state.
        deadline_s: Time for the body, from now.
    """

    session: UploadSession
    token: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """A whole, verified file: the answer of a PUT that succeeded."""

    upload_id: str
    state: State
    size_bytes: int
    sha256: str
    filename: str


@dataclass(frozen=True, slots=True)
class PlaceTarget:
    """Where a file is to be used. An embedder's sink may leave both empty."""

    path: str | None = None
    sandbox_id: str | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """The recorded result of a use.

    Attributes:
        target: Where the file was really used: of the first call, also in a replay.
        result: What the sink returned; small JSON.
        replayed: True where an earlier call did it and nothing was written now.
    """

    upload: StoredUpload
    target: PlaceTarget
    result: Mapping[str, Any]
    replayed: bool


class Placer(Protocol):
    """Uses the bytes: writes them to a sandbox, or whatever an embedder does with a file."""

    async def place(
        self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
    ) -> Mapping[str, Any]:
        """Consume `data` and return a small JSON object, which is recorded.

        The last chunk is handed out only after the whole file has proved its digest; if `data`
        raises, nothing may be written. An `UploadTimeoutError` or `UploadOutcomeUnknownError`,
        a cancellation and every error outside our tree say that the outcome is not known; any
        other error of the package that it failed for certain.
        """
        ...

    async def inspect(self, upload: StoredUpload, target: PlaceTarget) -> Mapping[str, Any] | None:
        """Return the result if an earlier attempt with this target took effect, None if not.

        Raises:
            UploadOutcomeUnknownError: E7011, where that cannot be told.
        """
        ...


Charge = Callable[[StoredUpload, Principal], Awaitable[None]]
"""An embedder's charge hook. Runs at use only, with `upload_id` as its idempotency key: it is
called again where an earlier attempt of the same session failed after it."""
