"""First contact: marked pages through the real writer, plan and reader before any request; digests of pages after one.

Marks and digests are by the global indexes of elements, so each side works them out from its own format alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvreshard as kvr
from kvreshard.kernels.memory import Span
from kvreshard.probe import Marks, ProbeError, WriterMismatch, marks, page_digest
from kvreshard.probe.sources import order

from .errors import Unsupported
from .events import Event, Failed, Finished
from .strategy import Wanted

Interval = tuple[int, int]
Box = Mapping[str, Interval]
"""Half-open intervals of global indexes, by axis; an axis that is not named is whole."""

Held = list[tuple[str, Interval]]
"""Axes in the order of an array's, and where they lie."""

Read = Callable[[str, int], Mapping[str, Any]]
"""`read(layer, page)`: what this engine's own reader finds, one array a component, axes as the marks have them."""

Write = Callable[[str, int, Mapping[str, Any]], None]
"""`write(layer, page, values)`: stores a page with the engine's own writer, from one array a component."""


@dataclass(frozen=True)
class FirstContact:
    """What `Connector.connect(..., first_contact=)` does before it gives the peer out.

    `request` names scratch blocks of both sides, which nobody else uses meanwhile; the peer has marked its own with
    `mark(blocks, write, seed)`. They are read by the plan, and `read` says what this engine finds in its own: float32
    for float types, else integers, as `kvreshard.probe.marks` makes them. Another `seed` each time: marks of an earlier
    contact that still lie there would pass. After `deadline` seconds the contact has failed. `strategy` is how pages
    travel, as for `read`; on a host's agent, whose notices nobody passes on meanwhile, "auto" is "direct".
    """

    request: kvr.Request
    read: Read
    seed: int = 0
    deadline: float = 10.0
    strategy: Wanted = "auto"


def mark(layout: kvr.RankLayout, blocks: Sequence[kvr.Blocks], write: Write, seed: int) -> int:
    """Marks every page of the blocks (one list a group); returns how many."""
    count = 0
    for layer in layout.layers:
        for page, made, _ in _marked(layout, layer, blocks, seed):
            write(layer.name, page, made)
            count += 1
    return count


def await_end(id: str, events: list[Event], progress: Callable[[], None], pause: float) -> None:
    """Makes progress until request `id` has ended, and takes its event out; raises why it failed."""
    while True:
        for event in events:
            if isinstance(event, Finished | Failed) and event.id == id:
                events.remove(event)
                if isinstance(event, Failed):
                    raise event.reason
                return
        progress()
        time.sleep(pause)


def compare(
    layout: kvr.RankLayout, peer: kvr.RankLayout, edge: kvr.Edge | None, contact: FirstContact
) -> tuple[int, int]:
    """Holds what the reader finds against the marks, as far as the peer has them.

    Returns pages and elements looked at. Raises `WriterMismatch`, or `ProbeError` when there was nothing to look at.
    """
    pages = elements = 0
    first, last = contact.request.tokens
    for layer in layout.layers:
        boxes = _boxes(layer, peer, edge)
        if not boxes:
            continue
        for page, made, held in _marked(layout, layer, contact.request.local, contact.seed):
            found = contact.read(layer.name, page)
            pages += 1
            for box in boxes:
                try:
                    elements += _compare(made, found, held, {**box, "n": (first, last)})
                except WriterMismatch as problem:
                    raise WriterMismatch(
                        f"first contact with {peer.engine}: layer {layer.name}, page {page}: {problem}; "
                        "the two sides do not mean the same pages",
                        component=problem.component,
                    ) from problem
    if not elements:
        raise ProbeError("first contact: the request covers no element that both sides hold")
    return pages, elements


def _compare(made: Mapping[str, Any], found: Mapping[str, Any], held: Mapping[str, Held], box: Box) -> int:
    count = 0
    for component, values in made.items():
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
        Marks({component: part}).compare({component: read[tuple(cut)]})
        count += part.size
    return count


