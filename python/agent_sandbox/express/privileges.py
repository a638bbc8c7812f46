"""Giving up root for good: a dedicated user, no core dumps, no ptrace, no later imports."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import NoReturn

from agent_sandbox.errors import ConfigError

DEFAULT_ID = 60_773
"""User and group of a service that root starts: a number that neither Debian nor systemd gives out
(systemd lists 60706-61183 as unused). `AGENT_SANDBOX_UID` and `AGENT_SANDBOX_GID` override it."""

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES = 64

_log = logging.getLogger(__name__)


def service_ids() -> tuple[int, int]:
    """Return the numeric user and group that the service runs as.

    Raises:
        ConfigError: E6000: an override is no number from 1 to 2^31 - 1.
    """
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    return _number("AGENT_SANDBOX_UID"), _number("AGENT_SANDBOX_GID")


def _number(variable: str) -> int:
    text = os.environ.get(variable) or str(DEFAULT_ID)
    if text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**31:
        return int(text)
    raise ConfigError(reason=f"{variable} must be the number of a user other than root.")


def drop_privileges(uid: int, gid: int) -> None:
    """Become `uid` and `gid` with no other group, if the process is root, and stop being traceable.

    No program that the process may still start gets more rights than it has itself.

    Raises:
        ConfigError: E6000: the kernel refuses, as in a container that maps no such user.
    """
    prctl = ctypes.CDLL(None).prctl
    if os.geteuid() == 0:
        for capability in range(_CAPABILITIES):  # fails beyond the last, and for a lesser root
            prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError:
            raise ConfigError(
                reason="Root cannot become the service's user here; start it as a plain user."
            ) from None
    # A change of user clears this flag as well, but not where no change was needed.
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


class _Refuse(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> NoReturn:
        _log.warning("late import refused: %s", fullname)
        raise ModuleNotFoundError(f"{fullname} is imported too late", name=fullname)


def seal_imports() -> None:
    """Refuse every import of a module that is not loaded yet.

    The service's user may not be able to read the installed packages, and nothing that a sandbox
    can write may ever become code of the service. Every start refuses, so that a lazy import shows
    on a laptop too.
    """
    sys.meta_path.insert(0, _Refuse())
