"""numpy on host memory: the reference, and the engine of hosts without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .memory import is_tensor, span
from .mover import Mover, Work

_Bytes = npt.NDArray[np.uint8]


class HostMover(Mover):
    """Copies through strided views of host memory; numpy checks that each lies inside its allocation."""

    def __init__(self, tiles: kvr.Tiles, memory: Any) -> None:
        super().__init__(tiles, memory)
        arrays = {id(span): span.array() for span in self.memory}
        self._arrays = [arrays[id(span)] for span in self._span_of_lane]

    def _move(self, work: Work, buffer: Any, *, gather: bool) -> None:
        flat = flat_array(buffer, work.bytes)
        pages, places = work.pages, work.places
        for lane, first, count, offset in work.parts.tolist():
            shape, _, address, stride, pool, unit = self.lanes[lane].tolist()
            memory, start = self._arrays[lane], address - self._span_of_lane[lane].address
            ids, at = pages[first : first + count], places[first : first + count]
            slots = int(at.max()) + 1
            # One place after the other, as packed chunks have them, needs no list.
            index: Any = slice(0, count) if slots == count and (np.diff(at) == 1).all() else at
            for tile in self.shapes[shape]:
                page = _view(memory, tile, start + tile.page, pool, stride, 1)
                staged = _view(flat, tile, offset + tile.buffer, slots, unit, 2)
                if gather:
                    staged[index] = page[ids]
                else:
                    page[ids] = staged[index]


def flat_array(buffer: Any, least: int) -> _Bytes:
    """The buffer as bytes.

    Raises:
        ValueError: It is not flat, contiguous, of one-byte elements and at least `least` long.
    """
    if is_tensor(buffer):
        if not buffer.is_contiguous() or buffer.dim() != 1 or buffer.element_size() != 1:
            raise ValueError("the buffer must be one-dimensional, contiguous and of one-byte elements")
        whole = span(buffer)
        start = int(buffer.data_ptr()) - whole.address
        found = whole.array()[start : start + buffer.numel()]
    else:
        found = np.asarray(buffer)
        if found.ndim != 1 or found.itemsize != 1 or not found.flags.c_contiguous:
            raise ValueError("the buffer must be one-dimensional, contiguous and of one-byte elements")
        found = found.view(np.uint8)
    if len(found) < least:
        raise ValueError(f"the buffer has {len(found)} bytes, the chunk {least}")
    return found


def _view(memory: _Bytes, tile: kvr.Tile, start: int, count: int, stride: int, side: int) -> npt.NDArray[Any]:
    """The runs of a tile in `count` pages or places: shape (count, *loops)."""
    dtype = np.dtype(f"u{tile.run}") if tile.run in (1, 2, 4, 8) else np.dtype((np.void, tile.run))
    shape = (count, *(loop[0] for loop in tile.loops))
    strides = (stride, *(loop[side] for loop in tile.loops))
    return np.ndarray(shape, dtype, memory.data, start, strides)
