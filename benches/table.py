"""Rows of the one table that `make bench` prints, and how they are timed."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure: what was done, what was measured, what it is to be, and what stands beside it for comparison."""

    what: str
    measured: str
    bound: str = ""
    beside: str = ""


def cpu_seconds(work: Callable[[], object], *, seconds: float = 0.3, batches: int = 25) -> float:
    """The median CPU time of one call: batches of calls, so many that all of them take about `seconds`.

    CPU time of this thread, since other work on a shared machine disturbs it less than the clock on the wall.
    """
    work()
    begun = time.thread_time_ns()
    work()
    once = max(time.thread_time_ns() - begun, 200)
    calls = max(1, round(seconds * 1e9 / batches / once))
    times = []
    for _ in range(batches if once < 50_000_000 else 5):
        begun = time.thread_time_ns()
        for _ in range(calls):
            work()
        times.append((time.thread_time_ns() - begun) / calls)
    return statistics.median(times) * 1e-9


def short(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def machine() -> str:
    """The processor, how many, and what runs on it."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    load = os.getloadavg()[0]
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{name}, {os.cpu_count()} cores, {system}, load {load:.1f}"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def print_table(rows: Iterable[Row]) -> None:
    """Prints Markdown, as docs/performance.md has it."""
    print("| what | measured | to reach | beside it |")
    print("|---|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.measured} | {row.bound} | {row.beside} |", flush=True)
