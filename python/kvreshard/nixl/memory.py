"""What is registered with NIXL: whole allocations, each once.

A descriptor must lie inside one registration, so a tensor is registered by its whole storage: views of one allocation
(layers of a block-major cache, K and V planes) share a region, and runs may cross from one into the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import kvreshard as kvr
from kvreshard.kernels.memory import Span

from . import strides
from .agent import Agent, Registration, Rows
from .buffers import buffer
from .errors import NotRegistered, RegistrationError

Raw = tuple[int, int, int, Literal["DRAM", "VRAM"]]
"""`(address, bytes, device, memory)`, memory being "DRAM" or "VRAM"."""


@dataclass
class _Entry:
    region: kvr.Region
    registration: Registration | None
    owner: object


def _end(region: kvr.Region) -> int:
    return region.base + region.bytes


def _same_space(one: kvr.Region, other: kvr.Region) -> bool:
    return (one.memory, one.device) == (other.memory, other.device)


class Memory:
    """The registrations of one connector."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._entries: list[_Entry] = []
        self._index: dict[tuple[str, int], tuple[Rows, Rows]] | None = None

    @property
    def regions(self) -> tuple[kvr.Region, ...]:
        """Every region, in order of registration."""
        return tuple(entry.region for entry in self._entries)

    @property
    def owners(self) -> tuple[object, ...]:
        """What keeps the memory alive."""
        return tuple(entry.owner for entry in self._entries)

    def register(self, value: Any) -> kvr.Region:
        """The region of `value` (tensor, array, `Region` or `Raw`), registered if it is new."""
        wanted, owner = _region_of(value)
        known = self._holding(wanted)
        if known is not None:
            return known.region
        registration = self._agent.register(wanted.base, wanted.bytes, wanted.device, wanted.memory)
        self._add(_Entry(wanted, registration, owner))
        return wanted

    def drop(self, region: kvr.Region) -> None:
        """Deregisters a region that `register` has just made."""
        for entry in [entry for entry in self._entries if entry.region is region]:
            self._entries.remove(entry)
            self._index = None
            if entry.registration is not None:
                self._agent.deregister(entry.registration)

    def adopt(self, value: Any) -> kvr.Region:
        """Takes note of memory that the agent's owner registered: used, never deregistered."""
        wanted, owner = _region_of(value)
        known = self._holding(wanted)
        if known is not None:
            return known.region
        self._add(_Entry(wanted, None, owner))
        return wanted

    def _add(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._index = None

    def _holding(self, wanted: kvr.Region) -> _Entry | None:
        for entry in self._entries:
            held = entry.region
            if not _same_space(held, wanted) or _end(held) <= wanted.base or _end(wanted) <= held.base:
                continue
            if held.base <= wanted.base and _end(wanted) <= _end(held):
                return entry
            raise RegistrationError(
                f"{wanted} overlaps {held}, which is registered, without lying inside it",
                field="region",
                found=str(wanted),
                expected=f"memory inside or apart from {held}",
            )
        return None

    def segment(
        self,
        value: Any,
        form: kvr.PageFormat,
        *,
        layer: str,
        axes: strides.Axes | None,
        pages: int | None,
        page_stride: int | None,
        offset: int,
        holds: dict[str, tuple[int, int]] | None,
    ) -> kvr.Segment:
        """The pages of `value`; registers it. A tensor tells pages and stride itself, a region or raw memory must be
        told.
        """
        if isinstance(value, (kvr.Region, tuple)):
            wanted, _ = _region_of(value)
            if pages is None:
                stride = page_stride or form.page_bytes
                pages = max(0, wanted.bytes - offset - form.page_bytes + stride) // stride
            region = self.register(value)
            start = wanted.base - region.base + offset
            return kvr.Segment(region, form, pages=pages, page_stride=page_stride, offset=start, holds=holds)
        memory = buffer(value)
        strides.check(layer, memory, form, axes)
        found = memory.strides[0] if memory.shape[0] > 1 else form.page_bytes
        for field, given, actual in (("pages", pages, memory.shape[0]), ("page_stride", page_stride, found)):
            if given is not None and given != actual:
                raise kvr.LayoutError(f"layer {layer}: {field} {given} was given, but the tensor has {actual}")
        region = self.register(value)
        start = memory.address - region.base + offset
        return kvr.Segment(region, form, pages=memory.shape[0], page_stride=found, offset=start, holds=holds)

    def spans(self, layout: kvr.RankLayout) -> list[Span]:
        """The allocations that the layout's regions lie in, for the kernels."""
        found = []
        for region in layout.regions:
            entry = self._holding(region)
            if entry is None:
                raise NotRegistered(f"{region} is part of the layout, but was never registered", field="region")
            held = entry.region
            found.append(Span(held.base, held.bytes, held.device if held.memory == "VRAM" else None, entry.owner))
        return found

    def require(self, layout: kvr.RankLayout) -> None:
        """Raises `NotRegistered` unless every region of `layout` is one of these, or lies inside one."""
        for region in layout.regions:
            if self._holding(region) is None:
                raise NotRegistered(
                    f"{region} is part of the layout, but was never registered",
                    field="region",
                    found=str(region),
                    remedy="register() it, or adopt() it where the agent's owner has registered it",
                )

    def check(self, rows: Rows, memory: str) -> None:
        """Raises `NotRegistered` unless each (N, 3) row lies inside a region: guards what is written from here."""
        if self._index is None:
            self._index = self._build_index()
        for device in np.unique(rows[:, 2]).tolist():
            of_device = rows[rows[:, 2] == device]
            if (memory, device) not in self._index:
                raise NotRegistered(f"no {memory} of device {device} is registered")
            bases, ends = self._index[memory, device]
            at = np.searchsorted(bases, of_device[:, 0], side="right")
            inside = (at > 0) & (of_device[:, 0] + of_device[:, 1] <= ends[at - 1])
            if not inside.all():
                bad = of_device[~inside][0]
                raise NotRegistered(
                    f"{int(bad[1])} bytes at {int(bad[0]):#x} lie outside every region", field="address"
                )

    def _build_index(self) -> dict[tuple[str, int], tuple[Rows, Rows]]:
        spaces: dict[tuple[str, int], list[kvr.Region]] = {}
        for entry in self._entries:
            spaces.setdefault((entry.region.memory, entry.region.device), []).append(entry.region)
        index = {}
        for space, regions in spaces.items():
            regions.sort(key=lambda region: region.base)
            bases = np.array([region.base for region in regions], np.uint64)
            index[space] = (bases, np.array([_end(region) for region in regions], np.uint64))
        return index

    def deregister(self) -> None:
        """Deregisters everything of ours, whatever fails on the way; the first failure is raised."""
        entries, self._entries, self._index = self._entries, [], None
        failure: Exception | None = None
        for entry in reversed(entries):
            if entry.registration is None:
                continue
            try:
                self._agent.deregister(entry.registration)
            except Exception as error:  # Each of the others still has to go.
                failure = failure or error
        if failure is not None:
            raise failure


def _region_of(value: Any) -> tuple[kvr.Region, object]:
    if isinstance(value, kvr.Region):
        return value, None
    if isinstance(value, tuple):
        address, size, device, memory = value
        return kvr.Region(address, size, device, memory), None
    found = buffer(value)
    return found.storage, found.owner
