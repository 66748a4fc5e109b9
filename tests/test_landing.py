"""Who gets a slot of the landing ring, and when it comes back; without NIXL."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl import landing
from kvreshard.nixl.errors import PeerLost, TransferError
from kvreshard.nixl.landing import Landing, Read
from kvreshard.nixl.leg import Stage


@dataclass
class Taker:
    """A part that holds so many slots and wants another."""

    peer: Any
    held: int = 0
    waiting: bool = True


def peer(name: str, connected: bool = True) -> Any:
    return SimpleNamespace(name=name, connected=connected)


A, B, C = (peer(name) for name in "abc")


class Agent:
    """Transfers are in the state that the test says, by handle."""

    def __init__(self) -> None:
        self.state: dict[str, bool | Exception] = {}
        self.asked: list[tuple[str, str]] = []
        self.released: list[str] = []

    def done(self, handle: str, name: str) -> bool:
        self.asked.append((handle, name))
        state = self.state.get(handle, False)
        if isinstance(state, Exception):
            raise state
        return state

    def release(self, handle: str) -> None:
        self.released.append(handle)


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def ring(agent: Agent) -> Landing:
    """Of four slots."""
    made = Landing(agent, SimpleNamespace(spans=lambda local: []))  # type: ignore[arg-type]
    area: Any = SimpleNamespace(size=SimpleNamespace(slots=4, slot_bytes=512))
    made.open(area)
    return made


def taken(ring: Landing, taker: Taker) -> bool:
    """Whether it got a slot; it holds it then."""
    got = ring.take(taker) is not None
    taker.held += got
    return got


def enter(ring: Landing, *takers: Taker) -> None:
    for taker in takers:
        ring.enter(taker)


def read(slot: int, handle: str) -> Read:
    stage: Any = Stage(handle, False, 1, 1)  # type: ignore[arg-type]
    return Read(slot, stage, None)  # type: ignore[arg-type]


def test_without_an_area_there_are_no_slots(agent: Agent) -> None:
    none = Landing(agent, SimpleNamespace())  # type: ignore[arg-type]
    assert (none.area, none.chunk, none.free, none.take(Taker(A))) == (None, 0, 0, None)


def test_slots_are_given_once(ring: Landing) -> None:
    assert (ring.chunk, ring.free) == (512, 4)
    one = Taker(A)
    enter(ring, one)
    slots = [ring.take(Taker(peer(str(number)))) for number in range(5)]
    assert (sorted(slots[:4]), slots[4], ring.free) == ([0, 1, 2, 3], None, 0)  # type: ignore[type-var]
    ring.give(2)
    assert ring.take(Taker(B)) == 2


def test_one_peer_alone_leaves_a_slot(ring: Landing) -> None:
    one = Taker(A)
    enter(ring, one)
    assert [taken(ring, one) for _ in range(5)] == [True, True, True, False, False]


def test_the_last_slot_is_for_a_peer_that_has_none(ring: Landing) -> None:
    one, other = Taker(A, 0), Taker(B, 0, waiting=False)
    enter(ring, one, other)
    assert [taken(ring, one) for _ in range(4)] == [True, True, True, False]
    other.waiting = True
    assert taken(ring, other)
    assert (ring.free, one.held, other.held) == (0, 3, 1)


def test_each_peer_that_waits_without_a_slot_keeps_one_free(ring: Landing) -> None:
    """Who has most waits for the others; among those of one peer as well."""
    first, second, third = Taker(A), Taker(B), Taker(C)
    enter(ring, first, second, third)
    assert taken(ring, first)
    # Others have none, and want one.
    assert not taken(ring, first)
    assert taken(ring, second)
    assert taken(ring, third)
    assert ring.free == 1
    assert not any(taken(ring, taker) for taker in (first, second, third))


def test_who_has_more_than_another_that_waits_waits_too(ring: Landing) -> None:
    large, small = Taker(A), Taker(A)
    enter(ring, large)
    assert taken(ring, large)
    enter(ring, small)
    assert not taken(ring, large)
    assert taken(ring, small)
    assert taken(ring, large)
    # One that needs nothing, or whose peer is lost, is not waited for.
    small.waiting, small.held = False, 0
    ring.give(0)
    assert taken(ring, large)
    lost = Taker(peer("lost", connected=False))
    enter(ring, lost)
    ring.give(1)
    assert taken(ring, large)
    ring.leave(small)
    ring.leave(small)
    assert ring._takers == [large, lost]


def test_reads_that_outlive_their_request_count_for_their_peer(ring: Landing, agent: Agent) -> None:
    one = Taker(A)
    enter(ring, one)
    for handle in ("x", "y", "z"):
        slot = ring.take(Taker(peer("p")))
        assert slot is not None
        ring.outlive(A, read(slot, handle))
    # The last slot is not for one that has three.
    assert not taken(ring, one)
    other = Taker(B)
    enter(ring, other)
    assert taken(ring, other)
    assert ring.free == 0
    assert [ring.busy_with(who) for who in (A, B, None)] == [True, False, True]
    ring.progress()
    assert agent.asked == [("x", "a"), ("y", "a"), ("z", "a")]
    agent.state = {"x": True, "y": TransferError("not yet"), "z": PeerLost("gone")}
    ring.progress()
    assert (agent.released, ring.free) == (["x", "z"], 2)
    assert sorted(ring._free) == sorted({0, 1, 2, 3} - {ring._left[0][1].slot, *_held(ring)})
    ((who, stage),) = ring.abandon()
    left: list[Any] = [who, stage.handle]
    assert left == [A, "y"]
    assert not ring.busy_with(None)
    assert ring.abandon() == []


def _held(ring: Landing) -> list[int]:
    """What the other taker has: the one slot that is neither free nor left."""
    left = {one.slot for _, one in ring._left}
    return [slot for slot in range(4) if slot not in ring._free and slot not in left]


class Plan:
    """A plan that counts how often it is landed."""

    def __init__(self, digest: str) -> None:
        self.digest, self.local, self.holes = digest, None, list[int]()

    def landed(self, *, hole: int) -> Any:
        self.holes.append(hole)
        return SimpleNamespace(tiles=f"tiles of {self.digest} {hole}")


def test_kernels_of_a_plan_are_made_once_a_hole(ring: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "mover", lambda tiles, spans: f"mover of {tiles}")
    monkeypatch.setattr(landing, "MAX_LANDERS", 2)
    one, other, third = (Plan(name) for name in "abc")
    hole = kvr.Transport.named("cma").hole

    def lander(plan: Any, transport: Any = "cma") -> Any:
        return ring.lander(plan, transport)

    made = lander(one)
    assert (made.landed.tiles, made.mover) == (f"tiles of a {hole}", f"mover of tiles of a {hole}")
    assert lander(one) is made
    assert lander(one, kvr.Transport.named("cma")) is made
    assert lander(other) is not made
    assert (one.holes, other.holes) == ([hole], [hole])
    # More than are kept: all are forgotten.
    lander(third)
    assert lander(one) is not made
    assert one.holes == [hole, hole]
    lander(one, SimpleNamespace(hole=hole + 1))
    assert one.holes == [hole, hole, hole + 1]
    area: Any = ring.area
    ring.open(area)
    lander(third)
    assert third.holes == [hole, hole]
