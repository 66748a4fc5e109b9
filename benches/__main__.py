"""`python -m benches`: one table of every figure, beside what it is to reach.

The Rust figures are read from what `cargo bench` left under `--target`. Times are medians and are reported, never
asserted; `make bench-guard` and the tests hold counts.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from . import planner_rows, python_rows
from .table import Row, machine, print_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benches")
    parser.add_argument("--target", type=Path, default=Path("target"), help="cargo's target folder")
    parser.add_argument("--only", choices=["rust", "python", "nixl"], action="append", help="parts of the table")
    arguments = parser.parse_args()
    wanted = arguments.only or ["rust", "python", "nixl"]
    parts: list[Iterator[Row]] = []
    if "rust" in wanted:
        parts.append(planner_rows.rows(arguments.target))
    if "python" in wanted:
        parts.append(python_rows.rows())
    if "nixl" in wanted and importlib.util.find_spec("nixl") is not None:
        from . import transfers

        parts.append(transfers.rows())
    print(f"Machine: {machine()}\n")
    print_table(chain.from_iterable(parts))


if __name__ == "__main__":
    main()
