"""Chunks of one peer's part of a request that land in slots and are scattered from there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

from kvreshard.nixl.errors import NotRegistered, PeerLost, TransferError
from kvreshard.nixl.events import Predicted, Telemetry
from kvreshard.nixl.landed import LandedLeg
from kvreshard.nixl.landing import Lander, Landing
from kvreshard.nixl.memory import Memory
from kvreshard.nixl.staging import Fence, Size, area
from tests.legs import NOTICE, Two
from tests.scripted import BROKEN, LOST, MISSING
from tests.told import told


class Kernel:
    """A scatter that is over when it is said to be."""

    def __init__(self) -> None:
        self.over, self.waited = False, False

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.waited = True


class Landed:
    """A leg of three chunks of 16 bytes, over two slots."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, notice: bytes = NOTICE) -> None:
        self.two = Two()
        self.two.peer = SimpleNamespace(name="there", connected=True)
        memory = Memory(self.two.wrapped)
        self.landing = Landing(self.two.wrapped, memory)
        self.landing.open(area(Size.of(1024, 256), ("DRAM", 0), memory))
        self.kernels: list[Kernel] = []
        self.chunks: Any = [SimpleNamespace(reads=self._reads) for _ in range(3)]
        self.lander: Any = Lander(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        self.leg = LandedLeg(
            self.two.wrapped,
            self.two.peer,
            self.landing,
            self.lander,
            self.chunks,
            "DRAM",
            notice,
            Predicted(6, 72, 0.5),
        )
        monkeypatch.setattr("kvreshard.nixl.staging.Area.move", self._move)

    def _reads(self, address: int, device: int) -> Any:
        assert device == 0
        ours = np.array([[address, 16, 0], [address + 16, 8, 0]], np.uint64)
        theirs = np.array([[self.two.theirs.ctypes.data, 16, 0], [self.two.theirs.ctypes.data + 16, 8, 0]], np.uint64)
        return ours, theirs

    def _move(self, mover: Any, chunk: Any, slot: int, *, gather: bool) -> Fence:
        assert (mover is self.lander.mover, chunk in self.chunks, gather) == (True, True, False)
        assert slot in range(4)
        self.kernels.append(Kernel())
        return Fence(self.kernels[-1])


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Landed]:
    made = Landed(monkeypatch)
    yield made
    # Whatever has happened, no slot is free twice, and none is that there is not.
    assert sorted({*made.landing._free} & {*range(4)}) == sorted(made.landing._free)


def test_chunks_land_and_are_scattered(landed: Landed) -> None:
    leg, made = landed.leg, landed.two.fabric.made
    assert (leg.state, leg.held, leg.waiting) == ("ready", 0, False)
    landed.two.fabric.held = lambda handle: True
    leg.start()
    assert (leg.state, leg.held, leg.waiting, landed.landing.free) == ("running", 1, True, 3)
    for _ in range(5):
        leg.advance()
    # All it needs: one slot is left.
    assert (leg.held, leg.waiting, landed.landing.free, len(made)) == (3, False, 1, 3)
    landed.two.fabric.held = lambda handle: handle is made[2]
    leg.advance()
    assert (leg.held, len(landed.kernels), landed.two.other.heard) == (3, 2, {})
    landed.kernels[0].over = True
    leg.advance()
    assert (leg.held, landed.landing.free) == (2, 2)
    landed.two.fabric.held = lambda handle: False
    leg.advance()
    # The peer's pages are not needed any more, and it is told so once; this side's still are.
    assert (leg.state, leg.held, landed.two.other.heard) == ("running", 2, {"here": [NOTICE]})
    leg.advance()
    landed.kernels[1].over = landed.kernels[2].over = True
    leg.advance()
    assert (leg.state, leg.held, landed.landing.free, leg.moving) == ("done", 0, 4, False)
    assert landed.two.other.heard == {"here": [NOTICE]}
    assert leg.measured == [Telemetry("there", 6, 72, 0.0, 0.0, False)]
    assert leg.share.predicted == Predicted(6, 72, 0.5)
    assert landed.landing._takers == []
    leg.stop()
    assert leg.state == "done"


