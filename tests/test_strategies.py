"""Every scenario by every strategy, through real NIXL between processes: the destination must not show which it was.

Each run is checked element by element by the demonstration's formulas; here whole memories are compared as well, so
that not one byte beside the pages may differ between strategies.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kvreshard.demo.run import Outcome, run
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
    Scenario("nvfp4-small", Side(FLASHINFER, 2), Side(FLASHINFER, 1), heads=2, end=40),
)

PULLED = [one for one in (*SCENARIOS, *CONVERSIONS) if one.refused is None and not one.push]


@cache
def outcome(name: str, strategy: Strategy) -> Outcome:
    """What comes of a scenario with two layers, by a strategy."""
    (one,) = [one for one in (*SCENARIOS, *CONVERSIONS) if one.name == name]
    return run(replace(one, layers=2, strategy=strategy), stage=lambda stage: None)


@pytest.mark.parametrize("name", [one.name for one in PULLED])
def test_landed_pages_are_those_of_a_direct_transfer(name: str) -> None:
    direct, landed = outcome(name, "direct"), outcome(name, "landed")
    assert (direct.problems, landed.problems) == ([], [])
    assert (set(direct.strategies), set(landed.strategies)) == ({"direct"}, {"landed"})
    assert landed.digests == direct.digests
    assert landed.posted <= direct.posted
    assert landed.bytes >= direct.bytes > 0
