"""A writer put to the test of its declared format."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import kvreshard as kvr

from .coding import in_format_order, owners_of
from .errors import ProbeError, WriterMismatch
from .memory import Bytes, PageMemory
from .sources import Source, Values, Write, cells, element_bytes, inputs_of, order


def check_writer(
    format: kvr.PageFormat,
    write: Write,
    cache: Any,
    *,
    start: int = 0,
    sources: Mapping[str, Source] | None = None,
    inputs: Mapping[str, Mapping[str, int]] | None = None,
    samples: int | None = None,
) -> int:
    """Confirms element by element that ``write`` stores pages of ``format``.

    ``write`` stores one page, the one that begins ``start`` bytes into ``cache`` (array or tensor, host or GPU), from a
    mapping of arrays, one an input, whose axes are tokens ``n``, heads ``h``, then the others by name. What the page
    held is put back at the end.

    A writer that stores elements as they are needs nothing else: its inputs are the components (float32 for floats,
    else integers of the type), and a page of N elements takes about ``2 * log2(N)`` writes a component. A writer that
    quantises says in ``sources`` what each component is made of and in ``inputs`` the extents of what it is given; then
    one element after another is changed, or ``samples`` of each component, one write each.

    Returns how many writes it took.

    Raises:
        WriterMismatch: The first element that lies elsewhere, and where.
        ProbeError: The page is not inside the cache, or the writer is not repeatable.
    """
    memory = PageMemory(cache)
    before = memory.read()
    if start < 0 or start + format.page_bytes > len(memory):
        raise ProbeError(f"a page of {format.page_bytes} bytes at {start} is outside the {len(memory)} of the cache")
    try:
        if sources is None:
            return _as_they_are(format, write, memory, start)
        if inputs is None:
            raise ProbeError("sources need inputs: the extents of what the writer is given")
        return _perturbed(format, write, memory, start, sources, inputs, samples)
    finally:
        memory.write(0, before)


def _as_they_are(format: kvr.PageFormat, write: Write, memory: PageMemory, start: int) -> int:
    inputs, types, writes = inputs_of(format), format.types, 0
    for component in format.components:
        owned = owners_of(component, types, inputs, write, memory, start, format.page_bytes)
        writes += owned.writes
        axes = [axis for axis, _ in format.axes(component)]
        offsets = format.offsets(component)
        shape = tuple(inputs[component][axis] for axis in order(inputs[component]))
        numbers = in_format_order(np.arange(1, math.prod(shape) + 1).reshape(shape), inputs[component], axes)
        size = element_bytes(types[component])
        expected = np.zeros(format.page_bytes, dtype=np.int64)
        for byte in range(size):
            expected[offsets.reshape(-1) + byte] = numbers.reshape(-1)
        wrong = np.flatnonzero(expected != owned.owners)
        if len(wrong):
            first = int(wrong[0])
            if expected[first] == 0 and owned.owners[first] < 0:
                raise WriterMismatch(
                    f"component {component}: byte {first} of the page moves with several elements, and "
                    f"`{format.notation}` has none there",
                    component=component,
                    moved=[first],
                )
            # The element that should be there, or the one that is and should not.
            number = int(expected[first] or owned.owners[first])
            place = np.argwhere(numbers == number)[0]
            moved = np.flatnonzero(owned.owners == number).tolist()
            _raise(format, component, dict(zip(axes, place.tolist(), strict=True)), moved, owned.owners, size)
        if owned.strays:
            raise WriterMismatch(
                f"component {component}: the writer also moved byte {owned.strays[0]} of the cache, outside its page "
                f"[{start}, {start + format.page_bytes})",
                component=component,
                moved=owned.strays,
            )
    return writes


def _raise(
    format: kvr.PageFormat, component: str, index: dict[str, int], moved: list[int], owners: Any, size: int
) -> None:
    declared = (
        format.offset(component, **index) if "" not in index else int(format.offsets(component)[tuple(index.values())])
    )
    where = ", ".join(f"{axis or 'loop'}={at}" for axis, at in index.items())
    if not moved:
        shared = int((owners == -1).sum())
        found = f"{shared} bytes move with several elements" if shared else "no byte of the page moves with it alone"
    else:
        shown = ", ".join(str(byte) for byte in moved[:4]) + (", ..." if len(moved) > 4 else "")
        found = f"the writer moves byte {shown}"
    raise WriterMismatch(
        f"component {component}, element ({where}): `{format.notation}` has it at byte {declared} ({size} bytes), "
        f"{found}",
        component=component,
        index=index,
        declared=declared,
        moved=moved[:8],
    )


def _perturbed(
    format: kvr.PageFormat,
    write: Write,
    memory: PageMemory,
    start: int,
    sources: Mapping[str, Source],
    inputs: Mapping[str, Mapping[str, int]],
    samples: int | None,
) -> int:
    missing = set(format.components) - set(sources)
    if missing:
        raise ProbeError(f"no source is given for component {', '.join(sorted(missing))}")
    bases = [_Base(write, memory, _values(inputs, turn)) for turn in (0, 1)]
    writes = 2
    for component in format.components:
        source, axes = sources[component], format.axes(component)
        offsets, size = format.offsets(component), element_bytes(format.types[component])
        for index in _chosen(offsets.shape, samples):
            block = cells(source, axes, inputs[source.input], index)
            base = bases[0] if source.scale else bases[_turn(block)]
            moved = base.changed(source.input, block, source.scale)
            writes += 1
            allowed = {start + int(offsets[index]) + byte for byte in range(size)}
            if source.scale:
                # Everything that follows the magnitude of the same inputs moves with it.
                allowed |= _beside(format, sources, inputs, source, block, start)
            if not moved or not set(moved) <= allowed:
                names = [axis for axis, _ in axes]
                inside = [byte - start for byte in moved if byte not in allowed] or [byte - start for byte in moved]
                owners = np.zeros(1, dtype=np.int64)
                _raise(format, component, dict(zip(names, index, strict=True)), inside, owners, size)
    return writes


def _chosen(shape: tuple[int, ...], samples: int | None) -> Iterator[tuple[int, ...]]:
    """Every index, or some, the same ones every time."""
    if samples is None or samples >= math.prod(shape):
        return itertools.product(*(range(extent) for extent in shape))
    picked = random.Random(0).sample(range(math.prod(shape)), samples)
    return (tuple(int(at) for at in np.unravel_index(number, shape)) for number in picked)


def _values(inputs: Mapping[str, Mapping[str, int]], turn: int) -> dict[str, Values]:
    """Inputs between -1 and 1 that reach both ends in every 16 channels, so that one more value inside moves no scale.

    The ends stand at channels 0 and 1 of every eight, or at 4 and 5: an element is changed where they are elsewhere.
    """
    made: dict[str, Values] = {}
    for seed, (name, axes) in enumerate(sorted(inputs.items())):
        shape = tuple(axes[axis] for axis in order(axes))
        # Steps of a quantiser that has 15 of them or 255, away from the ends and from 0.
        steps = np.random.default_rng(seed).integers(1, 4, size=shape)
        values = (steps / 7).astype(np.float32)
        values[..., 4 * turn :: 8] = 1.0
        values[..., 4 * turn + 1 :: 8] = -1.0
        made[name] = values
    return made


def _turn(block: tuple[slice, ...]) -> int:
    """Which of the two sets of ends leaves the block alone."""
    return 0 if block and block[-1].start % 8 >= 4 else 1


class _Base:
    """A page as written, and what moves when a part of the input changes."""

    def __init__(self, write: Write, memory: PageMemory, values: dict[str, Values]) -> None:
        self._write, self._memory, self._values = write, memory, values
        self._bytes = self._store(values)

    def _store(self, values: Mapping[str, Values]) -> Bytes:
        self._write(values)
        return self._memory.read()

    def changed(self, name: str, block: tuple[slice, ...], scale: bool) -> list[int]:
        """The bytes of the cache that move when the block's values do: twice as large, or others."""
        values = self._values[name].copy()
        values[block] = values[block] * np.float32(2.0) if scale else -values[block] - np.float32(1 / 7)
        moved = np.flatnonzero(self._store({**self._values, name: values}) != self._bytes)
        self._store(self._values)
        return [int(byte) for byte in moved]


def _beside(
    format: kvr.PageFormat,
    sources: Mapping[str, Source],
    inputs: Mapping[str, Mapping[str, int]],
    source: Source,
    block: tuple[slice, ...],
    start: int,
) -> set[int]:
    """Bytes of the other scales of the same inputs."""
    allowed: set[int] = set()
    for component, other in sources.items():
        if not other.scale or other.input != source.input or other == source:
            continue
        offsets, size = format.offsets(component), element_bytes(format.types[component])
        for index in np.ndindex(*offsets.shape):
            theirs = cells(other, format.axes(component), inputs[other.input], index)
            if all(a.start < b.stop and b.start < a.stop for a, b in zip(theirs, block, strict=True)):
                allowed |= {start + int(offsets[index]) + byte for byte in range(size)}
    return allowed
