"""Ranks whose pages are said to be in device memory, as far as that shows in a process without a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, wire
from kvreshard.nixl.staging import Area, Fence, Size, area
from tests.connector_rank import Bytes
from tests.fabric import Fabric
from tests.pairs import HERE, STAGING, THERE, Pair, pages, tokens


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The devices whose streams were waited for."""
    found: list[Any] = []

    def now(devices: Any) -> None:
        found.append(devices)

    monkeypatch.setattr(Fence, "now", staticmethod(now))
    return found


def published(connector: Connector, arrays: list[Bytes], *kinds: Any) -> None:
    """Publishes layers of those kinds, each on a device of its number."""
    for number, (array, kind) in enumerate(zip(arrays, kinds, strict=True)):
        region = connector.register((array.ctypes.data, array.nbytes, number if kind == "VRAM" else 0, kind))
        connector.add_layer(f"layers.{number}", region, HERE.format, pages=HERE.pages, totals={"h": 8})
    connector.publish(engine="decode")


def test_streams_of_the_devices_that_pages_are_on_are_waited_for(fabric: Fabric, waited: list[Any]) -> None:
    pair = Pair()
    device = Connector("device")
    arrays = HERE.arrays(4)
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
    assert [sorted(found) for found in (peer.here, peer.there)] == [sorted({*kinds}), ["DRAM"]]
    other.close(timeout=0)
    pair.close()


def test_slots_are_of_the_size_that_the_kind_of_memory_likes(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Size, Any]] = []

    def made(size: Size, where: Any, memory: Any) -> Area:
        asked.append((size, where))
        return area(size, ("DRAM", 0), memory)

    monkeypatch.setattr("kvreshard.nixl.listener.area", made)
    total = 24 * 65536
    device = Connector("device", staging=total)
    published(device, HERE.arrays(4)[:1], "VRAM")
    third = Size(8 * 65536, 65536)
    assert asked == [(third, ("VRAM", 0))] * 3
    host = Connector("host", staging=total)
    published(host, HERE.arrays(4), "DRAM", "DRAM")
    slot = total // 8
    assert [size for size, _ in asked[3:]] == [Size(4 * slot, slot), Size(2 * slot, slot), Size(2 * slot, slot)]
    device.close(timeout=0)
    host.close(timeout=0)


def test_no_staging_is_beside_pages_of_two_kinds(fabric: Fabric) -> None:
    both = Connector("both", **STAGING)
    arrays = HERE.arrays(4)
    published(both, arrays, "DRAM", "VRAM")
    assert wire.decode(both.metadata()).rings is None
    assert len(fabric.agents["both"].regions) == 2
    both.close(timeout=0)
