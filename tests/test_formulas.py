"""The demonstration's formulas against offsets worked out by hand from each writer's code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvreshard.demo import formulas as f
from kvreshard.demo.formulas import Geometry, Mamba2
from kvreshard.demo.pattern import Page, global_tokens

BF16 = Geometry(heads=8, tokens=16, head_size=128)
FP8 = Geometry(heads=8, tokens=16, head_size=128, element_bytes=1)
CPU = Geometry(heads=8, tokens=32, head_size=128)
SPARSE = Geometry(heads=8, tokens=128, head_size=128)
MSA = Geometry(heads=4, tokens=128, head_size=128)
MAMBA = Mamba2(x=2048, b=256, c=256, rows=3, heads=32, head_size=64, state_size=128)

# page, its bytes, {component: (h, n, content...)}, offsets. Channel 70 is byte 35 and scale 4 of the 4-bit formats.
WORKED: list[tuple[Page, int, dict[str, tuple[tuple[int, ...], int]]]] = [
    (f.packed_hnd(BF16), 65536, {"k": ((3, 5, 70), 27276), "v": ((3, 5, 70), 27532)}),
    (f.packed_nhd(BF16), 65536, {"k": ((3, 5, 70), 22156), "v": ((3, 5, 70), 22412)}),
    (f.head_plane(Geometry(1, 16, 128)), 8192, {"k": ((0, 5, 70), 2700), "v": ((0, 5, 70), 2956)}),
    (f.two_slot_nhd(BF16), 65536, {"k": ((3, 5, 70), 11148), "v": ((3, 5, 70), 43916)}),
    (f.aiter_shuffle(BF16), 65536, {"k": ((3, 5, 70), 14428), "v": ((3, 5, 70), 46186)}),
    (f.aiter_shuffle(FP8), 32768, {"k": ((3, 5, 70), 7254), "v": ((3, 5, 70), 23653)}),
    (f.rocm_attn(BF16), 65536, {"k": ((3, 5, 70), 14428), "v": ((3, 5, 70), 47306)}),
    (f.page16(SPARSE), 524288, {"k": ((3, 21, 70), 47196), "v": ((3, 21, 70), 308330)}),
    (f.cpu_vec(CPU), 131072, {"k": ((3, 5, 70), 53642), "v": ((3, 5, 70), 58764)}),
    (f.cpu_amx(CPU), 131072, {"k": ((3, 5, 70), 51412), "v": ((3, 5, 70), 61594)}),
    (
        f.nvfp4_flashinfer(BF16),
        18432,
        {"k": ((3, 5, 35), 3427), "ks": ((3, 5, 4), 8620), "v": ((3, 5, 35), 12643), "vs": ((3, 5, 4), 17836)},
    ),
    (
        f.nvfp4_flashinfer(BF16, swizzled=True),
        18432,
        {"k": ((3, 5, 35), 3427), "ks": ((3, 5, 4), 8620), "v": ((3, 5, 35), 12643), "vs": ((3, 5, 4), 17841)},
    ),
    (
        f.nvfp4_msa(MSA),
        73728,
        {"k": ((3, 21, 35), 56675), "ks": ((3, 21, 4), 63660), "v": ((3, 21, 35), 65891), "vs": ((3, 21, 4), 72876)},
    ),
    (
        f.per_token_head(FP8),
        33792,
        {"k": ((3, 5, 70), 14062), "ks": ((3, 5), 14120), "v": ((3, 5, 70), 14194), "vs": ((3, 5), 14252)},
    ),
    (
        f.per_token_head(FP8, data_bytes=64),
        17408,
        {"k": ((3, 5, 35), 7243), "ks": ((3, 5), 7272), "v": ((3, 5, 35), 7311), "vs": ((3, 5), 7340)},
    ),
    (
        f.turboquant_aos(FP8),
        25088,
        {"k": ((3, 5, 70), 8498), "v": ((3, 5, 35), 8591), "vs": ((3, 5), 8620), "vz": ((3, 5), 8622)},
    ),
    (
        f.turboquant_soa(FP8),
        25088,
        {"k": ((3, 5, 70), 8326), "v": ((3, 5, 35), 8419), "vs": ((3, 5), 24778), "vz": ((3, 5), 24810)},
    ),
    (f.mla_rows(64), 73728, {"c": ((0, 5, 70), 5900)}),
    (f.mla_fp8_ds(64), 64 * 656, {"sc": ((0, 1, 0), 656 + 512), "r": ((0, 1, 0), 656 + 528)}),
    (f.deepseek_v4(64), 37440, {"c": ((0, 63, 575), 36863), "cs": ((0, 63, 7), 37375)}),
    (f.dsa_indexer(64), 8448, {"k": ((0, 5, 70), 710), "ks": ((0, 5), 8212)}),
    (f.dsa_indexer(64, tiled=True), 8448, {"k": ((0, 21, 70), 2048 + 80 + 1024 + 6), "ks": ((0, 21), 8276)}),
    (
        f.mamba2(MAMBA),
        15360 + 1048576,
        {"b": ((0, 0, 0), 12288), "c": ((0, 0, 0), 13824), "ssm": ((0, 0, 0, 0), 15360)},
    ),
]

OTHERS = [
    f.two_slot_hnd(BF16),
    f.packed_hnd(Geometry(2, 16, 192, head_size_v=128)),
    f.packed_nhd(Geometry(2, 16, 192, head_size_v=128)),
    f.nvfp4_flashinfer(BF16, token_major=True, swizzled=True),
    f.per_token_head(FP8, token_major=True),
    f.turboquant_aos(FP8, "turboquant_3bit_nc"),
    f.turboquant_soa(FP8, "turboquant_4bit_nc"),
    f.turboquant_soa(FP8, "turboquant_k3v4_nc"),
    f.ultraquant(FP8),
]
PAGES = [page for page, _, _ in WORKED] + OTHERS


@pytest.mark.parametrize(
    ("page", "page_bytes", "elements"), WORKED, ids=lambda v: v.name if isinstance(v, Page) else ""
)
def test_worked_offsets(page: Page, page_bytes: int, elements: dict[str, tuple[tuple[int, ...], int]]) -> None:
    assert page.page_bytes == page_bytes
    for name, (index, offset) in elements.items():
        assert page.component(name).offsets[index] == offset, name


@pytest.mark.parametrize(
    ("dtype", "slot"),
    [
        ("turboquant_k8v4", 196),
        ("turboquant_4bit_nc", 134),
        ("turboquant_k3v4_nc", 118),
        ("turboquant_3bit_nc", 102),
    ],
)
def test_turboquant_slots(dtype: str, slot: int) -> None:
    assert f.TurboQuant.named(dtype, 128).slot == slot


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_elements_lie_apart_and_inside(page: Page) -> None:
    used = np.zeros(page.page_bytes, dtype=np.int64)
    for component in page.components:
        for byte in range(component.element_bytes):
            np.add.at(used, component.offsets.ravel() + byte, 1)
    assert used.max() == 1
    # Only the pages whose size is rounded up have bytes that nobody writes.
    holes = {"DeepSeek-V4": 64}.get(page.name, 0)
    assert page.page_bytes - used.sum() == holes


def test_page16_of_16_tokens_is_aiter_shuffle() -> None:
    one, other = f.page16(BF16), f.aiter_shuffle(BF16)
    for name in ("k", "v"):
        assert np.array_equal(one.component(name).offsets, other.component(name).offsets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_written_pages_read_back(page: Page) -> None:
    row = page.page_bytes + 96
    memory = np.full((3, row), 0xEE, dtype=np.uint8)
    pages = memory[:, 32 : 32 + page.page_bytes]
    written = page.fill(pages, [2, 0], layer=3, seed=7, first_token=page.states * 4)
    assert written == 2 * sum(c.offsets.size * c.element_bytes for c in page.components)
    verdict = page.check(pages, [2, 0], layer=3, seed=7, first_token=page.states * 4)
    assert verdict.ok, str(verdict.first)
    assert verdict.elements == 2 * sum(c.offsets.size for c in page.components)
    assert (memory[1] == 0xEE).all()
    assert (memory[:, :32] == 0xEE).all()
    assert (memory[:, -64:] == 0xEE).all()


@pytest.mark.parametrize(
    "change", [{"layer": 4}, {"seed": 8}, {"first_token": 16}, {"held": (8, 16)}, {"ids": [1, 0]}], ids=str
)
def test_every_coordinate_counts(change: dict[str, object]) -> None:
    page = f.packed_hnd(BF16)
    pages = np.zeros((2, page.page_bytes), dtype=np.uint8)
    said: dict[str, object] = {"ids": [0, 1], "layer": 3, "seed": 7, "first_token": 0, "held": (0, 8)}
    fill: Callable[..., int] = page.fill
    fill(pages, **said)
    verdict = page.check(pages, **(said | change))  # type: ignore[arg-type]
    # 2-byte elements agree by chance once in 65536.
    assert verdict.wrong > 0.999 * verdict.elements


@pytest.mark.parametrize("page", [f.packed_hnd(FP8), f.cpu_vec(CPU), f.mamba2(MAMBA)], ids=lambda page: page.name)
def test_swapped_neighbours_are_found(page: Page) -> None:
    pages = np.zeros((1, page.page_bytes), dtype=np.uint8)
    page.fill(pages, [0], layer=0, seed=1)
    component = page.components[-1]
    last = component.offsets.reshape(component.heads, component.states, -1)[-1, -1]
    size = component.element_bytes
    a, b = (pages[0, at : at + size].copy() for at in last[-2:])
    assert not np.array_equal(a, b)
    pages[0, last[-2] : last[-2] + size], pages[0, last[-1] : last[-1] + size] = b, a
    verdict = page.check(pages, [0], layer=0, seed=1)
    assert verdict.wrong == 2
    assert verdict.first is not None
    assert (verdict.first.component, verdict.first.token) == (component.name, component.states - 1)
    assert (verdict.first.head, verdict.first.channel) == (component.heads - 1, component.channels - 2)
    assert (verdict.first.expected, verdict.first.found) == (a.tobytes(), b.tobytes())


def test_formats_agree_on_an_element() -> None:
    """The bytes of an element depend on what it is, not on where a format puts it."""
    one, other = f.turboquant_soa(FP8), f.turboquant_aos(FP8)
    pages = np.zeros((2, one.page_bytes), dtype=np.uint8)
    one.fill(pages[:1], [0], layer=2, seed=5)
    for component in one.components:
        for byte in range(component.element_bytes):
            there = other.component(component.name).offsets + byte
            pages[1, there] = pages[0, component.offsets + byte]
    assert other.check(pages, [1], layer=2, seed=5).ok


def test_interval_and_context_parallel() -> None:
    whole, half = f.mla_rows(16, 32), f.mla_rows(8, 32)
    pages = np.zeros((4, whole.page_bytes), dtype=np.uint8)
    ranks = np.zeros((2, 4, half.page_bytes), dtype=np.uint8)
    whole.fill(pages, [3, 1], layer=0, seed=0, first_token=32)
    for rank in range(2):
        half.fill(ranks[rank], [0, 2], layer=0, seed=0, first_token=32, cp=(rank, 2), interleave=4)
    assert global_tokens(8, 32, (1, 2), 4).tolist() == [36, 37, 38, 39, 44, 45, 46, 47]
    table = ranks[1, 0].reshape(8, 64)
    assert np.array_equal(table[:4], pages[3].reshape(16, 64)[4:8])
    assert np.array_equal(table[4:], pages[3].reshape(16, 64)[12:16])

    part = np.zeros_like(pages)
    assert whole.fill(part, [3, 1], layer=0, seed=0, first_token=32, tokens=(40, 50)) == 10 * 64
    kept = np.zeros((4, 16), dtype=bool)
    kept[3, 8:], kept[1, :2] = True, True
    assert np.array_equal(part.reshape(4, 16, 64), pages.reshape(4, 16, 64) * kept[..., None])

    pages[1] = 0
    assert whole.check(pages, [3, 1], layer=0, seed=0, first_token=32, tokens=(32, 48)).ok
    verdict = whole.check(pages, [3, 1], layer=0, seed=0, first_token=32, tokens=(40, 50))
    assert (verdict.elements, verdict.wrong) == (10 * 32, 2 * 32)
    assert verdict.first is not None
    assert verdict.first.token == 48


def test_addresses() -> None:
    page = f.aiter_shuffle(BF16)
    at = page.addresses("v", [10_000_000, 20_000_000], states=[5, 21], heads=[3, 0])
    assert at.shape == (2, 2, 128)
    assert at[0, :, 70].tolist() == [10_046_186, 20_046_186]


@pytest.mark.parametrize("bad", [{"ids": [2]}, {"ids": [-1]}, {"held": (0, 4)}])
def test_refuses_pages_that_do_not_fit(bad: dict[str, object]) -> None:
    page = f.packed_hnd(BF16)
    pages = np.zeros((2, page.page_bytes), dtype=np.uint8)
    fill: Callable[..., int] = page.fill
    with pytest.raises((IndexError, ValueError)):
        fill(pages, **({"ids": [0], "layer": 0, "seed": 0} | bad))
    with pytest.raises(ValueError, match="uint8"):
        page.fill(pages[:, 1:], [0], layer=0, seed=0)
