"""Whether a link's pages are moved run by run, or rearranged on the way: what the planner's cost model says."""

from __future__ import annotations

import math
from typing import Protocol

import kvreshard as kvr
from kvreshard.vllm.landing import Landing
from kvreshard.vllm.options import Options
from kvreshard.vllm.pairs import Pair
from kvreshard.vllm.refusal import refusal
from kvreshard.vllm.requests import Shape
from kvreshard.vllm.shaping import Shaping

# The measured transport that stands for one that was not measured, by the kind of this rank's memory.
TRANSPORTS = {"DRAM": "cma", "VRAM": "cuda_ipc"}


class Priced(Protocol):
    """What a request costs: descriptors posted, and nanoseconds."""

    @property
    def posted(self) -> int: ...

    @property
    def ns(self) -> int: ...


class Rearranging(Protocol):
    """One side's way of rearranging pages in staging memory."""

    def price(self, pair: Pair, request: kvr.Request, transport: kvr.Transport) -> Priced | None:
        """What a request of the pair costs; `None` where its pages cannot be rearranged."""

    def prepare(self, pair: Pair) -> Landing | Shaping:
        """What rearranges the pair's pages.

        Raises:
            kvreshard.Error: They cannot be.
        """
        ...


def choose(pair: Pair, shapes: tuple[Shape, Shape], options: Options, by: Rearranging) -> Landing | Shaping | None:
    """How pages are rearranged, where that is cheaper than moving run by run, or asked for.

    Args:
        pair: The ranks.
        shapes: What the groups of both say, ours first.
        options: The user's.
        by: How this side rearranges.

    Raises:
        kvreshard.Error: They would have to be rearranged, and cannot or must not be.
    """
    kinds = [{region.memory for region in layout.regions} for layout in (pair.mine, pair.theirs)]
    if options.conversion == "direct" or pair.plan.bytes == 0 or any(len(kind) > 1 for kind in kinds):
        return None
    if options.conversion == "staged":
        return by.prepare(pair)
    # No way of moving the peer's pages posts fewer descriptors than one a page.
    if pair.plan.runs <= pair.plan.pages[1]:
        return None
    request = sample(pair.mine, pair.theirs, shapes)
    if request is None:
        return None
    transport = transport_of(pair.mine, options.transport)
    (direct,) = pair.plan.costs(request, transport=transport, lands=False, packs=False)
    staged = by.price(pair, request, transport)
    by_count = not pair.plan.pages_alike
    if staged is None or order(direct, by_count=by_count) <= order(staged, by_count=by_count):
        return None
    formats = converted(pair.mine, pair.theirs)
    if options.conversion == "off":
        if formats is None:
            return None
        raise refusal(
            f"pages {formats[0]} here and {formats[1]} at the peer share only runs of {pair.plan.bytes_per_run} bytes, "
            "and conversion is off",
            field="format",
            remedy='set conversion="auto", or use one format',
        )
    return by.prepare(pair)


def transport_of(layout: kvr.RankLayout, named: str | None) -> kvr.Transport:
    """The transport that costs are worked out for.

    Raises:
        kvreshard.LayoutError: No measured transport has that name.
    """
    return kvr.Transport.named(named or TRANSPORTS[layout.regions[0].memory])


def sample(mine: kvr.RankLayout, theirs: kvr.RankLayout, shapes: tuple[Shape, Shape]) -> kvr.Request | None:
    """A request of one period of both sides' blocks, none beside the next; `None` where there is no room for one token.

    Costs grow evenly with the pages, so what is cheapest for it is so for longer ones.
    """
    sizes = [size for shape in shapes for size in shape.blocks if size]
    rooms = [_rooms(layout) for layout in (mine, theirs)]
    limits = [
        size * rooms[side][group]
        for side, shape in enumerate(shapes)
        for group, size in enumerate(shape.blocks)
        if size and group in rooms[side]
    ]
    tokens = min([math.lcm(*sizes), *limits]) if sizes else 0
    if sizes and not tokens:
        return None
    blocks: list[list[kvr.Blocks]] = []
    for room, shape in zip(rooms, shapes, strict=True):
        counts = [-(-tokens // size) if size else 1 for size in shape.blocks]
        steps = [2 if 2 * count <= room.get(group, 0) else 1 for group, count in enumerate(counts)]
        blocks.append(
            [kvr.Blocks(list(range(0, step * count, step))) for step, count in zip(steps, counts, strict=True)]
        )
    return kvr.Request(tokens=(0, tokens), local=blocks[0], remote=blocks[1])


def _rooms(layout: kvr.RankLayout) -> dict[int, int]:
    """Blocks of each group."""
    found: dict[int, int] = {}
    for layer in layout.layers:
        blocks = min(segment.pages for segment in layer.segments) // layout.groups[layer.group].pages_per_block
        found[layer.group] = min(blocks, found.get(layer.group, blocks))
    return found


def converted(mine: kvr.RankLayout, theirs: kvr.RankLayout) -> tuple[kvr.PageFormat, kvr.PageFormat] | None:
    """The formats of the first layer that the two sides build otherwise, ours first."""
    ours = {layer.name: layer.segments[0].format for layer in mine.layers}
    for layer in theirs.layers:
        here, there = ours.get(layer.name), layer.segments[0].format
        if here is not None and here.notation != there.notation:
            return here, there
    return None


def order(cost: Priced, *, by_count: bool) -> tuple[int, int]:
    """The cheaper of two has the smaller one.

    Where pages end in different places, stock rearranges too, and posts the fewest: so then do we.
    """
    return (cost.posted, cost.ns) if by_count else (cost.ns, cost.posted)
