"""Marks that outlive a quantiser, by formulas: what it keeps passes, and every way to be wrong is told."""

from __future__ import annotations

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.probe import ProbeError, Source, WriterMismatch, marks
from tests.quantised import E4M3FNUZ, Nvfp4, PerTokenHead

H, N, D = 4, 16, 64
GEOMETRY = formulas.Geometry(H, N, D, 1)
TOKENS = {"k": Source("k"), "ks": Source("k", scale=True), "v": Source("v"), "vs": Source("v", scale=True)}
BLOCKS = {
    "k": Source("k", {"b": ("d", 2)}),
    "ks": Source("k", {"s": ("d", 16)}, scale=True),
    "v": Source("v", {"b": ("d", 2)}),
    "vs": Source("v", {"s": ("d", 16)}, scale=True),
}
INT8 = kvr.PageFormat("h n k[d] ks[] v[d] vs[]", h=H, n=N, d=D, types={"k": "i8", "ks": "f32", "v": "i8", "vs": "f32"})
FP4 = kvr.PageFormat(
    "k[h n b] ks[h n s] v[h n b] vs[h n s]",
    h=H,
    n=N,
    b=D // 2,
    s=D // 16,
    types={"k": "fp4x2", "ks": "f8e4m3fn", "v": "fp4x2", "vs": "f8e4m3fn"},
)


def page_of(writer: PerTokenHead | Nvfp4, values: dict[str, np.ndarray]) -> np.ndarray:
    page = np.zeros(writer.page.page_bytes, np.uint8)
    writer.write(page, values)
    return page


@pytest.mark.parametrize("seed", range(20))
def test_what_a_quantiser_keeps_passes(seed: int) -> None:
    for writer, form, sources in (
        (PerTokenHead(H, N, D), INT8, TOKENS),
        (Nvfp4(formulas.nvfp4_flashinfer(GEOMETRY)), FP4, BLOCKS),
        (Nvfp4(formulas.nvfp4_flashinfer(GEOMETRY, swizzled=True)), FP4, BLOCKS),
        (Nvfp4(formulas.nvfp4_msa(GEOMETRY)), FP4, BLOCKS),
    ):
        made = marks(form, seed=seed, sources=sources)
        assert {name: values.shape for name, values in made.values.items()} == {"k": (N, H, D), "v": (N, H, D)}
        made.compare(writer.read(page_of(writer, dict(made.values))))


def test_marks_differ_where_scales_do() -> None:
    values = marks(FP4, seed=3, sources=BLOCKS).values["k"].reshape(N, H, D // 16, 16)
    each = np.abs(values).max(axis=-1) / np.abs(values).min(axis=-1)
    assert set(each.ravel()) <= {1.0, 4.0}, "one scale covers only magnitudes that it can hold"
    assert len(np.unique(np.abs(values))) == 6
    whole = marks(FP4, seed=3, sources=BLOCKS)
    half = kvr.PageFormat(FP4.notation, extents={**FP4.extents, "h": 2}, types=FP4.types)
    part = marks(half, seed=3, first={"h": 2}, sources=BLOCKS)
    np.testing.assert_array_equal(part.values["v"], whole.values["v"][:, 2:])


def test_every_way_to_be_wrong_is_told() -> None:
    linear = Nvfp4(formulas.nvfp4_flashinfer(GEOMETRY))
    made = marks(FP4, seed=7, sources=BLOCKS)
    page = page_of(linear, dict(made.values))
    # V scales swizzled on one side only; pages of another arrangement; scales of another encoding, and codes of K as V.
    for reader, component in (
        (Nvfp4(formulas.nvfp4_flashinfer(GEOMETRY, swizzled=True)), "v"),
        (Nvfp4(formulas.nvfp4_msa(GEOMETRY)), "k"),
        (Nvfp4(formulas.nvfp4_flashinfer(GEOMETRY), E4M3FNUZ), "k"),
    ):
        with pytest.raises(WriterMismatch, match="was written") as caught:
            made.compare(reader.read(page))
        assert caught.value.component == component
    found = linear.read(page)
    with pytest.raises(WriterMismatch):
        made.compare({"k": found["v"], "v": found["k"]})
    with pytest.raises(WriterMismatch):
        marks(FP4, seed=8, sources=BLOCKS).compare(found)
    lost = found["k"].copy()
    lost[3, 1, 5] = np.nan
    with pytest.raises(WriterMismatch, match=r"input k, element \(3, 1, 5\): .* nan is read; 1 of"):
        made.compare({**found, "k": lost})

    # A scale that stands where the other's should.
    honest, swapped = PerTokenHead(H, N, D), PerTokenHead(H, N, D, swap=True)
    made = marks(INT8, seed=7, sources=TOKENS)
    with pytest.raises(WriterMismatch):
        made.compare(swapped.read(page_of(honest, dict(made.values))))


def test_sources_must_fit() -> None:
    with pytest.raises(ProbeError, match="no source is given for component vs"):
        marks(INT8, sources={name: source for name, source in TOKENS.items() if name != "vs"})
    with pytest.raises(ProbeError, match="axis d has two extents"):
        marks(INT8, sources={**TOKENS, "v": Source("k", {"d": ("d", 2)})})
    with pytest.raises(ProbeError, match="bare number"):
        marks(kvr.PageFormat("n k[2 d]", n=4, d=8, dtype="i8"), sources={"k": Source("k")})
