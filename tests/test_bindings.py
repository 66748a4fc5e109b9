"""The native module as Python sees it: arrays, errors, identity, threads, memory."""

from __future__ import annotations

import functools
import gc
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr

HEADS, TOKENS, DIM = 8, 16, 64
BASES = {"local": 1 << 20, "remote": 1 << 40}


def page(notation: str = "h n k[d] v[d]", **changed: int) -> kvr.PageFormat:
    extents = {"h": HEADS, "n": TOKENS, "d": DIM} | changed
    return kvr.PageFormat(notation, extents=extents, dtype="bf16")


def rank(
    notation: str = "h n k[d] v[d]", *, side: str = "local", layers: int = 1, pages: int = 32, memory: Any = "DRAM"
) -> kvr.RankLayout:
    format = page(notation)
    made = []
    for index in range(layers):
        region = kvr.Region(BASES[side] + index * pages * format.page_bytes, pages * format.page_bytes, memory=memory)
        made.append(kvr.Layer(f"layers.{index}", [kvr.Segment(region, format, pages=pages)], totals={"h": HEADS}))
    return kvr.RankLayout(engine=side, layers=made)


def request(tokens: int, local: Any, remote: Any) -> kvr.Request:
    return kvr.Request((0, tokens), [kvr.Blocks(local)], [kvr.Blocks(remote)])


@pytest.fixture(scope="module")
def plan() -> kvr.Plan:
    return kvr.plan(rank(), rank("n h k[d] v[d]", side="remote"))


@pytest.fixture
def wanted() -> kvr.Request:
    return request(3 * TOKENS, [4, 2, 9], np.array([7, 1, 30], dtype=np.int64))


# --- arrays out -------------------------------------------------------------------------------------------------------


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


# --- out= -------------------------------------------------------------------------------------------------------------


