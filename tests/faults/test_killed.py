"""A peer is killed: before contact, idle, and in the middle of everything that can be under way with it."""

from __future__ import annotations

import time

import pytest

from tests.connector_rank import running
from tests.faults.harness import TIMEOUT, Scene, Staged, Strategy, Watch

pytest.importorskip("nixl")

from kvreshard.nixl import Failed, Freed, LeaseEnded, NotConnected, PeerDown, PeerLost

BIG = 1024
"""Pages of a request over TCP that is more than its sockets hold: it goes no further than this side polls."""

CHUNKS: list[Strategy] = ["landed", "packed"]


def await_first_bytes(scene: Scene) -> None:
    """Polls until a page has changed."""
    ends = time.monotonic() + TIMEOUT
    while not any((now[:8] != then[:8]).any() for now, then in zip(scene.mine, scene.before, strict=True)):
        assert time.monotonic() < ends, "nothing came"
        scene.poll()
    assert scene.of("r") == [], "all had come before anything could happen in the middle"


def lost(scene: Scene, *requests: str) -> None:
    """Each request has failed once, with its pages free, and the peer is down, for exactly these."""
    scene.wait(("PeerDown", "victim"), *(("Failed", id) for id in requests))
    scene.settle()
    (down,) = [event for event in scene.events if isinstance(event, PeerDown)]
    assert set(down.requests) == set(requests)
    assert isinstance(down.reason, PeerLost)
    for id in requests:
        failed = scene.failed(id)
        assert isinstance(failed.reason, PeerLost)
        assert failed.peers == ("victim",)
        assert [type(event) for event in scene.of(id)] == [Failed] + [Freed] * (failed.pages == "held")
    assert list(scene.here.in_flight) == []


def test_before_it_was_ever_connected(stage: Staged) -> None:
    """`connect` itself finds nobody at its address; nothing of it stays here, and another process can have its name."""
    scene = stage.scene()
    data = scene.victim.call("metadata")
    scene.kill()
    for _ in range(2):
        with pytest.raises(PeerLost):
            scene.here.connect(data)
    scene.others_go_on()
    assert scene.events == scene.of(scene.events[0].id), "nothing but the other's request"
    assert list(scene.here.in_flight) == []
    scene.recover()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_after_connect_and_before_contact(stage: Staged, direction: str) -> None:
    scene = stage.scene()
    peer = scene.connect(direction="read" if direction == "read" else "write")
    scene.kill()
    (scene.here.read if direction == "read" else scene.here.write)(peer, scene.request(8), id="r")
    lost(scene, "r")
    assert scene.failed("r").pages == "free"
    assert scene.changed() == 0
    scene.others_go_on()
    scene.recover(direction=direction)


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "tcp"])
def test_idle(stage: Staged, tcp: bool) -> None:
    """It has been read from before. Nobody asks, nobody hears of it: the next request is the first to know."""
    scene = stage.scene(tcp=tcp)
    peer = scene.connect()
    scene.next_is_right(peer)
    scene.kill()
    scene.settle()
    assert [event for event in scene.events if isinstance(event, PeerDown)] == []
    at = [array.copy() for array in scene.mine]
    scene.here.read(peer, scene.request(8), id="r")
    lost(scene, "r")
    assert scene.failed("r").pages == "free"
    assert all((now == then).all() for now, then in zip(scene.mine, at, strict=True))
    scene.others_go_on()
    with pytest.raises(NotConnected):
        scene.here.read(peer, scene.request(8), id="r")
    scene.recover()


def test_in_the_middle_of_a_read_over_tcp(stage: Staged) -> None:
    scene = stage.scene(tcp=True, pages=BIG)
    peer, count = scene.connect(), BIG - 8
    scene.here.read(peer, scene.request(count), id="r")
    scene.here.read(peer, scene.request(4, first=count), id="s")
    await_first_bytes(scene)
    scene.kill()
    lost(scene, "r", "s")
    assert 0 < scene.changed() < 2 * count
    with scene.still(count):
        scene.others_go_on()
    scene.untouched(BIG - 4)
    scene.recover()


def test_in_the_middle_of_a_read_over_shared_memory(stage: Staged) -> None:
    """NIXL copies inside `read`, which then ends with the peer; the event comes at the next `poll`."""
    scene = stage.scene(pages=BIG, runs=True)
    peer, count = scene.connect(), BIG - 4
    with Watch(scene.mine, scene.kill):
        scene.here.read(peer, scene.request(count), id="r")
    lost(scene, "r")
    assert scene.failed("r").pages == "free"
    assert 0 < scene.changed() < 2 * count
    with scene.still(count):
        scene.others_go_on()
    scene.untouched(count)
    scene.recover()


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "tcp"])
def test_in_the_middle_of_a_write(stage: Staged, tcp: bool) -> None:
    """Of its memory, which outlives it here, a part has been written, and nothing but what was to be."""
    scene = stage.scene(tcp=tcp, pages=BIG, shared=True, runs=not tcp)
    peer, count = scene.connect(direction="write"), BIG - 8
    theirs, before = scene.victim.spec.window(), scene.theirs()
    scene.before = [array.copy() for array in scene.mine]
    with Watch([array[:count] for array in theirs], scene.kill):
        scene.here.write(peer, scene.request(count), id="w")
        scene.wait(("Failed", "w"))
    lost(scene, "w")
    assert scene.failed("w").pages == "free"
    written = sum(int((now != then).any(axis=1).sum()) for now, then in zip(theirs, before, strict=True))
    assert 0 < written < 2 * count
    for now, then in zip(theirs, before, strict=True):
        assert (now[count:] == then[count:]).all()
    assert scene.changed() == 0
    scene.others_go_on()
    scene.recover(direction="write")


