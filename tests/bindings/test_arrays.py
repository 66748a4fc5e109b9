"""Arrays that the native module hands over, and arrays that it fills."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr
from tests.bindings.given import HEADS, TOKENS, buffers, page, rank, request

ARRAYS: dict[str, tuple[Callable[[kvr.Plan, kvr.Request], npt.NDArray[Any]], Any, int | None]] = {
    "local_rows": (lambda plan, _: plan.local_rows(), np.uint64, 5),
    "remote_rows": (lambda plan, _: plan.remote_rows(), np.uint64, 5),
    "local_flat": (lambda plan, _: plan.local_flat(), np.uint64, 3),
    "remote_flat": (lambda plan, _: plan.remote_flat(), np.uint64, 3),
    "ids, local": (lambda plan, wanted: plan.ids(wanted)[0], np.int32, None),
    "ids, remote": (lambda plan, wanted: plan.ids(wanted)[1], np.int32, None),
    "lists, local": (lambda plan, wanted: plan.lists(wanted)[0], np.uint64, 3),
    "lists, remote": (lambda plan, wanted: plan.lists(wanted)[1], np.uint64, 3),
    "zero": (lambda plan, _: plan.zero(request(TOKENS + 5, [4, 2], [0, 1])), np.uint64, 3),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_what_nixl_takes_and_were_not_copied(plan: kvr.Plan, wanted: kvr.Request, name: str) -> None:
    make, dtype, columns = ARRAYS[name]
    array = make(plan, wanted)
    assert array.dtype == dtype
    assert array.shape[1:] == ((columns,) if columns else ())
    assert len(array) > 0
    assert array.flags.c_contiguous
    assert array.flags.aligned
    assert array.flags.writeable
    # Memory of the module's own allocator, kept alive by its container: a copy would own its data.
    assert not array.flags.owndata
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(base).__name__ == "PySliceContainer"
    # Nobody else sees a change.
    before = make(plan, wanted).copy()
    array[...] = 0
    assert np.array_equal(make(plan, wanted), before)


def test_arrays_outlive_the_plan() -> None:
    plan = kvr.plan(rank(), rank("n h k[d] v[d]", side="remote"))
    rows = plan.local_rows()
    expected = rows.tolist()
    del plan
    gc.collect()
    assert rows.tolist() == expected


def test_rows_ids_and_flat_tables_agree(plan: kvr.Plan, wanted: kvr.Request) -> None:
    for rows, flat, ids, lists in zip(
        (plan.local_rows(), plan.remote_rows()),
        (plan.local_flat(), plan.remote_flat()),
        plan.ids(wanted),
        plan.lists(wanted),
        strict=True,
    ):
        address, length, device, stride, count = (np.repeat(column, rows[:, 4].astype(int)) for column in rows.T)
        nth = np.arange(len(flat)) - np.repeat(np.cumsum(rows[:, 4]) - rows[:, 4], rows[:, 4].astype(int)).astype(int)
        assert np.array_equal(flat, np.stack([address + nth.astype(np.uint64) * stride, length, device], axis=1))
        assert count.sum() > 0
        assert int(flat[ids, 1].sum()) == int(lists[:, 1].sum()) == 3 * page().page_bytes
    assert plan.row_count == len(plan.local_rows()) == plan.runs
    assert plan.bytes_per_run == plan.bytes // plan.runs
    assert plan.posted(wanted) == len(plan.ids(wanted)[0])


def test_nothing_wanted_is_empty_arrays(plan: kvr.Plan) -> None:
    nothing = request(0, [], [])
    assert [ids.shape for ids in plan.ids(nothing)] == [(0,), (0,)]
    assert [rows.shape for rows in plan.lists(nothing)] == [(0, 3), (0, 3)]
    assert plan.zero(nothing).shape == (0, 3)
    assert plan.posted(nothing) == 0


def test_out_is_filled_and_returned(plan: kvr.Plan, wanted: kvr.Request) -> None:
    expected = plan.ids(wanted)
    count = len(expected[0])
    out = buffers(count + 3)
    for _ in range(2):
        filled = plan.ids(wanted, out)
        for array, given, right in zip(filled, out, expected, strict=True):
            assert array.base is given
            assert np.array_equal(array, right)
            assert given[count:].tolist() == [-7] * 3
    fitting = buffers(count)
    assert np.array_equal(plan.ids(wanted, out=fitting)[1], expected[1])


def test_out_that_is_too_short_is_refused_and_untouched(plan: kvr.Plan, wanted: kvr.Request) -> None:
    count = len(plan.ids(wanted)[0])
    out = buffers(count)
    with pytest.raises(kvr.RequestError) as caught:
        plan.ids(wanted, (out[0], out[1][:-1]))
    assert caught.value.field == "out"
    assert caught.value.found == str(count - 1)
    assert set(out[0]) | set(out[1]) == {-7}


def unwritable(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "spoil",
    [
        lambda array: array.astype(np.int64),
        lambda array: array.astype(np.uint32),
        lambda array: array.astype(">i4"),
        lambda array: np.repeat(array, 2)[::2],
        lambda array: array.reshape(1, -1),
        lambda array: array.tolist(),
        unwritable,
    ],
    ids=["int64", "uint32", "big-endian", "strided", "2-D", "list", "read-only"],
)
def test_out_of_another_kind_is_refused(plan: kvr.Plan, wanted: kvr.Request, spoil: Callable[[Any], Any]) -> None:
    count = len(plan.ids(wanted)[0])
    good, bad = buffers(count)
    with pytest.raises(TypeError):
        plan.ids(wanted, (good, spoil(bad)))
    with pytest.raises(TypeError):
        plan.ids(wanted, (spoil(bad), good))
    assert set(good) == {-7}


def test_one_array_cannot_be_both_sides(plan: kvr.Plan, wanted: kvr.Request) -> None:
    array = np.zeros(2 * len(plan.ids(wanted)[0]), np.int32)
    with pytest.raises(TypeError, match="borrowed"):
        plan.ids(wanted, (array, array))


def test_lists_of_different_memory_are_never_mixed_or_dropped() -> None:
    host, device = rank(), rank(memory="VRAM")
    both = kvr.RankLayout(
        engine="x",
        layers=[host.layers[0], kvr.Layer("layers.1", device.layers[0].segments, totals={"h": HEADS})],
    )
    plan = kvr.plan(both, rank(side="remote", layers=2))
    wanted = request(TOKENS, [1], [2])
    assert plan.parts == [("DRAM", "DRAM"), ("VRAM", "DRAM")]
    for call in (plan.local_rows, plan.remote_rows, plan.local_flat, plan.remote_flat):
        with pytest.raises(kvr.LimitExceeded, match="part="):
            call()
    for ask in (plan.ids, plan.lists):
        with pytest.raises(kvr.LimitExceeded, match="part="):
            ask(wanted)
    with pytest.raises(kvr.LimitExceeded, match="memory="):
        plan.zero(wanted)
    with pytest.raises(kvr.LimitExceeded):
        plan.local_rows(part=2)
    rows = [plan.local_rows(part=part) for part in (0, 1)]
    assert plan.row_count == sum(map(len, rows))
    assert sum(int(plan.lists(wanted, part=part)[0][:, 1].sum()) for part in (0, 1)) == 2 * page().page_bytes
    assert [len(plan.zero(request(5, [1], [2]), memory=memory)) > 0 for memory in ("DRAM", "VRAM")] == [True, True]
