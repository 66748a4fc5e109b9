"""`close()` in the middle: of this side, with everything under way, and of the peer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.connector_rank import publish
from tests.faults.harness import Staged, Strategy, staging

pytest.importorskip("nixl")

from kvreshard.nixl import Closed, Connector, Failed, Finished, Freed, PeerDown, PeerLost

CASES = [("read", "direct"), ("write", "direct"), ("read", "landed"), ("read", "packed"), ("write", "packed")]


@pytest.mark.parametrize(("direction", "strategy"), CASES)
def test_of_this_side(stage: Staged, direction: str, strategy: Strategy) -> None:
    """What did not end in time is named, has failed, and is freed by the end of the agent. The peer goes on."""
    big = strategy == "direct"
    scene = stage.scene(strategy=strategy, tcp=True, pages=1024 if big else 64)
    count = scene.spec.pages - 4
    peer = scene.connect(direction="read" if direction == "read" else "write")
    call = scene.here.read if direction == "read" else scene.here.write
    call(peer, scene.request(count), id="r", strategy=strategy)
    scene.poll()
    with scene.fault():
        assert scene.here.close(timeout=0.0) == ("r",)
    scene.settle()
    assert [type(event) for event in scene.of("r")] == [Failed, Freed]
    assert scene.failed("r").pages == "held"
    assert list(scene.here.in_flight) == []
    with pytest.raises(Closed):
        call(peer, scene.request(8), id="s")
    with scene.still(count):
        scene.victim.call("pages", during=scene)
        scene.victim.call("sleep", 0.3)
    scene.untouched(count)
    if direction == "read":
        assert scene.changed() < 2 * count
    # Under another name, in the same process.
    options: dict[str, Any] = {} if big else staging(scene.spec)
    with Connector(f"{scene.spec.name}-again", **options) as again:
        publish(again, scene.spec, scene.mine)
        scene.here = again
        scene.others_go_on()
        scene.next_is_right(
            scene.connect(direction="read" if direction == "read" else "write"), strategy, direction=direction
        )


def test_of_this_side_with_nothing_moving(stage: Staged) -> None:
    """What had ended is finished, though nobody has polled since. A fenced read without its answer is named."""
    scene = stage.scene()
    peer = scene.connect()
    # Once it has been in contact, NIXL copies inside the call.
    scene.next_is_right(peer)
    scene.here.read(peer, scene.request(8), id="done")
    scene.here.read(peer, scene.request(8, first=8), id="not confirmed", fence=True)
    with scene.fault():
        assert scene.here.close() == ("not confirmed",)
    scene.settle()
    assert [type(event) for event in scene.of("done")] == [Finished]
    assert [type(event) for event in scene.of("not confirmed")] == [Failed]
    assert scene.failed("not confirmed").pages == "free"
    scene.check_read(8, scene.theirs())


@pytest.mark.parametrize(("direction", "strategy"), CASES)
def test_of_the_peer(stage: Staged, direction: str, strategy: Strategy) -> None:
    """It shuts down in good order while its pages are in use, which for this side is a lost peer."""
    big = strategy == "direct"
    scene = stage.scene(strategy=strategy, tcp=True, pages=1024 if big else 64)
    count = scene.spec.pages - 4
    peer = scene.connect(direction="read" if direction == "read" else "write")
    call = scene.here.read if direction == "read" else scene.here.write
    call(peer, scene.request(count), id="r", strategy=strategy)
    scene.poll()
    with scene.fault():
        scene.victim.call("close")
    scene.wait(("Failed", "r"), ("PeerDown", "victim"))
    assert isinstance(scene.failed("r").reason, PeerLost)
    if scene.failed("r").pages == "held":
        scene.wait(("Freed", "r"))
    assert [event.requests for event in scene.events if isinstance(event, PeerDown)] == [("r",)]
    assert list(scene.here.in_flight) == []
    with scene.still(count):
        scene.others_go_on()
    scene.victim.kill()
    scene.recover(strategy, direction=direction)
