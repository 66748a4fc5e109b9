"""How staging memory is cut into slots."""

from __future__ import annotations

import pytest

import kvreshard as kvr
from kvreshard.nixl.staging import ALIGN, Size


@pytest.mark.parametrize(
    ("kind", "total", "slot"),
    [
        ("DRAM", 64 << 20, 8 << 20),
        ("DRAM", 1 << 30, 32 << 20),
        ("VRAM", 1 << 30, (1 << 30) // 24 // ALIGN * ALIGN),
        ("VRAM", 8 << 30, 128 << 20),
        ("DRAM", 100 << 10, 64 << 10),
        ("VRAM", 1000, 768),
    ],
)
def test_slots_fit_the_memory_and_its_kind(kind: str, total: int, slot: int) -> None:
    size = Size.of(total, None, kind)
    assert size == Size(total, slot)
    assert sum(share.bytes for share in size.shares()) == size.slots * slot <= total


@pytest.mark.parametrize(("slots", "shares"), [(1, [1]), (2, [2]), (3, [1, 1, 1]), (8, [4, 2, 2]), (24, [8, 8, 8])])
def test_a_third_of_the_slots_is_for_each_way(slots: int, shares: list[int]) -> None:
    assert [share.slots for share in Size.of(slots * 512, 512).shares()] == shares


@pytest.mark.parametrize(("total", "slot"), [(255, None), (1 << 20, 255), (1 << 20, 2 << 20)])
def test_less_than_a_slot_is_refused(total: int, slot: int | None) -> None:
    with pytest.raises(kvr.LimitExceeded, match="hold no slot"):
        Size.of(total, slot)
