"""Which of prepared rows, exact lists and lists of whole rows a direct transfer goes by; without NIXL."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl.issue import Piece, choose
from tests.connector_rank import Spec, request
from tests.test_strategy import rank

KINDS: tuple[Literal["DRAM", "VRAM"], ...] = ("DRAM", "VRAM")
HEADS, TOKENS = Spec("here", pages=64), Spec("here", notation="n h k[d] v[d]", pages=64)


def pieces(local: Spec, remote: Spec, wanted: kvr.Request) -> tuple[kvr.Pairing, list[Piece]]:
    plan = kvr.plan(rank(local), rank(remote), direction="read")
    pairing = plan.pair(wanted)
    return pairing, choose(plan, pairing)


def test_whole_rows_go_by_ids_where_those_post_as_few() -> None:
    """Scattered pages: a descriptor a page and layer, by either."""
    order = [9, 4, 5, 20, 11]
    pairing, (piece,) = pieces(HEADS, HEADS, request((0, 80), order, order[::-1]))
    assert (piece.part, piece.memory, piece.bytes) == (0, ("DRAM", "DRAM"), 2 * 5 * HEADS.format.page_bytes)
    assert piece.posted == pairing.posted(part=0) == len(pairing.lists(part=0)[0])
    assert piece.ids is not None
    for ids, wanted in zip(piece.ids, pairing.ids(part=0), strict=True):
        np.testing.assert_array_equal(ids, wanted)


def test_what_is_joined_across_rows_goes_by_lists() -> None:
    """Layers side by side in one allocation: pages of all of them in one run."""
    row = Spec("here", pages=4, layers=1)
    whole = kvr.plan(rank(row), rank(row), direction="read")
    pairing = whole.pair(request((0, 64), [0, 1, 2, 3], [0, 1, 2, 3]))
    (piece,) = choose(whole, pairing)
    assert (piece.posted, piece.bytes) == (1, 4 * row.format.page_bytes)


def test_an_end_inside_a_row_is_rounded_up_where_that_is_fewer() -> None:
    """Head-major pages of which five tokens are wanted: a run a head, or the whole page."""
    pairing, (piece,) = pieces(HEADS, HEADS, request((0, 21), [3, 8], [5, 1]))
    assert pairing.cuts_rows
    assert len(pairing.lists(part=0)[0]) > piece.posted == len(pairing.rounded().lists(part=0)[0])
    assert piece.bytes == 2 * 2 * HEADS.format.page_bytes
    assert int(piece.lists[0][:, 1].sum()) == piece.bytes


def test_what_goes_by_ids_is_counted_by_whole_rows() -> None:
    """Token-major pages: one run each, of the part that is wanted or of all."""
    pairing, (piece,) = pieces(TOKENS, TOKENS, request((0, 20), [3, 8], [5, 1]))
    assert len(pairing.lists(part=0)[0]) == piece.posted == len(pairing.rounded().lists(part=0)[0]) == 4
    assert piece.ids is not None
    assert piece.bytes == int(piece.lists[0][:, 1].sum()) == 2 * 2 * TOKENS.format.page_bytes


def test_an_end_inside_a_row_stays_where_rounding_it_up_saves_nothing() -> None:
    """Runs go from the last page of a layer on into the next, which numbered rows do not."""
    four = Spec("here", notation="n h k[d] v[d]", pages=4)
    pairing, (piece,) = pieces(four, four, request((0, 36), [3, 0, 1], [3, 0, 1]))
    assert len(pairing.rounded().lists(part=0)[0]) == piece.posted == 3 < pairing.posted(part=0) == 4
    assert piece.ids is None
    assert piece.bytes == 2 * 36 * 8 * 2 * 32 * 2
    for rows, wanted in zip(piece.lists, pairing.lists(part=0), strict=True):
        np.testing.assert_array_equal(rows, wanted)


def test_a_beginning_inside_a_row_goes_by_an_exact_list() -> None:
    pairing, (piece,) = pieces(HEADS, HEADS, request((3, 16), [3], [5]))
    assert not pairing.fits_rows
    assert piece.ids is None
    assert (piece.posted, piece.bytes) == (2 * 8, 2 * 13 * 8 * 2 * 32 * 2)
    for rows, wanted in zip(piece.lists, pairing.lists(part=0), strict=True):
        np.testing.assert_array_equal(rows, wanted)


def test_one_descriptor_is_a_piece_and_none_is_not() -> None:
    one = Spec("here", pages=4, layers=1)
    assert [piece.posted for piece in pieces(one, one, request((0, 16), [1], [2]))[1]] == [1]
    assert pieces(one, one, request((0, 0), [], []))[1] == []


def two_kinds(spec: Spec) -> kvr.RankLayout:
    """A layer and a group in each kind of memory; nothing is moved, so that there need be none."""
    layers = []
    for group, kind in enumerate(KINDS):
        region = kvr.Region(1 << 30, spec.pages * spec.format.page_bytes, 0, kind)
        segment = kvr.Segment(region, spec.format, pages=spec.pages)
        layers.append(kvr.Layer(f"layers.{group}", [segment], totals={"h": 8}, group=group))
    return kvr.RankLayout(engine="decode", layers=layers, groups=[kvr.Group(), kvr.Group()])


@pytest.mark.parametrize("end", [64, 61])
@pytest.mark.parametrize("groups", [(0, 1), (0,), (1,)])
def test_each_kind_of_memory_goes_by_itself(groups: tuple[int, ...], end: int) -> None:
    """A group that no blocks are wanted of, and its kind of memory with it, is left out wherever it stands."""
    layout = two_kinds(HEADS)
    plan = kvr.plan(layout, layout, direction="read")
    ids = [[9, 4, 5, 20], [1, 2, 11, 7]]
    wanted = [kvr.Blocks(ids[group] if group in groups else []) for group in (0, 1)]
    pairing = plan.pair(kvr.Request((0, end), wanted, wanted))
    found = choose(plan, pairing)
    assert [(piece.part, piece.memory) for piece in found] == [(group, (KINDS[group],) * 2) for group in groups]
    for piece in found:
        rows = [address // HEADS.format.page_bytes for address in piece.lists[0][:, 0] - np.uint64(1 << 30)]
        assert piece.ids is not None
        assert sorted(piece.ids[0].tolist()) == sorted(ids[piece.part])
        assert int(piece.lists[0][:, 1].sum()) == piece.bytes
        assert len(rows) == piece.posted == pairing.posted(part=piece.part) == 3
        assert (set(rows) - set(ids[piece.part]), piece.bytes) == (set(), 4 * HEADS.format.page_bytes)
