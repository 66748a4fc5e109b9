"""Ranks whose pages are said to be in device memory, as far as that shows in a process without a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, RegistrationError, Unsupported, wire
from kvreshard.nixl.staging import Area, Fence, Size, area
from kvreshard.nixl.strategy import Wanted
from tests.connector_rank import Bytes
from tests.fabric import Fabric
from tests.pairs import HERE, SLOT, STAGING, THERE, Pair, pages, right, tokens


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


def test_staging_ends_where_pages_of_two_kinds_are_published(fabric: Fabric) -> None:
    pair = Pair()
    rings = wire.decode(pair.there.metadata()).rings
    array = HERE.arrays(4)[0]
    assert rings is not None
    region = pair.there.register((array.ctypes.data, array.nbytes, 0, "VRAM"))
    pair.there.add_layer("layers.2", region, HERE.format, pages=HERE.pages, totals={"h": 8})
    pair.there.publish(engine="prefill")
    assert wire.decode(pair.there.metadata()).rings is None
    pair.peer = pair.here.connect(pair.there.metadata())
    back = pair.there.connect(pair.here.metadata(), direction=None)
    wanted: list[Wanted] = ["landed", "packed"]
    for strategy in wanted:
        with pytest.raises(Unsupported):
            pair.there.read(back, pages(1), id="r", strategy=strategy, layers=["layers.0", "layers.1"])
    pair.close()


def test_staging_of_few_slots_is_for_landing(fabric: Fabric) -> None:
    pair = Pair(staging=2 * SLOT)
    for _ in range(2):
        assert wire.decode(pair.here.metadata()).rings is None
        assert pair.here._landing.free == 2
        pair.here.read(pair.peer, pages(10), id="r", strategy="landed")
        pair.until("Finished")
        assert right(pair, 10)
        pair.here.publish(pair.here.layout)
        pair.peer = pair.here.connect(pair.there.metadata())
    pair.close()


def test_landed_chunks_lie_in_no_slot_that_peers_are_told_of(fabric: Fabric) -> None:
    pair = Pair()
    rings = wire.decode(pair.here.metadata()).rings
    assert rings is not None
    pair.here.read(pair.peer, pages(10), id="r", strategy="landed")
    pair.until("Finished")
    at = {int(address) for handle in fabric.made for address in handle.ours[:, 0]}
    for ring in (rings.receive, rings.send):
        assert not at & {*range(ring.address, ring.address + ring.slots * ring.slot_bytes)}
    pair.close()


def test_staging_that_is_not_all_to_be_had_is_none(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Area] = []

    def refused(size: Size, where: Any, memory: Any) -> Area:
        if len(made) == 2:
            raise RegistrationError("no more")
        made.append(area(size, where, memory))
        return made[-1]

    monkeypatch.setattr("kvreshard.nixl.listener.area", refused)
    here = Connector("here", **STAGING)
    arrays = HERE.arrays(4)
    with pytest.raises(RegistrationError, match="no more"):
        published(here, arrays, "DRAM", "DRAM")
    assert len(made) == 2
    assert len(fabric.agents["here"].regions) == HERE.layers
    monkeypatch.undo()
    here.publish(engine="decode")
    assert wire.decode(here.metadata()).rings is not None
    here.close(timeout=0)
