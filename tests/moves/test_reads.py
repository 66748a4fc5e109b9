"""Connectors of one process over agents that copy memory themselves: each step is the test's to let happen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import publish, request

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Arrived,
    Cancelled,
    Connector,
    Event,
    Failed,
    Finished,
    Freed,
    NotConnected,
    PeerBusy,
    PeerDown,
    PeerLost,
    Released,
)
from kvreshard.nixl.control import Flow
from kvreshard.nixl.strategy import Wanted
from tests.fabric import Fabric
from tests.pairs import HERE, PAGE, STAGING, THERE, Kernels, Pair, Patience, pages, tokens
from tests.told import told

STRATEGIES: list[Wanted] = ["direct", "landed", "packed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("flow", ["push", "pull"])
def test_a_read_brings_the_pages_and_nothing_else(fabric: Fabric, strategy: Wanted, flow: Flow) -> None:
    pair = Pair(flow=flow)
    pair.there.expect("r", readers=1)
    pair.here.read(pair.peer, request((0, 85), [1, 2, 3, 4, 5, 6], [9, 4, 5, 6, 7, 8]), id="r", strategy=strategy)
    here, there = pair.until("Finished")
    there += pair.turns(2)[1]
    (finished,) = here
    assert isinstance(finished, Finished)
    assert (finished.id, finished.direction, finished.strategies) == ("r", "read", (strategy,))
    assert there == [Released("r", ("here",))]
    for layer in range(HERE.layers):
        wanted = tokens(pair.before[layer], HERE).copy()
        wanted[1:7] = tokens(pair.theirs[layer], THERE)[[9, 4, 5, 6, 7, 8]]
        wanted[6, 5:] = 0
        np.testing.assert_array_equal(tokens(pair.mine[layer], HERE), wanted)
        np.testing.assert_array_equal(pair.theirs[layer], pair.before[HERE.layers + layer])
    pair.close()


@pytest.mark.parametrize(("strategy", "flow"), [("direct", "push"), ("packed", "push"), ("packed", "pull")])
def test_a_write_brings_the_pages_and_clears_what_nothing_covers(fabric: Fabric, strategy: Wanted, flow: Flow) -> None:
    pair = Pair(replace(THERE, name="here"), replace(HERE, name="there"), flow=flow)
    pair.there.expect("w", writers=1)
    pair.here.write(pair.peer, request((0, 85), [9, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6]), id="w", strategy=strategy)
    here, there = pair.until("Finished")
    there += pair.turns(2)[1]
    (finished,) = here
    assert isinstance(finished, Finished)
    assert (finished.id, finished.direction, finished.strategies) == ("w", "write", (strategy,))
    assert there == [Arrived("w", ("here",))]
    for layer in range(HERE.layers):
        wanted = tokens(pair.before[HERE.layers + layer], HERE).copy()
        wanted[1:7] = tokens(pair.mine[layer], THERE)[[9, 4, 5, 6, 7, 8]]
        wanted[6, 5:] = 0
        np.testing.assert_array_equal(tokens(pair.theirs[layer], HERE), wanted)
        np.testing.assert_array_equal(pair.mine[layer], pair.before[layer])
    pair.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_request_took_is_what_was_predicted(fabric: Fabric, strategy: Wanted) -> None:
    """Each account of a request agrees with the transfers that were made, and with the model."""
    pair = Pair()
    pair.here.read(pair.peer, pages(9), id="r", strategy=strategy, notify=b"read it")
    ((finished,), _) = pair.until("Finished")
    assert isinstance(finished, Finished)
    (share,) = finished.shares
    posted = sum(len(handle.ours) for handle in fabric.made)
    moved = sum(int(handle.ours[:, 1].sum()) for handle in fabric.made)
    assert (share.peer, share.strategy, share.posted, share.bytes) == ("there", strategy, posted, moved)
    assert moved == 2 * 9 * PAGE
    assert share.predicted is not None
    assert (share.predicted.posted, share.predicted.bytes) == (posted, moved)
    assert share.seconds > 0
    assert [one.prepared for one in finished.transfers] == [strategy == "direct"]
    # The peer is told once, by the transfer itself or when all of it is here.
    notices = [message for _, _, message in fabric.told if message == b"read it"]
    assert len(notices) == 1
    metrics = pair.peer.metrics
    assert (metrics.requests, metrics.posted, metrics.bytes) == ({strategy: 1}, posted, moved)
    assert (metrics.seconds, metrics.seconds_predicted) == (share.seconds, share.seconds)
    assert metrics.predicted_seconds == share.predicted.seconds
    assert (metrics.refusals, metrics.failures) == (0, 0)
    pair.close()


def test_a_landed_request_is_over_when_its_scatters_are(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, kernels = Pair(), Kernels(monkeypatch)
    pair.here.read(pair.peer, pages(10), id="r", strategy="landed")
    assert pair.turns(10) == ([], [])
    # Every slot but one is its, each at a kernel; two pages a chunk.
    assert len(fabric.made) == len(kernels.begun) == 3
    assert {gather for _, gather in kernels.begun} == {False}
    assert len({slot for slot, _ in kernels.begun}) == 3
    kernels.over = True
    ((finished,), _) = pair.until("Finished")
    assert isinstance(finished, Finished)
    assert len(fabric.made) == 10
    for layer in range(HERE.layers):
        np.testing.assert_array_equal(tokens(pair.mine[layer], HERE)[:10], tokens(pair.theirs[layer], THERE)[0:20:2])
    assert pair.here._landing.free == 4
    pair.close()


def test_a_landed_request_that_was_given_up_holds_its_pages_while_scatters_run(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, kernels = Pair(), Kernels(monkeypatch)
    fabric.held = lambda handle: handle is not fabric.made[0]
    pair.here.read(pair.peer, pages(10), id="r", strategy="landed")
    assert pair.turns(5) == ([], [])
    assert (len(fabric.made), len(kernels.begun)) == (3, 1)
    assert pair.here.cancel("r")
    (failed,) = pair.here.poll()
    assert isinstance(failed, Failed)
    assert (type(failed.reason), failed.pages, failed.peers) == (Cancelled, "held", ("there",))
    assert told(failed.reason) == ("request r was cancelled", {"request": "r"})
    assert pair.turns(3) == ([], [])
    assert list(pair.here.in_flight) == ["r"]
    kernels.over = True
    assert pair.turns(1)[0] == [Freed("r", "read")]
    assert list(pair.here.in_flight) == []
    # Two reads are still coming, into slots that are nobody else's until then; the peer stays.
    assert pair.here._landing.free == 2
    with pytest.raises(PeerBusy) as caught:
        pair.here.disconnect(pair.peer)
    assert told(caught.value) == (
        "transfers with peer there are in flight: reads of requests that are over",
        {"peer": "there", "found": [], "remedy": "poll until they are over; only close() ends them by force"},
    )
    fabric.held = lambda handle: False
    assert pair.turns(1) == ([], [])
    assert pair.here._landing.free == 4
    pair.here.disconnect(pair.peer)
    pair.close()


def test_closing_waits_for_scatters_and_leaves_reads(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, kernels = Pair(), Kernels(monkeypatch)
    fabric.held = lambda handle: handle is not fabric.made[0]
    pair.here.read(pair.peer, pages(10), id="r", strategy="landed")
    pair.turns(5)
    fabric.ending = True
    assert pair.here.close(timeout=0) == ("r",)
    assert kernels.waited == 1
    failed, freed = pair.here.poll()
    assert isinstance(failed, Failed)
    assert (failed.pages, failed.peers) == ("held", ("there",))
    assert told(failed.reason)[0] == "request r: the connector closed before it ended"
    assert freed == Freed("r", "read")
    pair.close()


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_packed_chunks_take_turns_with_slow_kernels(
    fabric: Fabric, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, kernels = Pair(flow=flow), Kernels(monkeypatch)
    pair.here.read(pair.peer, pages(20), id="r", strategy="packed")
    seen = pair.turns(20)
    assert seen == ([], [])
    # The peer gathers into slots of its own, and nothing moves before that is over: writes are made, and not posted.
    assert {gather for _, gather in kernels.begun} == {True}
    assert len({slot for slot, _ in kernels.begun}) == len(kernels.begun)
    assert [handle.state for handle in fabric.made] == ["made"] * (len(kernels.begun) if flow == "push" else 0)
    kernels.over = True
    ((finished,), _) = pair.until("Finished")
    assert isinstance(finished, Finished)
    assert len(fabric.made) == 20
    assert all(handle.operation == ("WRITE" if flow == "push" else "READ") for handle in fabric.made)
    for layer in range(HERE.layers):
        np.testing.assert_array_equal(tokens(pair.mine[layer], HERE)[:20], tokens(pair.theirs[layer], THERE)[0:40:2])
    pair.close()


def test_a_packed_request_that_was_given_up_holds_its_pages_while_a_scatter_runs(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    pair.here.read(pair.peer, pages(2), id="first", strategy="packed")
    pair.until("Finished")
    kernels = Kernels(monkeypatch)
    kernels.over = True
    pair.here.read(pair.peer, pages(20), id="r", strategy="packed")
    patience = Patience()
    while not any(not gather for _, gather in kernels.begun):
        assert patience.lasts
        pair.there.poll()
        kernels.over = False
        pair.here.poll()
        kernels.over = True
    kernels.over = False
    assert pair.here.cancel("r")
    (failed,) = pair.here.poll()
    assert isinstance(failed, Failed)
    assert (type(failed.reason), failed.pages) == (Cancelled, "held")
    assert pair.here.poll() == []
    kernels.over = True
    assert pair.until("Freed")[0] == [Freed("r", "read")]
    pair.turns(20)
    # Slots on both sides are free for the next.
    pair.here.read(pair.peer, pages(20), id="next", strategy="packed")
    assert [type(event) for event in pair.until("Finished")[0]] == [Finished]
    for layer in range(HERE.layers):
        np.testing.assert_array_equal(tokens(pair.mine[layer], HERE)[:20], tokens(pair.theirs[layer], THERE)[0:40:2])
    pair.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_peer_that_ends_in_the_middle_is_lost_and_the_pages_are_free(fabric: Fabric, strategy: Wanted) -> None:
    pair = Pair()
    fabric.held = lambda handle: True
    pair.here.read(pair.peer, pages(20), id="r", strategy=strategy)
    assert pair.turns(5) == ([], [])
    fabric.agents["there"].end()
    seen: list[Event] = []
    patience = Patience()
    while len(seen) < 2:
        assert patience.lasts
        seen += pair.here.poll()
    failed = next(event for event in seen if isinstance(event, Failed))
    down = next(event for event in seen if isinstance(event, PeerDown))
    assert (type(failed.reason), failed.pages, failed.peers) == (PeerLost, "free", ("there",))
    facts = told(failed.reason)[1]
    assert (facts["peer"], facts["request"]) == ("there", "r")
    assert (down.peer, type(down.reason)) == ("there", PeerLost)
    assert list(pair.here.in_flight) == []
    assert pair.peer.metrics.failures == 1
    assert not pair.peer.connected
    with pytest.raises(NotConnected) as caught:
        pair.here.read(pair.peer, pages(1), id="s")
    assert told(caught.value) == (
        "peer there was lost",
        {"peer": "there", "request": "s", "remedy": "connect() with the peer's current metadata"},
    )
    assert pair.here.poll() == []
    fabric.agents["here"].peers.discard("there")
    pair.here.close(timeout=0)


def test_each_source_of_a_request_is_read_and_told(fabric: Fabric) -> None:
    """Two halves of the tokens from two ranks; it is over when both are."""
    pair = Pair()
    other = Connector("other", **STAGING)
    arrays = THERE.arrays(3)
    publish(other, replace(THERE, name="other"), arrays)
    second = pair.here.connect(other.metadata(), senders=2)
    fabric.held = lambda handle: handle.peer == "other"
    parts = [
        (pair.peer, kvr.Request((0, 64), [kvr.Blocks([0, 1, 2, 3])], [kvr.Blocks([4, 5, 6, 7])])),
        (second, kvr.Request((64, 128), [kvr.Blocks([8, 9, 10, 11], 64)], [kvr.Blocks([4, 5, 6, 7], 64)])),
    ]
    pair.here.read_all(parts, id="r", strategy="direct", zero=False)
    pair.there.expect("r", readers=1)
    other.expect("r", readers=2)
    assert pair.turns(3) == ([], [Released("r", ("here",))])
    fabric.held = lambda handle: False
    ((finished,), _) = pair.until("Finished")
    assert isinstance(finished, Finished)
    assert [share.peer for share in finished.shares] == ["there", "other"]
    assert other.poll() == []
    for layer in range(HERE.layers):
        mine = tokens(pair.mine[layer], HERE)
        np.testing.assert_array_equal(mine[:4], tokens(pair.theirs[layer], THERE)[4:8])
        np.testing.assert_array_equal(mine[8:12], tokens(arrays[layer], THERE)[4:8])
    pair.close()
    other.close(timeout=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_request_of_some_layers_moves_those(fabric: Fabric, strategy: Wanted) -> None:
    pair = Pair()
    pair.here.read(pair.peer, pages(5), id="r", strategy=strategy, layers=["layers.1"])
    pair.until("Finished")
    np.testing.assert_array_equal(pair.mine[0], pair.before[0])
    np.testing.assert_array_equal(tokens(pair.mine[1], HERE)[:5], tokens(pair.theirs[1], THERE)[0:10:2])
    pair.close()
