"""What waits for a stream of a device, with a fence of the test's own: on the host there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvreshard.nixl.staging import Fence
from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, Failed, PeerLost


@dataclass
class Later:
    """A fence that is over when the test says so."""

    over: bool = False

    def wait(self) -> None:
        self.over = True


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    fence = Later()
    monkeypatch.setattr(Fence, "now", classmethod(lambda cls, devices: fence))
    return fence


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here", staging=1 << 20) as connector:
        yield connector


@pytest.mark.parametrize("strategy", ["direct", "landed"])
def test_nothing_moves_before_the_stream_is_done(here: Connector, later: Later, strategy: Any) -> None:
    spec = Spec("here", engine="decode")
    mine = spec.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 32), [7, 2], [0, 15]), id="r", strategy=strategy, notify=False)
        for _ in range(50):
            assert here.poll() == []
        assert here.in_flight == ("r",)
        for now, was in zip(mine, before, strict=True):
            np.testing.assert_array_equal(now, was)
        later.over = True
        wait(here, "Finished")
        for now, source in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(now[[7, 2]], source[[0, 15]])


def test_a_host_that_knows_better_does_not_wait(here: Connector, later: Later) -> None:
    spec = Spec("here", engine="decode")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 32), [7, 2], [0, 15]), id="r", wait=False)
        wait(here, "Finished")
        assert not later.over


@pytest.mark.parametrize("ends", ["deadline", "cancel"])
def test_a_request_that_was_never_begun_leaves_its_pages_free(here: Connector, later: Later, ends: str) -> None:
    spec = Spec("here", engine="decode")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        deadline = 0.05 if ends == "deadline" else 30.0
        here.read(peer, request((0, 32), [7, 2], [0, 15]), id="r", deadline=deadline)
        if ends == "cancel":
            assert here.cancel("r")
        (failed,) = wait(here, "Failed")
        assert isinstance(failed, Failed)
        assert failed.pages == "free"
        if ends == "deadline":
            assert "was not begun in time" in str(failed.reason)
        assert here.in_flight == ()


def test_a_peer_that_is_lost_before_the_begin_fails_the_request(here: Connector, later: Later) -> None:
    spec = Spec("here", engine="decode")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        here.read(peer, request((0, 16), [1], [1]), id="before", wait=False, notify=False)
        wait(here, "Finished")
        here.read(peer, request((0, 32), [7, 2], [0, 15]), id="r")
        there.kill()
        here._flights.lose(peer, PeerLost("gone", peer=peer.name))
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert isinstance(failed.reason, PeerLost)
        assert failed.pages == "free"
        assert here.in_flight == ()
