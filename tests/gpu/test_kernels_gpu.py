"""The Triton and torch movers on a device: the cases of the interpreter, and streams, graphs and waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import kvreshard as kvr
from kvreshard.kernels import mover
from kvreshard.kernels.blocks import Config
from tests.movers import CONVERSIONS, FORMATS, PAIRS, STRATEGIES, Backend, Strategy, between, check, check_random
from tests.strategies import Transfer, transfers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BACKENDS: list[Backend] = ["torch", "triton"]
DEVICE = "cuda:0"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pair_of_presets(strategy: Strategy, backend: Backend) -> None:
    for source, target in PAIRS:
        check(between(FORMATS[source], FORMATS[target], device=DEVICE), strategy, backend)


@pytest.mark.parametrize(
    "config",
    [
        Config(bytes=512),
        Config(bytes=4096, staged=False),
        Config(bytes=16384, warps=8),
        Config(bytes=32768, evict=True),
    ],
)
@pytest.mark.parametrize("pair", CONVERSIONS, ids="-to-".join)
def test_variants(pair: tuple[str, str], config: Config) -> None:
    there, here = (kvr.preset(name, h=8, n=16, d=128) for name in pair)
    for strategy in STRATEGIES:
        check(between(there, here, device=DEVICE), strategy, "triton", chunk=1 << 24, config=config)


@pytest.mark.parametrize(("h", "n", "d"), [(3, 16, 24), (5, 48, 56), (1, 16, 8)])
def test_extents_that_are_not_powers_of_two(h: int, n: int, d: int) -> None:
    for source, target in [("packed-hnd", "aiter-shuffle"), ("rocm-attn", "packed-nhd")]:
        there, here = (kvr.preset(name, h=h, n=n, d=d) for name in (source, target))
        for strategy in STRATEGIES:
            check(between(there, here, device=DEVICE), strategy, "triton")


@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(transfers())
def test_random_nests(transfer: Transfer) -> None:
    check_random(transfer, "triton", DEVICE)


@pytest.fixture
def no_synchronising() -> Iterator[None]:
    """Makes torch raise where it would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode(before)


def test_nothing_waits_for_the_device(request: pytest.FixtureRequest) -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], device=DEVICE)
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    buffer = torch.zeros(chunk.bytes, dtype=torch.uint8, device=DEVICE)
    gather = mover(tiles, sides.source, "triton")
    gather.gather(chunk, buffer)
    torch.cuda.synchronize()
    request.getfixturevalue("no_synchronising")
    gather.gather(chunk, buffer)


def test_moves_run_on_the_current_stream() -> None:
    """A gather behind slow work on its own stream must see what that work wrote."""
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], device=DEVICE)
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    gather = mover(tiles, sides.source, "triton")
    buffer, later = (torch.zeros(chunk.bytes, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for tensor in sides.source:
            tensor.bitwise_not_()
        gather.gather(chunk, buffer)
    torch.cuda.synchronize()
    gather.gather(chunk, later)
    torch.cuda.synchronize()
    assert torch.equal(buffer, later)
    assert later.any()


def test_a_cuda_graph_captures_a_move() -> None:
    from kvreshard.kernels.triton_backend import TritonMover

    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], device=DEVICE)
    gather, scatter = sides.plan.packed_tiles("remote"), sides.plan.packed_tiles("local")
    (sent,), (received,) = (sides.plan.chunks(sides.request, tiles, 1 << 20) for tiles in (gather, scatter))
    buffer = torch.zeros(sent.bytes, dtype=torch.uint8, device=DEVICE)
    source, target = TritonMover(gather, sides.source), TritonMover(scatter, sides.target)
    sending, receiving = source.prepare(sent), target.prepare(received)
    # Compiles, which must not happen while capturing.
    source.run(sending, buffer, gather=True)
    target.run(receiving, buffer, gather=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        source.run(sending, buffer, gather=True)
        target.run(receiving, buffer, gather=False)
    for tensor in sides.source:
        tensor.bitwise_not_()
    expected = sides.expected(sides.plan.pair(sides.request))
    graph.replay()
    torch.cuda.synchronize()
    for found, wanted in zip(sides.target, expected, strict=True):
        assert torch.equal(found.cpu(), torch.from_numpy(wanted))


def test_buffers_of_another_device_are_refused() -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], device=DEVICE)
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    with pytest.raises(ValueError, match="the buffer is on cpu"):
        mover(tiles, sides.source, "triton").gather(chunk, torch.zeros(chunk.bytes, dtype=torch.uint8))


def test_a_slots_kernels_run_on_its_device_whichever_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tables are copied by the driver itself: left to torch, that takes longer than the launch."""
    from kvreshard.kernels.triton_backend import TritonMover
    from kvreshard.nixl.staging import Area, Size

    last = torch.cuda.device_count() - 1
    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], device=f"cuda:{last}")
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    expected = torch.zeros(chunk.bytes, dtype=torch.uint8, device=f"cuda:{last}")
    mover(tiles, sides.source, "torch").gather(chunk, expected)
    copied: list[bool] = []
    upload = TritonMover._upload

    def counted(self: TritonMover, *arguments: Any) -> bool:
        copied.append(upload(self, *arguments))
        return copied[-1]

    monkeypatch.setattr(TritonMover, "_upload", counted)
    slots = torch.zeros(2 << 20, dtype=torch.uint8, device=f"cuda:{last}")
    pinned = torch.zeros(2 << 12, dtype=torch.uint8, pin_memory=True)
    area = Area(
        Size(2 << 20, 1 << 20),
        kvr.Region(slots.data_ptr(), slots.numel(), last, "VRAM"),
        slots.data_ptr(),
        slots,
        torch.cuda.Stream(device=last),
        (pinned, torch.zeros_like(pinned, device=f"cuda:{last}")),
    )
    torch.cuda.synchronize(last)
    with torch.cuda.device(0):
        area.move(mover(tiles, sides.source, "triton"), chunk, 1, gather=True).wait()
        assert torch.cuda.current_device() == 0
    assert copied == [True]
    assert torch.equal(slots[1 << 20 :][: chunk.bytes], expected)
    assert not slots[: 1 << 20].any()
