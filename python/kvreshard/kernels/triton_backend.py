"""The Triton kernels' host side: tables, grids, launches."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

import kvreshard as kvr

from .blocks import DEFAULT, Config, blocks
from .memory import alignment
from .mover import Mover, Room, Work
from .torch_backend import check_buffer
from .triton_kernel import COLUMNS, move, record

try:
    # torch brings it along.
    _driver: Any = importlib.import_module("cuda.bindings.driver") if torch.cuda.is_available() else None
except ImportError:
    _driver = None

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
class Job:
    """A chunk whose table is in device memory: run it as often as one likes, also inside a CUDA graph."""

    batches: list[tuple[int, int, int, int]]
    """Launches: shape, first row, rows, pages of the row that has most."""
    memory: torch.Tensor
    """The table, bytes on the device."""
    starts: tuple[int, int]
    """Where in it page ids and places begin."""
    bits: int
    """Of all units and offsets of the buffer."""
    bytes: int

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows, page ids and places."""
        pages, places = self.starts
        numbers = self.memory[pages:].view(torch.int32)
        return self.memory[:pages].view(torch.int64), numbers, numbers[(places - pages) // 4 :]


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
        self._launches: dict[tuple[int, bool, int], list[_Launch]] = {}

    def prepare(self, work: Work, *, stream: Any = None, room: Room | None = None) -> Job:
        """Copies the table of a chunk to the device, without waiting for it."""
        count = work.table_bytes
        if room is None or len(room.array) < count:
            # The pinned block is not used again before the copy has run: torch's allocator sees to it.
            host = torch.empty(count, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
            batches, *starts, bits = work.table(self.tiles, host.numpy(), most=_PARTS_PER_LAUNCH)
            with _on(stream):
                memory = host.to(self.device, non_blocking=True)
        else:
            batches, *starts, bits = work.table(self.tiles, room.array, most=_PARTS_PER_LAUNCH)
            memory = room.device
            if stream is None or not self._upload(room, count, stream):
                with _on(stream):
                    memory[:count].copy_(room.host[:count], non_blocking=True)
        return Job(batches, memory, (starts[0], starts[1]), bits, work.bytes)

    def _upload(self, room: Room, count: int, stream: Any) -> bool:
        """The copy of a table by the driver itself: through torch it takes longer than the launch of the kernel.

        False where it cannot be made like this; whatever is wrong, torch then says.
        """
        if _driver is None or torch.cuda.current_device() != self.device.index:
            return False
        (status,) = _driver.cuMemcpyHtoDAsync(room.to, room.at, count, stream.cuda_stream)
        return bool(status == 0)

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
        align = alignment(job.bits, start)
        base = job.memory.data_ptr()
        for shape, first, parts, pages in job.batches:
            row = first * COLUMNS * 8
            for launch in self._launches_of(shape, gather, align):
                grid = (launch.programs * pages, parts, 1)
                if launch.compiled is None:
                    rows, ids, places = job.tensors()
                    arguments = (rows[row // 8 :], ids, places, start, *launch.constants)
                    with _on(stream):
                        launch.compiled = move[grid](*arguments, num_warps=self.config.warps)
                else:
                    # The launcher takes addresses for pointers, and asks the driver about tensors.
                    tables = (base + row, base + job.starts[0], base + job.starts[1])
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


def _on(stream: Any) -> Any:
    """That stream as the current one, if there is one."""
    return torch.cuda.stream(stream) if stream is not None else nullcontext()
