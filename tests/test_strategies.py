"""Every scenario by every strategy, through real NIXL between processes: the destination must not show which it was.

Each run is checked element by element by the demonstration's formulas; here whole memories are compared as well, so
that not one byte beside the pages may differ between strategies.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvreshard.demo.run import turns
from kvreshard.demo.scenarios import (
    AITER,
    B12X,
    FLASHINFER,
    PACKED,
    PAGE16,
    ROCM,
    SCENARIOS,
    SLOTS,
    Scenario,
    Side,
    Strategy,
)

pytest.importorskip("nixl")

CONVERSIONS = (
    Scenario("to-shuffled", Side(PACKED, 1), Side(AITER, 1), heads=2, end=96),
    Scenario("from-shuffled", Side(AITER, 1), Side(PACKED, 1), heads=2, end=96),
    Scenario("shuffled-2-1", Side(PACKED, 2), Side(AITER, 1), heads=4, end=40),
    Scenario("pages-to-shuffled", Side(PACKED, 1, 64), Side(PAGE16, 2, 16), heads=2, end=90, first=32),
    Scenario("to-rocm", Side(SLOTS, 1, gap=64), Side(ROCM, 2), heads=2, end=48),
    Scenario("six-processes", Side(PACKED, 4), Side(AITER, 2), heads=4, end=64),
    Scenario("b12x-small", Side(B12X, 1, 64), Side(B12X, 2, 64), heads=4, end=130),
    Scenario("push-to-shuffled", Side(PACKED, 2), Side(AITER, 1), heads=4, end=40, push=True),
    Scenario("nvfp4-small", Side(FLASHINFER, 2), Side(FLASHINFER, 1), heads=2, end=40),
)

MOVED = [one.name for one in (*SCENARIOS, *CONVERSIONS) if one.refused is None]


@pytest.mark.parametrize("name", MOVED)
def test_pages_do_not_show_by_what_strategy_they_came(name: str) -> None:
    (one,) = [one for one in (*SCENARIOS, *CONVERSIONS) if one.name == name]
    strategies: list[Strategy] = ["direct", "packed"] if one.push else ["direct", "landed", "packed", "auto"]
    outcomes = turns(replace(one, layers=2), strategies, stage=lambda stage: None)
    assert [outcome.problems for outcome in outcomes] == [[] for _ in strategies]
    direct, *others = outcomes
    assert direct.strategies == {"direct"}
    assert direct.bytes > 0
    assert direct.digests
    for strategy, outcome in zip(strategies[1:], others, strict=True):
        # Each rank chooses for itself.
        assert strategy == "auto" or outcome.strategies == {strategy}
        assert outcome.digests == direct.digests
        assert direct.posted >= outcome.posted > 0
        # Landed moves whole spans, packed whole rows.
        assert outcome.bytes >= direct.bytes
