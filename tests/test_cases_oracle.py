"""The worked cases against the oracle alone: what the planner is held to must itself be right."""

from __future__ import annotations

import pytest

from tests.oracle.cases import Case, load_cases, recompute

CASES = load_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_agrees_with_the_oracle(case: Case) -> None:
    assert recompute(case) == case.expect


def test_ids_are_unique() -> None:
    assert len(CASES) == len({case.id for case in CASES}) > 0
