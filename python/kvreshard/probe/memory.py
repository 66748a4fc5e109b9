"""The bytes of a cache, whatever array or tensor holds them."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .errors import ProbeError

Bytes = npt.NDArray[np.uint8]


class PageMemory:
    """All bytes that an array or tensor spans, in the order of their addresses, holes of a strided view included.

    ``cache`` is a numpy array or a torch tensor of any shape, strides, dtype and device; it is not copied.
    """

    def __init__(self, cache: Any) -> None:
        self._tensor = hasattr(cache, "untyped_storage")
        self._flat: Any = _of_tensor(cache) if self._tensor else _of_array(np.asarray(cache))

    def __len__(self) -> int:
        """Bytes spanned."""
        return int(self._flat.shape[0])

    def read(self, start: int = 0, size: int | None = None) -> Bytes:
        """A copy of ``size`` bytes from ``start`` in host memory, uint8 ``(size,)``; to the end where not given."""
        end = len(self) if size is None else start + size
        if start < 0 or end > len(self):
            raise ProbeError(f"bytes [{start}, {end}) are outside the {len(self)} bytes of the cache")
        part = self._flat[start:end]
        return cast(Bytes, part.cpu().numpy().copy() if self._tensor else part.copy())

    def write(self, start: int, data: Bytes) -> None:
        """Stores ``data`` from ``start`` on."""
        if start < 0 or start + len(data) > len(self):
            raise ProbeError(f"bytes [{start}, {start + len(data)}) are outside the {len(self)} bytes of the cache")
        if self._tensor:
            import torch

            self._flat[start : start + len(data)] = torch.from_numpy(data.copy()).to(self._flat.device)
        else:
            self._flat[start : start + len(data)] = data


def _of_tensor(tensor: Any) -> Any:
    import torch

    if tensor.numel() == 0:
        raise ProbeError("the cache is empty")
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    item = tensor.element_size()
    first = tensor.storage_offset() * item
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return whole[first : first + (sum(steps) + 1) * item]


class _Span:
    """Bytes by address, for numpy; keeps their owner alive."""

    def __init__(self, owner: npt.NDArray[Any], address: int, size: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, not owner.flags.writeable),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def _of_array(array: npt.NDArray[Any]) -> Bytes:
    if array.size == 0:
        raise ProbeError("the cache is empty")
    if any(stride < 0 for stride in array.strides):
        raise ProbeError("the cache is a view that runs backwards")
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return np.asarray(_Span(array, array.__array_interface__["data"][0], sum(steps) + array.itemsize))
