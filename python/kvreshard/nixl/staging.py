"""Staging memory: registered buffers of equal slots that bytes rest in between a transfer and a kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvreshard as kvr

from .errors import RegistrationError, Unsupported
from .memory import Memory

SLOTS = 8
"""Slots of a ring of the default slot size, so that several chunks are under way."""

MAX_SLOT = 32 << 20
MIN_SLOT = 64 << 10
"""Bounds of the default slot size. Larger chunks than the upper one do not move faster; smaller ones than the lower one
cost a descriptor for too little.
"""

ALIGN = 256
"""What divides the address of every slot: kernels move 16 bytes at a time, and device memory likes whole sectors."""


@dataclass(frozen=True)
class Size:
    """How much staging memory a connector has: `bytes` in slots of `slot_bytes`, which the largest page of a peer must
    fit.
    """

    bytes: int
    slot_bytes: int

    @classmethod
    def of(cls, total: int, slot_bytes: int | None) -> Size:
        """`total` bytes, in slots of a fitting size where none is given.

        Raises:
            kvreshard.LimitExceeded: Less than one slot.
        """
        if slot_bytes is None:
            slot_bytes = min(max(total // SLOTS, MIN_SLOT), MAX_SLOT, max(total, 1))
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
    """Slots, one after the other in one registered buffer. `stream` is what kernels between it and pages run on."""

    size: Size
    region: kvr.Region
    address: int
    buffer: Any = field(repr=False, compare=False)
    stream: Any = field(default=None, repr=False, compare=False)

    @property
    def home(self) -> tuple[str, int]:
        """Memory kind and device."""
        return self.region.memory, self.region.device

    def slot(self, index: int) -> tuple[int, Any]:
        """Address and buffer (one-dimensional, bytes) of a slot."""
        start = index * self.size.slot_bytes
        return self.address + start, self.buffer[start : start + self.size.slot_bytes]

    def run(self, kernels: Callable[[], None]) -> Fence:
        """Starts kernels; the fence tells when they have ended."""
        if self.stream is None:
            kernels()
            return Fence(None)
        torch: Any = sys.modules["torch"]
        with torch.cuda.stream(self.stream):
            kernels()
            event = torch.cuda.Event()
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
        try:
            buffer = torch.empty(total, dtype=torch.uint8, device=f"cuda:{device}")
        except torch.cuda.OutOfMemoryError as error:
            raise _no_memory(size, where) from error
        address = int(buffer.data_ptr())
        stream = torch.cuda.Stream(device=device)
    return Area(size, memory.register(buffer), address, buffer, stream)


def _no_memory(size: Size, where: tuple[str, int]) -> RegistrationError:
    total = size.slots * size.slot_bytes
    return RegistrationError(
        f"there is no memory for staging: {total} bytes of {where[0]} on device {where[1]}",
        field="staging",
        found=total,
        remedy="give Connector(staging=) less, or none: requests then go directly",
    )
