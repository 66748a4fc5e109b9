"""Every case of tests/cases/refusals.toml comes out as it says, through the Python surface."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from tests.stock import handshake

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "cases" / "refusals.toml").read_text())["case"]

PACKED = "h n k[d] v[d]"
SHUFFLE = "k[h d/8 n d%8] v[h n/8 d n%8]"
LAYERS = tuple(f"model.layers.{layer}.attn" for layer in range(4))


def rank(
    notation: str = PACKED,
    *,
    names: tuple[str, ...] = LAYERS,
    heads: int = 8,
    dtype: str = "bf16",
    engine: str = "here",
    tp: tuple[int, int] = (0, 1),
    pages: int = 32,
    **more: Any,
) -> kvr.RankLayout:
    """A rank with a region a layer."""
    page = kvr.PageFormat(notation, h=heads // tp[1], n=16, d=128, dtype=dtype)
    layers = []
    for index, name in enumerate(names):
        region = kvr.Region(1 << 20 | index << 32, pages * page.page_bytes, memory="VRAM")
        layers.append(kvr.Layer(name, [kvr.Segment(region, page, pages=pages)], totals={"h": heads}))
    return kvr.RankLayout(engine=engine, layers=layers, tp=tp, **more)


def stock(**changed: Any) -> kvr.StockHandshake:
    return kvr.StockHandshake.from_bytes(handshake(**changed))


def refused(report: kvr.Report, kind: type[kvr.Error] = kvr.IncompatibleLayout) -> kvr.Error:
    """The error of a report that refuses, which is also what it raises."""
    assert not report.accepted
    assert report.advice == "refuse"
    assert report.strategies == ["refuse"]
    with pytest.raises(kind) as caught:
        report.raise_errors()
    assert str(caught.value) == str(report.errors[0].error)
    return caught.value


def shuffle_peer_without_tag() -> None:
    local, peer = rank(SHUFFLE), stock()
    error = refused(kvr.check(local, peer))
    assert (error.layer, error.local, error.remote) == (LAYERS[0], SHUFFLE, "unknown")
    assert error.remedy is not None
    assert 'assume_untagged="standard"' in error.remedy
    assert f"layer {LAYERS[0]}: local pages are `{SHUFFLE}`, the peer's page format is unknown" in str(error)
    with pytest.raises(kvr.IncompatibleLayout, match="unknown"):
        peer.assume(local)
    # The caller who knows better says so, and is told what it costs.
    report = kvr.check(local, peer, assume_untagged="standard")
    assert report.accepted
    assert report.advice != "direct"
    assert kvr.plan(local, peer.assume(local, assume_untagged="standard")).bytes == 4 * 65536
    refused(kvr.check(rank(dtype="f8e4m3fn"), stock(block_lens=[32768] * 4, block_strides=[32768] * 4)))


def standard_peer_without_tag() -> None:
    for notation, layout in ((PACKED, "LBHNC"), ("n h k[d] v[d]", "LBNHC"), (PACKED, "BLHNC")):
        local, peer = rank(notation), stock(kv_cache_layout=layout)
        report = kvr.check(local, peer)
        assert report.accepted
        assert report.advice == "direct"
        assert len(report.warnings) == 1
        text = str(report.warnings[0])
        assert "stock-7" in text
        assert "FLASH_ATTN" in text
        assert layout in text
        assert "would not be noticed" in text
        plan = kvr.plan(local, peer.assume(local))
        assert (plan.runs, plan.bytes) == (4, 4 * 65536)
        error = refused(kvr.check(local, peer, untagged="refuse"))
        assert error.remote == "unknown"
        assert "page formats" in str(error.remedy)
    # Sizes that do not agree.
    error = refused(kvr.check(rank(), stock(block_lens=[65536, 65536, 65536, 32768])))
    assert error.layer == LAYERS[3]
    assert "65536" in str(error.local)
    assert "32768" in str(error.remote)
    # Rows of a latent cache, packed several layers to a row.
    page = kvr.PageFormat("c[n r]", n=64, r=576, dtype="bf16")
    row = 4 * page.page_bytes
    region = kvr.Region(1 << 20, 8 * row)
    segments = [kvr.Segment(region, page, pages=8, page_stride=row, offset=i * page.page_bytes) for i in range(4)]
    local = kvr.RankLayout(
        engine="mla", layers=[kvr.Layer(name, [one]) for name, one in zip(LAYERS, segments, strict=True)]
    )
    peer = stock(
        kv_caches_base_addr=[1 << 30],
        block_lens=[row],
        block_strides=[row],
        block_size=64,
        region_num_blocks=[8],
        region_group_ids=[0],
        region_names=[LAYERS[0]],
        region_mem_types=["DRAM"],
        region_members=[list(LAYERS)],
        packed_member_layouts={name: (i * page.page_bytes, page.page_bytes) for i, name in enumerate(LAYERS)},
        kv_cache_layout="BLHNC",
        attn_backend_name="FLASHMLA",
    )
    report = kvr.check(local, peer)
    assert report.accepted, report
    assert kvr.plan(local, peer.assume(local)).runs == 1


def same_name_other_interior() -> None:
    local, remote = rank(PACKED), rank(SHUFFLE, engine="there")
    error = refused(kvr.check(local, remote, strategy="direct"))
    assert (error.layer, error.local, error.remote) == (LAYERS[0], f"`{PACKED}`", f"`{SHUFFLE}`")
    assert error.remedy is not None
    assert "a conversion exists" in error.remedy
    with pytest.raises(kvr.IncompatibleLayout, match="a conversion exists") as caught:
        kvr.plan(local, remote, strategy="direct")
    assert str(caught.value) == str(error)


def same_name_other_interior_auto() -> None:
    report = kvr.check(rank(PACKED), rank(SHUFFLE, engine="there"))
    assert report.accepted
    assert report.advice in {"landed", "packed"}
    assert {"landed", "packed"} < set(report.strategies)
    # A peer that cannot help: the receiver converts alone.
    assert kvr.check(rank(PACKED), rank(SHUFFLE), packing=False).advice == "landed"


def two_local_heads_look_alike() -> None:
    local, remote = rank(PACKED, heads=2), rank("k[n h d] v[n h d]", heads=2)
    pages = [side.layers[0].segments[0] for side in (local, remote)]
    assert (pages[0].format.page_bytes, pages[0].page_stride) == (pages[1].format.page_bytes, pages[1].page_stride)
    assert pages[0].format != pages[1].format
    report = kvr.check(local, remote)
    assert report.accepted
    assert report.advice in {"landed", "packed"}
    assert "another arrangement" in str(report.notes[0])


def fp8_encodings() -> None:
    local, remote = rank(dtype="f8e4m3fn"), rank(dtype="f8e4m3fnuz")
    error = refused(kvr.check(local, remote))
    assert error.layer == LAYERS[0]
    assert error.field == "element type of component k"
    assert "f8e4m3fn " in str(error.local)
    assert "f8e4m3fnuz " in str(error.remote)
    with pytest.raises(kvr.IncompatibleLayout, match=r"component k differs: local f8e4m3fn .* remote f8e4m3fnuz"):
        kvr.plan(local, remote)


def head_total_contradiction() -> None:
    page = kvr.PageFormat(PACKED, h=4, n=16, d=128, dtype="bf16")
    region = kvr.Region(1 << 20, page.page_bytes)
    layer = kvr.Layer("layers.3", [kvr.Segment(region, page, pages=1)], totals={"h": 8})
    with pytest.raises(kvr.LayoutError) as caught:
        kvr.RankLayout(engine="e", layers=[layer], tp=(1, 4))
    error = caught.value
    assert error.layer == "layers.3"
    assert error.field == "axis h"
    assert "4 held" in str(error.found)
    assert "8 in all" in str(error.expected)
    assert "tensor-parallel rank 1 of 4" in str(error.expected)


def layer_uncovered() -> None:
    eight = tuple(f"layers.{layer}" for layer in range(8))
    local, remote = rank(names=eight), rank(names=eight[:4] + eight[5:])
    error = refused(kvr.check(local, remote), kvr.MissingLayer)
    assert (error.layer, error.side) == ("layers.4", "remote")
    with pytest.raises(kvr.MissingLayer, match=r"layers\.4"):
        kvr.plan(local, remote)
    with pytest.raises(kvr.MissingLayer, match=r"layers\.4"):
        kvr.route(local=kvr.Engine([local]), remote=kvr.Engine([remote]))
    report = kvr.check(kvr.Engine([local]), kvr.Engine([remote]))
    assert [finding.layer for finding in report.errors] == ["layers.4"]


def layers_in_other_order() -> None:
    local, remote = rank(), rank(names=LAYERS[::-1])
    report = kvr.check(local, remote)
    assert report.findings == []
    local_rows, remote_rows = kvr.plan(local, remote).local_rows(), kvr.plan(local, remote).remote_rows()
    # Layer 0 is the remote's last region.
    assert local_rows[0, 0] == 1 << 20
    assert remote_rows[0, 0] == 1 << 20 | 3 << 32


def one_base_two_views() -> None:
    pool = kvr.Region(1 << 20, 64 * 32768)
    views = [kvr.PageFormat("c[n r]", n=16, r=bytes_ // 16, dtype="u8") for bytes_ in (32768, 19008)]
    for strides in ((32768, 32768), (32768, 19008)):
        layers = [
            kvr.Layer(f"layers.{i}", [kvr.Segment(pool, view, pages=64, page_stride=stride)])
            for i, (view, stride) in enumerate(zip(views, strides, strict=True))
        ]
        both = kvr.RankLayout(engine="e", layers=layers)
        report = kvr.check(both, both)
        assert report.accepted
        assert report.warnings == []
        assert kvr.plan(both, both).bytes == 32768 + 19008


def strides_contradict_format() -> None:
    torch = pytest.importorskip("torch")
    strides = pytest.importorskip("kvreshard.nixl.strides")
    buffers = pytest.importorskip("kvreshard.nixl.buffers")
    page = kvr.PageFormat(PACKED, h=4, n=16, d=8, dtype="bf16")
    # [B, H, N, 2D] seen through a view of token-major memory.
    tensor = torch.zeros(3, 16, 4, 16, dtype=torch.bfloat16).permute(0, 2, 1, 3)
    with pytest.raises(kvr.LayoutError) as caught:
        strides.check("layers.5", buffers.buffer(tensor), page)
    error = caught.value
    assert error.layer == "layers.5"
    assert error.field is not None
    assert str(error.found) != str(error.expected)


def span_wraps() -> None:
    page = kvr.PageFormat(PACKED, h=1, n=16, d=8, dtype="bf16")
    region = kvr.Region(1 << 20, 1 << 40)
    for pages, stride, offset in ((2**32 + 1, 2**32, 0), (2, page.page_bytes, 2**64 - 1000)):
        with pytest.raises(kvr.ArithmeticOverflow) as caught:
            kvr.Segment(region, page, pages=pages, page_stride=stride, offset=offset)
        assert "page_stride" in str(caught.value.field)
    with pytest.raises(kvr.ArithmeticOverflow, match=r"region base \+ region bytes"):
        kvr.Region(2**64 - 4096, 8192)
    # What fits 64 bits but not the region names the layer.
    layer = kvr.Layer("layers.9", [kvr.Segment(region, page, pages=2, page_stride=2**41)])
    with pytest.raises(kvr.LayoutError) as outside:
        kvr.RankLayout(engine="e", layers=[layer])
    assert outside.value.layer == "layers.9"
    assert outside.value.field == "segment end"


def page_stride_too_small() -> None:
    page = kvr.PageFormat(PACKED, h=1, n=16, d=8, dtype="bf16")
    with pytest.raises(kvr.LayoutError) as caught:
        kvr.Segment(kvr.Region(0, 1 << 20), page, pages=2, page_stride=page.page_bytes - 1)
    error = caught.value
    assert (error.field, error.found) == ("page_stride", str(page.page_bytes - 1))
    assert f"{page.page_bytes} bytes" in str(error.expected)


def id_out_of_range() -> None:
    plan = kvr.plan(rank(pages=4), rank(pages=4))
    good = [kvr.Blocks([0])]
    for wrong, side in ((4, "local"), (7, "remote")):
        blocks = [kvr.Blocks([wrong])]
        request = kvr.Request((0, 16), *((blocks, good) if side == "local" else (good, blocks)))
        with pytest.raises(kvr.RequestError) as caught:
            plan.ids(request)
        error = caught.value
        assert (error.side, error.found) == (side, str(wrong))
        assert "4" in str(error.expected)
    with pytest.raises(kvr.RequestError, match="-1"):
        kvr.Blocks([-1])
    with pytest.raises(kvr.RequestError, match=str(2**31)):
        kvr.Blocks(np.array([2**31], dtype=np.int64))
    # 2**31 descriptors cannot be numbered: 2 runs a page of 2**31 - 1 pages.
    sides = []
    for notation in ("h k[n d]", "h k[n d] pad[1]"):
        page = kvr.PageFormat(notation, h=2, n=16, d=1, dtype="u8")
        segment = kvr.Segment(kvr.Region(0, 2**45), page, pages=2**31 - 1)
        sides.append(kvr.RankLayout(engine="e", layers=[kvr.Layer("layers.0", [segment], totals={"h": 2})]))
    plan = kvr.plan(*sides)
    assert plan.runs == 2
    with pytest.raises(kvr.LimitExceeded) as over:
        plan.local_rows()
    assert over.value.limit is not None
    assert int(str(over.value.found)) > over.value.limit


def unequal_block_lists() -> None:
    plan = kvr.plan(rank(), rank())
    request = kvr.Request((0, 48), [kvr.Blocks([3, 1, 4, 2])], [kvr.Blocks([9, 8, 7])])
    local, remote = plan.ids(request)
    assert len(local) == len(remote) == 3 * 4
    assert set(zip(local[:3].tolist(), remote[:3].tolist(), strict=True)) == {(3, 9), (1, 8), (4, 7)}


def garbage_on_the_wire() -> None:
    good = rank().to_bytes()
    source = random.Random(7)
    notation = kvr.PageFormat(PACKED, h=8, n=16, d=128, dtype="bf16").notation.encode()
    long = b"\xdb" + (10 << 20).to_bytes(4, "big") + b"h " * (5 << 20)
    deep = "(" * 10_000 + "k[]" + ")" * 10_000
    head = good[: good.index(b"layers") + len(b"layers")]
    attacks = {
        "random": source.randbytes(4096),
        "cut short": good[: len(good) // 2],
        "2**32 - 1 layers": head + b"\xdd\xff\xff\xff\xff",
        "a notation of 10 MB": good.replace(bytes([0xA0 | len(notation)]) + notation, long),
        "nested 10,000 deep": good.replace(
            bytes([0xA0 | len(notation)]) + notation, b"\xda" + len(deep).to_bytes(2, "big") + deep.encode()
        ),
        "nested msgpack": b"\x92\x01" + b"\x91" * 1_000_000,
    }
    for what, data in attacks.items():
        assert data != good, what
        with pytest.raises((kvr.WireError, kvr.LimitExceeded)) as caught:
            kvr.RankLayout.from_bytes(data)
        assert caught.value.field is not None, what
    with pytest.raises(kvr.WireError, match="byte"):
        kvr.RankLayout.from_bytes(attacks["cut short"])
    with pytest.raises(kvr.LimitExceeded, match="nested parentheses"):
        kvr.PageFormat(deep[: 2 * 16] + "(k[])" + ")" * 32, dtype="u8")


RUN: dict[str, Callable[[], None]] = {
    name.__name__.replace("_", "-"): name
    for name in (
        shuffle_peer_without_tag,
        standard_peer_without_tag,
        same_name_other_interior,
        same_name_other_interior_auto,
        two_local_heads_look_alike,
        fp8_encodings,
        head_total_contradiction,
        layer_uncovered,
        layers_in_other_order,
        one_base_two_views,
        strides_contradict_format,
        span_wraps,
        page_stride_too_small,
        id_out_of_range,
        unequal_block_lists,
        garbage_on_the_wire,
    )
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_case(case: dict[str, Any]) -> None:
    RUN[case["id"]]()


def test_every_case_has_its_test() -> None:
    assert set(RUN) == {case["id"] for case in CASES}
