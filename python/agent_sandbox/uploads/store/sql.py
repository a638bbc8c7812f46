"""What both databases share: every method but the running of a statement."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from agent_sandbox.errors import UploadQuotaError
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import Phase, State
from agent_sandbox.uploads.store import NewSession, statements

Row = Mapping[str, Any]

_NEW = tuple(field.name for field in dataclasses.fields(NewSession))


def session_from(row: Row) -> UploadSession:
    """Return a row of `statements` as a session."""
    return UploadSession(
        **{
            **row,
            "state": State(row["state"]),
            "place_phase": Phase(row["place_phase"]),
            "revoke_requested": bool(row["revoke_requested"]),
            "secret_hmac": bytes(row["secret_hmac"]),
        }
    )


class SqlStore(abc.ABC):
    """An `UploadStore` over anything that runs `statements`."""

    @abc.abstractmethod
    async def _run(self, sql: str, values: Mapping[str, Any], *, write: bool = True) -> list[Row]:
        """Run one statement in its own transaction, to its end, and return its rows.

        Args:
            sql: One of `statements`.
            values: Its parameters.
            write: Whether it changes anything.
        """

    @abc.abstractmethod
    async def migrate(self) -> None:
        """Bring the schema to this version."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abc.abstractmethod
    async def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return those object keys that a row refers to."""

    async def _one(self, sql: str, **values: Any) -> UploadSession | None:
        rows = await self._run(sql, values)
        return session_from(rows[0]) if rows else None

    async def _many(self, sql: str, *, write: bool = True, **values: Any) -> list[UploadSession]:
        return [session_from(row) for row in await self._run(sql, values, write=write)]

    async def create(self, new: NewSession) -> UploadSession:
        """Insert a pending session if the workspace's quotas allow it."""
        values = {name: getattr(new, name) for name in _NEW}
        rows = await self._run(statements.CREATE, values)
        return session_from(rows[0]) if rows else await self._refuse(new)

    async def _refuse(self, new: NewSession) -> NoReturn:
        count = await self._run(
            statements.PENDING_COUNT,
            {"workspace": new.workspace, "kind": new.kind},
            write=False,
        )
        raise UploadQuotaError("pending" if count[0]["n"] >= new.pending_max else "hourly")

    async def read(self, upload_id: str) -> UploadSession | None:
        """Return the row, with the state in force now."""
        rows = await self._run(statements.READ, {"upload_id": upload_id}, write=False)
        return session_from(rows[0]) if rows else None

    async def latest(
        self, credential_id: str, workspace: str, filename: str
    ) -> UploadSession | None:
        """Return the newest session of a credential with this display name."""
        found = await self._many(
            statements.LATEST,
            write=False,
            credential_id=credential_id,
            workspace=workspace,
            filename=filename,
        )
        return found[0] if found else None

    async def claim_put(
        self, upload_id: str, *, attempt: str, object_key: str, body_ms: int
    ) -> UploadSession | None:
        """Move pending -> receiving if the secret still lives."""
        return await self._one(
            statements.CLAIM_PUT,
            upload_id=upload_id,
            attempt=attempt,
            object_key=object_key,
            body_ms=body_ms,
        )

    async def record_received(
        self, upload_id: str, *, attempt: str, size_bytes: int, sha256: str
    ) -> UploadSession | None:
        """Note what was counted and computed, before the blob is published."""
        return await self._one(
            statements.RECORD_RECEIVED,
            upload_id=upload_id,
            attempt=attempt,
            size_bytes=size_bytes,
            sha256=sha256,
        )

    async def finish_put(
        self, upload_id: str, *, attempt: str, to: State, reason: str | None = None
    ) -> UploadSession | None:
        """Move receiving or unknown to stored, failed or unknown."""
        return await self._one(
            statements.FINISH_PUT,
            upload_id=upload_id,
            attempt=attempt,
            to_state=str(to),
            reason=reason,
        )

    async def claim_place(
        self, upload_id: str, *, attempt: str, target: str, lease_ms: int, after: str | None = None
    ) -> UploadSession | None:
        """Open an attempt of placing."""
        return await self._one(
            statements.CLAIM_PLACE,
            upload_id=upload_id,
            attempt=attempt,
            target=target,
            lease_ms=lease_ms,
            after=after,
        )

    async def settle_place(
        self,
        upload_id: str,
        *,
        attempt: str,
        phase: Phase,
        result: str | None = None,
        reason: str | None = None,
    ) -> UploadSession | None:
        """End an attempt of placing."""
        return await self._one(
            statements.SETTLE_PLACE,
            upload_id=upload_id,
            attempt=attempt,
            phase=str(phase),
            result=result,
            reason=reason,
        )

    async def revoke(self, upload_id: str) -> UploadSession | None:
        """Move pending or stored to revoked; note it on receiving."""
        return await self._one(statements.REVOKE, upload_id=upload_id)

    async def revoke_credential(
        self, credential_id: str, workspace: str | None
    ) -> list[UploadSession]:
        """Revoke every session of a credential whose secret is unused or in use."""
        return await self._many(
            statements.REVOKE_CREDENTIAL, credential_id=credential_id, workspace=workspace
        )

    async def expire(self, *, keep_ms: int) -> list[UploadSession]:
        """Write down the expiry of all that has expired."""
        return await self._many(statements.EXPIRE, keep_ms=keep_ms)

    async def unsettled(
        self, *, grace_ms: int, everything: bool, after: str, limit: int
    ) -> list[UploadSession]:
        """Return unknown and abandoned sessions in order of id."""
        return await self._many(
            statements.UNSETTLED,
            write=False,
            grace_ms=grace_ms,
            everything=int(everything),
            after=after,
            row_limit=limit,
        )

    async def blobs_to_delete(self, *, after: str, limit: int) -> list[UploadSession]:
        """Return ended sessions whose bytes may still exist, in order of id."""
        return await self._many(
            statements.BLOBS_TO_DELETE, write=False, after=after, row_limit=limit
        )

    async def forget_blob(self, upload_id: str, object_key: str) -> None:
        """Note that the bytes of an ended session are surely gone."""
        await self._run(statements.FORGET_BLOB, {"upload_id": upload_id, "object_key": object_key})

    async def remove_old(self, *, keep_ms: int) -> list[str]:
        """Remove ended rows of that age whose bytes are gone."""
        rows = await self._run(statements.REMOVE_OLD, {"keep_ms": keep_ms})
        return [row["upload_id"] for row in rows]

    async def count_states(self) -> dict[State, int]:
        """Return how many rows are in each state that is in force."""
        rows = await self._run(statements.COUNT_STATES, {}, write=False)
        return {State(row["state"]): row["n"] for row in rows}

    async def now_unix_ms(self) -> int:
        """Return the database's clock."""
        rows = await self._run(statements.NOW, {}, write=False)
        return int(rows[0]["n"])


def keys_json(keys: Sequence[str]) -> str:
    """Return keys as one JSON parameter, since the databases write lists differently."""
    return json.dumps(list(keys))
