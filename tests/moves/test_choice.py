"""Which way a request goes that may go by several, and what is expected of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import Finished, Unsupported, wire
from kvreshard.nixl.notices import Kind, Notice, decode
from kvreshard.nixl.strategy import predicted_direct
from tests.connector_rank import request
from tests.fabric import Fabric
from tests.pairs import HERE, PAGE, Pair, pages, right


def done(pair: Pair, direction: str, id: str, **options: Any) -> Finished:
    """A request that comes through."""
    (pair.here.read if direction == "read" else pair.here.write)(pair.peer, pages(8), id=id, **options)
    (finished,) = pair.until("Finished")[0]
    assert isinstance(finished, Finished)
    return finished


def test_with_a_peer_that_refused_nothing_is_packed_by_choice(fabric: Fabric) -> None:
    """By order it is; and what else there is to choose from stays."""
    pair = Pair()
    running = pair.here._packing._running
    assert running is not None
    running[1].forgive("there")
    assert not pair.here._packing.welcome(pair.peer)
    assert done(pair, "read", "r").strategies == ("landed",)
    assert done(pair, "write", "w").strategies == ("direct",)
    assert done(pair, "write", "w", strategy="packed").strategies == ("packed",)
    # That has begun, and so it is welcome.
    assert done(pair, "write", "w").strategies == ("packed",)
    assert done(pair, "read", "r").strategies == ("landed",)
    assert right(pair, 8)
    pair.close()


@pytest.mark.parametrize("direction", ["read", "write"])
def test_what_is_expected_of_a_direct_transfer_is_of_its_direction(fabric: Fabric, direction: Any) -> None:
    pair = Pair()
    (share,) = done(pair, direction, "r", strategy="direct").shares
    assert share.predicted == predicted_direct(pair.peer, direction, share.posted, share.bytes)
    other = predicted_direct(pair.peer, "write" if direction == "read" else "read", share.posted, share.bytes)
    assert share.predicted != other
    pair.close()


@pytest.mark.parametrize("strategy", ["direct", "landed", "packed", "auto"])
def test_a_request_of_nothing_tells_the_peer_all_the_same(fabric: Fabric, strategy: Any) -> None:
    pair = Pair()
    pair.here.read(pair.peer, request((0, 0), [], []), id="r", strategy=strategy)
    (finished,) = pair.until("Finished")[0]
    assert isinstance(finished, Finished)
    assert (finished.posted, finished.bytes, fabric.made) == (0, 0, [])
    assert [decode(message) for _, _, message in fabric.told] == [Notice(Kind.READ, "r", 1)]
    pair.close()


def test_what_cannot_be_ordered_says_why(fabric: Fabric) -> None:
    pair = Pair()
    with pytest.raises(Unsupported) as caught:
        pair.here.write(pair.peer, pages(8), id="w", strategy="landed")
    text = "strategy landed cannot be run with peer there: landing is the receiver's own read"
    assert (str(caught.value), caught.value.request) == (text, "w")
    assert fabric.made == []
    pair.close()


def test_chunks_are_weighed_as_long_as_the_slots_of_their_way(fabric: Fabric) -> None:
    """A page fits the slots that the peer sends from, and not those that it receives in."""
    pair = Pair()
    metadata = wire.decode(pair.there.metadata())
    assert metadata.rings is not None
    receive, send = (replace(metadata.rings.send, slot_bytes=size) for size in (PAGE // 2, PAGE))
    pair.peer = pair.here.connect(wire.encode(replace(metadata, rings=wire.Rings(1, receive, send))))
    (share,) = done(pair, "read", "r", strategy="packed").shares
    assert share.predicted is not None
    assert share.posted == share.predicted.posted == 8 * HERE.layers
    with pytest.raises(kvr.LimitExceeded, match="strategy packed: one page needs more than"):
        pair.here.write(pair.peer, pages(8), id="w", strategy="packed")
    pair.close()
