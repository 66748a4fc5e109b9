"""Random page formats over random components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.oracle.model import Page

TYPES = ["u8", "bf16", "f32", "f8e4m3fn", "i16", "f64"]
HEAD, CHANNEL, STATE = "h", "g", "n"


@dataclass(frozen=True)
class Content:
    """What one component holds, whatever the page: its type, its named axes, and the turns of its nameless loops."""

    name: str
    type: str
    axes: tuple[str, ...]
    nameless: int = 1


def chance(draw: st.DrawFn, percent: int) -> bool:
    """True about `percent` times in a hundred; shrinks to False."""
    return draw(st.integers(1, 100)) > 100 - percent


@st.composite
def contents(draw: st.DrawFn, state_axis: bool = True) -> tuple[tuple[Content, ...], dict[str, int]]:
    """One to three components and the extents of their axes: totals of the sharded ones `h` and `g`, none for `n`."""
    extents = {
        HEAD: draw(st.integers(1, 6)),
        "d": draw(st.sampled_from([1, 2, 3, 4, 6, 8])),
        "w": draw(st.integers(1, 4)),
    }
    extents[CHANNEL] = extents[HEAD] * draw(st.integers(1, 2))
    names = draw(st.permutations(["k", "v", "ks"]))[: draw(st.integers(1, 3))]
    found = []
    for name in names:
        sharded = draw(st.sampled_from([(HEAD,), (HEAD,), (HEAD,), (CHANNEL,), ()]))
        content = draw(st.sampled_from([("d",), ("d",), ("d", "w"), ("w",), ()]))
        axes = (*sharded, *((STATE,) if state_axis else ()), *content)
        nameless = draw(st.sampled_from([1, 1, 1, 2, 4, 6])) if len(content) < 2 else 1
        found.append(Content(name, draw(st.sampled_from(TYPES)), axes, nameless))
    used = {axis for content in found for axis in content.axes}
    return tuple(found), {axis: extent for axis, extent in extents.items() if axis in used}


def _factors(draw: st.DrawFn, extent: int, most: int = 3) -> list[int]:
    """Factors of `extent`, at most `most`, in random order; 1 only for an extent of 1."""
    found: list[int] = []
    while extent > 1 and len(found) < most - 1 and not draw(st.booleans()):
        factor = draw(st.sampled_from([f for f in range(2, extent + 1) if extent % f == 0]))
        found.append(factor)
        extent //= factor
    return [*found, extent] if extent > 1 or not found else found


@dataclass
class _Part:
    """A component's loops that are not placed yet: digits (axis, scale, extent), and nameless ones outermost first."""

    name: str
    digits: list[tuple[str, int, int]]
    nameless: list[int]


@st.composite
def notations(draw: st.DrawFn, components: Sequence[Content], extents: Mapping[str, int]) -> Page:
    """A page of the components: any loops outside, any digits, any grouping, padding here and there."""
    cuts = {axis: _factors(draw, extents[axis]) for axis in sorted({axis for c in components for axis in c.axes})}
    parts = []
    for component in components:
        digits = []
        for axis in component.axes:
            factors = _factors(draw, extents[axis]) if chance(draw, 25) else cuts[axis]
            scale = 1
            for factor in factors:
                digits.append((axis, scale, factor))
                scale *= factor
        order = draw(st.permutations(digits))
        parts.append(_Part(component.name, list(order), _factors(draw, component.nameless)))
    for part in parts:
        part.nameless = [turns for turns in part.nameless if turns > 1]
    used = {axis: extents[axis] for component in components for axis in component.axes}
    text = _body(draw, parts, used, depth=0)
    return Page(text, used, {component.name: component.type for component in components})


def _loop_text(draw: st.DrawFn, digit: tuple[str, int, int], extents: Mapping[str, int]) -> str:
    axis, scale, extent = digit
    whole, reach = extents[axis], scale * extent
    if scale == 1 and extent == whole:
        ways = [axis] * 6 + [f"{axis}/1", f"{axis}%{whole}"]
    elif scale == 1:
        ways = [f"{axis}%{extent}"]
    elif reach == whole:
        ways = [f"{axis}/{scale}"]
    else:
        ways = [f"{axis}/{scale}%{extent}", f"{axis}%{reach}/{scale}"]
    return draw(st.sampled_from(ways))


def _body(draw: st.DrawFn, parts: list[_Part], extents: Mapping[str, int], depth: int) -> str:
    """Loops that all parts share, as many as it pleases, then the parts in any order and grouping."""
    words: list[str] = []
    while chance(draw, 65):
        shared = [digit for digit in parts[0].digits if all(digit in part.digits for part in parts)]
        turns = parts[0].nameless[0] if parts[0].nameless else 0
        nameless = turns > 0 and all(part.nameless[:1] == [turns] for part in parts)
        ways = len(shared) + nameless
        if not ways:
            break
        way = draw(st.integers(0, ways - 1))
        for part in parts:
            if way < len(shared):
                part.digits.remove(shared[way])
            else:
                part.nameless.pop(0)
        words.append(_loop_text(draw, shared[way], extents) if way < len(shared) else str(turns))
    if chance(draw, 10):
        words.append("1")
    left = list(draw(st.permutations(parts)))
    while left:
        if chance(draw, 10):
            words.append(f"pad[{draw(st.integers(1, 5))}]")
        most = len(left) if len(left) < len(parts) or depth < 2 else len(left) - 1
        size = draw(st.integers(1, max(1, most)))
        group, left = left[:size], left[size:]
        if size > 1 or (depth < 3 and chance(draw, 15)):
            words.append(f"({_body(draw, group, extents, depth + 1)})")
        else:
            words.append(_item(draw, group[0], extents))
    if chance(draw, 10):
        words.append(f"pad[2 {draw(st.integers(1, 3))}]")
    return " ".join(words)


def _item(draw: st.DrawFn, part: _Part, extents: Mapping[str, int]) -> str:
    """The component with all that is left of its loops inside; nameless loops keep their order."""
    loops = [_loop_text(draw, digit, extents) for digit in part.digits]
    for at, turns in enumerate(part.nameless):
        loops.insert(draw(st.integers(0, len(loops))) if len(part.nameless) == 1 else at, str(turns))
    return f"{part.name}[{' '.join(loops)}]"


@st.composite
def pages(draw: st.DrawFn) -> Page:
    """Any page."""
    components, extents = draw(contents())
    states = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    return draw(notations(components, {**extents, STATE: states}))


@st.composite
def page_pairs(draw: st.DrawFn) -> tuple[Page, Page]:
    """Two pages of the same components with the same extents."""
    components, extents = draw(contents())
    extents = {**extents, STATE: draw(st.sampled_from([1, 2, 3, 4, 6]))}
    return draw(notations(components, extents)), draw(notations(components, extents))
