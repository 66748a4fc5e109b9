"""Whether a link's pages are moved run by run, or rearranged on the way: what the planner's cost model says."""

from __future__ import annotations

import math
from typing import Any

import kvreshard as kvr
from kvreshard.vllm.requests import Shape

# The measured transport that stands for one that was not measured, by the kind of this rank's memory.
TRANSPORTS = {"DRAM": "cma", "VRAM": "cuda_ipc"}


def transport_of(layout: kvr.RankLayout, named: str | None) -> kvr.Transport:
    """The transport that costs are worked out for.

    Raises:
        kvreshard.LayoutError: No measured transport has that name.
    """
    return kvr.Transport.named(named or TRANSPORTS[layout.regions[0].memory])


def fewest(mine: Shape, theirs: Shape) -> int:
    """The peer's pages in one period of a plan: no way of moving them posts fewer descriptors."""
    pairs = ((states, mine.states.get(layer, states)) for layer, states in theirs.states.items())
    return sum(math.lcm(states, ours) // states for states, ours in pairs)


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


def order(cost: Any, *, by_count: bool) -> tuple[int, int]:
    """The cheaper of two has the smaller one.

    Where pages end in different places, stock rearranges too, and posts the fewest: so then do we.
    """
    return (cost.posted, cost.ns) if by_count else (cost.ns, cost.posted)
