"""An engine's own writer and reader of packed bf16 pages, from array axes alone: they know no format of kvreshard.

Pages are arrays, or tensors of which a page at a time is copied to the host and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Sides = dict[str, npt.NDArray[np.float32]]


def _page(arrays: Sequence[Any], layer: str, page: int) -> tuple[Any, npt.NDArray[np.uint8]]:
    """A page, and its bytes on the host: the same memory for an array, a copy of a tensor's."""
    found = arrays[int(layer.rpartition(".")[2])][page]
    return found, found if isinstance(found, np.ndarray) else found.cpu().numpy()


def _view(page: npt.NDArray[np.uint8], spec: Any, notation: str) -> npt.NDArray[np.uint16]:
    """A page's elements as [token, head, K|V and channel]."""
    one: npt.NDArray[np.uint16] = page.view(np.uint16)
    if notation == "n h k[d] v[d]":
        shaped = one.reshape(spec.tokens, spec.heads, 2 * spec.size)
    elif notation == "h n k[d] v[d]":
        shaped = one.reshape(spec.heads, spec.tokens, 2 * spec.size).swapaxes(0, 1)
    else:
        raise ValueError(notation)
    return shaped


def writer(arrays: Sequence[Any], spec: Any, notation: str) -> Callable[[str, int, Mapping[str, Any]], None]:
    """Stores K and V, float32 [token, head, channel]."""

    def write(layer: str, page: int, values: Mapping[str, Any]) -> None:
        both = np.concatenate([values["k"], values["v"]], axis=-1).astype(np.float32)
        found, here = _page(arrays, layer, page)
        _view(here, spec, notation)[...] = both.view(np.uint32) >> 16
        if found is not here:
            import torch

            found.copy_(torch.from_numpy(here))
            torch.cuda.synchronize()

    return write


def reader(arrays: Sequence[Any], spec: Any, notation: str) -> Callable[[str, int], Sides]:
    """Finds K and V."""

    def read(layer: str, page: int) -> Sides:
        bits = _view(_page(arrays, layer, page)[1], spec, notation).astype(np.uint32) << 16
        values = np.ascontiguousarray(bits).view(np.float32)
        return {"k": values[..., : spec.size], "v": values[..., spec.size :]}

    return read
