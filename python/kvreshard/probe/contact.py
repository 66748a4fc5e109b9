"""First contact: a marked page, and digests of pages on both sides.

Before any request, the source's own writer stores a marked page in a scratch block, the plan carries it, and the
destination's own reader says what it finds: one page a layer, so for 80 layers of 64 KiB 5 MiB and one transfer. After
a request, both sides can compare a digest of some elements of one page: 64 elements a layer are 64 small reads.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvreshard as kvr

from .coarse import coarse_marks, compare_coarsely
from .errors import ProbeError, WriterMismatch
from .memory import PageMemory
from .mixing import numbered, salt, stir
from .sources import FLOATS, Source, Values, element_bytes, order


@dataclass(frozen=True)
class Marks:
    """Values of one page that tell where they belong.

    ``values`` has an array a component, axes as :func:`~kvreshard.probe.check_writer` passes them. Neighbours along
    every axis differ, and so do the same elements of other pages and components, as far as the type can tell.
    """

    values: Mapping[str, Values]
    coarse: bool = False
    """Whether the writer quantises: then the arrays are its inputs, and what is read is near to them."""

    def compare(self, read: Mapping[str, Any]) -> None:
        """Holds what the destination's reader found against the marks.

        Args:
            read: An array a component (an input, where the writer quantises), in the shape of the marks.

        Raises:
            WriterMismatch: The first element that is not what was written.
        """
        for component, written in self.values.items():
            if component not in read:
                raise WriterMismatch(f"component {component}: the reader found nothing", component=component)
            found = np.asarray(read[component])
            if found.shape != written.shape:
                raise ProbeError(f"component {component}: shape {found.shape} is read, {written.shape} was written")
            if self.coarse:
                compare_coarsely(component, written, found)
                continue
            wrong = np.argwhere(found != written)
            if len(wrong):
                at = tuple(int(i) for i in wrong[0])
                raise WriterMismatch(
                    f"component {component}, element {at}: {written[at]} was written, {found[at]} is read; "
                    f"{len(wrong)} of {written.size} elements are wrong",
                    component=component,
                )


def marks(
    format: kvr.PageFormat,
    *,
    page: int = 0,
    seed: int = 0,
    first: Mapping[str, int] | None = None,
    sources: Mapping[str, Source] | None = None,
) -> Marks:
    """Marks for one page of ``format``. ``first`` is the global index at which this rank's share of an axis begins.

    Floats are small whole numbers, exact in every float type of 8 bits or more; other types use all their bits.

    ``sources`` are for a writer that quantises, as :func:`~kvreshard.probe.check_writer` takes them: the arrays are
    then its inputs, float32, and ``compare`` takes what a reader makes of the codes and scales. The values are coarse
    enough for 4 bits a value with a scale of at least eight bits, and differ in magnitude from scale to scale; codes
    that mix channels (a rotation) do not keep them.
    """
    if sources is not None:
        return Marks(coarse_marks(format, sources, page=page, seed=seed, first=first or {}), coarse=True)
    made: dict[str, Values] = {}
    for component in format.components:
        axes = dict(format.axes(component))
        starts = {axis: (first or {}).get(axis, 0) for axis in axes}
        indexes = [(axis, np.arange(starts[axis], starts[axis] + axes[axis], dtype=np.uint64)) for axis in order(axes)]
        number = numbered(salt(component, page, seed), indexes, seed)
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
        offsets, size = format.offsets(component), element_bytes(format.types[component])
        for index in sampled(component, spans, samples, seed):
            at = int(offsets[tuple(i - left for i, (left, _) in zip(index, held, strict=True))])
            digest.update(f"{component} {index} ".encode() + page[at : at + size].tobytes())
    return digest.hexdigest()


def sampled(component: str, spans: Sequence[tuple[int, int]], samples: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Indexes of up to ``samples`` elements within half-open spans, one an axis; the same wherever the spans are."""
    shape = tuple(high - low for low, high in spans)
    numbers = np.arange(samples, dtype=np.uint64) + np.uint64(salt(component, 1, seed))
    for number in sorted({int(one) for one in stir(numbers) % np.uint64(math.prod(shape))}):
        local = np.unravel_index(number, shape) if shape else ()
        yield tuple(int(i) + low for i, (low, _) in zip(local, spans, strict=True))
