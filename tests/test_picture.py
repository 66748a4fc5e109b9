"""Pictures: every piece holds what it says, and the runs are the plan's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import kvreshard as kvr
from tests.convert import to_format
from tests.oracle.model import Page
from tests.oracle.notation import unroll
from tests.strategies import pages

PACKED = "h n k[d] v[d]"
SHUFFLED = "k[h d/8 n d%8] v[h n/8 d n%8]"


def rank(
    notation: str, *, tp: tuple[int, int] = (0, 1), base: int = 1 << 20, heads: int = 4, n: int = 16, layers: int = 1
) -> kvr.RankLayout:
    page = kvr.PageFormat(notation, h=heads // tp[1], n=n, d=32, dtype="bf16")
    bytes = 64 * page.page_bytes
    found = [
        kvr.Layer(
            f"layers.{at}", [kvr.Segment(kvr.Region(base + at * bytes, bytes), page, pages=64)], totals={"h": heads}
        )
        for at in range(layers)
    ]
    return kvr.RankLayout(engine=f"engine-{base}", tp=tp, layers=found)


@settings(max_examples=200, deadline=None)
@given(pages())
def test_a_piece_holds_the_elements_that_it_names(page: Page) -> None:
    fmt = to_format(page)
    expected = unroll(page.notation, page.extents, page.types)
    pieces = fmt.pieces()
    assert [piece.offset for piece in pieces] == [0, *np.cumsum([piece.bytes for piece in pieces])[:-1]]
    assert sum(piece.bytes for piece in pieces) == fmt.page_bytes
    for piece in pieces:
        if piece.component is None:
            for part in expected.components.values():
                assert not ((part.offsets >= piece.offset) & (part.offsets < piece.offset + piece.bytes)).any()
            continue
        part = expected.components[piece.component]
        inside = (part.offsets >= piece.offset) & (part.offsets < piece.offset + piece.bytes)
        found = {
            axis: (int(values[inside].min()), int(values[inside].max()), len(np.unique(values[inside])))
            for axis, values in part.index.items()
        }
        assert {axis: piece.axes[axis] for axis in found} == found


def test_the_runs_are_those_of_the_plan() -> None:
    plan = kvr.plan(rank(SHUFFLED, tp=(1, 2)), rank(SHUFFLED, base=1 << 30))
    picture = plan.picture()
    assert len(picture.runs) == plan.runs == 2
    assert picture.runs == [((0, 0, 0), (0, 0, 2048), 2048), ((0, 0, 2048), (0, 0, 6144), 2048)]
    assert all(piece.run is not None for piece in picture.local)
    moved = [piece for piece in picture.remote if piece.run is not None]
    assert sum(piece.bytes for piece in moved) == plan.bytes
    assert {piece.axes["h"][0] for piece in moved} == {2, 3}, "heads are counted over all ranks"
    assert {piece.axes["h"][0] for piece in picture.local} == {2, 3}


def test_both_ends_of_a_run_hold_the_same() -> None:
    plan = kvr.plan(rank(PACKED, tp=(1, 2)), rank(SHUFFLED, base=1 << 30))
    picture = plan.picture()
    assert len(picture.runs) == plan.runs
    ends = [{piece.run: (piece.component, piece.axes) for piece in side} for side in (picture.local, picture.remote)]
    assert {run: end for run, end in ends[0].items() if run is not None} == {
        run: end for run, end in ends[1].items() if run is not None
    }


def test_pages_of_other_sizes_show_a_period() -> None:
    plan = kvr.plan(rank(PACKED, n=24), rank(PACKED, base=1 << 30, n=16))
    picture = plan.picture()
    assert {piece.page for piece in picture.local} == {0, 1}
    assert {piece.page for piece in picture.remote} == {0, 1, 2}
    assert sum(run[2] for run in picture.runs) == plan.bytes


def test_a_run_over_layers_is_cut_at_the_layer() -> None:
    page = kvr.PageFormat(PACKED, h=4, n=16, d=32, dtype="bf16")

    def row(base: int) -> kvr.RankLayout:
        region = kvr.Region(base, 64 * 2 * page.page_bytes)
        layers = [
            kvr.Layer(
                f"layers.{at}",
                [kvr.Segment(region, page, pages=64, page_stride=2 * page.page_bytes, offset=at * page.page_bytes)],
                totals={"h": 4},
            )
            for at in range(2)
        ]
        return kvr.RankLayout(engine=f"engine-{base}", layers=layers)

    plan = kvr.plan(row(1 << 20), row(1 << 30))
    assert plan.runs == 1
    picture = plan.picture("layers.1")
    assert picture.runs == [((0, 0, 0), (0, 0, 0), page.page_bytes)]


def test_planes_name_their_head() -> None:
    plane = kvr.PageFormat("n k[d] v[d]", n=16, d=32, dtype="bf16")
    region = kvr.Region(1 << 20, 64 * 2 * plane.page_bytes)
    segments = [
        kvr.Segment(region, plane, pages=64, offset=at * 64 * plane.page_bytes, holds={"h": (2 + at, 3 + at)})
        for at in range(2)
    ]
    local = kvr.RankLayout(engine="planes", tp=(1, 2), layers=[kvr.Layer("layers.0", segments, totals={"h": 4})])
    picture = kvr.plan(local, rank(PACKED, base=1 << 30)).picture()
    assert {(piece.segment, piece.axes["h"]) for piece in picture.local} == {(0, (2, 2, 1)), (1, (3, 3, 1))}


def test_what_cannot_be_drawn_is_refused() -> None:
    plan = kvr.plan(rank(PACKED), rank(PACKED, base=1 << 30))
    with pytest.raises(kvr.LayoutError, match=r"layers\.7"):
        plan.picture("layers.7")
    with pytest.raises(kvr.LimitExceeded, match="draw fewer"):
        kvr.preset("packed-nhd", h=128, n=128, d=64).pieces()
