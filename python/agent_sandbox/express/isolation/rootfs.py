"""What a sandbox looks like from inside: its directory, and bubblewrap's arguments for it.

The sandbox's directory is its `/`: home/user, tmp, var/tmp and whatever is added are in it, so the
files that Express writes there and the files that commands see are the same ones. Over it lie the
host's usr (read-only), a fresh proc, a small dev, and a small etc in memory (read-only).
"""

from __future__ import annotations

import contextlib
import os
import stat

HOSTNAME = "sandbox"
USER = "user"
INSIDE_ID = 1000
HOME = "/home/user"
SHM_BYTES = 64 * 1_048_576
_ETC_BYTES = 1_048_576

# As few as will do: on some file systems each one costs a millisecond.
_DIRECTORIES = (
    ("home", 0o755),
    ("home/user", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    # Mount points, as real directories; bubblewrap would make missing ones itself.
    ("usr", 0o755),
    ("proc", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
)
_MOUNT_POINTS = ("usr", "proc", "dev", "etc")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{INSIDE_ID}:{INSIDE_ID}::{HOME}:"
    "/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\n{USER}:x:{INSIDE_ID}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
    "hostname": f"{HOSTNAME}\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
"""The files of /etc and what stands in them."""

_HOST_ETC = (  # harmless, and programs in usr do not work without them
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
)
_MASKED = ("/proc/keys", "/proc/key-users", "/proc/kcore", "/proc/timer_list", "/proc/sched_debug")
"""What tells of the host in every proc; a device file on a nodev mount opens for nobody."""
_NETWORK_ETC = ("/etc/resolv.conf",)

# pid 1 only waits. It ignores SIGCHLD, so that the kernel reaps orphans by itself; from inside it
# cannot be killed, and it holds no descriptor of ours. It takes bash (which E2B clients need
# anyway), since dash gives SIGCHLD its default back when it executes a program.
_WAITING = "trap '' CHLD; echo; exec 3>&- 4>&- </dev/null >/dev/null 2>&1 sleep infinity"

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": USER,
    "LOGNAME": USER,
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "PWD": HOME,
}
"""Every variable that a command has unless its caller adds some."""


def prepare_directory(directory_fd: int) -> None:
    """Make the tree of a new sandbox in an empty or partly prepared directory.

    Idempotent. Run it as the user who will run the sandbox, before anything of the sandbox's
    can stand in it: it follows links.
    """
    for name, mode in _DIRECTORIES:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=directory_fd)
        os.chmod(name, mode, dir_fd=directory_fd)
    for name in _LINKS:
        if os.path.isdir(f"/usr/{name}"):
            with contextlib.suppress(FileExistsError):
                os.symlink(f"usr/{name}", name, dir_fd=directory_fd)


def is_prepared(directory_fd: int) -> bool:
    """Whether the mount points are real directories, and no links that lead bubblewrap astray."""
    try:
        return all(
            stat.S_ISDIR(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)
            for name in _MOUNT_POINTS
        )
    except OSError:
        return False


def bubblewrap_arguments(
    directory: str, *, network: bool, info_fd: int, seccomp_fd: int, etc_fd: int
) -> list[str]:
    """Return bubblewrap's arguments (without its own name) for the sandbox in `directory`.

    Its pid 1 writes one line to its standard output when everything stands, then waits.

    Args:
        directory: Path of the sandbox's directory.
        network: Whether the host's network is shared.
        info_fd: Where bubblewrap tells the pid of pid 1, as JSON.
        seccomp_fd: Where it reads the filter.
        etc_fd: First of the descriptors from which it reads the files of `ETC`, in their order.
    """
    arguments = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
        *("--new-session", "--as-pid-1", "--cap-drop", "ALL", "--clearenv"),
        *("--setenv", "PATH", ENVIRONMENT["PATH"]),
        *("--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", HOSTNAME),
        *("--bind", directory, "/", "--ro-bind", "/usr", "/usr"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108 - the sandbox's own
        *("--remount-ro", "/dev"),
    ]
    arguments += ["--perms", "0755", "--size", str(_ETC_BYTES), "--tmpfs", "/etc"]
    for number, name in enumerate(ETC, etc_fd):
        arguments += ["--perms", "0644", "--file", str(number), f"/etc/{name}"]
    for path in (*_HOST_ETC, *(_NETWORK_ETC if network else ())):
        arguments += ["--ro-bind-try", path, path]
    arguments += ["--remount-ro", "/etc"]
    for path in _MASKED:
        if os.path.exists(path):
            arguments += ["--ro-bind", "/dev/null", path]
    if network:
        arguments.append("--share-net")
    arguments += ["--info-fd", str(info_fd), "--seccomp", str(seccomp_fd), "--chdir", "/"]
    return [*arguments, "--", "/bin/bash", "-c", _WAITING]
