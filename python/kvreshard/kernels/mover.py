"""What every backend does, and which one to take."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .memory import Span, spans

Backend = Literal["host", "torch", "triton"]

_BACKENDS: dict[Backend, tuple[str, str]] = {
    "host": (".host", "HostMover"),
    "torch": (".torch_backend", "TorchMover"),
    "triton": (".triton_backend", "TritonMover"),
}


class Work(Protocol):
    """What moves at once: a :class:`kvreshard.Chunk` or a :class:`kvreshard.LandedChunk`."""

    @property
    def bytes(self) -> int:
        """Bytes of buffer."""
        ...

    @property
    def parts(self) -> npt.NDArray[np.uint64]:
        """uint64 ``(N, 4)``, a row ``[lane, first, count, offset]``."""
        ...

    @property
    def pages(self) -> npt.NDArray[np.int32]:
        """int32 ``(M,)``: page ids."""
        ...

    @property
    def places(self) -> npt.NDArray[np.int32]:
        """int32 ``(M,)``: the place of each page's bytes, in units of the lane."""
        ...

    @property
    def table_bytes(self) -> int:
        """Bytes of the table that :meth:`kvreshard.Chunk.table` writes."""
        ...

    def table(
        self, tiles: kvr.Tiles, out: npt.NDArray[np.uint8], /, *, most: int = ...
    ) -> tuple[list[tuple[int, int, int, int]], int, int, int]:
        """:meth:`kvreshard.Chunk.table`."""
        ...


class Room:
    """Memory for the table of one chunk: pinned bytes of the host, and as many on the device that they are copied to.

    Args:
        host: uint8 tensor ``(N,)``, pinned where the device is one.
        device: uint8 tensor ``(N,)``.
    """

    def __init__(self, host: Any, device: Any) -> None:
        self.host, self.device = host, device
        self.array: npt.NDArray[np.uint8] = host.numpy()
        # Asked for once: torch takes longer to say than the table takes to write.
        self.at, self.to = int(host.data_ptr()), int(device.data_ptr())


class Mover(ABC):
    """Moves chunks between the pages of one side and a buffer.

    The buffer is one-dimensional, contiguous, of one-byte elements, at least ``work.bytes`` long, and on the memory's
    device. Bytes of the buffer or of a page that no tile names are left as they are.
    """

    def __init__(self, tiles: kvr.Tiles, memory: Sequence[Any]) -> None:
        """A mover for the pages of ``tiles.side``.

        Args:
            tiles: What moves; :attr:`kvreshard.Landed.tiles` for landed chunks.
            memory: Tensors, arrays or regions that hold the side's regions. They are kept alive.

        Raises:
            kvreshard.LayoutError: A lane's pages do not lie inside the memory given.
        """
        self.tiles = tiles
        self.shapes = tiles.shapes
        self.lanes = tiles.lanes.astype(np.int64)
        self.memory = spans(memory)
        self._span_of_lane = [self._span(*row) for row in self.lanes.tolist()]

    def _span(self, shape: int, region: int, address: int, stride: int, pages: int, unit: int) -> Span:
        reach = 0
        for tile in self.shapes[shape]:
            end = tile.page + tile.run
            reach = max(reach, end + sum((extent - 1) * page for extent, page, _ in tile.loops))
        end = address + (pages - 1) * stride + reach
        for span in self.memory:
            if span.address <= address and end <= span.address + span.bytes:
                return span
        raise kvr.LayoutError(
            f"no memory given holds {address:#x} to {end:#x}, the pages of a lane in region {region} of the "
            f"{self.tiles.side} side"
        )

    def gather(self, work: Work, buffer: Any) -> None:
        """Copies the work's bytes from the pages into the buffer."""
        self._move(work, buffer, gather=True)

    def scatter(self, work: Work, buffer: Any) -> None:
        """Copies the work's bytes from the buffer into the pages."""
        self._move(work, buffer, gather=False)

    def prepare(self, work: Work, *, stream: Any = None, room: Room | None = None) -> Any:
        """A job for `run`, with whatever table a device needs there already, copied on `stream` of torch.

        The table is made in `room` if it fits, which must not be used again until the job has run.
        """
        return work

    def run(self, job: Any, buffer: Any, *, gather: bool, stream: Any = None) -> None:
        """Moves a job of `prepare`, on `stream` of torch where one is given and on the current one otherwise."""
        if stream is None:
            self._move(job, buffer, gather=gather)
            return
        torch: Any = sys.modules["torch"]
        with torch.cuda.stream(stream):
            self._move(job, buffer, gather=gather)

    @abstractmethod
    def _move(self, work: Work, buffer: Any, *, gather: bool) -> None: ...


def mover(tiles: kvr.Tiles, memory: Sequence[Any], backend: Backend | None = None) -> Mover:
    """The mover of a backend; where none is named, ``triton`` on a device that has it, ``torch`` on another device,
    ``host`` on host memory.

    Raises:
        kvreshard.LayoutError: As :class:`Mover`.
        ValueError: There is no such backend.
    """
    if backend is None:
        backend = "host"
        if any(span.device is not None for span in spans(memory)):
            backend = "triton" if importlib.util.find_spec("triton") is not None else "torch"
    if backend not in _BACKENDS:
        raise ValueError(f"backend is {backend!r}, but must be one of {', '.join(_BACKENDS)}")
    module, name = _BACKENDS[backend]
    made = getattr(importlib.import_module(module, __package__), name)(tiles, memory)
    assert isinstance(made, Mover)
    return made
