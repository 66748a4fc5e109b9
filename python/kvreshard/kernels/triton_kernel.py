"""The Triton kernel: one block of one tile at one page a program.

A launch covers all lanes of one shape. Tables in device memory say where the lanes are and which pages go where; the
nest itself is compile-time constant, a flat tuple because Triton's constants do not nest:

    TILES   COUNT records of SIZE numbers
            first program, one past the last, element bytes, load offset, store offset, load alignment, store alignment,
            masked, RANK digits of (block, extent, load stride, store stride, programs), order of the store,
            OUTERS digits of (extent, load stride, store stride)
"""

# Triton compiles these functions; their types are not Python's.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .blocks import Blocks

COLUMNS = 6
"""Of the table of parts, int64: address, page stride, unit, offset, first, count."""


def record(blocks: Blocks, first: int, outers: int) -> tuple[int, ...]:
    """One tile's numbers in TILES, its programs numbered from `first`."""
    numbers = [first, first + blocks.programs, blocks.width, blocks.load, blocks.store]
    numbers += [blocks.load_align, blocks.store_align, int(blocks.masked)]
    for digit in blocks.inner:
        numbers += [digit.block, digit.extent, digit.load, digit.store, digit.programs]
    numbers += blocks.order
    for digit in blocks.outer:
        numbers += [digit.extent, digit.load * blocks.width, digit.store * blocks.width]
    return (*numbers, *(1, 0, 0) * (outers - len(blocks.outer)))


