"""With whom the packed protocol runs: what is said when, and what the machines are told; without NIXL."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl.control import Join, Refused
from kvreshard.nixl.sessions import DENIED, NONE, Session, Sessions

HERE, THERE, LATER = (10, 20), (30, 40), (50, 60)
"""Epochs of two registrations as receiver and sender, and of another of the peer's."""


class Machine:
    """Notes what it is told, and asks for just that."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.full = False

    def __getattr__(self, name: str) -> Any:
        def told(*arguments: Any) -> tuple[Any, ...]:
            if self.full and name == "peer_up":
                raise kvr.LimitExceeded("x" * 2000)
            return (name, *arguments)

        return told


class One:
    """The sessions of one connector, and a peer."""

    def __init__(self, name: str = "there") -> None:
        self.receiver, self.sender = Machine(HERE[0]), Machine(HERE[1])
        self.asked: list[tuple[Any, ...]] = []
        self.said: list[tuple[str, Any, bool]] = []
        add: Any = lambda role, actions: self.asked.append((role, *actions))  # noqa: E731
        carrier: Any = SimpleNamespace(receiver=self.receiver, sender=self.sender, add=add)
        self.sessions = Sessions(carrier, "pull", lambda peer, message, again: self._say(peer, message, again))
        ring = SimpleNamespace(send=SimpleNamespace(slots=3), receive=SimpleNamespace(slots=5))
        self.peer: Any = SimpleNamespace(name=name, rings=ring, generation=7)

    def _say(self, peer: Any, message: Any, again: bool) -> None:
        self.said.append((peer.name, message, again))

    def hear(self, mine: tuple[int, int], yours: tuple[int, int], up: bool = False) -> None:
        self.sessions.hear(self.peer, Join(mine, yours, "push", up, 7))

    def news(self) -> tuple[list[tuple[str, Any, bool]], list[tuple[Any, ...]]]:
        """What was said, and what the machines were told, since the last look."""
        found = self.said, self.asked
        self.said, self.asked = [], []
        return found

    @property
    def session(self) -> Session:
        return self.sessions.of("there")


UP = [("receiver", "peer_up", 0, (10, 40), "pull", 3), ("sender", "peer_up", 0, (30, 20), "push", 5)]
DOWN = [("receiver", "peer_down", 0), ("sender", "peer_down", 0)]


def join(heard: tuple[int, int], up: bool = False) -> Join:
    return Join(HERE, heard, "pull", up, 7)


@pytest.fixture
def one() -> One:
    return One()


@pytest.fixture
def begun() -> One:
    one = One()
    one.hear(THERE, HERE)
    assert one.news() == ([("there", join(THERE, True), False)], UP)
    return one


def test_join_is_said_again_ever_more_rarely(one: One) -> None:
    assert not one.sessions.any
    said = []
    for tenth in range(100):
        now = 1000 + tenth * 0.100001
        assert not one.sessions.begin(one.peer, now)
        said += [(tenth, again) for _, message, again in one.news()[0] if message == join(NONE)]
    # After 0.1, 0.2, 0.4, ... seconds, 2 at most; who says it again introduces itself.
    assert said == [(at, at > 0) for at in (0, 1, 3, 7, 15, 31, 51, 71, 91)]
    assert one.sessions.any


def test_two_that_know_each_other_begin(one: One) -> None:
    one.hear(THERE, NONE)
    assert one.news() == ([("there", join(THERE), False)], [])
    assert not one.session.up
    one.hear(THERE, HERE)
    assert one.news() == ([("there", join(THERE, True), False)], UP)
    assert (one.session.up, one.session.mine, one.session.theirs) == (True, HERE, THERE)
    assert one.sessions.begin(one.peer, 0.0)
    assert one.news() == ([], [])


def test_of_a_session_that_is_known_nothing_changes(begun: One) -> None:
    begun.hear(THERE, HERE, up=True)
    assert begun.news() == ([], [])
    # A peer that has not begun yet is answered.
    for yours in (HERE, NONE):
        begun.hear(THERE, yours)
        assert begun.news() == ([("there", join(THERE, True), False)], [])


@pytest.mark.parametrize(("mine", "yours", "up"), [(LATER, NONE, False), (LATER, HERE, True), (THERE, LATER, False)])
def test_other_epochs_end_what_there_was(begun: One, mine: Any, yours: Any, up: bool) -> None:
    begun.hear(mine, yours, up)
    said, asked = begun.news()
    again = [("receiver", "peer_up", 0, (10, 60), "pull", 3), ("sender", "peer_up", 0, (50, 20), "push", 5)]
    assert asked == (DOWN + again if yours == HERE else DOWN)
    assert said == [("there", join(mine, yours == HERE), False)]


def test_a_peer_without_rings_is_not_answered(one: One) -> None:
    one.peer.rings = None
    one.hear(THERE, HERE)
    assert one.news() == ([], [])
    assert not one.sessions.any


@pytest.mark.parametrize("full", ["receiver", "sender"])
def test_a_peer_that_is_not_admitted_is_told_so(one: One, full: str) -> None:
    getattr(one, full).full = True
    one.hear(THERE, HERE)
    said, asked = one.news()
    assert said == [("there", Refused("", "x" * 1000), False)]
    # What one machine has begun it ends.
    assert asked == ([] if full == "receiver" else [("receiver", "peer_down", 0)])
    assert (one.session.up, one.session.refused) == (False, "x" * 1000)
    # Nothing is said to it before it is forgiven, or says something itself.
    assert not one.sessions.begin(one.peer, 1e9)
    assert one.news() == ([], [])
    before = time.monotonic()
    one.sessions.forgive("there")
    assert before <= one.session.denied <= time.monotonic()
    assert not one.sessions.begin(one.peer, 0.0)
    assert one.news() == ([("there", join(THERE), False)], [])


def test_whoever_was_refused_is_not_welcome_for_a_while(one: One) -> None:
    assert one.sessions.welcome("there", 0.0)
    assert not one.sessions.any
    session = one.session
    assert one.sessions.welcome("there", 0.0)
    one.sessions.refuse("there", "no room")
    refusals = [session.refused]
    one.sessions.forgive("there")
    assert [*refusals, session.refused] == ["no room", None]
    denied = session.denied
    assert not one.sessions.welcome("there", denied + DENIED)
    assert one.sessions.welcome("there", denied + DENIED + 0.001)
    one.hear(THERE, HERE)
    assert one.sessions.welcome("there", denied)


def test_a_refusal_of_what_this_side_took_for_begun_ends_it(begun: One) -> None:
    begun.sessions.refuse("there", "no room")
    assert begun.news() == ([], DOWN)
    assert (begun.session.up, begun.session.refused) == (False, None)
    assert not begun.sessions.welcome("there", time.monotonic())


def test_the_end_of_a_peer_is_told_to_both_machines_once(begun: One) -> None:
    begun.sessions.gone("there")
    assert begun.news() == ([], [])
    begun.sessions.end("there")
    assert begun.news() == ([], DOWN)
    assert begun.session == Session(0, mine=HERE, theirs=THERE)
    begun.sessions.end("there")
    begun.sessions.end("nobody")
    begun.sessions.gone("nobody")
    assert begun.news() == ([], [])
    begun.sessions.gone("there")
    assert begun.news() == ([], [("receiver", "peer_gone", 0), ("sender", "peer_gone", 0)])
    # It may begin again at once, as someone of whom nothing was heard.
    begun.sessions.begin(begun.peer, 0.0)
    assert begun.news() == ([("there", join(NONE), False)], [])


def test_other_memory_ends_all_sessions(begun: One) -> None:
    begun.sessions.registered()
    assert begun.news() == ([], [("receiver", "registered"), ("sender", "registered")])
    assert (begun.session.up, begun.session.heard, begun.session.sent, begun.session.next) == (False, NONE, 0, 0.0)


def test_numbers_stay_with_their_names(one: One) -> None:
    assert [one.sessions.of(name).number for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    assert [one.sessions.name(number) for number in (0, 1, 2)] == ["a", "b", "c"]
