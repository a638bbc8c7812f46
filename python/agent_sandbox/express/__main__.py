"""Express as a child process: `python -m agent_sandbox.express --fd N --lifeline-fd M`.

The parent passes a listening unix socket and the reading end of a pipe that it keeps open. The
service ends, and its sandboxes with it, when the other end of that pipe is closed; those with a
retained command live on until that has ended, and the service with them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError
from agent_sandbox.express.server import serve_fd


def main() -> int:
    """Serve, and return the exit status of the process."""
    parser = argparse.ArgumentParser(prog="python -m agent_sandbox.express", allow_abbrev=False)
    parser.add_argument("--fd", type=int, required=True, help="a listening unix socket")
    parser.add_argument("--lifeline-fd", type=int, required=True, help="a pipe; its end ends us")
    parser.add_argument("--state-dir", type=Path, help="where sandboxes live")
    parser.add_argument(
        "--isolation",
        choices=("auto", "bubblewrap", "none"),
        default="auto",
        help="what commands run in (auto)",
    )
    given = parser.parse_args()
    try:
        serve_fd(
            given.fd,
            given.lifeline_fd,
            state_dir=given.state_dir,
            isolation=given.isolation,
        )
    except AgentSandboxError as error:
        print(error, file=sys.stderr)
        return EXIT_STATUS[error.category]
    return 0


if __name__ == "__main__":
    sys.exit(main())
