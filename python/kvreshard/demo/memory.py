"""A rank's pages: allocated, filled and checked without the planner or NIXL.

Memory is numpy arrays full of noise, so that a byte written where none belongs shows; pages lie inside it, with noise
before, after and between them.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvreshard.demo.pattern import Bytes, Component, Ints, Page
from kvreshard.demo.scenarios import Scenario, Which

GUARD = 4096
"""Bytes before the first and after the last page of an allocation."""


@dataclass(frozen=True)
class Place:
    """Where a layer's pages lie: address of the allocation, of page 0, and bytes from one page to the next."""

    allocation: int
    first: int
    stride: int

    def pages(self, ids: Ints) -> Ints:
        """The address of each page."""
        return self.first + ids * self.stride


class Memory:
    """The pages of one rank, and a copy of what it held before anything moved.

    On a device (a name that torch knows) the pages that move are copies: `send` puts there what is here, `fetch` brings
    it back.
    """

    def __init__(self, scenario: Scenario, which: Which, rank: int, device: str | None = None) -> None:
        self.scenario, self.which, self.rank = scenario, which, rank
        side = scenario.side(which)
        self.held = scenario.held(which, rank)
        self.page = scenario.page(which, rank)
        self.ids = scenario.blocks(which)
        noise = np.random.default_rng([scenario.seed, scenario.tag, which == "prefill", rank])
        pages, numbers = scenario.pool(which), scenario.layer_numbers(which)
        slot = self.page.page_bytes + side.gap
        self.layers: dict[int, Bytes] = {}
        """By layer number, in the order of the side: uint8 [pages, page bytes], views of `allocations`."""
        self.allocations: list[Bytes] = []
        for part in [numbers] if side.rows else [[number] for number in numbers]:
            size = pages * len(part) * slot
            whole = noise.integers(0, 256, size + 2 * GUARD, dtype=np.uint8)
            self.allocations.append(whole)
            slots = whole[GUARD : GUARD + size].reshape(pages, len(part), slot)
            for at, number in enumerate(part):
                self.layers[number] = slots[:, at, : self.page.page_bytes]
        self._before: list[Bytes] = []
        self._there: list[Any] = []
        if device is not None:
            import torch

            self._there = [torch.from_numpy(whole).to(device) for whole in self.allocations]

    @property
    def moved(self) -> dict[int, Any]:
        """What moves: the pages of each layer, as arrays or tensors."""
        if not self._there:
            return dict(self.layers)
        found = {}
        for number, place in self.places.items():
            whole = next(one for one in self._there if one.data_ptr() == place.allocation)
            shape = (len(self.layers[number]), self.page.page_bytes)
            found[number] = whole.as_strided(shape, (place.stride, 1), place.first - place.allocation)
        return found

    def send(self) -> None:
        """Copies everything to the device, where there is one."""
        torch: Any = sys.modules.get("torch")
        for there, whole in zip(self._there, self.allocations, strict=False):
            there.copy_(torch.from_numpy(whole))

    def fetch(self) -> None:
        """Copies everything back from it."""
        for there, whole in zip(self._there, self.allocations, strict=False):
            whole[:] = there.cpu().numpy()

    @property
    def places(self) -> dict[int, Place]:
        """Where each layer's pages lie."""
        one, found = len(self.allocations) == 1, {}
        for at, (number, pages) in enumerate(self.layers.items()):
            index = 0 if one else at
            here = self.allocations[index].ctypes.data
            start = self._there[index].data_ptr() if self._there else here
            found[number] = Place(start, start + pages.ctypes.data - here, int(pages.strides[0]))
        return found

    def write(self, tokens: tuple[int, int], *, backwards: bool = False) -> int:
        """Fills the tokens of the request's pages, as the engine's kernels would; returns the bytes written.

        `backwards` stores the tokens of each page in reverse, which is not what the format says.
        """
        page = _backwards(self.page) if backwards else self.page
        return sum(
            page.fill(pages, self.ids, layer=number, seed=self.scenario.seed, held=self.held, tokens=tokens)
            for number, pages in self.layers.items()
        )

    def remember(self) -> None:
        """Keeps a copy of everything, for `unchanged` and `check`."""
        self._before = [whole.copy() for whole in self.allocations]
        self.send()

    def restore(self) -> None:
        """Puts back what `remember` kept."""
        for whole, before in zip(self.allocations, self._before, strict=True):
            whole[:] = before
        self.send()

    def unchanged(self) -> list[str]:
        """What is wrong if no byte was to change."""
        self.fetch()
        pairs = zip(self._before, self.allocations, strict=True)
        bad = sum(int(np.count_nonzero(before != now)) for before, now in pairs)
        return [f"{bad} bytes of the source changed"] if bad else []

    def digest(self) -> str:
        """SHA-256 of every byte: pages, gaps and guards."""
        whole = hashlib.sha256()
        for allocation in self.allocations:
            whole.update(allocation.data)
        return whole.hexdigest()

    def check(self) -> tuple[int, list[str]]:
        """Reads every element of the request's pages as the engine's kernels would; elements looked at, and what is
        wrong.

        Tokens after the request's last must be zero in the pages that it fills, and all other bytes as they were.
        """
        self.fetch()
        tokens, seed = (0, self.scenario.end), self.scenario.seed
        found = [
            self.page.check(pages, self.ids, layer=number, seed=seed, held=self.held, tokens=tokens)
            for number, pages in self.layers.items()
        ]
        elements, problems = sum(one.elements for one in found), []
        if wrong := [one for one in found if not one.ok]:
            count = sum(one.wrong for one in wrong)
            problems.append(f"{count:,} of {elements:,} elements wrong, the first in {wrong[0].first}")
        if stale := [number for number, pages in self.layers.items() if self._rest(pages).any()]:
            problems.append(f"stale bytes after token {self.scenario.end} in layers {stale}")
        problems += self._outside()
        return elements, problems

    def _rest(self, pages: Bytes) -> Bytes:
        """The bytes of the last page that hold tokens after the request's last."""
        used = self.scenario.end - (len(self.ids) - 1) * self.page.states
        inside = [
            component.offsets[:, used:, ..., None] + np.arange(component.element_bytes)
            for component in self.page.components
        ]
        rest: Bytes = pages[self.ids[-1]].take(np.concatenate([offsets.ravel() for offsets in inside]))
        return rest

    def _outside(self) -> Iterator[str]:
        """Bytes outside the request's pages that are not as before."""
        for before, now in zip(self._before, self.allocations, strict=True):
            changed = before != now
            for pages in self.layers.values():
                start = pages.ctypes.data - now.ctypes.data
                if not 0 <= start < len(now):
                    continue
                slots = np.lib.stride_tricks.as_strided(changed[start:], pages.shape, pages.strides)
                slots[self.ids] = False
            bad = np.flatnonzero(changed)
            if len(bad):
                yield f"{len(bad)} bytes outside the request's pages changed, first at byte {bad[0]} of an allocation"


@functools.cache
def _backwards(page: Page) -> Page:
    """The page with its tokens in reverse order."""
    turned = tuple(
        Component(one.name, np.ascontiguousarray(one.offsets[:, ::-1]), one.element_bytes) for one in page.components
    )
    return replace(page, components=turned)
