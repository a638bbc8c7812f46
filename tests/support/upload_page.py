"""The page for people in a real browser, for tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from tests.support.upload_server import Ticket, UploadServer

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")

Open = Callable[..., Page]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser."""
    path = shutil.which("chromium")
    assert path, "these tests need Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        # As root there is no user namespace for chromium's own sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def pages(browser: Browser, server: UploadServer) -> Iterator[Open]:
    """Open sessions' pages; any error that a page logs fails the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_(ticket: Ticket, **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-US", **options})
        contexts.append(context)
        context.add_init_script(AXE)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.port}{ticket.path}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert errors == []


def file_of(tmp_path: Path, data: bytes, name: str = "catalogue.xlsx") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def fill(page: Page, secret: str, file: Path) -> None:
    page.get_by_label("One-time code").fill(secret)
    page.locator("#file").set_input_files(file)


def send(page: Page, secret: str, file: Path) -> None:
    fill(page, secret, file)
    page.get_by_role("button", name="Send the file").click()
