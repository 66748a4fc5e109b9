"""Carriers of which only those parts are there that a test is about."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvreshard.nixl.carrier import Carrier


@dataclass
class Fence:
    """A kernel's end."""

    over: bool


def carrier(**fields: Any) -> Any:
    """One with these fields, and nothing to do."""
    made = Carrier.__new__(Carrier)
    queues = {"_unsent": deque[Any](), "_todo": deque[Any](), "_launches": deque[Any]()}
    nothing: dict[str, Any] = {**queues, "_kernels": [], "_flights": [], "_ready": {}, "_loaded": {}, "_desk": None}
    for name, value in {**nothing, **fields}.items():
        setattr(made, name, value)
    return made


def kernel(role: str, slot: int, *, over: bool) -> Any:
    """A kernel of a slot, and whether it has ended."""
    parcel = SimpleNamespace(clear=None, scattered=0)
    return SimpleNamespace(role=role, slot=slot, parcel=parcel, fence=Fence(over))


def action(kind: str, frame: str = "", **fields: Any) -> Any:
    """Something that a machine asks for."""
    return SimpleNamespace(kind=kind, frame=frame, **fields)
