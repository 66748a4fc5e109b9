"""Digests of pages: equal on two ranks however they are built, and other ones wherever elements have changed places."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.kernels.memory import Span, span
from kvreshard.nixl.digests import digests
from kvreshard.nixl.errors import Unsupported
from kvreshard.probe import ProbeError
from kvreshard.probe.contact import sampled
from tests.told import told

H, D, TOKENS = 4, 8, 32
TYPES = {"k": "i16", "v": "i16"}


def value(component: str, head: np.ndarray, token: np.ndarray, channel: np.ndarray) -> np.ndarray:
    """What an engine has stored there: no two alike."""
    made: np.ndarray = (((component == "v") * H + head) * TOKENS + token) * D + channel + 1
    return made.astype(np.uint16)


@dataclass
class Side:
    """A rank with two layers, and its memory; page `i` of its list has tokens `[i * n, (i + 1) * n)`."""

    memory: np.ndarray
    layout: kvr.RankLayout
    ids: list[int]

    def digests(self, peer: Side, tokens: tuple[int, int] = (0, TOKENS), **options: int) -> dict[str, str]:
        return self.of([span(self.memory)], peer, tokens, **options)

    def of(
        self, spans: list[Span], peer: Side, tokens: tuple[int, int], samples: int = 64, seed: int = 0
    ) -> dict[str, str]:
        return digests(self.layout, peer.layout, spans, [kvr.Blocks(self.ids)], tokens, samples, seed)


def side(
    tokens: int, heads: tuple[int, int], pieces: list[tuple[str, dict[str, tuple[int, int]]]], device: int | None = None
) -> Side:
    """A rank that holds `heads`, in pages of so many tokens; `pieces` are notations and what each holds."""
    count = TOKENS // tokens
    forms = []
    for notation, holds in pieces:
        low, high = holds.get("h", heads)
        extents = {"h": high - low, "n": tokens, "d": D}
        used = {
            axis: extent for axis, extent in extents.items() if axis in notation.replace("[", " ").replace("]", " ")
        }
        types = {name: kind for name, kind in TYPES.items() if f"{name}[" in notation}
        forms.append((kvr.PageFormat(notation, extents=used, types=types), {"h": (low, high), **holds}))
    size = sum(form.page_bytes for form, _ in forms) * (count + 1) * 2
    memory = np.zeros(size, np.uint8)
    region = kvr.Region(memory.ctypes.data, size, device=device or 0, memory="DRAM" if device is None else "VRAM")
    ids = [*range(1, count + 1)][::-1]
    offset, layers = 0, []
    for number in range(2):
        segments = []
        for form, holds in forms:
            segments.append(kvr.Segment(region, form, offset=offset, pages=count + 1, holds=holds))
            for at, page in enumerate(ids):
                start = offset + page * form.page_bytes
                fill(memory[start : start + form.page_bytes], form, holds["h"][0], at * tokens)
            offset += form.page_bytes * (count + 1)
        layers.append(kvr.Layer(f"layers.{number}", segments, totals={"h": H}))
    return Side(memory, kvr.RankLayout(engine="e", layers=layers), ids)


def fill(page: np.ndarray, form: kvr.PageFormat, head: int, token: int) -> None:
    for component in form.components:
        axes = [axis for axis, _ in form.axes(component)]
        offsets = form.offsets(component)
        at: dict[str, np.ndarray] = {
            axis: np.asarray(one) for axis, one in zip(axes, np.indices(offsets.shape), strict=True)
        }
        heads, states = np.add(at.get("h", 0), head), np.add(at["n"], token)
        made = value(component, heads, states, at["d"])
        for byte in range(2):
            page[offsets + byte] = made >> 8 * byte & 255


WHOLE = side(16, (0, 4), [("h n k[d] v[d]", {})])
SIDES = {
    "token-major, smaller pages": side(8, (0, 4), [("n h k[d] v[d]", {})]),
    "K and V apart, larger pages": side(32, (0, 4), [("n h k[d]", {}), ("h d/4 n v[d%4]", {})]),
    "a plane a head": side(16, (0, 4), [("n k[d] v[d]", {"h": (head, head + 1)}) for head in range(4)]),
    "two heads of four": side(16, (2, 4), [("v[h n d] pad[3] k[n h d]", {})]),
    "planes of K, V in one": side(
        8, (1, 3), [("n h v[d]", {}), *(("k[d n]", {"h": (head, head + 1)}) for head in (1, 2))]
    ),
}


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("seed", range(3))
def test_digests_meet(name: str, seed: int) -> None:
    other = SIDES[name]
    for tokens in ((0, 32), (16, 32), (5, 9), (31, 32)):
        mine, its = WHOLE.digests(other, tokens, seed=seed), other.digests(WHOLE, tokens, seed=seed)
        assert sorted(mine) == ["layers.0", "layers.1"]
        assert mine == its, tokens
        assert mine["layers.0"] == mine["layers.1"]
    assert WHOLE.digests(other, seed=seed) != WHOLE.digests(other, seed=seed + 1)


def test_what_one_side_lacks_is_not_looked_at() -> None:
    """K alone; other heads than the peer has; a layer of another name."""
    keys = side(8, (0, 4), [("n h k[d]", {})])
    assert WHOLE.digests(keys) == keys.digests(WHOLE)
    assert WHOLE.digests(keys) != WHOLE.digests(WHOLE)
    low, high = side(16, (0, 2), [("h n k[d] v[d]", {})]), side(16, (2, 4), [("h n k[d] v[d]", {})])
    assert low.digests(high) == {}
    layer = WHOLE.layout.layers[1]
    renamed = kvr.RankLayout(engine="e", layers=[kvr.Layer("another", layer.segments, totals=layer.totals), layer])
    assert sorted(WHOLE.digests(Side(WHOLE.memory, renamed, WHOLE.ids))) == ["layers.1"]


def test_an_axis_that_one_side_lacks_names_no_element() -> None:
    """One latent head for all: a format may have it as an axis of one, or not at all."""
    memory = np.arange(TOKENS * D, dtype=np.uint16)
    sides = []
    for notation, extents in (("n k[d]", {}), ("h n k[d]", {"h": 1})):
        form = kvr.PageFormat(notation, extents={**extents, "n": TOKENS, "d": D}, types={"k": "i16"})
        region = kvr.Region(memory.ctypes.data, memory.nbytes)
        layout = kvr.RankLayout(engine="e", layers=[kvr.Layer("layers.0", [kvr.Segment(region, form, pages=1)])])
        sides.append(Side(memory, layout, [0]))
    without, one = sides
    assert kvr.plan(without.layout, one.layout)
    assert without.digests(one) == one.digests(without) != {}
    assert without.digests(one) == without.digests(without)


def hashed(tokens: tuple[int, int], samples: int, seed: int) -> str:
    """The digest of what the engine has stored of those tokens: names, places and bytes."""
    digest = hashlib.sha256()
    for component in ("k", "v"):
        for at in sampled(component, [(0, D), (0, H), tokens], samples, seed):
            channel, head, token = (np.asarray(index) for index in at)
            digest.update(f"{component} {at} ".encode() + value(component, head, token, channel).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(("samples", "seed"), [(64, 0), (10, 3), (5000, 1)])
def test_a_digest_is_of_names_places_and_bytes(samples: int, seed: int) -> None:
    """The two ends need not be of one version, so this stays as it is."""
    smaller, larger = SIDES["token-major, smaller pages"], SIDES["K and V apart, larger pages"]
    for peer, tokens, looked in (
        (WHOLE, (0, 32), (0, 16)),
        (WHOLE, (17, 32), (17, 32)),
        (WHOLE, (5, 9), (5, 9)),
        (smaller, (0, 32), (0, 8)),
        (smaller, (9, 32), (9, 16)),
        (larger, (0, 32), (0, 16)),
    ):
        found = WHOLE.digests(peer, tokens, samples=samples, seed=seed)
        assert found == dict.fromkeys(("layers.0", "layers.1"), hashed(looked, samples, seed)), tokens


def test_pages_are_found_where_the_layout_says() -> None:
    """Blocks of two pages, of the second group, of tokens from 16 on, with gaps between pages; an allocation a layer,
    one beside the other.
    """
    form = kvr.PageFormat("h n k[d] v[d]", extents={"h": H, "n": 8, "d": D}, types=TYPES)
    stride, pages = form.page_bytes + 64, 8
    size = pages * stride - 64
    memory = np.zeros(2 * size, np.uint8)
    layers = []
    for number in range(2):
        region = kvr.Region(memory.ctypes.data + number * size, size)
        segment = kvr.Segment(region, form, pages=pages, page_stride=stride)
        layers.append(kvr.Layer(f"layers.{number}", [segment], totals={"h": H}, group=1))
        # The list has block 3, of pages 6 and 7: the last of the allocation.
        for page, token in ((6, 16), (7, 24)):
            start = number * size + page * stride
            fill(memory[start : start + form.page_bytes], form, 0, token)
    groups = [kvr.Group("tokens"), kvr.Group("tokens", pages_per_block=2)]
    layout = kvr.RankLayout(engine="e", layers=layers, groups=groups)
    spans = [Span(memory.ctypes.data + at, size, None, None) for at in (size, 0)]

    def found(tokens: tuple[int, int], ids: list[int] | None = None) -> dict[str, str]:
        blocks = [kvr.Blocks([]), kvr.Blocks(ids or [3], 16)]
        return digests(layout, WHOLE.layout, spans, blocks, tokens, 64, 0)

    for tokens in ((16, 32), (24, 32), (30, 31)):
        assert found(tokens) == WHOLE.digests(Side(memory, layout, []), tokens), tokens
    for tokens, at in (((8, 16), 8), ((32, 40), 32)):
        with pytest.raises(ProbeError) as caught:
            found(tokens)
        assert str(caught.value) == f"layer layers.0: token {at} is in none of the 1 blocks given"
    with pytest.raises(ProbeError) as outside:
        found((16, 32), [4])
    assert str(outside.value) == "layer layers.0: block 4 is outside the 8 pages"


def test_a_component_that_the_two_do_not_share_is_passed_over() -> None:
    """K of other heads, and V of all."""
    low, high = (side(16, (0, 4), [("h n k[d]", {"h": span}), ("h n v[d]", {})]) for span in ((0, 2), (2, 4)))
    found = low.digests(high)
    assert found == high.digests(low)
    assert sorted(found) == ["layers.0", "layers.1"]
    page_of(high, segment=1)[...] = 0
    assert high.digests(low)["layers.1"] != found["layers.1"]


def test_elements_that_nobody_holds_are_passed_over() -> None:
    """Planes of the first and the last head: samples of those between are of no part, and others follow."""
    ends = side(16, (0, 4), [("n k[d] v[d]", {"h": (head, head + 1)}) for head in (0, 3)])
    found = WHOLE.digests(ends, samples=1000)
    assert found == ends.digests(WHOLE, samples=1000)
    page_of(ends, segment=1)[...] = 0
    assert ends.digests(WHOLE, samples=1000)["layers.1"] != found["layers.1"]


Change = Callable[[Side], None]


def page_of(one: Side, segment: int = 0, layer: int = 1, at: int = 0) -> np.ndarray:
    """The bytes of the page with the first tokens."""
    piece = one.layout.layers[layer].segments[segment]
    start = piece.offset + one.ids[at] * piece.page_stride
    return one.memory[start : start + piece.format.page_bytes]


def swapped(pages: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = pages
    one[...], other[...] = other.copy(), one.copy()


def heads(one: Side) -> None:
    shaped = page_of(one).view(np.uint16).reshape(4, 16, 2 * D)
    shaped[[1, 2]] = shaped[[2, 1]]


def sides(one: Side) -> None:
    shaped = page_of(one).view(np.uint16).reshape(4, 16, 2, D)
    shaped[...] = shaped[:, :, ::-1].copy()


def tokens(one: Side) -> None:
    shaped = page_of(one).view(np.uint16).reshape(4, 16, 2 * D)
    shaped[...] = np.roll(shaped, 1, axis=1)


def stale(one: Side) -> None:
    page_of(one)[...] = 0


@pytest.mark.parametrize(
    "change",
    [heads, sides, tokens, stale, lambda one: swapped((page_of(one), page_of(one, at=1)))],
    ids=["heads", "K and V", "tokens", "never arrived", "pages"],
)
def test_what_changed_places_is_told(change: Change) -> None:
    """One layer of two: the other's digest stays."""
    mine = side(16, (0, 4), [("h n k[d] v[d]", {})])
    peer = SIDES["K and V apart, larger pages"]
    assert mine.digests(peer) == peer.digests(mine)
    change(mine)
    found, told = mine.digests(peer), peer.digests(mine)
    assert found["layers.0"] == told["layers.0"]
    assert found["layers.1"] != told["layers.1"]


