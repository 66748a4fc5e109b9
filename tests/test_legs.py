"""The states that one peer's part of a request goes through, by the diagram of `kvreshard.nixl.leg`."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

from kvreshard.nixl.agent import Agent
from kvreshard.nixl.errors import NotRegistered, PeerLost, TransferError
from kvreshard.nixl.events import Predicted, Telemetry
from kvreshard.nixl.landed import LandedLeg
from kvreshard.nixl.landing import Lander, Landing
from kvreshard.nixl.leg import DirectLeg, Stage
from kvreshard.nixl.memory import Memory
from kvreshard.nixl.packed import PackedLeg
from kvreshard.nixl.staging import Fence, Size, area
from tests.fabric import Fabric, Fake, Handle
from tests.scripted import BROKEN, LOST, MISSING, failure
from tests.told import told

NOTICE = b"all of it is here"


class Two:
    """An agent with 64 bytes, and a peer's with as many."""

    def __init__(self) -> None:
        self.fabric = Fabric()
        self.agent, self.other = Fake("here", self.fabric), Fake("there", self.fabric)
        self.mine, self.theirs = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8)
        for fake, memory in ((self.agent, self.mine), (self.other, self.theirs)):
            fake.register_memory([(memory.ctypes.data, 64, 0, "")], "DRAM")
        self.agent.add_remote_agent(b"there")
        self.wrapped = Agent(self.agent, owned=True)
        self.peer: Any = SimpleNamespace(name="there")

    def stage(self, start: int, notice: bytes = b"") -> Stage:
        rows = [
            (np.array([[memory.ctypes.data + start, 16, 0]], np.uint64), "DRAM") for memory in (self.mine, self.theirs)
        ]
        return Stage(self.wrapped.make_exact("READ", "there", rows[0], rows[1], notice), False, 1, 16)

    def leg(self, count: int = 2, predicted: Predicted | None = None) -> DirectLeg:
        notices = [b""] * (count - 1) + [NOTICE]
        stages = [self.stage(16 * number, notices[number]) for number in range(count)]
        return DirectLeg(self.wrapped, self.peer, stages, NOTICE, predicted)


@pytest.fixture
def two() -> Two:
    return Two()


def test_stages_go_one_after_the_other(two: Two) -> None:
    leg = two.leg(3, Predicted(3, 48, 1.5))
    assert (leg.state, leg.moving, leg.strategy, leg.error) == ("ready", False, "direct", None)
    leg.advance()
    assert [handle.state for handle in two.fabric.made] == ["made"] * 3
    two.fabric.held = lambda handle: handle is not two.fabric.made[0]
    leg.start()
    assert (leg.state, leg.moving) == ("running", True)
    assert [handle.state for handle in two.fabric.made] == ["DONE", "PROC", "made"]
    leg.advance()
    assert (leg.state, len(two.agent.alive)) == ("running", 2)
    assert two.other.heard == {}
    time.sleep(0.002)
    two.fabric.held = lambda handle: False
    leg.advance()
    assert (leg.state, leg.moving, leg.error, two.agent.alive) == ("done", False, None, [])
    assert two.mine[:48].tolist() == two.theirs[:48].tolist()
    assert not two.mine[48:].any()
    # The last transfer carries the notice.
    assert two.other.heard == {"here": [NOTICE]}
    assert leg.measured == [Telemetry("there", 1, 16, 0.0, 0.0, False)] * 3
    share = leg.share
    assert (share.peer, share.strategy, share.posted, share.bytes, share.predicted) == (
        "there",
        "direct",
        3,
        48,
        Predicted(3, 48, 1.5),
    )
    assert share.seconds >= 0.002
    leg.advance()
    assert leg.state == "done"