def digests(
    layout: kvr.RankLayout,
    peer: kvr.RankLayout,
    spans: Sequence[Span],
    blocks: Sequence[kvr.Blocks],
    tokens: Interval,
    samples: int,
    seed: int,
) -> dict[str, str]:
    """A digest a layer of what both sides hold of the page that has token `tokens[0]`."""
    found: dict[str, str] = {}
    theirs = {layer.name: layer for layer in peer.layers}
    first, last = tokens
    for layer in layout.layers:
        other = theirs.get(layer.name)
        if other is None:
            continue
        mine, its = _only(layout, layer), _only(peer, other)
        size, its_size = mine.format.extents["n"], its.format.extents["n"]
        begin = first // size * size
        common = {axis: _meet(span, its.holds.get(axis, span)) for axis, span in mine.holds.items()}
        common["n"] = (first, min(last, begin + size, (first // its_size + 1) * its_size))
        if any(low >= high for low, high in common.values()):
            continue
        group = layout.groups[layer.group]
        at = (begin - blocks[layer.group].first_token) // size
        block, page = divmod(at, group.pages_per_block)
        ids = blocks[layer.group].ids
        if not 0 <= block < len(ids):
            raise ProbeError(f"layer {layer.name}: token {first} is in none of the {len(ids)} blocks given")
        start = mine.region.base + mine.offset + (int(ids[block]) * group.pages_per_block + page) * mine.page_stride
        span = next(one for one in spans if _holds(one, mine.region, start, mine.format.page_bytes))
        found[layer.name] = page_digest(
            _bytes(span),
            mine.format,
            start=start - span.address,
            samples=samples,
            seed=seed,
            shares={**mine.holds, "n": (begin, begin + size)},
            common=common,
        )
    return found


def _holds(span: Span, region: kvr.Region, start: int, size: int) -> bool:
    device = region.device if region.memory == "VRAM" else None
    return span.device == device and span.address <= start and start + size <= span.address + span.bytes


def _bytes(span: Span) -> Any:
    if span.device is None:
        return span.array()
    torch: Any = sys.modules.get("torch")
    if span.owner is None or torch is None:
        raise Unsupported("a digest of device memory needs the tensor that it was registered as")
    return torch.empty(0, dtype=torch.uint8, device=span.owner.device).set_(span.owner)


def _only(layout: kvr.RankLayout, layer: kvr.Layer) -> kvr.Segment:
    _require_tokens(layout, layer)
    if len(layer.segments) != 1:
        raise Unsupported(f"layer {layer.name}: a digest is of layers of one segment, this has {len(layer.segments)}")
    return layer.segments[0]


def _require_tokens(layout: kvr.RankLayout, layer: kvr.Layer) -> None:
    group = layout.groups[layer.group]
    if group.kind != "tokens" or group.tokens_per_state != 1 or layout.cp[1] != 1:
        raise Unsupported(
            f"layer {layer.name}: marks and digests are for pages of whole runs of tokens, not for states or context "
            "parallelism"
        )
    for segment in layer.segments:
        missing = [axis for axis in ("n", *segment.holds) if axis not in segment.format.extents]
        if missing:
            raise Unsupported(f"layer {layer.name}: `{segment.format.notation}` has no axis {', '.join(missing)}")


def _marked(
    layout: kvr.RankLayout, layer: kvr.Layer, blocks: Sequence[kvr.Blocks], seed: int
) -> Iterator[tuple[int, dict[str, Any], dict[str, Held]]]:
    """Each page of the blocks, what it is marked with by component, and where each component's axes lie."""
    _require_tokens(layout, layer)
    if len(blocks) != len(layout.groups):
        raise ProbeError(f"blocks of {len(blocks)} groups are given, the layout has {len(layout.groups)}")
    count = layout.groups[layer.group].pages_per_block
    listed = blocks[layer.group]
    pages = [int(block) * count + page for block in listed.ids for page in range(count)]
    for number, page in enumerate(pages):
        made: dict[str, Any] = {}
        held: dict[str, Held] = {}
        for segment in layer.segments:
            size = segment.format.extents["n"]
            first = listed.first_token + number * size
            begins = {axis: low for axis, (low, _) in segment.holds.items()} | {"n": first}
            for component, values in marks(segment.format, seed=seed, first=begins).values.items():
                if component in made:
                    raise Unsupported(f"layer {layer.name}: several segments hold component {component}")
                made[component] = values
                axes = dict(segment.format.axes(component))
                held[component] = [
                    (axis, (begins.get(axis, 0), begins.get(axis, 0) + axes[axis])) for axis in order(axes)
                ]
        yield page, made, held


def _boxes(layer: kvr.Layer, peer: kvr.RankLayout, edge: kvr.Edge | None) -> list[Box]:
    """What the peer has of the layer, or the edge carries: intervals of sharded axes."""
    if edge is not None:
        return [{axis: (low, high) for axis, low, high in box} for name, box, _ in edge.takes if name == layer.name]
    return [dict(segment.holds) for other in peer.layers if other.name == layer.name for segment in other.segments]


def _meet(one: Interval, other: Interval) -> Interval:
    return max(one[0], other[0]), min(one[1], other[1])
