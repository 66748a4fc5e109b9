"""Staging memory: registered buffers of equal slots that bytes rest in between a transfer and a kernel."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvreshard as kvr
from kvreshard.kernels import Mover, Room, Work

from .errors import RegistrationError, Unsupported
from .memory import Memory

SLOTS = {"DRAM": 8, "VRAM": 24}
"""Slots of a staging of the default slot size, by the kind of memory, so that several chunks are under way."""

MAX_SLOT = {"DRAM": 32 << 20, "VRAM": 128 << 20}
MIN_SLOT = 64 << 10
"""Bounds of the default slot size. Larger chunks than the upper one do not move faster: between two H200s 128 MiB are
under way for longer than the host works for them (`benches/gpu_transfers.py --slot`). Smaller ones than the lower one
cost a descriptor for too little.
"""

ALIGN = 256
"""What divides the address of every slot: kernels move 16 bytes at a time, and device memory likes whole sectors."""


TABLE, MIN_TABLE = 128, 4 << 10
"""Bytes of a slot for each byte of its table, and the least bytes of a table: 8 bytes a page, and 48 for each layer's
part of the chunk. What does not fit gets memory of its own.
"""


@dataclass(frozen=True)
class Size:
    """How much staging memory a connector has: `bytes` in slots of `slot_bytes`, which the largest page of a peer must
    fit.
    """

    bytes: int
    slot_bytes: int

    @classmethod
    def of(cls, total: int, slot_bytes: int | None, kind: str = "DRAM") -> Size:
        """`total` bytes, in slots of a size that fits the kind of memory where none is given.

        Raises:
            kvreshard.LimitExceeded: Less than one slot.
        """
        if slot_bytes is None:
            slot_bytes = min(max(total // SLOTS[kind], MIN_SLOT), MAX_SLOT[kind], max(total, 1))
        slot_bytes = slot_bytes // ALIGN * ALIGN
        if slot_bytes < ALIGN or total < slot_bytes:
            raise kvr.LimitExceeded(f"{total} bytes of staging hold no slot of at least {ALIGN} bytes")
        return cls(total, slot_bytes)

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return self.bytes // self.slot_bytes

    def shares(self) -> list[Size]:
        """The slots for landing, and a third each for receiving and for gathering packed chunks; landing alone where
        there are less than three.
        """
        third = self.slots // 3
        counts = [self.slots - 2 * third, third, third] if third else [self.slots]
        return [Size(count * self.slot_bytes, self.slot_bytes) for count in counts]


@dataclass(frozen=True)
class Area:
    """Slots, one after the other in one registered buffer.

    On a device kernels between it and pages run on `stream`, and `tables` are pinned bytes of the host and as many on
    the device, a part a slot.
    """

    size: Size
    region: kvr.Region
    address: int
    buffer: Any = field(repr=False, compare=False)
    stream: Any = field(default=None, repr=False, compare=False)
    tables: tuple[Any, Any] | None = field(default=None, repr=False, compare=False)
    _slots: list[tuple[int, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    _rooms: list[Room] = field(default_factory=list, init=False, repr=False, compare=False)
    _events: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def home(self) -> tuple[str, int]:
        """Memory kind and device."""
        return self.region.memory, self.region.device

    def slot(self, index: int) -> tuple[int, Any]:
        """Address and buffer (one-dimensional, bytes) of a slot."""
        if not self._slots:
            # A view of a tensor takes longer to make than the slot takes to find.
            starts = range(0, self.size.slots * self.size.slot_bytes, self.size.slot_bytes)
            self._slots.extend(
                (self.address + start, self.buffer[start : start + self.size.slot_bytes]) for start in starts
            )
        return self._slots[index]

    def room(self, index: int) -> Room | None:
        """Memory for the table of what is in a slot; a host needs none."""
        if self.tables is None:
            return None
        if not self._rooms:
            host, device = (one.view(self.size.slots, -1) for one in self.tables)
            self._rooms.extend(map(Room, host, device))
        return self._rooms[index]

    def move(self, mover: Mover, work: Work, index: int, *, gather: bool, after: Fence | None = None) -> Fence:
        """Starts the kernels between a slot and pages, behind `after`; the fence tells when they have ended.

        The slot has no other kernels until then, and its table no other chunk.
        """
        _, buffer = self.slot(index)
        if after is not None and not after.over:
            if self.stream is None:
                after.wait()
            else:
                self.stream.wait_event(after.event)
        if self.stream is None:
            mover.run(mover.prepare(work), buffer, gather=gather)
            return Fence(None)
        torch: Any = sys.modules["torch"]
        # Of another device than the current one torch would copy the table, which takes longer than the launch.
        with torch.cuda.device(self.region.device):
            job = mover.prepare(work, stream=self.stream, room=self.room(index))
            mover.run(job, buffer, gather=gather, stream=self.stream)
            event = self._events.get(index)
            if event is None:
                event = self._events[index] = torch.cuda.Event()
            event.record(self.stream)
        return Fence(event)


@dataclass(frozen=True)
class Fence:
    """Kernels on a device run on after the call that started them; those of a host do not."""

    event: Any

    @property
    def over(self) -> bool:
        """Whether they have ended."""
        return self.event is None or bool(self.event.query())

    def wait(self) -> None:
        """Waits for them."""
        if self.event is not None:
            self.event.synchronize()

    @classmethod
    def now(cls, devices: Collection[int]) -> Fence | None:
        """Behind everything that this thread's current streams of `devices` were given; `None` where there is nothing
        to wait for.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None or not devices:
            return None
        busy = [stream for stream in map(torch.cuda.current_stream, devices) if not stream.query()]
        if not busy:
            return None
        for stream in busy[1:]:
            # An event is of one device.
            busy[0].wait_stream(stream)
        return cls(busy[0].record_event())


