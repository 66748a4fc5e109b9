"""A peer comes back under its name with other addresses: as another process, or with other registrations."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from tests.connector_rank import running
from tests.faults.harness import Staged, Strategy

pytest.importorskip("nixl")

from kvreshard.nixl import NotConnected, PeerBusy, PeerDown, PeerLost, control

STRATEGIES: list[Strategy] = ["direct", "landed", "packed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_another_process_before_anyone_noticed(stage: Staged, strategy: Strategy) -> None:
    """`connect` with what the new one tells replaces the old; its `Peer` is void, and no event says so."""
    scene = stage.scene(strategy=strategy)
    old = scene.connect()
    scene.next_is_right(old, strategy)
    scene.kill()
    with running(replace(scene.victim.spec, pages=32)) as (again,):
        data = again.call("metadata", during=scene)
        scene.others_go_on()
        new = scene.here.connect(data)
        assert (new is old, old.connected, new.connected) == (False, False, True)
        assert new.generation > old.generation
        with pytest.raises(NotConnected):
            scene.here.read(old, scene.request(8), id="r")
        assert [event for event in scene.events if isinstance(event, PeerDown)] == []
        scene.victim = again
        scene.next_is_right(new, strategy)


def test_as_another_process_while_requests_with_the_old_one_are_open(stage: Staged) -> None:
    """The new one is refused until NIXL has told the end of the old one's transfers."""
    scene = stage.scene(tcp=True)
    old = scene.connect()
    scene.next_is_right(old)
    scene.stop()
    scene.here.read(old, scene.request(40), id="r")
    with running(replace(scene.victim.spec, pages=48)) as (again,):
        data = again.call("metadata", during=scene)
        with pytest.raises(PeerBusy):
            scene.here.connect(data)
        assert old.connected
        scene.kill()
        scene.wait(("PeerDown", "victim"), ("Failed", "r"))
        assert isinstance(scene.failed("r").reason, PeerLost)
        scene.others_go_on()
        scene.victim = again
        scene.next_is_right(scene.here.connect(data), count=40)


@pytest.mark.parametrize("strategy", ["direct", "packed"])
def test_as_another_process_that_reads_from_us(stage: Staged, strategy: Strategy) -> None:
    """The old one was lost in the middle; the new one, unknown here, asks for the same request and gets it."""
    scene = stage.scene(tcp=True, strategy=strategy)
    first, second = scene.victim, replace(scene.victim.spec, pages=48)
    name = first.call("connect", scene.here.metadata(), {}, during=scene)
    scene.here.expect("r", readers=1, lease=60.0)
    first.call("read", name, scene.turned(40), "r", {"strategy": strategy, "fence": True}, during=scene)
    scene.kill()
    scene.settle()
    scene.here.gone("victim") if not scene.here._peers.get("victim") else None
    with running(second) as (again,):
        scene.victim = again
        name = again.call("connect", scene.here.metadata(), {}, during=scene)
        again.call("read", name, scene.turned(40), "r", {"strategy": strategy, "fence": True}, during=scene)
        scene.others_go_on()
        scene.await_theirs(("Finished", "r"))
        scene.wait(("Released", "r"))
        assert [event.readers for event in scene.of("r")] == [("victim",)]
        scene.check_written(40, again.call("pages", during=scene))


def test_metadata_of_a_process_that_is_gone(stage: Staged) -> None:
    """It comes late, out of some cache, when the new one is connected: nobody is there, the new one still is."""
    scene = stage.scene()
    stale = scene.victim.call("metadata")
    scene.kill()
    with running(scene.victim.spec) as (again,):
        scene.victim = again
        data = again.call("metadata", during=scene)
        peer = scene.here.connect(data)
        scene.next_is_right(peer)
        with pytest.raises(PeerLost):
            scene.here.connect(stale)
        scene.others_go_on()
        scene.next_is_right(scene.here.connect(data))


