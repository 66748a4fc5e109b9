"""Gathers and scatters of a carrier: what they move, when they have ended, and what is cleared with the last."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import TransferError
from tests.carriers import Fence, action, carrier
from tests.told import told


class Area:
    """Notes what it is to move, as slowly as its fence says, or not at all."""

    def __init__(self, fence: Fence | Exception) -> None:
        self.fence, self.moved = fence, list[tuple[Any, ...]]()
        self.region = SimpleNamespace(memory="DRAM", device=0)

    def move(self, mover: Any, chunk: Any, slot: int, *, gather: bool, after: Any = None) -> Fence:
        self.moved.append((mover, chunk, slot, gather, after))
        if isinstance(self.fence, Exception):
            raise self.fence
        return self.fence

    def slot(self, index: int) -> tuple[int, None]:
        return 1000 * index, None


def launched(role: str, fence: Fence | Exception, **fields: Any) -> tuple[Any, Any, Area, list[tuple[int, bool]]]:
    """A carrier with its second chunk of 70 bytes at slot 3, the parcel, the area, and which kernels have ended."""
    ended: list[tuple[int, bool]] = []

    def end(slot: int, ok: bool) -> list[Any]:
        ended.append((slot, ok))
        return []

    chunks = [SimpleNamespace(bytes=700), SimpleNamespace(bytes=70)]
    peer = SimpleNamespace(name="there", rings=None)
    parcel = SimpleNamespace(
        chunks=chunks,
        mover="mover",
        after="fence",
        began=False,
        error=None,
        id="r",
        peer=peer,
        **{"clear": None, "scattered": 0, "ours": True, "state": "open", **fields},
    )
    area = Area(fence)
    one = carrier(
        areas={role: area},
        receiver=SimpleNamespace(scattered=end),
        sender=SimpleNamespace(gathered=end),
        _desk=SimpleNamespace(parcel=lambda number, name, of: parcel if (number, name, of) == (7, "p", role) else None),
    )
    launch(one, role, 3, sequence=1)
    return one, parcel, area, ended


def launch(one: Any, role: str, slot: int, *, sequence: int) -> None:
    """What the machine of that role asks for."""
    kind = "gather" if role == "sender" else "scatter"
    one.add(role, [action(kind, slot=slot, sequence=sequence, remote_slot=None, peer=7, request="p")])
    one.run()


KERNELS = pytest.mark.parametrize("role", ["receiver", "sender"])


@KERNELS
def test_a_kernel_moves_a_chunk_of_the_parcel_behind_its_fence(role: str) -> None:
    one, parcel, area, ended = launched(role, Fence(True))
    assert area.moved == [("mover", parcel.chunks[1], 3, role == "sender", "fence")]
    assert (ended, parcel.began, one.busy) == ([(3, True)], True, False)
    assert one._loaded == ({3: 70} if role == "sender" else {})


@KERNELS
def test_a_kernel_that_takes_time_keeps_the_carrier_busy(role: str) -> None:
    fence = Fence(False)
    one, _, _, ended = launched(role, fence)
    assert (ended, one.busy, one.busy_with(None)) == ([], True, False)
    fence.over = True
    one.look(every=True)
    assert (ended, one.busy) == ([(3, True)], False)


@KERNELS
def test_a_kernel_that_cannot_be_launched_fails_its_parcel(role: str) -> None:
    one, parcel, _, ended = launched(role, RuntimeError("out of kernels"))
    assert (ended, one.busy, parcel.began) == ([(3, False)], False, True)
    assert type(parcel.error) is TransferError
    assert told(parcel.error) == ("request r: out of kernels", {"request": "r"})


@pytest.mark.parametrize("over", [True, False])
def test_the_rest_of_the_pages_is_cleared_with_the_last_scatter(over: bool) -> None:
    cleared: list[str] = []
    fence = Fence(over)
    one, _, _, ended = launched("receiver", fence, clear=lambda: cleared.append("rest"))
    assert (cleared, ended) == ([], [(3, True)] if over else [])
    launch(one, "receiver", 4, sequence=0)
    fence.over = True
    one.look(every=True)
    assert (cleared, ended) == (["rest"], [(3, True), (4, True)])


@pytest.mark.parametrize("ours", [True, False])
def test_a_last_scatter_whose_pages_cannot_be_cleared_has_failed(ours: bool, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise RuntimeError("no such memory")

    one, parcel, _, ended = launched("receiver", Fence(True), clear=fails, ours=ours)
    launch(one, "receiver", 4, sequence=0)
    assert ended == [(3, True), (4, False)]
    text = "not all pages were cleared: no such memory"
    assert (type(parcel.error), told(parcel.error)) == (TransferError, (f"request r: {text}", {"request": "r"}))
    logged = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == ([] if ours else [(logging.ERROR, f"request r of peer there: {text}")])


@pytest.mark.parametrize(("role", "state"), [("receiver", "failed"), ("sender", "open")])
def test_nothing_is_cleared_of_what_has_failed_and_of_what_is_sent(role: str, state: str) -> None:
    cleared: list[str] = []
    one, _, _, ended = launched(role, Fence(True), clear=lambda: cleared.append("rest"), state=state)
    launch(one, role, 4, sequence=0)
    assert (cleared, ended) == ([], [(3, True), (4, True)])


def test_kernels_are_waited_for_at_the_end() -> None:
    waited: list[int] = []
    fences = [SimpleNamespace(over=False, wait=lambda at=at: waited.append(at)) for at in (1, 2)]
    kernels = [SimpleNamespace(fence=fence) for fence in fences]
    peer, stage = SimpleNamespace(name="there"), SimpleNamespace(handle=1)
    one = carrier(_kernels=kernels, _flights=[SimpleNamespace(peer=peer, stage=stage)])
    assert one.abandon() == [(peer, stage)]
    assert (waited, one.busy, one.busy_with(None)) == ([1, 2], False, False)
