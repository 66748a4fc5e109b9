"""A lease ends while its pages are read: the producer could not wait, and the reader is not to use what it got."""

from __future__ import annotations

import time

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
    scene.here.read(peer, scene.request(count), id="r", strategy=strategy, fence=strategy != "packed")
    scene.poll()
    # Away for longer than that, while the pages are being read.
    scene.stop()
    scene.settle(1.0)
    scene.go_on()
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
    scene.stop()
    scene.settle(1.0)
    scene.go_on()
    scene.await_theirs(("LeaseEnded", "r"))
    scene.wait(("Finished", "r"))
    assert [type(event) for event in scene.of("r")] == [Finished]
    scene.others_go_on()


def test_a_packed_write_into_pages_that_are_not_expected_any_more(stage: Staged) -> None:
    """This side is written to, and scatters itself: once the lease is over, nothing more gets into its pages."""
    scene = stage.scene(strategy="packed")
    name = scene.victim.call("connect", scene.here.metadata(), {"direction": "write"}, during=scene)
    scene.here.expect("w", writers=1, lease=1.0)
    scene.victim.call("write", name, scene.turned(48), "w", {"strategy": "packed"}, during=scene)
    ends = time.monotonic() + 30
    while scene.changed() == 0:
        assert time.monotonic() < ends
        scene.poll()
    scene.stop()
    scene.wait(("LeaseEnded", "w"))
    assert 0 < scene.changed() < 2 * 48
    with scene.still(48):
        scene.others_go_on()
        scene.go_on()
        scene.await_theirs(("Failed", "w"))
        # The same once more, from the beginning: it is refused.
        scene.victim.call("write", name, scene.turned(48), "w", {"strategy": "packed"}, during=scene)
        scene.await_theirs(("Failed", "w"))
    scene.untouched(48)
    scene.here.expect("again", writers=1)
    scene.victim.call("write", name, scene.turned(48), "again", {"strategy": "packed"}, during=scene)
    scene.wait(("Arrived", "again"))
    scene.check_read(48, scene.victim.call("pages", during=scene))
