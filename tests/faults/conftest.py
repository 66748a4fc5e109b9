"""A bystander for all tests of faults, and how long each fault took to be seen."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.connector_rank import Rank
    from tests.faults.harness import Staged


@pytest.fixture(scope="session")
def bystander() -> Iterator[Rank]:
    """One process that every connector reads from while something happens to another."""
    from tests.connector_rank import Spec, running
    from tests.faults.harness import TCP

    with running(Spec("bystander", pages=8, environment={"UCX_TLS": TCP})) as (rank,):
        yield rank


@pytest.fixture
def stage(
    bystander: Rank, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Staged]:
    """Makes scenes, which end with the test."""
    from tests.faults.harness import Staged

    with ExitStack() as stack:
        yield Staged(bystander, request.node.name, tmp_path, stack, monkeypatch)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports times, which no test asserts."""
    if importlib.util.find_spec("nixl") is None:
        return
    from tests.faults.harness import seen

    if seen:
        terminalreporter.section("seconds from the fault to what the caller sees")
        for test, what, seconds in seen:
            terminalreporter.write_line(f"{seconds:8.3f}  {test}: {what}")
