"""Block ids as callers have them: taken as they are, never truncated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvreshard as kvr


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 2],
        (3, 1, 2),
        np.array([3, 1, 2], np.int32),
        np.array([3, 1, 2], np.int64),
        np.array([3, 0, 1, 0, 2, 0], np.int32)[::2],
        np.array([3, 0, 1, 0, 2, 0], np.int64)[::2],
        np.array([3, 1, 2], np.uint16),
        [np.int64(3), np.uint8(1), 2],
        iter([3, 1, 2]),
    ],
    ids=str,
)
def test_block_ids_are_taken_as_they_are(ids: Any) -> None:
    blocks = kvr.Blocks(ids)
    assert blocks.ids.tolist() == [3, 1, 2]
    assert blocks.ids.dtype == np.int32
    assert len(blocks) == 3


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([0, -1], "-1"),
        ([2**31], str(2**31)),
        ([2**63], str(2**63)),
        ([-(2**80)], str(-(2**80))),
        # NIXL would take this one for block 5.
        (np.array([0, 2**32 + 5]), str(2**32 + 5)),
        (np.array([0, -1]), "-1"),
        (np.array([2**32 - 1], np.uint32), str(2**32 - 1)),
    ],
)
def test_block_ids_are_never_truncated(ids: Any, found: str) -> None:
    with pytest.raises(kvr.RequestError) as caught:
        kvr.Blocks(ids)
    assert (caught.value.field, caught.value.found) == ("block id", found)


@pytest.mark.parametrize(
    "ids",
    [[1.0], [1, "2"], "12", 5, [None], np.array([1.0]), np.array([True]), np.zeros((2, 2), np.int32), [[1]]],
    ids=repr,
)
def test_what_is_not_a_list_of_integers_is_a_type_error(ids: Any) -> None:
    with pytest.raises(TypeError):
        kvr.Blocks(ids)


def test_blocks_do_not_follow_the_array_they_came_from() -> None:
    ids = np.array([3, 1, 2], np.int32)
    blocks = kvr.Blocks(ids)
    ids[0] = 9
    blocks.ids[1] = 9
    assert blocks.ids.tolist() == [3, 1, 2]
