"""Movers against the planner's lists: every backend, packed and landed, every byte of the destination.

The Triton kernels run under Triton's interpreter here; `tests/gpu` runs the same on a device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

import kvreshard as kvr
from kvreshard.kernels import Room, mover
from kvreshard.kernels.blocks import Blocks, Config, blocks
from tests.convert import to_rank
from tests.movers import CONVERSIONS, FORMATS, PAIRS, STRATEGIES, Backend, Strategy, between, check, check_random, real
from tests.strategies import Transfer, transfers

BACKENDS: list[Backend] = ["host", "torch", "triton"]


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    """Triton decides when it first sees a kernel whether to interpret it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


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


@pytest.mark.parametrize("config", [Config(bytes=512), Config(staged=False), Config(bytes=1024, evict=True)])
@pytest.mark.parametrize("pair", CONVERSIONS, ids="-to-".join)
def test_variants_of_the_triton_kernel(pair: tuple[str, str], config: Config) -> None:
    for strategy in STRATEGIES:
        source, target = (FORMATS[name] for name in pair)
        check(between(source, target, layers=1), strategy, "triton", config=config)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("h", "n", "d"), [(3, 16, 24), (5, 48, 56), (1, 16, 8)])
def test_extents_that_are_not_powers_of_two(h: int, n: int, d: int, backend: Backend) -> None:
    for source, target in [("packed-hnd", "aiter-shuffle"), ("rocm-attn", "packed-nhd")]:
        there, here = (kvr.preset(name, h=h, n=n, d=d) for name in (source, target))
        for strategy in STRATEGIES:
            check(between(there, here, layers=1), strategy, backend)


def test_blocks_that_reach_over_the_end_of_a_digit() -> None:
    """Blocks smaller than odd extents: the last one of each digit is masked, the others are not."""
    there, here = (kvr.preset(name, h=1, n=112, d=56) for name in ("packed-hnd", "packed-nhd"))
    other = kvr.preset("rocm-attn", h=1, n=112, d=56)
    for source, target in [(there, other), (other, there), (there, here)]:
        for strategy in STRATEGIES:
            check(between(source, target, layers=1), strategy, "triton", config=Config(bytes=1024))


