"""Files between a sandbox and the outside, past the model: one-shot downloads, public links."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import PurePosixPath

from agent_sandbox.errors import TransferTimeoutError, UploadTimeoutError
from agent_sandbox.paths import canonical_path
from agent_sandbox.toolkit import schemas as shared
from agent_sandbox.toolkit.arguments import Arguments
from agent_sandbox.uploads import guidance
from agent_sandbox.uploads.fetch import MAX_URL_CHARS, fetch
from agent_sandbox.uploads.models import PlaceTarget, UploadSession
from agent_sandbox.uploads.tools import schemas
from agent_sandbox.uploads.tools.backend import Backend, Call
from agent_sandbox.uploads.tools.schemas import Fields, SandboxId, when
from agent_sandbox.uploads.tools.tool import UploadTool, make_tool


class DownloadArguments(Arguments):
    """Arguments of `create_download_url`."""

    path: str
    sandbox_id: SandboxId | None = None


class FetchArguments(DownloadArguments):
    """Arguments of `fetch_url`; the fetcher judges the link."""

    url: str


async def create_download_url(call: Call, arguments: DownloadArguments) -> Fields:
    """Stage a file through a bounded stream, and hand out one GET of it."""
    path = canonical_path(arguments.path)
    service = call.service
    max_bytes = service.config.max_size_bytes

    async def stage(chunks: AsyncIterator[bytes]) -> tuple[UploadSession, str]:
        name = PurePosixPath(path).name
        return await service.stage_download(call.principal, name, chunks, max_bytes)

    target = PlaceTarget(path, arguments.sandbox_id)
    (session, secret), result = await call.sandboxes().read(target, max_bytes, stage)
    url = service.config.url("download", session.upload_id)
    return {
        "download_id": session.upload_id,
        "url": url,
        "method": "GET",
        "headers": {"Authorization": secret},
        "size_bytes": session.received_bytes,
        "sha256": session.received_sha256,
        "get_by": when(session.use_by_unix_ms),
        "instructions": guidance.download_instructions(url),
        **result,
    }


async def fetch_url(call: Call, arguments: FetchArguments) -> Fields:
    """Stream a public link into a sandbox."""
    path = canonical_path(arguments.path)
    policy = call.backend.fetch_policy(call.service.config)
    target = PlaceTarget(path, arguments.sandbox_id)
    whole = False

    async def counted(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        nonlocal whole
        async for chunk in chunks:
            yield chunk
        whole = True

    try:
        # The link first: one that is refused or dead makes no sandbox.
        async with (
            fetch(arguments.url, policy) as fetched,
            aclosing(counted(fetched.chunks)) as data,
        ):
            result = await call.sandboxes().write(target, data)
    except TransferTimeoutError:
        if whole:  # the sandbox has all of it and did not answer
            raise UploadTimeoutError from None
        raise
    return {"path": path, **result}


def tools(backend: Backend) -> list[UploadTool]:
    """Return the tools of this file, if there are sandboxes."""
    if backend.files is None:
        return []
    sandbox_id = shared.sandbox_choice(guidance.ENDS_WITH_SCOPE)
    return [
        make_tool(
            backend,
            create_download_url,
            DownloadArguments,
            title="Open a download",
            description=guidance.CREATE_DOWNLOAD_URL,
            input_schema=shared.closed_input(
                {
                    "path": shared.file_path("The file to download."),
                    "sandbox_id": sandbox_id,
                },
                required=("path",),
            ),
            output_schema=schemas.output(
                {
                    "download_id": shared.text("Names the download."),
                    "url": schemas.URL,
                    "method": {"const": "GET"},
                    "headers": schemas.HEADERS,
                    "size_bytes": schemas.SIZE,
                    "sha256": shared.SHA256,
                    "get_by": schemas.TIME,
                    "instructions": schemas.INSTRUCTIONS,
                    **schemas.SANDBOX_FIELDS,
                },
                optional=schemas.SANDBOX_OPTIONAL,
            ),
        ),
        make_tool(
            backend,
            fetch_url,
            FetchArguments,
            title="Fetch a public link",
            description=guidance.FETCH_URL,
            input_schema=shared.closed_input(
                {
                    "url": shared.text(
                        "A public https link that needs no login.", maxLength=MAX_URL_CHARS
                    ),
                    "path": shared.file_path("The file to write in the sandbox."),
                    "sandbox_id": sandbox_id,
                },
                required=("url", "path"),
            ),
            output_schema=schemas.output(
                {
                    "path": shared.text("Where the file is."),
                    "bytes_written": schemas.SIZE,
                    "sha256": shared.SHA256,
                    **schemas.SANDBOX_FIELDS,
                },
                optional=schemas.SANDBOX_OPTIONAL,
            ),
            destructive=True,
            idempotent=True,
            open_world=True,
        ),
    ]
