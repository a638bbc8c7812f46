"""The sweep and the recovery. Any number may run at once, on any replica."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from agent_sandbox.errors import UploadError
from agent_sandbox.uploads.core import Core
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import State

_log = logging.getLogger(__name__)

_PAGE = 200
_COUNTED = ("expired", "reconciled", "unknown", "deleted", "kept", "removed", "orphans")


async def recover(core: Core, *, abandon_all: bool) -> Counter[str]:
    """Settle what is abandoned or unknown; count by the state found."""
    grace_ms = round(core.config.receive_grace_s * 1_000)
    done: Counter[str] = Counter()

    async def page(after: str) -> list[UploadSession]:
        return await core.store.unsettled(
            grace_ms=grace_ms, everything=abandon_all, after=after, limit=_PAGE
        )

    async def settle(session: UploadSession) -> None:
        found = await core.reconcile(session)
        done[str(found.state)] += 1

    await _each(page, settle)
    return done


async def sweep(core: Core) -> dict[str, int]:
    """Expire, reconcile, delete, remove; count what was done."""
    keep_ms = core.config.keep_s * 1_000
    done = Counter(dict.fromkeys(_COUNTED, 0))
    for session in await core.store.expire(keep_ms=keep_ms):
        core.tell(session, "expire")
        done["expired"] += 1
    settled = await recover(core, abandon_all=False)
    done["unknown"] = settled[State.UNKNOWN]
    done["reconciled"] = settled.total() - done["unknown"]

    async def page(after: str) -> list[UploadSession]:
        return await core.store.blobs_to_delete(after=after, limit=_PAGE)

    async def drop(session: UploadSession) -> None:
        done["deleted" if await core.drop_blob(session) else "kept"] += 1

    await _each(page, drop)
    done["removed"] = len(await core.store.remove_old(keep_ms=keep_ms))
    done["orphans"] = await _drop_orphans(core)
    _log.info("upload sweep: %s", dict(done))
    return dict(done)


async def _each(
    page: Callable[[str], Awaitable[list[UploadSession]]],
    action: Callable[[UploadSession], Awaitable[None]],
) -> None:
    """Run an action on every row; one that fails now is left for the next time."""
    after = ""
    while rows := await page(after):
        for session in rows:
            try:
                await action(session)
            except UploadError as error:
                _log.warning("upload %s is left as it is (%s)", session.upload_id, error.code)
        after = rows[-1].upload_id


async def _drop_orphans(core: Core) -> int:
    """Delete old objects that no row knows: what a crash left between two steps."""
    dropped = 0
    keys: list[str] = []

    async def flush() -> int:
        known = await core.store.known_keys(keys)
        count = 0
        for key in keys:
            if key not in known:
                await core.blobs.delete(key)
                count += 1
        keys.clear()
        return count

    try:
        async for key in core.blobs.list_orphans(core.config.keep_s):
            keys.append(key)
            if len(keys) >= _PAGE:
                dropped += await flush()
        if keys:
            dropped += await flush()
    except UploadError as error:
        _log.warning("orphans are left for the next sweep (%s)", error.code)
    return dropped
