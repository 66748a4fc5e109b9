"""Formats checked against writers: honest ones, lying ones, quantising ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.probe import ProbeError, Source, WriterMismatch, check_writer, infer
from tests.probed import ATTENTION, Formula, G, declared


@pytest.mark.parametrize("name", ATTENTION)
def test_honest_writers_pass(name: str) -> None:
    formula, notation = ATTENTION[name]
    writer = Formula(formula(G), "bf16", start=512, room=256)
    writer.cache[:] = 7
    writes = check_writer(declared(notation), writer, writer.cache, start=512)
    assert writes == 2 * (2 * 14 + 3)
    assert (writer.cache == 7).all(), "what the cache held is put back"


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("other", ATTENTION)
def test_every_lie_is_found(name: str, other: str) -> None:
    """Any two of these pages have the same length; each writer is tested against each declaration."""
    writer = Formula(ATTENTION[name][0](G), "bf16")
    form = declared(ATTENTION[other][1])
    if name == other:
        check_writer(form, writer, writer.cache)
        return
    with pytest.raises(WriterMismatch) as caught:
        check_writer(form, writer, writer.cache)
    error = caught.value
    assert error.component in {"k", "v"}
    assert error.index is not None
    assert error.declared == form.offset(error.component, **error.index)
    # Where the formula has that element.
    component = next(c for c in writer.page.components if c.name == error.component)
    at = int(component.offsets[error.index["h"], error.index["n"], error.index["d"]])
    assert error.moved == [at, at + 1]
    assert f"has it at byte {error.declared}" in str(error)
    assert f"the writer moves byte {at}, {at + 1}" in str(error)


def test_small_lies_are_found() -> None:
    form = declared("h n k[d] v[d]")

    def lie(change: Callable[[Formula, Mapping[str, np.ndarray]], None]) -> WriterMismatch:
        writer = Formula(formulas.packed_hnd(G), "bf16", room=64)
        with pytest.raises(WriterMismatch) as caught:
            check_writer(form, lambda inputs: change(writer, inputs), writer.cache)
        return caught.value

    # K and V exchanged.
    assert lie(lambda w, i: w({"k": i["v"], "v": i["k"]})).component == "k"
    # The last token is forgotten.
    last = lie(lambda w, i: w({"k": i["k"], "v": np.concatenate([i["v"][:-1], i["v"][:1] * 0])}))
    assert last.index is not None
    assert (last.component, last.index["n"], last.moved) == ("v", 31, [])

    def one_more(writer: Formula, inputs: Mapping[str, np.ndarray]) -> None:
        writer(inputs)
        writer.cache[-1] = writer.cache[0]

    stray = lie(one_more)
    assert stray.moved == [form.page_bytes + 63]
    assert "outside its page" in str(stray)

    def mixed(writer: Formula, inputs: Mapping[str, np.ndarray]) -> None:
        writer(inputs)
        writer.cache[form.page_bytes - 1] = writer.cache[0] ^ writer.cache[2]

    assert "byte 32767 of the page moves with several elements" in str(lie(mixed))


def test_a_writer_that_never_does_the_same_is_no_witness() -> None:
    writer = Formula(formulas.packed_hnd(G), "bf16")
    calls = iter(range(10**6))

    def restless(inputs: Mapping[str, np.ndarray]) -> None:
        writer(inputs)
        writer.cache[17] = next(calls) % 251

    with pytest.raises(ProbeError, match="same bytes twice"):
        check_writer(declared("h n k[d] v[d]"), restless, writer.cache)
    with pytest.raises(ProbeError, match="outside"):
        check_writer(declared("h n k[d] v[d]"), writer, writer.cache, start=2)


def quantising(
    h: int, n: int, d: int, cache: np.ndarray, *, swap: bool = False
) -> Callable[[Mapping[str, np.ndarray]], None]:
    """int8 with one fp32 scale a token and head beside the data, as TRITON_ATTN has it: [K | scale | V | scale]."""
    page = formulas.per_token_head(formulas.Geometry(h, n, d, 1))
    tables = {component.name: component.offsets for component in page.components}

    def write(inputs: Mapping[str, np.ndarray]) -> None:
        for side, scale in (("k", "ks"), ("v", "vs")):
            values = np.swapaxes(inputs[side], 0, 1)
            scales = (np.abs(values).max(axis=-1) / 127).astype(np.float32)
            codes = np.rint(values / scales[..., None]).astype(np.int8).view(np.uint8)
            cache[tables[side]] = codes
            raw = np.ascontiguousarray(scales).view(np.uint8).reshape(h, n, 4)
            target = {"ks": "vs", "vs": "ks"}[scale] if swap else scale
            for byte in range(4):
                cache[tables[target] + byte] = raw[..., byte]

    return write


SOURCES = {
    "k": Source("k"),
    "ks": Source("k", scale=True),
    "v": Source("v"),
    "vs": Source("v", scale=True),
}


def test_quantising_writers_are_checked_by_perturbation() -> None:
    h, n, d = 2, 4, 16
    form = kvr.PageFormat(
        "h n k[d] ks[] v[d] vs[]", h=h, n=n, d=d, types={"k": "i8", "ks": "f32", "v": "i8", "vs": "f32"}
    )
    inputs = {side: {"n": n, "h": h, "d": d} for side in ("k", "v")}
    cache = np.zeros(form.page_bytes, dtype=np.uint8)
    writes = check_writer(form, quantising(h, n, d, cache), cache, sources=SOURCES, inputs=inputs)
    assert writes == 2 + 2 * h * n * d + 2 * h * n
    assert check_writer(form, quantising(h, n, d, cache), cache, sources=SOURCES, inputs=inputs, samples=5) == 2 + 4 * 5

    with pytest.raises(WriterMismatch) as caught:
        check_writer(form, quantising(h, n, d, cache, swap=True), cache, sources=SOURCES, inputs=inputs)
    assert caught.value.component == "ks"
    other = kvr.PageFormat("n h k[d] ks[] v[d] vs[]", h=h, n=n, d=d, types=form.types)
    with pytest.raises(WriterMismatch) as caught:
        check_writer(other, quantising(h, n, d, cache), cache, sources=SOURCES, inputs=inputs)
    assert caught.value.index == {"d": 0, "h": 0, "n": 1}
    with pytest.raises(ProbeError, match="sources need inputs"):
        check_writer(form, quantising(h, n, d, cache), cache, sources=SOURCES)
    fewer = {component: source for component, source in SOURCES.items() if component != "vs"}
    with pytest.raises(ProbeError, match="no source is given for component vs"):
        check_writer(form, quantising(h, n, d, cache), cache, sources=fewer, inputs=inputs)


def test_packed_codes_are_checked_by_perturbation() -> None:
    h, n, d = 2, 4, 32
    form = kvr.PageFormat("k[h n b] ks[h n s]", h=h, n=n, b=d // 2, s=d // 16, types={"k": "i4x2", "ks": "f32"})
    cache = np.zeros(form.page_bytes, dtype=np.uint8)
    data = np.arange(h * n * d // 2).reshape(h, n, d // 2)
    scale_at = h * n * d // 2 + 4 * np.arange(h * n * d // 16).reshape(h, n, d // 16)

    def write(inputs: Mapping[str, np.ndarray]) -> None:
        values = np.swapaxes(inputs["k"], 0, 1).reshape(h, n, d // 16, 16)
        scales = (np.abs(values).max(axis=-1) / 7).astype(np.float32)
        codes = (np.rint(values / scales[..., None]).astype(np.int64) & 15).reshape(h, n, d)
        cache[data] = codes[..., ::2] | codes[..., 1::2] << 4
        raw = np.ascontiguousarray(scales).view(np.uint8).reshape(h, n, d // 16, 4)
        for byte in range(4):
            cache[scale_at + byte] = raw[..., byte]

    sources = {"k": Source("k", {"b": ("d", 2)}), "ks": Source("k", {"s": ("d", 16)}, scale=True)}
    inputs = {"k": {"n": n, "h": h, "d": d}}
    check_writer(form, write, cache, sources=sources, inputs=inputs)
    wrong = kvr.PageFormat("h k[n b] ks[n s]", extents=form.extents, types=form.types)
    with pytest.raises(WriterMismatch):
        check_writer(wrong, write, cache, sources=sources, inputs=inputs)


def test_tensors_are_probed_in_place() -> None:
    torch = pytest.importorskip("torch")
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for device in devices:
        # A cache of 3 pages [B, H, N, 2D], token-major in memory, with a padded page.
        memory = torch.zeros(3, 8 * 4 * 32 + 64, dtype=torch.bfloat16, device=device)
        pages = memory.as_strided((3, 4, 8, 32), (8 * 4 * 32 + 64, 32, 4 * 32, 1))

        def write(inputs: Mapping[str, np.ndarray], pages: Any = pages) -> None:
            for side, place in (("k", slice(0, 16)), ("v", slice(16, 32))):
                values = torch.from_numpy(inputs[side]).to(pages.device, torch.bfloat16)
                pages[1, :, :, place] = values.transpose(0, 1)

        form = kvr.PageFormat("n h k[d] v[d]", h=4, n=8, d=16, dtype="bf16")
        start = (8 * 4 * 32 + 64) * 2
        check_writer(form, write, pages, start=start)
        wrong = kvr.PageFormat("h n k[d] v[d]", extents=form.extents, dtype="bf16")
        with pytest.raises(WriterMismatch) as caught:
            check_writer(wrong, write, pages, start=start)
        assert caught.value.index == {"d": 0, "h": 0, "n": 1}
        inputs = {side: {"n": 8, "h": 4, "d": 16} for side in ("k", "v")}
        assert infer(write, pages, inputs, page_bytes=form.page_bytes, types="bf16", start=start) == form
