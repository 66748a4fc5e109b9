"""Descriptor counts as NIXL will post them, against a model of its merging; the limit of its ids; an import."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.nixl.issue import choose


def rank(
    notation: str, n: int, *, layers: int = 2, pages: int = 32, gap: int = 0, whole: bool = False
) -> kvr.RankLayout:
    """A rank of 4 heads; `whole` puts all layers into one allocation, page by page."""
    form = kvr.PageFormat(notation, h=4, n=n, d=8, dtype="bf16")
    stride = (form.page_bytes + gap) * (layers if whole else 1)
    made = []
    shared = kvr.Region(1 << 32, stride * pages)
    for number in range(layers):
        region = shared if whole else kvr.Region((number + 1) << 24, stride * pages)
        offset = number * (form.page_bytes + gap) if whole else 0
        segment = kvr.Segment(region, form, pages=pages, page_stride=stride, offset=offset)
        made.append(kvr.Layer(f"layers.{number}", [segment], totals={"h": 4}))
    return kvr.RankLayout(engine="e", layers=made)


def posted_by_nixl(plan: kvr.Plan, pairing: kvr.Pairing) -> int:
    """NIXL joins ids that advance by one on both sides, inside one row on each whose descriptors are dense."""
    local, remote = pairing.ids()
    sides = []
    for rows, ids in ((plan.local_rows(), local), (plan.remote_rows(), remote)):
        ends = np.cumsum(rows[:, 4])
        at = np.searchsorted(ends, ids, side="right")
        dense = rows[at, 1] == rows[at, 3]
        sides.append((np.diff(ids) == 1) & (np.diff(at) == 0) & dense[1:])
    return len(local) - int((sides[0] & sides[1]).sum())


ORDERS = {
    "consecutive": list(range(8)),
    "pairs": [0, 1, 4, 5, 8, 9, 12, 13],
    "reversed": list(range(7, -1, -1)),
    "scattered": [3, 17, 9, 1, 30, 12, 25, 6],
}

PAIRS = {
    "equal": (rank("h n k[d] v[d]", 4), rank("h n k[d] v[d]", 4)),
    "padded": (rank("h n k[d] v[d]", 4, gap=64), rank("h n k[d] v[d]", 4)),
    "other order": (rank("h n k[d] v[d]", 4), rank("n h k[d] v[d]", 4)),
    "longer pages, token by token": (rank("n h k[d] v[d]", 4), rank("n h k[d] v[d]", 16)),
    "longer pages, head by head": (rank("h n k[d] v[d]", 16), rank("h n k[d] v[d]", 4)),
    "layers in one row": (rank("k[h n d] v[h n d]", 4, whole=True), rank("k[h n d] v[h n d]", 4, whole=True)),
    "layers in one row, and apart": (rank("h n k[d] v[d]", 4, whole=True), rank("h n k[d] v[d]", 4)),
}


@pytest.mark.parametrize("tokens", [32, 30, 29, 1])
@pytest.mark.parametrize("orders", list(itertools.product(ORDERS, ORDERS)), ids="-".join)
@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_chosen_posts_the_fewest(pair: str, orders: tuple[str, str], tokens: int) -> None:
    here, there = PAIRS[pair]
    plan = kvr.plan(here, there)
    lists = [kvr.Blocks(ORDERS[order]) for order in orders]
    pairing = plan.pair(kvr.Request((0, tokens), lists[:1], lists[1:]))
    exact, whole = (len(one.lists()[0]) for one in (pairing, pairing.rounded()))
    by_ids = posted_by_nixl(plan, pairing)
    assert plan.posted(kvr.Request((0, tokens), lists[:1], lists[1:])) == pairing.posted(part=0) == by_ids
    assert whole <= by_ids, "lists of whole rows are the fewest that move what ids move"
    (piece,) = choose(plan, pairing)
    assert piece.posted == min(exact, whole, by_ids)
    assert (piece.ids is not None) == (by_ids == piece.posted)
    (cost,) = pairing.costs(transport="cma", lands=False, packs=False)
    assert (cost.posted, cost.bytes) == (piece.posted, piece.bytes)


def test_dense_neighbours_are_joined_by_lists_and_not_by_ids() -> None:
    """Pages of 4 tokens into pages of 16: four rows a layer and side, none of them dense, though the bytes touch."""
    here, there = PAIRS["longer pages, token by token"]
    pairing = kvr.plan(here, there).pair(kvr.Request((0, 32), [kvr.Blocks(range(8))], [kvr.Blocks(range(2))]))
    assert (len(pairing.lists()[0]), pairing.posted()) == (2, 16)


def test_a_page_wanted_in_part_joins_its_layer_before_the_next_one_begins() -> None:
    """Layers one after the other in one region here and in two there; two whole pages and half of a third of each."""
    form = kvr.PageFormat("n h k[d] v[d]", h=4, n=4, d=8, dtype="bf16")
    size = 8 * form.page_bytes
    one, two = kvr.Region(1 << 24, 2 * size), [kvr.Region((2 + number) << 24, size) for number in range(2)]
    places = [[(one, 0), (one, size)], [(two[0], 0), (two[1], 0)]]
    sides = [
        kvr.RankLayout(
            engine="e",
            layers=[
                kvr.Layer(f"layers.{number}", [kvr.Segment(region, form, pages=8, offset=offset)], totals={"h": 4})
                for number, (region, offset) in enumerate(side)
            ],
        )
        for side in places
    ]
    pairing = kvr.plan(*sides).pair(kvr.Request((0, 10), [kvr.Blocks(range(3))], [kvr.Blocks(range(3))]))
    local, remote = pairing.lists()
    assert local[:, 1].tolist() == remote[:, 1].tolist() == [10 * form.page_bytes // 4] * 2


@pytest.mark.parametrize("blocks", [1, 63, 2_048, 2_049, 5_000, 16_384, 16_385, 20_000])
def test_ids_of_any_number_of_blocks_are_row_by_row(blocks: int) -> None:
    """Ids are written in tiles: at their edges nothing may be missing or out of place."""
    pages = 20_000
    one = rank("h n k[d] v[d]", 4, layers=3, pages=pages)
    mine = np.sort(np.random.default_rng(blocks).permutation(pages)[:blocks])
    theirs = np.random.default_rng(~blocks & 255).permutation(pages)[:blocks]
    request = kvr.Request((0, blocks * 4), [kvr.Blocks(mine)], [kvr.Blocks(theirs)])
    local, remote = kvr.plan(one, one).ids(request)
    rows = np.arange(3)[:, None] * pages
    np.testing.assert_array_equal(local, (rows + mine).ravel())
    np.testing.assert_array_equal(remote, (rows + theirs).ravel())


def byte_pages(layers: int) -> kvr.RankLayout:
    """Layers of 2^26 pages of one byte; nothing is allocated."""
    form = kvr.PageFormat("n k[]", n=1, dtype="u8")
    regions = [kvr.Region(1 + (number << 27), 1 << 26) for number in range(layers)]
    made = [
        kvr.Layer(f"layers.{number}", [kvr.Segment(region, form, pages=1 << 26)])
        for number, region in enumerate(regions)
    ]
    return kvr.RankLayout(engine="e", layers=made)


def test_descriptors_beyond_the_last_id_are_another_part() -> None:
    last = (1 << 26) - 1
    request = kvr.Request((0, 1), [kvr.Blocks([last])], [kvr.Blocks([last])])
    for layers, parts in ((32, [32]), (33, [32, 1])):
        plan = kvr.plan(byte_pages(layers), byte_pages(layers))
        assert plan.parts == [("DRAM", "DRAM")] * len(parts)
        for part, rows in enumerate(parts):
            assert plan.local_rows(part=part).shape == (rows, 5)
            local, remote = plan.ids(request, part=part)
            assert local.dtype == remote.dtype == np.int32
            assert int(local[-1]) == int(remote[-1]) == rows * (1 << 26) - 1
        assert int(plan.ids(request, part=0)[0].max()) == 2**31 - 1
        pieces = choose(plan, plan.pair(request))
        assert [piece.part for piece in pieces] == list(range(len(parts)))
        assert sum(piece.posted for piece in pieces) == plan.posted(request) == layers
        if len(parts) > 1:
            with pytest.raises(kvr.LimitExceeded, match="pick each in turn with part="):
                plan.local_rows()


def test_more_pages_than_ids_are_refused_by_name() -> None:
    form = kvr.PageFormat("n k[]", n=1, dtype="u8")
    pages = (1 << 31) + 1
    segment = kvr.Segment(kvr.Region(1, pages), form, pages=pages)
    layout = kvr.RankLayout(engine="e", layers=[kvr.Layer("layers.0", [segment])])
    with pytest.raises(kvr.LimitExceeded, match="descriptors of one row") as caught:
        kvr.plan(layout, layout).local_rows()
    assert (caught.value.found, caught.value.limit) == (pages, 1 << 31)


def test_a_plan_is_as_large_for_a_million_pages_as_for_ten() -> None:
    few, many = (kvr.plan(one, one) for one in (rank("k[h n d] v[h n d]", 4, pages=p) for p in (10, 1_000_000)))
    assert few.row_count == many.row_count
    assert few.local_rows().nbytes == many.local_rows().nbytes


def test_import_is_quick_and_needs_numpy_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The time is shown, not asserted: 30 ms over numpy are meant."""
    code = """
import sys, time
import numpy
before, begun = set(sys.modules), time.process_time()
import kvreshard
took = time.process_time() - begun
loaded = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(took, *sorted(loaded))
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(5)
    ]
    assert {tuple(run[1:]) for run in runs} == {("kvreshard",)}
    with capsys.disabled():
        print(
            f" [import kvreshard: {1e3 * statistics.median(float(run[0]) for run in runs):.1f} ms over numpy]", end=""
        )
