"""Shows how pairs of engines come out, with stock connectors and with ours.

`python -m tests.vllm.show [TEXT]` runs the pairs whose name contains TEXT (all of them without), pulled and pushed, and
prints a table: the verdicts, the descriptors that were posted, and what was wrong or why it was refused.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.vllm.cases import ROWS, Row
from tests.vllm.conftest import run_cases


def _cell(result: dict[str, Any]) -> str:
    if result["verdict"] == "right":
        return f"right, {result['descriptors']} descriptors"
    why = result.get("wrong") or result["errors"]
    return f"{result['verdict']}: {(why[-1] if why else '')[:160]}"


def table(rows: list[Row]) -> str:
    """A line for each pair and mode."""
    cases = [(row, mode, connector) for row in rows for mode in ("pull", "push") for connector in ("stock", "ours")]
    results = run_cases([row.case(connector, mode) for row, mode, connector in cases])
    lines = ["| pair | mode | stock | ours |", "|---|---|---|---|"]
    for at in range(0, len(results), 2):
        row, mode, _ = cases[at]
        lines.append(f"| {row.name} | {mode} | {_cell(results[at])} | {_cell(results[at + 1])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [row for row in ROWS if wanted in row.name]
    if not chosen:
        sys.exit("no pair is called so; there are:\n" + "\n".join(row.name for row in ROWS))
    print(table(chosen))
