"""The upload address without a PUT: the page, HEAD, OPTIONS, and the agents' guide."""

from __future__ import annotations

import pytest
from tests.support.raw_http import RawClient, request
from tests.support.upload_server import UploadServer


def test_get_gives_one_page_for_any_id(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    pages = []
    for path in (ticket.path, "/uploads/unknown", f"{ticket.path}?token=x"):
        page = any_server.send(request("GET", path))
        page.headers.pop("date")
        pages.append(page)
    assert pages[0] == pages[1] == pages[2]
    assert pages[0].status == 200
    assert pages[0].headers["cache-control"] == "no-store"
    assert ticket.upload_id.encode() not in pages[0].body


def test_the_page_allows_nothing_but_itself(server: UploadServer) -> None:
    page = server.send(request("GET", "/uploads/x"))
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert b"http://" not in page.body
    assert b"https://" not in page.body


def test_head_tells_what_get_tells_and_no_more(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    auth = f"Authorization: {ticket.secret}"
    page = any_server.send(request("GET", ticket.path))
    for path in (ticket.path, "/uploads/unknown"):
        head = any_server.send(request("HEAD", path, auth), to_head=True)
        assert head.status == 200
        assert head.headers | {"date": ""} == page.headers | {"date": ""}
    assert any_server.state(ticket) == "pending"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.evil"])
def test_options_of_a_foreign_origin_allows_nothing(server: UploadServer, origin: str) -> None:
    for path in ("/uploads/x", "/downloads/x"):
        lines = (f"Origin: {origin}", "Access-Control-Request-Method: PUT")
        answer = server.send(request("OPTIONS", path, *lines))
        assert answer.status == 204
        assert not [name for name in answer.headers if "allow" in name]
        assert not {"content-length", "content-type"} & set(answer.headers)  # RFC 9110 8.6


def test_a_request_of_two_origins_is_of_none(server: UploadServer) -> None:
    lines = ("Origin: https://app.example", "Origin: https://evil.example")
    answer = server.send(request("OPTIONS", "/uploads/x", *lines))
    assert not [name for name in answer.headers if "allow" in name]


def test_options_of_a_configured_origin_allows_put(server: UploadServer) -> None:
    lines = ("Origin: https://app.example", "Access-Control-Request-Method: PUT")
    answer = server.send(request("OPTIONS", "/uploads/x", *lines))
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["access-control-allow-methods"] == "PUT"
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert answer.headers["vary"] == "Origin"


def test_a_put_of_a_configured_origin_may_be_read_there(server: UploadServer) -> None:
    ticket = server.create(5)
    answer = server.send(ticket.put(b"hello", "Origin: https://app.example"))
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    foreign = server.send(ticket.put(b"hello", "Origin: https://evil.example"))
    assert "access-control-allow-origin" not in foreign.headers


def test_llms_txt_tells_an_agent_how_to_move_a_file(any_server: UploadServer) -> None:
    answer = any_server.send(request("GET", "/llms.txt"))
    text = answer.body.decode()
    assert answer.status == 200
    assert any_server.config.public_url in text
    for promise in ("create_upload_url", "curl -sS -H @- -T FILE", "do not PUT again", "Never say"):
        assert promise in text


def test_a_trailing_slash_is_not_redirected(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    path = ticket.path + "/"
    lines = (f"Authorization: {ticket.secret}", "Content-Length: 5")
    assert any_server.send(request("PUT", path, *lines, body=b"hello")).status == 404


@pytest.mark.parametrize("path", ["/uploads", "/downloads", "/uploads/", "/uploads//x"])
def test_a_path_without_an_id_is_unknown_and_leads_nowhere(
    any_server: UploadServer, path: str
) -> None:
    answer = any_server.send(request("PUT", path, "Authorization: x", "Content-Length: 0"))
    assert answer.status == 404
    assert answer.json["code"] == "E7002"
    assert "location" not in answer.headers


def test_one_connection_serves_several_requests(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    with RawClient(any_server.port) as client:
        client.send(request("GET", ticket.path) + request("GET", "/llms.txt"))
        assert client.answer().status == 200
        assert client.answer().status == 200
        client.send(ticket.put(b"hello"))
        assert client.answer().status == 200
