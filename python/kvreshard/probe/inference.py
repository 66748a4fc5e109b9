"""The format of a writer that declares none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .coding import owners_of
from .errors import NotANest, ProbeError
from .memory import PageMemory
from .nest import Part, digits_of, notation_of
from .sources import Write, element_bytes, order


def infer(
    write: Write,
    cache: Any,
    inputs: Mapping[str, Mapping[str, int]],
    *,
    page_bytes: int,
    types: Mapping[str, str] | str,
    start: int = 0,
) -> kvr.PageFormat:
    """Finds the page format of ``write``, digits of axes included.

    ``inputs`` has the extent of every axis of every component: ``{"k": {"n": 16, "h": 8, "d": 128}}``. ``write`` stores
    the page that begins ``start`` bytes into ``cache`` from one array an input (axes ``n``, ``h``, then the others by
    name; float32 for float types, else integers of the type). ``types`` is the element type of all components or of
    each. What the page held is put back. It takes about ``2 * log2(N)`` writes a component of N elements.

    Axes of one index leave no trace in the bytes; they are written where the notation allows them.

    Raises:
        NotANest: No notation describes where the elements are.
        ProbeError: The page is not inside the cache, or the writer is not repeatable.
    """
    extents: dict[str, int] = {}
    for component, axes in inputs.items():
        for axis, extent in axes.items():
            if extents.setdefault(axis, extent) != extent:
                raise ProbeError(f"axis {axis}: {extent} in {component}, {extents[axis]} elsewhere; name two axes")
    memory = PageMemory(cache)
    if start < 0 or start + page_bytes > len(memory):
        raise ProbeError(f"a page of {page_bytes} bytes at {start} is outside the {len(memory)} bytes of the cache")
    named = dict.fromkeys(inputs, types) if isinstance(types, str) else dict(types)
    before = memory.read()
    try:
        parts = [_part(component, named, inputs, write, memory, start, page_bytes) for component in inputs]
    finally:
        memory.write(0, before)
    notation, needed = notation_of(parts, page_bytes)
    found = kvr.PageFormat(notation, extents=needed, types=named)
    if found.page_bytes != page_bytes:
        raise NotANest(f"`{notation}` has {found.page_bytes} bytes, the page has {page_bytes}")
    return found


def _part(
    component: str,
    types: Mapping[str, str],
    inputs: Mapping[str, Mapping[str, int]],
    write: Write,
    memory: PageMemory,
    start: int,
    page_bytes: int,
) -> Part:
    owned = owners_of(component, types, inputs, write, memory, start, page_bytes)
    size = element_bytes(types[component])
    axes = {axis: inputs[component][axis] for axis in order(inputs[component])}
    count = math.prod(axes.values())
    if owned.strays:
        raise NotANest(f"component {component}: the writer moved byte {owned.strays[0]} of the cache, outside the page")
    if (owned.owners == -1).any():
        byte = int(np.flatnonzero(owned.owners == -1)[0])
        raise NotANest(f"component {component}: byte {byte} of the page moves with several elements")
    places = np.flatnonzero(owned.owners)
    by_element = places[np.argsort(owned.owners[places], kind="stable")]
    counts = np.bincount(owned.owners[places] - 1, minlength=count)
    if (counts != size).any():
        number = int(np.flatnonzero(counts != size)[0])
        raise NotANest(
            f"component {component}, element {_index(number, axes)}: {counts[number]} bytes of the page move with it, "
            f"its type has {size}"
        )
    grouped: npt.NDArray[np.int64] = by_element.reshape(count, size).astype(np.int64)
    if (np.diff(grouped, axis=1) != 1).any():
        number = int(np.flatnonzero((np.diff(grouped, axis=1) != 1).any(axis=1))[0])
        raise NotANest(f"component {component}, element {_index(number, axes)}: its bytes are not beside each other")
    offsets = grouped[:, 0].reshape(tuple(axes.values()))
    return Part(component, size, int(offsets.reshape(-1)[0]), digits_of(component, offsets, axes), axes)


def _index(number: int, axes: Mapping[str, int]) -> str:
    at = np.unravel_index(number, tuple(axes.values())) if axes else ()
    return "(" + ", ".join(f"{axis}={int(i)}" for axis, i in zip(axes, at, strict=True)) + ")"