def test_seconds_of_landed_reads_add_up(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(descCount=2, totalBytes=24, postDuration=3, xferDuration=7)
    monkeypatch.setattr(landed.two.agent, "get_xfer_telemetry", lambda handle: found)
    landed.leg.start()
    landed.leg.advance()
    landed.leg.advance()
    (one,) = landed.leg.measured
    assert (one.posted, one.bytes, one.prepared) == (6, 72, False)
    assert one.post_seconds == pytest.approx(9e-6)
    assert one.seconds == pytest.approx(21e-6)


def test_a_landed_leg_that_is_stopped_waits_for_its_scatters(landed: Landed) -> None:
    leg, made = landed.leg, landed.two.fabric.made
    landed.two.fabric.held = lambda handle: handle is not made[0]
    leg.start()
    leg.advance()
    assert (leg.held, len(landed.kernels)) == (2, 1)
    leg.stop()
    assert (leg.state, leg.held, leg.waiting, landed.landing.free) == ("stuck", 1, False, 2)
    assert landed.landing._takers == [leg]
    leg.advance()
    assert leg.state == "stuck"
    landed.kernels[0].over = True
    leg.advance()
    assert (leg.state, leg.held, landed.landing.free, landed.landing._takers) == ("ended", 0, 3, [])
    landed.two.fabric.held = lambda handle: False
    landed.landing.progress()
    assert (landed.landing.free, len(made), landed.two.other.heard) == (4, 2, {})
    leg.advance()
    assert len(made) == 2


def test_a_landed_leg_whose_request_failed_elsewhere_stops(landed: Landed) -> None:
    leg = landed.leg
    landed.two.fabric.held = lambda handle: True
    leg.start()
    leg.advance(go_on=False)
    assert (leg.state, leg.held, landed.landing.free) == ("ended", 0, 3)


def test_a_landed_leg_that_never_began_is_ended(landed: Landed) -> None:
    landed.leg.cancel()
    assert (landed.leg.state, landed.landing.free, landed.two.fabric.made) == ("ended", 4, [])


def test_a_landed_leg_is_abandoned_when_its_scatters_are_over(landed: Landed) -> None:
    leg, made = landed.leg, landed.two.fabric.made
    landed.two.fabric.held = lambda handle: handle is not made[0]
    leg.start()
    leg.advance()
    assert leg.abandon() == []
    assert landed.kernels[0].waited
    assert (leg.state, leg.held, landed.landing.free, landed.landing._takers) == ("ended", 0, 3, [])
    ((peer, stage),) = landed.landing.abandon()
    assert peer is landed.two.peer
    left: Any = stage.handle
    assert made[1:] == [left]
    assert landed.landing.abandon() == []


def unreachable(*_: Any) -> None:
    raise LOST


def test_a_landed_leg_that_cannot_tell_has_failed(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    landed.two.fabric.held = lambda handle: True
    landed.leg.start()
    landed.leg.advance()
    landed.leg.advance()
    landed.two.fabric.held = lambda handle: False
    monkeypatch.setattr(landed.two.agent, "send_notif", unreachable)
    landed.leg.advance()
    assert (landed.leg.state, type(landed.leg.error)) == ("stuck", PeerLost)
    for kernel in landed.kernels:
        kernel.over = True
    landed.leg.advance()
    assert landed.leg.state == "ended"


def test_a_scatter_that_raises_fails_the_leg_and_gives_its_slot_back(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any, **__: Any) -> Fence:
        raise RuntimeError("no such kernel")

    leg, made = landed.leg, landed.two.fabric.made
    landed.two.fabric.held = lambda handle: True
    leg.start()
    leg.advance()
    monkeypatch.setattr("kvreshard.nixl.staging.Area.move", raises)
    landed.two.fabric.held = lambda handle: handle is not made[0]
    leg.advance()
    assert (leg.state, leg.held, leg.moving) == ("ended", 0, False)
    assert type(leg.error) is TransferError
    assert told(leg.error) == ("scatter of a landed chunk: no such kernel", {"peer": "there"})
    # The other read goes on into a slot that is kept for it; nothing more is read, and nobody is told.
    assert (len(made), landed.landing.free, landed.two.fabric.told) == (2, 3, [])
    landed.two.fabric.held = lambda handle: False
    landed.landing.progress()
    assert landed.landing.free == 4


def test_a_read_that_fails_fails_the_leg_and_keeps_its_slot(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(handle: Any) -> str:
        raise BROKEN

    leg = landed.leg
    landed.two.fabric.held = lambda handle: True
    leg.start()
    with monkeypatch.context() as patch:
        patch.setattr(landed.two.agent, "check_xfer_state", look)
        leg.advance()
    assert (leg.state, leg.held, type(leg.error)) == ("ended", 0, TransferError)
    assert told(leg.error)[1]["peer"] == "there"
    assert (len(landed.two.fabric.made), landed.landing.free) == (1, 3)
    assert landed.landing.busy_with(landed.two.peer)
    landed.two.fabric.held = lambda handle: False
    landed.landing.progress()
    assert (landed.landing.free, landed.two.fabric.told) == (4, [])


@pytest.mark.parametrize("error", [LOST, MISSING, BROKEN])
def test_a_read_that_is_refused_keeps_its_slot_where_it_may_have_begun(landed: Landed, error: Exception) -> None:
    landed.two.fabric.held = lambda handle: True
    landed.two.fabric.refused = lambda handle: error
    landed.leg.start()
    assert (landed.leg.state, landed.leg.held) == ("ended", 0)
    kind = {LOST: PeerLost, MISSING: NotRegistered, BROKEN: TransferError}[error]
    assert type(landed.leg.error) is kind
    text = f"NIXL could not post a transfer (peer there): {error}"
    assert told(landed.leg.error) == (text, {"peer": "there", "code": str(error)})
    assert landed.landing.free == (3 if error is BROKEN else 4)
    # Nobody is told that it has been read.
    assert landed.two.fabric.told == []
    assert len(landed.two.agent.alive) == (1 if error is BROKEN else 0)
    landed.two.fabric.held = lambda handle: False
    landed.landing.progress()
    assert (landed.landing.free, landed.two.agent.alive) == (4, [])


def test_a_read_that_cannot_be_made_gives_its_slot_back(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise MISSING

    monkeypatch.setattr(landed.two.agent, "initialize_xfer", refused)
    landed.leg.start()
    assert (landed.leg.state, landed.leg.held, landed.landing.free) == ("ended", 0, 4)
    text = f"NIXL could not make a transfer (peer there): {MISSING}"
    assert told(landed.leg.error) == (text, {"peer": "there", "code": str(MISSING)})
    assert landed.two.fabric.made == []


def test_without_a_notice_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    landed = Landed(monkeypatch, b"")
    landed.leg.start()
    for _ in range(3):
        landed.leg.advance()
        for kernel in landed.kernels:
            kernel.over = True
    assert (landed.leg.state, landed.two.fabric.told) == ("done", [])
