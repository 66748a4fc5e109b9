"""Formats asked of writers: honest ones, lying ones, quantising ones, and ones whose pages are no nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.demo.pattern import Page
from kvreshard.probe import NotANest, ProbeError, Source, WriterMismatch, check_writer, infer, marks, page_digest
from kvreshard.probe.sources import element_bytes, order

G = formulas.Geometry(heads=4, tokens=32, head_size=64)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as the bytes of their type, uint8 [..., bytes of an element]."""
    if dtype == "bf16":
        bits = (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif values.dtype == np.float32:
        bits = values.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[dtype])
    else:
        bits = values
    return np.ascontiguousarray(bits).view(np.uint8).reshape(*values.shape, -1)


class Formula:
    """A writer from a closed formula: it knows neither notation nor core. Inputs are [n, h, ...]."""

    def __init__(self, page: Page, dtypes: Mapping[str, str] | str, start: int = 0, room: int = 0) -> None:
        self.page, self.start = page, start
        self.types = {c.name: dtypes if isinstance(dtypes, str) else dtypes[c.name] for c in page.components}
        self.cache = np.zeros(start + page.page_bytes + room, dtype=np.uint8)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> None:
        for component in self.page.components:
            data = stored(inputs[component.name], self.types[component.name])
            # Offsets are [H, N, content]; axes of one index are left out of the inputs.
            offsets = np.swapaxes(component.offsets, 0, 1).reshape(data.shape[:-1])
            for byte in range(data.shape[-1]):
                self.cache[self.start + offsets + byte] = data[..., byte]


class Nest:
    """A writer of a format, for formats that have no formula; places come from the core."""

    def __init__(self, page: kvr.PageFormat) -> None:
        self.page, self.cache = page, np.zeros(page.page_bytes, dtype=np.uint8)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> None:
        for component in self.page.components:
            axes = [axis for axis, _ in self.page.axes(component)]
            width = element_bytes(self.page.types[component])
            have = order(dict(self.page.axes(component)))
            values = np.transpose(inputs[component], [have.index(axis) for axis in axes])
            if values.dtype == np.float32 and self.page.types[component].startswith("f8"):
                data = np.where(values == np.float32(1.1), 0x39, 0xC4).astype(np.uint8)[..., None]
            else:
                data = stored(values, self.page.types[component])
            for byte in range(width):
                self.cache[self.page.offsets(component) + byte] = data[..., byte]


ATTENTION = {
    "packed-hnd": (formulas.packed_hnd, "h n k[d] v[d]"),
    "packed-nhd": (formulas.packed_nhd, "n h k[d] v[d]"),
    "two-slot": (formulas.two_slot_nhd, "k[n h d] v[n h d]"),
    "shuffle": (formulas.aiter_shuffle, "k[h d/8 n d%8] v[h n/8 d n%8]"),
    "rocm": (formulas.rocm_attn, "k[h d/8 n d%8] v[h d n]"),
    "page-16": (formulas.page16, "k[n/16 h d/8 n%16 d%8] v[n/16 h n%16/8 d n%8]"),
    "cpu-vec": (formulas.cpu_vec, "h k[d n] v[n d]"),
}


def declared(notation: str, dtype: str = "bf16", geometry: formulas.Geometry = G) -> kvr.PageFormat:
    return kvr.PageFormat(notation, h=geometry.heads, n=geometry.tokens, d=geometry.head_size, dtype=dtype)


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


@pytest.mark.parametrize("name", ATTENTION)
def test_formats_are_inferred_from_formulas(name: str) -> None:
    formula, notation = ATTENTION[name]
    writer = Formula(formula(G), "bf16", start=128)
    inputs = {side: {"n": G.tokens, "h": G.heads, "d": G.head_size} for side in ("k", "v")}
    found = infer(writer, writer.cache, inputs, page_bytes=writer.page.page_bytes, types="bf16", start=128)
    assert found == declared(notation)
    assert found.canonical == declared(notation).canonical


PRESETS: dict[str, dict[str, int | str]] = {
    "packed-hnd": {"h": 2, "n": 8, "d": 8, "dv": 4},
    "packed-nhd": {"h": 2, "n": 8, "d": 8},
    "packed-plane": {"n": 8, "d": 8},
    "two-slot-nhd": {"h": 2, "n": 8, "d": 8},
    "aiter-shuffle": {"h": 2, "n": 16, "d": 16},
    "rocm-attn": {"h": 3, "n": 8, "d": 16},
    "page-16": {"h": 2, "n": 32, "d": 16},
    "cpu-vec": {"h": 2, "n": 4, "d": 8},
    "cpu-amx": {"h": 2, "n": 32, "d": 32},
}


def renamed(page: kvr.PageFormat) -> dict[str, dict[str, int]]:
    """The axes of each component, its loops without a name as an axis `x_...` of its own."""
    return {c: {axis or f"x_{c}": extent for axis, extent in page.axes(c)} for c in page.components}


