"""What two sides tell each other of a packed request, and which kernels are kept; without NIXL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec")

import kvreshard as kvr
from kvreshard.nixl import parcels
from kvreshard.nixl.parcels import Workshop, blocks, size, unblocks


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
