"""Who an upload session belongs to: the process under STDIO, over HTTP the caller's credential."""

from __future__ import annotations

from agent_sandbox.mcp_server import principals
from agent_sandbox.mcp_server.auth.authority import Authority
from agent_sandbox.mcp_server.splice import LineRequest
from agent_sandbox.mcp_server.transfers.uploads import Uploads
from agent_sandbox.uploads.models import Principal
from agent_sandbox.uploads.tools import Context

ANYBODY = Principal("http:anonymous", "http:anonymous")
"""All HTTP callers, where nobody is asked for credentials."""


def principal_of(context: Context, uploads: Uploads) -> Principal:
    """Return whose the sessions of a call are; a workspace is what one credential has."""
    request = context.request_context.request
    if request is None or isinstance(request, LineRequest):
        return uploads.process
    caller = principals.principal_of(request).id
    return Principal(caller, caller) if caller else ANYBODY


def stands(authority: Authority, credential_id: str) -> bool:
    """Tell whether the credential that opened a session is still let in.

    Sessions of a time when nobody was asked for credentials belong to nobody now.
    """
    principal = principals.Principal.of_id(credential_id)
    return principal is not None and authority.lets_in(principal)
