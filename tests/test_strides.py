"""Which tensors can be pages of a format, by their shape and strides, and what is said of those that cannot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

import kvreshard as kvr

pytest.importorskip("msgspec")

from kvreshard.nixl import strides
from kvreshard.nixl.buffers import buffer
from kvreshard.nixl.errors import TensorMismatch
from tests.told import told

Array = npt.NDArray[np.uint16]


def form(notation: str, **extents: int) -> kvr.PageFormat:
    return kvr.PageFormat(notation, extents=extents, dtype="bf16")


def pages(*shape: int, order: Sequence[int] | None = None) -> Array:
    """Pages of 16-bit elements, whose axes lie in memory in another `order`."""
    order = range(len(shape)) if order is None else order
    made: Array = np.zeros([shape[axis] for axis in order], np.uint16).transpose(np.argsort(order))
    return made


def strided(shape: Sequence[int], steps: Sequence[int], start: int = 0) -> Array:
    """Pages with these strides, in elements."""
    memory = np.zeros(4096, np.uint16)
    made: Array = np.lib.stride_tricks.as_strided(memory[start:], shape, [step * 2 for step in steps])
    return made


PACKED = form("h n k[d] v[d]", h=4, n=16, d=8)
SQUARE = form("h n k[d] v[d]", h=16, n=16, d=4)
AITER = form("k[h d/8 n d%8] v[h n/8 d n%8]", h=4, n=16, d=8)
DIGITS = form("k[n/4 d n%4]", n=8, d=4)
APART = form("k[h n d] v[n h d]", h=4, n=16, d=8)
WORDS = {
    "shape": None,
    "page bytes": "give the axis of pages first, and write bytes that the tensor lacks or adds as pad[...]",
    "page": "register each plane as a segment of its own, or give the memory as a kvreshard.Region",
    "strides": "declare the format that the cache is written in, or name the tensor's axes with axes=",
    "which": "give axes=, a name for each tensor axis after the first, None for one the format does not know",
}

REFUSED: dict[str, tuple[Array, kvr.PageFormat, strides.Axes | None, str, tuple[str, str, str], str | None]] = {
    "no page": (
        pages(2048),
        PACKED,
        None,
        "a tensor of 1 axes has no pages to look at: the first axis counts pages",
        ("shape", "[2048]", "[pages, ...]"),
        None,
    ),
    "another length": (
        pages(6, 4, 16, 8),
        PACKED,
        None,
        f"a page of the tensor [6, 4, 16, 8] has 1024 bytes, a page of {PACKED} has 2048",
        ("page bytes", "1024", "2048"),
        "page bytes",
    ),
    "holes": (
        pages(6, 4, 32, 16)[:, :, ::2],
        PACKED,
        None,
        "a page of the tensor spans 4064 bytes for 2048 of content (strides in bytes [1024, 64, 2]), "
        f"and a page of {PACKED} has no holes there",
        ("page", "4064 bytes spanned", "2048 bytes in one piece"),
        "page",
    ),
    "backwards": (
        strided([3, 2, 2], [8, -1, 4], start=1),
        form("k[a b]", a=2, b=2),
        None,
        "a page of the tensor spans 8 bytes for 8 of content (strides in bytes [-2, 8]), "
        f"and a page of {form('k[a b]', a=2, b=2)} has no holes there",
        ("page", "8 bytes spanned", "8 bytes in one piece"),
        "page",
    ),
    "token-major": (
        pages(6, 4, 16, 16, order=(0, 2, 1, 3)),
        PACKED,
        None,
        "axis h has a stride of 32 bytes in the tensor (shape [6, 4, 16, 16], strides [2048, 32, 128, 2] bytes), but "
        f"component k of {PACKED} implies 512 bytes",
        ("h", "32", "512 bytes"),
        "strides",
    ),
    "too few names": (
        pages(6, 4, 16, 16),
        PACKED,
        ("h", "n"),
        "axes names 2 axes, a page of the tensor has 3",
        ("axes", "['h', 'n']", "3 names, None for an axis that the format does not know"),
        None,
    ),
    "wrong names": (
        pages(6, 4, 16, 16),
        PACKED,
        ("n", "h", None),
        f"tensor axis 1 is called n and has 4 entries, {PACKED} has 16",
        ("n", "4", "16"),
        None,
    ),
    "unknown name": (
        pages(6, 4, 16, 16),
        PACKED,
        (None, None, "x"),
        f"tensor axis 3 is called x and has 16 entries, {PACKED} has None",
        ("x", "16", "None"),
        None,
    ),
    "equal axes": (
        pages(3, 16, 16, 8),
        SQUARE,
        None,
        f"axes of equal size make the tensor [3, 16, 16, 8] (strides [4096, 256, 16, 2] bytes) fit {SQUARE} or not, "
        "depending on which is which: name them, such as axes=['h', 'n', None]",
        ("axes", "shape [3, 16, 16, 8]", "axes named"),
        "which",
    ),
    "inside a bracket": (
        pages(6, 4, 16, 16),
        AITER,
        ("h", None, None),
        "axis h has a stride of 512 bytes in the tensor (shape [6, 4, 16, 16], strides [2048, 512, 32, 2] bytes), but "
        f"component k of {AITER} implies 256 bytes",
        ("h", "512", "256 bytes"),
        "strides",
    ),
    "a digit further on": (
        pages(3, 4, 8),
        DIGITS,
        (None, "n"),
        "axis n has a stride of 2 bytes in the tensor (shape [3, 4, 8], strides [64, 16, 2] bytes), but "
        f"component k of {DIGITS} implies 32 bytes to index 4",
        ("n", "2", "32 bytes to index 4"),
        "strides",
    ),
    "a digit of two": (
        pages(3, 2, 4),
        form("k[n/2 d n%2]", n=4, d=2),
        (None, "n"),
        "axis n has a stride of 2 bytes in the tensor (shape [3, 2, 4], strides [16, 8, 2] bytes), but "
        f"component k of {form('k[n/2 d n%2]', n=4, d=2)} implies 8 bytes to index 2",
        ("n", "2", "8 bytes to index 2"),
        "strides",
    ),
    "the second component": (
        pages(3, 2, 4, 16, 8),
        APART,
        (None, "h", None, None),
        "axis h has a stride of 256 bytes in the tensor (shape [3, 2, 4, 16, 8], strides [2048, 1024, 256, 16, 2] "
        f"bytes), but component v of {APART} implies 16 bytes",
        ("h", "256", "16 bytes"),
        "strides",
    ),
    "the second named axis": (
        pages(3, 2, 4, 16, 8),
        form("k[h n d] v[h n d]", h=4, n=16, d=8),
        (None, "h", None, "n"),
        f"tensor axis 4 is called n and has 8 entries, {form('k[h n d] v[h n d]', h=4, n=16, d=8)} has 16",
        ("n", "8", "16"),
        None,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_said_of_a_tensor_that_cannot_be(name: str) -> None:
    tensor, declared, axes, text, (field, found, expected), remedy = REFUSED[name]
    with pytest.raises(TensorMismatch) as caught:
        strides.check("layers.3", buffer(tensor), declared, axes)
    facts: dict[str, object] = {"layer": "layers.3", "field": field, "found": found, "expected": expected}
    if remedy is not None:
        facts["remedy"] = WORDS[remedy]
    assert told(caught.value) == (f"layer layers.3: {text}", facts)


FITS: dict[str, tuple[npt.NDArray[np.generic], kvr.PageFormat, strides.Axes | None]] = {
    "head-major": (pages(6, 4, 16, 16), PACKED, None),
    "one page": (pages(1, 4, 16, 16), PACKED, None),
    "bytes": (pages(6, 4, 16, 16).view(np.uint8), PACKED, None),
    "a page in one piece": (pages(6, 1024), PACKED, None),
    "token-major": (pages(6, 4, 16, 16, order=(0, 2, 1, 3)), form("n h k[d] v[d]", h=4, n=16, d=8), None),
    "named": (pages(3, 16, 16, 8), SQUARE, ("h", "n", None)),
    "named the other way": (pages(3, 16, 16, 8, order=(0, 2, 1, 3)), SQUARE, ("n", "h", None)),
    # Nothing but brackets: a shape does not show what lies in them.
    "interiors": (pages(6, 16, 4, 16), AITER, None),
    "one head": (pages(6, 16, 16), form("h n k[d] v[d]", h=1, n=16, d=8), None),
    "a head of its own axis": (strided([6, 1, 16, 16], [256, 0, 16, 1]), form("h n k[d] v[d]", h=1, n=16, d=8), None),
    # A component without the axis, and one with digits of it: neither runs around.
    "an axis of one": (pages(6, 4, 20), form("k[h n] v[n]", h=4, n=16), None),
    "digits outside": (pages(6, 2, 3, 64), form("n%2 h k[n/2 d]", h=3, n=8, d=16), None),
    "one axis for two of its size": (pages(6, 16, 128), SQUARE, None),
    # The channels are as many as the tokens, and lie inside them: no choice.
    "channels like tokens": (pages(6, 2, 16, 16), form("h n k[d] v[d]", h=2, n=16, d=8), None),
}


@pytest.mark.parametrize("name", FITS)
def test_tensors_that_fit(name: str) -> None:
    tensor, declared, axes = FITS[name]
    strides.check("layers.3", buffer(tensor), declared, axes)


@pytest.mark.parametrize(
    ("tensor", "declared", "field", "found", "expected"),
    [
        (pages(6, 2, 16, 16, order=(0, 2, 1, 3)), form("h n k[d] v[d]", h=2, n=16, d=8), "h", "32", "512 bytes"),
        # The tokens are cut in two, and the heads are seen all the same.
        (pages(6, 4, 8, 64, order=(0, 2, 1, 3)), form("h n k[d] v[d]", h=4, n=32, d=8), "h", "128", "1024 bytes"),
        # An axis that one component lacks does not keep the next from being heard.
        (pages(6, 16, 24, order=(0, 2, 1)), form("n k[h d] v[d]", h=2, n=16, d=8), "n", "2", "48 bytes"),
        # Where components begin is counted from the first of them.
        (
            pages(6, 16, 64, order=(0, 2, 1)).astype(np.uint8, order="K"),
            form("n pad[p] k[d] v[d]", n=16, p=32, d=8),
            "n",
            "1",
            "64 bytes",
        ),
    ],
    ids=["two heads", "tokens in two axes", "an axis of one component", "padding first"],
)
def test_axes_are_found_by_their_extent(
    tensor: npt.NDArray[np.generic], declared: kvr.PageFormat, field: str, found: str, expected: str
) -> None:
    with pytest.raises(TensorMismatch) as caught:
        strides.check("a", buffer(tensor), declared)
    assert (caught.value.field, caught.value.found, caught.value.expected) == (field, found, expected)


def test_no_order_of_equal_axes_that_fits_is_a_contradiction() -> None:
    """Neither axis of 16 can be the heads: what is wrong is the stride, and not that they have no names."""
    with pytest.raises(TensorMismatch) as caught:
        strides.check("a", buffer(pages(3, 16, 16, 8, order=(0, 3, 1, 2))), SQUARE)
    assert (caught.value.field, caught.value.found, caught.value.expected) == ("h", "32", "256 bytes")


def test_formats_that_differ_in_an_axis_of_one_are_not_taken_for_each_other() -> None:
    """They are equal, and their notations are not: what was worked out for one is not for the other."""
    whole, flat = form("h n k[d]", h=1, n=16, d=8), form("n k[d]", n=16, d=8)
    assert whole.same_bytes_as(flat)
    for declared in (whole, flat, whole):
        strides.check("a", buffer(pages(6, 16, 8)), declared)
        strides.check("a", buffer(pages(6, 16, 8)), declared, ("n", "d"))
