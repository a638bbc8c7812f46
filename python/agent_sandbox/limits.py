"""The numbers that bound everything, each with its unit in its name."""

from __future__ import annotations

MAX_FILE_BYTES = 1_048_576
"""Largest decoded file of one MCP call (1 MiB)."""

MAX_ENCODED_CHARS = 4 * -(-MAX_FILE_BYTES // 3)
"""Longest Base64 text of one MCP call: 1,398,104 characters."""

MAX_PATH_BYTES = 4_096
"""Longest remote path, in UTF-8 bytes."""

MAX_COMPONENT_BYTES = 255
"""Longest name between two slashes, in UTF-8 bytes (NAME_MAX)."""

MAX_STDIO_LINE_BYTES = 8_388_608
"""Longest STDIO line either way, without its newline (8 MiB)."""

TRANSFER_TIMEOUT_S = 120.0
"""Wall-clock time for one read or write, counted after the sandbox is resolved."""

RESOLVE_TIMEOUT_S = 30.0
"""Time for creating or finding a sandbox."""

CLOSE_TIMEOUT_S = 5.0
"""Longest wait for a response or a connection to close."""

HTTP_BODY_DEADLINE_S = 60.0
"""Time in which the whole body of an MCP HTTP request must have arrived."""

DEFAULT_TTL_S = 300
"""Life of a sandbox after its last use, unless the caller says otherwise."""

MAX_TTL_S = 86_400
"""Longest life that a caller may ask for (24 h)."""

MAX_COMMAND_CHARS = 32_768
"""Longest command line of one MCP call; the kernel takes 128 KiB."""

COMMAND_S = 60
"""Time for a command of one MCP call, unless the caller says otherwise: some MCP clients give up
then."""

MAX_COMMAND_S = 3_600
"""Longest time for it; what takes longer is a background task."""

RETAIN_S = 3_600
"""How long a retained task keeps its sandbox, unless the caller says otherwise."""

MAX_RETAINED_TASKS = 10
"""Retained tasks of one principal that may run at once."""

MAX_OFFSET = 2**53 - 1
"""Largest offset that every JSON parser reads exactly."""
