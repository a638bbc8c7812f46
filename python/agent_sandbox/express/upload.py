"""`POST /files`: raw bodies and multipart forms, streamed into files that appear whole or not."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from agent_sandbox.errors import ArgumentError, TransferError, TransferTimeoutError
from agent_sandbox.express.answers import json_answer
from agent_sandbox.express.atomic import AtomicFile
from agent_sandbox.express.connection import STALL_TIMEOUT_S
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.multipart import PartEnd, PartReader
from agent_sandbox.express.names import absolute_path
from agent_sandbox.express.requests import header
from agent_sandbox.express.sandbox import Sandbox
from agent_sandbox.wire import headers
from agent_sandbox.wire.e2b import WrittenFile

BATCH_BYTES = 1_048_576
"""Bytes collected before a thread writes them; a body up to here needs one thread and one turn."""

_INFLATE_BYTES = 1_048_576
_METADATA_PREFIX = b"x-metadata-"
_METADATA_KEY = re.compile(r"[a-z0-9!#$%&'*+\-.^_`|~]{1,200}")
_METADATA_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a request says about all its files.

    Attributes:
        metadata: E2B's metadata, keys in lower case.
        declared_sha256: What the content's digest must be.
        wants_sha256: Whether the answer is to carry the digest.
    """

    metadata: dict[str, str] = field(default_factory=dict)
    declared_sha256: bytes | None = None
    wants_sha256: bool = False

    @classmethod
    def of(cls, request: Request) -> WriteOptions:
        """Read them from the headers.

        Raises:
            ArgumentError: E2001: a digest or a metadata header is malformed.
        """
        metadata = {}
        for name, value in request.scope["headers"]:
            if name.startswith(_METADATA_PREFIX):
                key = name.removeprefix(_METADATA_PREFIX).decode("latin-1")
                text = value.decode("latin-1")
                if not (_METADATA_KEY.fullmatch(key) and _METADATA_VALUE.fullmatch(text)):
                    raise ArgumentError
                metadata[key] = text
        wants = (header(request, headers.WANT_REPR_DIGEST) or b"").strip().lower()
        if wants not in (b"", b"sha-256", b"sha-256=1"):
            raise ArgumentError
        return cls(metadata, _declared_sha256(request), bool(wants))


def _declared_sha256(request: Request) -> bytes | None:
    value = header(request, headers.REPR_DIGEST)
    if value is None:
        return None
    match = re.fullmatch(rb"sha-256=:([A-Za-z0-9+/]{43}=):", value.strip())
    if match is None:
        raise ArgumentError
    try:
        return base64.b64decode(match[1], validate=True)
    except binascii.Error:
        raise ArgumentError from None


async def write_raw(request: Request, sandbox: Sandbox, path: str, disk: Disk) -> Response:
    """Write the body to a path and return the answer.

    Raises:
        AgentSandboxError: Nothing was changed at the path.
    """
    options = WriteOptions.of(request)
    inflate = _inflater(request)
    async with sandbox.use(), _Target(sandbox, path, options, disk) as target:
        async for chunk in _chunks(request):
            await target.add(chunk, inflate)
        written = await target.finish(inflate)
    return _answer([written], target.sha256 if options.wants_sha256 else None)


async def write_form(request: Request, sandbox: Sandbox, path: str | None, disk: Disk) -> Response:
    """Write the parts named `file` of a form and return the answer.

    Args:
        request: The request; its body is the form.
        sandbox: Whose files they are.
        path: Where the only file goes, as the caller spelled it; without it each part's filename
            is its path.
        disk: Threads for writing.

    Raises:
        AgentSandboxError: Nothing was changed at the path of the file that failed; files before it
            in the same form were written.
    """
    options = WriteOptions.of(request)
    if header(request, "content-encoding") not in (None, b"identity"):
        raise ArgumentError
    reader = PartReader(header(request, "content-type") or b"")
    written: list[WrittenFile] = []
    async with sandbox.use(), contextlib.AsyncExitStack() as targets:
        target: _Target | None = None  # the newest file; finished when it is known to be whole
        in_file = False
        async for chunk in _chunks(request):
            for event in reader.feed(chunk):
                if isinstance(event, bytes):
                    if target and in_file:
                        await target.add(event)
                elif isinstance(event, PartEnd):
                    in_file = False
                elif event.name == "file":
                    if path is not None and target:
                        raise ArgumentError
                    where = absolute_path((event.filename if path is None else path) or "")
                    if target:
                        written.append(await target.finish())
                    target = await targets.enter_async_context(
                        _Target(sandbox, where, options, disk)
                    )
                    in_file = True
        reader.finish()
        if target is None:
            raise ArgumentError
        written.append(await target.finish())
    return _answer(written, None)


