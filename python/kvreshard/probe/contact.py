"""First contact: a marked page, and digests of pages on both sides.

Before any request, the source's own writer stores a marked page in a scratch block, the plan carries it, and the
destination's own reader says what it finds: one page a layer, so for 80 layers of 64 KiB 5 MiB and one transfer. After
a request, both sides can compare a digest of some elements of one page: 64 elements a layer are 64 small reads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .errors import ProbeError, WriterMismatch
from .memory import PageMemory
from .sources import FLOATS, element_bytes, order

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Marks:
    """Values of one page that tell where they belong.

    ``values`` has an array a component, axes as :func:`~kvreshard.probe.check_writer` passes them. Neighbours along
    every axis differ, and so do the same elements of other pages and components, as far as the type can tell.
    """

    values: Mapping[str, Values]

    def compare(self, read: Mapping[str, Any]) -> None:
        """Holds what the destination's reader found against the marks.

        Args:
            read: An array a component, in the shape of the marks, or for the part of an axis that the reader holds.

        Raises:
            WriterMismatch: The first element that is not what was written.
        """
        for component, written in self.values.items():
            if component not in read:
                raise WriterMismatch(f"component {component}: the reader found nothing", component=component)
            found = np.asarray(read[component])
            if found.shape != written.shape:
                raise ProbeError(f"component {component}: shape {found.shape} is read, {written.shape} was written")
            wrong = np.argwhere(found != written)
            if len(wrong):
                at = tuple(int(i) for i in wrong[0])
                raise WriterMismatch(
                    f"component {component}, element {at}: {written[at]} was written, {found[at]} is read; "
                    f"{len(wrong)} of {written.size} elements are wrong",
                    component=component,
                )


def marks(format: kvr.PageFormat, *, page: int = 0, seed: int = 0, first: Mapping[str, int] | None = None) -> Marks:
    """Marks for one page of ``format``. ``first`` is the global index at which this rank's share of an axis begins.

    Floats are small whole numbers, exact in every float type of 8 bits or more; other types use all their bits.
    """
    made: dict[str, Values] = {}
    for component in format.components:
        axes = dict(format.axes(component))
        names = order(axes)
        shape = tuple(axes[axis] for axis in names)
        number = np.full(shape, _salt(component, page, seed), dtype=np.uint64)
        for dimension, axis in enumerate(names):
            start = (first or {}).get(axis, 0)
            index = np.arange(start, start + shape[dimension], dtype=np.uint64)
            step = np.uint64(_salt(axis, 0, seed) | 1)
            line = (index * step).reshape([-1 if at == dimension else 1 for at in range(len(shape))])
            number = _stir(number + line)
        dtype = format.types[component]
        if dtype in FLOATS:
            made[component] = (1 + number % np.uint64(15)).astype(np.float32) * np.where(number >> np.uint64(63), -1, 1)
            made[component] = made[component].astype(np.float32)
        else:
            kind = np.dtype(f"u{element_bytes(dtype)}")
            made[component] = (number & np.uint64(2 ** (8 * kind.itemsize) - 1)).astype(kind)
    return Marks(made)


def page_digest(
    cache: Any,
    format: kvr.PageFormat,
    *,
    start: int,
    samples: int = 64,
    seed: int = 0,
    shares: Mapping[str, tuple[int, int]] | None = None,
    common: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """A digest of sampled elements of the page that begins ``start`` bytes into ``cache``, as 64 hex digits.

    Equal on two sides that hold the same elements, however their pages are built; it tells elements that moved.

    Args:
        cache: Array or tensor.
        format: How this side's page is built.
        start: Byte of the cache where the page begins.
        samples: Elements of each component.
        seed: Which ones; the same on both sides.
        shares: The half-open interval of each sharded axis that this side's page holds; from 0 where not given.
        common: The interval of each axis to sample from, for sides that hold other shares; all of it where not given.
    """
    memory, digest = PageMemory(cache), hashlib.sha256()
    page = memory.read(start, format.page_bytes)
    for component in sorted(format.components):
        axes = format.axes(component)
        begin = [(shares or {}).get(axis, (0, 0))[0] for axis, _ in axes]
        held = [(at, at + extent) for at, (_, extent) in zip(begin, axes, strict=True)]
        spans = [(common or {}).get(axis, span) for (axis, _), span in zip(axes, held, strict=True)]
        for (axis, _), (low, high), (left, right) in zip(axes, spans, held, strict=True):
            if not left <= low < high <= right:
                raise ProbeError(f"axis {axis}: [{low}, {high}) is not within [{left}, {right}), held")
        count = math.prod(high - low for low, high in spans)
        offsets, size = format.offsets(component), element_bytes(format.types[component])
        numbers = np.arange(samples, dtype=np.uint64) + np.uint64(_salt(component, 1, seed))
        for number in sorted({int(one) for one in _stir(numbers) % np.uint64(count)}):
            local = np.unravel_index(number, tuple(high - low for low, high in spans)) if spans else ()
            index = tuple(int(i) + low for i, (low, _) in zip(local, spans, strict=True))
            at = int(offsets[tuple(i - left for i, (left, _) in zip(index, held, strict=True))])
            digest.update(f"{component} {index} ".encode() + page[at : at + size].tobytes())
    return digest.hexdigest()


def _salt(name: str, page: int, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{name} {page} {seed}".encode()).digest()[:8], "little")


def _stir(number: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit of the input reaches every bit of the output."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ (number >> np.uint64(shift))) * np.uint64(factor)
    return number ^ (number >> np.uint64(31))
