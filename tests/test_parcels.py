"""What two sides tell each other of a packed request, and which kernels are kept; without NIXL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl import parcels
from kvreshard.nixl.issue import Piece, choose
from kvreshard.nixl.parcels import Workshop, blocks, size, unblocks
from tests.connector_rank import Spec, request
from tests.test_strategy import rank


def chunks(*lengths: int) -> list[Any]:
    return [SimpleNamespace(bytes=length) for length in lengths]


@pytest.mark.parametrize(
    ("lengths", "told"),
    [((), (0, 0)), ((7,), (7, 7)), ((9, 9, 4), (22, 9)), ((5, 9, 4), (22, 9)), ((4, 9), (18, 9))],
)
def test_all_chunks_count_as_long_as_the_longest_but_for_the_last(
    lengths: tuple[int, ...], told: tuple[int, int]
) -> None:
    assert size(chunks(*lengths)) == told


def test_blocks_come_through_a_message() -> None:
    lists = [kvr.Blocks([7, 2**31 - 1, 0], 48), kvr.Blocks([], 0), kvr.Blocks([1])]
    told = blocks(lists)
    assert told == [(48, b"\x07\0\0\0\xff\xff\xff\x7f\0\0\0\0"), (0, b""), (0, b"\1\0\0\0")]
    read = unblocks(told)
    assert [(one.first_token, one.ids.tolist()) for one in read] == [(48, [7, 2**31 - 1, 0]), (0, []), (0, [1])]
    # What is cut off inside an id is not one.
    assert [one.ids.tolist() for one in unblocks([(0, b"\1\0\0\0\2\0\0"), (0, b"\1")])] == [[1], []]


class Plan:
    """A plan that says of which side tiles were asked for."""

    def __init__(self, digest: str) -> None:
        self.digest, self.local, self.remote = digest, "here", "there"

    def packed_tiles(self, side: str) -> str:
        return f"{side} tiles of {self.digest}"


def test_kernels_are_made_once_a_plan_and_role(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Any = SimpleNamespace(spans=lambda layout: f"spans of {layout}")
    monkeypatch.setattr(parcels, "mover", lambda tiles, spans: (tiles, spans))
    monkeypatch.setattr(parcels, "MAX_KERNELS", 2)
    shop: Any = Workshop(memory)
    a: Any = Plan("a")
    made = shop.kernels(a, "receiver")
    assert (made.plan, made.tiles, made.mover) == (a, "local tiles of a", ("local tiles of a", "spans of here"))
    sent = shop.kernels(a, "sender")
    assert (sent.tiles, sent.mover) == ("remote tiles of a", ("remote tiles of a", "spans of there"))
    same: Any = Plan("a")
    assert shop.kernels(same, "receiver") is made
    # More than are kept: all are forgotten.
    other: Any = Plan("b")
    shop.kernels(other, "sender")
    assert shop.kernels(a, "receiver") is not made
    again = shop.kernels(other, "sender")
    assert shop.kernels(other, "sender") is again
    shop.clear()
    assert shop.kernels(other, "sender") is not again


# Which of prepared rows, exact lists and lists of whole rows a direct transfer goes by.

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
