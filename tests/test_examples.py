"""The examples run, and do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import kvreshard as kvr
from tests.convert import to_rank, to_request
from tests.engine_process import moved
from tests.oracle.engines import EVER, expected, filled, span
from tests.oracle.model import Blocks
from tests.oracle.scenarios import scenarios

pytest.importorskip("nixl")

MINIMAL = Path(__file__).parent.parent / "examples" / "minimal_connector.py"


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    """The example as a module."""
    found = importlib.util.spec_from_file_location("minimal_connector", MINIMAL)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_minimal_connector_runs_between_processes() -> None:
    done = subprocess.run([sys.executable, MINIMAL], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "every one in its place" in done.stdout


@pytest.mark.parametrize("name", ["hits-per-group", "inside-a-page", "rows-to-layers", "window-clipped-at-the-source"])
def test_the_minimal_connector_serves_any_request(minimal: ModuleType, name: str) -> None:
    """Groups, windows, hits, intervals inside pages: the planner's part, so a hundred lines suffice."""
    exchange = next(scenario.exchange for scenario in scenarios() if scenario.id == name)
    made = []
    for side, rank, blocks in (
        ("source", exchange.source[0], exchange.source_blocks[0]),
        ("target", exchange.target[0], tuple(Blocks(()) for _ in exchange.target_blocks[0])),
    ):
        memory = filled(rank, blocks, (0, EVER), 3)
        here = moved(rank, memory.ctypes.data - span(rank)[0])
        made.append((minimal.MinimalConnector(f"{side}-{name}", to_rank(here, side)), memory))
    (source, _), (target, memory) = made
    before = memory.copy()
    peer = target.connect(source.metadata())
    target.read(peer, to_request(exchange.request(0, 0)), "r")
    arrived: list[str] = []
    released: list[str] = []
    while not (arrived and released):
        arrived += target.poll()[0]
        released += source.poll()[1]
    assert (arrived, released) == (["r"], ["r"])
    np.testing.assert_array_equal(memory, expected(exchange, 0, before))


def test_the_minimal_connector_refuses_what_does_not_fit(minimal: ModuleType) -> None:
    memory = np.zeros(1 << 16, np.uint8)

    def rank(engine: str, dtype: str) -> kvr.RankLayout:
        page = kvr.PageFormat("n h k[d] v[d]", h=8, n=4, d=8, dtype=dtype)
        return minimal.rank(engine, memory, page, (0, 1))  # type: ignore[no-any-return]

    one, other = (
        minimal.MinimalConnector("one", rank("one", "bf16")),
        minimal.MinimalConnector("two", rank("two", "f16")),
    )
    with pytest.raises(kvr.IncompatibleLayout, match="element type"):
        one.connect(other.metadata())
    assert not one.plans
