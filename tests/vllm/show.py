"""Shows how pairs of engines come out, with stock connectors and with ours: the tables of docs/vllm.md.

`python -m tests.vllm.show` runs every pair and prints both tables; `python -m tests.vllm.show TEXT` runs the pairs
whose name contains TEXT, and shows what was wrong, or why it was refused, and how many descriptors were posted.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.vllm.cases import MIXED, ROWS, Row
from tests.vllm.conftest import run_cases

_CONNECTORS = ("stock", "ours")
_MODES = ("pull", "push")
_HEADS = ("pair", "stock, pulled", "stock, pushed", "ours, pulled", "ours, pushed")


def bold(verdict: str) -> str:
    """A verdict as the tables show it."""
    return f"**{verdict}**" if verdict == "wrong" else verdict


def pairs(rows: list[Row], cells: list[list[str]]) -> str:
    """The table of pairs: for each row its cells, of stock and ours, pulled and pushed."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---|" + "---|" * 4]
    lines += [f"| {row.name} | {' | '.join(found)} |" for row, found in zip(rows, cells, strict=True)]
    return "\n".join(lines)


def others(names: list[str], cells: list[str]) -> str:
    """The table of our connector with other peers and options."""
    lines = ["| what | outcome |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {found} |" for name, found in zip(names, cells, strict=True)])


def expected() -> tuple[str, str]:
    """Both tables, as the tests expect them."""
    cells = [[bold(row.expected(name, mode)) for name in _CONNECTORS for mode in _MODES] for row in ROWS]
    return pairs(list(ROWS), cells), others([name for name, *_ in MIXED], [verdict for _, _, verdict, _ in MIXED])


def _cell(result: dict[str, Any], *, brief: bool) -> str:
    if brief:
        return bold(str(result["verdict"]))
    if result["verdict"] == "right":
        return f"right, {result['descriptors']} descriptors"
    why = result.get("wrong") or result["errors"]
    return f"{bold(result['verdict'])}: {(why[-1] if why else '')[:160]}"


def run(text: str) -> str:
    """Runs the pairs whose name contains `text`; both tables."""
    rows = [row for row in ROWS if text in row.name]
    mixed = [(name, case) for name, case, _, _ in MIXED if text in name]
    cases = [row.case(connector, mode) for row in rows for connector in _CONNECTORS for mode in _MODES]
    results = run_cases(cases + [case for _, case in mixed])
    found = [_cell(result, brief=not text) for result in results]
    tables = []
    if rows:
        tables.append(pairs(rows, [found[at : at + 4] for at in range(0, len(cases), 4)]))
    if mixed:
        tables.append(others([name for name, _ in mixed], found[len(cases) :]))
    return "\n\n".join(tables)


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    shown = run(wanted)
    if not shown:
        sys.exit(
            "no pair is called so; there are:\n" + "\n".join([row.name for row in ROWS] + [one[0] for one in MIXED])
        )
    print(shown)