@pytest.mark.parametrize("strategy", CHUNKS)
def test_in_the_middle_of_a_read_in_chunks(stage: Staged, strategy: Strategy) -> None:
    """Landed: reads into this rank's slots. Packed, pushed: the peer's writes into them, until it dies."""
    scene = stage.scene(strategy=strategy)
    peer = scene.connect()
    scene.here.read(peer, scene.request(48), id="r", strategy=strategy)
    await_first_bytes(scene)
    scene.kill()
    lost(scene, "r")
    assert scene.failed("r").pages == "free"
    assert 0 < scene.changed() < 2 * 48
    with scene.still(48):
        scene.others_go_on()
    scene.untouched(48)
    scene.recover(strategy)


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "tcp"])
def test_in_the_middle_of_a_packed_read_that_this_side_pulls(stage: Staged, tcp: bool) -> None:
    """Over TCP with reads of its slots under way, which fail with it."""
    scene = stage.scene(strategy="packed", flow="pull", tcp=tcp)
    peer = scene.connect()
    scene.here.read(peer, scene.request(48), id="r", strategy="packed")
    await_first_bytes(scene)
    scene.kill()
    lost(scene, "r")
    assert scene.failed("r").pages == "free"
    assert 0 < scene.changed() < 2 * 48
    with scene.still(48):
        scene.others_go_on()
    scene.recover("packed")


def test_in_the_middle_of_a_packed_write(stage: Staged) -> None:
    scene = stage.scene(strategy="packed", shared=True)
    peer = scene.connect(direction="write")
    theirs = [array.copy() for array in scene.victim.spec.window()]
    scene.here.write(peer, scene.request(48), id="w", strategy="packed")
    ends = time.monotonic() + TIMEOUT
    while all((now == then).all() for now, then in zip(scene.victim.spec.window(), theirs, strict=True)):
        assert time.monotonic() < ends
        scene.poll()
    scene.kill()
    lost(scene, "w")
    assert scene.failed("w").pages == "free"
    for now, then in zip(scene.victim.spec.window(), theirs, strict=True):
        assert (now[48:] == then[48:]).all()
    assert scene.changed() == 0
    scene.others_go_on()
    scene.recover("packed", direction="write")


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_slots_that_it_may_still_touch_are_kept_until_its_process_is_known_to_be_gone(stage: Staged, flow: str) -> None:
    """Pushed: the one slot that was granted to it. Pulled: none, since only this side touches them."""
    scene = stage.scene(strategy="packed", flow=flow, slots=3)
    peer = scene.connect()
    scene.next_is_right(peer, "packed")
    ring = scene.here._packing._running[0].receiver  # type: ignore[index]
    assert (ring.free, ring.quarantined) == (1, 0)
    scene.stop()
    scene.here.read(peer, scene.request(48), id="r", strategy="packed")
    scene.settle()
    kept = {"push": 1, "pull": 0}[flow]
    assert ring.free == 1 - kept
    scene.kill()
    lost(scene, "r")
    assert (ring.free, ring.quarantined) == (1 - kept, kept)
    scene.others_go_on()
    if kept:
        with running(scene.victim.spec) as (again,):
            peer = scene.here.connect(again.call("metadata", during=scene))
            # Until then there is no slot that it could have; what needs none goes on.
            scene.here.read(peer, scene.request(8), id="too early", strategy="packed")
            scene.wait(("Failed", "too early"))
            assert "kept from lost peers: 1;" in (scene.failed("too early").reason.remedy or "")
            scene.victim = again
            scene.next_is_right(peer, "landed")
            scene.here.disconnect(peer)
    scene.here.gone("victim")
    assert (ring.free, ring.quarantined) == (1, 0)
    scene.recover("packed")


@pytest.mark.parametrize("strategy", ["direct", "packed"])
@pytest.mark.parametrize("direction", ["read", "write"])
def test_a_peer_that_was_at_our_pages(stage: Staged, direction: str, strategy: Strategy) -> None:
    """This side is read from, or written to, and is told when the lease is over who was heard: nobody."""
    scene = stage.scene(strategy=strategy, tcp=strategy == "direct", pages=BIG if strategy == "direct" else 64)
    count = scene.spec.pages - 4
    name = scene.victim.call("connect", scene.here.metadata(), {"direction": direction}, during=scene)
    expected = {"readers" if direction == "read" else "writers": 1}
    scene.here.expect("r", lease=1.0, **expected)
    scene.victim.call(direction, name, scene.turned(count), "r", {"strategy": strategy}, during=scene)
    if direction == "write":
        await_first_bytes(scene)
    scene.kill()
    scene.wait(("LeaseEnded", "r"))
    (ended,) = [event for event in scene.events if isinstance(event, LeaseEnded)]
    assert (ended.heard, ended.needed) == ((), 1)
    with scene.still(count):
        scene.others_go_on()
        scene.settle()
    if direction == "read":
        assert scene.changed() == 2 * 4, "only what the bystander's request brought"
    scene.untouched(count)
    scene.recover(strategy, direction=direction)


def test_one_of_two_sources(stage: Staged) -> None:
    """The request of both fails; what the other one still brings is waited for before the pages are free."""
    scene = stage.scene(tcp=True, pages=BIG)
    half = BIG // 2
    peer, other = scene.connect(), scene.connect(scene.bystander)
    several = [(peer, scene.request(half)), (other, scene.request(8, first=0))]
    scene.here.read_all(several, id="r", deadline=30.0)
    await_first_bytes(scene)
    scene.kill()
    lost(scene, "r")
    assert other.connected
    scene.others_go_on()
    scene.recover()
