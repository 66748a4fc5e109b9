"""Which element a byte belongs to, in as many writes as an element's number has bits.

Write ``i`` gives every element the second value if bit ``i`` of its number is set. The bytes that moved in just those
writes belong to that element; a second round with all bits turned around tells bytes that follow several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import ProbeError
from .memory import Bytes, PageMemory
from .sources import Values, Write, flat_values, order

Owners = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Owned:
    """The bytes of a page by the element that moves them, for one component.

    ``owners`` is int64 ``(page bytes,)``: 0 where nothing moved, the element's number in C order of the component's
    axes plus 1, or -1 where several elements move the byte. ``strays`` are bytes outside the page that moved.
    """

    owners: Owners
    strays: list[int]
    writes: int


def owners_of(
    component: str,
    types: Mapping[str, str],
    inputs: Mapping[str, Mapping[str, int]],
    write: Write,
    memory: PageMemory,
    start: int,
    page_bytes: int,
) -> Owned:
    """Finds the owner of every byte of the page at ``start`` by writes of ``component``, the others held still."""
    held = {name: flat_values(types[name], np.zeros(_shape(axes), dtype=bool)) for name, axes in inputs.items()}
    shape = _shape(inputs[component])
    count = math.prod(shape)
    numbers = np.arange(1, count + 1, dtype=np.int64).reshape(shape)

    def written(chosen: npt.NDArray[np.bool_]) -> Bytes:
        values: dict[str, Values] = {**held, component: flat_values(types[component], chosen)}
        write(values)
        return memory.read()

    base = written(np.zeros(shape, dtype=bool))
    far = written(np.ones(shape, dtype=bool))
    moves = base != far
    bits = int(count).bit_length()
    straight = np.zeros(len(base), dtype=np.int64)
    turned = np.zeros(len(base), dtype=np.int64)
    for bit in range(bits):
        chosen = (numbers >> bit) & 1 == 1
        straight |= (written(chosen) != base).astype(np.int64) << bit
        turned |= (written(~chosen) != base).astype(np.int64) << bit
    if not np.array_equal(written(np.zeros(shape, dtype=bool)), base):
        raise ProbeError("the writer does not store the same bytes twice: it cannot be probed")
    everything = (1 << bits) - 1
    single = (straight ^ turned) == everything
    owners = np.where(single, straight, np.where((straight | turned) != 0, -1, 0))
    owners[(straight > count) & single] = -1
    # A byte that moves with all of them and with none of the codes follows a property of the whole.
    owners[moves & (owners == 0)] = -1
    inside = np.zeros(len(base), dtype=bool)
    inside[start : start + page_bytes] = True
    strays = np.flatnonzero((owners != 0) & ~inside)[:8].tolist()
    return Owned(owners[start : start + page_bytes], strays, 2 * bits + 3)


def _shape(axes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(axes[axis] for axis in order(axes))


def in_format_order(values: npt.NDArray[np.int64], axes: Mapping[str, int], wanted: list[str]) -> npt.NDArray[np.int64]:
    """``values`` with its axes, which are those of :func:`order`, in the order ``wanted``."""
    have = order(axes)
    moved: npt.NDArray[np.int64] = np.transpose(values, [have.index(axis) for axis in wanted])
    return moved