def same_places(found: kvr.PageFormat, page: kvr.PageFormat) -> bool:
    """Whether all elements lie alike."""
    for component in page.components:
        names = [axis or f"x_{component}" for axis, _ in page.axes(component)]
        have = [axis for axis, _ in found.axes(component)]
        # An axis of one index may have left no trace.
        offsets, kept = page.offsets(component), [axis for axis in names if axis in have]
        offsets = offsets.reshape([extent for extent, axis in zip(offsets.shape, names, strict=True) if axis in have])
        if not np.array_equal(np.transpose(offsets, [kept.index(axis) for axis in have]), found.offsets(component)):
            return False
    return found.page_bytes == page.page_bytes


class Unnamed(Nest):
    """A nest that is given its loops without a name as an axis `x_...`."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> None:
        given = {}
        for component, axes in renamed(self.page).items():
            have, real = order(axes), order(dict(self.page.axes(component)))
            given[component] = np.transpose(inputs[component], [have.index(axis or f"x_{component}") for axis in real])
        super().__call__(given)


def inferred(page: kvr.PageFormat) -> kvr.PageFormat:
    writer = Unnamed(page)
    return infer(writer, writer.cache, renamed(page), page_bytes=page.page_bytes, types=page.types)


def preset_parameters(name: str) -> dict[str, int | str] | None:
    """Small parameters for a preset, where the usual names will do."""
    if name in PRESETS:
        return PRESETS[name]
    usual: dict[str, int | str] = {"h": 2, "n": 16, "d": 64}
    for drop in ((), ("h",), ("d",), ("h", "d"), ("h", "n"), ("n",), ("h", "n", "d")):
        try:
            kvr.preset(name, **{key: value for key, value in usual.items() if key not in drop})
        except kvr.FormatError:
            continue
        return {key: value for key, value in usual.items() if key not in drop}
    return None


OTHERS: dict[str, dict[str, int | str]] = {
    "mamba1": {"cx": 8, "t": 3, "s": 4},
    "mamba2": {"cx": 8, "cb": 4, "t": 3, "h": 2, "p": 4, "s": 8},
    "gdn": {"cq": 8, "ck": 8, "cv": 8, "t": 3, "h": 2, "dv": 4, "dk": 8},
    "short-conv": {"cx": 8, "t": 3},
    "linear-attention": {"h": 2, "dk": 8, "dv": 4},
}


@pytest.mark.parametrize("name", kvr.presets())
def test_every_preset_is_inferred(name: str) -> None:
    parameters = OTHERS.get(name) or preset_parameters(name)
    assert parameters is not None, f"say in OTHERS what {name} needs"
    page = kvr.preset(name, **parameters)
    found = inferred(page)
    assert same_places(found, page), f"{found} is not {page}"


@pytest.mark.parametrize(
    "notation",
    [
        "h (n k[d] pad[3]) v[n d]",
        "n/2 (h n%2 k[d] pad[5] v[d])",
        "pad[16] (h k[n d] pad[7]) v[d n] pad[1]",
        "n/4 (k[h n%4 d] v[h d n%4])",
        "h (n/2 k[n%2 d] v[d n%2])",
        "(n k[d]) (h v[n d])",
        "d/4 n h k[d%4] v[d%4]",
        "n h d k[] v[]",
        "k[h n%2 d n/2]",
        "h n k[d] (v[] pad[2])",
    ],
)
def test_nests_never_seen_are_inferred(notation: str) -> None:
    page = kvr.PageFormat(
        notation, extents={axis: e for axis, e in (("h", 3), ("n", 8), ("d", 8)) if axis in notation}, dtype="i16"
    )
    assert inferred(page) == page


@st.composite
def nests(draw: st.DrawFn) -> kvr.PageFormat:
    """A random nest of two components over h, n and d, digits and pads among its loops."""
    extents = {"h": draw(st.integers(1, 3)), "n": 2 ** draw(st.integers(0, 3)), "d": 2 ** draw(st.integers(0, 3))}

    def turns(axis: str) -> list[str]:
        cuts = [cut for cut in (2, 4) if extents[axis] % cut == 0 and extents[axis] > cut]
        cut = draw(st.sampled_from([1, *cuts]))
        if cut > 1:
            return [f"{axis}/{cut}", f"{axis}%{cut}"]
        return [axis]

    def pad() -> str:
        return f" pad[{draw(st.integers(1, 5))}]" if draw(st.integers(0, 3)) == 0 else ""

    loops = {axis: turns(axis) for axis in extents}
    shared = draw(st.integers(0, 2))
    every = draw(st.permutations([turn for axis in extents for turn in loops[axis]]))
    inner = list(every[shared:])
    items = [f"{name}[{' '.join(draw(st.permutations(inner)))}]{pad()}" for name in ("k", "v")]
    outer = " ".join(every[:shared])
    dtypes = {name: draw(st.sampled_from(["u8", "bf16", "f32", "i64"])) for name in ("k", "v")}
    return kvr.PageFormat(f"{outer} {items[0]} {items[1]}", extents=extents, types=dtypes)


@settings(max_examples=150, deadline=None)
@given(nests())
def test_random_nests_are_inferred(page: kvr.PageFormat) -> None:
    found = inferred(page)
    assert same_places(found, page), f"{found} is not {page}"
    writer = Nest(page)
    check_writer(page, writer, writer.cache)


def test_what_is_no_nest_is_said_to_be_none() -> None:
    page = formulas.packed_hnd(formulas.Geometry(heads=2, tokens=8, head_size=4))
    inputs = {side: {"n": 8, "h": 2, "d": 4} for side in ("k", "v")}

    def attempt(change: Callable[[np.ndarray], np.ndarray]) -> str:
        """Infers a writer whose places are those of `change` applied to the offsets [H, N, D]."""
        cache = np.zeros(page.page_bytes, dtype=np.uint8)

        def write(given: Mapping[str, np.ndarray]) -> None:
            for component in page.components:
                data, offsets = stored(given[component.name], "bf16"), np.swapaxes(change(component.offsets), 0, 1)
                for byte in range(2):
                    cache[offsets + byte] = data[..., byte]

        with pytest.raises(NotANest) as caught:
            infer(write, cache, inputs, page_bytes=page.page_bytes, types="bf16")
        return str(caught.value)

    # Tokens of odd heads run the other way: where a token is depends on its head.
    def boustrophedon(offsets: np.ndarray) -> np.ndarray:
        turned = offsets.copy()
        turned[1] = offsets[1, ::-1]
        return turned

    assert "depends on another axis" in attempt(boustrophedon)
    # An exchange of channels by exclusive or, as bank swizzles do.
    assert "no digit" in attempt(lambda offsets: offsets[:, [0, 1, 3, 2, 4, 5, 7, 6]])
    # A reversed axis.
    assert "no digit" in attempt(lambda offsets: offsets[..., ::-1])
    # Two elements in one place.
    assert "bytes of the page move" in attempt(lambda offsets: offsets - offsets % 4)


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


def test_first_contact_notices_what_the_plan_does_not() -> None:
    """Source shuffled, destination packed; marks go through formulas and the planner's own rows."""
    geometry = formulas.Geometry(heads=2, tokens=16, head_size=16)
    sides = {}
    for name, formula, notation in (
        ("source", formulas.aiter_shuffle, ATTENTION["shuffle"][1]),
        ("target", formulas.packed_hnd, ATTENTION["packed-hnd"][1]),
    ):
        page = formula(geometry)
        writer = Formula(page, "bf16", start=page.page_bytes)
        form = declared(notation, geometry=geometry)
        region = kvr.Region(0x1000, len(writer.cache))
        layer = kvr.Layer("0", [kvr.Segment(region, form, pages=2)], totals={"h": 2})
        sides[name] = (writer, form, kvr.RankLayout(engine=name, layers=[layer]))
    source, form, there = sides["source"]
    target, wanted, here = sides["target"]
    made = marks(form, seed=3)
    source(made.values)
    plan = kvr.plan(here, there)
    request = kvr.Request((0, 16), [kvr.Blocks([1])], [kvr.Blocks([1])])
    for (to, size, _), (since, _, _) in zip(*plan.lists(request), strict=True):
        target.cache[int(to) - 0x1000 :][: int(size)] = source.cache[int(since) - 0x1000 :][: int(size)]

    def read(page: Page) -> dict[str, np.ndarray]:
        found = {}
        for component in page.components:
            at = np.swapaxes(component.offsets, 0, 1) + page.page_bytes
            bits = target.cache[at].astype(np.uint32) << 16 | target.cache[at + 1].astype(np.uint32) << 24
            found[component.name] = bits.view(np.float32)
        return found

    made.compare(read(target.page))
    start = wanted.page_bytes
    same = page_digest(target.cache, wanted, start=start)
    assert page_digest(source.cache, form, start=start) == same
    # A reader that takes the pages for something else, and elements that change places.
    with pytest.raises(WriterMismatch, match="is read"):
        made.compare(read(formulas.packed_nhd(geometry)))
    k = target.page.components[0].offsets
    for first, second in ((k[0, 0], k[0, 1]), (k[0], k[1])):
        kept = target.cache.copy()
        target.cache[start + first], target.cache[start + second] = kept[start + second], kept[start + first]
        assert page_digest(target.cache, wanted, start=start, samples=512) != page_digest(
            source.cache, form, start=start, samples=512
        )
        target.cache[:] = kept


def test_digests_of_shares_meet_where_both_hold() -> None:
    whole = kvr.PageFormat("h n k[d] v[d]", h=4, n=8, d=16, dtype="i16")
    half = kvr.PageFormat("n h k[d] v[d]", h=2, n=8, d=16, dtype="i16")
    every, part = Nest(whole), Nest(half)
    every(marks(whole).values)
    part(marks(half, first={"h": 2}).values)
    common = {"h": (2, 4)}
    assert page_digest(every.cache, whole, start=0, common=common) == page_digest(
        part.cache, half, start=0, shares={"h": (2, 4)}, common=common
    )
    assert page_digest(every.cache, whole, start=0, common={"h": (0, 2)}) != page_digest(part.cache, half, start=0)
    with pytest.raises(ProbeError, match="not within"):
        page_digest(part.cache, half, start=0, common=common)
