"""Writes `tests/cases/layouts.toml`: what must come out of every scenario, counted element by element.

Run `python -m tests.oracle.enumerate` to print the file, with `--write` to put it in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.oracle.engines import bare, deal, readers
from tests.oracle.model import Blocks, Rank, Region
from tests.oracle.scenarios import Scenario, scenarios

LAYOUTS = Path(__file__).parent.parent / "cases" / "layouts.toml"

HEADER = """\
# Layouts and parallelism of every kind, with the transfer that must come out. Made by tests/oracle/enumerate.py, which
# lists every element of every page; no planner involved. The scenarios themselves stand in tests/oracle/scenarios.py.
#
# source has the tokens, target wants them; ranks are numbered through an engine. For each rank its place, then its
# segments as
#   layer | group | memory region+offset | pages x stride | sharded axes held | notation | extents | types
# blocks    for each rank and group: ids from which token on
# edges, one for each pair of ranks between which bytes move:
#   descriptors  the fewest runs contiguous on both sides that stay inside one registration on each side
#   run_bytes    the shortest and the longest
#   first        the first two: target region and byte in it, source region and byte in it, length
# zero      for each target rank, bytes of its listed blocks from the first token wanted on that no source sends
# readers   for each source rank, how many target ranks report to it; idle ones are not read, one only tells them
# writers   for each target rank, how many source ranks fill it
"""


def enumerate_all() -> str:
    """The whole file."""
    return HEADER + "".join(_case(scenario) for scenario in scenarios())


def _case(scenario: Scenario) -> str:
    exchange = scenario.exchange
    read, written, idle = readers(exchange)
    lines = [
        "",
        "[[case]]",
        f"id = {_text(scenario.id)}",
        f"bullet = {_text(scenario.bullet)}",
        f"about = {_text(scenario.about)}",
        f"direction = {_text(scenario.direction)}",
        f"tokens = {list(exchange.tokens)}",
        *_engine("source", exchange.source, exchange.source_blocks),
        *_engine("target", exchange.target, exchange.target_blocks),
        "edges = [",
    ]
    for (target, source), carried in sorted(deal(exchange.target, exchange.source).items()):
        here, there, lengths = (column.tolist() for column in exchange.pairs(target, source, carried).runs())
        first = [
            [*_place(exchange.target[target].regions, to), *_place(exchange.source[source].regions, by), length]
            for to, by, length in zip(here[:2], there[:2], lengths[:2], strict=True)
        ]
        names = sorted(carried)
        lines.append(
            f"  {{ target = {target}, source = {source}, layers = [{', '.join(_text(name) for name in names)}],"
            f" descriptors = {len(lengths)}, bytes = {sum(lengths)},"
            f" run_bytes = {[min(lengths), max(lengths)] if lengths else []}, first = {first} }},"
        )
    zero = [len(bare(exchange, target)) for target in range(len(exchange.target))]
    lines += ["]", f"zero = {zero}", f"readers = {read}", f"idle = {sorted(idle)}", f"writers = {written}", ""]
    return "\n".join(lines)


def _engine(name: str, ranks: tuple[Rank, ...], blocks: tuple[tuple[Blocks, ...], ...]) -> list[str]:
    lines = [f"{name} = ["]
    for rank in ranks:
        place = f"tp {rank.tp[0]}/{rank.tp[1]} pp {rank.pp[0]}/{rank.pp[1]} cp {rank.cp[0]}/{rank.cp[1]}"
        place += f" interleave {rank.interleave}" if rank.cp[1] > 1 else ""
        lines += ["  [", f"    {_text(place)},"]
        lines += [f"    {_text(segment)}," for segment in _segments(rank)]
        lines.append("  ],")
    lines.append("]")
    listed = [[f"{list(one.ids)} from {one.first_token}" for one in of_rank] for of_rank in blocks]
    same = listed[:1] if all(one == listed[0] for one in listed) else listed
    lines.append(f"{name}_blocks = [{', '.join('[' + ', '.join(map(_text, one)) + ']' for one in same)}]")
    return lines


def _segments(rank: Rank) -> Iterable[str]:
    for layer in rank.layers:
        group = rank.groups[layer.group]
        about = f"group {layer.group} {group.kind}"
        about += f" of {group.pages_per_block} pages a block" if group.pages_per_block > 1 else ""
        about += f", {group.tokens_per_state} tokens a state" if group.tokens_per_state != 1 else ""
        about += f", window {group.window}" if group.window else ""
        for segment in layer.segments:
            region = rank.regions[segment.region]
            holds = " ".join(f"{axis}[{low},{high})" for axis, (low, high) in sorted(segment.holds.items()))
            extents = " ".join(f"{axis}={extent}" for axis, extent in sorted(segment.page.extents.items()))
            types = " ".join(f"{component}:{kind}" for component, kind in sorted(segment.page.types.items()))
            place = f"{region.memory} {segment.region}+{segment.offset} | {segment.pages}x{segment.page_stride}"
            yield f"{layer.name} | {about} | {place} | {holds or 'all'} | {segment.page.notation} | {extents} | {types}"


def _place(regions: tuple[Region, ...], address: int) -> tuple[int, int]:
    """The region and the byte in it."""
    starts = np.array([region.base for region in regions])
    number = int(np.searchsorted(starts, address, side="right")) - 1
    return number, address - regions[number].base


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        LAYOUTS.write_text(enumerate_all(), encoding="utf-8")
    else:
        print(enumerate_all(), end="")
