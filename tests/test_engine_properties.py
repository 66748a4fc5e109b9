"""Random engines held to brute force: every byte of every rank after a request, edge by edge the fewest descriptors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import kvreshard as kvr
from tests.oracle.engines import EVER, Exchange, bare, deal, readers
from tests.oracle.notation import Ints
from tests.planned import Direction, Engines, Memories
from tests.strategies import exchanges

many = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
# Shrinking a failure takes minutes, and cut short it hides what failed.
pytestmark = pytest.mark.timeout(900)

directions = st.sampled_from(["read", "write"])


def planned(exchange: Exchange, direction: Direction) -> Engines:
    note(f"{exchange}")
    return Engines(exchange, direction)


@many
@given(exchanges(kinds=("DRAM", "VRAM")), directions)
def test_every_byte_arrives_and_the_rest_is_cleared(exchange: Exchange, direction: Direction) -> None:
    engines, memories = planned(exchange, direction), Memories(exchange)
    cleared: dict[int, Ints] = {}
    written: dict[int, list[Ints]] = {}
    for edge in engines.route.edges:
        places, plan, request = engines.places(edge), engines.plan(edge), engines.request(edge)
        written.setdefault(places[0], []).append(memories.move(places, engines.lists(edge, plan, request)))
        zero = engines.zero(edge, plan, request)
        assert len(np.unique(zero)) == len(zero)
        cleared[places[0]] = np.union1d(cleared.get(places[0], zero), zero)
    for target, parts in written.items():
        together = np.concatenate(parts)
        assert len(np.unique(together)) == len(together), "two edges write one byte"
        assert np.array_equal(cleared[target], bare(exchange, target))
        memories.clear(target, cleared[target])
    memories.check()


def rows_or_lists(engines: Engines, edge: kvr.Edge, plan: kvr.Plan, request: kvr.Request) -> tuple[Ints, Ints]:
    """By prepared rows; by exact lists where the request begins, or its part ends, inside a row."""
    try:
        return engines.rows(edge, plan, request)
    except kvr.RequestError as error:
        if error.field not in ("tokens start", "tokens end") or (error.field == "tokens end" and not request.more):
            raise
        return engines.lists(edge, plan, request)


@many
@given(exchanges(kinds=("DRAM", "VRAM")), directions)
def test_rows_do_the_same(exchange: Exchange, direction: Direction) -> None:
    """Prepared rows round the end up; once the rest is cleared, nothing of that is left."""
    engines, memories = planned(exchange, direction), Memories(exchange)
    for edge in engines.route.edges:
        places, plan, request = engines.places(edge), engines.plan(edge), engines.request(edge)
        memories.move(places, rows_or_lists(engines, edge, plan, request))
    for edge in engines.route.edges:
        memories.clear(engines.places(edge)[0], engines.zero(edge, engines.plan(edge), engines.request(edge)))
    memories.check()


@many
@given(exchanges(), directions)
def test_each_edge_has_the_fewest_descriptors(exchange: Exchange, direction: Direction) -> None:
    engines = planned(exchange, direction)
    dealt = deal(exchange.target, exchange.source)
    assert {engines.places(edge) for edge in engines.route.edges} == set(dealt)
    for edge in engines.route.edges:
        places = engines.places(edge)
        target, source = engines.lists(edge, engines.plan(edge), engines.request(edge))
        wanted = exchange.pairs(*places, dealt[places]).runs()
        found = target[:, 0], source[:, 0], target[:, 1]
        assert [column.tolist() for column in found] == [column.tolist() for column in wanted]


@many
@given(exchanges())
def test_both_sides_count_readers_alike(exchange: Exchange) -> None:
    pulled, pushed = planned(exchange, "read").route, planned(exchange, "write").route
    read, written, idle = readers(exchange)
    for route in (pulled, pushed):
        assert route.readers == read
        assert route.writers == written
    assert {remote for _, remote in pulled.notify} == idle
    assert [(local, remote) for remote, local in pushed.notify] == pulled.notify
    assert [edge.layers for edge in pulled.edges] == [edge.layers for edge in pushed.edges]
    engines = planned(exchange, "read")
    for target in range(len(exchange.target)):
        kvr.verify([engines.plan(edge) for edge in pulled.edges_of(local=target)])


@many
@given(exchanges(), directions, st.data())
def test_parts_in_any_order_make_the_whole(exchange: Exchange, direction: Direction, data: st.DataObject) -> None:
    """Chunks of tokens and sets of layers, of every edge, in any order."""
    engines, memories = planned(exchange, direction), Memories(exchange)
    start, end = exchange.tokens
    cuts = sorted(data.draw(st.sets(st.integers(start, end), max_size=3)) | {start, end})
    chunks = list(itertools.pairwise(cuts))
    parts = []
    for edge in engines.route.edges:
        split = data.draw(st.integers(0, len(edge.layers)))
        layers = data.draw(st.permutations(edge.layers))
        for some in (layers[:split], layers[split:]):
            parts += [(edge, some, chunk) for chunk in chunks]
    for edge, some, chunk in data.draw(st.permutations(parts)):
        request = engines.request(edge, chunk, more=chunk[1] != end)
        plan = engines.plan(edge, some)
        # The last part may come when all is there, any other one as soon as its own tokens are.
        rows = rows_or_lists(engines, edge, plan, request)
        memories.move(engines.places(edge), rows, chunk[1] if request.more else EVER)
        memories.clear(engines.places(edge)[0], engines.zero(edge, plan, request))
    memories.check()


def test_an_exchange_of_this_kind_is_drawn() -> None:
    """The strategy reaches what the properties are about."""
    seen: set[str] = set()

    @settings(max_examples=400, database=None, deadline=None, suppress_health_check=many.suppress_health_check)
    @given(exchanges(kinds=("DRAM", "VRAM")))
    def look(exchange: Exchange) -> None:
        both = exchange.source + exchange.target
        seen.update(f"{kind} {getattr(rank, kind)[1] > 1}" for rank in both for kind in ("tp", "cp", "pp"))
        seen.update(group.kind for rank in both for group in rank.groups)
        seen.update("window" for rank in both for group in rank.groups if group.window)
        seen.update("planes" for rank in both for layer in rank.layers if len(layer.segments) > 2)
        seen.update("idle replica" for _ in readers(exchange)[2])
        seen.update("mixed memory" for rank in both if len({region.memory for region in rank.regions}) > 1)
        seen.update("clipped" for rank in exchange.target if len(bare(exchange, 0)))

    look()
    expected_kinds = {f"{kind} True" for kind in ("tp", "cp", "pp")}
    assert expected_kinds | {"state", "window", "planes", "idle replica", "mixed memory", "clipped"} <= seen
