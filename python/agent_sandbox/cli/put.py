"""`agent-sandbox put`: send a file to an upload session, for people and for agents with a shell."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path

from agent_sandbox.cli._arguments import Command, Usage
from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError

SECRET_VARIABLE = "AGENT_SANDBOX_UPLOAD_SECRET"  # noqa: S105 - a name, no secret
_PROG = "agent-sandbox put"
_LONGEST_SECRET = 4_096

_EXAMPLES = f"""\
examples:
  agent-sandbox put catalogue.xlsx https://files.example.com/uploads/ID
      asks for the one-time code, which it does not show.
  printf '%s' "$T" | agent-sandbox put catalogue.xlsx URL
  {SECRET_VARIABLE}="$T" agent-sandbox put catalogue.xlsx URL
      The code is the value of the Authorization header of create_upload_url. It is never an
      argument, because others can read those.
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to send")
    parser.add_argument("url", metavar="URL", help="the `url` of create_upload_url")


def _run(arguments: argparse.Namespace) -> int:
    import asyncio

    from agent_sandbox.cli import _show
    from agent_sandbox.uploads.put import put_file

    if not arguments.file.exists():  # told before anybody is asked for the code
        raise Usage(_PROG, f"{arguments.file}: {os.strerror(errno.ENOENT)}")
    secret = _secret()
    try:
        with _show.Progress(str(arguments.file), None, quiet_s=0) as bar:
            result = asyncio.run(
                put_file(arguments.url, secret, arguments.file, progress=bar.reach)
            )
    except AgentSandboxError as error:
        print(f"agent-sandbox: {_text(error)}", file=sys.stderr)
        print(f"next: {_advice(error)}", file=sys.stderr)
        return EXIT_STATUS[error.category]
    print(f"stored: {result.size_bytes} bytes, sha256 {result.sha256}")
    print(f"next: tell your assistant that upload {result.upload_id} is there.", file=sys.stderr)
    return 0


def _secret() -> str:
    """Return the one-time code from the environment, a question, or standard input."""
    given = os.environ.get(SECRET_VARIABLE)
    if given is None and sys.stdin is not None and sys.stdin.isatty():
        import getpass

        given = getpass.getpass("one-time code: ")
    elif given is None and sys.stdin is not None:
        given = sys.stdin.read(_LONGEST_SECRET)
    secret = (given or "").strip()
    if not secret:
        raise Usage(
            _PROG,
            f"the one-time code is missing: on standard input or as {SECRET_VARIABLE}",
        )
    return secret


def _text(error: AgentSandboxError) -> str:
    status = getattr(error, "answered_status", None)
    if status is not None:
        return f"Something answered there with status {status}, but not as an upload session does."
    return _OWN_TEXT.get(error.code, error.text)


def _advice(error: AgentSandboxError) -> str:
    from agent_sandbox.uploads.guidance import NEXT_STEP

    if hasattr(error, "answered_status"):
        return "Compare the URL with the one that you were given; the code still works."
    return _OWN_ADVICE.get(error.code) or NEXT_STEP.get(
        error.code, "Ask your assistant to look with get_upload before you try again."
    )


_OWN_ADVICE = {
    "E2001": "Copy `url` and the whole code again; plain http is for this machine itself only.",
    "E2005": "The file is not the declared one, or changed meanwhile: ask for a new session.",
    "E4004": "Name one regular file; pack a folder first.",
    "E4007": "The code still works: check the network and the URL, then try again.",
    "E4008": "The server did not answer, and the code still works: try again.",
    "E7011": "Do not send again. Ask your assistant to look with get_upload: the file may have"
    " arrived.",
}
"""What a person does next; for the other codes what agents are told is right for people, too."""


_OWN_TEXT = {
    "E4007": "The server was not reached; nothing was sent.",
    "E2001": "The URL or the code cannot be right; nothing was sent.",
    "E7025": "The file has another size than the one that was declared; the attempt is not used.",
}
"""What happened, where the text for agents speaks of schemas and headers."""


PUT = Command("put", "send a file to an upload session", _EXAMPLES, _add, _run)
