"""`cases/layouts.toml`: the oracle still says so, and the planner does exactly that."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
import pytest

import kvreshard as kvr
from tests.oracle.engines import Exchange
from tests.oracle.enumerate import LAYOUTS, enumerate_all
from tests.oracle.ranks import SOURCE, TARGET, engine, exchange, ids, outermost, staged
from tests.oracle.scenarios import Scenario, scenarios
from tests.planned import Direction, Engines, Memories, every_byte

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCENARIOS = scenarios()
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in tomllib.loads(LAYOUTS.read_text(encoding="utf-8"))["case"]
}

each = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)


def test_the_file_is_what_enumeration_gives() -> None:
    assert LAYOUTS.read_text(encoding="utf-8") == enumerate_all()
    assert [scenario.id for scenario in SCENARIOS] == list(CASES)


def test_every_kind_has_a_case() -> None:
    assert {scenario.bullet for scenario in SCENARIOS} == {
        "head planes",
        "packed rows across layers",
        "kernel pages per block",
        "groups",
        "state groups",
        "hybrids",
        "context parallelism",
        "pipeline",
        "replicas",
        "requests",
        "different pools",
        "memory kinds",
    }


def found(engines: Engines, edge: kvr.Edge) -> dict[str, Any]:
    """One edge as the file has it, the first two runs by the regions that they lie in."""
    target, source = engines.places(edge)
    here, there = engines.lists(edge, engines.plan(edge), engines.request(edge))
    lengths = here[:, 1].tolist()
    first = [
        [*place(engines.target[target], to), *place(engines.source[source], by), length]
        for to, by, length in zip(here[:2, 0].tolist(), there[:2, 0].tolist(), lengths[:2], strict=True)
    ]
    return {
        "target": target,
        "source": source,
        "layers": sorted(edge.layers),
        "descriptors": len(lengths),
        "bytes": sum(lengths),
        "run_bytes": [min(lengths), max(lengths)] if lengths else [],
        "first": first,
    }


def place(rank: kvr.RankLayout, address: int) -> tuple[int, int]:
    """The number of the region by address, and the byte in it."""
    regions = sorted(rank.regions, key=lambda region: region.base)
    (number,) = [n for n, region in enumerate(regions) if region.base <= address < region.base + region.bytes]
    return number, address - regions[number].base


@each
def test_the_planner_does_what_the_case_says(scenario: Scenario) -> None:
    case = CASES[scenario.id]
    engines = Engines(scenario.exchange, cast(Direction, scenario.direction))
    assert [found(engines, edge) for edge in engines.route.edges] == case["edges"]
    assert engines.route.readers == case["readers"]
    assert engines.route.writers == case["writers"]
    told = [source if scenario.direction == "read" else target for target, source in engines.route.notify]
    assert sorted(told) == case["idle"]
    zero: list[set[int]] = [set() for _ in scenario.exchange.target]
    for edge in engines.route.edges:
        zero[engines.places(edge)[0]] |= set(engines.zero(edge, engines.plan(edge), engines.request(edge)).tolist())
    assert [len(addresses) for addresses in zero] == case["zero"]


@each
@pytest.mark.parametrize("direction", ["read", "write"])
def test_every_byte_arrives(scenario: Scenario, direction: Direction) -> None:
    engines, memories = Engines(scenario.exchange, direction), Memories(scenario.exchange)
    for edge in engines.route.edges:
        plan, request = engines.plan(edge), engines.request(edge)
        plan.verify()
        memories.move(engines.places(edge), engines.lists(edge, plan, request))
        memories.clear(engines.places(edge)[0], engines.zero(edge, plan, request))
    memories.check()


def scenario_of(name: str) -> Exchange:
    """The exchange of one case."""
    return next(scenario.exchange for scenario in SCENARIOS if scenario.id == name)


def test_the_tail_does_not_shift_tokens() -> None:
    """vLLM 0.33 pairs prefill's ten pages of 16 with the decoder's two of 64 from their ends, after splitting pages.

    The decoder's blocks become eight pages of 16 (tokens 64 to 192, of which the last two are beyond the prompt), and
    the last eight of prefill's ten (tokens 32 to 160) are set against them: each lands 32 tokens late, with as many
    pages on both sides and no error. By global token there are six pairs, and two pages are left to clear.
    """
    exchange = scenario_of("tail-alignment")
    prefill, decode = list(range(10)), [page for block in (1, 2) for page in range(4 * block, 4 * block + 4)]
    count = min(len(prefill), len(decode))
    stock = list(zip(prefill[-count:], decode[-count:], strict=True))
    assert [64 + 16 * (sub - decode[0]) - 16 * page for page, sub in stock] == [32] * 8
    engines = Engines(exchange, "read")
    (edge,) = engines.route.edges
    here, there = engines.lists(edge, engines.plan(edge), engines.request(edge))
    first = [side[0].regions[0].base for side in (engines.target, engines.source)]
    at, by = (every_byte(rows) - base for rows, base in zip((here, there), first, strict=True))
    inside = at < engines.target[0].regions[0].bytes
    # Head-major pages of two heads, 16 bytes a token and head: blocks of 64 tokens, the second and third; pages of 16.
    landed = at[inside] // 2048 * 64 + at[inside] % 1024 // 16
    came = by[inside] // 512 * 16 + by[inside] % 256 // 16
    assert (landed == came).all()
    assert np.array_equal(np.unique(landed), np.arange(64, 160))
    assert len(engines.zero(edge, engines.plan(edge), engines.request(edge))) == 2 * 2 * 32 * 16


def test_whole_rows_are_one_descriptor_each() -> None:
    for name in ("rows-alike", "rows-alike-token-major", "rows-alike-heads-first", "rows-padded"):
        (edge,) = CASES[name]["edges"]
        assert edge["descriptors"] == 3, name


def test_equal_context_parallelism_folds_to_whole_pages() -> None:
    engines = Engines(scenario_of("dcp2-equal"), "read")
    assert [engines.places(edge) for edge in engines.route.edges] == [(0, 0), (1, 1)]
    for edge in engines.route.edges:
        plan = engines.plan(edge)
        assert (plan.runs_per_page, plan.shortest_run) == (2, 128), "one run a page and layer"


def test_a_layer_that_nobody_holds_is_named() -> None:
    source, target = staged(SOURCE, [[0, 1], [3]]), staged(TARGET, [[0, 1, 2, 3]])
    with pytest.raises(kvr.MissingLayer, match=r"layer layers[.]2") as caught:
        Engines(exchange(source, target, (0, 4), [ids(0)], [ids(0)]), "read")
    assert (caught.value.layer, caught.value.side) == ("layers.2", "remote")
    with pytest.raises(kvr.MissingLayer, match=r"layer layers[.]2") as caught:
        Engines(exchange(source, target, (0, 4), [ids(0)], [ids(0)]), "write")
    assert caught.value.side == "local"


def test_heads_that_nobody_holds_are_named() -> None:
    """Rank 1 of the source is not there."""
    make = outermost("h n k[d] v[d]", n=4, d=4)
    source, target = engine(SOURCE, 2, make)[:1], engine(TARGET, 1, make)
    with pytest.raises(kvr.MissingLayer, match=r"h \[2, 4\)"):
        Engines(exchange(source, target, (0, 4), [ids(0)], [ids(0)]), "read")


def test_memory_kinds_are_lists_apart() -> None:
    engines = Engines(scenario_of("memory-kinds"), "read")
    (edge,) = engines.route.edges
    plan, request = engines.plan(edge), engines.request(edge)
    assert plan.parts == [("VRAM", "DRAM"), ("DRAM", "VRAM")]
    for part, (here, there) in enumerate(plan.parts):
        for rows, kind, rank in zip(
            plan.lists(request, part=part), (here, there), (plan.local, plan.remote), strict=True
        ):
            regions = [region for region in rank.regions if region.memory == kind]
            for address in rows[:, 0].tolist():
                assert any(region.base <= address < region.base + region.bytes for region in regions)
    with pytest.raises(kvr.LimitExceeded):
        plan.lists(request)


def test_a_state_of_several_tokens_is_not_dealt() -> None:
    one = kvr.PageFormat("c[n r]", n=4, r=8, dtype="u8")
    layer = kvr.Layer("layers.0", [kvr.Segment(kvr.Region(0, one.page_bytes), one, pages=1)])
    with pytest.raises(kvr.LayoutError, match="they deal tokens, not states") as caught:
        kvr.RankLayout(engine="e", layers=[layer], groups=[kvr.Group(tokens_per_state=4)], cp=(0, 2))
    assert (caught.value.layer, caught.value.field, caught.value.found) == ("layers.0", "tokens_per_state", "4")


def test_states_that_do_not_pair_are_refused() -> None:
    scenario = scenario_of("mamba2-tp1-to-tp2")
    uneven = Exchange(scenario.source, scenario.target, scenario.tokens, ((ids(0, 1),),), ((ids(0),),) * 2)
    engines = Engines(uneven, "read")
    with pytest.raises(kvr.RequestError, match="states move whole"):
        engines.plan(engines.route.edges[0]).lists(engines.request(engines.route.edges[0]))
