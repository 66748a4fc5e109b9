"""Times first contact and the planning of a request, stock and ours by turns in one process.

`python -m tests.vllm.bench` prints a table of medians. NIXL's own calls in a request (posting, news) are not counted:
they are the same. Of first contact, most of which is NIXL loading the peer's agent, the processor's time without NIXL
stands apart. Times are of the machine at hand, and are reported, never asserted.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from tests.vllm.conftest import run_cases

_TURNS = 12
_ROUNDS = 6
_PAIRS = {
    "32 layers, 64 pages, TP 1 to 1": (1, 1),
    "32 layers, 64 pages, TP 1 to 2": (1, 2),
    "32 layers, 64 pages, TP 2 to 1": (2, 1),
}


def main() -> None:
    """Runs every case with both connectors."""
    print(
        "| pair | connector | first contact of a rank, ms | of that CPU without NIXL, ms | planning a request, ms "
        "| descriptors a request |"
    )
    print("|---|---|---|---|---|---|")
    common = {"layers": 32, "heads": 4, "head_size": 64, "tokens": 1024, "rounds": _ROUNDS, "timed": True}
    order = [(name, connector) for name in _PAIRS for _ in range(_TURNS) for connector in ("stock", "ours")]
    cases: list[dict[str, Any]] = []
    for name, connector in order:
        prefill, decode = ({"tp": size, "connector": connector} for size in _PAIRS[name])
        cases.append({"prefill": prefill, "decode": decode, **common})
    results = run_cases(cases)
    for name in _PAIRS:
        for connector in ("stock", "ours"):
            found = [result for which, result in zip(order, results, strict=True) if which == (name, connector)]
            for result in found:
                if result["verdict"] != "right":
                    sys.exit(f"{name}, {connector}: {result['errors'] or result['wrong']}")
            contact, own = (
                statistics.median(time for result in found for time in result[name])
                for name in ("contact", "contact_cpu")
            )
            # The first call of each rank starts the handshake, and the next one follows it: what is timed is a steady
            # engine.
            planning = statistics.median(time for result in found for time in result["planning"][2 * _ranks(result) :])
            posted = found[0]["descriptors"] // _ROUNDS
            print(f"| {name} | {connector} | {1e3 * contact:.1f} | {1e3 * own:.2f} | {1e3 * planning:.3f} | {posted} |")


def _ranks(result: dict[str, Any]) -> int:
    return len(result["contact"])


if __name__ == "__main__":
    main()
