"""The README's examples run, and what it says they give is what they give; its table is the demonstration's."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from kvreshard.demo.scenarios import SCENARIOS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def run_example(source: str) -> int:
    """Runs an example; holds each expression that a comment follows against that comment; how many there were."""
    names: dict[str, Any] = {}
    compared = 0
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Expr) and "  # " in (line := source.splitlines()[statement.end_lineno - 1]):  # type: ignore[operator]
            value = eval(compile(ast.Expression(statement.value), "README.md", "eval"), names)
            assert repr(value) == line.split("  # ", 1)[1]
            compared += 1
        else:
            exec(compile(ast.Module([statement], []), "README.md", "exec"), names)
    return compared


@pytest.mark.parametrize("source", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(source: str) -> None:
    pytest.importorskip("nixl")
    assert run_example(source) > 0


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


def test_a_wrong_result_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        run_example(EXAMPLES[0].replace("(2, 16384)", "(2, 16385)"))


def test_the_first_example_is_short() -> None:
    """Ten lines, blank ones and the import apart."""
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) <= 11


def test_the_table_has_the_scenarios_of_the_demonstration() -> None:
    (table,) = re.findall(r"^```text\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    rows = [line for line in table.splitlines() if line.endswith(("right", "refused"))]
    assert len(rows) == len(SCENARIOS)
    for row, one in zip(rows, SCENARIOS, strict=True):
        assert row.strip().startswith(one.formats)
        assert f"{one.prefill.tp} -> {one.decode.tp}" in row
        assert row.endswith("refused" if one.refused else "right")
        if not one.refused:
            posted, fewest = (int(count.replace(",", "")) for count in row.split()[-6:-4])
            assert posted == fewest if one.strategy == "direct" else posted < fewest


def test_the_targets_named_exist() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z]+)[`\s]", README)):
        if target in {"test", "demo", "lint", "bench", "fuzz", "clean"}:
            assert f"\n{target}:" in makefile
