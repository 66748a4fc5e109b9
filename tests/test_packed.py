"""Packed transfers through real NIXL: both directions, both flows, many requests, and what becomes of them when a side
gives up, dies, or never agreed.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Bytes, Spec, await_events, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import (
    Cancelled,
    Connector,
    DeadlinePassed,
    Failed,
    Finished,
    LeaseOver,
    PeerLost,
    Unsupported,
    control,
    wire,
)

HERE = Spec("here", engine="decode", notation="k[h d/8 n d%8] v[h n/8 d n%8]", pages=64)
THERE = Spec("there", pages=64)
SLOT = 2 * THERE.format.page_bytes
STAGING: Any = {"staging": 12 * SLOT, "slot_bytes": SLOT}
SENDER = replace(THERE, options=STAGING)


def shuffled(pages: Bytes, spec: Spec) -> Bytes:
    """What packed head-major pages are in the receiver's format, by the page formats' formulas."""
    count = len(pages)
    both = pages.view(np.uint16).reshape(count, spec.heads, spec.tokens, 2, spec.size)
    k, v = both[:, :, :, 0], both[:, :, :, 1]
    k = k.reshape(count, spec.heads, spec.tokens, spec.size // 8, 8).transpose(0, 1, 3, 2, 4)
    v = v.reshape(count, spec.heads, spec.tokens // 8, 8, spec.size).transpose(0, 1, 2, 4, 3)
    return np.concatenate([k.reshape(count, -1), v.reshape(count, -1)], axis=1).view(np.uint8)


def pages(first: int, count: int) -> kvr.Request:
    """Pages `first` on here, twice as far on there."""
    return request((0, 16 * count), list(range(first, first + count)), list(range(2 * first, 2 * first + count)))


def plain(first: int, count: int) -> tuple[Any, ...]:
    """The same request from the other side."""
    return (0, 16 * count), list(range(2 * first, 2 * first + count)), list(range(first, first + count)), 0, 0


def check(mine: list[Bytes], theirs: list[Bytes], first: int, count: int) -> None:
    """Pages of that request."""
    for layer, source in enumerate(theirs):
        expected = shuffled(source[2 * first : 2 * first + count], THERE)
        np.testing.assert_array_equal(mine[layer][first : first + count], expected)


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_requests_of_all_sizes_arrive_at_once(flow: control.Flow) -> None:
    """More chunks than slots, and a small request that is not last though it came last."""
    mine = HERE.arrays(1)
    with Connector("here", flow=flow, **STAGING) as here, running(SENDER) as (there,):
        publish(here, HERE, mine)
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        there.call("expect", "large", {"readers": 1}, during=here)
        here.read(peer, pages(0, 30), id="large", strategy="packed")
        here.read(peer, pages(30, 1), id="small", strategy="packed")
        seen: list[Any] = []
        while len(seen) < 2:
            seen += wait(here, "Finished")
        assert [event.id for event in seen] == ["small", "large"]
        large = seen[1]
        assert isinstance(large, Finished)
        assert large.strategies == ("packed",)
        assert large.bytes == 2 * 30 * THERE.format.page_bytes
        # Two pages a chunk.
        assert (large.posted, large.shares[0].predicted.posted) == (30, 30)  # type: ignore[union-attr]
        check(mine, theirs, 0, 30)
        check(mine, theirs, 30, 1)
        await_events(there, here, ("Released", "large"))
        assert peer.metrics.requests == {"packed": 2}
        assert here.in_flight == ()


@pytest.mark.parametrize("flow", ["push", "pull"])
def test_a_write_is_gathered_here_and_scattered_there(flow: control.Flow) -> None:
    """The receiver is the process; it clears what lies after the last token."""
    spec = replace(HERE, name="there", options={**STAGING, "flow": flow})
    mine = THERE.arrays(1)
    with Connector("here", **STAGING) as here, running(spec) as (there,):
        publish(here, replace(THERE, name="here"), mine)
        before = there.call("pages")
        peer = here.connect(there.call("metadata"), direction="write")
        there.call("expect", "w", {"writers": 1}, during=here)
        here.write(peer, request((0, 85), [9, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6]), id="w", strategy="packed")
        (finished,) = wait(here, "Finished")
        assert finished.strategies == ("packed",)
        await_events(there, here, ("Arrived", "w"))
        for layer, after in enumerate(there.call("pages", during=here)):
            source = mine[layer][[9, 4, 5, 6, 7, 8]].copy()
            source.view(np.uint16).reshape(6, THERE.heads, THERE.tokens, -1)[5, :, 5:] = 0
            expected = before[layer]
            expected[1:7] = shuffled(source, THERE)
            np.testing.assert_array_equal(after, expected)


def test_the_other_side_can_read_from_us_while_we_do_nothing_but_serve() -> None:
    mine = THERE.arrays(2)
    with Connector("here", **STAGING) as here, running(replace(HERE, name="there", options=STAGING)) as (there,):
        publish(here, replace(THERE, name="here"), mine)
        with here.serve():
            name = there.call("connect", here.metadata(), {})
            there.call("read", name, ((0, 160), list(range(10)), list(range(10)), 0, 0), "r", {"strategy": "packed"})
            ends = time.monotonic() + 20
            seen: list[Any] = []
            while ("Finished", "r") not in seen:
                assert time.monotonic() < ends
                seen += there.call("events")
        for layer, got in enumerate(there.call("pages", during=here)):
            np.testing.assert_array_equal(got[:10], shuffled(mine[layer][:10], THERE))


def test_no_control_message_goes_to_a_peer_that_did_not_announce_the_protocol() -> None:
    """Packed by force is refused; by choice something else is chosen; and its queue stays empty."""
    with Connector("here", **STAGING) as here, running(THERE) as (there,):
        publish(here, HERE, HERE.arrays(1))
        told = wire.decode(there.call("metadata"))
        assert told.rings is None
        peer = here.connect(there.call("metadata"))
        with pytest.raises(Unsupported, match="packed protocol"):
            here.read(peer, pages(0, 4), id="r", strategy="packed")
        here.read(peer, pages(0, 4), id="r", notify=False)
        (finished,) = wait(here, "Finished")
        assert finished.strategies == ("landed",)
        assert there.call("raw", during=here) == []


def test_cancel_ends_it_on_both_sides_and_the_slots_come_back() -> None:
    mine = HERE.arrays(1)
    with Connector("here", **STAGING) as here, running(SENDER) as (there,):
        publish(here, HERE, mine)
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        for turn in range(3):
            here.read(peer, pages(0, 32), id=f"r{turn}", strategy="packed")
            for _ in range(turn * 4):
                here.poll()
            assert here.cancel(f"r{turn}")
            failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
            assert isinstance(failed.reason, Cancelled)
            assert failed.pages == "free"
        here.read(peer, pages(0, 32), id="again", strategy="packed")
        wait(here, "Finished")
        check(mine, theirs, 0, 32)


def test_a_lease_that_has_ended_refuses_a_reader() -> None:
    with Connector("here", **STAGING) as here, running(SENDER) as (there,):
        publish(here, HERE, HERE.arrays(1))
        peer = here.connect(there.call("metadata"))
        there.call("expect", "r", {"readers": 1, "lease": 0.05})
        await_events(there, here, ("LeaseEnded", "r"))
        here.read(peer, pages(0, 4), id="r", strategy="packed")
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert isinstance(failed.reason, LeaseOver)


def test_a_peer_that_dies_fails_the_request_and_frees_its_pages() -> None:
    with Connector("here", **STAGING) as here, running(SENDER) as (there,):
        publish(here, HERE, HERE.arrays(1))
        peer = here.connect(there.call("metadata"))
        here.read(peer, pages(0, 2), id="first", strategy="packed")
        wait(here, "Finished")
        there.signal(signal.SIGSTOP)
        here.read(peer, pages(0, 32), id="r", strategy="packed")
        for _ in range(20):
            assert here.poll(timeout=0.01) == []
        there.kill()
        events = wait(here, "Failed", "PeerDown", timeout=60)
        failed = next(event for event in events if isinstance(event, Failed))
        assert isinstance(failed.reason, PeerLost)
        assert failed.pages == "free"
        assert here.in_flight == ()
    with Connector("here", **STAGING) as here, running(SENDER) as (there,):
        publish(here, HERE, HERE.arrays(1))
        peer = here.connect(there.call("metadata"))
        there.signal(signal.SIGSTOP)
        here.read(peer, pages(0, 32), id="r", strategy="packed", deadline=0.3)
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert isinstance(failed.reason, DeadlinePassed)
        assert failed.pages == "free"


def test_a_peer_that_was_killed_comes_back_and_is_packed_with_again() -> None:
    """The same agent name, another process: what the dead one was granted stays out of use until the host says so."""
    mine = HERE.arrays(1)
    with Connector("here", **STAGING) as here:
        publish(here, HERE, mine)
        with running(SENDER) as (there,):
            peer = here.connect(there.call("metadata"))
            here.read(peer, pages(0, 2), id="first", strategy="packed")
            wait(here, "Finished")
            there.signal(signal.SIGSTOP)
            here.read(peer, pages(0, 32), id="r", strategy="packed")
            here.poll(timeout=0.1)
            there.kill()
            wait(here, "Failed", "PeerDown", timeout=60)
            here.poll()
        with running(SENDER) as (there,):
            theirs = there.call("pages")
            again = here.connect(there.call("metadata"))
            assert again is not peer
            here.gone("nobody")
            here.read(again, pages(0, 32), id="r", strategy="packed")
            wait(here, "Finished")
            check(mine, theirs, 0, 32)


def test_a_peer_that_registers_anew_ends_what_was_under_way() -> None:
    mine = HERE.arrays(1)
    with Connector("here", **STAGING) as here, running(SENDER) as (there,):
        publish(here, HERE, mine)
        peer = here.connect(there.call("metadata"))
        here.read(peer, pages(0, 2), id="first", strategy="packed")
        wait(here, "Finished")
        data = there.call("republish", 7, during=here)
        theirs = there.call("pages", during=here)
        again = here.connect(data)
        assert again is not peer
        here.read(again, pages(0, 20), id="second", strategy="packed")
        wait(here, "Finished")
        check(mine, theirs, 0, 20)


def test_what_a_peer_cannot_agree_to_it_refuses_by_name() -> None:
    """The block is none of the producer's: found out there, and told here."""
    with Connector("here", **STAGING) as here, running(replace(SENDER, pages=8)) as (there,):
        publish(here, HERE, HERE.arrays(1))
        told = wire.decode(there.call("metadata"))
        more = replace(SENDER, name="there", pages=64)
        layers = []
        for layer in told.layout.layers:
            (segment,) = layer.segments
            layers.append(kvr.Layer(layer.name, [kvr.Segment(segment.region, more.format, pages=8)], totals={"h": 8}))
        layout = kvr.RankLayout(engine="another", layers=layers, generation=told.generation)
        peer = here.connect(wire.encode(replace(told, layout=layout)))
        here.read(peer, pages(0, 2), id="r", strategy="packed")
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert isinstance(failed.reason, Unsupported)
        assert "differently" in str(failed.reason)
        assert peer.metrics.failures == 1