def devices(layout: kvr.RankLayout) -> frozenset[int]:
    """The devices that the layout's pages are on."""
    return frozenset(region.device for region in layout.regions if region.memory == "VRAM")


def home(layout: kvr.RankLayout) -> tuple[str, int] | None:
    """Memory kind and device of the layout's pages; `None` when there are several, which no one buffer is beside."""
    homes = {(region.memory, region.device) for region in layout.regions}
    return homes.pop() if len(homes) == 1 else None


def area(size: Size, where: tuple[str, int], memory: Memory) -> Area:
    """An area beside pages of that kind, registered.

    Raises:
        RegistrationError: There is no such memory to be had, or NIXL does not register it.
        Unsupported: Device memory without torch in this process.
    """
    kind, device = where
    total = size.slots * size.slot_bytes
    buffer: Any
    stream: Any = None
    tables: tuple[Any, Any] | None = None
    if kind == "DRAM":
        try:
            raw = np.empty(total + ALIGN, np.uint8)
        except (MemoryError, ValueError) as error:  # numpy has the latter for more than it can count.
            raise _no_memory(size, where) from error
        start = -raw.ctypes.data % ALIGN
        buffer = raw[start : start + total]
        address = buffer.ctypes.data
    else:
        if "torch" not in sys.modules:
            raise Unsupported(
                "staging of device memory needs torch imported in this process",
                remedy="import torch, or give no staging",
            )
        torch: Any = sys.modules["torch"]
        table = size.slots * max(size.slot_bytes // TABLE // ALIGN * ALIGN, MIN_TABLE)
        try:
            buffer = torch.empty(total, dtype=torch.uint8, device=f"cuda:{device}")
            pinned = torch.empty(table, dtype=torch.uint8, pin_memory=True)
            tables = pinned, torch.empty(table, dtype=torch.uint8, device=buffer.device)
        except torch.cuda.OutOfMemoryError as error:
            raise _no_memory(size, where) from error
        address = int(buffer.data_ptr())
        stream = torch.cuda.Stream(device=device)
    return Area(size, memory.register(buffer), address, buffer, stream, tables)


def _no_memory(size: Size, where: tuple[str, int]) -> RegistrationError:
    total = size.slots * size.slot_bytes
    return RegistrationError(
        f"there is no memory for staging: {total} bytes of {where[0]} on device {where[1]}",
        field="staging",
        found=total,
        remedy="give Connector(staging=) less, or none: requests then go directly",
    )
