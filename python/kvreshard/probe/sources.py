"""What a writer is given, and which of it an element of a page is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .errors import ProbeError

Values = npt.NDArray[Any]
Write = Callable[[Mapping[str, Values]], None]
"""Stores one page. It is given one array an input; the axes are those of :func:`order`."""

FLOATS = frozenset(["bf16", "f16", "f32", "f64", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e4m3b15"])

# Two values that differ in every byte of every type that a float writer may store, their signs apart: 1.1 and -2.9 are
# 3F8D and C03A in bf16, 3C66 and C1CD in f16, 39 and C4 in e4m3.
FIRST, SECOND = 1.1, -2.9


@dataclass(frozen=True)
class Source:
    """Which input a component's elements are made of.

    ``input`` is the input's name. ``ratios`` maps an axis of the component to the input's axis and how many of its
    indexes one element stands for: a byte of two 4-bit codes is ``{"b": ("d", 2)}``, a scale for 16 channels
    ``{"s": ("d", 16)}``. Axes not named stand for themselves; an axis of the input that no axis of the component stands
    for is covered whole (one scale for all channels). ``scale`` says that the element follows the magnitude of what it
    covers, not the values.
    """

    input: str
    ratios: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    scale: bool = False


def order(axes: Mapping[str, int]) -> tuple[str, ...]:
    """Axes as an engine passes them: tokens, heads, then the others by name."""
    return tuple(sorted(axes, key=lambda axis: ({"n": 0, "h": 1}.get(axis, 2), axis)))


def inputs_of(format: kvr.PageFormat) -> dict[str, dict[str, int]]:
    """One input a component, of its axes: what a writer that stores elements as they are is given."""
    return {component: dict(format.axes(component)) for component in format.components}


def flat_values(dtype: str, chosen: npt.NDArray[np.bool_]) -> Values:
    """One of two values for each element, which differ in every byte of the element.

    Floats are float32 for the writer to convert; other types are of their own width.
    """
    if dtype in FLOATS:
        return np.where(chosen, np.float32(SECOND), np.float32(FIRST)).astype(np.float32)
    width = 8 * element_bytes(dtype)
    first = 0x0102030405060708 & (2**width - 1)
    kind = np.dtype(f"u{width // 8}")
    values = np.where(chosen, kind.type(~first & (2**width - 1)), kind.type(first)).astype(kind)
    signed: Values = values.view(f"i{width // 8}") if dtype in {"i8", "i16", "i32", "i64"} else values
    return signed


def element_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return kvr.PageFormat("x[]", dtype=dtype).page_bytes


def cells(
    source: Source, axes: list[tuple[str, int]], input_axes: Mapping[str, int], index: tuple[int, ...]
) -> tuple[slice, ...]:
    """Where in the input the element at ``index`` comes from."""
    covered = {axis: slice(0, extent) for axis, extent in input_axes.items()}
    for (axis, _), at in zip(axes, index, strict=True):
        target, ratio = source.ratios.get(axis, (axis, 1))
        if target not in input_axes:
            raise ProbeError(f"input {source.input} has no axis {target!r}: it has {', '.join(input_axes)}")
        covered[target] = slice(at * ratio, (at + 1) * ratio)
    return tuple(covered[axis] for axis in order(input_axes))
