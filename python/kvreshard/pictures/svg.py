"""SVG of pages and plans: strips of bytes, cut into pieces, and ribbons where bytes move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

import kvreshard as kvr
from kvreshard.pictures.words import colours, component_names, piece_words, rank_words, shade

WIDTH = 960
MARGIN = 12
BAR = 46
GAP = 10
"""Between two pages of one side."""
RIBBONS = 130
LINE = 20
LETTER = 7.5
"""Width of a letter, in the mean, where a text must fit."""

STYLE = """
svg.kvr{font:13px system-ui,sans-serif;color:#1c2430;background:#fff}
svg.kvr{--line:#1c2430;--faint:#5d6875;--still:#d5d9de;--warn:#c11d27}
@media (prefers-color-scheme:dark){
svg.kvr{color:#e6e9ed;background:#14181d;--line:#e6e9ed;--faint:#9aa5b1;--still:#3a424c;--warn:#ff6b6b}
}
svg.kvr text{fill:currentColor}svg.kvr .faint{fill:var(--faint)}
svg.kvr .piece{shape-rendering:crispEdges}
svg.kvr .label{fill:#fff;font-size:12px;pointer-events:none;paint-order:stroke;stroke:#0007;stroke-width:2px}
svg.kvr .label.dull{fill:var(--faint);stroke:none}
svg.kvr .page{fill:none;stroke:var(--line)}svg.kvr .still{fill:var(--still)}svg.kvr .unread{fill:url(#kvr-unread)}
svg.kvr .ribbon{opacity:.32}svg.kvr .bracket{fill:none;stroke:var(--warn);stroke-width:2}svg.kvr .warn{fill:var(--warn)}
@media (max-width:600px){svg.kvr{font-size:18px}svg.kvr .label{font-size:15px}}
"""
HATCH = (
    '<defs><pattern id="kvr-unread" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V6" stroke="#8a949e" stroke-width="2"/></pattern></defs>'
)


@dataclass(frozen=True)
class Bar:
    """One page of one segment: where it stands and what it holds."""

    pieces: list[kvr.Piece]
    x: float
    scale: float

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)

    @property
    def place(self) -> tuple[int, int]:
        """Page and segment."""
        return self.pieces[0].page, self.pieces[0].segment

    def at(self, offset: int) -> float:
        """Where a byte stands."""
        return self.x + offset * self.scale


def bars(pieces: Sequence[kvr.Piece], scale: float) -> list[Bar]:
    """The pages of one side, next to one another."""
    found, x = [], float(MARGIN)
    for _, group in groupby(pieces, key=lambda piece: (piece.page, piece.segment)):
        bar = Bar(list(group), x, scale)
        found.append(bar)
        x += bar.bytes * scale + GAP
    return found


def fit(*sides: Sequence[kvr.Piece]) -> float:
    """Pixels a byte, so that the longest side fills the width."""

    def room(side: Sequence[kvr.Piece]) -> float:
        pages = len({(piece.page, piece.segment) for piece in side})
        return (WIDTH - 2 * MARGIN - GAP * (pages - 1)) / max(1, sum(piece.bytes for piece in side))

    return min(room(side) for side in sides)


def number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def draw_bar(bar: Bar, y: float, hues: dict[str, int], side: str, *, moved_only: bool) -> list[str]:
    """The rectangles of one page; what is not moved is grey."""
    out = []
    for piece in bar.pieces:
        x, width = number(bar.at(piece.offset)), number(piece.bytes * bar.scale)
        box = f'x="{x}" y="{number(y)}" width="{width}" height="{BAR}"'
        words = escape(piece_words(piece))
        if piece.component is None:
            fill = 'class="piece unread"'
        elif moved_only and piece.run is None:
            fill = 'class="piece still"'
        else:
            fill = f'class="piece" fill="{shade(hues[piece.component], piece)}"'
        run = "" if piece.run is None else f' data-run="{piece.run}"'
        out.append(f'<rect {fill} {box} data-side="{side}"{run} data-words="{words}"><title>{words}</title></rect>')
    last = bar.pieces[-1]
    width = number((last.offset + last.bytes) * bar.scale)
    out.append(f'<rect class="page" x="{number(bar.x)}" y="{number(y)}" width="{width}" height="{BAR}"/>')
    return out + labels(bar, y, moved_only=moved_only)


def labels(bar: Bar, y: float, *, moved_only: bool) -> list[str]:
    """What stretches of a page hold, written into them where there is room: `k head 0`, or `k` alone, or the head."""

    def of(piece: kvr.Piece) -> tuple[str, int | None]:
        head = piece.axes.get("h")
        return piece.component or "", None if head is None or head[0] != head[1] else head[0]

    def stretches(key: Callable[[kvr.Piece], object]) -> list[list[kvr.Piece]]:
        return [list(group) for _, group in groupby(bar.pieces, key)]

    def fitting(groups: list[list[kvr.Piece]], words: Callable[[kvr.Piece], list[str]]) -> list[str]:
        out = []
        for group in groups:
            first, last = group[0], group[-1]
            if first.component is None:
                continue
            left, right = bar.at(first.offset), bar.at(last.offset + last.bytes)
            texts = [one for one in words(first) if (len(one) + 1) * LETTER < right - left]
            if texts:
                dull = " dull" if moved_only and all(piece.run is None for piece in group) else ""
                place = f'x="{number((left + right) / 2)}" y="{number(y + BAR / 2 + 4)}" text-anchor="middle"'
                out.append(f'<text class="label{dull}" {place}>{escape(texts[0])}</text>')
        return out

    def both(piece: kvr.Piece) -> list[str]:
        name, head = of(piece)
        return [name] if head is None else [f"{name} head {head}", f"{name} {head}", name]

    def alone(piece: kvr.Piece) -> list[str]:
        return [] if of(piece)[1] is None else [f"head {of(piece)[1]}"]

    # Components that alternate too fast to be written down: the head that they share.
    return fitting(stretches(of), both) or fitting(stretches(lambda piece: of(piece)[1]), alone)


def legend(hues: dict[str, int], y: float, *, still: bool, unread: bool) -> list[str]:
    """Which colour is which component."""
    entries = [(name, f'fill="hsl({hue} 62% 47%)"') for name, hue in hues.items()]
    entries += [("not moved", 'class="still"')] if still else []
    entries += [("padding", 'class="unread"')] if unread else []
    out, x = [], MARGIN
    for name, fill in entries:
        out.append(f'<rect x="{x}" y="{number(y - 11)}" width="12" height="12" {fill}/>')
        out.append(f'<text x="{x + 17}" y="{number(y)}">{escape(name)}</text>')
        x += 40 + 10 * len(name)
    return out


def wrap(body: Sequence[str], height: float, label: str) -> str:
    """A whole SVG image."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="kvr" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {WIDTH} {number(height)}" width="{WIDTH}" height="{number(height)}">'
        f"<style>{STYLE}</style>{HATCH}{''.join(body)}</svg>"
    )


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{number(x)}" y="{number(y)}"{style}>{escape(words)}</text>'


def format_svg(fmt: kvr.PageFormat, /) -> str:
    """A drawing of one page, as the text of an SVG image: a strip from the first byte to the last.

    Raises:
        LimitExceeded: As :meth:`kvreshard.PageFormat.pieces`.
    """
    pieces = fmt.pieces()
    hues = colours(component_names(pieces))
    (bar,) = bars(pieces, fit(pieces))
    y = 2 * LINE + 8
    extents = ", ".join(f"{axis} {extent}" for axis, extent in fmt.extents.items())
    body = [
        text(MARGIN, LINE, fmt.notation),
        text(MARGIN, 2 * LINE, f"{extents}; {fmt.page_bytes:,} bytes", ' class="faint"'),
    ]
    body += draw_bar(bar, y, hues, "page", moved_only=False)
    body += legend(hues, y + BAR + 22, still=False, unread=any(piece.component is None for piece in pieces))
    return wrap(body, y + BAR + 34, f"A page of {fmt.notation}")


def plan_svg(plan: kvr.Plan, layer: str | None = None, /) -> str:
    """A drawing of one layer of a plan: the source's pages above, the destination's below, ribbons for the runs.

    Where the destination takes one of several equal shares of the source, a bracket shows which bytes an equal cut of
    the page would have taken instead.

    Args:
        plan: The plan.
        layer: The layer; the first one where not given.

    Raises:
        LayoutError, LimitExceeded: As :meth:`kvreshard.Plan.picture`.
    """
    picture = plan.picture(layer)
    reads = plan.direction == "read"
    above, below = (picture.remote, picture.local) if reads else (picture.local, picture.remote)
    source, destination = (plan.remote, plan.local) if reads else (plan.local, plan.remote)
    hues = colours(component_names([*above, *below]))
    scale = fit(above, below)
    tops, bottoms = bars(above, scale), bars(below, scale)
    naive = equal_share(above, destination)
    top = LINE * (5 if naive else 3)
    bottom = top + BAR + RIBBONS
    body = [
        text(MARGIN, LINE, f"from {rank_words(source)}"),
        text(MARGIN, 2 * LINE, notations(source, picture.layer), ' class="faint"'),
    ]
    if naive:
        body += bracket(tops[0], naive, top)
    for bar in tops:
        body += draw_bar(bar, top, hues, "source", moved_only=True)
    body += ribbons(picture, reads, tops, bottoms, hues, top + BAR, bottom)
    for bar in bottoms:
        body += draw_bar(bar, bottom, hues, "destination", moved_only=True)
    y = bottom + BAR + LINE
    body += [
        text(MARGIN, y, f"to {rank_words(destination)}"),
        text(MARGIN, y + LINE, notations(destination, picture.layer), ' class="faint"'),
    ]
    count = len(picture.runs)
    moved = sum(run[2] for run in picture.runs)
    words = f"layer {picture.layer}: {count:,} {'run' if count == 1 else 'runs'}, {moved:,} bytes a period"
    body.append(text(MARGIN, y + 2 * LINE, words, ' class="faint"'))
    drawn = [*above, *below]
    still = any(piece.run is None and piece.component for piece in drawn)
    body += legend(hues, y + 3 * LINE + 6, still=still, unread=any(piece.component is None for piece in drawn))
    return wrap(body, y + 3 * LINE + 18, f"{words}, from {rank_words(source)} to {rank_words(destination)}")


def notations(layout: kvr.RankLayout, layer: str) -> str:
    """The formats of a layer, each once."""
    (found,) = (one for one in layout.layers if one.name == layer)
    return " + ".join(dict.fromkeys(str(segment.format) for segment in found.segments))


def ribbons(
    picture: kvr.Picture,
    reads: bool,
    tops: Sequence[Bar],
    bottoms: Sequence[Bar],
    hues: dict[str, int],
    y: float,
    end: float,
) -> list[str]:
    """A band for each run, in the colour of what it starts with."""
    first: dict[int, kvr.Piece] = {}
    for bar in tops:
        for piece in bar.pieces:
            if piece.run is not None:
                first.setdefault(piece.run, piece)
    upper, lower = {bar.place: bar for bar in tops}, {bar.place: bar for bar in bottoms}
    middle = (y + end) / 2
    out = []
    for index, (local, remote, size) in enumerate(picture.runs):
        source, destination = (remote, local) if reads else (local, remote)
        one, other = upper[source[:2]], lower[destination[:2]]
        left, right = one.at(source[2]), one.at(source[2] + size)
        low, high = other.at(destination[2]), other.at(destination[2] + size)
        piece = first[index]
        fill = shade(hues[piece.component or ""], piece)
        curve = f"M{point(left, y)}C{point(left, middle)} {point(low, middle)} {point(low, end)}"
        curve += f"L{point(high, end)}C{point(high, middle)} {point(right, middle)} {point(right, y)}Z"
        out.append(f'<path class="ribbon" data-run="{index}" fill="{fill}" d="{curve}"/>')
    return out


def point(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"


@dataclass(frozen=True)
class Share:
    """The bytes that an equal cut of the source's page would take for the destination, and what they hold."""

    start: int
    end: int
    words: str


def equal_share(pieces: Sequence[kvr.Piece], destination: kvr.RankLayout) -> Share | None:
    """What cutting the source's page into equal byte ranges would have sent; `None` where it would have been right."""
    places = {(piece.page, piece.segment) for piece in pieces}
    total = sum(piece.bytes for piece in pieces)
    moved = [piece for piece in pieces if piece.run is not None]
    taken = sum(piece.bytes for piece in moved)
    if len(places) != 1 or not moved or taken == total or total % taken:
        return None
    shares = total // taken
    rank, size = destination.tp
    share = rank * shares // size if size < shares else rank % shares
    start, end = share * taken, (share + 1) * taken
    inside = [piece for piece in pieces if piece.offset < end and piece.offset + piece.bytes > start]
    if all(piece.run is not None for piece in inside):
        return None
    wrong = sum(
        min(end, piece.offset + piece.bytes) - max(start, piece.offset) for piece in inside if piece.run is None
    )
    held = component_names(inside)
    what = f"{'only ' if len(held) < len(component_names(pieces)) else ''}{', '.join(held)}"
    words = f"an equal cut, part {share + 1} of {shares}: {what}, and {100 * wrong / taken:.0f} % of that for others"
    return Share(start, end, words)


def bracket(bar: Bar, share: Share, y: float) -> list[str]:
    """Marks the bytes of an equal cut, over the page."""
    left, right = bar.at(share.start) + 1, bar.at(share.end) - 1
    path = f"M{number(left)} {number(y - 2)}v-8H{number(right)}v8"
    anchor = "end" if left > WIDTH / 2 else "start"
    x = right if left > WIDTH / 2 else left
    return [
        f'<path class="bracket" d="{path}"/>',
        f'<text class="warn" x="{number(x)}" y="{number(y - 15)}" text-anchor="{anchor}">{escape(share.words)}</text>',
    ]
