"""What the tests of the native module share: small formats, ranks and requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import kvreshard as kvr

HEADS, TOKENS, DIM = 8, 16, 64
BASES = {"local": 1 << 20, "remote": 1 << 40}


def page(notation: str = "h n k[d] v[d]", **changed: int) -> kvr.PageFormat:
    extents = {"h": HEADS, "n": TOKENS, "d": DIM} | changed
    return kvr.PageFormat(notation, extents=extents, dtype="bf16")


def rank(
    notation: str = "h n k[d] v[d]", *, side: str = "local", layers: int = 1, pages: int = 32, memory: Any = "DRAM"
) -> kvr.RankLayout:
    format = page(notation)
    made = []
    for index in range(layers):
        region = kvr.Region(BASES[side] + index * pages * format.page_bytes, pages * format.page_bytes, memory=memory)
        made.append(kvr.Layer(f"layers.{index}", [kvr.Segment(region, format, pages=pages)], totals={"h": HEADS}))
    return kvr.RankLayout(engine=side, layers=made)


def request(tokens: int, local: Any, remote: Any) -> kvr.Request:
    return kvr.Request((0, tokens), [kvr.Blocks(local)], [kvr.Blocks(remote)])


def buffers(count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    return np.full(count, -7, np.int32), np.full(count, -7, np.int32)


def other_layer() -> kvr.RankLayout:
    region = kvr.Region(0, page().page_bytes)
    return kvr.RankLayout(engine="x", layers=[kvr.Layer("b", [kvr.Segment(region, page(), pages=1)], totals={"h": 8})])


def narrower() -> kvr.RankLayout:
    region = kvr.Region(0, page().page_bytes)
    segment = kvr.Segment(region, page(d=DIM // 2), pages=1)
    return kvr.RankLayout(engine="x", layers=[kvr.Layer("layers.0", [segment], totals={"h": 8})])


def only_edge() -> kvr.Edge:
    (edge,) = kvr.route(local=kvr.Engine([rank()]), remote=kvr.Engine([rank()])).edges
    return edge
