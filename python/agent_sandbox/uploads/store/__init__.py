"""Where the rows of sessions live. One protocol, one suite, two databases.

Every change is one compare-and-set on the database's clock: a method returns the row as it is
after the change, or None if the row was not in a state that allows it. Nothing is changed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent_sandbox.uploads.models import Kind, UploadSession
from agent_sandbox.uploads.states import Phase, State


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a new row is made of. Lifetimes are in milliseconds from the database's now."""

    upload_id: str
    kind: Kind
    workspace: str
    credential_id: str
    endpoint: str
    filename: str
    size_bytes: int
    sha256: str | None
    secret_hmac: bytes = field(repr=False)
    put_life_ms: int
    use_life_ms: int
    pending_max: int
    hourly_max: int


class UploadStore(Protocol):
    """The rows of upload sessions.

    Every method may raise `UploadBusyError` (E7019: certainly nothing was changed) and, if the
    connection was lost while a commit was under way, `UploadOutcomeUnknownError` (E7011). A
    change that has begun is finished even if its task is cancelled.
    """

    async def migrate(self) -> None:
        """Bring the schema to this version. Any number of replicas may call it at once."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    async def create(self, new: NewSession) -> UploadSession:
        """Insert a pending session if the workspace's quotas allow it.

        Counting and inserting are one statement under one lock.

        Raises:
            UploadQuotaError: E7009, with the quota that is used up.
        """
        ...

    async def read(self, upload_id: str) -> UploadSession | None:
        """Return the row, with the state in force now."""
        ...

    async def latest(
        self, credential_id: str, workspace: str, filename: str
    ) -> UploadSession | None:
        """Return the newest session of a credential with this display name."""
        ...

    async def claim_put(
        self, upload_id: str, *, attempt: str, object_key: str, body_ms: int
    ) -> UploadSession | None:
        """Move pending -> receiving if the secret still lives."""
        ...

    async def record_received(
        self, upload_id: str, *, attempt: str, size_bytes: int, sha256: str
    ) -> UploadSession | None:
        """Note what was counted and computed, before the blob is published."""
        ...

    async def finish_put(
        self, upload_id: str, *, attempt: str, to: State, reason: str | None = None
    ) -> UploadSession | None:
        """Move receiving or unknown to stored, failed or unknown.

        A session whose revocation was asked for meanwhile becomes revoked instead of stored.
        """
        ...

    async def claim_place(
        self, upload_id: str, *, attempt: str, target: str, lease_ms: int, after: str | None = None
    ) -> UploadSession | None:
        """Open an attempt of placing: from stored, or from placing after a closed attempt.

        Args:
            upload_id: The session.
            attempt: Token of the new attempt.
            target: Where to, as JSON.
            lease_ms: After this, an attempt that is still open reads as unknown.
            after: Token of an attempt of unknown outcome that was proved to have done nothing.
        """
        ...

    async def settle_place(
        self,
        upload_id: str,
        *,
        attempt: str,
        phase: Phase,
        result: str | None = None,
        reason: str | None = None,
    ) -> UploadSession | None:
        """End an attempt: done (the session is placed), closed (it failed) or unknown."""
        ...

    async def revoke(self, upload_id: str) -> UploadSession | None:
        """Move pending or stored to revoked; note it on receiving."""
        ...

    async def revoke_credential(
        self, credential_id: str, workspace: str | None
    ) -> list[UploadSession]:
        """Revoke every session of a credential whose secret is unused or in use."""
        ...

    async def expire(self, *, keep_ms: int) -> list[UploadSession]:
        """Write down the expiry of all that has expired."""
        ...

    async def unsettled(
        self, *, grace_ms: int, everything: bool, after: str, limit: int
    ) -> list[UploadSession]:
        """Return unknown sessions, and receiving ones that are abandoned, in order of id."""
        ...

    async def blobs_to_delete(self, *, after: str, limit: int) -> list[UploadSession]:
        """Return ended sessions whose bytes may still exist, in order of id."""
        ...

    async def forget_blob(self, upload_id: str, object_key: str) -> None:
        """Note that the bytes of an ended session are surely gone."""
        ...

    async def remove_old(self, *, keep_ms: int) -> list[str]:
        """Remove ended rows of that age whose bytes are gone; return their ids."""
        ...

    async def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return those object keys that a row refers to."""
        ...

    async def count_states(self) -> dict[State, int]:
        """Return how many rows are in each state that is in force; states of none are left out."""
        ...

    async def now_unix_ms(self) -> int:
        """Return the database's clock."""
        ...
