"""A page's elements, found by writing the page down in the order of its loops.

    body = loop* item+
    item = name "[" loop* "]" | "(" body ")"
    loop = axis (("/" | "%") int)* | int

Offsets are never computed from strides: the page is unrolled into one long row of elements in memory order, and an
offset is the bytes of everything before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ELEMENT_BYTES: dict[str, int] = {
    **dict.fromkeys(["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e4m3b15", "f8e8m0"], 1),
    **dict.fromkeys(["fp4x2", "i4x2", "i8", "u8", "bool"], 1),
    **dict.fromkeys(["bf16", "f16", "i16", "u16"], 2),
    **dict.fromkeys(["f32", "i32", "u32"], 4),
    **dict.fromkeys(["f64", "i64", "u64"], 8),
}

ANONYMOUS = ""
_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<int>[0-9]+)|(?P<sign>[\[\]()/%]))")


class NotationError(ValueError):
    """The text is no page, or its extents or types do not fit it."""


@dataclass(frozen=True)
class Loop:
    """`axis` and its cuts, or a count of its own (axis "")."""

    axis: str
    cuts: tuple[tuple[str, int], ...] = ()
    count: int = 0


@dataclass(frozen=True)
class Item:
    """A component and its own loops."""

    name: str
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class Body:
    """Loops around a sequence of items and bodies."""

    loops: tuple[Loop, ...]
    items: tuple[Item | Body, ...]


@dataclass(frozen=True, eq=False)
class Elements:
    """Every element of one component in memory order: index along each axis and byte offset, int64 [elements]."""

    index: dict[str, Ints]
    offsets: Ints
    element_bytes: int


@dataclass(frozen=True, eq=False)
class Unrolled:
    """A page: its components and its bytes, holes included."""

    components: dict[str, Elements]
    page_bytes: int


def parse(text: str) -> Body:
    """The tree of a notation."""
    tokens = list(_tokens(text))
    body, rest = _body(tokens)
    if rest:
        raise NotationError(f"unexpected {rest[0][1]!r}")
    return body


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, text = 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotationError(f"unexpected {text[at:]!r}")
        kind = match.lastgroup or ""
        if kind == "int" and re.match(r"[A-Za-z_]", text[match.end() : match.end() + 1]):
            raise NotationError(f"a number runs into a name at {text[at:]!r}")
        yield kind, match.group(kind)
        at = match.end()


Tokens = list[tuple[str, str]]


def _body(tokens: Tokens) -> tuple[Body, Tokens]:
    loops: list[Loop] = []
    while tokens and tokens[0][0] in ("name", "int") and tokens[1:2] != [("sign", "[")]:
        loop, tokens = _loop(tokens)
        loops.append(loop)
    items: list[Item | Body] = []
    while tokens and tokens[0] != ("sign", ")"):
        item, tokens = _item(tokens)
        items.append(item)
    if not items:
        raise NotationError("nothing inside")
    return Body(tuple(loops), tuple(items)), tokens


def _item(tokens: Tokens) -> tuple[Item | Body, Tokens]:
    if tokens[0] == ("sign", "("):
        body, tokens = _body(tokens[1:])
        return body, _expect(tokens, ")")
    if tokens[0][0] != "name" or tokens[1:2] != [("sign", "[")]:
        raise NotationError(f"a component or a parenthesis must stand at {tokens[0][1]!r}")
    name, tokens = tokens[0][1], tokens[2:]
    loops: list[Loop] = []
    while tokens and tokens[0] != ("sign", "]"):
        loop, tokens = _loop(tokens)
        loops.append(loop)
    return Item(name, tuple(loops)), _expect(tokens, "]")


def _loop(tokens: Tokens) -> tuple[Loop, Tokens]:
    (kind, text), tokens = tokens[0], tokens[1:]
    if kind == "int":
        return Loop(ANONYMOUS, count=int(text)), tokens
    if kind != "name" or text == "pad":
        raise NotationError(f"a loop must stand at {text!r}")
    cuts: list[tuple[str, int]] = []
    while tokens and tokens[0] in (("sign", "/"), ("sign", "%")):
        if len(tokens) < 2 or tokens[1][0] != "int":
            raise NotationError(f"a divisor must follow {tokens[0][1]!r}")
        cuts.append((tokens[0][1], int(tokens[1][1])))
        tokens = tokens[2:]
    return Loop(text, tuple(cuts)), tokens


def _expect(tokens: Tokens, sign: str) -> Tokens:
    if tokens[:1] != [("sign", sign)]:
        raise NotationError(f"{sign!r} is missing")
    return tokens[1:]


@dataclass(eq=False)
class _Row:
    """Elements in memory order: component number (-1 for pad), bytes, index along each axis (0 where it has none)."""

    component: Ints
    size: Ints
    index: dict[str, Ints]
    # How many elements the nameless loops inside this place make of one: the weight of the next one further out.
    nameless: Ints

    def __len__(self) -> int:
        return len(self.component)

    def repeated(self, axis: str, times: int, values: Ints) -> _Row:
        """This row `times` times over, the index along `axis` advanced by `values[i]` in repetition i."""
        new = _Row(
            np.tile(self.component, times),
            np.tile(self.size, times),
            {name: np.tile(index, times) for name, index in self.index.items()},
            np.tile(self.nameless, times),
        )
        turn = np.repeat(values, len(self))
        if axis == ANONYMOUS:
            turn = turn * new.nameless
            new.nameless = new.nameless * times
        new.index[axis] = new.index.get(axis, np.zeros(len(new), dtype=np.int64)) + turn
        return new


def _join(rows: list[_Row]) -> _Row:
    axes = {axis for row in rows for axis in row.index}
    return _Row(
        np.concatenate([row.component for row in rows]),
        np.concatenate([row.size for row in rows]),
        {axis: np.concatenate([r.index.get(axis, np.zeros(len(r), np.int64)) for r in rows]) for axis in axes},
        np.concatenate([row.nameless for row in rows]),
    )


class _Unroller:
    def __init__(self, extents: Mapping[str, int], types: Mapping[str, str]) -> None:
        self.extents, self.types = extents, types
        self.names: list[str] = []
        self.axes: dict[str, set[str]] = {}
        self.used: set[str] = set()

    def body(self, body: Body, outer: tuple[Loop, ...]) -> _Row:
        path = outer + body.loops
        rows = [self.item(i, path) if isinstance(i, Item) else self.body(i, path) for i in body.items]
        return self.loops(_join(rows), body.loops)

    def item(self, item: Item, outer: tuple[Loop, ...]) -> _Row:
        one = np.ones(1, dtype=np.int64)
        if item.name == "pad":
            return self.loops(_Row(-one, one, {}, one), item.loops)
        if item.name in self.axes:
            raise NotationError(f"component {item.name} is written twice")
        if item.name not in self.types:
            raise NotationError(f"component {item.name} has no type")
        number = len(self.names)
        self.names.append(item.name)
        self.axes[item.name] = {loop.axis for loop in outer + item.loops}
        return self.loops(_Row(one * number, one * ELEMENT_BYTES[self.types[item.name]], {}, one), item.loops)

    def loops(self, row: _Row, loops: tuple[Loop, ...]) -> _Row:
        for loop in reversed(loops):
            values = self.values(loop)
            row = row.repeated(loop.axis, len(values), values)
        return row

    def values(self, loop: Loop) -> Ints:
        """What each turn of the loop adds to the index along its axis."""
        if loop.axis == ANONYMOUS:
            if loop.count < 1:
                raise NotationError("a loop of no turns")
            return np.arange(loop.count, dtype=np.int64)
        if loop.axis not in self.extents:
            raise NotationError(f"axis {loop.axis} has no extent")
        self.used.add(loop.axis)
        turns, step = self.extents[loop.axis], 1
        for sign, by in loop.cuts:
            if by < 1 or turns % by:
                raise NotationError(f"{by} does not divide {turns}, what is left of axis {loop.axis}")
            turns, step = (turns // by, step * by) if sign == "/" else (by, step)
        return np.arange(turns, dtype=np.int64) * step


def unroll(notation: str, extents: Mapping[str, int], types: Mapping[str, str]) -> Unrolled:
    """Every element of a page, and its size. Raises NotationError if the text, the extents or the types do not fit."""
    return _unroll(notation, tuple(sorted(extents.items())), tuple(sorted(types.items())))


@functools.lru_cache(maxsize=256)
def _unroll(notation: str, extents: tuple[tuple[str, int], ...], types: tuple[tuple[str, str], ...]) -> Unrolled:
    sizes = dict(extents)
    if any(extent < 1 for extent in sizes.values()):
        raise NotationError("an extent is below 1")
    unroller = _Unroller(sizes, dict(types))
    row = unroller.body(parse(notation), ())
    for what, given, used in (
        ("extents", sizes.keys(), unroller.used),
        ("types", dict(types).keys(), set(unroller.names)),
    ):
        if given - used:
            raise NotationError(f"{what} that the notation does not use: {sorted(given - used)}")
    if not unroller.names:
        raise NotationError("no component besides pad")
    ends = np.cumsum(row.size)
    components: dict[str, Elements] = {}
    for number, name in enumerate(unroller.names):
        here = np.flatnonzero(row.component == number)
        index = {axis: row.index[axis][here] for axis in sorted(unroller.axes[name])}
        if index.get(ANONYMOUS, np.ones(1)).max() == 0:
            del index[ANONYMOUS]
        size = int(row.size[here[0]])
        components[name] = Elements(index, ends[here] - size, size)
        _check_cover(name, index, sizes, len(here))
    return Unrolled(components, int(ends[-1]))


def _check_cover(name: str, index: Mapping[str, Ints], extents: Mapping[str, int], count: int) -> None:
    """Each combination of indexes must occur exactly once."""
    shape = [extents[axis] if axis != ANONYMOUS else int(values.max()) + 1 for axis, values in index.items()]
    if not index:
        covered = count == 1
    elif any(int(values.max()) >= extent for values, extent in zip(index.values(), shape, strict=True)):
        covered = False
    else:
        seen = np.bincount(np.ravel_multi_index(tuple(index.values()), shape), minlength=int(np.prod(shape)))
        covered = bool((seen == 1).all())
    if not covered:
        raise NotationError(f"the loops of component {name} do not run through each axis exactly once")


def elements(notation: str, extents: Mapping[str, int], types: Mapping[str, str]) -> dict[str, Elements]:
    """Index along each axis and byte offset of every element of every component; see `unroll`."""
    return unroll(notation, extents, types).components
