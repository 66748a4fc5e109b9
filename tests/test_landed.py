"""Landed reads: slots are bounded and shared, what fails ends well, and whatever may still be written is kept."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("msgspec")

from kvreshard.nixl import (
    Cancelled,
    Connector,
    DeadlinePassed,
    Failed,
    Finished,
    PeerBusy,
    PeerLost,
    TransferError,
    Unsupported,
)
from kvreshard.nixl.strategy import Wanted
from tests.scripted import BROKEN, LOST, Scripted, metadata

SPEC = Spec("here", engine="decode", pages=64, layers=2, notation="n h k[d] v[d]")
THEIRS = Spec("there", pages=64, layers=2)
SLOT = THEIRS.format.page_bytes * 2
SLOTS = 4
STAGING = 3 * SLOTS * SLOT
"""A third of it is for landing."""


def pages(count: int) -> kvr.Request:
    """The first `count` pages, each a chunk of half a slot a layer."""
    return request((0, 16 * count), list(range(count)), list(range(0, 2 * count, 2)))


@pytest.fixture
def agent() -> Scripted:
    return Scripted()


@pytest.fixture
def here(agent: Scripted) -> Iterator[Connector]:
    connector = Connector(agent=agent, staging=STAGING, slot_bytes=SLOT)
    publish(connector, SPEC, SPEC.arrays(1))
    yield connector
    for peer in ("a", "b", "c"):
        agent.state[peer] = LOST
    connector.close(timeout=1)
    assert (agent.registered, agent.prepared, agent.alive, agent.peers) == (0, 0, [], set())


def posts(agent: Scripted) -> list[str]:
    """Peers of the reads posted since the last look."""
    seen, agent.posted = agent.posted, []
    return seen


def test_a_request_has_all_slots_but_one_and_goes_on_as_they_come_back(here: Connector, agent: Scripted) -> None:
    peer = here.connect(metadata("a", spec=THEIRS))
    here.read(peer, pages(10), id="r", strategy="landed")
    for _ in range(10):
        assert here.poll() == []
    assert posts(agent) == ["a"] * (SLOTS - 1)
    agent.state["a"] = "DONE"
    (finished,) = wait(here, "Finished")
    assert isinstance(finished, Finished)
    assert finished.strategies == ("landed",)
    assert len(posts(agent)) + SLOTS - 1 == 10
    assert finished.posted == 3 * 10, "the scripted telemetry counts three a read"
    (share,) = finished.shares
    assert share.predicted is not None
    assert share.predicted.posted == 20
    assert peer.metrics.requests == {"landed": 1}
    assert [message.startswith(b"kvreshard") for _, message in agent.told] == [True]


def test_a_small_request_waits_for_one_slot_of_a_large_one_at_most(here: Connector, agent: Scripted) -> None:
    """The same peer, so that nothing but the number of slots that each has decides; one read ends at a time."""
    peer = here.connect(metadata("a", spec=THEIRS))
    here.read(peer, pages(24), id="large", strategy="landed")
    for _ in range(8):
        here.poll()
    here.read(peer, pages(1), id="small", strategy="landed")
    agent.state["a"], agent.endings = "DONE", 1
    assert here.poll() == []
    # The slot that came back is the small one's.
    agent.endings = None
    assert [event.id for event in here.poll()] == ["small"]  # type: ignore[union-attr]
    wait(here, "Finished")


def test_a_peer_that_hangs_leaves_slots_for_the_others(here: Connector, agent: Scripted) -> None:
    stuck, fine = here.connect(metadata("a", spec=THEIRS)), here.connect(metadata("b", spec=THEIRS))
    here.read(stuck, pages(24), id="stuck", strategy="landed", deadline=0.05)
    failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
    assert isinstance(failed.reason, DeadlinePassed)
    # Its pages are free: what still lands, lands in slots. Those stay with it, and so does the peer.
    assert (failed.pages, here.in_flight) == ("free", ())
    with pytest.raises(PeerBusy):
        here.disconnect(stuck)
    assert set(posts(agent)) == {"a"}
    agent.post["b"] = agent.state["b"] = "DONE"
    here.read(fine, pages(24), id="fine", strategy="landed")
    wait(here, "Finished")
    assert set(posts(agent)) == {"b"}
    agent.state["a"] = "DONE"
    here.poll()
    here.disconnect(stuck)


@pytest.mark.parametrize(("state", "kind"), [(BROKEN, TransferError), (LOST, PeerLost)])
def test_a_chunk_that_fails_fails_the_request(
    here: Connector, agent: Scripted, state: Exception, kind: type[Exception]
) -> None:
    peer = here.connect(metadata("a", spec=THEIRS))
    here.read(peer, pages(10), id="r", strategy="landed")
    here.poll()
    agent.state["a"] = state
    events = here.poll()
    failed = next(event for event in events if isinstance(event, Failed))
    assert type(failed.reason) is kind
    assert failed.pages == "free"
    assert here.in_flight == ()
    assert (peer.metrics.failures, peer.metrics.requests) == (1, {})


def test_cancel_frees_the_pages_of_a_landed_read_at_once_and_of_a_direct_one_when_it_ends(
    here: Connector, agent: Scripted
) -> None:
    peer = here.connect(metadata("a", spec=THEIRS))
    cases: list[tuple[Wanted, str]] = [("landed", "free"), ("direct", "held")]
    for strategy, state in cases:
        here.read(peer, pages(10), id=strategy, strategy=strategy)
        assert here.cancel(strategy)
        assert not here.cancel(strategy)
        (failed,) = here.poll()
        assert isinstance(failed, Failed)
        assert isinstance(failed.reason, Cancelled)
        assert failed.pages == state
    agent.state["a"] = "DONE"
    assert [type(event).__name__ for event in wait(here, "Freed")] == ["Freed"]
    assert not here.cancel("no such request")


def test_what_cannot_be_landed_is_refused_and_left_to_direct_by_auto(here: Connector, agent: Scripted) -> None:
    peer = here.connect(metadata("a", spec=THEIRS), direction=None)
    agent.post["a"] = "DONE"
    inside = request((3, 30), [0, 1], [0, 1])
    with pytest.raises(kvr.RequestError):
        here.read(peer, inside, id="r", strategy="landed")
    with pytest.raises(Unsupported):
        here.write(peer, pages(2), id="r", strategy="landed")
    with pytest.raises(Unsupported):
        here.read(peer, pages(2), id="r", strategy="packed")
    with pytest.raises(Unsupported):
        here.read(peer, pages(2), id="r", strategy="landing")  # type: ignore[arg-type]
    assert (posts(agent), here.in_flight, peer.metrics.refusals) == ([], (), 3)
    here.read(peer, inside, id="r")
    (finished,) = here.poll()
    assert isinstance(finished, Finished)
    assert finished.strategies == ("direct",)


def test_a_page_larger_than_a_slot_is_refused() -> None:
    small = Connector(agent=Scripted(), staging=4096, slot_bytes=1024)
    publish(small, SPEC, SPEC.arrays(1))
    peer = small.connect(metadata("a", spec=THEIRS))
    with pytest.raises(kvr.LimitExceeded):
        small.read(peer, pages(2), id="r", strategy="landed")
    with pytest.raises(kvr.LimitExceeded):
        Connector(agent=Scripted(), staging=100)


def test_auto_takes_what_the_model_says_is_cheapest(here: Connector, agent: Scripted) -> None:
    """Token-major pages from head-major ones: runs of 128 bytes, which landing saves; equal pages save nothing."""
    agent.post["a"] = agent.post["b"] = "DONE"
    other, same = here.connect(metadata("a", spec=THEIRS)), here.connect(metadata("b", spec=SPEC))
    for peer, expected in ((other, "landed"), (same, "direct")):
        here.read(peer, pages(8), id="r")
        (finished,) = wait(here, "Finished")
        assert finished.strategies == (expected,)
        costs = {
            one.strategy: one.ns for one in peer.plan("read").costs(pages(8), transport="cma", packs=False, chunk=SLOT)
        }
        assert min(costs, key=lambda strategy: costs[strategy]) == expected
        assert finished.shares[0].predicted.seconds == pytest.approx(costs[expected] * 1e-9)
    # Posting for nothing, kernels at a byte a microsecond: there is no reason to land.
    other.transport = kvr.Transport(
        read_post_ns=0,
        read_bytes_per_us=1000,
        write_post_ns=0,
        write_bytes_per_us=1000,
        pass_bytes_per_us=1,
        round_trip_ns=0,
    )
    here.read(other, pages(8), id="r")
    (finished,) = wait(here, "Finished")
    assert finished.strategies == ("direct",)


def test_a_retry_after_a_failure_brings_the_right_bytes() -> None:
    """The reader gives up in the middle and asks again: nothing was permuted in place."""
    pytest.importorskip("nixl")
    mine = SPEC.arrays(1)
    with Connector("here", staging=STAGING, slot_bytes=SLOT) as here, running(THEIRS) as (there,):
        publish(here, SPEC, mine)
        peer = here.connect(there.call("metadata"))
        here.read(peer, pages(20), id="first", strategy="landed")
        assert here.cancel("first")
        wait(here, "Failed")
        here.read(peer, pages(20), id="again", strategy="landed")
        wait(here, "Finished")
        for layer, source in enumerate(there.call("pages", during=here)):
            shape = (THEIRS.pages, THEIRS.heads, THEIRS.tokens, 2 * THEIRS.size)
            wanted = source.view(np.uint16).reshape(shape)[0:40:2].transpose(0, 2, 1, 3)
            np.testing.assert_array_equal(mine[layer][:20].view(np.uint16).reshape(wanted.shape), wanted)


def test_a_peer_that_knows_nothing_of_us_can_be_landed(agent: Scripted) -> None:
    """Its notices are the host's own words; none of ours is sent."""
    here = Connector(agent=agent, staging=STAGING, slot_bytes=SLOT)
    publish(here, SPEC, SPEC.arrays(1))
    peer = here.connect(metadata("a", spec=THEIRS, notices=0))
    agent.post["a"] = "DONE"
    here.read(peer, pages(3), id="r", strategy="landed")
    wait(here, "Finished")
    assert agent.told == []
    here.read(peer, pages(3), id="r", strategy="landed", notify=b"req-1:2")
    wait(here, "Finished")
    assert agent.told == [("a", b"req-1:2")]
    here.close()