def buffers(count: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    return np.full(count, -7, np.int32), np.full(count, -7, np.int32)


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


# --- block ids in -----------------------------------------------------------------------------------------------------


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


# --- errors -----------------------------------------------------------------------------------------------------------


ATTRIBUTES = {"layer", "field", "local", "remote", "found", "expected", "remedy", "at", "side", "limit", "group"}


def other_layer() -> kvr.RankLayout:
    region = kvr.Region(0, page().page_bytes)
    return kvr.RankLayout(engine="x", layers=[kvr.Layer("b", [kvr.Segment(region, page(), pages=1)], totals={"h": 8})])


def narrower() -> kvr.RankLayout:
    region = kvr.Region(0, page().page_bytes)
    segment = kvr.Segment(region, page(d=DIM // 2), pages=1)
    return kvr.RankLayout(engine="x", layers=[kvr.Layer("layers.0", [segment], totals={"h": 8})])


def only_edge() -> kvr.Edge:
    (edge,) = kvr.route(local=kvr.Engine([rank()]), remote=kvr.Engine([rank()])).edges
    return edge


ERRORS: list[tuple[Callable[[], object], type[kvr.Error], dict[str, Any]]] = [
    (lambda: kvr.PageFormat("k[h", h=1, dtype="u8"), kvr.FormatError, {"at": 3, "found": "the end"}),
    (lambda: kvr.PageFormat("k[h]", dtype="u8"), kvr.FormatError, {"field": "h", "at": 2}),
    (lambda: kvr.PageFormat("k[h]", h=2, dtype="fp8"), kvr.FormatError, {"field": 'type "fp8"', "at": None}),
    (lambda: page().offset("q"), kvr.FormatError, {"field": "q"}),
    (lambda: kvr.preset("nonsense"), kvr.FormatError, {"field": 'preset "nonsense"'}),
    (lambda: kvr.PageFormat("x" * 5000), kvr.LimitExceeded, {"found": 5000, "limit": 4096}),
    (lambda: kvr.PageFormat("k[a b]", a=2**40, b=2**40, dtype="u8"), kvr.ArithmeticOverflow, {}),
    (lambda: kvr.Region(2**64 - 1, 2), kvr.ArithmeticOverflow, {"field": "region base + region bytes"}),
    (lambda: kvr.Region(0, 0), kvr.LayoutError, {"layer": None, "field": "region bytes", "found": "0"}),
    (lambda: kvr.Layer("a", []), kvr.LayoutError, {"layer": "a", "field": "segments"}),
    (lambda: kvr.plan(rank(), narrower()), kvr.IncompatibleLayout, {"layer": "layers.0"}),
    (
        lambda: kvr.route(local=kvr.Engine([rank()]), remote=kvr.Engine([other_layer()])),
        kvr.MissingLayer,
        {"layer": "layers.0", "side": "remote", "field": "the layer"},
    ),
    (
        lambda: kvr.plan(rank(), rank(side="remote")).ids(request(TOKENS, [32], [0])),
        kvr.RequestError,
        {"side": "local", "group": 0, "field": "block id", "found": "32"},
    ),
    (lambda: kvr.Request((2, 1), [], []), kvr.RequestError, {"field": "tokens", "side": None}),
    (lambda: kvr.RankLayout.from_bytes(b"nonsense"), kvr.WireError, {}),
    (
        lambda: kvr.plan(rank(), rank(), edge=only_edge(), direction="write"),
        kvr.LayoutError,
        {"field": "direction", "found": "write"},
    ),
]


@pytest.mark.parametrize(("fail", "kind", "expected"), ERRORS)
def test_errors_carry_their_parts(fail: Callable[[], object], kind: type[kvr.Error], expected: dict[str, Any]) -> None:
    with pytest.raises(kvr.Error) as caught:
        fail()
    error = caught.value
    assert type(error) is kind
    assert {name: getattr(error, name) for name in expected} == expected
    assert all(hasattr(error, name) for name in ATTRIBUTES)
    for name in ("layer", "field", "found", "local", "remote"):
        # The sentence names every part that a program can read.
        assert str(getattr(error, name) or "") in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_incompatible_sides_show_both_values_and_the_layer() -> None:
    with pytest.raises(kvr.IncompatibleLayout) as caught:
        kvr.plan(rank(), narrower())
    assert caught.value.local is not None
    assert caught.value.remote is not None
    assert "64" in caught.value.local
    assert "32" in caught.value.remote


def test_every_exception_is_an_error_with_defaults() -> None:
    kinds = [value for value in vars(kvr).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(kinds) == 10
    for kind in kinds:
        assert issubclass(kind, kvr.Error)
        assert kind.__module__ == "kvreshard"
        assert kind.__doc__
        fresh = kind("text")
        assert {getattr(fresh, name) for name in ATTRIBUTES} == {None}


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda: kvr.PageFormat(3), TypeError),  # type: ignore[arg-type]
        (lambda: kvr.PageFormat("k[h]", h="2", dtype="u8"), TypeError),  # type: ignore[arg-type]
        (lambda: kvr.PageFormat("k[h]", extents={"h": 2}, h=2, dtype="u8"), TypeError),
        (lambda: kvr.PageFormat("k[h]", h=-1, dtype="u8"), OverflowError),
        (lambda: kvr.PageFormat("k[h]", h=2**64, dtype="u8"), OverflowError),
        (lambda: kvr.Group(tokens_per_state=0.5), TypeError),  # type: ignore[arg-type]
        (lambda: kvr.RankLayout.from_bytes("text"), TypeError),  # type: ignore[arg-type]
        (lambda: setattr(page(), "page_bytes", 3), AttributeError),
        (lambda: kvr.plan(rank(), page()), TypeError),  # type: ignore[arg-type]
    ],
)
def test_wrong_python_types_are_python_errors(wrong: Callable[[], object], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        wrong()


# --- parts of a transfer ----------------------------------------------------------------------------------------------


def layered(engine: str, tp: tuple[int, int], names: str, base: int) -> kvr.RankLayout:
    """A rank with a layer for each letter, each in a region of its own."""
    format = kvr.PageFormat("h n k[d]", h=8 // tp[1], n=4, d=16, dtype="u8")
    layers = []
    for number, name in enumerate(names):
        region = kvr.Region(base + number * (1 << 16), 8 * format.page_bytes)
        layers.append(kvr.Layer(name, [kvr.Segment(region, format, pages=8)], totals={"h": 8}))
    return kvr.RankLayout(engine=engine, layers=layers, tp=tp)


def test_a_plan_of_some_layers() -> None:
    local, remote = layered("d", (1, 2), "abc", 1 << 20), layered("p", (0, 1), "cba", 1 << 30)
    whole = kvr.plan(local, remote)
    some = [kvr.plan(local, remote, layers=layers) for layers in (["b"], ["c", "a", "c"])]
    assert sum(plan.bytes for plan in some) == whole.bytes
    assert len({plan.digest for plan in (whole, *some)}) == 3
    assert kvr.plan(local, remote, layers=[]).bytes == 0
    with pytest.raises(kvr.MissingLayer) as caught:
        kvr.plan(local, remote, layers=["a", "d"])
    assert (caught.value.layer, caught.value.side) == ("d", "local")
    with pytest.raises(TypeError):
        kvr.plan(local, remote, layers="abc")


def test_an_edge_narrowed_to_some_layers() -> None:
    targets = [layered("d", (rank, 2), "abc", 1 << 20) for rank in range(2)]
    source = layered("p", (0, 1), "abc", 1 << 30)
    route = kvr.route(local=kvr.Engine(targets), remote=kvr.Engine([source]))
    (edge,) = route.edges_of(local=1)
    narrow = kvr.plan(targets[1], source, edge=edge, layers=["b"])
    assert 3 * narrow.bytes == kvr.plan(targets[1], source, edge=edge).bytes
    with pytest.raises(kvr.MissingLayer, match="on the edge from local rank 1 to remote rank 0") as caught:
        kvr.plan(targets[1], source, edge=edge, layers=["b", "x"])
    assert caught.value.layer == "x"


def test_a_part_with_more_to_come() -> None:
    plan = kvr.plan(layered("d", (1, 2), "a", 1 << 20), layered("p", (0, 1), "a", 1 << 30))
    lists = [kvr.Blocks([3, 1])], [kvr.Blocks([0, 2])]
    whole, part = kvr.Request((0, 6), *lists), kvr.Request((0, 6), *lists, more=True)
    assert (whole.more, part.more) == (False, True)
    assert whole != part
    assert int(plan.zero(whole)[:, 1].sum()) == 2 * 4 * 16, "two tokens of four heads"
    assert plan.zero(part).shape == (0, 3)
    assert len(plan.ids(whole)[0]) == 2
    with pytest.raises(kvr.RequestError) as caught:
        plan.ids(part)
    assert caught.value.field == "tokens end"
    assert int(plan.lists(part)[0][:, 1].sum()) == 6 * 4 * 16


# --- identity ---------------------------------------------------------------------------------------------------------


def samples() -> dict[str, Any]:
    format = page("(h n k[d]) pad[3] v[h n d]")
    region = kvr.Region(4096, 1 << 24, device=1, memory="VRAM")
    segment = kvr.Segment(region, format, pages=7, page_stride=1 << 18, offset=64, holds={"h": (0, 8)})
    layer = kvr.Layer("a", [segment], totals={"h": 8}, group=1)
    group = kvr.Group("tokens", pages_per_block=2, tokens_per_state=Fraction(1, 4), window=9)
    groups = [kvr.Group("state"), kvr.Group(pages_per_block=2, window=9), group]
    layout = kvr.RankLayout(engine="e", layers=[layer], groups=groups, generation=3, cp=(1, 2), cp_interleave=4)
    blocks = kvr.Blocks([3, 1], first_token=16)
    return {
        "PageFormat": format,
        "Region": region,
        "Segment": segment,
        "Layer": layer,
        "Group": group,
        "RankLayout": layout,
        "Engine": kvr.Engine([rank()]),
        "Blocks": blocks,
        "Request": kvr.Request((0, 40), [blocks], [kvr.Blocks([5]), kvr.Blocks([])], more=True),
    }


@pytest.mark.parametrize("name", samples())
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_equal(name: str, protocol: int) -> None:
    sample = samples()[name]
    again = pickle.loads(pickle.dumps(sample, protocol))
    assert again is not sample
    assert again == sample
    assert repr(again) == repr(sample)
    assert sample != "something else"


@pytest.mark.parametrize("name", ["PageFormat", "Region", "Group"])
def test_equal_values_hash_alike(name: str) -> None:
    one, other = samples()[name], samples()[name]
    assert one is not other
    assert {one: 1}[other] == 1


@pytest.mark.parametrize("name", ["PageFormat", "Region", "Group"])
def test_representations_can_be_evaluated(name: str) -> None:
    names = {"PageFormat": kvr.PageFormat, "Region": kvr.Region, "Group": kvr.Group, "Fraction": Fraction}
    assert eval(repr(samples()[name]), names) == samples()[name]


def test_format_equality_is_by_bytes() -> None:
    shuffle = page("k[h d/8 n d%8] v[h n/8 d n%8]")
    page16 = page("k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]")
    assert shuffle == page16
    assert hash(shuffle) == hash(page16)
    assert shuffle.fingerprint == page16.fingerprint
    assert shuffle.notation != page16.notation
    assert shuffle != page()
    assert shuffle.same_bytes_as(page16)
    assert not shuffle.same_bytes_as(page())


def test_dtypes_of_numpy_and_torch_are_understood() -> None:
    torch = pytest.importorskip("torch")
    for dtype in ("f16", "float16", np.float16, np.dtype("f2"), torch.float16, "torch.float16"):
        assert kvr.PageFormat("k[d]", d=4, dtype=dtype).types == {"k": "f16"}
    mixed = kvr.PageFormat("k[d] s[]", d=4, types={"k": torch.float8_e4m3fn}, dtype=torch.float32)
    assert mixed.types == {"k": "f8e4m3fn", "s": "f32"}
    assert kvr.preset("packed-hnd", h=1, n=1, d=8, dtype=torch.bfloat16).types["k"] == "bf16"


def test_a_layout_shows_what_it_was_made_of() -> None:
    layout = samples()["RankLayout"]
    assert (layout.engine, layout.generation, layout.tp, layout.pp, layout.cp) == ("e", 3, (0, 1), (0, 1), (1, 2))
    assert layout.cp_interleave == 4
    assert layout.regions == [samples()["Region"]]
    assert layout.groups == [kvr.Group("state"), kvr.Group(pages_per_block=2, window=9), samples()["Group"]]
    assert layout.layers == [samples()["Layer"]]
    assert layout.layers[0].segments[0].holds == {"h": (0, 8)}
    assert kvr.RankLayout.from_bytes(layout.to_bytes()) == layout


def test_shares_are_filled_in_by_the_rule() -> None:
    region = kvr.Region(0, 1 << 24)
    layer = kvr.Layer("a", [kvr.Segment(region, page(h=2), pages=1)], totals={"h": 8})
    layout = kvr.RankLayout(engine="e", layers=[layer], tp=(3, 4))
    assert layer.segments[0].holds == {}
    assert layout.layers[0].segments[0].holds == {"h": (6, 8)}


def test_regions_are_numbered_once() -> None:
    region = kvr.Region(0, 1 << 24)
    half = page().page_bytes
    layers = [
        kvr.Layer(name, [kvr.Segment(kvr.Region(0, 1 << 24), page(), pages=1, offset=offset)], totals={"h": 8})
        for name, offset in (("a", 0), ("b", half))
    ]
    assert kvr.RankLayout(engine="e", layers=layers).regions == [region]


def test_preset_names_make_formats() -> None:
    assert "aiter-shuffle" in kvr.presets()
    assert kvr.preset("aiter-shuffle", h=8, n=16, d=64, dtype="bf16") == page("k[h d/8 n d%8] v[h n/8 d n%8]")


def test_a_plan_explains_itself(plan: kvr.Plan) -> None:
    text = plan.explain()
    assert "h n k[d] v[d]" in text
    assert str(plan.runs) in text


# --- parts ------------------------------------------------------------------------------------------------------------


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


# --- threads and memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def ticks() -> Iterator[list[None]]:
    """Grows whenever another thread runs, which it only can when this one gives the GIL up of its own accord."""
    ticks: list[None] = []
    running = True

    def tick() -> None:
        while running:
            ticks.append(None)
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    thread.start()
    sys.setswitchinterval(1000)
    yield ticks
    sys.setswitchinterval(interval)
    running = False
    thread.join()


def many_pages() -> tuple[kvr.Plan, kvr.Request]:
    pages = 1 << 10
    local, remote = (rank(notation, layers=8, pages=pages) for notation in ("h n k[d] v[d]", "n h k[d] v[d]"))
    ids = np.random.default_rng(0).permutation(pages).astype(np.int32)
    return kvr.plan(local, remote), request(pages * TOKENS - 3, ids, ids)


def of_many_pages(method: Callable[..., object], **keywords: Any) -> Callable[[], object]:
    return functools.partial(method, *many_pages(), **keywords)


def many_layers() -> kvr.RankLayout:
    return rank(layers=4000, pages=1)


# Each takes milliseconds at least: the other thread needs time to wake up.
LONG: dict[str, Callable[[], Callable[[], object]]] = {
    "rows": lambda: kvr.plan(rank(layers=1000), rank("n h k[d] v[d]", layers=1000)).remote_rows,
    "flat": lambda: many_pages()[0].local_flat,
    "ids": lambda: of_many_pages(kvr.Plan.ids),
    "ids, out": lambda: of_many_pages(kvr.Plan.ids, out=buffers(1 << 20)),
    "lists": lambda: of_many_pages(kvr.Plan.lists),
    "posted": lambda: of_many_pages(kvr.Plan.posted),
    "verify": lambda: many_pages()[0].verify,
    "plan": lambda: functools.partial(kvr.plan, many_layers(), many_layers()),
    "route": lambda: functools.partial(
        kvr.route, local=kvr.Engine([many_layers()]), remote=kvr.Engine.uniform(many_layers())
    ),
    "to_bytes": lambda: many_layers().to_bytes,
    "from_bytes": lambda: functools.partial(kvr.RankLayout.from_bytes, many_layers().to_bytes()),
}


@pytest.mark.parametrize("name", LONG)
def test_long_calls_release_the_gil(ticks: list[None], name: str) -> None:
    long_call = LONG[name]()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        before = len(ticks)
        long_call()
        if len(ticks) > before:
            return
    pytest.fail(f"{name} never let another thread run")


def test_a_call_that_keeps_the_gil_is_seen(ticks: list[None]) -> None:
    before = len(ticks)
    sum(range(1_000_000))
    assert len(ticks) == before


def test_objects_are_shared_between_threads() -> None:
    plan, wanted = kvr.plan(rank(), rank("n h k[d] v[d]", side="remote")), request(TOKENS, [1], [2])
    expected = [array.tolist() for array in plan.ids(wanted)]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            if [array.tolist() for array in plan.ids(wanted)] != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(kvr.Error):
        call()


LOOPS: dict[str, Callable[[kvr.Plan, kvr.Request], object]] = {
    "formats": lambda plan, wanted: (page(), page().types, repr(page())),
    "layouts": lambda plan, wanted: (rank(), rank().layers, rank().to_bytes()),
    "plans": lambda plan, wanted: kvr.plan(rank(), rank()).local_rows(),
    "ids": lambda plan, wanted: plan.ids(wanted),
    "out": lambda plan, wanted: plan.ids(wanted, buffers(4000)),
    "lists": lambda plan, wanted: plan.lists(wanted),
    "blocks": lambda plan, wanted: kvr.Blocks(np.arange(100)).ids,
    "routes": lambda plan, wanted: only_edge(),
    "errors": lambda plan, wanted: refused(lambda: kvr.plan(rank(), narrower())),
    "refused out": lambda plan, wanted: refused(lambda: plan.ids(wanted, buffers(1))),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_leave_nothing_behind(plan: kvr.Plan, wanted: kvr.Request, name: str) -> None:
    def run(times: int) -> int:
        for _ in range(times):
            LOOPS[name](plan, wanted)
        gc.collect()
        return sys.getallocatedblocks()

    run(20)
    before = run(20)
    after = run(200)
    # A leak of one object a turn would be 200; the interpreter's own caches move by a few.
    assert after - before < 100