def _block(  # type: ignore[no-untyped-def]
    block,
    page,
    place,
    TILES: tl.constexpr,
    T: tl.constexpr,
    OUTERS: tl.constexpr,
    GATHER: tl.constexpr,
    EVICT: tl.constexpr,
):
    """Block `block` of the tile whose record begins at T, between the addresses of a page and of its place."""
    WIDTH: tl.constexpr = TILES[T + 2]
    LOAD_ALIGN: tl.constexpr = TILES[T + 5]
    STORE_ALIGN: tl.constexpr = TILES[T + 6]
    MASKED: tl.constexpr = TILES[T + 7]
    ELEMENT: tl.constexpr = (
        tl.int64 if WIDTH == 8 else (tl.int32 if WIDTH == 4 else (tl.int16 if WIDTH == 2 else tl.int8))
    )
    # Records of the digits, in the order of the load (A) and of the store (Z).
    A0: tl.constexpr = T + 8
    A1: tl.constexpr = T + 13
    A2: tl.constexpr = T + 18
    A3: tl.constexpr = T + 23
    A4: tl.constexpr = T + 28
    P0: tl.constexpr = TILES[T + 33]
    P1: tl.constexpr = TILES[T + 34]
    P2: tl.constexpr = TILES[T + 35]
    P3: tl.constexpr = TILES[T + 36]
    P4: tl.constexpr = TILES[T + 37]
    Z0: tl.constexpr = T + 8 + 5 * P0
    Z1: tl.constexpr = T + 8 + 5 * P1
    Z2: tl.constexpr = T + 8 + 5 * P2
    Z3: tl.constexpr = T + 8 + 5 * P3
    Z4: tl.constexpr = T + 8 + 5 * P4

    # Neighbouring programs store neighbouring blocks.
    rest = block - TILES[T]
    z4 = rest % TILES[Z4 + 4] * TILES[Z4]
    rest = rest // TILES[Z4 + 4]
    z3 = rest % TILES[Z3 + 4] * TILES[Z3]
    rest = rest // TILES[Z3 + 4]
    z2 = rest % TILES[Z2 + 4] * TILES[Z2]
    rest = rest // TILES[Z2 + 4]
    z1 = rest % TILES[Z1 + 4] * TILES[Z1]
    rest = rest // TILES[Z1 + 4]
    z0 = rest % TILES[Z0 + 4] * TILES[Z0]
    rest = rest // TILES[Z0 + 4]
    load_at = (
        z4.to(tl.int64) * (TILES[Z4 + 2] * WIDTH)
        + z3.to(tl.int64) * (TILES[Z3 + 2] * WIDTH)
        + z2.to(tl.int64) * (TILES[Z2 + 2] * WIDTH)
        + z1.to(tl.int64) * (TILES[Z1 + 2] * WIDTH)
        + z0.to(tl.int64) * (TILES[Z0 + 2] * WIDTH)
        + TILES[T + 3]
    )
    store_at = (
        z4.to(tl.int64) * (TILES[Z4 + 3] * WIDTH)
        + z3.to(tl.int64) * (TILES[Z3 + 3] * WIDTH)
        + z2.to(tl.int64) * (TILES[Z2 + 3] * WIDTH)
        + z1.to(tl.int64) * (TILES[Z1 + 3] * WIDTH)
        + z0.to(tl.int64) * (TILES[Z0 + 3] * WIDTH)
        + TILES[T + 4]
    )
    for outer in tl.static_range(OUTERS):
        step = (rest % TILES[T + 38 + 3 * outer]).to(tl.int64)
        rest = rest // TILES[T + 38 + 3 * outer]
        load_at += step * TILES[T + 39 + 3 * outer]
        store_at += step * TILES[T + 40 + 3 * outer]
    load_at += page if GATHER else place
    store_at += place if GATHER else page
    source = tl.multiple_of(load_at.to(tl.pointer_type(ELEMENT)), LOAD_ALIGN)
    target = tl.multiple_of(store_at.to(tl.pointer_type(ELEMENT)), STORE_ALIGN)

    loads = (
        (tl.arange(0, TILES[A0]) * TILES[A0 + 2])[:, None, None, None, None]
        + (tl.arange(0, TILES[A1]) * TILES[A1 + 2])[None, :, None, None, None]
        + (tl.arange(0, TILES[A2]) * TILES[A2 + 2])[None, None, :, None, None]
        + (tl.arange(0, TILES[A3]) * TILES[A3 + 2])[None, None, None, :, None]
        + (tl.arange(0, TILES[A4]) * TILES[A4 + 2])[None, None, None, None, :]
    )
    stores = (
        (tl.arange(0, TILES[Z0]) * TILES[Z0 + 3])[:, None, None, None, None]
        + (tl.arange(0, TILES[Z1]) * TILES[Z1 + 3])[None, :, None, None, None]
        + (tl.arange(0, TILES[Z2]) * TILES[Z2 + 3])[None, None, :, None, None]
        + (tl.arange(0, TILES[Z3]) * TILES[Z3 + 3])[None, None, None, :, None]
        + (tl.arange(0, TILES[Z4]) * TILES[Z4 + 3])[None, None, None, None, :]
    )
    if MASKED:
        stored = (
            (z0 + tl.arange(0, TILES[Z0]) < TILES[Z0 + 1])[:, None, None, None, None]
            & (z1 + tl.arange(0, TILES[Z1]) < TILES[Z1 + 1])[None, :, None, None, None]
            & (z2 + tl.arange(0, TILES[Z2]) < TILES[Z2 + 1])[None, None, :, None, None]
            & (z3 + tl.arange(0, TILES[Z3]) < TILES[Z3 + 1])[None, None, None, :, None]
            & (z4 + tl.arange(0, TILES[Z4]) < TILES[Z4 + 1])[None, None, None, None, :]
        )
        # The same starts, told by the digit that each belongs to.
        a0 = z0 if P0 == 0 else (z1 if P1 == 0 else (z2 if P2 == 0 else (z3 if P3 == 0 else z4)))
        a1 = z0 if P0 == 1 else (z1 if P1 == 1 else (z2 if P2 == 1 else (z3 if P3 == 1 else z4)))
        a2 = z0 if P0 == 2 else (z1 if P1 == 2 else (z2 if P2 == 2 else (z3 if P3 == 2 else z4)))
        a3 = z0 if P0 == 3 else (z1 if P1 == 3 else (z2 if P2 == 3 else (z3 if P3 == 3 else z4)))
        a4 = z0 if P0 == 4 else (z1 if P1 == 4 else (z2 if P2 == 4 else (z3 if P3 == 4 else z4)))
        loaded = (
            (a0 + tl.arange(0, TILES[A0]) < TILES[A0 + 1])[:, None, None, None, None]
            & (a1 + tl.arange(0, TILES[A1]) < TILES[A1 + 1])[None, :, None, None, None]
            & (a2 + tl.arange(0, TILES[A2]) < TILES[A2 + 1])[None, None, :, None, None]
            & (a3 + tl.arange(0, TILES[A3]) < TILES[A3 + 1])[None, None, None, :, None]
            & (a4 + tl.arange(0, TILES[A4]) < TILES[A4 + 1])[None, None, None, None, :]
        )
        value = tl.load(source + loads, mask=loaded, eviction_policy=EVICT)
        value = tl.permute(value, P0, P1, P2, P3, P4)
        tl.store(target + stores, value, mask=stored, eviction_policy=EVICT)
    else:
        value = tl.load(source + loads, eviction_policy=EVICT)
        value = tl.permute(value, P0, P1, P2, P3, P4)
        tl.store(target + stores, value, eviction_policy=EVICT)


_move_block: Any = triton.jit(_block)


def _move(  # type: ignore[no-untyped-def]
    parts,
    pages,
    places,
    buffer,
    TILES: tl.constexpr,
    COUNT: tl.constexpr,
    OUTERS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    GATHER: tl.constexpr,
    EVICT: tl.constexpr,
):
    """Grid: (programs of a page x pages of the longest part, parts). Tables as of `TritonMover.prepare`."""
    program = tl.program_id(0)
    part = parts + tl.program_id(1) * 6
    pair = program // PROGRAMS
    block = program % PROGRAMS
    if pair < tl.load(part + 5):
        at = tl.load(part + 4) + pair
        page = tl.load(part) + tl.load(pages + at).to(tl.int64) * tl.load(part + 1)
        place = buffer + tl.load(part + 3) + tl.load(places + at).to(tl.int64) * tl.load(part + 2)
        for tile in tl.static_range(COUNT):
            if (block >= TILES[tile * (38 + 3 * OUTERS)]) & (block < TILES[tile * (38 + 3 * OUTERS) + 1]):
                _move_block(block, page, place, TILES, tile * (38 + 3 * OUTERS), OUTERS, GATHER, EVICT)


move: Any = triton.jit(_move, do_not_specialize=["buffer"])
"""The kernel; `_move` says what it takes."""
