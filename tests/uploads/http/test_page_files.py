"""What people choose, drop and paste on the page, and files that change under it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.support.upload_page import Open, file_of, fill, send
from tests.support.upload_server import UploadServer


def drag(page: Page, path: Path) -> None:
    """Drop something from this machine's disk, as a hand does."""
    box = page.locator("#drop").bounding_box()
    assert box is not None
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send(
            "Input.dispatchDragEvent",
            {
                "type": kind,
                "x": box["x"] + box["width"] / 2,
                "y": box["y"] + box["height"] / 2,
                "data": {"items": [], "files": [str(path)], "dragOperationsMask": 1},
            },
        )


def test_a_dropped_folder_is_no_file(server: UploadServer, open_page: Open, tmp_path: Path) -> None:
    page = open_page(server.create(5))
    (tmp_path / "folder").mkdir()
    drag(page, tmp_path / "folder")
    expect(page.locator("#file-error")).to_have_text("Drop one file, not several and no folder.")
    expect(page.locator("#file-name")).to_have_text("No file chosen yet")
    drag(page, file_of(tmp_path, b"hello"))
    expect(page.locator("#file-error")).to_be_hidden()
    expect(page.locator("#file-name")).to_have_text("catalogue.xlsx (5 bytes)")


@pytest.mark.parametrize("what", ["removed", "changed"])
def test_a_file_that_is_not_what_was_chosen_uses_nothing_up(
    server: UploadServer, open_page: Open, tmp_path: Path, what: str
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    file = file_of(tmp_path, b"jello")
    fill(page, ticket.secret, file)
    file.unlink()
    if what == "changed":
        os.utime(file_of(tmp_path, b"hello"), (1, 1))
    page.get_by_role("button", name="Send the file").click()
    expect(page.locator("#file-error")).to_contain_text("This file cannot be read")
    expect(page.locator("#file")).to_be_focused()
    assert server.state(ticket) == "pending"
    page.locator("#file").set_input_files(file_of(tmp_path, b"hello"))
    page.get_by_role("button", name="Send the file").click()
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()


def test_an_arrived_file_that_differs_from_the_device_s_is_not_called_good(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(server.create(5))
    body = {"state": "stored", "size_bytes": 5, "sha256": hashlib.sha256(b"jello").hexdigest()}
    page.route("**/*", lambda route: route.fulfill(status=200, json=body))
    send(page, "code", file_of(tmp_path, b"hello"))
    expect(page.locator("#answer-title")).to_have_text(
        "What has arrived is not the file on this device"
    )
    expect(page.locator("#answer")).to_contain_text("not to use this upload")
    expect(page.locator("#answer")).not_to_contain_text("go on")
    expect(page.locator("#answer")).to_have_class("bad")


@pytest.mark.parametrize(
    "pasted",
    ["\u200b{}\u200b", "\u201c{}\u201d", "`{}`", "{}.", "-H 'Authorization: {}'", "\ufeff{}\n"],
)
def test_what_a_chat_puts_around_a_code_does_no_harm(
    server: UploadServer, open_page: Open, tmp_path: Path, pasted: str
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    send(page, pasted.format(ticket.secret), file_of(tmp_path, b"hello"))
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()
