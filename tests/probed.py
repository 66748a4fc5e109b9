"""Writers that are probed: from closed formulas, and from formats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.demo.pattern import Page
from kvreshard.probe.sources import element_bytes, order

G = formulas.Geometry(heads=4, tokens=32, head_size=64)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as the bytes of their type, uint8 [..., bytes of an element]."""
    if dtype == "bf16":
        bits = (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif values.dtype == np.float32:
        bits = values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])
    else:
        bits = values
    return np.ascontiguousarray(bits).view(np.uint8).reshape(*values.shape, -1)


class Formula:
    """A writer from a closed formula: it knows neither notation nor core. Inputs are [n, h, ...]."""

    def __init__(self, page: Page, dtypes: Mapping[str, str] | str, start: int = 0, room: int = 0) -> None:
        self.page, self.start = page, start
        self.types = {c.name: dtypes if isinstance(dtypes, str) else dtypes[c.name] for c in page.components}
        self.cache = np.zeros(start + page.page_bytes + room, dtype=np.uint8)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> None:
        for component in self.page.components:
            data = stored(inputs[component.name], self.types[component.name])
            # Offsets are [H, N, content]; axes of one index are left out of the inputs.
            offsets = np.swapaxes(component.offsets, 0, 1).reshape(data.shape[:-1])
            for byte in range(data.shape[-1]):
                self.cache[self.start + offsets + byte] = data[..., byte]


class Nest:
    """A writer of a format, for formats that have no formula; places come from the core."""

    def __init__(self, page: kvr.PageFormat) -> None:
        self.page, self.cache = page, np.zeros(page.page_bytes, dtype=np.uint8)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> None:
        for component in self.page.components:
            axes = [axis for axis, _ in self.page.axes(component)]
            width = element_bytes(self.page.types[component])
            have = order(dict(self.page.axes(component)))
            values = np.transpose(inputs[component], [have.index(axis) for axis in axes])
            if values.dtype == np.float32 and self.page.types[component].startswith("f8"):
                data = np.where(values == np.float32(1.1), 0x39, 0xC4).astype(np.uint8)[..., None]
            else:
                data = stored(values, self.page.types[component])
            for byte in range(width):
                self.cache[self.page.offsets(component) + byte] = data[..., byte]


ATTENTION = {
    "packed-hnd": (formulas.packed_hnd, "h n k[d] v[d]"),
    "packed-nhd": (formulas.packed_nhd, "n h k[d] v[d]"),
    "two-slot": (formulas.two_slot_nhd, "k[n h d] v[n h d]"),
    "shuffle": (formulas.aiter_shuffle, "k[h d/8 n d%8] v[h n/8 d n%8]"),
    "rocm": (formulas.rocm_attn, "k[h d/8 n d%8] v[h d n]"),
    "page-16": (formulas.page16, "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]"),
    "cpu-vec": (formulas.cpu_vec, "h k[d n] v[n d]"),
}


def declared(notation: str, dtype: str = "bf16", geometry: formulas.Geometry = G) -> kvr.PageFormat:
    return kvr.PageFormat(notation, h=geometry.heads, n=geometry.tokens, d=geometry.head_size, dtype=dtype)


PRESETS: dict[str, dict[str, int | str]] = {
    "packed-hnd": {"h": 2, "n": 8, "d": 8, "dv": 4},
    "packed-nhd": {"h": 2, "n": 8, "d": 8},
    "packed-plane": {"n": 8, "d": 8},
    "two-slot-nhd": {"h": 2, "n": 8, "d": 8},
    "aiter-shuffle": {"h": 2, "n": 16, "d": 16},
    "rocm-attn": {"h": 3, "n": 8, "d": 16},
    "page-16": {"h": 2, "n": 32, "d": 16},
    "cpu-vec": {"h": 2, "n": 4, "d": 8},
    "cpu-amx": {"h": 2, "n": 32, "d": 32},
}


def preset_parameters(name: str) -> dict[str, int | str] | None:
    """Small parameters for a preset, where the usual names will do."""
    if name in PRESETS:
        return PRESETS[name]
    usual: dict[str, int | str] = {"h": 2, "n": 16, "d": 64}
    for drop in ((), ("h",), ("d",), ("h", "d"), ("h", "n"), ("n",), ("h", "n", "d")):
        try:
            kvr.preset(name, **{key: value for key, value in usual.items() if key not in drop})
        except kvr.FormatError:
            continue
        return {key: value for key, value in usual.items() if key not in drop}
    return None


OTHERS: dict[str, dict[str, int | str]] = {
    "mamba1": {"cx": 8, "t": 3, "s": 4},
    "mamba2": {"cx": 8, "cb": 4, "t": 3, "h": 2, "p": 4, "s": 8},
    "gdn": {"cq": 8, "ck": 8, "cv": 8, "t": 3, "h": 2, "dv": 4, "dk": 8},
    "short-conv": {"cx": 8, "t": 3},
    "linear-attention": {"h": 2, "dk": 8, "dv": 4},
}
