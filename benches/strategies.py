"""Direct, landed and packed on real NIXL over host memory, for the demonstration's scenarios and for conversions.

    python benches/strategies.py [--layers N] [--turns N] [scenario ...]

Each scenario runs in processes of its own, one a rank, all strategies in the same; every byte is checked after every
turn, and the medians of the turns are printed as a Markdown table. `predicted` is the cost model's, with the constants
that are shipped for host memory, and not of this machine. A time is from the call to the end, for the slowest rank.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from kvreshard.demo.run import Outcome, turns
from kvreshard.demo.scenarios import AITER, B12X, PACKED, ROCM, SCENARIOS, SLOTS, Scenario, Side, Strategy

CONVERSIONS = (
    Scenario("to-shuffled-1-1", Side(PACKED, 1), Side(AITER, 1), note="conversion"),
    Scenario("to-shuffled-2-1", Side(PACKED, 2), Side(AITER, 1), note="conversion"),
    Scenario("from-shuffled-1-2", Side(AITER, 1), Side(PACKED, 2), note="conversion"),
    Scenario("to-rocm-1-1", Side(SLOTS, 1), Side(ROCM, 1), note="conversion"),
    Scenario("six-4-2", Side(PACKED, 4), Side(AITER, 2), note="conversion, six processes"),
    Scenario("push-to-shuffled", Side(PACKED, 2), Side(AITER, 1), push=True, note="conversion, prefill pushes"),
    Scenario("b12x-2-1", Side(B12X, 2, 64), Side(B12X, 1, 64), end=512),
)
ALL = (*(one for one in SCENARIOS if one.refused is None and one.strategy == "direct"), *CONVERSIONS)


def cells(outcomes: Sequence[Outcome]) -> str:
    """The medians of one strategy's turns: posted, MiB, ms, predicted ms."""
    if not outcomes:
        return "| | | | "
    posted, size = outcomes[-1].posted, outcomes[-1].bytes / 2**20
    seconds = statistics.median(one.seconds for one in outcomes)
    return f"| {posted:,} | {size:.1f} | {seconds * 1e3:.1f} | {outcomes[-1].expected * 1e3:.1f} "


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a byte was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help=", ".join(one.name for one in ALL))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args(arguments)
    print(f"{platform.machine()}, {os.cpu_count()} cores; {given.layers} layers, median of {given.turns} turns\n")
    heads = "".join(f"| {name}: posted | MiB | ms | predicted " for name in ("direct", "landed", "packed"))
    print(f"| scenario | TP {heads}| auto |\n|---|---{'|--:' * 12}|---|")
    wrong = False
    for one in ALL:
        if given.scenario and one.name not in given.scenario:
            continue
        strategies: list[Strategy] = ["direct", "packed"] if one.push else ["direct", "landed", "packed"]
        order = [*strategies * given.turns, "auto"]
        outcomes = turns(replace(one, layers=given.layers), order, stage=lambda stage: None)
        for problem in [problem for outcome in outcomes for problem in outcome.problems]:
            wrong = True
            print(f"{one.name}: {problem}", file=sys.stderr)
        by = {name: [it for it in outcomes[:-1] if it.scenario.strategy == name] for name in strategies}
        name = one.formats + (f", {one.note}" if one.note else "")
        row = "".join(cells(by.get(strategy, [])) for strategy in ("direct", "landed", "packed"))
        chosen = ", ".join(sorted(outcomes[-1].strategies))
        print(f"| {name} | {one.prefill.tp} -> {one.decode.tp} {row}| {chosen} |", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