def test_what_nixl_measured_counts(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(descCount=2, totalBytes=15, postDuration=3, xferDuration=7)
    monkeypatch.setattr(two.agent, "get_xfer_telemetry", lambda handle: found)
    stage = two.stage(0)
    stage.prepared = True
    leg = DirectLeg(two.wrapped, two.peer, [stage], NOTICE)
    leg.start()
    assert leg.measured == [Telemetry("there", 2, 15, 3e-6, 7e-6, True)]
    assert (leg.share.posted, leg.share.bytes) == (2, 15)


def test_nothing_to_move_is_done_and_told(two: Two) -> None:
    leg = DirectLeg(two.wrapped, two.peer, [], NOTICE)
    leg.start()
    assert (leg.state, leg.measured) == ("done", [])
    assert two.other.heard == {"here": [NOTICE]}
    silent = DirectLeg(two.wrapped, two.peer, [], b"")
    silent.start()
    assert (silent.state, two.other.heard) == ("done", {"here": [NOTICE]})


def test_nothing_to_move_and_nobody_to_tell_has_failed(two: Two) -> None:
    leg = DirectLeg(two.wrapped, two.peer, [], NOTICE)
    two.other.end()
    leg.start()
    assert (leg.state, type(leg.error)) == ("ended", PeerLost)


@pytest.mark.parametrize(
    ("raised", "kind", "state"),
    [(LOST, PeerLost, "ended"), (MISSING, NotRegistered, "ended"), (BROKEN, TransferError, "stuck")],
)
def test_a_post_that_is_refused(two: Two, raised: Exception, kind: type, state: str) -> None:
    leg = two.leg()
    two.fabric.refused = lambda handle: raised
    two.fabric.held = lambda handle: True
    leg.start()
    assert (leg.state, type(leg.error), leg.moving) == (state, kind, state == "stuck")
    assert len(two.agent.alive) == (2 if state == "stuck" else 0)
    leg.advance()
    assert leg.state == state
    two.fabric.held = lambda handle: False
    leg.advance()
    assert (leg.state, two.agent.alive, type(leg.error)) == ("ended", [], kind)
    # It has failed, whatever has arrived since: nobody is told, and the next is not posted.
    assert [handle.state for handle in two.fabric.made][1] == "made"


@pytest.mark.parametrize(("raised", "kind", "state"), [(LOST, PeerLost, "ended"), (BROKEN, TransferError, "stuck")])
def test_a_transfer_that_fails_under_way(
    two: Two, raised: Exception, kind: type, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leg = two.leg()
    two.fabric.held = lambda handle: True
    leg.start()

    def look(handle: Handle) -> str:
        handle.state = "lost" if raised is LOST else "PROC"
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(two.agent, "check_xfer_state", look)
        for _ in range(2):
            leg.advance()
            assert (leg.state, type(leg.error), leg.moving) == (state, kind, state == "stuck")
    assert told(leg.error)[1]["peer"] == "there"
    first = leg.error
    two.fabric.held = lambda handle: False
    leg.advance()
    assert (leg.state, leg.error, two.agent.alive) == ("ended", first, [])


def test_a_request_that_failed_elsewhere_goes_no_further(two: Two) -> None:
    leg = two.leg()
    leg.stop()
    assert (leg.state, two.agent.alive) == ("ended", [])
    leg = two.leg()
    two.fabric.held = lambda handle: True
    leg.start()
    leg.stop()
    leg.advance(go_on=False)
    assert (leg.state, len(two.agent.alive)) == ("running", 2)
    two.fabric.held = lambda handle: False
    leg.advance(go_on=False)
    assert (leg.state, two.agent.alive, leg.error) == ("ended", [], None)
    assert two.fabric.made[-1].state == "made"
    # The last stage was under way: all of it is here.
    leg = two.leg(1)
    two.fabric.held = lambda handle: True
    leg.start()
    two.fabric.held = lambda handle: False
    leg.advance(go_on=False)
    assert leg.state == "done"


def test_a_leg_is_abandoned_with_what_is_under_way(two: Two) -> None:
    leg = two.leg()
    two.fabric.held = lambda handle: True
    leg.start()
    stages = list(leg.stages)
    assert leg.abandon() == stages
    assert (leg.state, leg.stages, len(two.agent.alive)) == ("ended", [], 2)


def test_a_handle_that_is_not_released_is_no_failure(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(handle: Handle) -> None:
        raise failure("nixlBackendError")("NIXL_ERR_BACKEND")

    leg = two.leg(1)
    monkeypatch.setattr(two.agent, "release_xfer_handle", refused)
    leg.start()
    assert leg.state == "done"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "peer there: NIXL could not release a transfer: NIXL_ERR_BACKEND"


# Landed


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
        chunks: Any = [SimpleNamespace(reads=self._reads) for _ in range(3)]
        lander: Any = Lander(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        self.leg = LandedLeg(self.two.wrapped, self.two.peer, self.landing, lander, chunks, "DRAM", notice)
        monkeypatch.setattr("kvreshard.nixl.staging.Area.move", self._move)

    def _reads(self, address: int, device: int) -> Any:
        assert device == 0
        ours = np.array([[address, 16, 0], [address + 16, 8, 0]], np.uint64)
        theirs = np.array([[self.two.theirs.ctypes.data, 16, 0], [self.two.theirs.ctypes.data + 16, 8, 0]], np.uint64)
        return ours, theirs

    def _move(self, mover: Any, chunk: Any, slot: int, *, gather: bool) -> Fence:
        assert gather is False
        self.kernels.append(Kernel())
        return Fence(self.kernels[-1])


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> Landed:
    return Landed(monkeypatch)


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


def test_without_a_notice_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    landed = Landed(monkeypatch, b"")
    landed.leg.start()
    for _ in range(3):
        landed.leg.advance()
        for kernel in landed.kernels:
            kernel.over = True
    assert (landed.leg.state, landed.two.fabric.told) == ("done", [])


# Packed


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
