"""The Triton kernels' host side: tables, grids, launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import kvreshard as kvr

from . import tuning
from .blocks import Config, blocks
from .memory import alignment
from .mover import Mover, Work
from .torch_backend import check_buffer
from .triton_kernel import COLUMNS, move, record

_TILES_PER_LAUNCH = 4
"""More make the kernel long to compile, and its registers those of the greediest tile."""

_PARTS_PER_LAUNCH = 65535
"""The most that the second axis of a grid holds."""


@dataclass(frozen=True)
class _Launch:
    """Some tiles of a shape, as the kernel's constants."""

    tiles: tuple[int, ...]
    count: int
    outers: int
    programs: int
    config: Config


@dataclass(frozen=True)
class _Batch:
    """The parts of one shape: rows of the table, and the most pages that one of them has."""

    shape: int
    row: int
    parts: int
    pages: int


@dataclass(frozen=True)
class Job:
    """A chunk whose tables are in device memory: run it as often as one likes, also inside a CUDA graph."""

    work: Work
    batches: tuple[_Batch, ...]
    parts: torch.Tensor
    pages: torch.Tensor
    places: torch.Tensor
    buffer_align: int
    longest: int


class TritonMover(Mover):
    """One launch for each shape, over all lanes that have it, on torch's current stream. The host never waits.

    Args:
        config: Overrides the choice of `tuning`, for measurements.
    """

    def __init__(self, tiles: kvr.Tiles, memory: Any, config: Config | None = None) -> None:
        super().__init__(tiles, memory)
        devices = {span.device for span in self.memory}
        if len(devices) > 1:
            raise kvr.LayoutError(f"memory of one device a mover, not of {sorted(map(str, devices))}")
        index = devices.pop() if devices else None
        self.device = torch.device("cpu") if index is None else torch.device("cuda", index)
        self._config = config
        self._page_align = alignment(*self.lanes[:, 2].tolist(), *self.lanes[:, 3].tolist())
        self._launches: dict[tuple[int, bool, int], list[_Launch]] = {}

    def prepare(self, work: Work) -> Job:
        """Copies the tables of a chunk to the device, without waiting for it."""
        lane, first, count, offset = work.parts.astype(np.int64).T
        _, _, address, stride, _, unit = self.lanes[lane].T
        shape = self.lanes[lane, 0]
        order = np.argsort(shape, kind="stable")
        table = np.stack([address, stride, unit, offset, first, count], axis=1)[order]
        batches = []
        for one in np.unique(shape).tolist():
            rows = np.flatnonzero(shape[order] == one)
            for at in range(0, len(rows), _PARTS_PER_LAUNCH):
                some = rows[at : at + _PARTS_PER_LAUNCH]
                batches.append(_Batch(one, int(some[0]), len(some), int(table[some, 5].max())))
        parts, pages, places = self._upload(table, work.pages, work.places)
        bits = int(np.bitwise_or.reduce(unit)) | int(np.bitwise_or.reduce(offset))
        return Job(work, tuple(batches), parts, pages, places, alignment(bits), work.bytes)

    def run(self, job: Job, buffer: torch.Tensor, *, gather: bool) -> None:
        """Launches a prepared chunk. Nothing but launches: a CUDA graph can capture it.

        The graph keeps the buffer's address and the job's tables, so both must outlive it.
        """
        check_buffer(buffer, job.longest)
        if buffer.device != self.device:
            raise ValueError(f"the buffer is on {buffer.device}, the pages on {self.device}")
        start = buffer.data_ptr()
        align = alignment(job.buffer_align, start)
        for batch in job.batches:
            parts = job.parts[batch.row * COLUMNS :]
            for launch in self._launches_of(batch.shape, gather, align):
                grid = (launch.programs * batch.pages, batch.parts, 1)
                move[grid](
                    parts,
                    job.pages,
                    job.places,
                    start,
                    TILES=launch.tiles,
                    COUNT=launch.count,
                    OUTERS=launch.outers,
                    PROGRAMS=launch.programs,
                    GATHER=gather,
                    EVICT="evict_first" if launch.config.evict else "",
                    num_warps=launch.config.warps,
                )

    def _move(self, work: Work, buffer: torch.Tensor, *, gather: bool) -> None:
        if work.bytes:
            self.run(self.prepare(work), buffer, gather=gather)

    def _launches_of(self, shape: int, gather: bool, buffer_align: int) -> list[_Launch]:
        key = (shape, gather, buffer_align)
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = list(self._built(self.shapes[shape], gather, buffer_align))
        return found

    def _built(self, shape: list[kvr.Tile], gather: bool, buffer_align: int) -> Iterator[_Launch]:
        for at in range(0, len(shape), _TILES_PER_LAUNCH):
            some = shape[at : at + _TILES_PER_LAUNCH]
            sides: dict[str, int] = {"page_align": self._page_align, "buffer_align": buffer_align}
            config = self._config or tuning.config(some, gather=gather, **sides)
            cut = [blocks(tile, gather=gather, config=config, **sides) for tile in some]
            outers = max(len(one.outer) for one in cut)
            programs = 0
            numbers: list[int] = []
            for one in cut:
                numbers += record(one, programs, outers)
                programs += one.programs
            yield _Launch(tuple(numbers), len(cut), outers, programs, config)

    def _upload(
        self, table: npt.NDArray[np.int64], pages: npt.NDArray[np.int32], places: npt.NDArray[np.int32]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three tables, in one copy."""
        # Each starts on 16 bytes, which the kernel is specialised for.
        lengths = [table.nbytes, pages.nbytes, places.nbytes]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + -(-length // 16) * 16)
        on_device = self.device.type == "cuda"
        staged = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=on_device)
        host = staged.numpy()
        for start, length, source in zip(starts, lengths, (table, pages, places), strict=False):
            host[start : start + length] = np.ascontiguousarray(source).view(np.uint8).reshape(-1)
        # The pinned block is not used again before the copy has run: torch's allocator sees to it.
        device = staged.to(self.device, non_blocking=True)
        cut = [device[start : start + length] for start, length in zip(starts, lengths, strict=False)]
        return cut[0].view(torch.int64), cut[1].view(torch.int32), cut[2].view(torch.int32)
