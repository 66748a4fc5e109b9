"""Random ranks and requests between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from tests.oracle.model import Blocks, Group, Layer, Page, Rank, Region, Request, Segment, share
from tests.oracle.notation import NotationError, unroll
from tests.strategies.formats import CHANNEL, HEAD, STATE, Content, chance, contents, notations


@dataclass(frozen=True)
class Transfer:
    """Two ranks, a request between them, and the extent of every axis of their layers (totals of the sharded ones)."""

    local: Rank
    remote: Rank
    request: Request
    direction: str


@dataclass(frozen=True)
class _Family:
    """Layers that share a group on either side, what they hold, and how many tokens a state is (0 for whole states)."""

    layers: tuple[str, ...]
    components: tuple[Content, ...]
    extents: Mapping[str, int]
    tokens_per_state: Fraction
    window: int | None = None

    @property
    def whole(self) -> bool:
        """Whether a block is one whole state, not tokens."""
        return self.tokens_per_state == 0


@dataclass(frozen=True)
class _Side:
    """One side's place in its engine, and states a page and pages a block of each family.

    Of the axes in `whole` every rank holds all (groups of a state that tensor parallelism does not divide).
    """

    tp: tuple[int, int]
    cp: tuple[int, int]
    interleave: int
    states: tuple[int, ...]
    per_block: tuple[int, ...]
    whole: frozenset[str] = frozenset()
    pp: tuple[int, int] = (0, 1)

    def held(self, axis: str, total: int) -> tuple[int, int]:
        """The members of a sharded axis that this rank holds."""
        return (0, total) if axis in self.whole else share(*self.tp, total)

    def block_tokens(self, number: int, family: _Family) -> int:
        """Tokens of one (virtual) block."""
        tokens = self.states[number] * self.per_block[number] * family.tokens_per_state * self.cp[1]
        if tokens.denominator != 1:
            raise ValueError("a block ends inside a token")
        return int(tokens)


@st.composite
def _families(draw: st.DrawFn, dealt: bool) -> list[_Family]:
    found = []
    for number in range(draw(st.sampled_from([1, 1, 2]))):
        whole = number > 0 and chance(draw, 40)
        components, extents = draw(contents(state_axis=not whole))
        steps = [Fraction(1)] * 4 if dealt else [Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)]
        layers = tuple(f"layers.{number}.{layer}" for layer in range(draw(st.integers(1, 2))))
        found.append(_Family(layers, components, extents, Fraction(0) if whole else draw(st.sampled_from(steps))))
    return found


@st.composite
def _sides(draw: st.DrawFn, families: Sequence[_Family], dealt: bool, whole_states: int) -> _Side:
    tp = draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
    cp = draw(st.sampled_from([1, 2, 3])) if dealt else 1
    interleave = draw(st.sampled_from([1, 2, 3, 4])) if cp > 1 else 1
    states, per_block = [], []
    for family in families:
        n = 1 if family.whole else draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
        per = draw(st.sampled_from([1, 1, 1, 2, 3]))
        if family.whole:
            per = math.gcd(per, whole_states)
        else:
            n = math.lcm(n, family.tokens_per_state.denominator)
            # A rank's share of a virtual block is whole stretches, in one page or in several.
            per *= interleave // math.gcd(n * per, interleave)
        states.append(n)
        per_block.append(per)
    ranks = draw(st.integers(0, tp - 1)), draw(st.integers(0, cp - 1))
    return _Side((ranks[0], tp), (ranks[1], cp), interleave, tuple(states), tuple(per_block))


@st.composite
def _segment_pages(
    draw: st.DrawFn, family: _Family, side: _Side, states: int, like: Sequence[Page]
) -> list[tuple[Page, dict[str, tuple[int, int]]]]:
    """The pages that make up one layer, with what each holds: all in one, K and V apart, or a plane a head.

    `like` are the other side's pages where both sides are to have the same nests.
    """
    held = {axis: side.held(axis, family.extents[axis]) for axis in (HEAD, CHANNEL) if axis in family.extents}
    extents = {**family.extents, STATE: states, **{axis: high - low for axis, (low, high) in held.items()}}
    if like:
        same = [Page(page.notation, {axis: extents[axis] for axis in page.extents}, page.types) for page in like]
        if _fits(same, family.components):
            return [
                (page, {axis: interval for axis, interval in held.items() if axis in page.extents}) for page in same
            ]
    groups = [family.components]
    if len(family.components) > 1 and chance(draw, 25):
        groups = [family.components[:1], family.components[1:]]
    found = []
    for components in groups:
        if all(HEAD in component.axes for component in components) and chance(draw, 20):
            if chance(draw, 50):
                axes = [tuple(axis for axis in component.axes if axis != HEAD) for component in components]
                components = tuple(
                    Content(c.name, c.type, a, c.nameless) for c, a in zip(components, axes, strict=True)
                )
            page = draw(notations(components, {**extents, HEAD: 1}))
            found += [(page, {HEAD: (head, head + 1)}) for head in range(*held[HEAD])]
        else:
            page = draw(notations(components, extents))
            found.append((page, {axis: interval for axis, interval in held.items() if axis in page.extents}))
    return found


def _fits(pages: Sequence[Page], components: Sequence[Content]) -> bool:
    """Whether the pages hold each component once, with all its axes, and their cuts divide the extents."""
    held = sorted(name for page in pages for name in page.types)
    axes = {component.name: set(component.axes) for component in components}
    try:
        return held == sorted(axes) and all(
            set(found.index) - {""} == axes[name]
            for page in pages
            for name, found in unroll(page.notation, page.extents, page.types).components.items()
        )
    except NotationError:
        return False


@dataclass
class _Memory:
    """Regions that grow as segments are put into them."""

    ends: list[int]
    segments: dict[str, list[Segment]] = field(default_factory=dict)

    def put(self, draw: st.DrawFn, row: list[tuple[str, Page, dict[str, tuple[int, int]]]], pages: int) -> None:
        """Put segments of equally many pages side by side: page i of all of them, then page i + 1."""
        region = draw(st.integers(0, len(self.ends) - 1))
        sizes = [unroll(page.notation, page.extents, page.types).page_bytes for _, page, _ in row]
        stride = sum(sizes) + (draw(st.integers(1, 9)) if chance(draw, 20) else 0)
        offset = self.ends[region] + (draw(st.integers(1, 9)) if chance(draw, 20) else 0)
        for (layer, page, holds), size in zip(row, sizes, strict=True):
            self.segments.setdefault(layer, []).append(Segment(region, page, offset, pages, stride, holds))
            offset += size
        self.ends[region] = offset - sum(sizes) + pages * stride


@st.composite
def _ranks(
    draw: st.DrawFn,
    families: Sequence[_Family],
    side: _Side,
    blocks: Sequence[int],
    base: int,
    like: Rank | None,
    kinds: Sequence[str] = ("DRAM",),
) -> Rank:
    """A rank with that many blocks of each family, its groups in any order; with the nests of `like` where they fit."""
    others = {layer.name: [segment.page for segment in layer.segments] for layer in like.layers} if like else {}
    memory = _Memory([0] * draw(st.sampled_from([1, 1, 2])))
    for number, family in enumerate(families):
        pages = blocks[number] * side.per_block[number]
        if not family.layers:
            continue
        pages_of = (family, side, side.states[number])
        common = draw(_segment_pages(*pages_of, others.get(family.layers[0], [])))
        row = []
        for layer in family.layers:
            own = draw(_segment_pages(*pages_of, others.get(layer, []))) if chance(draw, 25) else common
            row += [(layer, page, holds) for page, holds in own]
        if chance(draw, 35):
            memory.put(draw, row, pages)
        else:
            for entry in row:
                memory.put(draw, [entry], pages)
    regions = []
    for end in memory.ends:
        memory_kind = draw(st.sampled_from(kinds))
        regions.append(Region(base, max(end, 1), memory_kind, draw(st.integers(0, 1)) if memory_kind == "VRAM" else 0))
        # Registrations may touch; that does not make them one.
        base += max(end, 1) + draw(st.sampled_from([0, 64]))
    order = draw(st.permutations(range(len(families))))
    layers, groups = [], []
    for group, number in enumerate(order):
        family = families[number]
        kind, step = ("state", Fraction(1)) if family.whole else ("tokens", family.tokens_per_state)
        groups.append(Group(kind, side.per_block[number], step, family.window))
        totals = {axis: family.extents[axis] for axis in (HEAD, CHANNEL) if axis in family.extents}
        layers += [Layer(name, tuple(memory.segments[name]), group, totals) for name in family.layers]
    layers = draw(st.permutations(layers)) if chance(draw, 25) else layers
    return Rank(tuple(regions), tuple(layers), tuple(groups), side.tp, side.cp, side.interleave, side.pp)


@st.composite
def _block_lists(draw: st.DrawFn, family: _Family, block_tokens: int, tokens: tuple[int, int], whole: int) -> Blocks:
    """Blocks that cover the tokens, and perhaps some more at either end, or `whole` ones; in order or scattered."""
    if family.whole:
        first, count = 0, whole
    else:
        first = draw(st.integers(0, tokens[0] // block_tokens))
        count = -(-tokens[1] // block_tokens) - first + draw(st.sampled_from([0, 0, 1]))
    spare = draw(st.integers(0, 2))
    ids = list(range(spare, spare + count)) if chance(draw, 40) else draw(st.permutations(range(count + spare)))[:count]
    return Blocks(tuple(ids), first * block_tokens)


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """Two ranks with formats of the same components, and a request for tokens of which both hold some element."""
    dealt = chance(draw, 25)
    families = draw(_families(dealt))
    alike = chance(draw, 40)
    whole_states = draw(st.integers(1, 2))
    sides = [draw(_sides(families, dealt, whole_states))]
    sides.append(sides[0] if alike and chance(draw, 40) else draw(_sides(families, dealt, whole_states)))
    assume(all(_heads_meet(family, sides[0].tp, sides[1].tp) for family in families))
    # Requests begin and end with a state; what becomes of half a state is not for a planner to say.
    unit = math.lcm(*(family.tokens_per_state.numerator or 1 for family in families))
    longest = max(s.block_tokens(i, f) for s in sides for i, f in enumerate(families) if not f.whole)
    end = unit * draw(st.integers(1, max(1, min(2 * longest + 3, 40) // unit)))
    start = unit * draw(st.integers(0, end // unit - 1))
    lists: list[tuple[Blocks, ...]] = []
    ranks: list[Rank] = []
    for side, base in zip(sides, (0x1_0000, 0x7F00_0000_0000), strict=True):
        blocks = [
            draw(_block_lists(family, side.block_tokens(number, family), (start, end), whole_states // per))
            for number, (family, per) in enumerate(zip(families, side.per_block, strict=True))
        ]
        counts = [max(listed.ids) + 1 for listed in blocks]
        rank = draw(_ranks(families, side, counts, base, ranks[0] if ranks and alike else None))
        by_layer = {name: blocks[number] for number, family in enumerate(families) for name in family.layers}
        ranks.append(rank)
        lists.append(
            tuple(next(by_layer[la.name] for la in rank.layers if la.group == g) for g in range(len(rank.groups)))
        )
    request = Request((start, end), lists[0], lists[1])
    assume(_tokens_meet(sides, start, end) or any(family.whole for family in families))
    return Transfer(ranks[0], ranks[1], request, draw(st.sampled_from(["read", "write"])))


def _heads_meet(family: _Family, one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two tensor-parallel ranks hold some part of each component in common."""
    for axis in (HEAD, CHANNEL):
        if axis in family.extents:
            (low, high), (first, last) = share(*one, family.extents[axis]), share(*other, family.extents[axis])
            if max(low, first) >= min(high, last):
                return False
    return True


def _tokens_meet(sides: Sequence[_Side], start: int, end: int) -> bool:
    """Whether some token of the interval belongs to both context-parallel ranks."""
    return any(all(t // side.interleave % side.cp[1] == side.cp[0] for side in sides) for t in range(start, end))
