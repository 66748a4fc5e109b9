"""Clearing the bytes of a page that no transfer covers: stale bytes there come back as NaNs.

Which bytes those are, the plan says; here they are only set to zero.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

import kvreshard as kvr

from .agent import Rows
from .errors import Unsupported
from .memory import Memory

Kind = Literal["DRAM", "VRAM"]
"""Kinds of memory."""

Bare = list[tuple[Rows, Kind]]
"""(N, 3) rows `address, bytes, device`, by the kind of memory."""


def bare(pairing: kvr.Pairing, present: Collection[str]) -> Bare:
    """Bytes of the target's pages that no transfer covers, by the kinds of memory that are `present` there."""
    kinds: list[Kind] = ["DRAM", "VRAM"]
    found: Bare = [(pairing.zero(memory=kind), kind) for kind in kinds if kind in present]
    return [(rows, kind) for rows, kind in found if len(rows)]


def later(bare: Bare, registered: Memory) -> Callable[[], None]:
    """What clears them when it is called. Raises now what can be known now, as `require` and `Memory.check` do."""
    for rows, kind in bare:
        require(kind)
        registered.check(rows, kind)
    return partial(_clear_all, bare, registered)


def _clear_all(bare: Bare, registered: Memory) -> None:
    for rows, kind in bare:
        clear(rows, kind, registered)


def require(memory: str) -> None:
    """Raises `Unsupported` when memory of this kind cannot be cleared in this process."""
    if memory != "DRAM" and "torch" not in sys.modules:
        raise Unsupported(
            "the request leaves device memory to be cleared, which needs torch imported in this process",
            remedy="import torch, or pass zero=False and clear the rows of plan.zero(request) yourself",
        )


def clear(rows: Rows, memory: str, registered: Memory) -> None:
    """Zeroes (N, 3) rows `address, bytes, device` of this rank's memory; done when it returns.

    Device memory is cleared through torch on a stream of its own. Rows outside the registered regions raise
    `NotRegistered`.
    """
    if not len(rows):
        return
    registered.check(rows, memory)
    if memory == "DRAM":
        for address, size, _ in rows.tolist():
            ctypes.memset(address, 0, size)
        return
    require(memory)
    torch: Any = sys.modules["torch"]
    for device in sorted(set(rows[:, 2].tolist())):
        stream = torch.cuda.Stream(device=device)
        with torch.cuda.stream(stream):
            for address, size, _ in rows[rows[:, 2] == device].tolist():
                torch.as_tensor(_DeviceBytes(address, size), device=f"cuda:{device}").zero_()
        stream.synchronize()


class _DeviceBytes:
    """Device memory by address, as torch imports it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
