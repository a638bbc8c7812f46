"""Errors of callers who want in: what they show for themselves, and what it allows."""

from __future__ import annotations

from agent_sandbox.errors.base import AgentSandboxError


class AccessError(
    AgentSandboxError,
    code="E8000",
    category="permission_denied",
    http=403,
    text="This caller is not let in.",
):
    """A caller of one of our own services is refused; nothing was touched."""


class CredentialsMissingError(
    AccessError,
    code="E8001",
    category="permission_denied",
    http=401,
    text="This server asks for credentials: send the header `Authorization: Bearer TOKEN`.",
):
    """No bearer token was sent."""


class CredentialsInvalidError(
    AccessError,
    code="E8002",
    category="permission_denied",
    http=401,
    text="The token is not valid here: it is unknown, revoked, expired, or for another server.",
):
    """The token lets nobody in; why is not told, so that nothing can be tried out."""


class CredentialsMalformedError(
    AccessError,
    code="E8003",
    category="permission_denied",
    http=400,
    text="The Authorization header must be there once, with one bearer token.",
):
    """There are two Authorization headers, or one that holds no single bearer token."""


class ScopeMissingError(
    AccessError,
    code="E8004",
    category="permission_denied",
    http=403,
    text="The token is valid, but not for this: ask for one with the scopes that are named.",
):
    """The token lacks a scope that this server asks for."""


class CredentialsUncheckedError(
    AccessError,
    code="E8005",
    category="file_transfer",
    http=503,
    text="The token cannot be checked now: the issuer's keys cannot be fetched. Try again later.",
    retry=True,
):
    """The issuer does not answer, so nobody can tell whether the token is good."""
