"""Where staging memory lies, of which size its slots are, and where there is none."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import Connector, RegistrationError, Unsupported, wire
from kvreshard.nixl.staging import Area, Size, area
from kvreshard.nixl.strategy import Wanted
from tests.connector_rank import publish
from tests.fabric import Fabric
from tests.pairs import HERE, SLOT, STAGING, Pair, pages, published, right


def test_staging_that_holds_no_slot_is_refused_before_there_is_an_agent(fabric: Fabric) -> None:
    with pytest.raises(kvr.LimitExceeded):
        Connector("here", staging=100)
    with pytest.raises(kvr.LimitExceeded):
        Connector("here", staging=1 << 20, slot_bytes=100)
    assert fabric.agents == {}
    plain = Connector("here")
    publish(plain, HERE, HERE.arrays(1))
    assert wire.decode(plain.metadata()).rings is None
    assert len(fabric.agents["here"].regions) == HERE.layers
    plain.close(timeout=0)


def test_rings_are_announced_where_they_are(fabric: Fabric) -> None:
    pair = Pair()
    rings = wire.decode(pair.there.metadata()).rings
    assert rings is not None
    regions = [(address, address + size) for address, size, _, _ in fabric.agents["there"].regions]
    for ring in (rings.receive, rings.send):
        end = ring.address + ring.slots * ring.slot_bytes
        assert sum(low <= ring.address and end <= high for low, high in regions) == 1
        assert (ring.slots, ring.slot_bytes, ring.device, ring.memory) == (4, SLOT, 0, "DRAM")
    assert rings.version == 1
    assert rings.receive.address != rings.send.address
    # The same registrations with the same layout keep their staging; given up with all else, it is new.
    before = list(fabric.agents["there"].regions)
    pair.there.publish(pair.there.layout)
    assert fabric.agents["there"].regions == before
    pair.there.deregister()
    assert fabric.agents["there"].regions == []
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
