"""Values of the native module: equality, pickles, representations; plans of parts."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.bindings.given import page, rank


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


def test_what_groups_say_of_blocks() -> None:
    layout = samples()["RankLayout"]
    # States; two pages of 16 tokens on each of two ranks; two pages without a layer, of a quarter of a token.
    assert layout.tokens_per_block == [None, 64, 1]


def test_pages_of_a_plan() -> None:
    plan = kvr.plan(rank(layers=3), rank(layers=3, side="remote"))
    assert plan.pages == (3, 3)
    assert plan.pages_alike is True
