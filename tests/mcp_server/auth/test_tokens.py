"""Static tokens: made, found by their digest, and gone with their line."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path

import pytest

from agent_sandbox.errors import ConfigError
from agent_sandbox.mcp_server.auth import watched
from agent_sandbox.mcp_server.auth.tokens import NewToken, StaticTokens, make_token, parse_lines


def tokens(tmp_path: Path, *lines: str) -> tuple[StaticTokens, Path]:
    file = tmp_path / "tokens"
    file.write_text("\n".join(lines))
    return StaticTokens(file, None), file


def test_a_new_token_has_256_random_bits_and_its_line_holds_only_its_digest() -> None:
    made = [make_token("build server") for _ in range(100)]
    assert len({one.token for one in made}) == len({one.id for one in made}) == 100
    for one in made:
        secret = one.token.removeprefix(f"ast_{one.id}_")
        assert len(secret) == 43  # 32 bytes in URL-safe Base64
        assert secret not in one.line
        assert one.token not in repr(one)
        assert one.line == f"{one.id} {hashlib.sha256(one.token.encode()).hexdigest()} build server"


@pytest.mark.parametrize("name", ["", " x", "x ", "two\nlines", "\x1b[2J", "x" * 65])
def test_a_name_that_cannot_stand_in_a_line_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        make_token(name)


def wrong_tokens(made: NewToken) -> list[str]:
    other = make_token("x").token.rpartition("_")[2]
    return [
        "",
        "ast_",
        f"ast_{made.id}_{other[:42]}",
        f"ast_{made.id}_{'A' * 43}",
        f"ast_{'0' * 16}_{made.token[-43:]}",
        made.token + "A",
        made.token[:-1],
        made.token.upper(),
        made.token + "\n",
        " " + made.token,
        made.line.split()[1],
        "ast_\udcff",
        "\u00e9" * 64,
    ]


def test_a_token_is_found_whole_and_not_otherwise(tmp_path: Path) -> None:
    made, other = make_token("one"), make_token("two")
    known, _ = tokens(tmp_path, "# people", "", f"  {made.line}\t", other.line)
    assert known.find(made.token) == made.id
    assert known.find(other.token) == other.id
    assert [known.find(wrong) for wrong in wrong_tokens(made)] == [None] * 13


def test_tokens_come_from_the_environment_too(tmp_path: Path) -> None:
    made, other = make_token("one"), make_token("two")
    file = tmp_path / "tokens"
    file.write_text(made.line)
    known = StaticTokens(file, f"\n{other.line}\n")
    assert known.find(made.token) == made.id
    assert known.find(other.token) == other.id
    assert StaticTokens(None, other.line).find(other.token) == other.id


def test_a_deleted_line_ends_its_token_at_once_and_no_other(tmp_path: Path) -> None:
    made, other = make_token("one"), make_token("two")
    known, file = tokens(tmp_path, made.line, other.line)
    assert known.holds(made.id)
    file.write_text(other.line)
    assert not known.holds(made.id)
    assert known.find(made.token) is None
    assert known.find(other.token) == other.id
    file.write_text(f"{made.line}\n{other.line}")
    assert known.find(made.token) == made.id


def test_a_second_change_within_one_tick_of_the_clock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other = make_token("one"), make_token("two")
    known, file = tokens(tmp_path, made.line)
    # A file system with a coarse clock: nothing but the content shows the change.
    monkeypatch.setattr(watched, "_look_at", lambda _found: ((0, 0, 0, 0, 0), time.time()))
    for now, gone in ((other, made), (made, other)):
        file.write_text(now.line)
        assert known.find(now.token) == now.id
        assert known.find(gone.token) is None


def test_a_file_that_is_replaced_or_vanishes_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, other = make_token("one"), make_token("two")
    known, file = tokens(tmp_path, made.line)
    fresh = tmp_path / "fresh"
    fresh.write_text(other.line)
    fresh.replace(file)
    assert known.find(made.token) is None
    assert known.find(other.token) == other.id
    file.unlink()
    with caplog.at_level(logging.ERROR, "agent_sandbox.mcp_server"):
        for _ in range(3):
            assert known.find(other.token) is None
    assert [record.getMessage() for record in caplog.records] == [
        "The token file (--token-file or AGENT_SANDBOX_TOKEN_FILE) cannot be read."
    ]


@pytest.mark.parametrize(
    "line",
    ["x", "0123456789abcdef", f"0123456789abcdef {'0' * 63}", f"0123456789ABCDEF {'0' * 64} x"],
)
def test_a_wrong_line_is_named_at_the_start_and_passed_over_later(
    tmp_path: Path, line: str
) -> None:
    made = make_token("one")
    file = tmp_path / "tokens"
    file.write_text(f"# first\n{line}\n{made.line}")
    with pytest.raises(ConfigError) as caught:
        StaticTokens(file, None)
    assert vars(caught.value)["reason"] == (
        "Line 2 of the token file (--token-file or AGENT_SANDBOX_TOKEN_FILE) is not understood."
    )
    with pytest.raises(ConfigError):
        StaticTokens(None, line)
    file.write_text(made.line)
    known = StaticTokens(file, None)
    file.write_text(f"{line}\n{made.line}")
    assert known.find(made.token) == made.id


def test_an_id_twice_is_a_wrong_line() -> None:
    made = make_token("one")
    assert parse_lines(f"{made.line}\n{made.line}")[1] == [2]


@pytest.mark.parametrize("text", ["", "# nobody\n\n"])
def test_without_any_token_there_is_nothing_to_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        tokens(tmp_path, text)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_in_gives_no_rights(tmp_path: Path, mode: int) -> None:
    made = make_token("one")
    known, file = tokens(tmp_path, made.line)
    file.chmod(mode)
    assert known.find(made.token) is None
    with pytest.raises(ConfigError):
        StaticTokens(file, None)


def test_what_is_no_regular_file_or_too_long_is_refused_without_waiting(tmp_path: Path) -> None:
    fifo, large, binary = tmp_path / "fifo", tmp_path / "large", tmp_path / "binary"
    os.mkfifo(fifo, 0o600)
    large.write_text("#" * 1_048_577)
    binary.write_bytes(b"\xff\xfe")
    for path in (fifo, large, binary, tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError):
            StaticTokens(path, None)
