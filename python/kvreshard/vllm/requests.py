"""vLLM's block lists as requests by global token.

vLLM pairs two block lists from their ends, which is right only when both sides' pages have one length and end alike.
Here the first token of every list is worked out from what the scheduler said, and the planner pairs by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import kvreshard as kvr

Lists = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Shape:
    """What the groups of a layout say of block lists, worked out once.

    Attributes:
        layout: The layout.
        blocks: For each group, tokens in a block of the scheduler, counted over all context-parallel ranks; 0 where it
            holds states.
        windowed: For each group, whether it keeps its last tokens alone.
    """

    layout: kvr.RankLayout
    blocks: tuple[int, ...]
    windowed: tuple[bool, ...]

    @classmethod
    def of(cls, layout: kvr.RankLayout) -> Shape:
        """The shape of a layout.

        Raises:
            kvreshard.LayoutError: A block does not hold a whole number of tokens.
        """
        blocks = tuple(tokens or 0 for tokens in layout.tokens_per_block)
        return cls(layout, blocks, tuple(group.window is not None for group in layout.groups))

    @cached_property
    def layers(self) -> tuple[frozenset[str], ...]:
        """For each group, its layers. Only groups of states are paired by them."""
        names: list[set[str]] = [set() for _ in self.blocks]
        for layer in self.layout.layers:
            names[layer.group].add(layer.name)
        return tuple(map(frozenset, names))


@dataclass(frozen=True)
class Outline:
    """A rank's layout, and what is worked out from it to meet another.

    Attributes:
        layout: The layout.
        engine: The engine that it is a rank of, built alike throughout.
        shape: What its groups say of block lists.
    """

    layout: kvr.RankLayout
    engine: kvr.Engine
    shape: Shape

    @classmethod
    def of(cls, layout: kvr.RankLayout) -> Outline:
        """The outline of a layout.

        Raises:
            kvreshard.Error: Its engine cannot be built alike throughout, or a block does not hold whole tokens.
        """
        return cls(layout, kvr.Engine.uniform(layout), Shape.of(layout))


def from_end(blocks: int, tokens: int, block: int) -> int:
    """The first token of `blocks` blocks of which the last holds token `tokens - 1`."""
    return max(0, -(-tokens // block) - blocks) * block


class Side:
    """One side's block lists, and the token that each begins with."""

    def __init__(self, shape: Shape, ids: Lists, firsts: Sequence[int | None], tokens: int) -> None:
        self.shape = shape
        self.ids = [list(group) for group in ids]
        self.firsts: list[int] = []
        for group, blocks in enumerate(self.ids):
            size = shape.blocks[group]
            first = firsts[group] if group < len(firsts) else None
            if size == 0:
                self.firsts.append(0)
            else:
                self.firsts.append(from_end(len(blocks), tokens, size) if first is None else first)

    @property
    def start(self) -> int | None:
        """The first token of all lists that are not empty."""
        begun = [first for group, first in enumerate(self.firsts) if self.ids[group] and self.shape.blocks[group]]
        return min(begun) if begun else None

    def covered(self) -> int | None:
        """Where the shortest list of a group that keeps all tokens ends."""
        ends = [
            first + len(blocks) * self.shape.blocks[group]
            for group, (first, blocks) in enumerate(zip(self.firsts, self.ids, strict=True))
            if blocks and self.shape.blocks[group] and not self.shape.windowed[group]
        ]
        return min(ends) if ends else None

    def blocks(self) -> list[kvr.Blocks]:
        """The lists as the planner takes them."""
        return [kvr.Blocks(ids, first) for ids, first in zip(self.ids, self.firsts, strict=True)]


def build(
    destination: tuple[Shape, Lists, Sequence[int | None]],
    source: tuple[Shape, Lists],
    tokens: int | None,
) -> tuple[tuple[int, int], list[kvr.Blocks], list[kvr.Blocks]] | None:
    """The tokens of a request, and its blocks at the destination and at the source.

    Args:
        destination: The shape, the blocks to fill, and the first token of each list where it is known.
        source: The shape and the blocks of the whole sequence; of a windowed group, its last ones.
        tokens: Tokens that the source computed; the end of its blocks where not given.

    Returns:
        `None` when there is nothing to move.
    """
    target, target_ids, firsts = destination
    origin, origin_ids = source
    whole: list[int | None] = [None if windowed else 0 for windowed in origin.windowed]
    if tokens is None:
        tokens = Side(origin, origin_ids, [0] * len(whole), 0).covered() or 0
    there = Side(origin, origin_ids, whole, tokens)
    here = Side(target, target_ids, firsts, tokens)
    _pair_states(here, there)
    start = here.start
    ends = [tokens] + [end for end in (here.covered(), there.covered()) if end is not None]
    if start is None:
        states = any(ids for group, ids in enumerate(here.ids) if not target.blocks[group])
        return ((0, 0), here.blocks(), there.blocks()) if states else None
    return (start, max(start, min(ends))), here.blocks(), there.blocks()


def _pair_states(here: Side, there: Side) -> None:
    """One state a slot: the source's earlier slots are there already, the destination's later ones are recomputed."""
    for group, size in enumerate(here.shape.blocks):
        if size:
            continue
        for other, names in enumerate(there.shape.layers):
            if names & here.shape.layers[group]:
                count = min(len(here.ids[group]), len(there.ids[other]))
                here.ids[group] = here.ids[group][:count]
                there.ids[other] = there.ids[other][len(there.ids[other]) - count :]


def pulled(worker: Any, mine: Shape, theirs: Shape, meta: Any) -> kvr.Request | None:
    """What a pull must fetch for one request of vLLM's metadata; `None` when there is nothing."""
    if not any(meta.local_block_ids):
        return None
    groups = worker.kv_cache_config.transfer_group_ids
    computed = meta.local_num_computed_blocks
    firsts: list[int | None] = []
    for group, size in enumerate(mine.blocks):
        known = not mine.windowed[group] and group < len(groups) and groups[group] < len(computed)
        firsts.append(computed[groups[group]] * size if known else None)
    built = build((mine, meta.local_block_ids, firsts), (theirs, meta.remote.block_ids), meta.remote.num_tokens)
    if built is None:
        return None
    tokens, local, remote = built
    return kvr.Request(tokens=tokens, local=local, remote=remote)
