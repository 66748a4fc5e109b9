"""First contact: marked pages through the real writer, plan and reader before any request.

Marks are by the global indexes of elements, so each side works them out from its own format alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvreshard as kvr
from kvreshard.probe import Marks, ProbeError, Source, WriterMismatch, marks
from kvreshard.probe.coarse import inputs_of_sources
from kvreshard.probe.sources import Values, order

from .control import Takes
from .errors import Unsupported
from .strategy import Wanted

Interval = tuple[int, int]
Box = Mapping[str, Interval]
"""Half-open intervals of global indexes, by axis; an axis that is not named is whole."""

Held = list[tuple[str, Interval]]
"""Axes in the order of an array's, and where they lie."""

Read = Callable[[str, int], Mapping[str, Any]]
"""`read(layer, page)`: what this engine's own reader finds, one array a component (an input, where the writer
quantises), axes as the marks have them."""

Write = Callable[[str, int, Mapping[str, Any]], None]
"""`write(layer, page, values)`: stores a page with the engine's own writer, from one array a component or input."""


@dataclass(frozen=True)
class FirstContact:
    """What `Connector.connect(..., first_contact=)` does before it gives the peer out.

    `request` names scratch blocks of both sides, which nobody else uses meanwhile.

    - Reading: the peer has marked its own with `mark(blocks, write, seed=, sources=)`. They are read by the plan, and
      `read` says what this engine finds in its own: float32 for float types, else integers, as `kvreshard.probe.marks`
      makes them.
    - Writing: `write` marks this side's, the plan writes them, and the peer, which has called `expect_contacts`, holds
      what its own reader finds against the marks.

    Another `seed` each time: marks of an earlier contact that still lie there would pass. `sources`, the same on both
    sides, are for writers that quantise (`kvreshard.probe.marks`): `write` and `read` then have inputs by name, not
    components. Both are done with the pages when they return. After `deadline` seconds the contact has failed.
    `strategy` is how pages travel, as for `read`; on a host's agent, whose notices nobody passes on meanwhile, "auto"
    is "direct".
    """

    request: kvr.Request
    read: Read | None = None
    seed: int = 0
    deadline: float = 10.0
    strategy: Wanted = "auto"
    write: Write | None = None
    sources: Mapping[str, Source] | None = None


def mark(
    layout: kvr.RankLayout,
    blocks: Sequence[kvr.Blocks],
    write: Write,
    seed: int,
    sources: Mapping[str, Source] | None = None,
) -> int:
    """Marks every page of the blocks (one list a group); returns how many."""
    count = 0
    for layer in layout.layers:
        for page, made, _ in _marked(layout, layer, blocks, seed, sources):
            write(layer.name, page, made.values)
            count += 1
    return count


@dataclass(frozen=True)
class Expected:
    """What a reader is to find: marks of `seed` in blocks of its own, of tokens that begin and end with `tokens`."""

    blocks: Sequence[kvr.Blocks]
    tokens: Interval
    seed: int
    sources: Mapping[str, Source] | None = None


def compare(
    layout: kvr.RankLayout, peer: kvr.RankLayout, takes: Takes | None, expected: Expected, read: Read
) -> tuple[int, int]:
    """Holds what the reader finds against the marks, as far as the peer has them, or the `takes` of an edge carry them.

    Returns pages and elements looked at. Raises `WriterMismatch`, or `ProbeError` when there was nothing to look at.
    """
    pages = elements = 0
    for layer in layout.layers:
        boxes = _boxes(layer, peer, takes)
        if not boxes:
            continue
        for page, made, held in _marked(layout, layer, expected.blocks, expected.seed, expected.sources):
            found = read(layer.name, page)
            pages += 1
            for box in boxes:
                try:
                    elements += _compare(made, found, held, {**box, "n": expected.tokens})
                except WriterMismatch as problem:
                    raise WriterMismatch(
                        f"first contact with {peer.engine}: layer {layer.name}, page {page}: {problem}; "
                        "the two sides do not mean the same pages",
                        component=problem.component,
                    ) from problem
    if not elements:
        raise ProbeError("first contact: the request covers no element that both sides hold")
    return pages, elements


