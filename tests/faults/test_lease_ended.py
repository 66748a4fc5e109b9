"""A lease ends while its pages are read: the producer could not wait, and the reader is not to use what it got."""

from __future__ import annotations

import pytest

from tests.faults.harness import Staged, Strategy

pytest.importorskip("nixl")

from kvreshard.nixl import Failed, Finished, LeaseOver


@pytest.mark.parametrize("strategy", ["direct", "landed", "packed"])
def test_a_read_that_takes_longer_than_the_producer_can_wait(stage: Staged, strategy: Strategy) -> None:
    """Fenced, or packed, where the producer takes part: it fails. `longest` is more than no reader can prolong."""
    scene = stage.scene(strategy=strategy, tcp=True, pages=1024 if strategy == "direct" else 64)
    peer, count = scene.connect(), scene.spec.pages - 4
    scene.victim.call("expect", "r", {"readers": 1, "lease": 0.5, "longest": 0.5}, during=scene)
    with scene.fault():
        scene.here.read(peer, scene.request(count), id="r", strategy=strategy, fence=strategy != "packed")
        scene.poll()
        # Busy for longer than that, while the pages are being read.
        scene.victim.call("sleep", 1.0, during=scene)
    scene.await_theirs(("LeaseEnded", "r"))
    scene.wait(("Failed", "r"))
    failed = scene.failed("r")
    assert isinstance(failed.reason, LeaseOver)
    assert (failed.pages, scene.here.in_flight) == ("free", ())
    assert [type(event) for event in scene.of("r")] == [Failed]
    assert peer.connected
    with scene.still(count):
        scene.others_go_on()
        scene.settle()
    scene.untouched(count)
    scene.next_is_right(peer, strategy)


def test_without_a_fence_only_the_producer_knows(stage: Staged) -> None:
    """Nobody asks, so the reader calls it finished: why reads of pages that can be given up are to be fenced."""
    scene = stage.scene(tcp=True, pages=1024)
    peer = scene.connect()
    scene.victim.call("expect", "r", {"readers": 1, "lease": 0.5}, during=scene)
    scene.here.read(peer, scene.request(1020), id="r")
    scene.victim.call("sleep", 1.0, during=scene)
    scene.await_theirs(("LeaseEnded", "r"))
    scene.wait(("Finished", "r"))
    assert [type(event) for event in scene.of("r")] == [Finished]
    scene.others_go_on()
