"""Drawings in a real browser: what they show is what the plan says, with mouse, keyboard and finger, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

import kvreshard as kvr
from kvreshard import pictures
from tests.chromium import ABSENT, BROWSER, Browser

SHUFFLED = "k[h d/8 n d%8] v[h n/8 d n%8]"
in_a_browser = pytest.mark.skipif(BROWSER is None, reason=ABSENT)


def rank(notation: str, engine: str, tp: tuple[int, int], base: int) -> kvr.RankLayout:
    page = kvr.PageFormat(notation, h=4 // tp[1], n=16, d=32, dtype="bf16")
    segment = kvr.Segment(kvr.Region(base, 64 * page.page_bytes), page, pages=64)
    return kvr.RankLayout(engine=engine, tp=tp, layers=[kvr.Layer("layers.0", [segment], totals={"h": 4})])


def plans() -> list[kvr.Plan]:
    remote = rank(SHUFFLED, "prefill", (0, 1), 1 << 30)
    return [kvr.plan(rank(SHUFFLED, "decode", (at, 2), 1 << 20), remote) for at in range(2)]


def attribute(piece: ElementTree.Element, name: str) -> str:
    return piece.attrib[name]


def rects(svg: str) -> list[ElementTree.Element]:
    tree = ElementTree.fromstring(svg)
    return [one for one in tree.iter("{http://www.w3.org/2000/svg}rect") if one.get("class", "").startswith("piece")]


def test_a_page_is_drawn_to_scale() -> None:
    page = kvr.preset("deepseek-v4", n=64)
    found = rects(page.to_svg())
    assert len(found) == len(page.pieces())
    width = sum(float(one.attrib["width"]) for one in found)
    assert width == pytest.approx(936, abs=2)
    assert "unread" in attribute(found[-1], "class")


def test_what_is_not_moved_is_grey() -> None:
    plan = plans()[1]
    picture = plan.picture()
    found = rects(plan.to_svg())
    assert len(found) == len(picture.local) + len(picture.remote)
    grey = [one for one in found if "still" in attribute(one, "class")]
    assert len(grey) == len([piece for piece in picture.remote if piece.run is None])
    assert len(re.findall('class="ribbon"', plan.to_svg())) == plan.runs


def test_a_bracket_shows_what_an_equal_cut_takes() -> None:
    first, second = plans()
    assert "an equal cut, part 1 of 2: only k, and 50 % of that for others" in first.to_svg()
    assert "an equal cut, part 2 of 2: only v, and 50 % of that for others" in second.to_svg()
    packed = "h n k[d] v[d]"
    right = kvr.plan(rank(packed, "decode", (1, 2), 1 << 20), rank(packed, "prefill", (0, 1), 1 << 30))
    assert "equal cut" not in right.to_svg()


def test_stretches_say_what_they_hold() -> None:
    """As much as fits: component and head, one of them, or nothing."""

    def said(fmt: kvr.PageFormat) -> list[str]:
        return re.findall(r'<text class="label[^>]*>([^<]+)', fmt.to_svg())

    page = kvr.PageFormat(SHUFFLED, h=4, n=16, d=32, dtype="bf16")
    assert said(page) == [f"{name} head {head}" for name in "kv" for head in range(4)]
    assert said(page.with_extents(h=12)) == [f"{name} {head}" for name in "kv" for head in range(12)]
    packed = kvr.PageFormat("h n k[d] v[d]", h=4, n=16, d=32, dtype="bf16")
    assert said(packed.with_extents(n=2, h=2)) == [f"{name} head {head}" for head in range(2) for name in "kvkv"]
    assert said(packed.with_extents(n=64)) == [f"head {head}" for head in range(4)]
    assert said(packed.with_extents(n=4, h=64)) == []
    dull = [label for label in re.findall('class="label( dull)?"', plans()[1].to_svg()) if label]
    assert len(dull) == 4, "K and V of the two heads that stay"


def test_notebooks_show_something_of_everything() -> None:
    plan = plans()[0]
    assert plan._repr_html_().startswith("<svg")
    assert plan.local.layers[0].segments[0].format._repr_html_().startswith("<svg")
    huge = kvr.preset("packed-nhd", h=128, n=128, d=64)
    assert huge._repr_html_() == "<code>n h k[d] v[d] (d=64 h=128 n=128; k v bf16; 4194304 bytes)</code>"
    other = rank("k[h n d] v[h n d]", "prefill", (0, 1), 1 << 30)
    assert "advice" in kvr.check(plan.local, other)._repr_html_()


def test_texts_from_a_peer_cannot_break_out() -> None:
    local = rank(SHUFFLED, "<script>alert(1)</script>", (0, 1), 1 << 20)
    plan = kvr.plan(local, rank(SHUFFLED, 'a"b', (0, 1), 1 << 30))
    assert "<script>alert" not in plan.to_svg()
    assert pictures.page([plan], title="<b>").count("<script>") == 1


def test_a_page_needs_a_plan() -> None:
    with pytest.raises(ValueError, match="at least one plan"):
        pictures.page([])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "plan.html"
    path.write_text(pictures.page(plans(), title="Two of two"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def piece_at(browser: Browser, number: int, side: str) -> tuple[float, float]:
    """The middle of a piece of the first drawing, on the screen."""
    box = browser.run(
        f"(() => {{ const b = document.querySelectorAll('section:not([hidden]) rect.piece[data-side={side}]')[{number}]"
        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    return box[0], box[1]


@in_a_browser
def test_it_renders_without_a_network(browser: Browser, file: Path) -> None:
    browser.open(file)
    assert browser.errors == []
    assert browser.requests == [file.as_uri()]
    assert browser.run("document.title") == "Two of two"
    assert browser.run("document.querySelectorAll('section').length") == 2
    assert len(set(browser.picture())) > 100


@in_a_browser
def test_the_counts_are_those_of_the_plan(browser: Browser, file: Path) -> None:
    browser.open(file)
    for number, plan in enumerate(plans()):
        count = f"document.querySelectorAll('section')[{number}].querySelector('[data-count=%s]').textContent"
        for name in ("runs", "runs_per_page", "bytes", "bytes_per_run"):
            assert browser.run(count % name) == f"{getattr(plan, name):,}"
        ribbons = f"document.querySelectorAll('section')[{number}].querySelectorAll('.ribbon').length"
        assert browser.run(ribbons) == plan.runs


@in_a_browser
@pytest.mark.parametrize("tap", [False, True], ids=["mouse", "finger"])
def test_pointing_shows_the_element(browser: Browser, file: Path, tap: bool) -> None:
    browser.open(file, width=390 if tap else 1100)
    picture = plans()[0].picture()
    browser.point(*piece_at(browser, 4, "source"), tap=tap)
    words = browser.run("document.getElementById('words').textContent")
    piece = picture.remote[4]
    assert (piece.component, piece.axes["h"], piece.axes["n"], piece.run) == ("k", (0, 0, 1), (4, 4, 1), 0)
    held = "k, head 0, token 4, channels 0-7, bytes 64-79."
    assert words == f"source: {held} Run 0; at the other end: {held}"
    assert browser.run("document.querySelectorAll('.ribbon.on').length") == 1
    moved = sum(piece.run == 0 for side in (picture.local, picture.remote) for piece in side)
    assert browser.run("document.querySelectorAll('.piece.on').length") == moved


@in_a_browser
def test_what_stays_says_so(browser: Browser, file: Path) -> None:
    browser.open(file)
    still = next(at for at, piece in enumerate(plans()[0].picture().remote) if piece.run is None)
    browser.point(*piece_at(browser, still, "source"))
    assert browser.run("document.getElementById('words').textContent").endswith("Not moved.")


@in_a_browser
def test_the_keyboard_reaches_everything(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.run("document.querySelector('.scroll').focus()")
    words = "document.getElementById('words').textContent"
    browser.key("ArrowRight")
    assert browser.run(words).startswith("source: k, head 0, token 0,")
    browser.key("ArrowRight")
    assert browser.run(words).startswith("source: k, head 0, token 1,")
    browser.key("ArrowDown")
    assert browser.run(words).startswith("destination: k, head 0, token 1,")
    browser.key("End")
    assert browser.run(words).startswith("destination: v, head 1,")
    browser.key("Escape")
    assert browser.run(words).startswith("Point at a piece")


@in_a_browser
def test_another_rank_can_be_chosen(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.run(
        "(() => { const s = document.getElementById('which'); s.value = '1'; s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run("[...document.querySelectorAll('section')].map(s => s.hidden)") == [True, False]
    browser.point(*piece_at(browser, 0, "destination"))
    assert browser.run("document.getElementById('words').textContent").startswith("destination: k, head 2,")


@in_a_browser
def test_a_phone_scrolls_only_the_drawing(browser: Browser, file: Path) -> None:
    browser.open(file, width=390)
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.run(
        "(() => { const s = document.querySelector('.scroll'); return s.scrollWidth > s.clientWidth; })()"
    )


def brightness(colour: str) -> float:
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3]) / 3


@in_a_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_in_light_and_dark(browser: Browser, file: Path, dark: bool) -> None:
    browser.open(file, dark=dark)
    style = "getComputedStyle(document.querySelector('%s')).%s"
    for thing in ("body", ".words", "svg.kvr"):
        back, front = (brightness(browser.run(style % (thing, key))) for key in ("backgroundColor", "color"))
        assert (back < 60 and front > 200) if dark else (back > 200 and front < 60)
