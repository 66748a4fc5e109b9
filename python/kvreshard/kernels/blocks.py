"""From a tile to the blocks that one program of the Triton kernel moves.

A tile is a nest of digits, each with a stride where it is loaded and one where it is stored. A block takes a stretch
of up to five of them, chosen so that neighbouring threads touch neighbouring bytes on either side:

    load     d contiguous     row of n = 0   ################          a block of n x d covers whole sectors of the
                              row of n = 1   ################          load, read along d, and of the store, written
    store    n contiguous     column of d = 0, 1, ..                   along n; it is transposed in shared memory

Digits that do not fit into the block, and the rest of those that do in part, are spread over programs. Everything here
is a reordering of numbers that the planner gave; nothing depends on pages or requests, so a kernel is compiled once a
shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import kvreshard as kvr

from .memory import alignment

RANK = 5
"""Digits of a block."""

_WASTE = 4 / 3
"""How many times too large a block may be for its digit, the excess being masked off."""

_REACH = 1 << 31
"""Offsets inside a block are 32-bit."""


@dataclass(frozen=True)
class Config:
    """How a kernel is built: what one may tune.

    On an H200 blocks of 4 KiB were fastest or close to it in nearly every row of `benches/gpu_kernels.py`. Where pieces
    of 16 bytes change places, blocks that were not staged moved at 0.88 of a copy, staged ones at 0.67.

    Args:
        bytes: Of one block.
        warps: Of one program.
        staged: Whether a block is transposed in shared memory where its two sides differ in order. If not, threads
            keep the order of the loads, and the stores are as scattered as the nest makes them. Where not given:
            elements of less than 8 bytes are. Longer ones come in pieces of 16 bytes, two of which make a sector.
        evict: ``evict_first`` on both sides: neither is read again soon.
    """

    bytes: int = 4096
    warps: int = 4
    staged: bool | None = None
    evict: bool = False


DEFAULT = Config()


@dataclass(frozen=True)
class Digit:
    """A digit of a tile; strides in elements."""

    extent: int
    load: int
    store: int
    block: int = 1

    @property
    def programs(self) -> int:
        """How many blocks it takes to cover the extent."""
        return -(-self.extent // self.block)


@dataclass(frozen=True)
class Blocks:
    """A tile cut into blocks. Offsets and the strides of `outer` in bytes, those of `inner` in elements."""

    width: int
    load: int
    store: int
    load_align: int
    store_align: int
    inner: tuple[Digit, ...]
    """RANK digits, the largest stride of the load first."""
    order: tuple[int, ...]
    """Indexes of `inner`, the largest stride of the store first."""
    outer: tuple[Digit, ...]
    """The others, the smallest stride of the store first."""

    @property
    def programs(self) -> int:
        """Blocks that cover the tile."""
        return prod(digit.programs for digit in (*self.inner, *self.outer))

    @property
    def masked(self) -> bool:
        """Whether some block reaches over the end of its digit."""
        return any(digit.extent % digit.block for digit in self.inner)


def blocks(tile: kvr.Tile, *, gather: bool, page_align: int, buffer_align: int, config: Config) -> Blocks:
    """How to move a tile: from page to buffer (`gather`), or back.

    Args:
        tile: The tile.
        gather: The direction.
        page_align: What divides every address and stride of the pages, a power of two.
        buffer_align: What divides every address and stride of places in the buffer.
        config: What one may tune.
    """
    page_step, buffer_step = [loop[1] for loop in tile.loops], [loop[2] for loop in tile.loops]
    page_align = alignment(page_align, tile.page)
    buffer_align = alignment(buffer_align, tile.buffer)
    width = alignment(tile.run, page_align, buffer_align, *page_step, *buffer_step, most=8)
    steps = [(page, buffer) if gather else (buffer, page) for page, buffer in zip(page_step, buffer_step, strict=True)]
    digits = [Digit(tile.run // width, 1, 1)]
    for (extent, _, _), (load, store) in zip(tile.loops, steps, strict=True):
        digits.append(Digit(extent, load // width, store // width))
    digits = [digit for digit in digits if digit.extent > 1]
    digits = _grown(digits, max(1, config.bytes // width))
    inner = sorted((d for d in digits if d.block > 1), key=lambda d: (d.load, d.store), reverse=True)
    inner = [Digit(1, 0, 0)] * (RANK - len(inner)) + inner
    order = sorted(range(RANK), key=lambda i: (i >= 0 and inner[i].extent > 1, -inner[i].store, -inner[i].load, i))
    staged = width < 8 if config.staged is None else config.staged
    outer = sorted((d for d in digits if d.block == 1), key=lambda d: (d.store, d.load))
    sides = [(tile.page, page_align), (tile.buffer, buffer_align)]
    (load, load_align), (store, store_align) = sides if gather else sides[::-1]
    # The base of a block moves by whole blocks and by outer digits.
    loads = [d.load * d.block * width for d in digits if d.programs > 1]
    stores = [d.store * d.block * width for d in digits if d.programs > 1]
    return Blocks(
        width=width,
        load=load,
        store=store,
        load_align=alignment(load_align, *loads),
        store_align=alignment(store_align, *stores),
        inner=tuple(inner),
        order=tuple(order) if staged else tuple(range(RANK)),
        outer=tuple(outer),
    )


def _sizes(extent: int) -> list[int]:
    """Blocks that a digit may have: powers of two that cover it without much waste."""
    sizes, size = [], 1
    while size < 2 * extent:
        if -(-extent // size) * size <= extent * _WASTE:
            sizes.append(size)
        size *= 2
    return sizes


def _contiguous(digits: Sequence[Digit], strides: Sequence[int]) -> int:
    """Elements that the block covers without a hole, along one side's strides."""
    covered = 1
    for stride, digit in sorted(zip(strides, digits, strict=True), key=lambda pair: pair[0]):
        if stride != covered:
            break
        covered *= min(digit.block, digit.extent)
        if digit.block < digit.extent:
            break
    return covered


def _grown(digits: list[Digit], most: int) -> list[Digit]:
    """The digits with blocks of together at most `most` elements: whichever side is covered less grows first."""
    digits = list(digits)
    loads, stores = [d.load for d in digits], [d.store for d in digits]
    by_load = sorted(range(len(digits)), key=lambda i: (loads[i], stores[i]))
    by_store = sorted(range(len(digits)), key=lambda i: (stores[i], loads[i]))
    while True:
        less = _contiguous(digits, loads) < _contiguous(digits, stores)
        chains = (by_load, by_store) if less else (by_store, by_load)
        for chain in chains:
            if _grow_first(digits, chain, most):
                break
        else:
            return digits


def _grow_first(digits: list[Digit], chain: list[int], most: int) -> bool:
    """Enlarges the block of the first digit of `chain` that can be."""
    size = prod(d.block for d in digits)
    room = sum(d.block > 1 for d in digits) < RANK
    for index in chain:
        digit = digits[index]
        larger = [s for s in _sizes(digit.extent) if s > digit.block]
        if not larger or (digit.block == 1 and not room):
            continue
        if size // digit.block * larger[0] > most:
            # What lies inside comes first: outer digits are not taken instead.
            return False
        if larger[0] * max(digit.load, digit.store) >= _REACH // 8 // RANK:
            continue
        digits[index] = Digit(digit.extent, digit.load, digit.store, larger[0])
        return True
    return False
