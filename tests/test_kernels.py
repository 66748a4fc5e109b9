"""Movers against the planner's lists: every backend, packed and landed, every byte of the destination.

The Triton kernels run under Triton's interpreter here; `tests/gpu` runs the same on a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, note, settings
from numpy.typing import NDArray

import kvreshard as kvr
from kvreshard.kernels import Mover, mover
from kvreshard.kernels.blocks import Config
from tests.convert import to_rank, to_request
from tests.oracle.model import Rank, Region
from tests.strategies import Transfer, transfers

Backend = Literal["host", "torch", "triton"]
BACKENDS: list[Backend] = ["host", "torch", "triton"]
Strategy = Literal["packed", "landed"]
STRATEGIES: list[Strategy] = ["packed", "landed"]


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    """Triton decides when it first sees a kernel whether to interpret it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


def memory(sizes: Sequence[int], seed: int) -> list[torch.Tensor]:
    """Random bytes, each region an allocation of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in sizes]


@dataclass
class Sides:
    """A plan between real memory, and what its destination has to hold in the end."""

    plan: kvr.Plan
    request: kvr.Request
    source: list[torch.Tensor]
    target: list[torch.Tensor]

    def expected(self, pairing: kvr.Pairing) -> list[NDArray[np.uint8]]:
        """The destination after the rows that the request's ids name were copied one by one."""
        after = [tensor.numpy().copy() for tensor in self.target]
        for part in range(len(self.plan.parts)):
            local, remote = pairing.ids(part=part)
            here, there = self.plan.local_flat(part=part)[local], self.plan.remote_flat(part=part)[remote]
            for (to, length, _), (start, _, _) in zip(here.tolist(), there.tolist(), strict=True):
                into, source = at(self.target, to), at(self.source, start)
                taken = self.source[source[0]].numpy()[source[1] : source[1] + length]
                after[into[0]][into[1] : into[1] + length] = taken
        return after


def at(tensors: list[torch.Tensor], address: int) -> tuple[int, int]:
    """Which tensor an address lies in, and where."""
    for index, tensor in enumerate(tensors):
        if 0 <= address - tensor.data_ptr() < tensor.numel():
            return index, address - tensor.data_ptr()
    raise IndexError(f"{address:#x} lies in no tensor")


def made(tiles: kvr.Tiles, tensors: list[torch.Tensor], backend: Backend, config: Config | None) -> Mover:
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
            buffer = torch.full((chunk + 3,), 0xA5, dtype=torch.uint8)
            source.gather(sent, buffer[: sent.bytes])
            assert (buffer[sent.bytes :] == 0xA5).all(), "the gather wrote past the chunk"
            target.scatter(received, buffer[: sent.bytes])
        return
    landed = sides.plan.landed()
    chunk = max([chunk, *landed.spans])
    target = made(landed.tiles, sides.target, backend, config)
    for part in pairing.landed_chunks(landed, chunk):
        buffer = torch.full((part.bytes,), 0xA5, dtype=torch.uint8)
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
        assert np.array_equal(found.numpy(), wanted)


# Presets ------------------------------------------------------------------------------------------------------------

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


