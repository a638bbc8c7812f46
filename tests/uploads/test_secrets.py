"""The secret's proof, and the key file."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent_sandbox.errors import ConfigError
from agent_sandbox.uploads.secrets import load_server_key, new_secret, secret_hmac

KEY = b"k" * 32


def test_secrets_do_not_repeat_and_hold_256_bits() -> None:
    assert len({new_secret() for _ in range(1_000)}) == 1_000
    assert all(len(new_secret()) == 43 for _ in range(10))


def test_the_proof_depends_on_every_part_and_on_where_it_ends() -> None:
    parts = ["", "a", "ab", "b", "abc", "c"]
    proofs = [secret_hmac(KEY, *triple) for triple in itertools.product(parts, repeat=3)]
    assert len(set(proofs)) == len(parts) ** 3
    assert secret_hmac(KEY, "a", "b", "c") != secret_hmac(b"l" * 32, "a", "b", "c")


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = load_server_key(path)
    assert len(key) == 32
    assert load_server_key(path) == key
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize(("mode", "size"), [(0o640, 32), (0o604, 32), (0o600, 31), (0o600, 0)])
def test_a_key_that_others_can_read_or_that_is_short_is_refused(
    tmp_path: Path, mode: int, size: int
) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(size))
    path.chmod(mode)
    with pytest.raises(ConfigError):
        load_server_key(path)


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from agent_sandbox.uploads.secrets import load_server_key;"
        "print(load_server_key(Path(sys.argv[1])).hex())"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "key")], stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    keys = {process.communicate(timeout=60)[0] for process in running}
    assert len(keys) == 1
    assert keys != {b""}