def _compare(made: Marks, found: Mapping[str, Any], held: Mapping[str, Held], box: Box) -> int:
    count = 0
    for component, values in made.values.items():
        if component not in found:
            raise WriterMismatch(f"component {component}: the reader found nothing", component=component)
        read = np.asarray(found[component])
        if read.shape != values.shape:
            raise ProbeError(f"component {component}: shape {read.shape} is read, {values.shape} was marked")
        cut = []
        for axis, (low, high) in held[component]:
            left, right = box.get(axis, (low, high))
            cut.append(slice(max(low, left) - low, max(0, min(high, right) - low)))
        part = values[tuple(cut)]
        Marks({component: part}, made.coarse).compare({component: read[tuple(cut)]})
        count += part.size
    return count


def require_tokens(layout: kvr.RankLayout, layer: kvr.Layer) -> None:
    """Raises `Unsupported` for a layer whose pages are no whole runs of tokens."""
    group = layout.groups[layer.group]
    if group.kind != "tokens" or group.tokens_per_state != 1 or layout.cp[1] != 1:
        raise Unsupported(
            f"layer {layer.name}: marks and digests are for pages of whole runs of tokens, not for states or context "
            "parallelism"
        )


def _marked(
    layout: kvr.RankLayout,
    layer: kvr.Layer,
    blocks: Sequence[kvr.Blocks],
    seed: int,
    sources: Mapping[str, Source] | None,
) -> Iterator[tuple[int, Marks, dict[str, Held]]]:
    """Each page of the blocks, what it is marked with, and where the axes of each component (or input) lie."""
    require_tokens(layout, layer)
    if len(blocks) != len(layout.groups):
        raise ProbeError(f"blocks of {len(blocks)} groups are given, the layout has {len(layout.groups)}")
    count = layout.groups[layer.group].pages_per_block
    listed = blocks[layer.group]
    pages = [int(block) * count + page for block in listed.ids for page in range(count)]
    for number, page in enumerate(pages):
        made: dict[str, Values] = {}
        held: dict[str, Held] = {}
        for segment in layer.segments:
            planes = [axis for axis in segment.holds if axis not in segment.format.extents]
            if planes:
                raise Unsupported(f"layer {layer.name}: `{segment.format.notation}` has no axis {', '.join(planes)}")
            size = segment.format.extents["n"]
            begins = {axis: low for axis, (low, _) in segment.holds.items()} | {"n": listed.first_token + number * size}
            for name, values in marks(segment.format, seed=seed, first=begins, sources=sources).values.items():
                if name in made:
                    raise Unsupported(f"layer {layer.name}: several segments hold component {name}")
                made[name] = values
                extents = _extents(segment, name, sources)
                held[name] = [
                    (axis, (begins.get(axis, 0), begins.get(axis, 0) + extents[axis])) for axis in order(extents)
                ]
        yield page, Marks(made, sources is not None), held


def _extents(segment: kvr.Segment, name: str, sources: Mapping[str, Source] | None) -> Mapping[str, int]:
    if sources is None:
        return dict(segment.format.axes(name))
    uneven = [axis for source in sources.values() for axis in source.ratios if axis in segment.holds or axis == "n"]
    if uneven:
        raise Unsupported(f"axis {uneven[0]} is dealt to ranks: an element must stand for one index of it")
    return inputs_of_sources(segment.format, sources)[name]


def _boxes(layer: kvr.Layer, peer: kvr.RankLayout, takes: Takes | None) -> list[Box]:
    """What the peer has of the layer, or the edge carries: intervals of sharded axes."""
    if takes is not None:
        return [{axis: (low, high) for axis, low, high in box} for name, box, _ in takes if name == layer.name]
    return [dict(segment.holds) for other in peer.layers if other.name == layer.name for segment in other.segments]
