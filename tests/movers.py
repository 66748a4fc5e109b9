"""Plans between real memory, and what their destinations have to hold: for the movers, on the host and on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from hypothesis import assume, note
from numpy.typing import NDArray

import kvreshard as kvr
from kvreshard.kernels import Mover, mover
from kvreshard.kernels.blocks import Config
from tests.convert import to_rank, to_request
from tests.oracle.model import Rank, Region
from tests.strategies import Transfer

Backend = Literal["host", "torch", "triton"]
Strategy = Literal["packed", "landed"]
STRATEGIES: list[Strategy] = ["packed", "landed"]


def memory(sizes: Sequence[int], seed: int, device: str = "cpu") -> list[torch.Tensor]:
    """Random bytes, each region an allocation of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).to(device) for size in sizes]


def region(tensor: torch.Tensor) -> kvr.Region:
    """The region that a tensor fills."""
    return kvr.Region(tensor.data_ptr(), tensor.numel(), 0, "VRAM" if tensor.is_cuda else "DRAM")


@dataclass
class Sides:
    """A plan between real memory, and what its destination has to hold in the end."""

    plan: kvr.Plan
    request: kvr.Request
    source: list[torch.Tensor]
    target: list[torch.Tensor]

    def expected(self, pairing: kvr.Pairing) -> list[NDArray[np.uint8]]:
        """The destination after the rows that the request's ids name were copied one by one."""
        after = [tensor.cpu().numpy().copy() for tensor in self.target]
        before = [tensor.cpu().numpy() for tensor in self.source]
        for part in range(len(self.plan.parts)):
            local, remote = pairing.ids(part=part)
            here, there = self.plan.local_flat(part=part)[local], self.plan.remote_flat(part=part)[remote]
            for (to, length, _), (start, _, _) in zip(here.tolist(), there.tolist(), strict=True):
                into, source = at(self.target, to), at(self.source, start)
                taken = before[source[0]][source[1] : source[1] + length]
                after[into[0]][into[1] : into[1] + length] = taken
        return after


def at(tensors: list[torch.Tensor], address: int) -> tuple[int, int]:
    """Which tensor an address lies in, and where."""
    for index, tensor in enumerate(tensors):
        if 0 <= address - tensor.data_ptr() < tensor.numel():
            return index, address - tensor.data_ptr()
    raise IndexError(f"{address:#x} lies in no tensor")


def made(tiles: kvr.Tiles, tensors: list[torch.Tensor], backend: Backend, config: Config | None) -> Mover:
    """A mover; `config` is the Triton kernel's."""
    if config is None:
        return mover(tiles, tensors, backend)
    from kvreshard.kernels.triton_backend import TritonMover

    return TritonMover(tiles, tensors, config)


def moved(sides: Sides, strategy: Strategy, backend: Backend, chunk: int, config: Config | None = None) -> None:
    """Moves the request through a buffer of `chunk` bytes, or as large as one page needs."""
    pairing = sides.plan.pair(sides.request)
    if strategy == "packed":
        gather, scatter = sides.plan.packed_tiles("remote"), sides.plan.packed_tiles("local")
        chunk = max([chunk, *scatter.lanes[:, 5].tolist()])
        source = made(gather, sides.source, backend, config)
        target = made(scatter, sides.target, backend, config)
        both = zip(pairing.chunks(gather, chunk), pairing.chunks(scatter, chunk), strict=True)
        for sent, received in both:
            assert sent.bytes == received.bytes <= chunk
            # A slot of a ring: memory before and behind it is someone else's.
            ring = torch.full((chunk + 16,), 0xA5, dtype=torch.uint8, device=sides.source[0].device)
            slot = ring[8 : 8 + sent.bytes]
            source.gather(sent, slot)
            assert (ring[:8] == 0xA5).all(), "the gather wrote before the slot"
            assert (ring[8 + sent.bytes :] == 0xA5).all(), "the gather wrote past the slot"
            target.scatter(received, slot)
        return
    landed = sides.plan.landed()
    chunk = max([chunk, *landed.spans])
    target = made(landed.tiles, sides.target, backend, config)
    for part in pairing.landed_chunks(landed, chunk):
        buffer = torch.full((part.bytes,), 0xA5, dtype=torch.uint8, device=sides.source[0].device)
        local, remote = part.reads(buffer.data_ptr())
        for (to, length, _), (start, _, _) in zip(local.tolist(), remote.tolist(), strict=True):
            index, place = at(sides.source, start)
            into = to - buffer.data_ptr()
            buffer[into : into + length] = sides.source[index][place : place + length]
        target.scatter(part, buffer)


