"""In which order a carrier does what it is asked for, and how far it looks for what has ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl.carrier import Carrier


@dataclass
class Fence:
    """A kernel's end."""

    over: bool


def carrier(**fields: Any) -> Any:
    """One with these fields, and nothing to do."""
    made = Carrier.__new__(Carrier)
    nothing: dict[str, Any] = {"_unsent": deque(), "_todo": deque(), "_kernels": [], "_flights": [], "desk": None}
    for name, value in {**nothing, **fields}.items():
        setattr(made, name, value)
    return made


def action(kind: str, frame: str = "") -> Any:
    """Something that a machine asks for."""
    return SimpleNamespace(kind=kind, frame=frame)


def test_messages_go_before_launches_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(Carrier, "_send", lambda self, action: done.append(action.frame))
    monkeypatch.setattr(Carrier, "_kernel", lambda self, role, action: done.append(f"{role} {action.kind}"))
    one = carrier()
    one.add("receiver", [action("scatter"), action("send", "first")])
    one.add("sender", [action("gather"), action("send", "second")])
    one.run()
    assert done == ["first", "second", "receiver scatter", "sender gather"]


@pytest.mark.parametrize(("every", "seen"), [(True, [1, 2, 3, 4]), (False, [1, 2, 4])])
def test_a_short_look_ends_at_the_first_transfer_with_a_peer_that_has_not(
    every: bool, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    arrived: list[int] = []

    def done(handle: int, peer: str) -> bool:
        asked.append(handle)
        return handle != 2

    def flight(handle: int, peer: str) -> Any:
        return SimpleNamespace(role="sender", peer=SimpleNamespace(name=peer), stage=SimpleNamespace(handle=handle))

    monkeypatch.setattr(Carrier, "_arrived", lambda self, flight, ok: arrived.append(flight.stage.handle))
    flights = [flight(1, "a"), flight(2, "a"), flight(3, "a"), flight(4, "b")]
    one = carrier(_flights=flights, _agent=SimpleNamespace(done=done))
    one.look(every=every)
    assert asked == seen
    assert arrived == [handle for handle in seen if handle != 2]
    assert [left.stage.handle for left in one._flights] == [number for number in (1, 2, 3, 4) if number not in arrived]


def test_kernels_of_a_role_end_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[str, int]] = []
    monkeypatch.setattr(Carrier, "_kernel_ended", lambda self, role, slot, ok: ended.append((role, slot)))
    fences = [
        ("sender", 0, Fence(True)),
        ("sender", 1, Fence(False)),
        ("sender", 2, Fence(True)),
        ("receiver", 0, Fence(True)),
    ]
    one = carrier(_kernels=fences)
    one.look()
    assert ended == [("sender", 0), ("receiver", 0)]
    assert [slot for _, slot, _ in one._kernels] == [1, 2]
