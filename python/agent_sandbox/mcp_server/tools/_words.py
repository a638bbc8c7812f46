"""Sentences that several tool descriptions share."""

from __future__ import annotations

ADOPTS = (
    "Naming a sandbox_id makes this session its owner: the sandbox is destroyed when the session"
    " ends, even after a mere read, so finish all uses of it first."
)

DEFAULT_SANDBOX = (
    "Without sandbox_id the session's own sandbox is used; it is created on first use and destroyed"
    " when the session ends. Where the connection has no session (protocol 2026-07-28 over HTTP) a"
    " new sandbox is created for the call: pass the sandbox_id of its result in later calls and"
    " end it with kill_sandbox."
)

PATH_IN_SANDBOX = (
    "The path is inside the sandbox, never on the machine of the server or the client."
)

_UPLOAD = (
    "Open an upload session with create_upload_url: the file then goes past you, whatever its size."
)

LARGER_FILES_IN = {"E3001": _UPLOAD, "E2005": _UPLOAD}
"""After data that is too large for a call, or that was retyped wrongly."""

LARGER_FILES_OUT = {"E4003": "Use create_download_url for a file of any size."}
