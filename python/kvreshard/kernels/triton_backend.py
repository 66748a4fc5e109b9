"""The Triton kernels' host side: tables, grids, launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import kvreshard as kvr

from .blocks import DEFAULT, Config, blocks
from .memory import alignment
from .mover import Mover, Work
from .torch_backend import check_buffer
from .triton_kernel import COLUMNS, move, record

_TILES_PER_LAUNCH = 4
"""More make the kernel long to compile, and its registers those of the greediest tile."""

_PARTS_PER_LAUNCH = 65535
"""The most that the second axis of a grid holds."""


@dataclass
class _Launch:
    """Some tiles of a shape, as the kernel's constants, in the order of its parameters."""

    constants: tuple[Any, ...]
    programs: int
    compiled: Any = None
    """Known from the first launch on: looking it up anew costs more than launching it."""


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
        config: How the kernels are built, for measurements.
    """

    def __init__(self, tiles: kvr.Tiles, memory: Any, config: Config = DEFAULT) -> None:
        super().__init__(tiles, memory)
        devices = {span.device for span in self.memory}
        if len(devices) > 1:
            raise kvr.LayoutError(f"memory of one device a mover, not of {sorted(map(str, devices))}")
        index = devices.pop() if devices else None
        self.device = torch.device("cpu") if index is None else torch.device("cuda", index)
        self.config = config
        self._page_align = alignment(*self.lanes[:, 2].tolist(), *self.lanes[:, 3].tolist())
        self._fixed = np.ascontiguousarray(self.lanes[:, [2, 3, 5]])
        self._launches: dict[tuple[int, bool, int], list[_Launch]] = {}

    def prepare(self, work: Work) -> Job:
        """Copies the tables of a chunk to the device, without waiting for it."""
        given = work.parts.view(np.int64)
        if len(self.shapes) > 1:
            given = given[np.argsort(self.lanes[given[:, 0], 0], kind="stable")]
        table = np.empty((len(given), COLUMNS), np.int64)
        table[:, :3] = self._fixed[given[:, 0]]
        table[:, 3] = given[:, 3]
        table[:, 4:] = given[:, 1:3]
        bits = int(np.bitwise_or.reduce(table[:, 2:4], axis=None))
        parts, pages, places = self._upload(table, work.pages, work.places)
        batches = tuple(self._batches(self.lanes[given[:, 0], 0], table[:, 5]))
        return Job(work, batches, parts, pages, places, alignment(bits), work.bytes)

    def _batches(self, shape: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Iterator[_Batch]:
        """The parts by shape, which `shape` ascends by."""
        ends = [*(np.flatnonzero(np.diff(shape)) + 1).tolist(), len(shape)]
        start = 0
        for end in ends:
            for at in range(start, end, _PARTS_PER_LAUNCH):
                last = min(end, at + _PARTS_PER_LAUNCH)
                yield _Batch(int(shape[at]), at, last - at, int(counts[at:last].max()))
            start = end

    def run(self, job: Job, buffer: torch.Tensor, *, gather: bool) -> None:
        """Launches a prepared chunk. Nothing but launches: a CUDA graph can capture it.

        The graph keeps the buffer's address and the job's tables, so both must outlive it.
        """
        check_buffer(buffer, job.longest)
        if buffer.device != self.device:
            raise ValueError(f"the buffer is on {buffer.device}, the pages on {self.device}")
        with torch.cuda.device(self.device) if buffer.is_cuda else nullcontext():
            self._launch(job, buffer.data_ptr(), gather)

    def _launch(self, job: Job, start: int, gather: bool) -> None:
        align = alignment(job.buffer_align, start)
        for batch in job.batches:
            parts = job.parts[batch.row * COLUMNS :] if batch.row else job.parts
            for launch in self._launches_of(batch.shape, gather, align):
                grid = (launch.programs * batch.pages, batch.parts, 1)
                arguments = (parts, job.pages, job.places, start, *launch.constants)
                if launch.compiled is None:
                    launch.compiled = move[grid](*arguments, num_warps=self.config.warps)
                else:
                    launch.compiled[grid](*arguments)

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
            cut = [blocks(tile, gather=gather, config=self.config, **sides) for tile in some]
            outers = max(len(one.outer) for one in cut)
            programs = 0
            numbers: list[int] = []
            for one in cut:
                numbers += record(one, programs, outers)
                programs += one.programs
            evict = "evict_first" if self.config.evict else ""
            yield _Launch((tuple(numbers), len(cut), outers, programs, gather, evict), programs)

    def _upload(
        self, table: npt.NDArray[np.int64], pages: npt.NDArray[np.int32], places: npt.NDArray[np.int32]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three tables, in one copy."""
        # Each starts on 16 bytes, which the kernel is specialised for.
        starts = [0, table.nbytes, table.nbytes + -(-pages.nbytes // 16) * 16]
        staged = torch.empty(starts[2] + places.nbytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        host = staged.numpy()
        sources: list[npt.NDArray[Any]] = [table, pages, places]
        for start, source in zip(starts, sources, strict=True):
            host[start : start + source.nbytes] = source.reshape(-1).view(np.uint8)
        # The pinned block is not used again before the copy has run: torch's allocator sees to it.
        device = staged.to(self.device, non_blocking=True)
        numbers = device[starts[1] :].view(torch.int32)
        return device[: starts[1]].view(torch.int64), numbers, numbers[(starts[2] - starts[1]) // 4 :]
