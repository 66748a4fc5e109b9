"""No memory for staging: not enough of it in the machine, none that NIXL takes, or none free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.connector_rank import Spec, publish, running
from tests.faults.harness import Staged, staging

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, DeadlinePassed, PeerLost, RegistrationError
from kvreshard.nixl.agent import Agent

PETABYTE = 1 << 50


@pytest.mark.parametrize("size", [PETABYTE, 1 << 63])
def test_more_than_the_machine_has(stage: Staged, size: int) -> None:
    """`publish` refuses in words; nothing is registered beside the pages, and without staging they can be published."""
    spec = Spec("here", engine="decode")
    with Connector("here", staging=size) as greedy:
        with pytest.raises(RegistrationError, match="no memory for staging") as raised:
            publish(greedy, spec, spec.arrays(1))
        assert raised.value.field == "staging"
        assert "directly" in (raised.value.remedy or "")
        assert len(greedy.regions) == spec.layers
    scene = stage.scene()
    scene.next_is_right(scene.connect())


def test_that_nixl_does_not_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three areas is refused: the first is given back, and the next try begins anew."""
    spec = Spec("here", engine="decode")
    register = Agent.register
    refused: list[int] = []

    def refuse(agent: Agent, base: int, size: int, device: int, memory: str) -> Any:
        if len(greedy.regions) == spec.layers + 1 and not refused:
            refused.append(size)
            raise RegistrationError("pinned memory is used up")
        return register(agent, base, size, device, memory)

    with Connector("here", **staging(spec)) as greedy:
        monkeypatch.setattr(Agent, "register", refuse)
        with pytest.raises(RegistrationError, match="pinned"):
            publish(greedy, spec, spec.arrays(1))
        assert refused
        assert len(greedy.regions) == spec.layers
        greedy.publish(engine="decode")
        assert len(greedy.regions) == spec.layers + 3


def test_that_is_free(stage: Staged) -> None:
    """Every slot is with a peer that hangs: packed waits to its deadline, what needs no slot goes on; then all do."""
    scene = stage.scene(strategy="packed", tcp=True, slots=3)
    peer = scene.connect()
    scene.next_is_right(peer, "packed")
    other = scene.connect(scene.bystander)
    scene.stop()
    scene.here.read(peer, scene.request(40), id="stuck", strategy="landed", deadline=60.0)
    scene.settle()
    # The one landing slot is the victim's: the bystander's pages could only go the same way.
    scene.here.read(other, scene.request(4, first=0), id="waits", strategy="landed", deadline=0.5)
    scene.wait(("Failed", "waits"))
    assert isinstance(scene.failed("waits").reason, DeadlinePassed)
    assert scene.failed("waits").pages == "free"
    scene.others_go_on()
    scene.go_on()
    scene.wait(("Finished", "stuck"))
    scene.here.read(other, scene.request(4, first=0), id="now", strategy="landed")
    scene.wait(("Finished", "now"))


def test_for_one_more_peer(stage: Staged) -> None:
    """The receiver's only slot is another writer's. It says so, when this side takes the session for begun already."""
    scene = stage.scene(strategy="packed", victim_options=staging(Spec(""), 3))
    peer = scene.connect(direction="write")
    with running(replace(scene.victim.spec, name="other", options=staging(Spec("")))) as (other,):
        data = scene.victim.call("metadata", during=scene)
        other.call("connect", data, {"direction": "write"}, during=scene)
        other.call("write", "victim", scene.plain(8), "first", {"strategy": "packed"}, during=scene)
        while ("Finished", "first") not in other.call("events", during=scene):
            scene.poll()
        with scene.fault():
            scene.here.write(peer, scene.request(8), id="w", strategy="packed", deadline=60.0)
        scene.wait(("Failed", "w"))
        failed = scene.failed("w")
        assert not isinstance(failed.reason, (DeadlinePassed, PeerLost))
        assert "admitted" in str(failed.reason)
        assert (failed.pages, peer.connected) == ("free", True)
        scene.others_go_on()
        # By choice another way is taken for a while.
        scene.here.write(peer, scene.request(1), id="auto")
        scene.wait(("Finished", "auto"))
