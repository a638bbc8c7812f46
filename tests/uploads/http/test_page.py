"""The page for people, in a real browser: keyboard, languages, accessibility, and the secret."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect
from tests.support.upload_page import Open, file_of, send
from tests.support.upload_server import UploadServer


def violations(page: Page) -> list[str]:
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


def test_a_file_goes_up_and_its_digest_is_compared(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    data = os.urandom(3_000_000)
    ticket = server.create(len(data))
    page = open_page(ticket)
    send(page, ticket.secret, file_of(tmp_path, data))
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_focused()
    expect(page.locator("#fact-digest")).to_have_text(hashlib.sha256(data).hexdigest())
    expect(page.locator("#fact-check")).to_have_text(
        "Equal to the SHA-256 of the file on this device."
    )
    expect(page.locator("#fact-name")).to_have_text("catalogue.xlsx")
    assert server.state(ticket) == "stored"


def test_the_code_leaves_only_as_the_header_and_stays_nowhere(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    seen: list[Request] = []
    page.on("request", lambda request: seen.append(request))
    send(page, ticket.secret, file_of(tmp_path, b"hello"))
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()
    assert [request.method for request in seen] == ["PUT"]
    assert seen[0].all_headers()["authorization"] == ticket.secret
    origin = f"http://127.0.0.1:{server.port}"
    assert all(request.url == origin + ticket.path for request in seen)
    kept = page.evaluate(
        """async () => JSON.stringify([
            location.href, document.cookie, {...localStorage}, {...sessionStorage},
            history.state, await indexedDB.databases(), document.documentElement.outerHTML,
            ...[...document.querySelectorAll("input")].map((field) => field.value),
        ])"""
    )
    assert ticket.secret not in kept
    assert page.context.cookies() == []


def test_everything_works_from_the_keyboard(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    page.on("filechooser", lambda _: None)  # choosers are intercepted from here on, in time
    keys = page.keyboard
    keys.press("Tab")
    expect(page.get_by_role("button", name="中文")).to_be_focused()
    keys.press("Tab")
    expect(page.get_by_label("One-time code")).to_be_focused()
    keys.insert_text(ticket.secret)
    keys.press("Tab")
    expect(page.locator("#file")).to_be_focused()
    with page.expect_file_chooser() as chooser:
        keys.press("Enter")
    chooser.value.set_files(file_of(tmp_path, b"hello"))
    expect(page.locator("#file-name")).to_contain_text("catalogue.xlsx (5 bytes)")
    keys.press("Tab")
    expect(page.get_by_role("button", name="Send the file")).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_focused()


def drop(page: Page, names: list[str]) -> None:
    page.evaluate(
        """(names) => {
            const data = new DataTransfer();
            for (const name of names) data.items.add(new File(["hello"], name));
            document.getElementById("drop").dispatchEvent(
                new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        names,
    )


def test_a_dropped_file_is_taken_and_two_are_not(server: UploadServer, open_page: Open) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    drop(page, ["one", "two"])
    expect(page.locator("#file-error")).to_have_text("Drop one file, not several and no folder.")
    drop(page, ["one"])
    expect(page.locator("#file-error")).to_be_hidden()
    page.get_by_label("One-time code").fill(f"Authorization: {ticket.secret} ")
    page.get_by_role("button", name="Send the file").click()
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()
    assert server.state(ticket) == "stored"


def test_what_is_missing_is_said_beside_its_field(server: UploadServer, open_page: Open) -> None:
    page = open_page(server.create(5))
    page.get_by_role("button", name="Send the file").click()
    code = page.get_by_label("One-time code")
    expect(code).to_be_focused()
    expect(code).to_have_attribute("aria-invalid", "true")
    expect(code).to_have_accessible_description(
        "Paste the whole code. It works once, for this file only."
        " Paste the one-time code that your assistant gave you."
    )
    expect(page.locator("#file")).to_have_accessible_description(
        "Choose the file that you want to send."
    )
    code.fill("two words and more")
    page.get_by_role("button", name="Send the file").click()
    expect(page.locator("#code-error")).to_contain_text("does not look like a code")


def test_a_refusal_that_used_nothing_up_can_be_corrected(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    send(page, "wrong", file_of(tmp_path, b"hello"))
    expect(page.locator("#answer")).to_contain_text("do not belong together")
    send(page, ticket.secret, file_of(tmp_path, b"too long"))
    expect(page.locator("#answer")).to_contain_text("not the one that was announced")
    expect(page.locator("#answer")).to_contain_text("The code still works")
    send(page, ticket.secret, file_of(tmp_path, b"hello"))
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()


def test_a_used_link_says_to_look_before_anything_else(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    assert server.send(ticket.put(b"hello")).status == 200
    page = open_page(ticket)
    send(page, ticket.secret, file_of(tmp_path, b"hello"))
    expect(page.locator("#answer")).to_contain_text("tell your assistant to check whether it")
    expect(page.get_by_role("button", name="Send the file")).to_be_hidden()


def test_a_wrong_content_ends_the_attempt_and_asks_for_a_new_link(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5, hashlib.sha256(b"hello").hexdigest())
    page = open_page(ticket)
    send(page, ticket.secret, file_of(tmp_path, b"jello"))
    expect(page.locator("#answer")).to_contain_text("a new upload link and code")
    expect(page.get_by_role("button", name="Send the file")).to_be_hidden()


def test_a_lost_answer_says_not_to_send_again(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    page.route("**/*", lambda route: route.abort("connectionreset"))
    send(page, ticket.secret, file_of(tmp_path, b"hello"))
    expect(page.locator("#answer")).to_contain_text("Do not send it again")
    expect(page.get_by_role("button", name="Send the file")).to_be_hidden()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (502, "<html>bad gateway"),
        (504, ""),
        (503, '{"code": "E7011", "state": "receiving"}'),
        (500, '{"code": "E7000"}'),
    ],
)
def test_an_answer_that_does_not_know_says_not_to_send_again(
    server: UploadServer, open_page: Open, tmp_path: Path, status: int, body: str
) -> None:
    page = open_page(server.create(5))
    page.route("**/*", lambda route: route.fulfill(status=status, body=body))
    send(page, "code", file_of(tmp_path, b"hello"))
    expect(page.locator("#answer")).to_contain_text("Do not send it again")
    expect(page.locator("#answer")).not_to_contain_text("new upload link")
    expect(page.get_by_role("button", name="Send the file")).to_be_hidden()


def test_a_busy_server_can_be_tried_again(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    page.route("**/*", lambda route: route.fulfill(status=503, body='{"code": "E7019"}'))
    send(page, ticket.secret, file_of(tmp_path, b"hello"))
    expect(page.locator("#answer")).to_contain_text("The server is busy")
    expect(page.locator("#answer")).to_contain_text("The code still works")
    page.unroute("**/*")
    page.get_by_role("button", name="Send the file").click()
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()


def test_progress_is_shown_while_the_file_goes_out(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    data = b"x" * 4_000_000
    ticket = server.create(len(data))
    page = open_page(ticket)
    network = page.context.new_cdp_session(page)
    network.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 2_000_000},
    )
    send(page, ticket.secret, file_of(tmp_path, data))
    expect(page.get_by_role("heading", name="Sending: please keep this page open")).to_be_focused()
    expect(page.locator("#amount")).to_have_text(
        re.compile(r"[1-9][\d,]* bytes of 4,000,000 bytes")
    )
    assert 0 < page.evaluate("document.getElementById('bar').value") < 1_000
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("locale", "heading", "other"),
    [("en-GB", "Send one file", "中文"), ("zh-CN", "发送一个文件", "English")],
)
def test_no_accessibility_violation_in_any_state(
    server: UploadServer,
    open_page: Open,
    tmp_path: Path,
    locale: str,
    heading: str,
    other: str,
    scheme: str,
) -> None:
    for width in (360, 1_000):
        ticket = server.create(5)
        page = open_page(
            ticket,
            locale=locale,
            color_scheme=scheme,
            viewport={"width": width, "height": 800},
        )
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        assert violations(page) == []
        page.locator("#send").click()
        assert violations(page) == []
        page.locator("#code").fill(ticket.secret)
        page.locator("#file").set_input_files(file_of(tmp_path, b"other size"))
        page.locator("#send").click()
        expect(page.locator("#answer")).to_be_visible()
        assert violations(page) == []
        page.locator("#file").set_input_files(file_of(tmp_path, b"hello"))
        page.locator("#send").click()
        expect(page.locator("#answer.good")).to_be_visible()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        expect(page.get_by_role("button", name=other)).to_be_visible()


def test_the_language_changes_everything_that_is_shown(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    ticket = server.create(5)
    page = open_page(ticket)
    page.get_by_role("button", name="Send the file").click()
    page.get_by_role("button", name="中文").click()
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    assert page.title() == "发送一个文件"
    expect(page.locator("#code-error")).to_have_text("请粘贴助手给您的一次性代码。")
    page.locator("#code").fill(ticket.secret)
    page.locator("#file").set_input_files(file_of(tmp_path, b"hello"))
    page.locator("#send").click()
    expect(page.get_by_role("heading", name="文件已送达")).to_be_visible()
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", name="The file has arrived")).to_be_visible()
    expect(page.locator("#fact-check")).to_contain_text("Equal to")


def test_both_languages_say_the_same_things(server: UploadServer, open_page: Open) -> None:
    page = open_page(server.create(5))
    keys = page.evaluate(
        """() => ["en", "zh"].map((lang) => [
            Object.keys(TEXTS[lang]), Object.keys(TEXTS[lang].answers)])"""
    )
    assert keys[0] == keys[1]
    used = page.evaluate("[...document.querySelectorAll('[data-t]')].map((n) => n.dataset.t)")
    assert set(used) <= set(keys[0][0])


def test_the_page_s_own_digest_is_sha256(server: UploadServer, open_page: Open) -> None:
    page = open_page(server.create(5))
    digests = page.evaluate(
        """() => [...Array(200).keys()].map((size) => {
            const bytes = Uint8Array.from({length: size}, (_, at) => (at * 7) & 255);
            const cut = size >> 1;
            return new Sha256().update(bytes.subarray(0, cut)).update(bytes.subarray(cut)).hex();
        })"""
    )
    for size, digest in enumerate(digests):
        data = bytes(at * 7 & 255 for at in range(size))
        assert digest == hashlib.sha256(data).hexdigest()


def test_a_name_with_direction_marks_and_tags_is_only_text(
    server: UploadServer, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(server.create(5))
    name = "<img src=x onerror=alert(1)>\u202egnp.exe"
    page.locator("#file").set_input_files(file_of(tmp_path, b"hello", name))
    shown = "<img src=x onerror=alert(1)>\ufffdgnp.exe"  # and not `exe.png` at its end
    expect(page.locator("#file-name bdi")).to_have_text(shown)
    assert page.locator("img").count() == 0


def test_nothing_foreign_runs_on_the_page(server: UploadServer, open_page: Open) -> None:
    page = open_page(server.create(5))
    blocked = page.evaluate(
        """() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (event) => done(
                event.effectiveDirective));
            const script = document.createElement("script");
            script.text = "window.foreign = 1";
            document.head.append(script);
        }).catch((error) => error.name)"""
    )
    assert blocked in ("script-src-elem", "TypeError", "require-trusted-types-for")
    assert page.evaluate("window.foreign === undefined")


def test_without_javascript_the_page_says_what_to_do(server: UploadServer, open_page: Open) -> None:
    page = open_page(server.create(5), java_script_enabled=False)
    expect(page.get_by_text("This page needs JavaScript.")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
