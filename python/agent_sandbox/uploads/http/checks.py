"""What every request to a transfer endpoint must pass before its session is looked up."""

from __future__ import annotations

from starlette.types import Scope

from agent_sandbox.errors import (
    UploadEncodingError,
    UploadFramingError,
    UploadLengthError,
    UploadLengthRequiredError,
    UploadSecretMissingError,
    UploadSizeError,
)
from agent_sandbox.http1.head import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    Framing,
    HeadError,
    Headers,
    read_framing,
    values,
)
from agent_sandbox.uploads.models import UploadsConfig, UploadSession


def framing_of(scope: Scope) -> Framing:
    """Say how the body is delimited.

    Our own protocol has refused doubtful heads already; other servers let some of them through.

    Raises:
        UploadFramingError: E7021, two readers could disagree, or the head is too long; or a PUT
            is partial (`Content-Range`) or wants another protocol (`Upgrade`).
    """
    headers: Headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
        raise UploadFramingError
    try:
        framing = read_framing(headers, scope["http_version"])
    except HeadError:
        raise UploadFramingError from None
    if scope["method"] == "PUT" and (
        values(headers, b"content-range") or values(headers, b"upgrade")
    ):
        raise UploadFramingError
    return framing


def secret_of(scope: Scope) -> str:
    """Return the value of the one Authorization header.

    Raises:
        UploadSecretMissingError: E7012, none, an empty one, or more than one. A secret in the
            query or in a cookie is none.
    """
    given = values(scope["headers"], b"authorization")
    if len(given) != 1 or not given[0]:
        raise UploadSecretMissingError
    return given[0].decode("latin-1")


def body_fits(
    scope: Scope, framing: Framing, session: UploadSession, config: UploadsConfig
) -> None:
    """Check that the announced body can be the declared file.

    Raises:
        UploadEncodingError: E7023, it is encoded.
        UploadLengthRequiredError: E7024, its length is not announced.
        UploadSizeError: E7014, it is over the cap.
        UploadLengthError: E7025, it is not of the declared size.
    """
    codings = values(scope["headers"], b"content-encoding")
    if any(coding.strip().lower() != b"identity" for coding in codings):
        raise UploadEncodingError
    length = framing.content_length
    if length is None:
        raise UploadLengthRequiredError
    if length > config.max_size_bytes:
        raise UploadSizeError(config.max_size_bytes)
    if length != session.size_bytes:
        raise UploadLengthError