@pytest.mark.parametrize(
    ("strategy", "again", "told"),
    [
        ("direct", "other memory", True),
        ("direct", "other memory", False),
        ("landed", "other memory", False),
        ("packed", "same memory", True),
        ("packed", "same memory", False),
        ("packed", "other memory", False),
    ],
)
def test_metadata_of_registrations_that_are_gone(stage: Staged, strategy: Strategy, again: str, told: bool) -> None:
    """The producer has slept and woken, with its old pages still mapped, so that NIXL calls reads of them DONE.

    It tells the peers that it is connected with. Where that is lost, a fenced read by its old addresses is no read.
    """
    scene = stage.scene(strategy=strategy, victim_options={"flow": "pull"} if strategy == "packed" else {})
    stale = scene.connect()
    scene.next_is_right(stale, strategy)
    if strategy != "packed":
        # It gets to know this side only if that speaks.
        scene.victim.call("expect", "hello", {"readers": 1}, during=scene)
        scene.here.read(stale, scene.request(8), id="hello", fence=True)
        scene.wait(("Finished", "hello"))
    hear = scene.here._hear
    if not told:
        scene.here._hear = lambda sender, message: sender == "victim" or hear(sender, message)  # type: ignore[method-assign]
    with scene.fault():
        data = scene.victim.call("republish", 7 if again == "other memory" else 0, True, during=scene)
    scene.settle()
    scene.here._hear = hear  # type: ignore[method-assign]
    scene.victim.call("expect", "r", {"readers": 1}, during=scene)
    if told:
        assert [event.requests for event in scene.events if isinstance(event, PeerDown)] == [()]
        with pytest.raises(NotConnected):
            scene.here.read(stale, scene.request(8), id="r", strategy=strategy, fence=True)
    else:
        scene.here.read(stale, scene.request(8), id="r", strategy=strategy, fence=True)
        scene.wait(("Failed", "r"), ("PeerDown", "victim"))
        assert isinstance(scene.failed("r").reason, PeerLost)
        assert scene.failed("r").pages == "free"
    scene.settle()
    assert list(scene.here.in_flight) == []
    scene.others_go_on()
    assert [found for found in scene.victim.call("events", during=scene) if found[1] == "r"] == []
    peer = scene.here.connect(data)
    assert peer.generation > stale.generation
    scene.next_is_right(peer, strategy)


def test_pages_that_were_promised_and_then_deregistered(stage: Staged) -> None:
    """Sleep ends every promise: the producer's host is told which, and readers under way are told, too."""
    scene = stage.scene(tcp=True, pages=1024)
    peer = scene.connect()
    for id, options in (("hello", {"readers": 1}), ("r", {"readers": 1}), ("w", {"writers": 1})):
        scene.victim.call("expect", id, options, during=scene)
    scene.here.read(peer, scene.request(8), id="hello", fence=True)
    scene.wait(("Finished", "hello"))
    scene.here.read(peer, scene.request(1000), id="r", fence=True)
    with scene.fault():
        scene.victim.call("republish", 7, True)
    scene.wait(("Failed", "r"), ("PeerDown", "victim"))
    assert isinstance(scene.failed("r").reason, PeerLost)
    if scene.failed("r").pages == "held":
        # Its old memory is still mapped: NIXL reads it to the end, and calls that DONE.
        scene.wait(("Freed", "r"))
    scene.await_theirs(("LeaseEnded", "r"), ("LeaseEnded", "w"))
    with scene.still(1000):
        scene.others_go_on()
    scene.next_is_right(scene.connect())


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_a_packed_write_to_a_ring_that_is_gone(stage: Staged, flow: str) -> None:
    """The same pages, other staging memory: nothing is written to, or read from, where the old ring was."""
    scene = stage.scene(strategy="packed", victim_options={"flow": flow}, shared=True)
    stale = scene.connect(direction="write")
    scene.next_is_right(stale, "packed", direction="write")
    hear = scene.here._hear
    scene.here._hear = lambda sender, message: sender == "victim" or hear(sender, message)  # type: ignore[method-assign]
    data = scene.victim.call("republish", 0, during=scene)
    scene.settle()
    scene.here._hear = hear  # type: ignore[method-assign]
    before = [array.copy() for array in scene.victim.spec.window()]
    scene.here.write(stale, scene.request(40), id="w", strategy="packed")
    scene.wait(("Failed", "w"), ("PeerDown", "victim"))
    assert isinstance(scene.failed("w").reason, PeerLost)
    scene.settle()
    for now, then in zip(scene.victim.spec.window(), before, strict=True):
        assert (now == then).all()
    scene.others_go_on()
    scene.next_is_right(scene.here.connect(data, direction="write"), "packed", direction="write")


def test_a_rank_that_has_registered_more_introduces_itself_again(stage: Staged) -> None:
    """In the middle of a packed request: it is the same registration, and nothing begins anew."""
    scene = stage.scene(strategy="packed", shared=True)
    peer = scene.connect(direction="write")
    before = [array.copy() for array in scene.victim.spec.window()]
    scene.here.write(peer, scene.request(60), id="w", strategy="packed")
    ends = time.monotonic() + 30
    while all((now == then).all() for now, then in zip(scene.victim.spec.window(), before, strict=True)):
        assert time.monotonic() < ends
        scene.poll()
    more = np.zeros(4096, np.uint8)
    scene.here.register(more)
    scene.here.say(peer, control.Gone("no such request"), again=True)
    scene.wait(("Finished", "w"))
    assert peer.connected
    scene.others_go_on()
    scene.check_written(60, scene.victim.call("pages", during=scene))
    scene.next_is_right(peer, "packed", direction="write")
