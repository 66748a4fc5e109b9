"""Marks that outlive a quantiser: coarse enough to be recognised, and other ones wherever a scale is another.

A quantiser keeps the sign of a value and, where its scale is the right one, the value to within half a step. So a mark
is 1 or 4, of either sign, times 1/16, 1 or 16; the last is the same wherever one scale covers, since small values
beside large ones are lost. A wrong scale makes a value 16 times too small or too large; e4m3fn taken for e4m3fnuz makes
it half or twice as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

import kvreshard as kvr

from .errors import ProbeError, WriterMismatch
from .mixing import numbered, salt
from .sources import Source, Values, order

NEAR = 0.4
"""How much of a mark a quantiser may take away or add: half a step of 4 bits that reach from -4 to 4 is 0.27 of 1."""


def inputs_of_sources(format: kvr.PageFormat, sources: Mapping[str, Source]) -> dict[str, dict[str, int]]:
    """The extents of what a quantising writer is given, by input: those of the elements that are no scales."""
    missing = set(format.components) - set(sources)
    if missing:
        raise ProbeError(f"no source is given for component {', '.join(sorted(missing))}")
    inputs: dict[str, dict[str, int]] = {}
    for component in format.components:
        source = sources[component]
        if source.scale:
            continue
        extents = inputs.setdefault(source.input, {})
        for axis, extent in format.axes(component):
            target, ratio = source.ratios.get(axis, (axis, 1))
            if not target:
                raise ProbeError(f"component {component}: a bare number in `{format.notation}` is no axis of an input")
            if extents.setdefault(target, extent * ratio) != extent * ratio:
                raise ProbeError(f"input {source.input}: axis {target} has two extents")
    return inputs


def coarse_marks(
    format: kvr.PageFormat, sources: Mapping[str, Source], *, page: int, seed: int, first: Mapping[str, int]
) -> dict[str, Values]:
    """Marks by input, float32, axes as :func:`order` has them."""
    made: dict[str, Values] = {}
    for name, extents in inputs_of_sources(format, sources).items():
        axes = order(extents)
        indexes = [
            (axis, np.arange(first.get(axis, 0), first.get(axis, 0) + extents[axis], dtype=np.uint64)) for axis in axes
        ]
        number = numbered(salt(name, page, seed), indexes, seed)
        values = np.where(number >> np.uint64(63), -1.0, 1.0) * np.where(
            number >> np.uint64(62) & np.uint64(1), 4.0, 1.0
        )
        scale = _finest(format, sources, name)
        if scale is not None:
            # One number for all that a scale covers.
            cells = [(axis, index // np.uint64(scale.get(axis, 0) or 1 << 62)) for axis, index in indexes]
            which = numbered(salt(f"scale of {name}", page, seed), cells, seed) % np.uint64(3)
            values = values * np.array([1 / 16, 1.0, 16.0])[which]
        made[name] = values.astype(np.float32)
    return made


def _finest(format: kvr.PageFormat, sources: Mapping[str, Source], name: str) -> dict[str, int] | None:
    """How many indexes of each axis the input's finest scale covers; an axis that it covers whole is left out."""
    found: list[tuple[int, dict[str, int]]] = []
    for component in format.components:
        source, axes = sources[component], format.axes(component)
        if source.scale and source.input == name:
            cells = dict(source.ratios.get(axis, (axis, 1)) for axis, _ in axes)
            found.append((math.prod(extent for _, extent in axes), cells))
    return max(found, key=lambda one: one[0])[1] if found else None


def compare_coarsely(name: str, written: Values, found: Values) -> None:
    """Raises `WriterMismatch` with the first mark that is not recognised."""
    with np.errstate(invalid="ignore"):
        wrong = np.argwhere(~(np.abs(found - written) <= NEAR * np.abs(written)))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise WriterMismatch(
            f"input {name}, element {at}: {written[at]} was written, {found[at]} is read; "
            f"{len(wrong)} of {written.size} elements are more than {NEAR:.0%} off",
            component=name,
        )
