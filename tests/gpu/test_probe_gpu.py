"""Probing and digests of pages in device memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import kvreshard as kvr
from kvreshard.kernels.memory import span
from kvreshard.nixl.digests import digests
from kvreshard.probe import WriterMismatch, check_writer, infer, marks, page_digest

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PAGE = kvr.PageFormat("h n k[d] v[d]", h=2, n=8, d=16, dtype="bf16")


class Writer:
    """Packed pages, head-major, stored by torch on the device."""

    def __init__(self, pages: int = 2) -> None:
        self.cache = torch.zeros(pages, 2, 8, 32, dtype=torch.bfloat16, device="cuda")

    def write(self, inputs: Mapping[str, np.ndarray], page: int = 1) -> None:
        """Stores K and V, float32 [token, head, channel]."""
        both = np.concatenate([inputs["k"], inputs["v"]], axis=-1)
        self.cache[page] = torch.from_numpy(both.transpose(1, 0, 2).copy()).to(self.cache)
        torch.cuda.synchronize()


def test_writers_on_a_device_are_probed_in_place() -> None:
    writer = Writer()
    check_writer(PAGE, writer.write, writer.cache, start=PAGE.page_bytes)
    other = kvr.PageFormat("n h k[d] v[d]", extents=PAGE.extents, types=PAGE.types)
    with pytest.raises(WriterMismatch):
        check_writer(other, writer.write, writer.cache, start=PAGE.page_bytes)
    inputs = {side: {"n": 8, "h": 2, "d": 16} for side in ("k", "v")}
    found = infer(writer.write, writer.cache, inputs, page_bytes=PAGE.page_bytes, types="bf16", start=PAGE.page_bytes)
    assert found == PAGE


def test_digests_of_device_memory() -> None:
    """The same marks in host and device memory, and a head that has changed places."""
    writer = Writer()
    made = marks(PAGE, seed=3)
    writer.write(made.values)
    here = writer.cache.cpu()
    assert page_digest(writer.cache, PAGE, start=PAGE.page_bytes) == page_digest(here, PAGE, start=PAGE.page_bytes)

    def of(cache: torch.Tensor) -> dict[str, str]:
        one = span(cache)
        region = kvr.Region(one.address, one.bytes, one.device or 0, "DRAM" if one.device is None else "VRAM")
        layer = kvr.Layer("layers.0", [kvr.Segment(region, PAGE, pages=2)], totals={"h": 2})
        layout = kvr.RankLayout(engine="e", layers=[layer])
        return digests(layout, layout, [one], [kvr.Blocks([1])], (0, 8), 64, 0)

    assert of(writer.cache) == of(here) != {}
    writer.cache[1] = writer.cache[1].flip(0)
    assert of(writer.cache) != of(here)
