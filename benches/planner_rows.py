"""The medians of the Rust benches, as criterion left them under target/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from .table import Row, short

PLAIN = "plain store of the same bytes"


def medians(target: Path) -> dict[str, float]:
    """Seconds of every bench by its name."""
    found = {}
    for about in target.glob("criterion/**/new/benchmark.json"):
        name = json.loads(about.read_text())["full_id"]
        found[name] = json.loads(about.with_name("estimates.json").read_text())["median"]["point_estimate"] * 1e-9
    return found


def rows(target: Path) -> Iterator[Row]:
    """A row for each bound of benches/planner.rs."""
    found = medians(target)
    for pages in (1_000, 1_000_000):
        name = f"plan and rows, 80 layers, {pages} pages"
        yield Row(f"Rust: {name}", short(found[name]), "50 us")
    for blocks in (128, 2_048, 8_192, 65_536):
        group = f"ids, 80 regions x {blocks} blocks"
        yield _against_store(group, found[f"{group}/pair and write"], found[f"{group}/{PLAIN}"])
    for order in ("in order here", "shuffled on both sides"):
        group = f"coalesce scattered lists of 65536 pages, one layer/{order}"
        yield Row(f"Rust: {group.replace('/', ', ')}", f"{found[group] / 65_536 * 1e9:.2f} ns a page", "3 ns a page")
    group = "Nx3 of 1000000 descriptors"
    yield _against_store(group, found[f"{group}/flat"], found[f"{group}/{PLAIN}"])
    yield Row("Rust: decode and check a peer, 80 layers", short(found["decode and check a peer, 80 layers"]), "30 us")
    name = "route 64 ranks to 64 ranks, 80 layers"
    yield Row(f"Rust: {name}", short(found[name]), "5 ms")


def _against_store(group: str, took: float, store: float) -> Row:
    beside = f"plain store of the same bytes: {short(store)}, so {took / store:.2f} times"
    return Row(f"Rust: {group}", short(took), "2 times a plain store", beside)