def test_more_peers_than_slots_are_not_admitted() -> None:
    small: Any = {"staging": 3 * SLOT, "slot_bytes": SLOT}
    specs = [replace(SENDER, name=f"there-{number}") for number in (0, 1)]
    with Connector("here", **small) as here, running(*specs) as ranks:
        publish(here, HERE, HERE.arrays(1))
        first, second = (here.connect(rank.call("metadata", during=here)) for rank in ranks)
        here.read(first, pages(0, 8), id="r", strategy="packed")
        wait(here, "Finished")
        here.read(second, pages(0, 8), id="s", strategy="packed", deadline=2.0)
        failed = next(event for event in wait(here, "Failed") if isinstance(event, Failed))
        assert "admitted" in str(failed.reason)
        # By choice something else is taken for a while.
        here.read(second, pages(0, 8), id="s")
        (finished,) = wait(here, "Finished")
        assert finished.strategies == ("landed",)
        here.disconnect(first)
        here.read(second, pages(0, 8), id="s", strategy="packed")
        wait(here, "Finished")


def test_an_edge_as_told_plans_as_the_one_that_was_routed() -> None:
    """Two replicas of two heads on four ranks: which half a reader takes from whom, only a route says."""
    spec = replace(THERE, heads=1, total_heads=2, pages=8)
    memory = [np.zeros((spec.layers, spec.pages, spec.format.page_bytes), np.uint8) for _ in range(5)]

    def rank(number: int, form: kvr.PageFormat, tp: tuple[int, int]) -> kvr.RankLayout:
        region = kvr.Region(memory[number].ctypes.data, memory[number].nbytes)
        size = form.page_bytes * spec.pages
        layers = [
            kvr.Layer(
                f"layers.{layer}",
                [kvr.Segment(region, form, pages=spec.pages // 2, offset=layer * size // 2)],
                totals={"h": 2},
            )
            for layer in range(spec.layers)
        ]
        return kvr.RankLayout(engine=str(tp[1]), layers=layers, tp=tp)

    sources = [rank(number, spec.format, (number, 4)) for number in range(4)]
    reader = rank(4, spec.format.with_extents(h=2), (0, 1))
    route = kvr.route(local=kvr.Engine([reader]), remote=kvr.Engine(sources))
    assert len(route.edges) == 2
    for edge in route.edges:
        told = kvr.Edge.told("read", edge.takes)
        source = sources[edge.remote]
        assert told.takes == edge.takes
        assert kvr.plan(reader, source, edge=told).digest == kvr.plan(reader, source, edge=edge).digest
    with pytest.raises(kvr.LayoutError):
        kvr.Edge.told("read", [("layers.0", [("h", 2, 1)], False)])
    with pytest.raises(kvr.Error):
        kvr.plan(reader, sources[0], edge=kvr.Edge.told("read", [("no such layer", [], True)]))
