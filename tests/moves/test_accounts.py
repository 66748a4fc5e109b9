"""What is counted of a peer's requests, over agents that copy memory themselves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("nixl")

from tests.fabric import Fabric
from tests.pairs import Pair, pages


def test_slow_transfers_are_counted_by_direction(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mebibyte in a second, which is no way for device memory to go."""
    pair = Pair()
    pair.peer.memory = frozenset({"VRAM"})
    measured = SimpleNamespace(descCount=1, totalBytes=1 << 20, postDuration=0, xferDuration=1_000_000)
    monkeypatch.setattr(fabric.agents["here"], "get_xfer_telemetry", lambda handle: measured)
    pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
    pair.until("Finished")
    assert pair.peer.slow == {"read": 1}
    pair.here.write(pair.peer, pages(1), id="w", strategy="direct")
    pair.until("Finished")
    assert pair.peer.slow == {"read": 1, "write": 1}
    pair.close()


def test_failures_add_up(fabric: Fabric) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    for count in (1, 2):
        pair.here.read(pair.peer, pages(1), id="r", strategy="direct")
        assert pair.here.cancel("r")
        assert pair.peer.metrics.failures == count
        fabric.held = lambda handle: False
        pair.until("Failed", "Freed")
        fabric.held = lambda handle: True
    assert (pair.peer.metrics.requests, pair.peer.metrics.refusals) == ({}, 0)
    pair.close()
