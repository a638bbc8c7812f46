"""Express as a child process: `python -m agent_sandbox.express --fd N --lifeline-fd M`.

The parent passes a listening unix socket and the reading end of a pipe that it keeps open. The
service ends, and its sandboxes with it, when the other end of that pipe is closed; those with a
retained command live on until that has ended, and the service with them. With
`--users-fd` in place of the pipe it ends when it has no sandbox and no user.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError
from agent_sandbox.express.server import serve_fd


def main() -> int:
    """Serve, and return the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m agent_sandbox.express", allow_abbrev=False)
    parser.add_argument("--fd", type=int, required=True, help="a listening unix socket")
    parser.add_argument("--lifeline-fd", type=int, help="a pipe; its end ends us")
    parser.add_argument("--users-fd", type=int, help="a file that whom we serve holds locked")
    parser.add_argument("--report-fd", type=int, help="a pipe; it gets `started`, or why not")
    parser.add_argument("--state-dir", type=Path, help="where sandboxes live")
    parser.add_argument(
        "--isolation",
        choices=("auto", "bubblewrap", "none"),
        default="auto",
        help="what commands run in (auto)",
    )
    parser.add_argument(
        "--allow-network", action="store_true", help="let sandboxes use this machine's network"
    )
    given = parser.parse_args()
    try:
        serve_fd(
            given.fd,
            given.lifeline_fd,
            users_fd=given.users_fd,
            state_dir=given.state_dir,
            isolation=given.isolation,
            network=given.allow_network,
            report_fd=given.report_fd,
        )
    except AgentSandboxError as error:
        if given.report_fd is not None:
            os.write(given.report_fd, (getattr(error, "reason", "") or error.text).encode())
        print(error, file=sys.stderr)
        return EXIT_STATUS[error.category]
    return 0


if __name__ == "__main__":
    sys.exit(main())
