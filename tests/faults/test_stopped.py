"""A peer is stopped (SIGSTOP: swapped out, in a debugger, on a frozen machine) and goes on, in time or too late."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.harness import Scene, Staged, Strategy

pytest.importorskip("nixl")

from kvreshard.nixl import DeadlinePassed, Failed, Finished, Freed, LeaseEnded, TransferError
from kvreshard.nixl.peer import Peer

CASES = [
    ("read", "direct", "held"),
    ("write", "direct", "held"),
    ("read", "landed", "free"),
    ("read", "packed", "free"),
    ("write", "packed", "free"),
]
"""Direction, strategy, and what its pages are when the deadline has passed."""


def issue(scene: Scene, peer: Peer, direction: str, strategy: Strategy, **options: Any) -> None:
    """Request `r`, of 40 pages."""
    call = scene.here.read if direction == "read" else scene.here.write
    call(peer, scene.request(40), id="r", strategy=strategy, **options)


def met(stage: Staged, direction: str, strategy: Strategy) -> tuple[Scene, Peer]:
    """A victim that a transfer was made with, over TCP, so that its process is needed."""
    scene = stage.scene(tcp=True, strategy=strategy)
    peer = scene.connect(direction="read" if direction == "read" else "write")
    scene.next_is_right(peer, strategy, direction=direction)
    scene.events.clear()
    scene.before = [array.copy() for array in scene.mine]
    return scene, peer


@pytest.mark.parametrize(("direction", "strategy", "pages"), CASES)
def test_that_goes_on_in_time(stage: Staged, direction: str, strategy: Strategy, pages: str) -> None:
    """Nothing is seen of it but that it took longer."""
    scene, peer = met(stage, direction, strategy)
    theirs = scene.victim.call("pages", during=scene)
    scene.stop()
    issue(scene, peer, direction, strategy)
    scene.settle(0.5)
    assert (scene.events, scene.here.in_flight) == ([], ("r",))
    scene.others_go_on()
    scene.go_on()
    scene.wait(("Finished", "r"))
    assert [type(event) for event in scene.of("r")] == [Finished]
    if direction == "read":
        scene.check_read(40, theirs)
        scene.untouched(40)
    else:
        scene.check_written(40, scene.victim.call("pages", during=scene))


@pytest.mark.parametrize(("direction", "strategy", "pages"), CASES)
def test_past_the_deadline(stage: Staged, direction: str, strategy: Strategy, pages: str) -> None:
    """Held pages are free when the transfer has ended after all; free pages are never written again."""
    scene, peer = met(stage, direction, strategy)
    scene.stop()
    issue(scene, peer, direction, strategy, deadline=0.5)
    scene.wait(("Failed", "r"))
    failed = scene.failed("r")
    assert isinstance(failed.reason, DeadlinePassed)
    assert (failed.pages, failed.peers) == (pages, ("victim",))
    held = ("r",) if pages == "held" else ()
    assert scene.here.in_flight == held
    scene.others_go_on()
    assert scene.here.in_flight == held
    if held:
        with pytest.raises(TransferError, match="in flight"):
            issue(scene, peer, direction, strategy)
        scene.go_on()
        scene.wait(("Freed", "r"))
    with scene.still(40):
        scene.go_on()
        scene.settle()
    assert [type(event) for event in scene.of("r")] == [Failed, Freed][: 1 + len(held)]
    if direction == "write":
        assert scene.changed() == 2 * 4, "only what the bystander's request brought"
    scene.untouched(40)
    assert peer.connected
    assert scene.here._landing.free == (4 if strategy != "direct" else 0)
    scene.next_is_right(peer, strategy, direction=direction)


def test_a_reader_that_is_stopped_does_not_pin_the_pages(stage: Staged) -> None:
    """This side is read from. The lease ends, and the reader, when it goes on, is told so and not fooled."""
    scene = stage.scene(tcp=True, pages=1024)
    name = scene.victim.call("connect", scene.here.metadata(), {}, during=scene)
    scene.victim.call("lease", 0.5)
    scene.here.expect("r", readers=1, lease=1.0)
    scene.victim.call("read", name, scene.turned(1000), "r", {"fence": True, "deadline": 60.0}, during=scene)
    scene.stop()
    scene.wait(("LeaseEnded", "r"))
    (ended,) = [event for event in scene.events if isinstance(event, LeaseEnded)]
    assert (ended.heard, ended.needed) == ((), 1)
    scene.others_go_on()
    # The pages are someone else's from now on.
    for array in scene.mine:
        array[:1000] = 7
    scene.go_on()
    scene.await_theirs(("Failed", "r"))
    scene.here.expect("again", readers=1)
    scene.victim.call("read", name, scene.turned(1000), "again", {"fence": True}, during=scene)
    scene.await_theirs(("Finished", "again"))
    scene.wait(("Released", "again"))
    for array in scene.victim.call("pages", during=scene):
        assert (array[:1000] == 7).all()
