"""Random engines of several ranks and requests between them: every kind of parallelism at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hypothesis import assume
from hypothesis import strategies as st

from tests.oracle.engines import Exchange
from tests.oracle.model import Blocks, Rank
from tests.strategies.formats import CHANNEL, HEAD, chance
from tests.strategies.transfers import _families, _Family, _ranks, _Side, _sides


@st.composite
def exchanges(draw: st.DrawFn, *, kinds: Sequence[str] = ("DRAM",)) -> Exchange:
    """Two engines whose layers hold the same, and a request; prefix hits and windows differ by group and side."""
    dealt = chance(draw, 35)
    families = [_windowed(draw, family) for family in draw(_families(dealt))]
    whole_states = draw(st.integers(1, 2))
    source, target = (_layout(draw, families, dealt, whole_states) for _ in range(2))
    unit = math.lcm(*(family.tokens_per_state.numerator or 1 for family in families))
    longest = max(s.block_tokens(i, f) for s in (source, target) for i, f in enumerate(families) if not f.whole)
    end = unit * draw(st.integers(1, max(1, min(2 * longest + 3, 40) // unit)))
    start = unit * draw(st.integers(0, end // unit - 1)) if chance(draw, 50) else 0
    hits = [_first(draw, family, target, number, end) for number, family in enumerate(families)]
    firsts = []
    for number, family in enumerate(families):
        latest = max(start, hits[number])
        if family.window is not None and chance(draw, 60):
            latest = end - 1
        firsts.append(_first(draw, family, source, number, latest + 1))
    ranks, lists = [], []
    for side, begins, base in ((source, firsts, 0x1_0000), (target, hits, 0x7F00_0000_0000)):
        made = _engine(draw, families, side, begins, end, whole_states, base, kinds)
        ranks.append(tuple(rank for rank, _ in made))
        lists.append(tuple(blocks for _, blocks in made))
    return Exchange(ranks[0], ranks[1], (start, end), lists[0], lists[1])


def _windowed(draw: st.DrawFn, family: _Family) -> _Family:
    if family.whole or not chance(draw, 25):
        return family
    return dataclasses.replace(family, window=draw(st.integers(1, 16)))


def _first(draw: st.DrawFn, family: _Family, side: _Side, number: int, end: int) -> int:
    """The first token of a list whose first block begins before `end`."""
    if family.whole:
        return 0
    block = side.block_tokens(number, family)
    return block * (draw(st.integers(0, (end - 1) // block)) if chance(draw, 60) else 0)


def _layout(draw: st.DrawFn, families: Sequence[_Family], dealt: bool, whole_states: int) -> _Side:
    """An engine's parallelism, as its first rank."""
    side = draw(_sides(families, dealt, whole_states))
    tp = draw(st.sampled_from([1, 1, 2, 3, 4] if side.cp[1] == 1 else [1, 2]))
    layers = sum(len(family.layers) for family in families)
    stages = draw(st.integers(1, min(layers, 2))) if tp * side.cp[1] <= 2 else 1
    axes = {axis for family in families for axis in family.extents if axis in (HEAD, CHANNEL)}
    whole = frozenset(axis for axis in sorted(axes) if tp > 1 and chance(draw, 12))
    return dataclasses.replace(side, tp=(0, tp), cp=(0, side.cp[1]), pp=(0, stages), whole=whole)


def _engine(
    draw: st.DrawFn,
    families: Sequence[_Family],
    side: _Side,
    firsts: Sequence[int],
    end: int,
    whole_states: int,
    base: int,
    kinds: Sequence[str],
) -> list[tuple[Rank, tuple[Blocks, ...]]]:
    """Every rank with its block lists; pools, formats and the order of groups differ by rank, block ids by stage."""
    stages = _stages(draw, families, side.pp[1])
    found: list[tuple[Rank, tuple[Blocks, ...]]] = []
    for stage, held in enumerate(stages):
        lists = []
        for number, family in enumerate(families):
            count = whole_states // side.per_block[number]
            if not family.whole:
                count = -(-(end - firsts[number]) // side.block_tokens(number, family)) + draw(
                    st.sampled_from([0, 0, 1])
                )
            spare = draw(st.integers(0, 2))
            ids = tuple(draw(st.permutations(range(count + spare)))[:count])
            if chance(draw, 40):
                ids = tuple(range(spare, spare + count))
            lists.append(Blocks(ids, firsts[number]))
        for tp in range(side.tp[1]):
            for cp in range(side.cp[1]):
                place = dataclasses.replace(side, tp=(tp, side.tp[1]), cp=(cp, side.cp[1]), pp=(stage, side.pp[1]))
                pools = [max(listed.ids) + 1 + draw(st.sampled_from([0, 0, 3])) for listed in lists]
                like = found[0][0] if found and chance(draw, 70) else None
                rank = draw(_ranks(held, place, pools, base, like, kinds))
                base += 0x100_0000
                found.append((rank, _in_order(rank, held, lists)))
    order = draw(st.permutations(range(len(found)))) if chance(draw, 20) else range(len(found))
    return [found[number] for number in order]


def _stages(draw: st.DrawFn, families: Sequence[_Family], count: int) -> list[list[_Family]]:
    """The layers of each pipeline stage, at least one a stage."""
    names = [layer for family in families for layer in family.layers]
    stage_of = {name: draw(st.integers(0, count - 1)) for name in names}
    assume(set(stage_of.values()) == set(range(count)))
    return [
        [
            dataclasses.replace(family, layers=tuple(name for name in family.layers if stage_of[name] == stage))
            for family in families
        ]
        for stage in range(count)
    ]


def _in_order(rank: Rank, families: Sequence[_Family], lists: Sequence[Blocks]) -> tuple[Blocks, ...]:
    """The lists in the order of the rank's groups; a group without layers gets none."""
    number_of = {name: number for number, family in enumerate(families) for name in family.layers}
    found = [Blocks(())] * len(rank.groups)
    for layer in rank.layers:
        found[layer.group] = lists[number_of[layer.name]]
    return tuple(found)
