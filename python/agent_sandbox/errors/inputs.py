"""Errors of what the caller gave; nothing was touched."""

from __future__ import annotations

from agent_sandbox.errors.base import AgentSandboxError


class InvalidInputError(
    AgentSandboxError,
    code="E2000",
    category="invalid_input",
    http=400,
    text="The input is not valid.",
):
    """The caller sent something that can never work; nothing was touched."""


class ArgumentError(
    InvalidInputError,
    code="E2001",
    category="invalid_input",
    http=400,
    text="The arguments do not match the schema: check names, types and ranges.",
):
    """An argument is unknown, missing, of the wrong type or out of its range."""


class PathError(
    InvalidInputError,
    code="E2002",
    category="invalid_input",
    http=400,
    text=(
        "The path is not valid: it must be absolute, at most 4096 UTF-8 bytes, with no NUL and no"
        " '..' component; a component has at most 255 bytes, and a file's path does not end in '/'."
    ),
):
    """A remote path breaks the rules of `agent_sandbox.paths`."""


class Base64Error(
    InvalidInputError,
    ValueError,
    code="E2003",
    category="invalid_input",
    http=400,
    text=(
        "The data is not strict Base64: standard alphabet, padded, no white space, unused bits"
        " zero (RFC 4648 section 4)."
    ),
):
    """The text is not canonical Base64.

    Attributes:
        offset: Index of the first offending symbol; the length of the input where the length is
            wrong; the last symbol where unused trailing bits are not zero.
    """

    offset: int

    def __init__(self, offset: int) -> None:
        super().__init__(offset=offset)


class TextEncodingError(
    InvalidInputError,
    code="E2004",
    category="invalid_input",
    http=400,
    text="The content is not UTF-8 text: use download_file and upload_file for binary data.",
):
    """Bytes that were asked for as text, or text that has no UTF-8 form."""


class DeclarationError(
    InvalidInputError,
    code="E2005",
    category="invalid_input",
    http=400,
    text=(
        "The data does not match its declared size_bytes or sha256; nothing was written. Do not"
        " retype the data; open an upload session."
    ),
):
    """Declared size or digest and the data that came do not agree."""


class UnknownToolError(
    InvalidInputError,
    code="E2006",
    category="invalid_input",
    http=404,
    text="There is no tool of this name: call tools/list for the names.",
):
    """An MCP client called a tool that this server does not have."""


class SizeLimitError(
    AgentSandboxError,
    code="E3001",
    category="size_limit",
    http=413,
    text="The data is larger than the limit.",
):
    """More bytes than a bound allows.

    Attributes:
        limit: The bound, in bytes.
    """

    limit: int

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)
