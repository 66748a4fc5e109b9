"""One peer's part of a request as a parcel that is packed: its states are the parcel's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec")

from kvreshard.nixl.errors import TransferError
from kvreshard.nixl.events import Predicted, Telemetry
from kvreshard.nixl.packed import PackedLeg
from tests.legs import NOTICE, Two


@pytest.fixture
def two() -> Two:
    return Two()


class Packs:
    """Carries parcels as far as a leg sees."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def open(self, parcel: Any) -> None:
        self.done.append("open")

    def nudge(self, parcel: Any, now: float) -> None:
        assert abs(now - time.monotonic()) < 5
        self.done.append("nudge")

    def drop(self, parcel: Any) -> None:
        self.done.append("drop")


def packed(two: Two) -> tuple[PackedLeg, Packs, Any]:
    chunks = [SimpleNamespace(bytes=100), SimpleNamespace(bytes=30)]
    parcel: Any = SimpleNamespace(peer=two.peer, state="open", held=False, error=None, chunks=chunks)
    packs = Packs()
    return PackedLeg(two.wrapped, packs, parcel, NOTICE, Predicted(2, 130, 0.5)), packs, parcel


def test_a_packed_leg_is_done_when_its_parcel_is(two: Two) -> None:
    leg, packs, parcel = packed(two)
    leg.advance()
    assert (leg.state, leg.strategy, packs.done) == ("ready", "packed", [])
    leg.start()
    leg.advance()
    assert (leg.state, packs.done, two.fabric.told) == ("running", ["open", "nudge", "nudge"], [])
    parcel.state = "done"
    leg.advance()
    assert (leg.state, leg.error, leg.measured) == ("done", None, [Telemetry("there", 2, 130, 0.0, 0.0, False)])
    assert (leg.share.predicted, two.other.heard) == (Predicted(2, 130, 0.5), {"here": [NOTICE]})
    leg.stop()
    assert (leg.state, packs.done) == ("done", ["open", "nudge", "nudge"])


@pytest.mark.parametrize("held", [True, False])
def test_a_packed_leg_fails_with_its_parcel_and_holds_while_it_does(two: Two, held: bool) -> None:
    leg, packs, parcel = packed(two)
    leg.start()
    parcel.state, parcel.error, parcel.held = "failed", TransferError("why"), held
    leg.advance()
    assert (leg.state, leg.error) == ("stuck" if held else "ended", parcel.error)
    parcel.held = False
    leg.advance()
    assert (leg.state, leg.error, two.fabric.told) == ("ended", parcel.error, [])
    assert packs.done == ["open", "nudge"]


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("how", ["stop", "cancel", "elsewhere", "abandon"])
def test_a_packed_leg_that_is_stopped_gives_its_parcel_up(two: Two, how: str, held: bool) -> None:
    leg, packs, parcel = packed(two)
    leg.start()
    parcel.held = held
    if how == "elsewhere":
        leg.advance(go_on=False)
    elif how == "abandon":
        assert leg.abandon() == []
    else:
        getattr(leg, how)()
    assert (leg.state, packs.done) == ("stuck" if held and how != "abandon" else "ended", ["open", "nudge", "drop"])
    # Once is enough.
    leg.stop()
    assert packs.done == ["open", "nudge", "drop"]


def test_a_packed_leg_that_never_began_has_nothing_to_give_up(two: Two) -> None:
    leg, packs, _ = packed(two)
    leg.cancel()
    assert (leg.state, packs.done) == ("ended", [])
