"""Random page formats, held to the oracle's unrolled pages."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvreshard as kvr
from tests.convert import to_format
from tests.oracle.model import Page
from tests.oracle.notation import NotationError, Unrolled, unroll
from tests.strategies import page_pairs, pages

many = settings(max_examples=300, deadline=None)
AXES = {"a": 2, "b": 4}
TYPES = {"k": "u8", "v": "bf16"}


def unrolled(page: Page) -> Unrolled:
    return unroll(page.notation, page.extents, page.types)


def address_map(page: Page) -> object:
    """What a page is, written so that equal maps compare equal. An axis of extent 1 does not move anything."""
    page_, found = unrolled(page), []
    for name, part in sorted(page_.components.items()):
        keys = [axis for axis in sorted(part.index) if part.index[axis].max() > 0]
        rows = sorted(zip(*(part.index[axis].tolist() for axis in keys), part.offsets.tolist(), strict=True))
        found.append((name, page.types[name], keys, rows))
    return page_.page_bytes, found


@many
@given(pages(), st.data())
def test_every_element_is_where_the_loops_put_it(page: Page, data: st.DataObject) -> None:
    fmt, expected = to_format(page), unrolled(page)
    assert fmt.page_bytes == expected.page_bytes
    assert sorted(fmt.components) == sorted(expected.components)
    for name, component in expected.components.items():
        # Offsets of components with nameless loops cannot be asked for by keyword.
        if "" in component.index:
            continue
        for at in data.draw(st.lists(st.integers(0, len(component.offsets) - 1), min_size=1, max_size=8)):
            index = {axis: int(values[at]) for axis, values in component.index.items()}
            assert fmt.offset(name, **index) == component.offsets[at]


@many
@given(pages())
def test_canonical_text_says_the_same(page: Page) -> None:
    fmt = to_format(page)
    used = {axis: extent for axis, extent in page.extents.items() if axis in fmt.canonical}
    again = Page(fmt.canonical, page.extents, page.types)
    try:
        assert unrolled(again).page_bytes == fmt.page_bytes
    except NotationError:
        # Loops of extent 1 are dropped, and then their axes are not in the text.
        again = Page(fmt.canonical, {a: n for a, n in used.items() if n > 1}, page.types)
    assert address_map(again) == address_map(page)
    assert to_format(again).same_bytes_as(fmt)


@many
@given(page_pairs())
def test_equal_if_and_only_if_the_bytes_are(pair: tuple[Page, Page]) -> None:
    one, other = (to_format(page) for page in pair)
    same = address_map(pair[0]) == address_map(pair[1])
    assert one.same_bytes_as(other) == same
    assert (one == other) == same
    assert (one.fingerprint == other.fingerprint) == same
    if same:
        assert hash(one) == hash(other)


WORDS = [
    "a",
    "b",
    "a/2",
    "b/2",
    "b%2",
    "a%1",
    "b/2%2",
    "b%2/2",
    "a / 2",
    "2",
    "0",
    "k[",
    "v[",
    "pad[",
    "]",
    "(",
    ")",
    "%",
]


@settings(max_examples=3000, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join))
@example("b/2 (a k[b%2]) v[b%2]")
@example("a b k[] v[]")
def test_accepts_what_the_oracle_accepts(text: str) -> None:
    """Any words at all: both parsers take the text, or neither does."""
    types = {name: type_ for name, type_ in TYPES.items() if f"{name}[" in text}
    extents = {axis: extent for axis, extent in AXES.items() if axis in text.replace("pad", "")}
    try:
        expected = unroll(text, extents, types)
    except NotationError:
        with pytest.raises(kvr.Error):
            kvr.PageFormat(text, extents=extents, types=types)
        return
    assert kvr.PageFormat(text, extents=extents, types=types).page_bytes == expected.page_bytes
