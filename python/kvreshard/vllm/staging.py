"""Memory that pages rest in while they are rearranged: a few equal buffers, registered once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

import kvreshard as kvr
from kvreshard.vllm.options import BUFFERS, Options


@dataclass
class Buffer:
    """One staging buffer. `lost` when a transfer into it ended in an error: its peer may still write."""

    memory: torch.Tensor
    region: kvr.Region
    number: int
    lost: bool = False

    def settle(self) -> None:
        """Waits for kernels on the buffer: NIXL does not wait for a device's queue."""
        if self.memory.device.type != "cpu":
            torch.accelerator.synchronize()


class Staging:
    """Buffers on one device, taken one chunk at a time."""

    def __init__(self, wrapper: Any, backends: Any, device: torch.device, memory: str, options: Options) -> None:
        self._wrapper, self._registered = wrapper, []
        self.buffers: list[Buffer] = []
        for number in range(BUFFERS):
            tensor = torch.empty(options.buffer_bytes, dtype=torch.uint8, device=device)
            index = 0 if device.type == "cpu" else max(tensor.get_device(), 0)
            kind = "VRAM" if memory == "VRAM" and device.type != "cpu" else "DRAM"
            region = kvr.Region(
                base=tensor.data_ptr(), bytes=tensor.numel(), device=index, memory="VRAM" if kind == "VRAM" else "DRAM"
            )
            descriptors = wrapper.get_reg_descs([(region.base, region.bytes, index, "")], kind)
            wrapper.register_memory(descriptors, backends=backends)
            self._registered.append(descriptors)
            self.buffers.append(Buffer(tensor, region, number))
        self._free = deque(self.buffers)
        self._scratch: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """Bytes of one buffer."""
        return self.buffers[0].region.bytes

    @property
    def scratch(self) -> torch.Tensor:
        """Memory as large as a buffer that no peer sees; made when first needed."""
        if self._scratch is None:
            self._scratch = torch.empty_like(self.buffers[0].memory)
        return self._scratch

    def take(self) -> Buffer | None:
        """A free buffer, if there is one."""
        return self._free.popleft() if self._free else None

    def give(self, buffer: Buffer) -> None:
        """Hands a buffer back; a lost one is never handed out again."""
        if not buffer.lost:
            self._free.append(buffer)

    @property
    def exhausted(self) -> bool:
        """Whether every buffer is lost."""
        return all(buffer.lost for buffer in self.buffers)

    def close(self) -> None:
        """Deregisters the buffers."""
        for descriptors in self._registered:
            self._wrapper.deregister_memory(descriptors)
        self._registered = []