class _Target:
    """Collects the bytes of one file; a thread takes them over in batches.

    The first batch also opens the file, so that a small file costs one turn of a thread.
    """

    def __init__(self, sandbox: Sandbox, path: str, options: WriteOptions, disk: Disk) -> None:
        self._path = path
        self._options = options
        self._disk = disk
        self._slots = sandbox.disk_slots
        self._file = AtomicFile(
            sandbox.tree,
            path,
            metadata=options.metadata,
            with_sha256=options.wants_sha256 or options.declared_sha256 is not None,
        )
        self._opened = False
        self._finished = False
        self._batch: list[bytes] = []
        self._batch_bytes = 0

    @property
    def sha256(self) -> bytes | None:
        """The digest of the content, where the options asked for it."""
        return self._file.sha256

    async def add(self, chunk: bytes, inflate: _Inflate | None = None) -> None:
        self._batch.append(chunk)
        self._batch_bytes += len(chunk)
        if self._batch_bytes >= BATCH_BYTES:
            await self._flush(inflate, last=False)

    async def finish(self, inflate: _Inflate | None = None) -> WrittenFile:
        await self._flush(inflate, last=True)
        self._finished = True
        return WrittenFile(
            name=self._path.rpartition("/")[2],
            path=self._path,
            size=self._file.bytes_written,
            metadata=self._options.metadata,
        )

    async def _flush(self, inflate: _Inflate | None, *, last: bool) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0

        def work() -> None:
            if not self._opened:
                self._file.open()
                self._opened = True
            if inflate is None:
                self._file.write(batch)
            else:
                for piece in inflate.pieces(batch):
                    self._file.write([piece])
                if last:
                    inflate.finish()
            if last:
                self._file.commit(self._options.declared_sha256)

        await self._disk.run(work, slots=self._slots)

    async def __aenter__(self) -> _Target:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave nothing behind, unless the file was finished."""
        if not self._finished:
            await self._disk.run(self._file.abort)  # whatever the sandbox's share is


class _Inflate:
    """Reads a gzip body (RFC 1952, any number of members) in bounded pieces."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(31)
        self._begun = False

    def pieces(self, chunks: list[bytes]) -> Iterator[bytes]:
        for data in chunks:
            self._begun = True
            rest = data
            while True:
                if self._stream.eof and rest:
                    self._stream = zlib.decompressobj(31)
                try:
                    piece = self._stream.decompress(rest, _INFLATE_BYTES)
                except zlib.error:
                    raise ArgumentError from None
                if piece:
                    yield piece
                rest = self._stream.unconsumed_tail or self._stream.unused_data
                # A full piece may leave more in the decompressor, though it took all its input.
                if not rest and len(piece) < _INFLATE_BYTES:
                    break

    def finish(self) -> None:
        if not (self._begun and self._stream.eof):
            raise ArgumentError


def _inflater(request: Request) -> _Inflate | None:
    encoding = (header(request, "content-encoding") or b"identity").strip().lower()
    if encoding == b"identity":
        return None
    if encoding in (b"gzip", b"x-gzip"):
        return _Inflate()
    raise ArgumentError


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                message = await request.receive()
        except TimeoutError:
            raise TransferTimeoutError from None
        if message["type"] == "http.disconnect":
            raise TransferError
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


def _answer(written: list[WrittenFile], sha256: bytes | None) -> Response:
    data = b"[" + b",".join(one.to_json() for one in written) + b"]"
    if sha256 is None:
        return json_answer(data)
    digest = f"sha-256=:{base64.b64encode(sha256).decode()}:"
    return json_answer(data, more={headers.REPR_DIGEST: digest})
