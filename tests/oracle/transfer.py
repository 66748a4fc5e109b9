"""Which byte must come from where for two ranks and a request, by listing every element of every page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from tests.oracle.model import Blocks, Group, Layer, Rank, Request
from tests.oracle.notation import Ints, unroll

STATE = "n"


@dataclass(frozen=True, eq=False)
class Pairs:
    """Elements that both sides hold and the request wants, in no particular order; all int64 [elements].

    Byte addresses, bytes of each element, and for each side the region and the address of the page it lies in.
    """

    local: Ints
    remote: Ints
    size: Ints
    local_region: Ints
    remote_region: Ints
    local_page: Ints
    remote_page: Ints

    def by_byte(self) -> tuple[Ints, Ints, Ints]:
        """Local address, remote address and element number of every byte, ascending by local address."""
        element = np.repeat(np.arange(len(self.size)), self.size)
        within = np.arange(len(element)) - np.repeat(np.cumsum(self.size) - self.size, self.size)
        local, remote = self.local[element] + within, self.remote[element] + within
        order = np.argsort(local, kind="stable")
        local, remote, element = local[order], remote[order], element[order]
        for side in (local, np.sort(remote)):
            if (np.diff(side) < 1).any():
                raise ValueError("a byte belongs to two elements")
        return local, remote, element

    def runs(self, *, inside_pages: bool = False) -> tuple[Ints, Ints, Ints]:
        """The fewest runs contiguous on both sides: local address, remote address, bytes, ascending by local address.

        A run stays in one region on each side and, if asked, in one page on each side.
        """
        local, remote, element = self.by_byte()
        if not len(local):
            return local, remote, local
        ends = (np.diff(local) != 1) | (np.diff(remote) != 1)
        labels = [self.local_region, self.remote_region]
        if inside_pages:
            labels += [self.local_page, self.remote_page]
        for label in labels:
            ends |= np.diff(label[element]) != 0
        first = np.concatenate(([0], np.flatnonzero(ends) + 1))
        return local[first], remote[first], np.diff(np.append(first, len(local)))


Carried = Mapping[str, AbstractSet[tuple[str, int]]]
"""What goes over one edge, by layer: sharded axis and member, `WHOLE` for what is not sharded."""

WHOLE = ("", 0)


@dataclass(frozen=True, eq=False)
class Held:
    """Elements of one component of one layer on one side: what each of them is (int64 by axis) and where it lies."""

    key: dict[str, Ints]
    address: Ints
    region: Ints
    page: Ints
    size: int


def pairs(local: Rank, remote: Rank, request: Request, carried: Carried | None = None) -> Pairs:
    """All pairs of elements that the request wants: layers and components by name, elements by global index.

    `carried` leaves out what goes over other edges; without it both sides must have the same layers.
    """
    here = held(local, request.local, request.tokens, carried)
    there = held(remote, request.remote, request.tokens, carried)
    if here.keys() != there.keys():
        raise ValueError(f"one side lacks {sorted(here.keys() ^ there.keys())}")
    columns: list[list[Ints]] = [[] for _ in range(7)]
    for name, mine in here.items():
        theirs = there[name]
        if mine.key.keys() != theirs.key.keys() or mine.size != theirs.size:
            raise ValueError(f"{name}: axes {sorted(mine.key)} and {sorted(theirs.key)}")
        at, other = _match(mine.key, theirs.key)
        found = (
            mine.address[at],
            theirs.address[other],
            np.full(len(at), mine.size, dtype=np.int64),
            mine.region[at],
            theirs.region[other],
            mine.page[at],
            theirs.page[other],
        )
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    return Pairs(*(np.concatenate(column) for column in columns))


def _match(mine: Mapping[str, Ints], theirs: Mapping[str, Ints]) -> tuple[Ints, Ints]:
    """Positions on both sides of the elements with the same key."""
    numbers = []
    for axis in sorted(mine):
        numbers.append(np.concatenate((mine[axis], theirs[axis])))
    count = len(next(iter(mine.values())))
    shape = [int(column.max()) + 1 if len(column) else 1 for column in numbers]
    flat = np.asarray(np.ravel_multi_index(tuple(numbers), shape), dtype=np.int64)
    one, other = flat[:count], flat[count:]
    for side in (one, other):
        if len(np.unique(side)) != len(side):
            raise ValueError("an element has two homes on one side")
    _, at, there = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    return at.astype(np.int64), there.astype(np.int64)


def held(
    rank: Rank, blocks: Sequence[Blocks], tokens: tuple[int, int], carried: Carried | None = None
) -> dict[tuple[str, str], Held]:
    """What the pages of the block lists hold of the wanted tokens, by layer and component."""
    parts: dict[tuple[str, str], list[Held]] = {}
    for layer in rank.layers:
        if carried is not None and layer.name not in carried:
            continue
        group = rank.groups[layer.group]
        pages = np.array(
            [b * group.pages_per_block + j for b in blocks[layer.group].ids for j in range(group.pages_per_block)],
            dtype=np.int64,
        )
        for component, part in _layer(rank, layer, group, blocks[layer.group].first_token, pages, tokens):
            if carried is not None:
                part = _only(part, layer, carried[layer.name])
            parts.setdefault((layer.name, component), []).append(part)
    return {name: _join(found) for name, found in parts.items()}


def _only(part: Held, layer: Layer, members: AbstractSet[tuple[str, int]]) -> Held:
    """The elements of the members that are carried."""
    sharded = [axis for axis in sorted(layer.totals) if axis in part.key]
    if sharded:
        wanted = [member for axis, member in members if axis == sharded[0]]
        keep = np.isin(part.key[sharded[0]], np.array(wanted, dtype=np.int64))
    else:
        keep = np.full(len(part.address), WHOLE in members)
    key = {axis: values[keep] for axis, values in part.key.items()}
    return Held(key, part.address[keep], part.region[keep], part.page[keep], part.size)


def _layer(
    rank: Rank, layer: Layer, group: Group, first_token: int, pages: Ints, tokens: tuple[int, int]
) -> list[tuple[str, Held]]:
    found = []
    for segment in layer.segments:
        page = unroll(segment.page.notation, segment.page.extents, segment.page.types)
        if len(pages) and not 0 <= pages.min() <= pages.max() < segment.pages:
            raise ValueError(f"{layer.name}: a block lies outside the segment's {segment.pages} pages")
        starts = rank.regions[segment.region].base + segment.offset + pages * segment.page_stride
        planes = {a: hold for a, hold in segment.holds.items() if a not in segment.page.extents}
        for name, component in page.components.items():
            shape = (len(pages), len(component.offsets))
            key = {axis: np.broadcast_to(index, shape) for axis, index in component.index.items()}
            for axis, (low, high) in segment.holds.items():
                if axis in planes and high - low == 1:
                    key[axis] = np.full(shape, low, dtype=np.int64)
                elif axis in key:
                    if segment.page.extents[axis] != high - low:
                        raise ValueError(f"{layer.name}: axis {axis} does not hold {low}..{high}")
                    key[axis] = key[axis] + low
            wanted, key[STATE] = _states(rank, group, first_token, key.get(STATE), segment.page.extents, shape, tokens)
            held = Held(
                {axis: values[wanted] for axis, values in key.items()},
                (starts[:, None] + component.offsets)[wanted],
                np.full(shape, segment.region, dtype=np.int64)[wanted],
                np.broadcast_to(starts[:, None], shape)[wanted],
                component.element_bytes,
            )
            found.append((name, held))
    return found


def _states(
    rank: Rank,
    group: Group,
    first_token: int,
    in_page: Ints | None,
    extents: Mapping[str, int],
    shape: tuple[int, int],
    tokens: tuple[int, int],
) -> tuple[np.ndarray, Ints]:
    """Whether each element is wanted, and its global state: the number of the page in a group of whole states."""
    page = np.broadcast_to(np.arange(shape[0], dtype=np.int64)[:, None], shape)
    if group.kind == "state":
        return np.ones(shape, dtype=bool), page
    if in_page is None:
        raise ValueError("a component without states in a group of tokens")
    states, size = group.tokens_per_state, rank.cp[1]
    if size > 1 and states != 1:
        raise ValueError("context parallelism deals tokens; with several tokens to a state it is not defined here")
    first = first_token / states
    if first.denominator != 1 or (size > 1 and first_token % (size * rank.interleave)):
        raise ValueError(f"no block starts at token {first_token}")
    # `first` is the global state of the virtual block, in which every rank has its stretches one after the other.
    at = page * extents[STATE] + in_page
    dealt = at // rank.interleave * size + rank.cp[0]
    state = int(first) + (dealt * rank.interleave + at % rank.interleave if size > 1 else at)
    start, end = math.floor(tokens[0] / states), math.ceil(tokens[1] / states)
    return (state >= start) & (state < end), state


def _join(parts: list[Held]) -> Held:
    axes = {frozenset(part.key) for part in parts}
    if len(axes) != 1 or len({part.size for part in parts}) != 1:
        raise ValueError("the segments of a layer disagree about a component")
    return Held(
        {axis: np.concatenate([part.key[axis] for part in parts]) for axis in parts[0].key},
        np.concatenate([part.address for part in parts]),
        np.concatenate([part.region for part in parts]),
        np.concatenate([part.page for part in parts]),
        parts[0].size,
    )
