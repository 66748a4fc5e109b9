"""What a gather or a scatter on host memory costs: a rate for its bytes, and something for each contiguous piece.

    seconds = bytes / rate + pieces * piece

The two are measured at their extremes: whole pages, and pages turned element by element, as conversions turn them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod

import numpy as np

import kvreshard as kvr
from kvreshard.kernels import mover

PAGES = 128
WHOLE, TURNED = "h n k[d] v[d]", "k[h d n] v[h d n]"
"""Pages of 64 KiB: one piece each between equal ones, 32,768 pieces of 2 bytes from the one format to the other."""

NOWHERE = 1 << 40
"""Where the target's pages would be: nothing is written to them, so they need no memory."""


def measure_passes(
    *, repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> tuple[tuple[float, int, int], tuple[float, int, int]]:
    """Seconds, bytes and pieces of a gather of whole pages, and of one that turns them; medians of `repeats`."""
    return _gather(WHOLE, repeats, clock), _gather(TURNED, repeats, clock)


def fit_passes(whole: tuple[float, int, int], turned: tuple[float, int, int]) -> tuple[float, float]:
    """Bytes a second, and seconds a piece; never below zero."""
    per_byte, piece = np.linalg.solve([whole[1:], turned[1:]], [whole[0], turned[0]])
    if piece < 0:
        return whole[1] / whole[0], 0.0
    return 1 / max(float(per_byte), 1e-15), float(piece)


def _gather(target: str, repeats: int, clock: Callable[[], float]) -> tuple[float, int, int]:
    source, turned = _format(WHOLE), _format(target)
    memory = np.zeros(PAGES * source.page_bytes, np.uint8)
    plan = kvr.plan(_rank(turned, NOWHERE), _rank(source, memory.ctypes.data))
    tiles = plan.packed_tiles("remote")
    order = np.random.default_rng(1).permutation(PAGES)
    request = kvr.Request((0, PAGES * source.extents["n"]), [kvr.Blocks(range(PAGES))], [kvr.Blocks(order)])
    (chunk,) = plan.pair(request).chunks(tiles, memory.nbytes)
    gather, staging = mover(tiles, [memory]).gather, np.empty(memory.nbytes, np.uint8)
    gather(chunk, staging)
    times = []
    for _ in range(repeats):
        begun = clock()
        gather(chunk, staging)
        times.append(clock() - begun)
    pieces = PAGES * sum(prod(loop[0] for loop in tile.loops) for tile in tiles.shapes[0])
    return float(np.median(times)), chunk.bytes, pieces


def _format(notation: str) -> kvr.PageFormat:
    return kvr.PageFormat(notation, h=8, n=16, d=128, dtype="bf16")


def _rank(form: kvr.PageFormat, base: int) -> kvr.RankLayout:
    pages = kvr.Segment(kvr.Region(base, PAGES * form.page_bytes), form, pages=PAGES)
    return kvr.RankLayout(engine="calibration", layers=[kvr.Layer("pages", [pages])])
