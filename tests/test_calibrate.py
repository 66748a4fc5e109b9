"""The cost model's constants, fitted and measured on a live pair; nothing on either side may change."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.kernels import mover
from tests.connector_rank import Spec, publish, request, running, wait

pytest.importorskip("nixl")

from kvreshard.nixl import Connector, NotConnected, calibrate, passes
from kvreshard.nixl.calibrate import SIZES, Sample, fit, measure
from kvreshard.nixl.passes import fit_passes, measure_passes


def samples(post: float, rate: float) -> list[Sample]:
    counts = [(2048, size) for size in SIZES[:3]] + [(32, SIZES[3])]
    return [Sample(n, size, n * post + n * size / rate) for n, size in counts]


@pytest.mark.parametrize(("post", "rate"), [(3.1e-6, 7.4e9), (1e-5, 1.4e12), (4.4e-6, 4.7e8)])
def test_the_fit_finds_the_constants_again(post: float, rate: float) -> None:
    found = fit(samples(post, rate))
    assert found == pytest.approx((post, rate), rel=1e-3)


def test_no_constant_falls_below_zero() -> None:
    """Larger descriptors that are cheaper than smaller ones, and the other way round."""
    post, rate = fit([Sample(1000, 256, 1e-3), Sample(1000, 4096, 9e-4), Sample(100, 65536, 5e-5)])
    assert post > 0
    assert rate > 0
    post, rate = fit([Sample(1000, 256, 1e-6), Sample(10, 1 << 20, 1e-3)])
    assert post == 0
    assert 1e10 < rate < 3e11


@pytest.mark.parametrize(("rate", "piece"), [(2e9, 1.3e-9), (4e10, 0.0), (1e9, 2.5e-8)])
def test_the_fit_of_passes_finds_the_constants_again(rate: float, piece: float) -> None:
    def gathered(pieces: int) -> tuple[float, int, int]:
        return (8e6 / rate + pieces * piece, 8_000_000, pieces)

    assert fit_passes(gathered(128), gathered(4_000_000)) == pytest.approx((rate, piece), rel=1e-6, abs=1e-18)


def test_a_piece_never_costs_less_than_nothing() -> None:
    assert fit_passes((2e-3, 1000, 10), (1e-3, 1000, 1000)) == (500_000.0, 0.0)


def test_bytes_never_cost_less_than_nothing() -> None:
    """Pieces that explain more than there is: twice as many take more than twice as long."""
    assert fit_passes((1.0, 1000, 1000), (2.1, 1000, 2000)) == pytest.approx((1e15, 1.1e-3))


def test_passes_are_measured_at_their_extremes() -> None:
    whole, turned = measure_passes(repeats=1)
    assert whole[1:] == (128 * 65536, 128)
    assert turned[1:] == (128 * 65536, 128 * 32768)
    assert min(whole[0], turned[0]) > 0


def test_passes_gather_scattered_pages_in_the_same_order_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[int]] = []

    def made(tiles: kvr.Tiles, memories: list[Any]) -> Any:
        (memory,) = memories
        assert (memory.dtype, memory.size) == (np.uint8, 128 * 65536)
        memory.reshape(128, 65536)[...] = np.arange(128, dtype=np.uint8)[:, None]
        real = mover(tiles, memories)

        def gather(chunk: Any, staging: Any) -> None:
            real.gather(chunk, staging)
            assert (staging.dtype, staging.size) == (np.uint8, memory.size)
            pages = staging.reshape(128, 65536)
            assert (pages == pages[:, :1]).all()
            found.append(pages[:, 0].tolist())

        return SimpleNamespace(gather=gather)

    monkeypatch.setattr(passes, "mover", made)
    measure_passes(repeats=1)
    # Once to warm up, once to measure, of either kind.
    assert len(found) == 4
    assert all(order == found[0] for order in found)
    assert sorted(found[0]) == list(range(128)) != found[0]


def test_of_the_repeats_the_median_counts() -> None:
    ticks = iter([0.0, 1.0, 10.0, 15.0, 20.0, 23.0] * 2)
    whole, turned = measure_passes(repeats=3, clock=lambda: next(ticks))
    assert (whole[0], turned[0], next(ticks, None)) == (3.0, 3.0, None)


def test_pieces_count_in_what_a_pass_is_expected_to_take() -> None:
    """A page of 8 KiB from one format to the other: 4,096 pieces at one end, one at the other."""

    def rank(notation: str, base: int) -> kvr.RankLayout:
        form = kvr.PageFormat(notation, h=2, n=16, d=64, dtype="bf16")
        pages = kvr.Segment(kvr.Region(base, 4 * form.page_bytes), form, pages=4)
        return kvr.RankLayout(engine="e", layers=[kvr.Layer("layers.0", [pages], totals={"h": 2})])

    plan = kvr.plan(rank("k[h d n] v[h d n]", 1 << 20), rank("h n k[d] v[d]", 1 << 30))
    wanted = request((0, 48), [0, 1, 2], [3, 1, 0])
    rates = {"read_post_ns": 0, "read_bytes_per_us": 1000, "write_post_ns": 0, "write_bytes_per_us": 1000}

    def expected(piece: int) -> dict[str, int]:
        transport = kvr.Transport(**rates, pass_bytes_per_us=1000, round_trip_ns=0, pass_piece_ps=piece)
        return {one.strategy: one.ns for one in plan.costs(wanted, transport=transport)}

    without, with_pieces = expected(0), expected(2_000)
    assert with_pieces["direct"] == without["direct"]
    assert with_pieces["landed"] - without["landed"] == 3 * 4096 * 2
    # Gathered piece by piece, scattered as whole pages.
    assert with_pieces["packed"] - without["packed"] == 3 * 4096 * 2 + 3 * 2


@pytest.fixture
def here() -> Iterator[Connector]:
    with Connector("here") as connector:
        yield connector


@pytest.mark.parametrize("idle", [False, True])
def test_a_live_pair_is_measured_and_left_as_it_was(here: Connector, idle: bool) -> None:
    spec = Spec("here", engine="decode")
    mine = spec.arrays(1)
    before = [array.copy() for array in mine]
    publish(here, spec, mine)
    with running(Spec("there")) as (there,):
        theirs = there.call("pages")
        peer = here.connect(there.call("metadata"))
        memory = here.metadata()
        found = calibrate(here, peer, repeats=3, idle=idle)
        assert here.metadata() == memory, "the buffer is gone again"
        assert found.name == "calibrated"
        assert 0 < found.read_post_ns < 10_000_000
        assert found.read_bytes_per_us > 1
        assert found.round_trip_ns > 0
        assert found.pass_bytes_per_us > 10
        if not idle:
            assert (found.write_post_ns, found.write_bytes_per_us) == (found.read_post_ns, found.read_bytes_per_us)

        # What is planned with this peer from now on is costed by it.
        assert peer.transport == found
        wanted = request((0, 32), [1, 2], [4, 3])
        # Which strategy is the cheapest is the machine's.
        costs = {one.strategy: one for one in peer.plan("read").costs(wanted, transport=peer.transport)}
        cost = costs["direct"]
        moved = -(-cost.bytes * 1000 // found.read_bytes_per_us)
        assert cost.ns == cost.posted * found.read_post_ns + moved
        here.read(peer, wanted, id="r")
        wait(here, "Finished")
        for layer, source in enumerate(there.call("pages", during=here)):
            np.testing.assert_array_equal(source, theirs[layer])
            before[layer][[1, 2]] = source[[4, 3]]
            np.testing.assert_array_equal(mine[layer], before[layer])


def test_regions_smaller_than_a_descriptor_are_measured_with_what_fits(here: Connector) -> None:
    spec = Spec("here", engine="decode", pages=1, tokens=1)
    publish(here, spec, spec.arrays(1))
    with running(Spec("there", pages=1, tokens=1)) as (there,):
        peer = here.connect(there.call("metadata"))
        small, fitting = measure(here, peer, "READ", sizes=(256, 1024, 1 << 20), repeats=1)
        assert (small.posted, small.size) == (spec.layers * spec.format.page_bytes // 256, 256)
        assert (fitting.posted, fitting.size) == (2, 1024)


def test_a_closed_peer_is_refused(here: Connector) -> None:
    spec = Spec("here", engine="decode")
    publish(here, spec, spec.arrays(1))
    with running(Spec("there")) as (there,):
        peer = here.connect(there.call("metadata"))
        here.disconnect(peer)
        with pytest.raises(NotConnected):
            calibrate(here, peer)
