"""torch on CPU or device tensors: strided views, whatever the nests; the reference of the Triton kernels."""

from __future__ import annotations

from typing import Any

import torch

import kvreshard as kvr

from .memory import Span, alignment
from .mover import Mover, Work

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchMover(Mover):
    """Copies through ``as_strided``, ``index_select`` and ``index_copy_``; torch checks that each view lies inside its
    storage.
    """

    def __init__(self, tiles: kvr.Tiles, memory: Any) -> None:
        super().__init__(tiles, memory)
        flat = {id(span): flat_bytes(span) for span in self.memory}
        self._flat = [flat[id(span)] for span in self._span_of_lane]

    def _move(self, work: Work, buffer: torch.Tensor, *, gather: bool) -> None:
        check_buffer(buffer, work.bytes)
        device = buffer.device
        whole = torch.empty(0, dtype=torch.uint8, device=device).set_(buffer.untyped_storage())
        shift = buffer.storage_offset()
        pages, places = (torch.from_numpy(ids.astype("int64")).to(device) for ids in (work.pages, work.places))
        for lane, first, count, offset in work.parts.tolist():
            shape, _, address, stride, pool, unit = self.lanes[lane].tolist()
            ids, at = pages[first : first + count], places[first : first + count]
            slots = int(work.places[first : first + count].max()) + 1
            start = address - self._span_of_lane[lane].address
            for tile in self.shapes[shape]:
                loops = [step for loop in tile.loops for step in loop[1:]]
                here, there = start + tile.page, shift + offset + tile.buffer
                width = alignment(tile.run, here, there, stride, unit, *loops, most=8)
                page = _view(self._flat[lane], tile, here, pool, stride, 1, width)
                staged = _view(whole, tile, there, slots, unit, 2, width)
                if gather:
                    staged.index_copy_(0, at, page.index_select(0, ids))
                else:
                    page.index_copy_(0, ids, staged.index_select(0, at))


def flat_bytes(span: Span) -> torch.Tensor:
    """An allocation as a tensor of bytes.

    Raises:
        kvreshard.LayoutError: It is on a device and given as an address.
    """
    if isinstance(span.owner, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8, device=span.owner.device).set_(span.owner)
    if span.device is not None:
        raise kvr.LayoutError("the torch backend needs tensors of device memory, not its addresses")
    return torch.from_numpy(span.array())


def check_buffer(buffer: torch.Tensor, least: int) -> None:
    """Refuses a buffer that is not flat, contiguous, of one-byte elements and at least `least` long."""
    if not buffer.is_contiguous() or buffer.dim() != 1 or buffer.element_size() != 1:
        raise ValueError("the buffer must be one-dimensional, contiguous and of one-byte elements")
    if buffer.numel() < least:
        raise ValueError(f"the buffer has {buffer.numel()} bytes, the chunk {least}")


def _view(
    memory: torch.Tensor, tile: kvr.Tile, start: int, count: int, stride: int, side: int, width: int
) -> torch.Tensor:
    """The elements of a tile in `count` pages or places, `width` bytes each: shape (count, *loops, run / width)."""
    flat = memory[: memory.numel() // width * width].view(_INTEGERS[width])
    shape = (count, *(loop[0] for loop in tile.loops), tile.run // width)
    strides = (stride // width, *(loop[side] // width for loop in tile.loops), 1)
    return flat.as_strided(shape, strides, start // width)