def between(source: kvr.PageFormat, target: kvr.PageFormat, layers: int = 2, pages: int = 5) -> Sides:
    """Pages of `source` to pages of `target`, `layers` of them, the pages scattered."""

    def rank(form: kvr.PageFormat, engine: str, seed: int) -> tuple[kvr.RankLayout, list[torch.Tensor]]:
        tensors = memory([pages * form.page_bytes] * layers, seed)
        made = [
            kvr.Layer(
                f"layers.{index}",
                [kvr.Segment(kvr.Region(tensor.data_ptr(), tensor.numel()), form, pages=pages)],
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


def test_most_presets_meet_another() -> None:
    assert {name.removesuffix("-sd") for name in FORMATS} == set(kvr.presets())
    assert {source for source, _ in PAIRS} == set(FORMATS)
    assert len([pair for pair in PAIRS if pair[0] != pair[1]]) > 60


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pair_of_presets(strategy: Strategy, backend: Backend) -> None:
    # The interpreter is slow; one layer has all the tiles.
    layers = 1 if backend == "triton" else 2
    for source, target in PAIRS:
        check(between(FORMATS[source], FORMATS[target], layers), strategy, backend)


CONVERSIONS = [
    ("packed-hnd", "aiter-shuffle"),
    ("aiter-shuffle", "packed-hnd"),
    ("packed-hnd", "rocm-attn"),
    ("packed-hnd", "packed-nhd"),
    ("packed-nhd", "cpu-amx"),
    ("nvfp4-flashinfer", "nvfp4-flashinfer-swizzled"),
]


@pytest.mark.parametrize("config", [Config(bytes=512), Config(staged=False), Config(bytes=1024, evict=True)])
@pytest.mark.parametrize("pair", CONVERSIONS, ids="-to-".join)
def test_variants_of_the_triton_kernel(pair: tuple[str, str], config: Config) -> None:
    for strategy in STRATEGIES:
        check(between(*(FORMATS[name] for name in pair), layers=1), strategy, "triton", config=config)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("h", "n", "d"), [(3, 16, 24), (5, 48, 56), (1, 16, 8)])
def test_extents_that_are_not_powers_of_two(h: int, n: int, d: int, backend: Backend) -> None:
    for source, target in [("packed-hnd", "aiter-shuffle"), ("rocm-attn", "packed-nhd")]:
        forms = [kvr.preset(name, h=h, n=n, d=d) for name in (source, target)]
        for strategy in STRATEGIES:
            check(between(*forms, layers=1), strategy, backend)


# Random nests -------------------------------------------------------------------------------------------------------


def real(transfer: Transfer) -> Sides:
    """The transfer in real memory, as a read."""

    def rank(of: Rank, engine: str, seed: int) -> tuple[kvr.RankLayout, list[torch.Tensor]]:
        tensors = memory([region.bytes for region in of.regions], seed)
        regions = tuple(Region(tensor.data_ptr(), tensor.numel()) for tensor in tensors)
        return to_rank(dataclasses.replace(of, regions=regions), engine), tensors

    local, received = rank(transfer.local, "local", 1)
    remote, sent = rank(transfer.remote, "remote", 2)
    return Sides(kvr.plan(local, remote), to_request(transfer.request), sent, received)


def random_transfer(transfer: Transfer, backend: Backend) -> None:
    note(f"{transfer}")
    sides = real(transfer)
    assume(sides.plan.pair(sides.request).fits_rows)
    for strategy in STRATEGIES:
        check(sides, strategy, backend, chunk=512)


some = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@settings(some, max_examples=150)
@given(transfers())
def test_random_nests_on_the_host(transfer: Transfer) -> None:
    random_transfer(transfer, "host")


@settings(some, max_examples=100)
@given(transfers())
def test_random_nests_in_torch(transfer: Transfer) -> None:
    random_transfer(transfer, "torch")


@settings(some, max_examples=40)
@given(transfers())
def test_random_nests_in_triton(transfer: Transfer) -> None:
    random_transfer(transfer, "triton")


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_does_not_hold_the_pages_is_refused(backend: Backend) -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["packed-nhd"])
    tiles = sides.plan.packed_tiles("local")
    with pytest.raises(kvr.LayoutError, match=r"no memory given holds .* of the local side"):
        mover(tiles, sides.source, backend)
    with pytest.raises(kvr.LayoutError, match="no memory given holds"):
        mover(tiles, [], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_that_do_not_fit_are_refused_before_anything_moves(backend: Backend) -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["packed-nhd"])
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    gather = mover(tiles, sides.source, backend)
    buffers: list[tuple[torch.Tensor, str]] = [
        (torch.zeros(chunk.bytes - 1, dtype=torch.uint8), "bytes, the chunk"),
        (torch.zeros(chunk.bytes, dtype=torch.int32), "one-byte elements"),
        (torch.zeros(2 * chunk.bytes, dtype=torch.uint8)[::2], "contiguous"),
    ]
    for buffer, complaint in buffers:
        with pytest.raises(ValueError, match=complaint):
            gather.gather(chunk, buffer)
        assert not buffer.any()


