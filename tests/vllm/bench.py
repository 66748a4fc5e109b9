"""Times first contact and the planning of a request, stock and ours, one after the other in one process.

`python -m tests.vllm.bench` prints a table. NIXL's own calls (posting, news) are not counted: they are the same.
Times are of the machine at hand, and are reported, never asserted.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from tests.vllm.conftest import run_cases

_CASES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("32 layers, 64 pages, TP 1 to 1", {"tp": 1}, {"tp": 1}),
    ("32 layers, 64 pages, TP 1 to 2", {"tp": 1}, {"tp": 2}),
    ("32 layers, 64 pages, TP 2 to 1", {"tp": 2}, {"tp": 1}),
)


def main() -> None:
    """Runs every case with both connectors."""
    print("| pair | connector | first contact, ms | planning a request, ms | descriptors a request |")
    print("|---|---|---|---|---|")
    common = {"layers": 32, "heads": 4, "head_size": 64, "tokens": 1024, "rounds": 4}
    order = [(name, connector) for name, _, _ in _CASES for connector in ("stock", "ours")]
    cases = [
        {"prefill": {**prefill, "connector": connector}, "decode": {**decode, "connector": connector}, **common}
        for _, prefill, decode in _CASES
        for connector in ("stock", "ours")
    ]
    for (name, connector), result in zip(order, run_cases(cases), strict=True):
        if result["verdict"] != "right":
            sys.exit(f"{name}, {connector}: {result['errors'] or result['wrong']}")
        # The first call of each rank starts the handshake; it plans nothing.
        planning = sorted(result["planning"])[: len(result["planning"]) - len(result["contact"])]
        print(
            f"| {name} | {connector} | {1e3 * max(result['contact']):.1f} | "
            f"{1e3 * statistics.median(planning):.3f} | {result['descriptors'] // common['rounds']} |"
        )


if __name__ == "__main__":
    main()
