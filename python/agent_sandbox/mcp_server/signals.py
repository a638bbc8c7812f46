"""Which signals tell a server to stop."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return what ends a server in order: also the end of its terminal, unless that is ignored.

    A server that ended at once would leave its sockets and directories to the next one's sweep.
    """
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # ignored under nohup
    return (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))
