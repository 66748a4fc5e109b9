"""The Triton kernels' host side: tables, grids, launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    batches: tuple[_Batch, ...]
    memory: torch.Tensor
    """Bytes on the device, of this chunk's tables and perhaps of others'."""
    starts: tuple[int, int, int]
    """Where in them this chunk's parts begin, and all chunks' pages and places."""
    align: int
    """What divides every offset and step of the buffer."""
    bytes: int

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Parts, pages and places."""
        parts, pages, places = self.starts
        numbers = self.memory[pages:].view(torch.int32)
        return self.memory[parts:pages].view(torch.int64), numbers, numbers[(places - pages) // 4 :]


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
        (job,) = self.prepare_all([work])
        return job

    def prepare_all(self, works: Sequence[Work], *, stream: Any = None) -> list[Job]:
        """Copies the tables of all chunks to the device, in one copy and without waiting for it."""
        if not works:
            return []
        given, counts = _joined([work.parts.view(np.int64) for work in works])
        pages, pages_of = _joined([work.pages for work in works])
        places, _ = _joined([work.places for work in works])
        if len(self.shapes) > 1:
            chunk = np.repeat(np.arange(len(works)), counts)
            given = given[np.lexsort((self.lanes[given[:, 0], 0], chunk))]
        table = np.empty((len(given), COLUMNS), np.int64)
        table[:, :3] = self._fixed[given[:, 0]]
        table[:, 3] = given[:, 3]
        table[:, 4:] = given[:, 1:3]
        if len(works) > 1:
            table[:, 4] += np.repeat(np.cumsum(pages_of) - pages_of, counts)
        # Each table starts on 16 bytes, which the kernel is specialised for.
        begins = table.nbytes, table.nbytes + -(-pages.nbytes // 16) * 16
        staged = torch.empty(begins[1] + places.nbytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        host = staged.numpy()
        host[: table.nbytes] = table.reshape(-1).view(np.uint8)
        host[begins[0] : begins[0] + pages.nbytes] = pages.view(np.uint8)
        host[begins[1] :] = places.view(np.uint8)
        # The pinned block is not used again before the copy has run: torch's allocator sees to it.
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            memory = staged.to(self.device, non_blocking=True)
        ends = np.cumsum(counts)
        shape = self.lanes[given[:, 0], 0] if len(self.shapes) > 1 else None
        jobs = []
        for work, begin, end in zip(works, (ends - counts).tolist(), ends.tolist(), strict=True):
            rows = table[begin:end]
            bits = int(np.bitwise_or.reduce(rows[:, 2:4], axis=None))
            batches = tuple(self._batches(None if shape is None else shape[begin:end], rows[:, 5]))
            jobs.append(Job(batches, memory, (begin * COLUMNS * 8, *begins), alignment(bits), work.bytes))
        return jobs

    def _batches(self, shape: npt.NDArray[np.int64] | None, counts: npt.NDArray[np.int64]) -> Iterator[_Batch]:
        """The parts by shape, which `shape` ascends by; `None` where there is only one."""
        ends = [len(counts)]
        if shape is not None:
            ends = [*(np.flatnonzero(np.diff(shape)) + 1).tolist(), len(counts)]
        start = 0
        for end in ends:
            for at in range(start, end, _PARTS_PER_LAUNCH):
                last = min(end, at + _PARTS_PER_LAUNCH)
                number = 0 if shape is None else int(shape[at])
                yield _Batch(number, at, last - at, int(counts[at:last].max()))
            start = end

    def run(self, job: Job, buffer: torch.Tensor, *, gather: bool, stream: Any = None) -> None:
        """Launches a prepared chunk. Nothing but launches: a CUDA graph can capture it.

        The graph keeps the buffer's address and the job's tables, so both must outlive it.
        """
        check_buffer(buffer, job.bytes)
        if buffer.device != self.device:
            raise ValueError(f"the buffer is on {buffer.device}, the pages on {self.device}")
        if self.device.type != "cuda":
            self._launch(job, buffer.data_ptr(), gather, None)
        elif torch.cuda.current_device() == self.device.index:
            self._launch(job, buffer.data_ptr(), gather, stream)
        else:
            with torch.cuda.device(self.device):
                self._launch(job, buffer.data_ptr(), gather, stream)

    def _launch(self, job: Job, start: int, gather: bool, stream: Any) -> None:
        align = alignment(job.align, start)
        base = job.memory.data_ptr()
        for batch in job.batches:
            row = batch.row * COLUMNS * 8
            for launch in self._launches_of(batch.shape, gather, align):
                grid = (launch.programs * batch.pages, batch.parts, 1)
                if launch.compiled is None:
                    parts, pages, places = job.tensors()
                    arguments = (parts[row // 8 :], pages, places, start, *launch.constants)
                    with torch.cuda.stream(stream) if stream is not None else nullcontext():
                        launch.compiled = move[grid](*arguments, num_warps=self.config.warps)
                else:
                    # The launcher takes addresses for pointers, and asks the driver about tensors.
                    tables = (base + job.starts[0] + row, base + job.starts[1], base + job.starts[2])
                    handle = {} if stream is None else {"stream": stream.cuda_stream}
                    launch.compiled[grid](*tables, start, *launch.constants, **handle)

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


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """All rows, and how many each array has."""
    counts = np.array([len(array) for array in arrays])
    return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)), counts
