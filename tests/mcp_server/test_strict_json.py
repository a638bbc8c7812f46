"""JSON that two readers could take differently, at the parser and on every wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mcp_server.test_stdio_wire import PING, pipe
from tests.support.mcp_servers import ERAS, HttpServer, RawHttp, initialize, modern_headers

from agent_sandbox.mcp_server.strict_json import (
    MAX_DEPTH,
    MAX_VALUES,
    DoubtfulJsonError,
    NotJsonError,
    parse,
)

NOT_JSON = {
    "nothing": b"",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "an infinity within": b'{"a":[Infinity]}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32"),
    "a byte that is no UTF-8": b'"\xff"',
    "an overlong slash": b'"\xc0\xaf"',
    "an encoded surrogate": b'"\xed\xa0\x80"',
    "a lone high surrogate": b'"\\ud800"',
    "a lone low surrogate": b'{"\\udc00":1}',
    "a comment": b"/**/{}",
    "a trailing comma": b"[1,]",
    "single quotes": b"{'a':1}",
    "a name without quotes": b"{a:1}",
    "a leading zero": b"01",
    "a plus": b"+1",
    "a hexadecimal number": b"0x10",
    "a control character": b'"\x01"',
    "an escape that is none": b'"\\x41"',
    "two values": b"{} {}",
    "a NUL behind": b"{}\x00",
    "too deep": b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2),
    "far too deep": b"[" * 100_000 + b"]" * 100_000,
    "too many values": b"[" + b"1," * MAX_VALUES + b"1]",
    "too many empty lists": b"[" + b"[]," * MAX_VALUES + b"[]]",
    "an integer of 10,000 digits": b"1" * 10_000,
    "a string without an end": b'{"' + b'\\"' * 100_000,
}
DOUBTFUL = {
    "a name twice": b'{"a":1,"a":2}',
    "a name twice, one escaped": b'{"a":1,"\\u0061":2}',
    "a name twice, within": b'{"p":[{"x":{"a":1,"b":2,"a":1}}],"q":":"}',
    "a name twice, with colons about": b'{"a:\\\\":":\\":","a:\\\\":":"}',
    "a number beyond a double": b"[1e999]",
}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='":\\,[{}]ab\n\u2603'),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(alphabet='":\\,[{ab', max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize("text", NOT_JSON.values(), ids=list(NOT_JSON))
@pytest.mark.parametrize("lone_surrogates", [False, True])
def test_what_is_no_json_is_refused(text: bytes, lone_surrogates: bool) -> None:
    if lone_surrogates and b"\\ud" in text:
        assert parse(text, lone_surrogates=True) == json.loads(text)
        return
    with pytest.raises(NotJsonError):
        parse(text, lone_surrogates=lone_surrogates)


@pytest.mark.parametrize("text", DOUBTFUL.values(), ids=list(DOUBTFUL))
@pytest.mark.parametrize("lone_surrogates", [False, True])
def test_what_readers_take_differently_is_refused(text: bytes, lone_surrogates: bool) -> None:
    with pytest.raises(DoubtfulJsonError):
        parse(text, lone_surrogates=lone_surrogates)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"a":"\\ud800","a":1}', DoubtfulJsonError),
        (b'["\\ud800",NaN]', NotJsonError),
        (b'\xef\xbb\xbf["\\ud800"]', NotJsonError),
        (b'["\\ud800","\xff"]', NotJsonError),
        (b'["\\ud800",' + b"[" * 400 + b"]" * 401, NotJsonError),
        (b'["\\ud800",1e999]', DoubtfulJsonError),
    ],
)
def test_a_lone_surrogate_lets_nothing_else_through(text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse(text, lone_surrogates=True)


@given(values)
def test_everything_else_is_read_as_it_was_written(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse(text.encode()) == value


@given(st.dictionaries(st.text('":\\,[{ab', max_size=4), values, min_size=1), st.data())
def test_a_name_said_twice_is_found_wherever_it_stands(
    value: dict[str, Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    twice = f"{json.dumps(value)[:-1]},{json.dumps(name)}:1}}"
    with pytest.raises(DoubtfulJsonError):
        parse(f'[{{"x":{twice}}}]'.encode())


def test_numbers_and_depth_up_to_the_bounds_are_read() -> None:
    assert parse(b"[" + b"1," * (MAX_VALUES - 2) + b"1]") == [1] * (MAX_VALUES - 1)
    assert parse(b"[1e308,-1e308," + b"9" * 4_000 + b"]")[2] == 10**4_000 - 1
    deep = parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (deep,) = deep
    assert deep == []


BODIES = {
    "NaN": (b'{"x":NaN}', -32700),
    "an infinity": (b'{"x":-Infinity}', -32700),
    "a number beyond a double": (b'{"x":1e999}', -32600),
    "a name twice": (b'{"x":1,"x":1}', -32600),
    "deep": (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", -32700),
    "deep enough": (b'{"x":' + b"[" * 300 + b"]" * 300 + b"}", -32700),
    "a huge integer": (b'{"x":' + b"1" * 10_000 + b"}", -32700),
    "no UTF-8": (b'{"x":"\xff"}', -32700),
    "values without number": (b'{"x":[' + b"0," * 1_000_000 + b"0]}", -32700),
}
"""Parameters of a request, and the error that answers it."""


def _request(params: bytes, name: bytes = b'"id":1') -> bytes:
    return b'{"jsonrpc":"2.0",%s,"method":"ping","params":%s}' % (name, params)


@pytest.mark.parametrize("era", ERAS)
async def test_over_http_it_is_refused_without_a_word_of_it(
    shared_http: HttpServer, era: str
) -> None:
    async with RawHttp.open(shared_http.url) as raw:
        more = modern_headers("x", "ping") if era == ERAS[1] else {}
        if era == ERAS[0]:
            await raw.initialize()
        for params, code in BODIES.values():
            answer = await raw.post(_request(params), **more)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), params[:20]
            assert set(answer.json()["error"]) == {"code", "message"}
        for body in (b"\xef\xbb\xbf" + _request(b"{}"), _request(b"{}").decode().encode("utf-16")):
            answer = await raw.post(body, **more)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32700)
        many = await raw.post(_request(BODIES["values without number"][0]), **more)
        assert (
            many.json()["error"]["message"] == "Parse error: the body has more than 10,000 values."
        )
        twice = await raw.post(_request(b"{}", b'"id":1,"id":2'), **more)
        assert (twice.status_code, twice.json()["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize("field", ["id", "method", "name"])
@pytest.mark.parametrize("era", ERAS)
async def test_a_lone_surrogate_anywhere_in_an_envelope_over_http_is_an_error_and_no_fault(
    shared_http: HttpServer, era: str, field: str
) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": ERAS[1],
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "read_file", "arguments": {}, "_meta": meta},
    }
    (message["params"] if field == "name" else message)[field] = "\ud800"
    async with RawHttp.open(shared_http.url) as raw:
        more = modern_headers("read_file") if era == ERAS[1] else {}
        if era == ERAS[0]:
            await raw.initialize()
        answer = await raw.post(json.dumps(message).encode(), **more)
    assert answer.status_code == 400
    assert "ud800" not in answer.text


@pytest.mark.parametrize("era", ERAS)
async def test_over_stdio_it_is_refused_and_the_next_line_served(era: str) -> None:
    async with pipe(hello=False) as it:
        if era == ERAS[0]:
            await it.ask(initialize("hello"))
        for params, code in BODIES.values():
            refused = await it.ask(_request(params))
            assert refused["error"]["code"] == code, params[:20]
            # Where only the parameters are in doubt, the client learns which request it was.
            assert refused["id"] == (1 if code == -32600 else None)
        for line in (b"\xef\xbb\xbf" + _request(b"{}"), _request(b"{}").decode().encode("utf-16")):
            refused = await it.ask(line.replace(b"\n", b""))
            assert (refused["id"], refused["error"]["code"]) == (None, -32700)
        twice = await it.ask(_request(b"{}", b'"id":1,"id":2'))
        assert (twice["id"], twice["error"]["code"]) == (None, -32600)
        assert (await it.ask(PING % b"9"))["id"] == 9
