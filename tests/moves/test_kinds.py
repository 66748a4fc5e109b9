"""Ranks whose pages are said to be in device memory, as far as that shows in a process without a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import Connector
from kvreshard.nixl.staging import Fence
from tests.fabric import Fabric
from tests.pairs import HERE, THERE, Pair, pages, published, tokens


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The devices whose streams were waited for."""
    found: list[Any] = []

    def now(devices: Any) -> None:
        found.append(devices)

    monkeypatch.setattr(Fence, "now", staticmethod(now))
    return found


def test_streams_of_the_devices_that_pages_are_on_are_waited_for(fabric: Fabric, waited: list[Any]) -> None:
    pair = Pair()
    device = Connector("device")
    arrays = HERE.arrays(4)
    device.expect("q", readers=1)
    assert waited.pop() == frozenset()
    published(device, arrays, "VRAM", "VRAM")
    peer = device.connect(pair.there.metadata())
    device.expect("w", writers=1)
    assert waited == []
    device.read(peer, pages(2), id="r")
    device.expect("s", readers=1)
    pair.there.expect("r", readers=1)
    assert waited == [{0, 1}, {0, 1}, frozenset()]
    assert [type(event).__name__ for event in device.poll()] == ["Finished"]
    for mine, theirs in zip(arrays, pair.theirs, strict=True):
        np.testing.assert_array_equal(tokens(mine, HERE)[:2], tokens(theirs, THERE)[[0, 2]])
    device.deregister()
    device.expect("t", readers=1)
    assert waited[3:] == [frozenset()]
    device.close(timeout=0)
    pair.close()


@pytest.mark.parametrize(
    ("kinds", "transport"),
    [(("DRAM", "DRAM"), "cma"), (("VRAM", "DRAM"), "cuda_ipc"), (("DRAM", "VRAM"), "cuda_ipc")],
)
def test_costs_are_those_of_the_way_that_device_memory_takes(fabric: Fabric, kinds: Any, transport: str) -> None:
    pair = Pair()
    other = Connector("other")
    published(other, HERE.arrays(4), *kinds)
    peer = other.connect(pair.there.metadata())
    assert peer.transport == transport
    sides = [sorted(found) for found in (peer.here, peer.there, peer.memory)]
    assert sides == [sorted({*kinds}), ["DRAM"], sorted({*kinds, "DRAM"})]
    other.close(timeout=0)
    pair.close()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_pages_of_two_kinds_move_each_by_its_own_rows(fabric: Fabric, direction: str) -> None:
    pair = Pair()
    other = Connector("other")
    arrays = HERE.arrays(4)
    published(other, arrays, "DRAM", "VRAM")
    peer = other.connect(pair.there.metadata(), direction=None)
    act = other.read if direction == "read" else other.write
    act(peer, pages(4), id="r", strategy="direct")
    assert [type(event).__name__ for event in other.poll()] == ["Finished"]
    assert sorted({made.memory for made in fabric.agents["other"].prepared if made.owner == "other"}) == [
        "DRAM",
        "VRAM",
    ]
    for mine, theirs in zip(arrays, pair.theirs, strict=True):
        np.testing.assert_array_equal(tokens(mine, HERE)[:4], tokens(theirs, THERE)[:8:2])
    other.close(timeout=0)
    pair.close()
