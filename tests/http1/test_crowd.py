"""Who makes room where a server has too many connections, told without and with sockets."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_http import RawClient, request
from tests.support.strict_http import serving

from agent_sandbox.http1 import StrictHTTPProtocol
from agent_sandbox.http1.crowd import Crowd, peer_of


class Guest:
    """A connection that notes when it is told to go."""

    def __init__(self, crowd: Crowd, address: Any = ("192.0.2.1", 1)) -> None:
        self.gone = False
        crowd.enter(self, address)

    def make_room(self) -> None:
        self.gone = True


def test_the_one_that_has_waited_longest_makes_room_and_none_that_is_served() -> None:
    crowd = Crowd(3)
    near = [Guest(crowd, None) for _ in range(3)]
    crowd.serve(near[0])
    near.append(Guest(crowd, None))
    assert [one.gone for one in near] == [False, True, False, False]
    crowd.wait(near[0])  # from now on, so that others have waited longer
    near.append(Guest(crowd, None))
    assert [one.gone for one in near] == [False, True, True, False, False]


def test_where_all_are_served_the_new_one_goes() -> None:
    crowd = Crowd(2)
    for _ in range(2):
        crowd.serve(Guest(crowd, None))
    assert Guest(crowd, None).gone
    assert len(crowd) == 2


def test_the_address_with_most_that_wait_makes_room() -> None:
    crowd = Crowd(4)
    quiet = Guest(crowd, ("192.0.2.1", 1))
    greedy = [Guest(crowd, ("192.0.2.2", port)) for port in range(3)]
    last = Guest(crowd, ("192.0.2.3", 1))
    assert [one.gone for one in (quiet, *greedy, last)] == [False, True, False, False, False]


def test_one_address_has_three_quarters_at_most_and_this_machine_all() -> None:
    crowd = Crowd(8)
    served = [Guest(crowd, ("192.0.2.2", port)) for port in range(6)]
    for one in served:
        crowd.serve(one)
    assert Guest(crowd, ("192.0.2.2", 7)).gone
    assert not Guest(crowd, ("192.0.2.3", 1)).gone
    assert not any(one.gone for one in served)
    for address in (("127.0.0.1", 1), ("::1", 1, 0, 0), "", None):
        near = Crowd(8)
        assert not any(Guest(near, address).gone for _ in range(8))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("127.0.0.1", "127.8.8.8", True),
    ],
)
def test_an_address_or_a_site_of_ipv6_is_one_peer(one: str, other: str, same: bool) -> None:
    assert (peer_of((one, 1)) == peer_of((other, 2))) is same


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["enter", "serve", "wait", "leave"]), st.integers(0, 9))),
)
def test_there_are_never_more_than_may_be_and_who_left_is_forgotten(
    most: int, steps: list[tuple[str, int]]
) -> None:
    crowd = Crowd(most)
    guests: list[Guest] = []
    for step, number in steps:
        if step == "enter":
            guests.append(Guest(crowd, (f"192.0.2.{number % 3}", number)))
        elif guests:
            getattr(crowd, step)(guests[number % len(guests)])
        assert len(crowd) <= most
        assert len(crowd) == sum(one in crowd._all for one in guests)
    for one in guests:
        crowd.leave(one)
    assert (len(crowd), crowd._of, crowd._waiting) == (0, {}, {})


def test_it_is_logged_once_in_a_while_how_many_had_to_go(caplog: Any) -> None:
    crowd = Crowd(1)
    for port in range(5):
        Guest(crowd, ("192.0.2.9", port))
    crowd._logged_at -= 60
    Guest(crowd, ("192.0.2.9", 9))
    assert [record.getMessage() for record in caplog.records] == [
        "too many connections: 1 are kept, 1 of one address; ended for others: 1",
        "too many connections: 1 are kept, 1 of one address; ended for others: 4",
    ]


def test_idle_connections_keep_nobody_out_and_a_request_under_way_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StrictHTTPProtocol, "most_connections", 4)
    held = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        import anyio.to_thread

        if scope["path"] == "/held":
            await anyio.to_thread.run_sync(held.wait, 20)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with serving(app) as port, contextlib.ExitStack() as stack:
        first = stack.enter_context(RawClient(port))
        first.send(request("GET", "/held"))
        second = stack.enter_context(RawClient(port))
        second.send(request("GET", "/"))
        assert second.answer().status == 204  # so the first one is being served by now
        idle = [stack.enter_context(RawClient(port)) for _ in range(20)]
        last = stack.enter_context(RawClient(port))
        last.send(request("GET", "/"))
        assert last.answer().status == 204
        assert second.rest() == b""  # it had waited longest
        assert all(one.rest() == b"" for one in idle[:17])
        held.set()
        assert first.answer().status == 204
