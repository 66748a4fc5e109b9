"""Six ranks, random engines, formats, strategies and faults; every byte of every rank is checked.

    python -m tests.soak --seconds 600 [--seed N]

A round deals the six processes to pairs of engines. Each pair moves the same request again and again, by another
strategy each time, and now and then something happens to one of its ranks. A request that finished is checked on all
its ranks: every element by the page formats' formulas, every byte besides against what it was. A request that failed
may fail for what was done to it and for nothing else; then no byte outside its pages has changed, and it is moved once
more, from the beginning, and has to be right.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvreshard.demo import scenarios as known
from kvreshard.demo.scenarios import Format, Scenario, Side
from tests.soak.worker import Outcome, Role, Worker

ROUND = 8.0
"""Seconds until the ranks are dealt anew."""

DEALS: list[list[tuple[int, int]]] = [
    [(2, 4)],
    [(4, 2)],
    [(3, 3)],
    [(5, 1)],
    [(1, 2), (2, 1)],
    [(1, 1), (2, 2)],
    [(1, 1), (1, 3)],
    [(3, 1), (1, 1)],
    [(2, 1), (2, 1)],
    [(1, 1), (1, 1), (1, 1)],
]
"""Ranks of the two engines of each pair, six in all."""

FAMILIES: list[list[Format]] = [
    [known.PACKED, known.SLOTS, known.AITER, known.ROCM, known.PAGE16],
    [known.B12X, replace(known.PACKED, label="packed fp8", types=known.FP8, element_bytes=1)],
    [known.FLASHINFER],
    [known.MLA],
]
"""Formats of which any two can be told apart and moved into each other."""

FAULTS = ["kill", "stop", "cancel", "deadline", "close"]
MAY_BE = {
    "kill": {"PeerLost", "NotConnected"},
    "close": {"PeerLost", "NotConnected"},
    "cancel": {"Cancelled"},
    "deadline": {"DeadlinePassed"},
    "stop": set(),
    "": set(),
}
"""Reasons for which requests may fail after something was done to one of their ranks."""

STAGING = {"staging": 24 << 20, "slot_bytes": 1 << 20}


@dataclass
class Totals:
    """What happened, over all pairs. Several threads add to it."""

    bytes: int = 0
    elements: int = 0
    seconds: list[tuple[str, float]] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def random_scenario(chance: random.Random, tp: tuple[int, int], name: str) -> Scenario:
    """Two engines of that many ranks, and a request between them."""
    family = chance.choices(FAMILIES, weights=[6, 2, 1, 1])[0]
    heads = 0 if family == [known.MLA] else chance.choice([2, 4, 6, 8, 12])
    sizes = [chance.choice([16, 32, 48, 64]) for _ in range(2)]
    same = chance.random() < 0.3
    one = chance.choice(family)
    prefill, decode = (
        Side(
            one if same else chance.choice(family),
            ranks,
            size,
            rows=chance.random() < 0.3,
            gap=chance.choice([0, 0, 256, 512]),
            backwards=chance.random() < 0.3,
        )
        for ranks, size in zip(tp, sizes, strict=True)
    )
    end = chance.randint(17, 320)
    step = math.lcm(*sizes)
    first = step * chance.randint(0, (end - 1) // step) if chance.random() < 0.3 else 0
    push, layers, seed = chance.random() < 0.4, chance.randint(1, 4), chance.getrandbits(30)
    return Scenario(name, prefill, decode, heads, end, first, push, layers=layers, seed=seed, staging=True)


class Pair:
    """Two engines and their ranks, for one round."""

    def __init__(self, number: int, scenario: Scenario, workers: list[Worker], chance: random.Random, totals: Totals):
        self.number, self.scenario, self.workers, self.chance, self.totals = number, scenario, workers, chance, totals
        self.turn = 0

    def run(self, until: float) -> None:
        """Moves until the round is over; whatever goes wrong is written down."""
        try:
            self._begin()
            self._turn()
            while time.monotonic() < until:
                self._turn()
        except Exception:
            self._problem(traceback.format_exc())

    def _problem(self, text: str) -> None:
        with self.totals.lock:
            self.totals.problems.append(f"{self.scenario}: {text}")

    def _begin(self) -> None:
        prefill = self.scenario.prefill.tp
        self.turn += 1
        flow = self.chance.choice(["push", "pull"])
        self.roles = [
            Role(
                self.scenario,
                "prefill" if at < prefill else "decode",
                at if at < prefill else at - prefill,
                f"{self.number}.{self.turn}/{'p' if at < prefill else 'd'}{at}",
                {**STAGING, "flow": flow},
            )
            for at in range(len(self.workers))
        ]
        for worker, role in zip(self.workers, self.roles, strict=True):
            worker.send("become", role)
        told = [worker.take() for worker in self.workers]
        sides = told[:prefill], told[prefill:]
        for worker, role in zip(self.workers, self.roles, strict=True):
            worker.send("join", *(sides if role.which == "prefill" else sides[::-1]))
        for worker in self.workers:
            worker.take()

    def _strategy(self) -> str:
        """Direct only where it is not millions of runs; landed only for those who read."""
        one, options = self.scenario, ["packed", "auto"]
        if not one.push:
            options.append("landed")
        if one.prefill.format == one.decode.format or one.end * one.layers <= 64:
            options.append("direct")
        return self.chance.choice(options)

    def _all(self, name: str, *arguments: Any) -> list[Any]:
        for worker in self.workers:
            worker.send(name, *arguments)
        return [worker.take() for worker in self.workers]

    def _issuers(self) -> list[int]:
        return [at for at, role in enumerate(self.roles) if role.issues]

    def _turn(self) -> None:
        fault = self.chance.choice(FAULTS) if self.chance.random() < 0.3 else ""
        strategy = self._strategy()
        if not self._once(strategy, fault):
            # Once more from the beginning, by whatever way, and undisturbed.
            self._once(strategy if self.chance.random() < 0.5 else self._strategy(), "")

    def _once(self, strategy: str, fault: str) -> bool:
        """One request on all ranks; whether it finished."""
        self.turn += 1
        id, one = f"r{self.turn}", self.scenario
        options: dict[str, Any] = {"strategy": strategy, "fence": not one.push and self.chance.random() < 0.5}
        if fault == "deadline":
            options["deadline"] = self.chance.choice([0.0, 0.001, 0.01, 0.05])
        issuers = self._issuers()
        others = [at for at in range(len(self.workers)) if at not in issuers]
        for at in [*others, *issuers]:
            self.workers[at].call("begin", id, options)
        hit = self._strike(fault, id, issuers) if fault else None
        ends = {at: self._wait(at, id) for at in issuers if at != hit or fault not in ("kill", "close")}
        bad = [end for end in ends.values() if end.kind == "failed"]
        with self.totals.lock:
            self.totals.faults[fault or "none"] += 1
            for end in ends.values():
                if end.kind == "finished":
                    self.totals.bytes += end.bytes
                    for used in set(end.strategies):
                        self.totals.requests[used] += 1
                        self.totals.seconds.append((used, end.seconds))
            self.totals.failures.update(end.reason for end in bad)
        wrong = [end for end in bad if end.reason not in MAY_BE[fault]]
        for end in wrong:
            self._problem(f"{strategy}, {fault or 'undisturbed'}: {end.reason}: {end.text}")
        if wrong:
            for text in (text for texts in self._all("lost") for text in texts):
                self._problem(text)
            self._begin()
            return False
        if hit is not None and fault in ("kill", "close"):
            # What is left of them is checked; then all begin anew, the one that was hit in another process.
            left = [at for at in range(len(self.workers)) if at != hit]
            time.sleep(0.05)
            for at in left:
                for text in self.workers[at].call("outside"):
                    self._problem(f"{strategy}, {fault}: {text}")
            self._begin()
            return False
        if bad:
            for at in others:
                self.workers[at].call("forget", id)
            for text in (text for texts in self._all("outside") for text in texts):
                self._problem(f"{strategy}, {fault}: {text}")
            self._all("restore")
            return False
        for at in others:
            heard = self._wait(at, id)
            if heard.kind != "heard":
                self._problem(f"{strategy}, {fault}: {self.roles[at].name} heard {heard.text}")
        for elements, problems in self._all("verify"):
            with self.totals.lock:
                self.totals.elements += elements
            for text in problems:
                self._problem(f"{strategy}, {fault or 'undisturbed'}: {text}")
        self._all("restore")
        return True

    def _strike(self, fault: str, id: str, issuers: list[int]) -> int | None:
        """Does it, after a moment, to one rank, which is returned."""
        time.sleep(self.chance.choice([0.0, 0.0, 0.001, 0.003, 0.01, 0.03]))
        at = self.chance.choice(issuers) if fault == "cancel" else self.chance.randrange(len(self.workers))
        worker = self.workers[at]
        if fault == "kill":
            worker.kill()
        elif fault == "stop":
            worker.signal(signal.SIGSTOP)
            time.sleep(self.chance.uniform(0.05, 0.6))
            worker.signal(signal.SIGCONT)
        elif fault == "cancel":
            worker.call("cancel", id)
        elif fault == "close":
            worker.call("close", 0.0)
        return at

    def _wait(self, at: int, id: str) -> Outcome:
        """The end of a request on a rank: when its pages are free, if it failed."""
        ends = time.monotonic() + 100
        while True:
            end: Outcome | None = self.workers[at].call("outcome", id)
            if end is not None and end.pages != "held":
                return end
            if time.monotonic() > ends:
                raise TimeoutError(f"{self.roles[at].name}: {id} did not end: {end}")
            time.sleep(0.001)


def soak(seconds: float, seed: int) -> Totals:
    """Rounds for so many seconds."""
    chance, totals = random.Random(seed), Totals()
    workers = [Worker() for _ in range(6)]
    try:
        for worker in workers:
            worker.call("lost")
        ends, number = time.monotonic() + seconds, 0
        while time.monotonic() < ends and len(totals.problems) < 10:
            number += 1
            deal = list(chance.choice(DEALS))
            chance.shuffle(workers)
            free, threads = list(workers), []
            for at, tp in enumerate(deal):
                taken, free = free[: sum(tp)], free[sum(tp) :]
                scenario = random_scenario(chance, tp, f"{number}.{at}")
                pair = Pair(10 * number + at, scenario, taken, random.Random(chance.random()), totals)
                until = min(ends, time.monotonic() + ROUND)
                threads.append(threading.Thread(target=pair.run, args=(until,)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        for worker in workers:
            worker.end()
    return totals


def report(totals: Totals, seconds: float, seed: int) -> None:
    """Prints what happened."""
    print(f"seed {seed}: {sum(totals.requests.values()):,} parts of requests in {seconds:.0f} s, {_faults(totals)}")
    print(f"moved {totals.bytes / 2**20:,.0f} MiB, {totals.bytes / 2**20 / seconds:.1f} MiB/s with checks between")
    print(f"checked {totals.elements:,} elements, and every byte besides; problems: {len(totals.problems)}")
    print(f"failures, each for what was done: {dict(totals.failures.most_common())}")
    print(f"{'strategy':>9} {'requests':>9} {'p50 ms':>9} {'p99 ms':>9}")
    for name in ("direct", "landed", "packed", "all"):
        taken = [1000 * one for used, one in totals.seconds if name in (used, "all")]
        if taken:
            print(f"{name:>9} {len(taken):>9,} {np.percentile(taken, 50):>9.1f} {np.percentile(taken, 99):>9.1f}")
    for text in totals.problems[:10]:
        print(f"PROBLEM {text}")


def _faults(totals: Totals) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(totals.faults.items()) if name != "none")


def main() -> None:
    """Runs it; the exit status says whether all was as it must be."""
    parser = argparse.ArgumentParser(description="Random transfers between six ranks under random faults.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    chosen = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    totals = soak(chosen.seconds, seed)
    report(totals, time.monotonic() - began, seed)
    sys.exit(bool(totals.problems) or not totals.elements)


if __name__ == "__main__":
    main()
