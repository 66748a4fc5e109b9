"""First contact: what is marked and compared, and what a target answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nixl")

import kvreshard as kvr
from kvreshard.nixl import Unsupported, meetings
from kvreshard.nixl.contact import Expected, compare, mark
from kvreshard.nixl.control import Found, Marked
from kvreshard.nixl.meetings import Meetings, Scratch, told_blocks
from kvreshard.probe import ProbeError, Source, WriterMismatch, marks
from tests.told import told

PAGE = kvr.PageFormat("h n k[d] v[d]", h=2, n=4, d=8, dtype="i16")
Sides = dict[str, np.ndarray]


def rank(
    form: kvr.PageFormat = PAGE,
    *,
    holds: Mapping[str, tuple[int, int]] | None = None,
    layers: int = 2,
    groups: list[kvr.Group] | None = None,
    **position: Any,
) -> kvr.RankLayout:
    """Layers of one segment, of eight pages of two heads of four."""
    size = 8 * form.page_bytes
    made = [
        kvr.Layer(
            f"layers.{number}",
            [kvr.Segment(kvr.Region((1 + number) << 20, size), form, pages=8, holds=dict(holds) if holds else None)],
            totals={"h": 4 if holds else 2},
        )
        for number in range(layers)
    ]
    return kvr.RankLayout(engine="e", layers=made, groups=groups, **position)


class Pages:
    """What a writer has stored, by layer and page; a reader finds it again."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], Sides] = {}

    def write(self, layer: str, page: int, values: Mapping[str, Any]) -> None:
        self.stored[layer, page] = {name: np.array(value) for name, value in values.items()}

    def read(self, layer: str, page: int) -> Sides:
        return self.stored[layer, page]


def test_every_page_of_the_blocks_is_marked_as_its_tokens_say() -> None:
    pages = Pages()
    layout = rank(groups=[kvr.Group("tokens", pages_per_block=2)])
    assert mark(layout, [kvr.Blocks([3, 1], 16)], pages.write, 5) == 8
    wanted = [(layer, page) for layer in ("layers.0", "layers.1") for page in (6, 7, 2, 3)]
    assert list(pages.stored) == wanted
    for (layer, page), number in zip(wanted, (0, 1, 2, 3) * 2, strict=True):
        made = marks(PAGE, seed=5, first={"n": 16 + 4 * number, "h": 0}).values
        assert pages.stored[layer, page].keys() == made.keys() == {"k", "v"}
        for name, values in made.items():
            np.testing.assert_array_equal(pages.stored[layer, page][name], values)


def looked(peer: kvr.RankLayout, pages: Pages, takes: Any = None, **changed: Any) -> tuple[int, int]:
    """What a comparison of all that was marked has looked at."""
    expected = Expected([kvr.Blocks([3, 1])], (0, 8), 5)
    return compare(rank(), peer, takes, replace(expected, **changed), pages.read)


@pytest.fixture
def marked() -> Pages:
    pages = Pages()
    mark(rank(), [kvr.Blocks([3, 1])], pages.write, 5)
    return pages


