"""By which strategy a request goes, what is predicted of it, and what cannot be ordered; without NIXL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest

import kvreshard as kvr
from tests.connector_rank import Spec, request

pytest.importorskip("msgspec")

from kvreshard.nixl import Unsupported, strategy
from kvreshard.nixl.events import Predicted
from kvreshard.nixl.order import Order, fenced
from kvreshard.nixl.peer import Peer
from kvreshard.nixl.strategy import Able, Wanted, decide
from tests.told import told

HERE, THERE = Spec("here", notation="n h k[d] v[d]", pages=64), Spec("there", pages=64)
PAGE = HERE.format.page_bytes
SLOT = 4 * PAGE
FREE = kvr.Transport(
    read_post_ns=0,
    read_bytes_per_us=1000,
    write_post_ns=0,
    write_bytes_per_us=1000,
    pass_bytes_per_us=1,
    round_trip_ns=0,
)
"""Posting costs nothing, kernels cost a microsecond a byte."""


def rank(spec: Spec) -> kvr.RankLayout:
    size = spec.pages * spec.format.page_bytes
    memory = np.zeros(spec.layers * size, np.uint8)
    region = kvr.Region(memory.ctypes.data, memory.nbytes)
    layers = [
        kvr.Layer(
            f"layers.{at}", [kvr.Segment(region, spec.format, pages=spec.pages, offset=at * size)], totals={"h": 8}
        )
        for at in range(spec.layers)
    ]
    return kvr.RankLayout(engine=spec.engine, layers=layers)


def pairing(
    remote: Spec = THERE, *, begin: int = 0, pages: int = 8, direction: Literal["read", "write"] = "read"
) -> kvr.Pairing:
    plan = kvr.plan(rank(HERE), rank(remote), direction=direction)
    return plan.pair(request((begin, 16 * pages), list(range(pages)), list(range(pages))))


def peer(transport: str | kvr.Transport = "cma", **fields: Any) -> Peer:
    return cast(Peer, SimpleNamespace(name="there", transport=transport, packs=0, **fields))


def cost(one: kvr.Pairing, wanted: str, transport: str | kvr.Transport = "cma", chunk: int = SLOT) -> Predicted:
    """What the planner says of a strategy."""
    (found,) = [each for each in one.costs(transport=transport, chunk=chunk) if each.strategy == wanted]
    return Predicted(found.posted, found.bytes, found.ns * 1e-9)


def test_without_a_choice_nothing_is_weighed() -> None:
    for wanted, able in (("direct", Able(SLOT, SLOT)), ("direct", Able(0, 0)), ("auto", Able(0, 0))):
        assert decide(pairing(), peer(), "read", cast(Wanted, wanted), able) == ("direct", None)
    # A request that begins inside a row can only go directly, whatever both sides can do.
    assert decide(pairing(begin=3), peer(), "read", "auto", Able(SLOT, SLOT)) == ("direct", None)


@pytest.mark.parametrize(
    ("able", "expected"),
    [(Able(SLOT, 0), "landed"), (Able(0, SLOT), "packed"), (Able(SLOT, SLOT), "landed")],
    ids=["lands", "packs", "both"],
)
def test_auto_is_the_cheapest_of_what_both_sides_can_do(able: Able, expected: str) -> None:
    """Runs of 128 bytes: posting them costs more than any kernel on a host."""
    one = pairing()
    costs = {name: cost(one, name).seconds for name in ("direct", "landed", "packed")}
    assert costs["landed"] < costs["packed"] < costs["direct"]
    assert decide(one, peer(), "read", "auto", able) == (expected, cost(one, expected))
    # Whatever may run: where posting costs nothing, the direct way does.
    assert decide(one, peer(FREE), "read", "auto", able) == ("direct", cost(one, "direct", FREE))


def test_chunks_are_as_long_as_either_way_allows() -> None:
    """Shorter ones are more transfers: what is predicted counts those of the chunks that are asked for."""
    one = pairing(pages=32)
    able = Able(SLOT, 2 * SLOT)
    landed, packed = (decide(one, peer(), "read", name, able)[1] for name in ("landed", "packed"))
    assert landed == cost(one, "landed")
    assert packed == cost(one, "packed", chunk=2 * SLOT) != cost(one, "packed")
    auto = decide(one, peer(), "read", "auto", Able(0, PAGE))
    assert auto == ("packed", cost(one, "packed", chunk=PAGE))


def test_a_strategy_that_is_asked_for_is_taken_whatever_it_costs() -> None:
    one = pairing()
    for wanted in ("landed", "packed"):
        found = decide(one, peer(FREE), "read", wanted, Able(SLOT, SLOT))
        assert found == (wanted, cost(one, wanted, FREE))


class Watched:
    """A pairing that notes which strategies are worked out."""

    def __init__(self, pairing: kvr.Pairing) -> None:
        self.pairing, self.asked, self.fits_rows = pairing, list[str](), True

    def costs(self, **options: Any) -> list[kvr.Cost]:
        self.asked += [name for name in ("direct", "lands", "packs") if options.get(name, True)]
        return self.pairing.costs(**options)


@pytest.mark.parametrize(
    ("wanted", "able", "asked"),
    [
        ("direct", Able(SLOT, SLOT), []),
        ("landed", Able(SLOT, SLOT), ["lands"]),
        ("packed", Able(SLOT, SLOT), ["packs"]),
        ("auto", Able(SLOT, SLOT), ["direct", "lands", "packs"]),
        ("auto", Able(SLOT, 0), ["direct", "lands"]),
        ("auto", Able(0, SLOT), ["direct", "packs"]),
        ("auto", Able(0, 0), []),
    ],
)
def test_what_is_not_to_be_weighed_is_not_worked_out(wanted: Wanted, able: Able, asked: list[str]) -> None:
    watched = Watched(pairing())
    decide(cast(kvr.Pairing, watched), peer(), "read", wanted, able)
    assert watched.asked == asked


REMEDY = "give both connectors staging memory, or choose another strategy"


@pytest.mark.parametrize(
    ("wanted", "direction", "able", "why"),
    [
        ("landed", "write", Able(0, SLOT), "landing is the receiver's own read"),
        ("landed", "read", Able(0, SLOT), "this connector has no staging memory beside its pages"),
        ("packed", "read", Able(SLOT, 0), "not both sides run the packed protocol (there announced version 0)"),
        ("packed", "write", Able(0, 0), "not both sides run the packed protocol (there announced version 0)"),
    ],
)
def test_a_strategy_that_cannot_be_run_is_refused(
    wanted: Wanted, direction: Literal["read", "write"], able: Able, why: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        decide(pairing(direction=direction), peer(), direction, wanted, able)
    text = f"strategy {wanted} cannot be run with peer there: {why}"
    assert told(caught.value) == (text, {"peer": "there", "field": "strategy", "found": wanted, "remedy": REMEDY})


def test_pages_larger_than_a_slot_are_refused() -> None:
    one = pairing()
    for wanted, able in (("landed", Able(PAGE - 1, SLOT)), ("packed", Able(SLOT, 64))):
        with pytest.raises(kvr.LimitExceeded) as caught:
            decide(one, peer(), "read", cast(Wanted, wanted), able)
        assert str(caught.value) == f"strategy {wanted}: one page needs more than the bytes of a staging slot"
        # By choice it goes another way.
        assert decide(one, peer(), "read", "auto", Able(PAGE - 1, 64)) == ("direct", cost(one, "direct"))


def test_a_request_that_begins_inside_a_row_is_for_no_kernel() -> None:
    with pytest.raises(kvr.RequestError) as caught:
        decide(pairing(begin=3), peer(), "read", "landed", Able(SLOT, SLOT))
    assert str(caught.value) == (
        "strategy landed: the request begins inside a row, and kernels move whole rows; begin it where a row of "
        "the plan begins, or leave the strategy to the planner"
    )


def test_what_a_direct_transfer_takes_by_direction() -> None:
    one = kvr.Transport(
        read_post_ns=100,
        read_bytes_per_us=1000,
        write_post_ns=200,
        write_bytes_per_us=0,
        pass_bytes_per_us=1,
        round_trip_ns=0,
    )
    read, written = (strategy.predicted_direct(peer(one), direction, 3, 5000) for direction in ("read", "write"))
    assert (read.posted, read.bytes) == (3, 5000)
    assert read.seconds == pytest.approx(300e-9 + 5e-6)
    # No rate at all is a byte a microsecond, and no division by zero.
    assert written.seconds == pytest.approx(600e-9 + 5e-3)
    named = kvr.Transport.named("cma")
    taken = strategy.predicted_direct(peer("cma"), "read", 2, 10)
    assert taken.seconds == pytest.approx(2 * named.read_post_ns * 1e-9 + 10 / named.read_bytes_per_us * 1e-6)


def test_no_word_but_a_strategys_can_be_ordered() -> None:
    for wanted in ("auto", "direct", "landed", "packed"):
        assert Order("r", "read", strategy=wanted).strategy == wanted
    with pytest.raises(Unsupported) as caught:
        Order("r", "read", strategy=cast(Wanted, "landing"))
    text = "strategy is 'landing', but must be one of auto, direct, landed, packed"
    assert told(caught.value) == (text, {"field": "strategy", "found": "landing"})


ANSWERS, DEAF = (cast(Peer, SimpleNamespace(name=name, understands_control=name == "b")) for name in ("b", "a"))


def test_a_read_is_fenced_where_it_is_ordered_or_can_be_by_default() -> None:
    assert fenced(Order("r", "read", fence=True), [ANSWERS], False)
    assert fenced(Order("r", "read"), [ANSWERS], True)
    assert not fenced(Order("r", "read"), [ANSWERS], False)
    assert not fenced(Order("r", "read", fence=False), [ANSWERS], True)
    # What cannot be fenced is not, unless it was ordered by name.
    for order, peers in ((Order("r", "write"), [ANSWERS]), (Order("r", "read"), [ANSWERS, DEAF])):
        assert not fenced(order, peers, True)
    assert not fenced(Order("r", "write", fence=False), [DEAF], True)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Order("r", "write", fence=True), "it is a write"),
        (Order("r", "read", fence=True, notify=False), "its notice is not ours"),
        (Order("r", "read", fence=True, notify=b"x"), "its notice is not ours"),
        (Order("r", "read", fence=True), "a, a did not announce that it answers"),
    ],
    ids=["write", "no notice", "another notice", "deaf peers"],
)
def test_a_fence_that_cannot_be_is_refused(order: Order, why: str) -> None:
    with pytest.raises(Unsupported) as caught:
        fenced(order, [DEAF, ANSWERS, DEAF], False)
    assert told(caught.value) == (f"request r cannot be fenced: {why}", {"request": "r", "field": "fence"})
