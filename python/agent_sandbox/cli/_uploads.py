"""The options of upload sessions, for the servers that offer them."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Usage

if TYPE_CHECKING:
    from agent_sandbox.mcp_server.transfers.settings import TransferSettings


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    uploads = parser.add_argument_group(
        "upload sessions, for files that should not pass through a model",
        "Without any of these they work on this machine. Replicas share a database, a bucket and a"
        " key file. More in docs/uploads.md.",
    )
    option = uploads.add_argument
    option(
        "--upload-url",
        metavar="URL",
        help="where clients reach this server for transfers, as behind a proxy",
    )
    option(
        "--upload-host",
        type=_arguments.host,
        metavar="HOST",
        help="under stdio: address that transfers listen on (127.0.0.1)",
    )
    option(
        "--upload-port",
        type=_arguments.port,
        metavar="PORT",
        help="under stdio: port that transfers listen on, 0 for any free one (0)",
    )
    option(
        "--uploads-dir",
        metavar="DIR",
        help="where sessions and files are kept (a directory of this user's own, in"
        " AGENT_SANDBOX_UPLOADS_DIR if that is set)",
    )
    option(
        "--uploads-database",
        metavar="URL",
        help="postgresql://... instead of SQLite in that directory; with a password in it, set"
        " AGENT_SANDBOX_UPLOADS_DATABASE instead",
    )
    option(
        "--uploads-bucket",
        metavar="NAME",
        help="S3 bucket for the files; credentials from AWS_ACCESS_KEY_ID and the like",
    )
    option("--uploads-s3-endpoint", metavar="URL", help="an S3-compatible service instead of AWS")
    option("--uploads-s3-region", metavar="NAME", help="region of the bucket")
    option(
        "--uploads-key-file",
        metavar="FILE",
        help="server key of at least 32 random bytes, the same on every replica",
    )
    option(
        "--upload-max-bytes",
        type=_size,
        default=1 << 30,
        metavar="BYTES",
        help="largest file (1073741824)",
    )
    option(
        "--upload-extension",
        action="append",
        default=[],
        type=_extension,
        metavar=".EXT",
        help="a file name extension to allow, else all are; repeatable",
    )
    option(
        "--upload-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="a web page's origin that may send files from a browser; repeatable",
    )
    option(
        "--upload-audit-file",
        metavar="FILE",
        help="note every change of a session here: time, id, state, error code, nothing else",
    )
    option(
        "--upload-metrics",
        action="store_true",
        help="serve /metrics (Prometheus), with a token where /mcp asks for one, else to callers on"
        " this machine",
    )


def settings(arguments: argparse.Namespace) -> TransferSettings:
    """Return the settings that were given.

    Raises:
        ConfigError: E6000, they contradict each other.
    """
    from agent_sandbox.mcp_server.transfers.settings import TransferSettings

    given = arguments.uploads_database or ""
    if ":" in given.partition("://")[2].rpartition("@")[0]:
        raise Usage(
            "agent-sandbox mcp",
            "others can read arguments: set AGENT_SANDBOX_UPLOADS_DATABASE to an address with a"
            " password",
        )
    database = arguments.uploads_database or os.environ.get("AGENT_SANDBOX_UPLOADS_DATABASE")
    return TransferSettings(
        public_url=arguments.upload_url,
        host=arguments.upload_host or "127.0.0.1",
        port=arguments.upload_port or 0,
        directory=arguments.uploads_dir,
        database=database or None,
        bucket=arguments.uploads_bucket,
        s3_endpoint=arguments.uploads_s3_endpoint,
        s3_region=arguments.uploads_s3_region,
        key_file=arguments.uploads_key_file,
        max_size_bytes=arguments.upload_max_bytes,
        allowed_extensions=tuple(arguments.upload_extension),
        allowed_origins=tuple(arguments.upload_origin),
        audit_file=arguments.upload_audit_file,
        metrics=arguments.upload_metrics,
    )


def _size(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    raise argparse.ArgumentTypeError("a size is a whole number of bytes")


def _extension(text: str) -> str:
    if text.startswith(".") and len(text) > 1 and "/" not in text:
        return text.lower()
    raise argparse.ArgumentTypeError("an extension starts with a dot, as .csv")
