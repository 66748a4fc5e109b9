"""Memory as the connector sees it: an address range in some allocation, with shape and strides where it has them.

Torch is never imported here: an object can only be a tensor if its owner imported torch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

from .errors import Unsupported


@dataclass(frozen=True)
class Buffer:
    """One tensor or array, and the allocation it is a view of. Addresses and lengths in bytes.

    `shape` and `strides` are those of the view, strides in bytes. `owner` keeps the allocation alive.
    """

    storage: kvr.Region
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    owner: object = field(repr=False, compare=False)

    @property
    def page_shape(self) -> tuple[int, ...]:
        """The axes inside a page: all but the first."""
        return self.shape[1:]

    @property
    def page_strides(self) -> tuple[int, ...]:
        """The strides inside a page, in bytes."""
        return self.strides[1:]


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def buffer(value: Any) -> Buffer:
    """The buffer of a torch tensor or a numpy array; its whole storage is what gets registered."""
    if is_tensor(value):
        return _of_tensor(value)
    if isinstance(value, np.ndarray):
        return _of_array(value)
    raise Unsupported(
        f"a {type(value).__name__} is not memory that is known here: give a torch tensor, a numpy array, a "
        "kvreshard.Region or (address, bytes, device, memory)"
    )


def _of_tensor(tensor: Any) -> Buffer:
    kind = tensor.device.type
    memory: Literal["DRAM", "VRAM"]
    if kind == "cpu":
        memory, device = "DRAM", 0
    elif kind == "cuda":
        memory, device = "VRAM", int(tensor.get_device())
    else:
        raise Unsupported(f"a tensor on {tensor.device} is neither host memory nor a CUDA or ROCm device")
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        raise Unsupported("an empty tensor has nothing to register")
    item = int(tensor.element_size())
    return Buffer(
        storage=kvr.Region(int(storage.data_ptr()), int(storage.nbytes()), device, memory),
        address=int(tensor.data_ptr()),
        shape=tuple(int(size) for size in tensor.shape),
        strides=tuple(int(stride) * item for stride in tensor.stride()),
        item_bytes=item,
        owner=storage,
    )


def _of_array(array: npt.NDArray[Any]) -> Buffer:
    if array.nbytes == 0:
        raise Unsupported("an empty array has nothing to register")
    root: npt.NDArray[Any] = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    low, high = np.lib.array_utils.byte_bounds(root) if hasattr(np.lib, "array_utils") else np.byte_bounds(root)  # type: ignore[attr-defined, unused-ignore]
    return Buffer(
        storage=kvr.Region(int(low), int(high) - int(low)),
        address=array.ctypes.data,
        shape=array.shape,
        strides=array.strides,
        item_bytes=array.itemsize,
        owner=root,
    )