def test_planes_that_changed_places_are_told() -> None:
    planes = side(16, (0, 4), [("n k[d] v[d]", {"h": (head, head + 1)}) for head in range(4)])
    assert planes.digests(WHOLE) == WHOLE.digests(planes)
    swapped((page_of(planes, segment=1), page_of(planes, segment=3)))
    assert planes.digests(WHOLE)["layers.1"] != WHOLE.digests(planes)["layers.1"]


def test_device_memory_is_read_through_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that tensors on a device take, with a tensor that lies in host memory."""
    torch = pytest.importorskip("torch")
    there = side(16, (0, 4), [("h n k[d] v[d]", {})], device=3)
    tensor = torch.from_numpy(there.memory)
    address = there.memory.ctypes.data
    spans = [Span(address, there.memory.nbytes, 3, tensor.untyped_storage())]
    assert there.of(spans, WHOLE, (0, 32)) == WHOLE.digests(there)
    swapped((page_of(there), page_of(there, at=1)))
    assert there.of(spans, WHOLE, (0, 32))["layers.1"] != WHOLE.digests(there)["layers.1"]
    nameless = [Span(address, there.memory.nbytes, 3, None)]
    with pytest.raises(Unsupported) as caught:
        there.of(nameless, WHOLE, (0, 32))
    text = "a digest of device memory needs the tensor that it was registered as"
    assert told(caught.value) == (text, {})
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(Unsupported, match=text):
        there.of(spans, WHOLE, (0, 32))


def test_blocks_that_are_not_there_are_refused() -> None:
    with pytest.raises(ProbeError, match="token 32 is in none of the 2 blocks"):
        WHOLE.digests(SIDES["token-major, smaller pages"], (32, 40))
    short = Side(WHOLE.memory, WHOLE.layout, [99])
    with pytest.raises(ProbeError, match="block 99 is outside"):
        short.digests(WHOLE)
