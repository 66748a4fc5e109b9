"""The two machines that a carrier is made with: of which slots, with room for how many peers, how patient."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Literal

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl.carrier import RESEND_TICKS, SEATS, Carrier
from kvreshard.nixl.staging import Size

Machine = kvr.RingReceiver | kvr.RingSender

ROLES = pytest.mark.parametrize("role", ["receiver", "sender"])


def machine(role: str, slots: int, slot_bytes: int = 256) -> Machine:
    """The one of a role, where the other has other slots."""
    sizes = {"receiver": Size(1280, 256), "sender": Size(1280, 256), role: Size(slots * slot_bytes, slot_bytes)}
    areas: Any = {name: SimpleNamespace(size=size) for name, size in sizes.items()}
    made = Carrier(SimpleNamespace(), areas, SimpleNamespace(), lambda *_: None)  # type: ignore[arg-type]
    one: Machine = getattr(made, role)
    return one


def begin(one: Machine, peer: int, flow: Literal["push", "pull"] = "push") -> list[kvr.RingAction]:
    session = (one.epoch, 7) if isinstance(one, kvr.RingReceiver) else (7, one.epoch)
    return one.peer_up(peer, session, flow, 4)


def ask(one: Machine, peer: int, bytes: int, chunk: int) -> list[kvr.RingAction]:
    return (one.want if isinstance(one, kvr.RingReceiver) else one.offer)(peer, "r", bytes, chunk)


@ROLES
@pytest.mark.parametrize("slots", [1, 3, SEATS - 1, SEATS, SEATS + 1, 2 * SEATS, 3 * SEATS + 5])
def test_a_ring_has_seats_for_so_many_peers_or_as_many_as_slots(role: str, slots: int) -> None:
    one = machine(role, slots)
    assert one.free == slots
    # The share of each is what is left for no further one.
    seats = slots // max(1, slots // SEATS)
    assert min(slots, SEATS) <= seats
    for peer in range(seats):
        begin(one, peer)
    with pytest.raises(kvr.LimitExceeded):
        begin(one, seats)


@ROLES
def test_chunks_are_at_most_as_long_as_a_slot(role: str) -> None:
    one = machine(role, 4, 512)
    begin(one, 0)
    with pytest.raises(kvr.LimitExceeded):
        ask(one, 0, 1024, 513)
    ask(one, 0, 1024, 512)
    assert one.progress(0, "r") == (0, 2, False)


def test_epochs_are_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later processes of a host have larger ones, which outlive 64 bits of nanoseconds."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_234_567_999)
    assert [machine(role, 4).epoch for role in ("receiver", "sender")] == [1_234_567] * 2


def shipped(one: kvr.RingSender) -> list[kvr.RingAction]:
    """What a sender says when the one chunk that a receiver wants of it is written."""
    receiver = kvr.RingReceiver(slots=4, slot_bytes=256, epoch=7)
    begin(one, 0)
    receiver.peer_up(0, (7, one.epoch), "push", 4)
    one.offer(0, "r", 256, 256)
    asked = [one.message(0, wanted.frame or b"") for wanted in receiver.want(0, "r", 256, 256)]
    ((gather,),) = [actions for actions in asked if actions]
    (write,) = one.gathered(gather.slot or 0, True)
    return one.write_ended(write.slot or 0, True)


@ROLES
def test_what_is_not_answered_is_said_again_after_so_many_ticks(role: str) -> None:
    one = machine(role, 4)
    if isinstance(one, kvr.RingReceiver):
        begin(one, 0)
        first = ask(one, 0, 256, 256)
    else:
        first = shipped(one)
    assert {action.kind for action in first} == {"send"}
    said = [any(action.kind == "send" for action in one.tick()) for _ in range(2 * RESEND_TICKS)]
    assert next(tick for tick, sent in enumerate(said, 1) if sent) == RESEND_TICKS == 20
