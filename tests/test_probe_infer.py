"""Formats inferred from writers, and pages that are no nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.probe import NotANest, check_writer, infer
from kvreshard.probe.sources import order
from tests.probed import ATTENTION, OTHERS, Formula, G, Nest, declared, preset_parameters, stored


@pytest.mark.parametrize("name", ATTENTION)
def test_formats_are_inferred_from_formulas(name: str) -> None:
    formula, notation = ATTENTION[name]
    writer = Formula(formula(G), "bf16", start=128)
    inputs = {side: {"n": G.tokens, "h": G.heads, "d": G.head_size} for side in ("k", "v")}
    found = infer(writer, writer.cache, inputs, page_bytes=writer.page.page_bytes, types="bf16", start=128)
    assert found == declared(notation)
    assert found.canonical == declared(notation).canonical


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
