"""Numbers that tell places apart, the same on every side."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]


def salt(name: str, page: int, seed: int) -> int:
    """64 bits that go with a name, a page and a seed."""
    return int.from_bytes(hashlib.sha256(f"{name} {page} {seed}".encode()).digest()[:8], "little")


def stir(number: Numbers) -> Numbers:
    """Every bit of the input reaches every bit of the output."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        number = (number ^ (number >> np.uint64(shift))) * np.uint64(factor)
    return number ^ (number >> np.uint64(31))


def numbered(start: int, indexes: list[tuple[str, Numbers]], seed: int) -> Numbers:
    """A number for each place of a grid: `indexes` are the axes' names and indexes, in the order of the grid's axes."""
    shape = tuple(len(index) for _, index in indexes)
    number = np.full(shape, start, dtype=np.uint64)
    for dimension, (axis, index) in enumerate(indexes):
        step = np.uint64(salt(axis, 0, seed) | 1)
        line = (index * step).reshape([-1 if at == dimension else 1 for at in range(len(shape))])
        number = stir(number + line)
    return number