def programs(cut: Blocks) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Where each program of a tile loads and stores, and the (load, store) offsets of its bytes."""
    steps = [[(i * d.load, i * d.store, i) for i in range(0, d.extent, d.block)] for d in (*cut.inner, *cut.outer)]
    for starts in itertools.product(*steps):
        load = cut.load + cut.width * sum(start[0] for start in starts)
        store = cut.store + cut.width * sum(start[1] for start in starts)
        turns = [
            [(j * d.load, j * d.store) for j in range(min(d.block, d.extent - start[2]))]
            for d, start in zip(cut.inner, starts, strict=False)
        ]
        pairs = [
            (load + cut.width * sum(p[0] for p in point) + byte, store + cut.width * sum(p[1] for p in point) + byte)
            for point in itertools.product(*turns)
            for byte in range(cut.width)
        ]
        yield load, store, pairs


def tile_bytes(tile: kvr.Tile) -> list[tuple[int, int]]:
    """The (page, buffer) offset of every byte of a tile."""
    turns = [[(i * page, i * buffer) for i in range(extent)] for extent, page, buffer in tile.loops]
    return [
        (tile.page + sum(p[0] for p in point) + byte, tile.buffer + sum(p[1] for p in point) + byte)
        for point in itertools.product(*turns)
        for byte in range(tile.run)
    ]


@pytest.mark.parametrize("config", [Config(bytes=256), Config(), Config(staged=False)])
def test_blocks_cover_each_byte_once(config: Config) -> None:
    for source, target in CONVERSIONS:
        plan = between(FORMATS[source], FORMATS[target], layers=1).plan
        check_blocks(plan.packed_tiles("remote"), True, config)
        check_blocks(plan.landed().tiles, False, config)


def check_blocks(tiles: kvr.Tiles, gather: bool, config: Config) -> None:
    """The alignment given to the compiler is trusted there: a wrong one faults on a device, and nowhere else."""
    for tile in itertools.chain.from_iterable(tiles.shapes):
        cut = blocks(tile, gather=gather, page_align=16, buffer_align=16, config=config)
        found = list(programs(cut))
        assert len(found) == cut.programs
        assert math.prod(digit.block for digit in cut.inner) * cut.width <= config.bytes
        for load, store, _ in found:
            assert load % cut.load_align == store % cut.store_align == 0
        wanted = [pair if gather else pair[::-1] for pair in tile_bytes(tile)]
        assert sorted(itertools.chain.from_iterable(pairs for _, _, pairs in found)) == sorted(wanted)


some = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@settings(some, max_examples=60)
@given(transfers())
def test_blocks_of_random_tiles(transfer: Transfer) -> None:
    plan = kvr.plan(to_rank(transfer.local, "local"), to_rank(transfer.remote, "remote"))
    for config in (Config(bytes=64), Config()):
        check_blocks(plan.packed_tiles("remote"), True, config)
        check_blocks(plan.landed().tiles, False, config)


@settings(some, max_examples=150)
@given(transfers())
def test_random_nests_on_the_host(transfer: Transfer) -> None:
    check_random(transfer, "host")


@settings(some, max_examples=100)
@given(transfers())
def test_random_nests_in_torch(transfer: Transfer) -> None:
    check_random(transfer, "torch")


@settings(some, max_examples=40)
@given(transfers())
def test_random_nests_in_triton(transfer: Transfer) -> None:
    check_random(transfer, "triton")


@settings(some, max_examples=100)
@given(transfers())
def test_tables_say_what_the_parts_say(transfer: Transfer) -> None:
    sides = real(transfer)
    pairing = sides.plan.pair(sides.request)
    assume(pairing.fits_rows)
    tiles = sides.plan.packed_tiles("local")
    for chunk in pairing.chunks(tiles, max([512, *tiles.lanes[:, 5].tolist()])):
        out = np.full(chunk.table_bytes + 5, 0xEE, np.uint8)
        launches, pages, places, bits = chunk.table(tiles, out, most=2)
        assert (out[-5:] == 0xEE).all()
        assert pages % 16 == places % 16 == 0
        rows = out[:pages].view(np.int64).reshape(-1, 6)
        count = len(chunk.pages)
        np.testing.assert_array_equal(out[pages:][: 4 * count].view(np.int32), chunk.pages)
        np.testing.assert_array_equal(out[places:][: 4 * count].view(np.int32), chunk.places)
        lanes, parts = tiles.lanes.astype(np.int64), chunk.parts.astype(np.int64)
        shapes = lanes[parts[:, 0], 0]
        parts = parts[np.argsort(shapes, kind="stable")]
        lane = lanes[parts[:, 0]]
        expected = np.column_stack([lane[:, 2], lane[:, 3], lane[:, 5], parts[:, 3], parts[:, 1], parts[:, 2]])
        np.testing.assert_array_equal(rows, expected)
        assert bits == np.bitwise_or.reduce(rows[:, 2:4], axis=None)
        covered: list[int] = []
        for shape, first, count, most in launches:
            assert 1 <= count <= 2
            assert set(lane[first : first + count, 0]) == {shape}
            assert most == parts[first : first + count, 2].max()
            covered += range(first, first + count)
        assert covered == list(range(len(parts)))


def test_a_table_needs_its_room_and_its_own_tiles() -> None:
    sides = between(FORMATS["packed-hnd"], FORMATS["packed-nhd"])
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    short = np.zeros(chunk.table_bytes - 1, np.uint8)
    with pytest.raises(kvr.LimitExceeded, match="bytes of a chunk's table"):
        chunk.table(tiles, short)
    assert not short.any()
    fewer = between(FORMATS["packed-hnd"], FORMATS["packed-nhd"], 1).plan.packed_tiles("remote")
    with pytest.raises(kvr.LimitExceeded, match="lane of a chunk"):
        chunk.table(fewer, np.zeros(chunk.table_bytes, np.uint8))
    with pytest.raises(TypeError, match="out"):
        chunk.table(tiles, np.zeros(2 * chunk.table_bytes, np.uint8)[::2])


@pytest.mark.parametrize("least", [0, 1])
def test_a_table_is_made_in_the_room_that_is_given_or_elsewhere(least: int) -> None:
    from kvreshard.kernels.triton_backend import TritonMover

    sides = between(FORMATS["packed-hnd"], FORMATS["aiter-shuffle"], 1)
    tiles = sides.plan.packed_tiles("remote")
    (chunk,) = sides.plan.chunks(sides.request, tiles, 1 << 20)
    gather = TritonMover(tiles, sides.source)
    expected, found = (torch.zeros(chunk.bytes, dtype=torch.uint8) for _ in range(2))
    mover(tiles, sides.source, "host").gather(chunk, expected)
    host, device = (torch.zeros(chunk.table_bytes - least, dtype=torch.uint8) for _ in range(2))
    gather.run(gather.prepare(chunk, room=Room(host, device)), found, gather=True)
    assert torch.equal(found, expected)
    assert bool(host.any()) == bool(device.any()) == (least == 0)


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
    # 19 million descriptors are counted, not listed.
    large = between(
        kvr.preset("packed-hnd", h=8, n=16, d=128), kvr.preset("aiter-shuffle", h=8, n=16, d=128), pages=512
    )
    ids = list(range(512))
    everything = kvr.Request((0, 512 * 16), [kvr.Blocks(ids)], [kvr.Blocks(ids[::-1])])
    direct = large.plan.costs(everything, transport="cma", lands=False, packs=False)[0]
    assert (direct.posted, direct.bytes) == (2 * 512 * 8 * 2304, 2 * 512 * 65536)
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


def test_holes_between_spans_are_read_along_where_a_descriptor_costs_more() -> None:
    """Half the heads of pages 2, 3, 4 and 7: spans of 32 KiB, 64 KiB apart."""
    page = kvr.preset("packed-hnd", h=8, n=16, d=128)

    def rank(form: kvr.PageFormat, engine: str, base: int, tp: tuple[int, int]) -> kvr.RankLayout:
        pages = kvr.Segment(kvr.Region(base, 16 * form.page_bytes), form, pages=16)
        return kvr.RankLayout(engine=engine, layers=[kvr.Layer("layers.0", [pages], totals={"h": 8})], tp=tp)

    here, there = rank(page.with_extents(h=4), "decode", 1 << 30, (1, 2)), rank(page, "prefill", 1 << 40, (0, 1))
    plan = kvr.plan(here, there)
    request = kvr.Request((0, 64), [kvr.Blocks([1, 2, 3, 4])], [kvr.Blocks([4, 2, 7, 3])])
    span, stride = page.page_bytes // 2, page.page_bytes
    start = (1 << 40) + 2 * stride + span
    expected = {
        0: [(start + (at - 2) * stride, span) for at in (2, 3, 4, 7)],
        40_000: [(start, 2 * stride + span), (start + 5 * stride, span)],
        1 << 20: [(start, 5 * stride + span)],
    }
    for hole, wanted in expected.items():
        (chunk,) = plan.landed_chunks(request, plan.landed(hole=hole), 1 << 20)
        local, remote = chunk.reads(1 << 33)
        assert [tuple(row[:2]) for row in remote.tolist()] == wanted
        assert local[:, 1].tolist() == remote[:, 1].tolist()
        assert int((local[:, 0] + local[:, 1]).max()) - (1 << 33) <= chunk.bytes
