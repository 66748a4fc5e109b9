"""Index tables that rearrange one side's pages into the other's, made from the planner's own runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kvreshard as kvr

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """What one page of a period holds of one page of the other side's.

    Attributes:
        segment: Which of our segments.
        local: Our page in the period.
        remote: The peer's page in the period.
        target: Where the units go, from the start of our page, int64.
        source: Where they come from, from the start of the peer's page, int64.
    """

    segment: int
    local: int
    remote: int
    target: torch.Tensor
    source: torch.Tensor


@dataclass(frozen=True)
class Table:
    """The cells of one period, for all layers built alike.

    Attributes:
        unit: Bytes that move together: 1, 2, 4 or 8.
        local_pages: Our pages in a period.
        remote_pages: The peer's pages in a period.
        local_tokens: Tokens of our pages.
        remote_tokens: Tokens of the peer's.
        cells: The cells.
    """

    unit: int
    local_pages: int
    remote_pages: int
    local_tokens: int
    remote_tokens: int
    cells: tuple[Cell, ...]


def likeness(here: kvr.Layer, there: kvr.Layer, mine: kvr.RankLayout, theirs: kvr.RankLayout) -> Any:
    """A key that is equal for pairs of layers that one table serves."""

    def of(layer: kvr.Layer, layout: kvr.RankLayout) -> Any:
        segments = tuple(
            (segment.format.fingerprint, tuple(sorted(segment.holds.items())), segment.page_stride, segment.offset % 8)
            for segment in layer.segments
        )
        return segments, tuple(sorted(layer.totals.items())), layout.groups[layer.group].tokens_per_state

    return of(here, mine), of(there, theirs)


def _page_tokens(layout: kvr.RankLayout, layer: kvr.Layer) -> int:
    states = layer.segments[0].format.extents.get("n", 1)
    tokens = states * layout.groups[layer.group].tokens_per_state
    if tokens.denominator != 1:
        raise kvr.IncompatibleLayout(f"layer {layer.name}: a page of {tokens} tokens cannot be landed")
    return int(tokens)


def build(mine: kvr.RankLayout, theirs: kvr.RankLayout, here: kvr.Layer, there: kvr.Layer) -> Table:
    """Plans one period of two layers exactly, on memory that does not exist, and turns its runs into tables."""
    local_tokens, remote_tokens = _page_tokens(mine, here), _page_tokens(theirs, there)
    period = math.lcm(local_tokens, remote_tokens)
    counts = period // local_tokens, period // remote_tokens
    local, local_starts = _pretend(mine, here, counts[0])
    remote, remote_starts = _pretend(theirs, there, counts[1])
    plan = kvr.plan(local, remote, direction="read")
    request = kvr.Request(
        tokens=(0, period),
        local=[kvr.Blocks(list(range(counts[0])), 0)],
        remote=[kvr.Blocks(list(range(counts[1])), 0)],
    )
    to, origin = (rows.astype(np.int64) for rows in plan.lists(request))
    strides = [segment.page_stride for segment in here.segments] + [segment.offset for segment in here.segments]
    unit = math.gcd(8, *(int(np.gcd.reduce(part)) for part in (to[:, 0], to[:, 1], origin[:, 0])), *strides)
    lengths = to[:, 1] // unit
    within = np.arange(lengths.sum(), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    targets = np.repeat(to[:, 0], lengths) + within * unit
    sources = np.repeat(origin[:, 0], lengths) + within * unit
    return Table(
        unit,
        *counts,
        local_tokens,
        remote_tokens,
        _cells(here, there, targets, sources, local_starts, remote_starts, unit),
    )


def _pretend(layout: kvr.RankLayout, layer: kvr.Layer, pages: int) -> tuple[kvr.RankLayout, list[int]]:
    """A rank with this layer alone, its segments one behind the other; and where each begins."""
    size = sum(segment.format.page_bytes for segment in layer.segments) * pages
    region = kvr.Region(base=1 << 20, bytes=size)
    segments, starts, offset = [], [], 0
    for segment in layer.segments:
        segments.append(kvr.Segment(region, segment.format, pages=pages, offset=offset, holds=segment.holds))
        starts.append((1 << 20) + offset)
        offset += segment.format.page_bytes * pages
    alone = kvr.Layer(layer.name, segments, totals=layer.totals or None)
    group = single(layout.groups[layer.group])
    return kvr.RankLayout(engine=layout.engine, layers=[alone], groups=[group], tp=layout.tp), starts


def _cells(
    here: kvr.Layer,
    there: kvr.Layer,
    targets: Ints,
    sources: Ints,
    local_starts: list[int],
    remote_starts: list[int],
    unit: int,
) -> tuple[Cell, ...]:
    if len(there.segments) != 1:
        raise kvr.IncompatibleLayout(f"layer {there.name}: a peer whose slots are planes cannot be landed")
    segment = np.searchsorted(np.array(local_starts), targets, side="right") - 1
    sizes = np.array([one.format.page_bytes for one in here.segments], dtype=np.int64)
    local, at = np.divmod(targets - np.array(local_starts)[segment], sizes[segment])
    remote, origin = np.divmod(sources - remote_starts[0], there.segments[0].format.page_bytes)
    cells = []
    for which in np.unique(np.stack([segment, local, remote], axis=1), axis=0):
        chosen = (segment == which[0]) & (local == which[1]) & (remote == which[2])
        cells.append(
            Cell(
                int(which[0]),
                int(which[1]),
                int(which[2]),
                torch.from_numpy(at[chosen] // unit),
                torch.from_numpy(origin[chosen] // unit),
            )
        )
    return tuple(cells)


def single(group: kvr.Group) -> kvr.Group:
    """The same group counted in kernel pages."""
    return kvr.Group(group.kind, tokens_per_state=group.tokens_per_state)
