"""A notice is lost, or comes twice: what counts readers, what asks, and the packed protocol that runs on them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from tests.faults.harness import Scene, Staged, Strategy

pytest.importorskip("nixl")

from kvreshard.nixl import Finished, LeaseEnded, Released


def twice(scene: Scene, times: int) -> None:
    """From here on every notice comes `times` times; 0: never."""
    taken = scene.here._agent.notices

    def notices() -> Mapping[str, Sequence[bytes]]:
        return {sender: list(messages) * times for sender, messages in taken().items()}

    scene.here._agent.notices = notices  # type: ignore[method-assign]


def bad_network(scene: Scene, seed: int) -> dict[str, int]:
    """From here on a third of what is said and heard is lost and a third is doubled; how often each was the case."""
    chance, count = random.Random(seed), {"lost": 0, "doubled": 0}
    taken, notify = scene.here._agent.notices, scene.here._agent.notify

    def copies() -> int:
        number = chance.choice([0, 1, 2])
        count["lost"] += number == 0
        count["doubled"] += number == 2
        return number

    def notices() -> Mapping[str, Sequence[bytes]]:
        return {name: [one for one in said for _ in range(copies())] for name, said in taken().items()}

    def say(peer: str, message: bytes) -> None:
        for _ in range(copies()):
            notify(peer, message)

    scene.here._agent.notices = notices  # type: ignore[method-assign]
    scene.here._agent.notify = say  # type: ignore[method-assign]
    return count


def test_a_lost_notice_of_the_end(stage: Staged) -> None:
    """This side is read from. The reader has finished; here its pages stay promised until the lease is over."""
    scene = stage.scene()
    name = scene.victim.call("connect", scene.here.metadata(), {}, during=scene)
    for id in ("r", "again"):
        scene.here.expect(id, readers=1, lease=1.0)
    twice(scene, 0)
    with scene.fault():
        scene.victim.call("read", name, scene.turned(20), "r", during=scene)
    scene.await_theirs(("Finished", "r"))
    scene.others_go_on()
    del scene.here._agent.notices
    scene.wait(("LeaseEnded", "r"))
    (ended,) = [event for event in scene.of("r") if isinstance(event, LeaseEnded)]
    assert (ended.heard, ended.needed) == ((), 1)
    scene.here.expect("next", readers=1)
    scene.victim.call("read", name, scene.turned(20), "next", during=scene)
    scene.wait(("Released", "next"))
    scene.check_written(20, scene.victim.call("pages", during=scene))


def test_a_doubled_notice_of_the_end(stage: Staged) -> None:
    """It counts one reader, not two, and none of a later request under the same id."""
    scene = stage.scene()
    metadata = scene.here.metadata()
    name = scene.victim.call("connect", metadata, {"senders": 2}, during=scene)
    scene.bystander.call("connect", metadata, {"senders": 2}, during=scene)
    twice(scene, 2)
    scene.here.expect("r", readers=2)
    scene.victim.call("read", name, scene.turned(20), "r", during=scene)
    scene.await_theirs(("Finished", "r"))
    scene.settle()
    assert scene.of("r") == []
    scene.others_go_on()
    scene.bystander.call("notify", name, "r", during=scene)
    scene.wait(("Released", "r"))
    (released,) = scene.of("r")
    assert isinstance(released, Released)
    assert set(released.readers) == {"victim", "bystander"}
    scene.events.clear()
    scene.here.expect("r", readers=2)
    scene.settle()
    assert scene.events == []
    assert scene.here.forget("r")


@pytest.mark.parametrize(("strategy", "flow"), [("direct", "push"), ("packed", "push"), ("packed", "pull")])
def test_a_network_that_loses_and_doubles(stage: Staged, strategy: Strategy, flow: str) -> None:
    """What matters is asked for again: each fenced read is finished once, here and there, with the right bytes."""
    scene = stage.scene(strategy=strategy, flow=flow)
    peer = scene.connect()
    theirs = scene.victim.call("pages", during=scene)
    count = bad_network(scene, seed=7)
    for turn in range(3):
        id = f"r{turn}"
        scene.victim.call("expect", id, {"readers": 1}, during=scene)
        with scene.fault():
            scene.here.read(peer, scene.request(20), id=id, strategy=strategy, fence=strategy == "direct")
        scene.wait(("Finished", id))
        scene.check_read(20, theirs)
        for array in scene.mine:
            array[:20] = 0
    assert [type(event) for event in scene.events] == [Finished] * 3
    assert min(count.values()) > 0, count
    if strategy == "direct":
        scene.await_theirs(*(("Released", f"r{turn}") for turn in range(3)))
    del scene.here._agent.notices, scene.here._agent.notify
    scene.settle(1.0)
    if strategy == "packed":
        ring = scene.here._packing._running[0].receiver  # type: ignore[index]
        assert (ring.free, ring.quarantined) == (4, 0)
    scene.others_go_on()
    scene.next_is_right(peer, strategy)
