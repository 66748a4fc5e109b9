"""Engines' own writers and readers of quantised pages, from the formulas alone: they know no format of kvreshard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvreshard.demo import formulas
from kvreshard.demo.pattern import Page

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _e4m3(bias: int) -> Floats:
    """The values of codes 0 to 126, ascending."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    small = mantissa / 8 * 2.0 ** (1 - bias)
    return np.where(exponent == 0, small, (1 + mantissa / 8) * 2.0 ** (exponent - bias)).astype(np.float32)


E4M3FN, E4M3FNUZ = _e4m3(7), _e4m3(8)


def _nearest(table: Floats, values: Floats) -> npt.NDArray[np.int64]:
    at = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    return np.where(values - table[at - 1] <= table[at] - values, at - 1, at)


class PerTokenHead:
    """int8 with one fp32 scale a token and head beside the data: [K | scale | V | scale]."""

    def __init__(self, heads: int, tokens: int, size: int, *, swap: bool = False) -> None:
        self.page = formulas.per_token_head(formulas.Geometry(heads, tokens, size, 1))
        self.tables = {component.name: component.offsets for component in self.page.components}
        self.scales = {"k": "vs", "v": "ks"} if swap else {"k": "ks", "v": "vs"}

    def write(self, page: Bytes, inputs: Mapping[str, Any]) -> None:
        """Stores K and V, float32 [token, head, channel]."""
        for side, scale in self.scales.items():
            values = np.swapaxes(np.asarray(inputs[side], np.float32), 0, 1)
            scales = (np.abs(values).max(axis=-1) / 127).astype(np.float32)
            page[self.tables[side]] = np.rint(values / scales[..., None]).astype(np.int8).view(np.uint8)
            raw = np.ascontiguousarray(scales).view(np.uint8).reshape(*scales.shape, 4)
            for byte in range(4):
                page[self.tables[scale] + byte] = raw[..., byte]

    def read(self, page: Bytes) -> dict[str, Floats]:
        """What it stored, as it comes out."""
        found = {}
        for side, scale in self.scales.items():
            raw = np.stack([page[self.tables[scale] + byte] for byte in range(4)], axis=-1)
            scales = np.ascontiguousarray(raw).view(np.float32)[..., 0]
            codes = page[self.tables[side]].view(np.int8).astype(np.float32)
            found[side] = np.swapaxes(codes * scales[..., None], 0, 1)
        return found


class Nvfp4:
    """Two 4-bit codes a byte and an e4m3 scale for 16 channels."""

    def __init__(self, page: Page, scale: Floats = E4M3FN) -> None:
        self.tables = {component.name: component.offsets for component in page.components}
        self.page, self.scale = page, scale

    def write(self, page: Bytes, inputs: Mapping[str, Any]) -> None:
        """Stores K and V, float32 [token, head, channel]."""
        for side in ("k", "v"):
            values = np.swapaxes(np.asarray(inputs[side], np.float32), 0, 1)
            blocks = values.reshape(*values.shape[:2], -1, 16)
            codes = _nearest(self.scale, np.abs(blocks).max(axis=-1) / 6)
            page[self.tables[f"{side}s"]] = codes.astype(np.uint8)
            small = blocks / self.scale[codes][..., None]
            nibbles = (_nearest(FP4, np.abs(small)) | (small < 0) * 8).reshape(values.shape)
            page[self.tables[side]] = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).astype(np.uint8)

    def read(self, page: Bytes) -> dict[str, Floats]:
        """What it stored, as it comes out."""
        found = {}
        for side in ("k", "v"):
            raw = page[self.tables[side]]
            nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:2], -1)
            values = FP4[nibbles & 7] * np.where(nibbles & 8, -1, 1)
            scales = self.scale[np.minimum(page[self.tables[f"{side}s"]], 126)]
            found[side] = np.swapaxes(values * np.repeat(scales, 16, axis=-1), 0, 1).astype(np.float32)
        return found
