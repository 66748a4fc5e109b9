"""Marked pages and digests: what first contact compares."""

from __future__ import annotations

import numpy as np
import pytest

import kvreshard as kvr
from kvreshard.demo import formulas
from kvreshard.demo.pattern import Page
from kvreshard.probe import ProbeError, WriterMismatch, marks, page_digest
from tests.probed import ATTENTION, Formula, Nest, declared


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
