"""Where the time of packed transfers goes: milestones of the turns that `gpu_transfers.py --trace FILE` wrote down.

    python -m benches.gpu_profile FILE
    python -m benches.gpu_profile FILE --only "two slots"     the host's own work as well, of the rows whose case it is

Microseconds from the issuing side's call, medians of the traced turns of a row, over all ranks:

    asked      the first request has been sent to the peer
    taken      the peer has taken it in
    gather     the first gather has been launched
    post       the first transfer has been posted
    moved      the last transfer is seen to be over
    scatter    the last scatter has been launched
    over       ... and is seen to be over
    end        nothing is left to do on any rank

and, of single chunks, the medians of `gathering` and `moving` and `scattering`: from the launch, or the post, until the
end was seen. The host's work is that of a step of one rank, and in brackets of the first in a turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

Line = tuple[float, float, str]
MILESTONES = ("asked", "taken", "gather", "post", "moved", "scatter", "over", "end")
STEPS = ("gathering", "moving", "scattering")
WORK = {
    "[_issue]": "issue a request",
    "_kernel sender": "table and launch of a gather, its write made",
    "_kernel receiver": "table and launch of a scatter",
    "_move sender": "post a write",
    "_move receiver": "make and post a read",
    "_send": "send a message",
}


def milestones(logs: Sequence[Sequence[Line]]) -> dict[str, float]:
    """When what was reached, in microseconds; what a trace has not is left out."""
    begun = min(begin for log in logs for begin, _, _ in log)
    issues = [any(line[2] == "[_issue]" for line in log) for log in logs]

    def ends(what: str, among: bool | None = None, *, begin: bool = False) -> list[float]:
        some = [log for log, issuer in zip(logs, issues, strict=True) if among is None or issuer is among]
        return [(one if begin else other) - begun for log in some for one, other, text in log if text.startswith(what)]

    found = {
        "asked": ends("say", True),
        "taken": ends("[_hear]", False),
        "gather": ends("_kernel sender"),
        "post": ends("_move "),
    }
    last = {
        "moved": ends("_moved ", begin=True),
        "scatter": ends("_kernel receiver"),
        "over": ends("_kernel_ended receiver", begin=True),
        "end": ends(""),
    }
    first = {name: min(times) for name, times in found.items() if times}
    return {name: at * 1e6 for name, at in [*first.items(), *((n, max(t)) for n, t in last.items() if t)]}


def steps(logs: Sequence[Sequence[Line]]) -> Iterator[tuple[str, float]]:
    """Microseconds from the end of each launch or post until its end is seen."""
    opens = {"_kernel sender": "gathering", "_kernel receiver": "scattering", "_move sender": "moving"}
    opens["_move receiver"] = "moving"
    closes = {"_kernel_ended sender": "gathering", "_kernel_ended receiver": "scattering"}
    closes |= {"_moved sender": "moving", "_moved receiver": "moving"}
    for log in logs:
        begun: dict[tuple[str, str], float] = {}
        for begin, end, text in sorted(log):
            words = text.split()
            kind = " ".join(words[:2])
            if kind in opens:
                begun[opens[kind], words[words.index("slot") + 1]] = end
            elif kind in closes and (closes[kind], words[2]) in begun:
                yield closes[kind], (begin - begun.pop((closes[kind], words[2]))) * 1e6


def work(logs: Sequence[Sequence[Line]]) -> Iterator[tuple[str, float, bool]]:
    """Microseconds of each step, and whether it is the rank's first."""
    for log in logs:
        seen: set[str] = set()
        for begin, end, text in sorted(log):
            name = next((name for start, name in WORK.items() if text.startswith(start)), None)
            if name is not None:
                yield name, (end - begin) * 1e6, name not in seen
                seen.add(name)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--only", help="the case whose steps are shown as well")
    arguments = parser.parse_args()
    reached: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    every: dict[tuple[str, ...], dict[tuple[str, bool], list[float]]] = defaultdict(lambda: defaultdict(list))
    with open(arguments.file) as file:
        for line in file:
            turn: dict[str, Any] = json.loads(line)
            row = reached[turn["topology"], turn["case"], turn["how"]]
            for name, at in [*milestones(turn["logs"]).items(), *steps(turn["logs"])]:
                row[name].append(at)
            if turn["case"] == arguments.only:
                for name, spent, first in work(turn["logs"]):
                    every[turn["topology"], turn["case"], turn["how"]][name, first].append(spent)
    topology = ""
    for (where, case, how), row in reached.items():
        if "post" not in row:
            continue
        if where != topology:
            topology = where
            heads = " ".join(f"{name:>7s}" for name in MILESTONES)
            print(f"\n{where}\n{'case':33s} {'by':18s} {heads}   {' '.join(STEPS)}")
        times = " ".join(f"{statistics.median(row[name]):7.0f}" if row[name] else " " * 7 for name in MILESTONES)
        single = " ".join(f"{statistics.median(row[name]):{len(name)}.0f}" for name in STEPS if row[name])
        print(f"{case:33s} {how:18s} {times}   {single}")
        for name in WORK.values():
            later, firsts = (every[where, case, how][name, one] for one in (False, True))
            if firsts:
                rest = f"{statistics.median(later):.0f} " if later else ""
                print(f"{'':8s}{name:46s} {rest}({statistics.median(firsts):.0f})")


if __name__ == "__main__":
    main()