def test_what_both_sides_hold_is_compared(marked: Pages) -> None:
    whole = 2 * 2 * 4 * 2 * 8
    assert looked(rank(), marked) == (4, 2 * whole)
    # Half of the tokens of the second page; one layer; the heads that the peer has.
    assert looked(rank(), marked, tokens=(0, 6)) == (4, 2 * whole * 6 // 8)
    assert looked(rank(), marked, tokens=(5, 6)) == (4, 2 * whole * 1 // 8)
    assert looked(rank(layers=1), marked) == (2, whole)
    assert looked(rank(PAGE.with_extents(h=1), holds={"h": (1, 2)}), marked) == (4, whole)
    # What an edge carries counts, and not what the peer has.
    assert looked(rank(), marked, [("layers.1", [("h", 0, 1)], True)]) == (2, whole // 2)
    assert looked(rank(layers=1), marked, [("layers.0", [], True), ("layers.1", [], True)]) == (4, 2 * whole)


def test_an_element_that_is_another_is_named(marked: Pages) -> None:
    marked.stored["layers.1", 1]["v"][1, 1, 2] += 1
    with pytest.raises(WriterMismatch) as caught:
        looked(rank(), marked)
    text = str(caught.value)
    assert text.startswith("first contact with e: layer layers.1, page 1: component v, element (1, 1, 2): ")
    assert text.endswith("1 of 64 elements are wrong; the two sides do not mean the same pages")
    assert caught.value.component == "v"
    # It is of a token that the request does not have, or of a head that the peer does not.
    assert looked(rank(), marked, tokens=(0, 5))[0] == 4
    assert looked(rank(PAGE.with_extents(h=1), holds={"h": (0, 1)}), marked)[0] == 4


def test_what_a_reader_does_not_find(marked: Pages) -> None:
    del marked.stored["layers.0", 3]["v"]
    with pytest.raises(WriterMismatch) as caught:
        looked(rank(), marked)
    text = "component v: the reader found nothing; the two sides do not mean the same pages"
    assert str(caught.value) == f"first contact with e: layer layers.0, page 3: {text}"
    assert caught.value.component == "v"
    marked.stored["layers.0", 3]["v"] = np.zeros((4, 2, 7), np.int16)
    with pytest.raises(ProbeError) as shape:
        looked(rank(), marked)
    assert str(shape.value) == "component v: shape (4, 2, 7) is read, (4, 2, 8) was marked"


NOTHING = "first contact: the request covers no element that both sides hold"


@pytest.mark.parametrize(
    ("changed", "takes"),
    [({"tokens": (8, 12)}, None), ({}, []), ({}, [("layers.2", [], True)]), ({}, [("layers.0", [("h", 2, 4)], True)])],
)
def test_a_contact_that_looks_at_nothing_is_none(marked: Pages, changed: dict[str, Any], takes: Any) -> None:
    with pytest.raises(ProbeError) as caught:
        looked(rank(), marked, takes, **changed)
    assert str(caught.value) == NOTHING


KINDS = "marks and digests are for pages of whole runs of tokens, not for states or context parallelism"
STATE = kvr.PageFormat("x[h p]", h=2, p=4, dtype="f32")


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (rank(STATE, groups=[kvr.Group("state")]), f"layer layers.0: {KINDS}"),
        (rank(groups=[kvr.Group("tokens", tokens_per_state=2)]), f"layer layers.0: {KINDS}"),
        (rank(cp=(0, 2), cp_interleave=4), f"layer layers.0: {KINDS}"),
    ],
    ids=["states", "several tokens a state", "context parallelism"],
)
def test_pages_that_are_no_runs_of_tokens_are_not_marked(layout: kvr.RankLayout, text: str) -> None:
    with pytest.raises(Unsupported) as caught:
        mark(layout, [kvr.Blocks([1])], Pages().write, 1)
    assert told(caught.value)[0] == text


def test_a_list_of_blocks_a_group_is_needed() -> None:
    with pytest.raises(ProbeError) as caught:
        mark(rank(), [], Pages().write, 1)
    assert str(caught.value) == "blocks of 0 groups are given, the layout has 1"


def test_planes_and_components_in_two_segments_are_not_marked() -> None:
    plane = kvr.PageFormat("n k[d] v[d]", n=4, d=8, dtype="i16")
    with pytest.raises(Unsupported) as caught:
        mark(rank(plane, holds={"h": (0, 1)}, layers=1), [kvr.Blocks([1])], Pages().write, 1)
    assert str(caught.value) == "layer layers.0: `n k[d] v[d]` has no axis h"
    half = kvr.PageFormat("h n k[d]", h=1, n=4, d=8, dtype="i16")
    region = kvr.Region(1 << 20, 1 << 16)
    segments = [
        kvr.Segment(region, half, pages=8, offset=4096 * head, holds={"h": (head, head + 1)}) for head in (0, 1)
    ]
    layout = kvr.RankLayout(engine="e", layers=[kvr.Layer("a", segments, totals={"h": 2})])
    with pytest.raises(Unsupported) as caught:
        mark(layout, [kvr.Blocks([1])], Pages().write, 1)
    assert str(caught.value) == "layer a: several segments hold component k"


QUANTISED = kvr.PageFormat(
    "h n k[d] ks[] v[d] vs[]", h=2, n=4, d=8, types={"k": "i8", "ks": "f32", "v": "i8", "vs": "f32"}
)
SOURCES = {"k": Source("k"), "ks": Source("k", scale=True), "v": Source("v"), "vs": Source("v", scale=True)}


def test_a_writer_that_quantises_is_given_inputs() -> None:
    pages, layout = Pages(), rank(QUANTISED)
    mark(layout, [kvr.Blocks([3], 4)], pages.write, 5, SOURCES)
    made = marks(QUANTISED, seed=5, first={"n": 4, "h": 0}, sources=SOURCES).values
    assert pages.stored["layers.0", 3].keys() == made.keys() == {"k", "v"}
    for name, values in made.items():
        np.testing.assert_array_equal(pages.stored["layers.0", 3][name], values)
    expected = Expected([kvr.Blocks([3], 4)], (4, 8), 5, SOURCES)
    assert compare(layout, layout, None, expected, pages.read) == (2, 2 * 2 * 2 * 4 * 8)
    # Near to an input is right, as it is not for a component; another element's is wrong.
    pages.stored["layers.1", 3]["v"] += np.float32(1e-3)
    assert compare(layout, layout, None, expected, pages.read)[0] == 2
    pages.stored["layers.1", 3]["v"] = pages.stored["layers.1", 3]["v"][::-1]
    with pytest.raises(WriterMismatch):
        compare(layout, layout, None, expected, pages.read)
    target = Meetings()
    target.scratch = Scratch([kvr.Blocks([3])], pages.read, SOURCES)
    peer: Any = Named("writer")
    peer.layout = layout
    asked = Marked("r", 5, (4, 8), told_blocks([kvr.Blocks([3], 4)]), [("layers.0", [], True)])
    assert target.answer(layout, peer, asked) == Found("r", 1, 2 * 2 * 4 * 8, False, "")


def test_an_element_of_several_tokens_is_not_marked() -> None:
    halves = kvr.PageFormat("h n k[d]", h=1, n=4, d=8, types={"k": "u8"})
    sources = {"k": Source("k", {"h": ("g", 2)})}
    with pytest.raises(Unsupported) as dealt:
        mark(rank(halves, holds={"h": (1, 2)}), [kvr.Blocks([3])], Pages().write, 5, sources)
    assert str(dealt.value) == "axis h is dealt to ranks: an element must stand for one index of it"
    sources = {"k": Source("k", {"n": ("t", 2)})}
    with pytest.raises(Unsupported) as tokens:
        mark(rank(halves, holds={"h": (1, 2)}), [kvr.Blocks([3])], Pages().write, 5, sources)
    assert str(tokens.value) == "axis n is dealt to ranks: an element must stand for one index of it"


# The target's side


class Named:
    """As much of a peer as an answer looks at."""

    def __init__(self, name: str) -> None:
        self.name, self.layout = name, rank()


def ask(on: Meetings, id: str, name: str = "writer", **changed: Any) -> Found:
    fields = {"seed": 5, "tokens": (0, 8), "blocks": told_blocks([kvr.Blocks([3, 1])]), "takes": None, **changed}
    peer: Any = Named(name)
    return on.answer(rank(), peer, Marked(id, fields["seed"], fields["tokens"], fields["blocks"], fields["takes"]))


def test_targets_answer_what_they_find(marked: Pages, caplog: pytest.LogCaptureFixture) -> None:
    target = Meetings()
    none = "it expects no first contact: expect_contacts() there first"
    assert ask(target, "0") == Found("0", 0, 0, False, none)
    target.scratch = Scratch([kvr.Blocks([1, 3, 5])], marked.read, None)
    assert ask(target, "1") == Found("1", 4, 2 * 256, False, "")
    assert ask(target, "2", tokens=(0, 4)) == Found("2", 4, 256, False, "")
    first = told_blocks([kvr.Blocks([3, 1], 4)])
    assert ask(target, "3", blocks=first).wrong
    wrong = ask(target, "4", seed=6)
    assert (wrong.pages, wrong.elements, wrong.wrong) == (0, 0, True)
    assert wrong.text.startswith("first contact with e: layer layers.0, page 3: component k, element (0, 0, 0): ")
    assert not caplog.records
    # A reader's own failure is an answer, and told here as well.
    del marked.stored["layers.0", 3]
    assert ask(target, "5") == Found("5", 0, 0, False, "KeyError: ('layers.0', 3)")
    assert [record.getMessage() for record in caplog.records] == ["first contact of writer: the reader raised"]


@pytest.mark.parametrize(
    ("blocks", "tokens", "text"),
    [
        (told_blocks([kvr.Blocks([3])]), (4, 4), "tokens [4, 4) are none"),
        ([], (0, 4), "blocks of 0 groups are told, this rank has 1"),
        ([(0, b"\x03\x00\x00\x00\x01")], (0, 4), "a list of blocks ends inside an id"),
        (
            told_blocks([kvr.Blocks([3, 3])]),
            (0, 4),
            "blocks [3, 3] are not, each once, among the scratch blocks [1, 3, 5]",
        ),
        (
            told_blocks([kvr.Blocks(range(20, 40))]),
            (0, 4),
            "blocks [20, 21, 22, 23, 24, 25, 26, 27] are not, each once, among the scratch blocks [1, 3, 5]",
        ),
    ],
)
def test_targets_look_at_scratch_blocks_only(
    marked: Pages, blocks: Any, tokens: tuple[int, int], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = Meetings()
    target.scratch = Scratch([kvr.Blocks([5, 1, 3])], marked.read, None)
    assert ask(target, "r", blocks=blocks, tokens=tokens) == Found("r", 0, 0, False, f"RequestError: {text}")
    assert not caplog.records


def test_answers_are_remembered_for_the_last_that_asked(marked: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "MAX_ANSWERS", 2)
    target = Meetings()
    target.scratch = Scratch([kvr.Blocks([1, 3])], marked.read, None)
    answers = {name: ask(target, "r", name) for name in ("a", "b")}
    assert ask(target, "r", "a") is answers["a"]
    # Who asks something new is not the oldest any more.
    ask(target, "s", "a")
    ask(target, "r", "c")
    assert set(target._answers) == {"a", "c"}


def test_long_texts_are_cut(marked: Pages) -> None:
    def read(layer: str, page: int) -> Sides:
        raise ValueError("x" * 5000)

    target = Meetings()
    target.scratch = Scratch([kvr.Blocks([1, 3])], read, None)
    assert ask(target, "r").text == "ValueError: " + "x" * 1012


def test_answers_that_nobody_asked_for_are_dropped() -> None:
    here = Meetings()
    here.hear(Found("a", 1, 1, False, ""))
    assert here.answered("a") is None
    here.ask("a")
    assert here.answered("a") is None
    answer = Found("a", 1, 1, False, "")
    here.hear(answer)
    assert here.answered("a") is answer
    here.forget("a")
    here.forget("a")
    here.hear(answer)
    assert here.answered("a") is None
