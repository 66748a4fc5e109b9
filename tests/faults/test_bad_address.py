"""A list that nobody planned has a bad address: refused where NIXL can see it; else it costs the connection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kvreshard as kvr
from tests.faults.harness import Staged, Strategy

pytest.importorskip("nixl")

from kvreshard.nixl import NotRegistered, PeerDown, PeerLost, wire


def test_that_is_registered_but_not_there(stage: Staged) -> None:
    """One bad descriptor takes every request with that peer down, and no request with another."""
    scene = stage.scene()
    address = scene.victim.call("trap", 1 << 16)
    peer = scene.connect()
    scene.next_is_right(peer)
    # Waits for a promise that does not come: still under way when the list is posted.
    scene.here.read(peer, scene.request(8), id="r", fence=True)
    scene.settle()
    assert list(scene.here.in_flight) == ["r"]
    before = [array.copy() for array in scene.mine]
    agent = scene.here._agent
    ours = np.array([[scene.mine[0].ctypes.data, 4096, 0]], np.uint64)
    theirs = np.array([[address, 4096, 0]], np.uint64)
    handle = agent.make_exact("READ", "victim", (ours, "DRAM"), (theirs, "DRAM"), b"")
    with scene.fault(), pytest.raises(PeerLost):
        agent.post(handle, "victim")
    agent.release(handle)
    scene.wait(("Failed", "r"), ("PeerDown", "victim"))
    assert [event.requests for event in scene.events if isinstance(event, PeerDown)] == [("r",)]
    failed = scene.failed("r")
    assert isinstance(failed.reason, PeerLost)
    assert failed.pages == "free"
    assert list(scene.here.in_flight) == []
    assert all((now == then).all() for now, then in zip(scene.mine, before, strict=True))
    scene.others_go_on()
    # The process lives: the same metadata connects it anew.
    again = scene.connect()
    assert again is not peer
    scene.next_is_right(again)


@pytest.mark.parametrize("strategy", ["direct", "landed"])
def test_that_no_registration_covers(stage: Staged, strategy: Strategy) -> None:
    """Metadata promises pages past the end of what the peer registered: refused when the lists are made."""
    scene = stage.scene(strategy="landed")
    told = wire.decode(scene.victim.call("metadata"))
    layers = []
    for layer in told.layout.layers:
        (segment,) = layer.segments
        beyond = kvr.Region(segment.region.base + segment.region.bytes, segment.region.bytes)
        layers.append(kvr.Layer(layer.name, [kvr.Segment(beyond, segment.format, pages=64)], totals={"h": 8}))
    layout = kvr.RankLayout(engine="prefill", layers=layers, generation=told.generation)
    peer = scene.here.connect(wire.encode(replace(told, layout=layout)))
    with scene.fault():
        if strategy == "direct":
            with pytest.raises(NotRegistered) as raised:
                scene.here.read(peer, scene.request(8), id="r", strategy=strategy)
            assert raised.value.peer == "victim"
        else:
            # A landed chunk's list is made when there is a slot for it, so this refusal is an event.
            scene.here.read(peer, scene.request(8), id="r", strategy=strategy)
            scene.wait(("Failed", "r"))
            assert isinstance(scene.failed("r").reason, NotRegistered)
            assert scene.failed("r").pages == "free"
    scene.settle()
    assert list(scene.here.in_flight) == []
    assert scene.changed() == 0
    assert peer.connected
    assert scene.here._landing.free == 4
    scene.others_go_on()
    scene.next_is_right(scene.connect())
