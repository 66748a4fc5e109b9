"""From where elements are to a nest of loops that puts them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .errors import NotANest

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Digit:
    """Index ``i`` of ``axis`` adds ``i // scale % extent * stride`` bytes."""

    axis: str
    scale: int
    extent: int
    stride: int

    def cut(self, scale: int) -> tuple[Digit, Digit] | None:
        """The upper and the lower digit, cut at ``scale`` of the axis; ``None`` where that is no cut of it."""
        lower = scale // self.scale
        if scale % self.scale or not 1 < lower < self.extent or self.extent % lower:
            return None
        upper = replace(self, scale=scale, extent=self.extent // lower, stride=self.stride * lower)
        return upper, replace(self, extent=lower)


@dataclass(frozen=True)
class Part:
    """A component: bytes of an element, byte of element 0, digits, and the extents of its axes."""

    name: str
    size: int
    base: int
    digits: tuple[Digit, ...]
    axes: Mapping[str, int]

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.base + self.size + sum((digit.extent - 1) * digit.stride for digit in self.digits)


def digits_of(component: str, offsets: Offsets, axes: Mapping[str, int]) -> tuple[Digit, ...]:
    """The digits of every axis of ``offsets``, whose dimensions are ``axes`` in their order.

    Raises `NotANest` where an axis depends on another, or steps otherwise than by digits.
    """
    base, digits, rebuilt = int(offsets.reshape(-1)[0]), [], np.full(offsets.shape, 0, dtype=np.int64)
    for dimension, (axis, extent) in enumerate(axes.items()):
        line = np.moveaxis(offsets, dimension, 0).reshape(extent, -1)[:, 0] - base
        steps = line.reshape([extent if at == dimension else 1 for at in range(offsets.ndim)])
        rebuilt = rebuilt + steps
        digits += _digits(component, axis, line)
    wrong = np.argwhere(rebuilt + base != offsets)
    if len(wrong):
        index = ", ".join(f"{axis}={at}" for axis, at in zip(axes, wrong[0].tolist(), strict=True))
        raise NotANest(f"component {component}, element ({index}): its place along one axis depends on another axis")
    return tuple(digits)


def _digits(component: str, axis: str, line: Offsets) -> list[Digit]:
    """The digits of one axis, lowest first, from the bytes that each index adds."""
    found: list[Digit] = []
    scale, rest = 1, line
    while len(rest) > 1:
        step = int(rest[1])
        straight = np.arange(len(rest)) * step
        length = int(np.argmax(np.append(rest != straight, True)))
        extent = next(
            (
                e
                for e in range(min(length, len(rest)), 1, -1)
                if len(rest) % e == 0 and (rest.reshape(-1, e) == rest[::e, None] + np.arange(e) * step).all()
            ),
            0,
        )
        if not extent or step <= 0:
            raise NotANest(
                f"component {component}: axis {axis} steps by {step} bytes {length} times, no digit of {len(line)}"
            )
        found.append(Digit(axis, scale, extent, step))
        scale, rest = scale * extent, rest[::extent]
    return found


def notation_of(parts: Sequence[Part], page_bytes: int) -> tuple[str, dict[str, int]]:
    """A notation that places the parts in a page of ``page_bytes``, and the extents that it needs."""
    extents = {axis: extent for part in parts for axis, extent in part.axes.items()}
    text = " ".join(_body(list(parts), 0, page_bytes, extents))
    # An axis of one index moves nothing; it is kept where all components have it, since shares are told by it.
    alone = [axis for axis, extent in extents.items() if extent == 1 and all(axis in part.axes for part in parts)]
    kept = {axis: extent for axis, extent in extents.items() if extent > 1 or axis in alone}
    return " ".join([*alone, text]), kept


def _body(parts: list[Part], start: int, end: int, extents: Mapping[str, int]) -> list[str]:
    """Items that fill [start, end): the parts in order of address, with pads between."""
    items: list[str] = []
    at = start
    clusters = _clusters(parts)
    for index, cluster in enumerate(clusters):
        first = min(part.base for part in cluster)
        limit = min(part.base for part in clusters[index + 1]) if index + 1 < len(clusters) else end
        begin, stop, text = _cluster(cluster, first, at, limit, extents)
        if begin > at:
            items.append(f"pad[{begin - at}]")
        items.append(text)
        at = stop
    if at < end:
        items.append(f"pad[{end - at}]")
    return items


def _clusters(parts: list[Part]) -> list[list[Part]]:
    """Parts whose bytes interleave, together; in order of address."""
    clusters: list[list[Part]] = []
    reach = -1
    for part in sorted(parts, key=lambda part: part.base):
        if part.base >= reach:
            clusters.append([])
        clusters[-1].append(part)
        reach = max(reach, part.end)
    return clusters


def _cluster(parts: list[Part], first: int, least: int, limit: int, extents: Mapping[str, int]) -> tuple[int, int, str]:
    """Where the loops around ``parts`` begin and end, between ``least`` and ``limit``, and their text."""
    if len(parts) == 1 and not parts[0].digits:
        return first, first + parts[0].size, f"{parts[0].name}[]"
    upper, inner = _common(parts)
    block = upper.extent * upper.stride
    # A block may have to begin before its first element, where bytes that nobody reads come first.
    begin = min(first, limit - block)
    names = ", ".join(part.name for part in parts)
    if begin < least:
        raise NotANest(f"component {names}: {upper.extent} steps of {upper.stride} bytes do not fit where it is")
    if max(part.end for part in inner) > begin + upper.stride:
        raise NotANest(f"component {names}: what a step of axis {upper.axis} repeats is longer than the step")
    items = _body(inner, begin, begin + upper.stride, extents)
    loop = _loop(upper, extents[upper.axis])
    if len(items) == 1 and items[0].startswith("("):
        text = f"({loop} {items[0][1:]}"
    elif len(items) == 1 and not items[0].startswith("pad"):
        name, inside = items[0].split("[", 1)
        text = f"{name}[{loop}]" if inside == "]" else f"{name}[{loop} {inside}"
    else:
        text = f"({loop} {' '.join(items)})"
    return begin, begin + block, text


def _common(parts: list[Part]) -> tuple[Digit, list[Part]]:
    """The outermost loop that all parts share, and the parts without it."""
    tops = [max(part.digits, key=lambda digit: digit.stride, default=None) for part in parts]
    names = ", ".join(part.name for part in parts)
    found = [top for top in tops if top is not None]
    if len(found) < len(parts):
        raise NotANest(f"components {names} lie within each other, but no loop is around all of them")
    # Where one part's digit is whole and another's is cut, the cut is the loop that they share.
    shared = max(found, key=lambda digit: digit.scale)
    inner: list[Part] = []
    for part, top in zip(parts, found, strict=True):
        others = [digit for digit in part.digits if digit is not top]
        if top != shared:
            cut = top.cut(shared.scale) if top.axis == shared.axis else None
            if cut is None or cut[0] != shared:
                raise NotANest(
                    f"components {names} lie within each other, but step by {_step(top)} and by {_step(shared)}"
                )
            others.append(cut[1])
        inner.append(replace(part, digits=tuple(others)))
    return shared, inner


def _step(digit: Digit) -> str:
    return f"{digit.stride} bytes along {digit.axis}"


def _loop(digit: Digit, whole: int) -> str:
    """The digit as the grammar writes it."""
    reach = digit.scale * digit.extent
    upper = f"/{digit.scale}" if digit.scale > 1 else ""
    lower = f"%{reach}" if reach < whole else ""
    return f"{digit.axis}{lower}{upper}"