def test_backends_by_name() -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["packed-nhd"])
    tiles = sides.plan.packed_tiles("remote")
    assert type(mover(tiles, sides.source)).__name__ == "HostMover"
    wrong: Any = "cupy"
    with pytest.raises(ValueError, match="'cupy', but must be one of host, torch, triton"):
        mover(tiles, sides.source, wrong)


def test_the_host_backend_takes_arrays_and_addresses() -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"])
    expected = sides.expected(sides.plan.pair(sides.request))
    gather, scatter = sides.plan.packed_tiles("remote"), sides.plan.packed_tiles("local")
    arrays = [tensor.numpy() for tensor in sides.source]
    regions = [kvr.Region(tensor.data_ptr(), tensor.numel()) for tensor in sides.target]
    (sent,), (received,) = (sides.plan.chunks(sides.request, tiles, 1 << 20) for tiles in (gather, scatter))
    buffer = np.zeros(sent.bytes, np.uint8)
    mover(gather, arrays).gather(sent, buffer)
    mover(scatter, regions).scatter(received, buffer)
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(sides.target, expected, strict=True))


# What the planner hands over ----------------------------------------------------------------------------------------


def test_layers_of_one_group_share_their_pages() -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], layers=3)
    tiles = sides.plan.packed_tiles("local")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    assert chunk.parts[:, 1:3].tolist() == [[0, 3]] * 3
    assert sorted(chunk.pages.tolist()) == [0, 2, 4]
    assert chunk.places.tolist() == [0, 1, 2]
    assert len(tiles.shapes) == 1
    assert chunk.bytes == 9 * FORMATS["aiter-shuffle"].page_bytes


def test_a_conversion_stays_one_nest_for_each_component() -> None:
    """Elements that touch by chance (the corners of a transposition) must not break a nest into pieces for kernels."""
    for source, target in [("packed-hnd", "cpu-amx"), ("nvfp4-flashinfer", "nvfp4-flashinfer-swizzled")]:
        plan = between(kvr.preset(source, h=8, n=16, d=128), kvr.preset(target, h=8, n=16, d=128)).plan
        assert [len(shape) for shape in plan.packed_tiles("remote").shapes] == [2]
        assert [len(shape) for shape in plan.landed().tiles.shapes] == [2]


def test_costs_prefer_what_posts_less() -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"])
    pairing = sides.plan.pair(sides.request)
    costs = {cost.strategy: cost for cost in pairing.costs(transport="cuda_ipc")}
    assert set(costs) == {"direct", "landed", "packed"}
    assert costs["direct"].posted > 1000 > costs["landed"].posted >= costs["packed"].posted == 1
    assert pairing.choose(transport="cuda_ipc") == min(costs.values(), key=lambda cost: cost.ns)
    assert [cost.strategy for cost in pairing.costs(transport="cma", lands=False, packs=False)] == ["direct"]
    free = kvr.Transport(
        read_post_ns=0,
        read_bytes_per_us=1,
        write_post_ns=0,
        write_bytes_per_us=1,
        pass_bytes_per_us=1,
        round_trip_ns=1000,
    )
    assert sides.plan.choose(sides.request, transport=free).strategy == "direct"
    assert kvr.Transport.named("cma").name == "cma"
    assert kvr.Transport.names() == ["cma", "tcp", "cuda_ipc"]
    with pytest.raises(kvr.LayoutError, match="carrier pigeon"):
        pairing.choose(transport="carrier pigeon")
