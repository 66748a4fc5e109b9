"""The oracle against things known otherwise: the writers' formulas, and transfers small enough to work out by hand."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from kvreshard.demo import formulas as f
from kvreshard.demo.fewest import fewest_runs
from kvreshard.demo.formulas import Geometry, Mamba2
from kvreshard.demo.pattern import Page as Written
from tests.oracle.model import Blocks, Group, Layer, Page, Rank, Region, Request, Segment, share
from tests.oracle.notation import Elements, NotationError, elements, unroll
from tests.oracle.transfer import pairs

BF16, FP8 = Geometry(4, 32, 64), Geometry(4, 32, 64, 1)
HN = {"h": 4, "n": 32}
KV = {"k": "bf16", "v": "bf16"}
KV8 = {"k": "f8e4m3fn", "v": "f8e4m3fn"}
FP4 = {"k": "fp4x2", "ks": "f8e4m3fn", "v": "fp4x2", "vs": "f8e4m3fn"}
MAMBA = Mamba2(x=12, b=4, c=4, rows=3, heads=3, head_size=5, state_size=4)

# formula, notation, extents, types, the axes of each component behind heads and states (h and n where not given)
FORMATS: list[tuple[Written, str, dict[str, int], dict[str, str]]] = [
    (f.packed_hnd(BF16), "h n k[d] v[d]", {**HN, "d": 64}, KV),
    (f.packed_hnd(Geometry(4, 32, 64, 2, 48)), "h n k[d] v[dv]", {**HN, "d": 64, "dv": 48}, KV),
    (f.packed_nhd(BF16), "n h k[d] v[d]", {**HN, "d": 64}, KV),
    (f.two_slot_nhd(BF16), "k[n h d] v[n h d]", {**HN, "d": 64}, KV),
    (f.two_slot_hnd(BF16), "k[h n d] v[h n d]", {**HN, "d": 64}, KV),
    (f.aiter_shuffle(BF16), "k[h d/8 n d%8] v[h n/8 d n%8]", {**HN, "d": 64}, KV),
    (f.aiter_shuffle(FP8), "k[h d/16 n d%16] v[h n/16 d n%16]", {**HN, "d": 64}, KV8),
    (f.rocm_attn(BF16), "k[h d/8 n d%8] v[h d n]", {**HN, "d": 64}, KV),
    (f.page16(BF16), "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]", {**HN, "d": 64}, KV),
    (f.cpu_vec(BF16), "h k[d n] v[n d]", {**HN, "d": 64}, KV),
    (f.cpu_amx(BF16), "h k[n/16 d/2 n%16 d%2] v[d/16 n/2 d%16 n%2]", {**HN, "d": 64}, KV),
    (f.nvfp4_flashinfer(FP8), "k[h n b] ks[h n s] v[h n b] vs[h n s]", {**HN, "b": 32, "s": 4}, FP4),
    (
        f.nvfp4_flashinfer(FP8, swizzled=True),
        "k[h n b] ks[h n s] v[h n b] vs[h n/4 s n%4]",
        {**HN, "b": 32, "s": 4},
        FP4,
    ),
    (
        f.nvfp4_flashinfer(Geometry(4, 32, 128), swizzled=True),
        "k[h n b] ks[h n s] v[h n b] vs[h n/4 s n%4]",
        {**HN, "b": 64, "s": 8},
        FP4,
    ),
    (f.nvfp4_msa(FP8), "h k[n b] ks[n s] v[n b] vs[n s]", {**HN, "b": 32, "s": 4}, FP4),
    (
        f.per_token_head(FP8),
        "h n k[d] ks[] v[d] vs[]",
        {**HN, "d": 64},
        {"k": "i8", "ks": "f32", "v": "i8", "vs": "f32"},
    ),
    (
        f.turboquant_aos(FP8, "turboquant_3bit_nc"),
        "n h k[a] kn[] v[a] vs[] vz[]",
        {**HN, "a": 24},
        {"k": "u8", "kn": "f16", "v": "u8", "vs": "f16", "vz": "f16"},
    ),
    (
        f.turboquant_soa(FP8, "turboquant_4bit_nc"),
        "(n h k[a] v[a]) (h kn[n] vs[n] vz[n])",
        {**HN, "a": 32},
        {"k": "u8", "kn": "f16", "v": "u8", "vs": "f16", "vz": "f16"},
    ),
    (
        f.ultraquant(FP8),
        "n h k[b] ks[s] v[b] vs[s]",
        {**HN, "b": 32, "s": 2},
        {"k": "fp4x2", "ks": "f8e8m0", "v": "fp4x2", "vs": "f8e8m0"},
    ),
    (f.mla_rows(32, 40), "c[n r]", {"n": 32, "r": 40}, {"c": "bf16"}),
    (f.mla_fp8_ds(32), "n q[512] sc[4] r[64]", {"n": 32}, {"q": "f8e4m3fn", "sc": "f32", "r": "bf16"}),
    (f.deepseek_v4(64), "c[n r] cs[n s] pad[p]", {"n": 64, "r": 576, "s": 8, "p": 64}, {"c": "u8", "cs": "f8e8m0"}),
    (f.dsa_indexer(64), "k[n d] ks[n]", {"n": 64, "d": 128}, {"k": "f8e4m3fn", "ks": "f32"}),
    (
        f.dsa_indexer(64, tiled=True),
        "k[n/16 d/16 n%16 d%16] ks[n]",
        {"n": 64, "d": 128},
        {"k": "f8e4m3fn", "ks": "f32"},
    ),
    (
        f.mamba2(MAMBA),
        "x[cx t] b[cb t] c[cc t] ssm[h p s]",
        {"cx": 12, "cb": 4, "cc": 4, "t": 3, "h": 3, "p": 5, "s": 4},
        {"x": "bf16", "b": "bf16", "c": "bf16", "ssm": "f32"},
    ),
]


def table(component: Elements) -> np.ndarray:
    """Offsets as [H, N, content...]: the sharded axis, states, then the other axes in order of their names."""
    sharded = [axis for axis in ("h", "cx", "cb", "cc") if axis in component.index]
    axes = [*sharded, "n"] if "n" in component.index else sharded
    content = sorted(set(component.index) - set(axes))
    shape = [int(component.index[axis].max()) + 1 for axis in axes + content]
    filled = np.full(shape, -1, dtype=np.int64)
    filled[tuple(component.index[axis] for axis in axes + content)] = component.offsets
    if not sharded:
        filled = filled[None]
    return filled if "n" in component.index else filled[:, None]


@pytest.mark.parametrize(("page", "notation", "extents", "types"), FORMATS, ids=lambda v: getattr(v, "name", ""))
def test_notations_say_what_the_writers_do(
    page: Written, notation: str, extents: dict[str, int], types: dict[str, str]
) -> None:
    unrolled = unroll(notation, extents, types)
    assert unrolled.page_bytes == page.page_bytes
    assert unrolled.components.keys() == {component.name for component in page.components}
    for component in page.components:
        mine = unrolled.components[component.name]
        assert mine.element_bytes == component.element_bytes
        assert np.array_equal(table(mine), component.offsets), component.name


@pytest.mark.parametrize(
    ("notation", "extents"),
    [
        ("k[n", {"n": 4}),
        ("k[n] v", {"n": 4}),
        ("n", {"n": 4}),
        ("", {}),
        ("k[n] n v[]", {"n": 4}),
        ("(k[n]", {"n": 4}),
        ("k[n])", {"n": 4}),
        ("k[n] k[n]", {"n": 4}),
        ("k[n/3]", {"n": 4}),
        ("k[n/0]", {"n": 4}),
        ("k[n/]", {"n": 4}),
        ("k[0]", {}),
        ("k[2n]", {"n": 4}),
        ("k[n n]", {"n": 4}),
        ("k[n/2]", {"n": 4}),
        ("k[n/2 n%4]", {"n": 8}),
        ("n k[n]", {"n": 4}),
        ("k[n]", {}),
        ("k[n]", {"n": 4, "d": 2}),
        ("k[n]", {"n": 0}),
        ("k[pad]", {"pad": 4}),
        ("w[n]", {"n": 4}),
        ("k[n] ! ", {"n": 4}),
    ],
)
def test_refuses(notation: str, extents: dict[str, int]) -> None:
    with pytest.raises(NotationError):
        elements(notation, extents, {"k": "u8", "v": "u8"})


def test_nameless_loops_are_one_axis() -> None:
    outer = elements("2 k[n 3]", {"n": 2}, {"k": "u8"})["k"]
    assert outer.index[""].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert outer.index["n"].tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert "" not in elements("1 k[n]", {"n": 2}, {"k": "u8"})["k"].index


def test_holes_and_sizes() -> None:
    page = unroll("n pad[3] (2 k[] pad[1]) v[]", {"n": 2}, {"k": "u8", "v": "bf16"})
    assert page.components["k"].offsets.tolist() == [3, 5, 12, 14]
    assert page.components["v"].offsets.tolist() == [7, 16]
    assert page.page_bytes == 18


def rank(page: Page, pages: int = 8, *, base: int = 0, stride: int | None = None, **more: object) -> Rank:
    """One layer of one segment; heads 0.. unless `holds` says otherwise."""
    size = unroll(page.notation, page.extents, page.types).page_bytes
    fields = {name: more.pop(name) for name in ("holds", "group", "totals") if name in more}
    holds = fields.pop("holds", {})
    segment = Segment(0, page, 0, pages, stride or size, holds)  # type: ignore[arg-type]
    layer = Layer("a", (segment,), **fields)  # type: ignore[arg-type]
    return Rank((Region(base, pages * (stride or size)),), (layer,), **more)  # type: ignore[arg-type]


def rows(n: int, r: int = 1) -> Page:
    return Page("c[n r]", {"n": n, "r": r}, {"c": "u8"})


def moved(local: Rank, remote: Rank, request: Request) -> dict[int, int]:
    """Remote byte by local byte."""
    here, there, _ = pairs(local, remote, request).by_byte()
    return dict(zip(here.tolist(), there.tolist(), strict=True))


def test_tokens_pair_by_number_not_by_place_in_the_list() -> None:
    request = Request((5, 9), (Blocks((3, 1), 4),), (Blocks((7, 0, 2), 0),))
    got = moved(rank(rows(4)), rank(rows(4), base=1000), request)
    assert got == {13: 1001, 14: 1002, 15: 1003, 4: 1008}


def test_pages_that_do_not_divide() -> None:
    request = Request((0, 6), (Blocks((0, 1, 2)),), (Blocks((1, 0)),))
    got = moved(rank(rows(2)), rank(rows(3), base=100), request)
    assert got == {0: 103, 1: 104, 2: 105, 3: 100, 4: 101, 5: 102}
    local, remote, lengths = pairs(rank(rows(2)), rank(rows(3), base=100), request).runs()
    assert (local.tolist(), remote.tolist(), lengths.tolist()) == ([0, 3], [103, 100], [3, 3])
    inside = pairs(rank(rows(2)), rank(rows(3), base=100), request).runs(inside_pages=True)
    assert inside[2].tolist() == [2, 1, 1, 2]
    joined = Request((0, 6), (Blocks((0, 1)),), (Blocks((0, 1, 2)),))
    assert pairs(rank(rows(3)), rank(rows(2), base=100), joined).runs()[2].tolist() == [6]
    assert pairs(rank(rows(3)), rank(rows(2), base=100), joined).runs(inside_pages=True)[2].tolist() == [2, 1, 1, 2]


def test_blocks_of_several_pages() -> None:
    remote = rank(rows(2), base=100, groups=(Group(pages_per_block=2),))
    request = Request((0, 8), (Blocks((1, 0)),), (Blocks((3, 0)),))
    got = moved(rank(rows(4)), remote, request)
    assert got == {4: 112, 5: 113, 6: 114, 7: 115, 0: 100, 1: 101, 2: 102, 3: 103}


@pytest.mark.parametrize(
    ("states", "tokens", "wanted"),
    [(Fraction(4), (8, 17), [2, 3, 4]), (Fraction(1, 2), (1, 3), [2, 3, 4, 5]), (Fraction(1), (1, 3), [1, 2])],
)
def test_tokens_to_a_state(states: Fraction, tokens: tuple[int, int], wanted: list[int]) -> None:
    local, remote = (rank(rows(8), base=base, groups=(Group(tokens_per_state=states),)) for base in (0, 100))
    got = moved(local, remote, Request(tokens, (Blocks((0,)),), (Blocks((0,)),)))
    assert got == {state: 100 + state for state in wanted}


def test_context_parallel_ranks_deal_tokens() -> None:
    remote = rank(rows(4), base=100, cp=(1, 2), interleave=2)
    # Virtual block of 8 tokens from token 8: rank 1 holds 10, 11, 14, 15.
    request = Request((9, 15), (Blocks((0, 1, 2, 3), 0),), (Blocks((5,), 8),))
    assert moved(rank(rows(4)), remote, request) == {10: 120, 11: 121, 14: 122}


def test_states_pair_whole() -> None:
    page = Page("ssm[h p]", {"h": 2, "p": 2}, {"ssm": "u8"})
    whole = Page("ssm[h p]", {"h": 4, "p": 2}, {"ssm": "u8"})
    local = rank(page, groups=(Group("state"),), holds={"h": (2, 4)}, totals={"h": 4})
    remote = rank(whole, base=100, groups=(Group("state"),), holds={"h": (0, 4)}, totals={"h": 4})
    got = moved(local, remote, Request((40, 50), (Blocks((1,)),), (Blocks((2,)),)))
    assert got == {4: 120, 5: 121, 6: 122, 7: 123}


def test_planes_hold_one_head_each() -> None:
    plane = Page("n k[d]", {"n": 2, "d": 2}, {"k": "u8"})
    planes = tuple(Segment(0, plane, 16 * head, 4, 4, {"h": (head, head + 1)}) for head in range(2))
    remote = Rank((Region(1000, 32),), (Layer("a", planes, totals={"h": 2}),))
    local = rank(Page("n h k[d]", {"h": 2, "n": 2, "d": 2}, {"k": "u8"}), holds={"h": (0, 2)}, totals={"h": 2})
    got = pairs(local, remote, Request((0, 2), (Blocks((0,)),), (Blocks((3,)),))).runs()
    assert [column.tolist() for column in got] == [[0, 2, 4, 6], [1012, 1028, 1014, 1030], [2, 2, 2, 2]]


def test_runs_stay_in_regions() -> None:
    segments = tuple(Segment(i, rows(2), 0, 1, 2, {}) for i in range(2))
    layers = tuple(Layer(str(i), (segment,)) for i, segment in enumerate(segments))
    remote = Rank((Region(100, 2), Region(102, 2)), layers)
    local = Rank((Region(0, 4),), tuple(Layer(str(i), (Segment(0, rows(2), 2 * i, 1, 2, {}),)) for i in range(2)))
    request = Request((0, 2), (Blocks((0,)),), (Blocks((0,)),))
    assert pairs(local, remote, request).runs()[2].tolist() == [2, 2]
    assert pairs(local, dataclasses.replace(local, regions=(Region(100, 4),)), request).runs()[2].tolist() == [4]


def test_share() -> None:
    assert [share(r, 3, 8) for r in range(3)] == [(0, 2), (2, 5), (5, 8)]
    assert [share(r, 4, 2) for r in range(4)] == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_two_minima_agree() -> None:
    """The demonstration counts elements, the oracle counts bytes."""
    shuffled = Page("k[h d/8 n d%8] v[h n/8 d n%8]", {"h": 2, "n": 16, "d": 64}, KV)
    packed = Page("h n k[d] v[d]", {"h": 4, "n": 32, "d": 64}, KV)
    local = rank(shuffled, holds={"h": (2, 4)}, totals={"h": 4})
    remote = rank(packed, base=1 << 20, holds={"h": (0, 4)}, totals={"h": 4})
    found = pairs(local, remote, Request((3, 60), (Blocks((3, 0, 5, 1)),), (Blocks((2, 6)),)))
    mine = found.runs(inside_pages=True)
    demo = fewest_runs(
        found.local, found.remote, found.size, local_pages=found.local_page, remote_pages=found.remote_page
    )
    for one, other in zip(mine, (demo.local, demo.remote, demo.lengths), strict=True):
        assert np.array_equal(one, other)