def check(
    sides: Sides, strategy: Strategy, backend: Backend, chunk: int = 1 << 16, config: Config | None = None
) -> None:
    expected = sides.expected(sides.plan.pair(sides.request))
    moved(sides, strategy, backend, chunk, config)
    for found, wanted in zip(sides.target, expected, strict=True):
        assert np.array_equal(found.cpu().numpy(), wanted)


SIZES: dict[str, Any] = {"h": 2, "n": 16, "d": 64}
STATES: dict[str, dict[str, Any]] = {
    "mamba1": {"cx": 8, "t": 3, "s": 4},
    "mamba2": {"cx": 8, "cb": 4, "t": 3, "h": 2, "p": 4, "s": 8},
    "gdn": {"cq": 8, "cv": 4, "t": 3, "h": 2, "dv": 4, "dk": 8},
    "short-conv": {"cx": 8, "t": 3},
    "linear-attention": {"h": 2, "dk": 4, "dv": 8},
}
"""Parameters of the presets that have no tokens."""


def presets() -> dict[str, kvr.PageFormat]:
    """Every preset, small, by name; those of states in both orders of their convolution."""
    found = {}
    for name in kvr.presets():
        if name in STATES:
            found[name] = kvr.preset(name, **STATES[name])
            if name != "linear-attention":
                found[f"{name}-sd"] = kvr.preset(name, **STATES[name], order="sd")
            continue
        for parameters in (SIZES, {"n": 16, "d": 64}, {"n": 16}, {"n": 64}):
            try:
                found[name] = kvr.preset(name, **parameters)
                break
            except kvr.FormatError:
                continue
    return found


FORMATS = presets()
SHARDED = ("h", "cx", "cb", "cc", "cq", "ck", "cv")


def between(
    source: kvr.PageFormat, target: kvr.PageFormat, layers: int = 2, pages: int = 5, device: str = "cpu"
) -> Sides:
    """Pages of `source` to pages of `target`, `layers` of them, the pages scattered."""

    def rank(form: kvr.PageFormat, engine: str, seed: int) -> tuple[kvr.RankLayout, list[torch.Tensor]]:
        tensors = memory([pages * form.page_bytes] * layers, seed, device)
        made = [
            kvr.Layer(
                f"layers.{index}",
                [kvr.Segment(region(tensor), form, pages=pages)],
                totals={axis: form.extents[axis] for axis in SHARDED if axis in form.extents},
            )
            for index, tensor in enumerate(tensors)
        ]
        groups = [kvr.Group("tokens" if "n" in form.extents else "state")]
        return kvr.RankLayout(engine=engine, layers=made, groups=groups), tensors

    there, sent = rank(source, "prefill", 1)
    here, received = rank(target, "decode", 2)
    plan = kvr.plan(here, there)
    tokens = 3 * target.extents.get("n", 1)
    request = kvr.Request((0, tokens), [kvr.Blocks([4, 0, 2])], [kvr.Blocks([1, 3, 0])])
    return Sides(plan, request, sent, received)


def compatible() -> list[tuple[str, str]]:
    """The pairs of presets that hold the same components, in other places."""
    found = []
    for source, target in product(FORMATS, FORMATS):
        try:
            between(FORMATS[source], FORMATS[target])
        except kvr.Error:
            continue
        found.append((source, target))
    return found


PAIRS = compatible()

CONVERSIONS = [
    ("packed-hnd", "aiter-shuffle"),
    ("aiter-shuffle", "packed-hnd"),
    ("packed-hnd", "rocm-attn"),
    ("packed-hnd", "packed-nhd"),
    ("packed-nhd", "cpu-amx"),
    ("nvfp4-flashinfer", "nvfp4-flashinfer-swizzled"),
]
"""Pairs that exercise each kind of transposition."""


def real(transfer: Transfer, device: str = "cpu") -> Sides:
    """The transfer in real memory, as a read."""

    def rank(of: Rank, engine: str, seed: int) -> tuple[kvr.RankLayout, list[torch.Tensor]]:
        tensors = memory([region.bytes for region in of.regions], seed, device)
        regions = tuple(Region(tensor.data_ptr(), tensor.numel()) for tensor in tensors)
        return to_rank(dataclasses.replace(of, regions=regions), engine), tensors

    local, received = rank(transfer.local, "local", 1)
    remote, sent = rank(transfer.remote, "remote", 2)
    return Sides(kvr.plan(local, remote), to_request(transfer.request), sent, received)


def check_random(transfer: Transfer, backend: Backend, device: str = "cpu") -> None:
    """Checks a random transfer, unless its tokens begin inside a row."""
    note(f"{transfer}")
    sides = real(transfer, device)
    assume(sides.plan.pair(sides.request).fits_rows)
    for strategy in STRATEGIES:
        check(sides, strategy, backend, chunk=512)
