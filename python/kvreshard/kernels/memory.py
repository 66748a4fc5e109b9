"""Memory that holds pages: the allocations behind tensors, arrays and regions."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr


@dataclass(frozen=True)
class Span:
    """An allocation: first address, bytes, index of the device (``None`` for the host), and what keeps it alive."""

    address: int
    bytes: int
    device: int | None
    owner: Any = field(repr=False, compare=False)

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes as a numpy array over the same memory, which the array does not keep alive.

        Raises:
            kvreshard.LayoutError: They are on a device.
        """
        if self.device is not None:
            raise kvr.LayoutError(f"the host backend cannot reach memory of device {self.device}")
        raw = (ctypes.c_ubyte * self.bytes).from_address(self.address)
        return np.ctypeslib.as_array(raw)


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor; torch is not imported for it."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def span(value: Any) -> Span:
    """The whole allocation behind a tensor, an array or a region."""
    if isinstance(value, kvr.Region):
        return Span(value.base, value.bytes, value.device if value.memory == "VRAM" else None, None)
    if is_tensor(value):
        storage = value.untyped_storage()
        device = None if value.device.type == "cpu" else int(value.get_device())
        return Span(int(storage.data_ptr()), int(storage.nbytes()), device, storage)
    if isinstance(value, np.ndarray):
        root = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        if not root.flags.c_contiguous:
            raise TypeError("an array that holds pages must be contiguous, or a view of one that is")
        return Span(root.ctypes.data, root.nbytes, None, root)
    raise TypeError(f"memory must be a tensor, an array or a kvreshard.Region, not {type(value).__name__}")


def spans(values: Sequence[Any]) -> list[Span]:
    """The allocations behind `values`."""
    return [value if isinstance(value, Span) else span(value) for value in values]


def alignment(*values: int, most: int = 16) -> int:
    """The largest power of two up to `most` that divides all values."""
    bits = most
    for value in values:
        bits |= value
    return bits & -bits
