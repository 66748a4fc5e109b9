"""Digests of pages, to be compared by both ends of a transfer.

They are by the global indexes of elements, so each side works them out from its own format, however pages are built.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr
from kvreshard.kernels.memory import Span
from kvreshard.probe import PageMemory, ProbeError
from kvreshard.probe.contact import sampled
from kvreshard.probe.sources import element_bytes

from .contact import require_tokens
from .errors import Unsupported

Interval = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """What one segment's page holds of a component: the interval of every axis, a plane's own one included."""

    number: int
    segment: kvr.Segment
    component: str
    holds: Mapping[str, Interval]

    size: int

    def has(self, index: Mapping[str, int]) -> bool:
        """Whether the element is here; tokens are not looked at."""
        return all(low <= index[axis] < high for axis, (low, high) in self.holds.items() if axis != "n")

    def within(self, index: Mapping[str, int], begin: int) -> tuple[int, ...]:
        """The index in the page whose first token is `begin`, in the order of `PageFormat.offsets`."""
        starts = {axis: low for axis, (low, _) in self.holds.items()} | {"n": begin}
        return tuple(index[axis] - starts[axis] for axis, _ in self.segment.format.axes(self.component))


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
    offsets: dict[tuple[str, str], npt.NDArray[np.int64]] = {}
    theirs = {layer.name: layer for layer in peer.layers}
    first, last = tokens
    for layer in layout.layers:
        other = theirs.get(layer.name)
        if other is None:
            continue
        require_tokens(layout, layer)
        require_tokens(peer, other)
        size, its_size = (one.segments[0].format.extents["n"] for one in (layer, other))
        begin = first // size * size
        wanted = (first, min(last, begin + size, (first // its_size + 1) * its_size))
        mine, its = _parts(layer), _parts(other)
        digest = hashlib.sha256()
        pages: dict[int, Any] = {}
        for component in sorted(mine.keys() & its.keys()):
            both = [_hull(parts) for parts in (mine[component], its[component])]
            # An axis that one side lacks is of one index on the other, or they have no plan: it names no element.
            common = {axis: _meet(both[0][axis], both[1][axis]) for axis in both[0].keys() & both[1].keys()}
            common["n"] = wanted
            alone = {axis: low for hull in both for axis, (low, _) in hull.items() if axis not in common}
            axes = sorted(common)
            if any(low >= high for low, high in common.values()):
                continue
            for at in sampled(component, [common[axis] for axis in axes], samples, seed):
                index = {**alone, **dict(zip(axes, at, strict=True))}
                here = next((part for part in mine[component] if part.has(index)), None)
                if here is None or not any(part.has(index) for part in its[component]):
                    continue
                if here.number not in pages:
                    pages[here.number] = _page(layout, layer, here.segment, spans, blocks, begin)
                known = (here.segment.format.fingerprint, component)
                if known not in offsets:
                    offsets[known] = here.segment.format.offsets(component)
                where = here.within(index, begin)
                start = int(offsets[known][where])
                digest.update(f"{component} {at} ".encode() + pages[here.number][start : start + here.size].tobytes())
        if pages:
            found[layer.name] = digest.hexdigest()
    return found


def _parts(layer: kvr.Layer) -> dict[str, list[Part]]:
    parts: dict[str, list[Part]] = {}
    for number, segment in enumerate(layer.segments):
        planes = {axis: span for axis, span in segment.holds.items() if axis not in segment.format.extents}
        for component in segment.format.components:
            axes = dict(segment.format.axes(component))
            holds = {axis: segment.holds.get(axis, (0, extent)) for axis, extent in axes.items()}
            parts.setdefault(component, []).append(
                Part(number, segment, component, {**holds, **planes}, element_bytes(segment.format.types[component]))
            )
    return parts


def _hull(parts: Sequence[Part]) -> dict[str, Interval]:
    """The least and the last that any part holds of each axis."""
    axes = {axis for part in parts for axis in part.holds}
    spans = {axis: [part.holds[axis] for part in parts if axis in part.holds] for axis in axes}
    return {axis: (min(low for low, _ in all_), max(high for _, high in all_)) for axis, all_ in spans.items()}


def _page(
    layout: kvr.RankLayout,
    layer: kvr.Layer,
    segment: kvr.Segment,
    spans: Sequence[Span],
    blocks: Sequence[kvr.Blocks],
    begin: int,
) -> Any:
    """A copy of the segment's page that begins with token `begin`, in host memory."""
    group, listed = layout.groups[layer.group], blocks[layer.group]
    block, page = divmod((begin - listed.first_token) // segment.format.extents["n"], group.pages_per_block)
    if not 0 <= block < len(listed.ids):
        raise ProbeError(f"layer {layer.name}: token {begin} is in none of the {len(listed.ids)} blocks given")
    number = int(listed.ids[block]) * group.pages_per_block + page
    if not 0 <= number < segment.pages:
        raise ProbeError(f"layer {layer.name}: block {listed.ids[block]} is outside the {segment.pages} pages")
    start = segment.region.base + segment.offset + number * segment.page_stride
    span = next(one for one in spans if _holds(one, segment.region, start, segment.format.page_bytes))
    return PageMemory(_bytes(span)).read(start - span.address, segment.format.page_bytes)


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


def _meet(one: Interval, other: Interval) -> Interval:
    return max(one[0], other[0]), min(one[1], other[1])
