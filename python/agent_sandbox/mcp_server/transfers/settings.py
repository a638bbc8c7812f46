"""How this server runs upload sessions, and where it keeps them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_sandbox.errors import ConfigError
from agent_sandbox.mcp_server.transfers.directories import check_directory
from agent_sandbox.uploads.blobs import BlobStore
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.models import UploadsConfig
from agent_sandbox.uploads.secrets import load_server_key
from agent_sandbox.uploads.store import UploadStore
from agent_sandbox.uploads.store.sqlite import SqliteStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Settings of upload sessions.

    Attributes:
        public_url: Where clients reach the transfer endpoint, without a trailing slash; None
            takes the address that this process listens on.
        host: Under STDIO, the address that the transfer endpoint listens on.
        port: Under STDIO, its port; 0 lets the system choose one.
        directory: For the database, the files and the server key, made with mode 0700. None
            keeps them below the user's state, under STDIO for the life of the process.
        database: DSN of PostgreSQL, instead of SQLite in `directory`.
        bucket: S3 bucket for the files, instead of `directory`. Credentials are taken from the
            `AWS_` variables of the environment.
        s3_endpoint: Base URL of an S3-compatible service, instead of AWS.
        s3_region: Region of the bucket.
        key_file: Server key of at least 32 bytes, the same on every replica; it must exist. None
            generates one in `directory`.
        max_size_bytes: Largest file.
        allowed_extensions: Lower-case, with the dot; empty allows all.
        allowed_origins: Origins of other web pages that may PUT from a browser.
        audit_file: Where every change of a session is noted: time, id, state, error code.
        metrics: Serve `/metrics`: to who shows a token where one is asked for, else to callers on
            this machine.
    """

    public_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    directory: str | None = None
    database: str | None = field(default=None, repr=False)
    bucket: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    key_file: str | None = None
    max_size_bytes: int = 1 << 30
    allowed_extensions: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    audit_file: str | None = None
    metrics: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535 or self.max_size_bytes < 0:
            raise ConfigError
        if self.public_url is not None and not self.public_url.startswith(("https://", "http://")):
            raise ConfigError(reason="The public URL of uploads must be a http or https address.")
        if self.database is not None and not self.database.startswith(
            ("postgresql://", "postgres://")
        ):
            raise ConfigError(reason="The database of uploads must be a postgresql:// address.")
        if (self.database is None) != (self.bucket is None) and self.directory is None:
            raise ConfigError(
                reason="With a database or a bucket alone, say in which directory the rest of the"
                " uploads is kept."
            )
        if self.bucket is None and (self.s3_endpoint or self.s3_region):
            raise ConfigError(reason="An S3 endpoint or region needs a bucket for uploads.")

    @property
    def is_shared(self) -> bool:
        """Whether sessions outlive this process, or are served by others too."""
        return self.directory is not None or self.database is not None

    def check(self) -> None:
        """Find early what would keep sessions from being opened; nothing is made or connected to.

        Raises:
            ConfigError: E6000: the directory or the key file cannot be used.
        """
        if self.key_file is not None:
            _given_key(Path(self.key_file))
        if self.directory is not None:
            check_directory(Path(self.directory))
        elif self.bucket is None:
            check_directory(default_directory())

    def service_config(self, public_url: str, directory: Path | None) -> UploadsConfig:
        """Return the library's settings.

        Raises:
            ConfigError: E6000, the key is too short or others can read it.
            OSError: The key cannot be read or made.
        """
        if self.key_file is not None:
            key = _given_key(Path(self.key_file))
        elif directory is not None:
            key = load_server_key(directory / "server.key")
        else:
            raise ConfigError(reason="Replicas need the same key file for uploads.")
        return UploadsConfig(
            (self.public_url or public_url).rstrip("/"),
            key,
            max_size_bytes=self.max_size_bytes,
            allowed_extensions=frozenset(self.allowed_extensions) or None,
            allowed_origins=frozenset(self.allowed_origins),
        )

    def open_store(self, directory: Path | None) -> UploadStore:
        """Return the store of the rows, not connected yet."""
        if self.database is None:
            return SqliteStore(_needed(directory) / "uploads.sqlite")
        try:
            from agent_sandbox.uploads.store.postgres import PostgresStore
        except ModuleNotFoundError:
            raise ConfigError(reason=_EXTRA) from None
        return PostgresStore(self.database)

    def open_blobs(self, directory: Path | None) -> BlobStore:
        """Return the store of the bytes."""
        if self.bucket is None:
            return LocalBlobs(_needed(directory) / "blobs")
        try:
            from agent_sandbox.uploads.blobs.s3 import S3Blobs
        except ModuleNotFoundError:
            raise ConfigError(reason=_EXTRA) from None
        given: dict[str, Any] = {"endpoint": self.s3_endpoint, "region": self.s3_region}
        more: dict[str, Any] = {name: value for name, value in given.items() if value}
        if self.s3_endpoint is not None and self.s3_endpoint.startswith("http://"):
            more["client_options"] = {"allow_http": True}
        return S3Blobs(self.bucket, **more)


_KEY = "The key file of uploads (--uploads-key-file)"
_EXTRA = "PostgreSQL and S3 need the extra: pip install 'agent-sandbox[replicas]'."


def _given_key(path: Path) -> bytes:
    if not path.exists():  # each replica would make another one
        raise ConfigError(reason=f"{_KEY} is missing.")
    try:
        return load_server_key(path)
    except OSError:
        raise ConfigError(reason=f"{_KEY} cannot be read.") from None
    except ConfigError:
        raise ConfigError(
            reason=f"{_KEY} must be a regular file of at least 32 bytes that only its owner can"
            " reach (chmod 600)."
        ) from None


def _needed(directory: Path | None) -> Path:
    if directory is None:
        raise ConfigError(reason="Uploads need a directory.")
    return directory


def default_directory() -> Path:
    """Return where this user's sessions are kept, by `AGENT_SANDBOX_UPLOADS_DIR` or by custom.

    Not inside the state of sandboxes: that belongs to another user where root starts them.
    """
    chosen = os.environ.get("AGENT_SANDBOX_UPLOADS_DIR", "")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/agent-sandbox-uploads")
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return base / "agent-sandbox-uploads"
