"""Pairs of real vLLM engines: what stock connectors do, and what ours do.

A verdict is over every element of every page that the decoder would read, and over every page that it does not own.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm.cases import MIXED, ROWS, Row
from tests.vllm.conftest import Runs

# The first test of a batch waits for the whole batch.
pytestmark = pytest.mark.timeout(1200)

_MODES = ("pull", "push")


def _batches() -> dict[str, list[dict[str, Any]]]:
    batches = {
        f"{connector}-{mode}": [row.case(connector, mode) for row in ROWS]
        for connector in ("ours", "stock")
        for mode in _MODES
    }
    return batches | {"mixed": [case for _, case, _, _ in MIXED]}


@pytest.fixture(scope="module")
def started(runs: Runs) -> Runs:
    """All batches, on their way."""
    for name, cases in _batches().items():
        runs.start(name, cases)
    return runs


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.name for row in ROWS])
def test_ours_is_right(started: Runs, index: int, mode: str) -> None:
    """Every pair comes out right, pushed or pulled, and touches no page but those of the request."""
    result = started.result(f"ours-{mode}", index)
    assert result["verdict"] == "right", result["errors"] or result.get("wrong")


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.name for row in ROWS])
def test_stock_is_as_said(started: Runs, index: int, mode: str) -> None:
    """What the documentation says of stock connectors holds; where stock is right, ours posts no more descriptors."""
    row: Row = ROWS[index]
    stock, ours = started.result(f"stock-{mode}", index), started.result(f"ours-{mode}", index)
    assert stock["verdict"] == row.expected("stock", mode), stock["errors"] or stock.get("wrong")
    if stock["verdict"] == "right":
        assert ours["descriptors"] <= stock["descriptors"]


@pytest.mark.parametrize("mode", _MODES)
def test_what_no_transfer_fills_is_clear(started: Runs, mode: str) -> None:
    """The rest of the last page is zero where the peer's pages end elsewhere: stale bytes come back as NaNs."""
    name = "packed pages of 16 into 32 tokens, 100 tokens"
    index = [row.name for row in ROWS].index(f"{name}, TP 1 to 1")
    assert started.result(f"ours-{mode}", index)["tail"] == [0]
    staged = [other for other, *_ in MIXED].index(f"{name}, pushed from two pipeline stages")
    assert started.result("mixed", staged)["tail"] == [0]


@pytest.mark.parametrize("mode", _MODES)
def test_the_cheaper_way_is_taken(started: Runs, mode: str) -> None:
    """Packed into shuffled pages goes in a descriptor a page, where runs would take thousands, and no byte twice."""
    index = [row.name for row in ROWS].index("packed pages into AITER shuffle, TP 1 to 1")
    chosen = started.result(f"ours-{mode}", index)
    names = [name for name, *_ in MIXED]
    direct = started.result(
        "mixed", names.index(f"packed into AITER shuffle pages, {mode}ed, descriptor by descriptor")
    )
    layers, pages, page_bytes = 2, 4, 16384
    assert chosen["descriptors"] <= layers * pages
    assert chosen["bytes"] == direct["bytes"] == layers * pages * page_bytes
    assert direct["descriptors"] > 1000 * layers * pages


def test_said_once(started: Runs) -> None:
    """What is not known is said once in a process's log, not for every layer, rank and engine."""
    said = [text for at in range(len(MIXED)) for text in started.result("mixed", at)["warnings"]]
    assert len([text for text in said if "interior is not known" in text]) == 1
    assert all(said.count(text) == 1 for text in said)


def test_waking_is_met_anew(started: Runs) -> None:
    """After a sleep of either side what was prepared is void: every rank that plans meets its peer a second time."""
    slept = [(at, case) for at, (_, case, _, _) in enumerate(MIXED) if case.get("sleep")]
    assert len(slept) == 4
    for at, case in slept:
        assert len(started.result("mixed", at)["contact"]) == 2 * case["decode"]["tp"], MIXED[at][0]


def test_the_destination_of_a_push_checks(started: Runs) -> None:
    """What it must not be written it refuses when it adds its source: no registration leaves it, and nobody answers."""
    names = [name for name, *_ in MIXED]
    at = names.index("an instruction set whose packing is not known, pushed")
    assert started.result("mixed", at)["contact"] == []
    # Here it is the source that refuses, which has been asked.
    at = names.index("packed into AITER shuffle pages, pushed, conversion off")
    assert len(started.result("mixed", at)["contact"]) == 1


@pytest.mark.parametrize("index", range(len(MIXED)), ids=[name for name, _, _, _ in MIXED])
def test_mixed(started: Runs, index: int) -> None:
    """Our connector with stock peers, with pages of another interior, and with other options."""
    _, _, verdict, said = MIXED[index]
    result = started.result("mixed", index)
    assert result["verdict"] == verdict, result["errors"] or result.get("wrong")
    for text in said:
        assert any(text in error for error in result["errors"]), result["errors"]
